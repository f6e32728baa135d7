//! Keys: what was asked, of which host, and on whose behalf. Pure.
//!
//! The parts end with a zero, which none of them holds, so that all keys of a URL, and those of its tenants, have a prefix of
//! their own.

use super::digest::Digest;
use super::response::Fields;

/// The key of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    bytes: Box<[u8]>,
    host: usize,
    path: usize,
    /// The length without the scheme.
    tenant: usize,
}

impl Key {
    /// The key of a URL for a tenant; for all of them if it has no name. `host` is in lower case, `path` with its query.
    pub(crate) fn new(host: &str, path: &str, tenant: &str, scheme: &str) -> Self {
        let bytes = [host, path, tenant, scheme].join("\0");
        let path_end = host.len() + 1 + path.len();
        let tenant_end = path_end + 1 + tenant.len() + 1;
        Self { bytes: bytes.into_bytes().into(), host: host.len(), path: path_end, tenant: tenant_end }
    }

    /// The key of an original of this origin, scheme and all: no client can name such a host, so that nothing that a client
    /// sends is taken for an original.
    pub(crate) fn of_original(origin: &str, path: &str, tenant: &str) -> Self {
        debug_assert!(origin.contains("://"));
        Self::new(origin, path, tenant, "")
    }

    /// The key of what was processed of a body by a spec, which has no slash.
    pub(crate) fn of_processed(original: &Digest, spec: &str, tenant: &str) -> Self {
        Self::new(PROCESSED, &format!("/{original}/{spec}"), tenant, "")
    }

    /// The prefix of the keys of all that was processed of a body.
    pub(super) fn all_processed(original: &Digest) -> Vec<u8> {
        format!("{PROCESSED}\0/{original}/").into_bytes()
    }

    pub(crate) fn host(&self) -> &str {
        str::from_utf8(&self.bytes[..self.host]).unwrap_or_default()
    }

    /// The path with the query.
    pub(crate) fn path(&self) -> &str {
        str::from_utf8(&self.bytes[self.host + 1..self.path]).unwrap_or_default()
    }

    /// The key of another path of the same host.
    pub(crate) fn with_path(&self, path: &str) -> Self {
        let rest = str::from_utf8(&self.bytes[self.path + 1..]).unwrap_or_default();
        let (tenant, scheme) = rest.split_once('\0').unwrap_or_default();
        Self::new(self.host(), path, tenant, scheme)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The prefix of its tenant's keys of this URL.
    pub(super) fn of_tenant(&self) -> &[u8] {
        &self.bytes[..self.tenant]
    }

    /// The key of a fetch with these fields.
    pub(super) fn of_fetch(&self, fields: &Fields) -> Vec<u8> {
        let mut key = self.bytes.to_vec();
        for (name, value) in fields {
            for part in [name.as_str().as_bytes(), value.as_bytes()] {
                key.push(0);
                key.extend_from_slice(part);
            }
        }
        key
    }

    /// The prefix of all keys of a URL, whoever they are for.
    pub(super) fn of_url(host: &str, path: &str) -> Vec<u8> {
        [host, path, ""].join("\0").into_bytes()
    }
}

/// In the place of the host, where no client can name it.
const PROCESSED: &str = "/processed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_url_have_a_prefix_that_others_do_not() {
        let key = Key::new("a:80", "/x?y", "t", "http");
        assert_eq!((key.host(), key.path(), key.bytes()), ("a:80", "/x?y", &b"a:80\0/x?y\0t\0http"[..]));
        assert_eq!(key.of_tenant(), b"a:80\0/x?y\0t\0");
        let url = Key::of_url("a:80", "/x?y");
        assert!(key.bytes().starts_with(&url));
        for other in [Key::new("a:80", "/x?yz", "t", "http"), Key::new("a:8", "/x?y", "t", "http")] {
            assert!(!other.bytes().starts_with(&url));
        }
        assert!(!Key::new("a:80", "/x?y", "tt", "http").bytes().starts_with(key.of_tenant()));
        assert!(!Key::new("a:80", "/x?y", "", "http").bytes().starts_with(key.of_tenant()));
    }
}
