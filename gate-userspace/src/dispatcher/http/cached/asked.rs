//! Which requests the cache is for, and what of them is the key. Pure but for the time that is now.
//!
//! The cache reads for `GET` and `HEAD` without a body and without what makes an answer one client's: `Authorization`, `Cookie`.
//! Methods that are not known to be safe change what is kept.

use std::sync::Arc;

use hyper::Method;
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue,
    IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use hyper::http::request::Parts;

use super::codings;
use crate::cache::{
    Fields, Freshness, Key, Record, SCHEMES, StoredResponse, keyed_request, lower_case, says_of_freshness,
};
use crate::clock;
use crate::config::{self, Dedup};
use crate::dispatcher::http::claims;

/// The purpose of a request, as the cache sees it.
#[derive(Debug)]
pub(super) enum Purpose {
    Read(Box<Lookup>),
    /// A change of what is under this key, perhaps.
    Change(Key),
    /// Another, or not one for a cache that is shared.
    Other(PassesBy),
}

/// Why a request passes by the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatcher::http) enum PassesBy {
    /// Its host, scheme or path is none of a key.
    NoKey,
    Method,
    Body,
    /// Its fields say who asks.
    Own,
    NoStore,
    /// Its tenant has `cache = "off"`.
    Tenant,
    /// Another gate has the directory.
    Closed,
}

impl PassesBy {
    /// The reason, as operators are told.
    pub(in crate::dispatcher::http) const fn reason(self) -> &'static str {
        match self {
            Self::NoKey => "its host, scheme or path is none that can be a key",
            Self::Method => "its method neither reads nor changes",
            Self::Body => "it has a body",
            Self::Own => "it has Authorization or Cookie, so that its answer is one client's own",
            Self::NoStore => "it says Cache-Control: no-store",
            Self::Tenant => "its tenant has cache = \"off\"",
            Self::Closed => "another gate has the directory of the cache",
        }
    }
}

/// A request that the cache is for.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    pub(super) key: Key,
    /// Its fields that are part of the key.
    pub(super) fields: Fields,
    /// The request itself, as a GET, with the fields of the key as they are there.
    pub(super) request: Parts,
    pub(super) is_head: bool,
    pub(super) only_if_cached: bool,
    scheme: &'static str,
}

impl Purpose {
    /// The purpose of a request of the tenant with this name, for a cache whose store knows tenants by the field
    /// `tenant_header`.
    pub(super) fn of(
        settings: &config::Cache,
        tenant_header: Option<&HeaderName>,
        tenant: &str,
        parts: &Parts,
        has_body: bool,
    ) -> Self {
        let tenant = if settings.dedup == Dedup::Tenant { tenant } else { "" };
        let Some((key, scheme)) = key(tenant, parts) else { return Self::Other(PassesBy::NoKey) };
        let is_read = parts.method == Method::GET || parts.method == Method::HEAD;
        if !is_read {
            return if parts.method.is_safe() { Self::Other(PassesBy::Method) } else { Self::Change(key) };
        }
        let is_own = [AUTHORIZATION, COOKIE].iter().any(|name| parts.headers.contains_key(name));
        for (passes, why) in [
            (has_body, PassesBy::Body),
            (is_own, PassesBy::Own),
            (says(&parts.headers, "no-store"), PassesBy::NoStore),
        ] {
            if passes {
                return Self::Other(why);
            }
        }
        let names = settings.key.iter().filter_map(|name| HeaderName::try_from(name.as_str()).ok());
        let mut names: Vec<_> = names.chain(tenant_header.cloned()).collect();
        let mut claimed: Vec<_> = claimed(&parts.headers, key.host()).cloned().collect();
        claimed.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        claimed.retain(|name| !names.contains(name));
        names.append(&mut claimed);
        let fields: Option<Fields> =
            names.into_iter().filter_map(|name| joined(&parts.headers, name)).collect();
        let Some(fields) = fields else { return Self::Other(PassesBy::NoKey) };
        let mut request = keyed(parts.clone(), &fields);
        lower_case(&mut request.headers);
        Self::Read(Box::new(Lookup {
            key,
            fields,
            is_head: parts.method == Method::HEAD,
            only_if_cached: says(&request.headers, "only-if-cached"),
            request,
            scheme,
        }))
    }
}

impl Lookup {
    /// The answer to it out of a record, and the use that it may make of that.
    pub(super) fn kept_in(&self, record: &Record) -> (Option<Arc<StoredResponse>>, Option<Freshness>) {
        let now = clock::realtime();
        let kept = record.get(&self.fields, &self.request.headers).cloned();
        let freshness = kept.as_ref().map(|kept| kept.freshness(&self.request, now));
        (kept, freshness)
    }

    /// True if the request has fields that are not sent on behalf of all.
    pub(super) fn says_more(&self) -> bool {
        self.own_fields().next().is_some()
    }

    /// The fields that are not sent on behalf of all.
    pub(super) fn own_fields(&self) -> impl Iterator<Item = &HeaderName> {
        let is_sent = |name: &HeaderName| {
            name == HOST
                || name == FORWARDED_HOST
                || name == FORWARDED_PROTO
                || claims::is_address(name)
                || self.fields.iter().any(|(field, _)| field == name)
        };
        self.request.headers.keys().filter(move |name| !is_sent(name))
    }

    /// True if the client wants an answer only of a version that it names.
    pub(super) fn has_precondition(&self) -> bool {
        [IF_MATCH, IF_UNMODIFIED_SINCE].iter().any(|name| self.request.headers.contains_key(name))
    }

    /// Words of the request that keep it from a kept answer, or its answer from being kept, as operators are told.
    pub(super) fn conditions(&self) -> impl Iterator<Item = &'static str> {
        let said = [
            (
                says_of_freshness(&self.request.headers),
                "its Cache-Control or Pragma says how fresh that has to be",
            ),
            (self.only_if_cached, "without one it is answered 504, since it says only-if-cached"),
            (self.is_head, "what its HEAD fetches is not kept"),
            (self.has_precondition(), "what it fetches with If-Match or If-Unmodified-Since is not kept"),
        ];
        said.into_iter().filter_map(|(is_said, what)| is_said.then_some(what))
    }

    /// The client's own request, for a whole answer: conditions and ranges are judged when it is there.
    pub(super) fn own_request(&self, mut parts: Parts) -> Parts {
        JUDGED_HERE.iter().for_each(|name| drop(parts.headers.remove(name)));
        parts
    }

    /// The request to the origin, on behalf of all who ask for the same: the fields of the key, those that say what else is
    /// part of it, and the address of the client that asks. An origin that refuses that address refuses the fetch.
    pub(super) fn to_origin(&self) -> Option<Parts> {
        // As in the key: another spelling of it may show in the answer.
        let host = HeaderValue::from_str(self.key.host()).ok()?;
        let mut parts = keyed_request(self.key.path(), &host, &self.fields)?;
        let headers = &mut parts.headers;
        headers.entry(FORWARDED_HOST).or_insert(host);
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(self.scheme));
        for (name, value) in self.request.headers.iter().filter(|(name, _)| claims::is_address(name)) {
            headers.append(name, value.clone());
        }
        Some(parts)
    }
}

/// A client's own request, as a GET, with the fields of the key as they are there.
pub(super) fn keyed(mut own: Parts, fields: &Fields) -> Parts {
    own.method = Method::GET;
    for (name, value) in fields {
        own.headers.insert(name, value.clone());
    }
    own
}

/// Fields of a trusted proxy that say more than where a request comes from: who it is for, or another target. Each of their
/// values is another key.
fn claimed<'h>(headers: &'h HeaderMap, host: &'h str) -> impl Iterator<Item = &'h HeaderName> {
    let is_host = |name: &HeaderName| {
        let mut values = headers.get_all(name).into_iter();
        values.all(|value| value.as_bytes().eq_ignore_ascii_case(host.as_bytes()))
    };
    headers.keys().filter(move |&name| {
        claims::is_of_origin(name.as_str())
            && !claims::is_address(name)
            && name != FORWARDED_PROTO
            && !(name == FORWARDED_HOST && is_host(name))
    })
}

/// The key of a request, and its scheme; `None` if it has none.
fn key(tenant: &str, parts: &Parts) -> Option<(Key, &'static str)> {
    let host = parts.headers.get(HOST)?.to_str().ok()?.to_ascii_lowercase();
    let path = parts.uri.path_and_query()?.as_str();
    let mut said = parts.headers.get_all(FORWARDED_PROTO).into_iter();
    let scheme = said.next().map_or("http", |said| said.to_str().unwrap_or_default());
    let scheme = SCHEMES.into_iter().find(|known| scheme.eq_ignore_ascii_case(known))?;
    let has_parts = said.next().is_none() && path.starts_with('/') && path.len() <= LONGEST;
    has_parts.then(|| (Key::new(&host, path, tenant, scheme), scheme))
}

/// A field with all its values; `Some(None)` if they cannot be joined.
fn joined(headers: &HeaderMap, name: HeaderName) -> Option<Option<(HeaderName, HeaderValue)>> {
    let mut values = headers.get_all(&name).into_iter();
    let first = values.next()?;
    let value = match values.next() {
        None => Ok(first.clone()),
        Some(_) => {
            let all: Vec<_> = headers.get_all(&name).into_iter().map(HeaderValue::as_bytes).collect();
            HeaderValue::from_bytes(&all.join(&b", "[..]))
        }
    };
    let value = value.map(|value| if name == ACCEPT_ENCODING { codings::normalised(&value) } else { value });
    Some(value.ok().map(|value| (name, value)))
}

/// True if the request says this of caches.
fn says(headers: &HeaderMap, directive: &str) -> bool {
    let values = headers.get_all(CACHE_CONTROL).into_iter();
    let mut directives = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    directives.any(|said| said.trim_ascii().eq_ignore_ascii_case(directive.as_bytes()))
}

/// Conditions and ranges.
const JUDGED_HERE: [HeaderName; 4] = [IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE];
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Longer paths are not kept: each is held in memory and on disk.
const LONGEST: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    /// The purpose of a request to the host `a`, in words.
    fn purpose(method: &str, target: &str, (name, value): (&'static str, &str), has_body: bool) -> String {
        let settings = config::Cache {
            dir: "/c".into(),
            memory: 0,
            disk: 0,
            max_object: 0,
            key: vec!["accept-encoding".to_owned()],
            is_key_named: false,
            keep_own: false,
            stale: gate_common::units::Nanos::ZERO,
            dedup: Dedup::Service,
            is_dedup_said: false,
        };
        let request = Request::builder().method(method).uri(target).header(HOST, "A").header(name, value);
        let parts = request.body(()).unwrap().into_parts().0;
        match Purpose::of(&settings, None, "t", &parts, has_body) {
            Purpose::Read(lookup) => {
                let fields: String = lookup
                    .fields
                    .iter()
                    .map(|(name, value)| format!(" {name}={}", value.to_str().unwrap()))
                    .collect();
                format!("read {}://{}{}{fields}", lookup.scheme, lookup.key.host(), lookup.key.path())
            }
            Purpose::Change(key) => format!("change {}{}", key.host(), key.path()),
            Purpose::Other(why) => format!("other: {why:?}"),
        }
    }

    #[test]
    fn a_key_is_host_path_query_scheme_and_configured_fields() {
        for (target, field, read) in [
            ("/x", ("x-a", "1"), "read http://a/x"),
            ("/x?y=1&z", ("x-a", "1"), "read http://a/x?y=1&z"),
            ("/x?", ("x-a", "1"), "read http://a/x?"),
            ("/x", ("accept-encoding", "br"), "read http://a/x accept-encoding=br"),
            ("/x", ("x-forwarded-proto", "HTTPS"), "read https://a/x"),
            ("/x", ("x-forwarded-proto", "ftp"), "other: NoKey"),
        ] {
            for method in ["GET", "HEAD"] {
                assert_eq!(purpose(method, target, field, false), read, "{method} {target} {field:?}");
            }
        }
        assert_eq!(purpose("GET", &format!("/{}", "x".repeat(LONGEST)), ("x-a", "1"), false), "other: NoKey");
    }

    #[test]
    fn what_is_one_clients_own_is_not_for_the_cache() {
        for (method, field, has_body, expected) in [
            ("GET", ("x-a", "1"), true, "other: Body"),
            ("HEAD", ("x-a", "1"), true, "other: Body"),
            ("GET", ("cookie", "a=1"), false, "other: Own"),
            ("GET", ("authorization", "Basic x"), false, "other: Own"),
            ("GET", ("cache-control", "max-age=0, No-Store"), false, "other: NoStore"),
            ("OPTIONS", ("x-a", "1"), false, "other: Method"),
            ("TRACE", ("x-a", "1"), false, "other: Method"),
            ("POST", ("x-a", "1"), true, "change a/x?y"),
            ("DELETE", ("cookie", "a=1"), false, "change a/x?y"),
            ("PURGE", ("x-a", "1"), false, "change a/x?y"),
        ] {
            assert_eq!(purpose(method, "/x?y", field, has_body), expected, "{method} {field:?} {has_body}");
        }
    }
}
