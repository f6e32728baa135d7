//! The targets of paths that ask for processing, and where gate may go for them. Pure.
//!
//! A URL is percent-decoded once; what stands there then is what is asked of its origin, byte by byte. Whatever could mean
//! two things to two readers is refused: users, fragments, backslashes, blanks, bytes beyond ASCII.

use std::net::IpAddr;

use hyper::Uri;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;

use crate::config::{Process, is_spec, parse_address};

/// A spec of an original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) spec: String,
    pub(crate) url: Url,
}

/// The URL of an original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// In lower case; an address of IPv6 in brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// With its query.
    pub(crate) path: String,
    pub(crate) is_https: bool,
}

/// Why nothing is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetFault {
    /// No spec, or no URL.
    Malformed,
    /// Another spec than those that may be asked for.
    Spec,
    /// A URL of no configured origin.
    Origin,
    /// Another method than GET and HEAD, or a body.
    Method,
}

impl Target {
    /// The target of a path with its query; `None` if it asks for no processing.
    pub(crate) fn of(settings: &Process, path: &str) -> Option<Result<Self, TargetFault>> {
        let (spec, url) = settings.path.split(path)?;
        Some(Self::read(settings, spec, url))
    }

    fn read(settings: &Process, spec: &str, url: &str) -> Result<Self, TargetFault> {
        if !is_spec(spec) || url.contains('?') {
            return Err(TargetFault::Malformed);
        }
        let decoded = percent_decode_str(url).decode_utf8().map_err(|_| TargetFault::Malformed)?;
        let url = Url::parse(&decoded).ok_or(TargetFault::Malformed)?;
        if !settings.specs.is_empty() && !settings.specs.iter().any(|known| known == spec) {
            return Err(TargetFault::Spec);
        }
        match url.is_of(settings) {
            true => Ok(Self { spec: spec.to_owned(), url }),
            false => Err(TargetFault::Origin),
        }
    }
}

impl Url {
    /// Reads an absolute URL over HTTP.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\\\"<>^`{|}#".contains(&byte);
        if text.len() > LONGEST || !text.bytes().all(is_plain) {
            return None;
        }
        let uri: Uri = text.parse().ok()?;
        let is_https = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let authority = uri.authority()?;
        // Neither a user, nor a port that is none.
        if authority.as_str().contains('@') || authority.as_str().ends_with(':') {
            return None;
        }
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let has_port = uri.port().is_some();
        let host = authority.host();
        let said = authority.as_str().len() - host.len();
        let path = uri.path_and_query()?.as_str();
        let is_whole = (said > 0) == has_port && port > 0 && !host.is_empty();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        is_whole.then(|| Self { host: host.to_ascii_lowercase(), port, path, is_https })
    }

    /// The URL that a `Location` in an answer to this one names.
    pub(crate) fn join(&self, location: &str) -> Option<Self> {
        if location.starts_with('/') && !location.starts_with("//") {
            return Self::parse(&format!("{}{location}", self.origin()));
        }
        Self::parse(location)
    }

    /// True if it is of one of the configured origins.
    pub(crate) fn is_of(&self, settings: &Process) -> bool {
        settings.origins.iter().any(|origin| origin.includes(self.is_https, &self.host, self.port))
    }

    /// Its scheme and authority: `http://images.example`.
    pub(crate) fn origin(&self) -> String {
        let scheme = if self.is_https { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }

    /// Its host, with the port unless it is the usual one.
    pub(crate) fn authority(&self) -> String {
        let usual = if self.is_https { 443 } else { 80 };
        if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// The address that its host is, if it is one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        parse_address(&self.host)
    }
}

/// True if gate may fetch from an address that a name stands for: a public one, or one of these networks.
pub(crate) fn may_fetch(address: IpAddr, networks: &[IpNet]) -> bool {
    let address = address.to_canonical();
    is_public(address) || networks.iter().any(|network| network.contains(&address))
}

/// True for an address that can be anywhere on the Internet (IANA's registries of special-purpose addresses).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            let is_special = matches!(
                (a, b, c),
                (0 | 10 | 127, _, _)
                    | (100, 64..=127, _)
                    | (169, 254, _)
                    | (172, 16..=31, _)
                    | (192, 0, 0 | 2)
                    | (192, 88, 99)
                    | (192, 168, _)
                    | (198, 18..=19, _)
                    | (198, 51, 100)
                    | (203, 0, 113)
                    | (224.., _, _)
            );
            !is_special
        }
        IpAddr::V6(address) => {
            let [a, b, ..] = address.segments();
            // Global unicast, without what carries addresses of IPv4 (Teredo, 6to4), benchmarks and documentation.
            let is_special = (a == 0x2001 && (b < 0x200 || b == 0xdb8)) || a == 0x2002 || a == 0x3fff;
            a & 0xe000 == 0x2000 && !is_special
        }
    }
}

/// Longer URLs are refused: each is held in memory and on disk.
const LONGEST: usize = 2 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_as_it_stands() {
        for (text, host, port, path) in [
            ("http://A.example/x?y=1", "a.example", 80, "/x?y=1"),
            ("https://a:8443/", "a", 8443, "/"),
            ("http://[::1]:81/a%2Fb", "[::1]", 81, "/a%2Fb"),
            ("http://a", "a", 80, "/"),
            ("http://a?x", "a", 80, "/?x"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.host.as_str(), url.port, url.path.as_str()), (host, port, path), "{text}");
        }
        let long = format!("http://a/{}", "x".repeat(LONGEST));
        for wrong in [
            "",
            "a",
            "/a",
            "//a/b",
            "http:/a",
            "http:///a",
            "ftp://a/b",
            "http://u@a/b",
            "http://a@b@c/",
            "http://a:/b",
            "http://a:0/",
            "http://a:65536/",
            "http://a:x/",
            "http://a/b c",
            "http://a/b\tc",
            "http://a/\r\nb",
            "http://a/\0",
            "http://a\\@b/c",
            "http://a/é",
            "http://a/#b",
            "file:///etc/passwd",
            "http://[::1/",
            "http://:80/",
            &long,
        ] {
            assert_eq!(Url::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_redirect_is_read_from_where_it_was_said() {
        let url = Url::parse("http://a:81/x/y").unwrap();
        assert_eq!(url.join("/z?q").unwrap().origin(), "http://a:81");
        assert_eq!(url.join("http://b/z").unwrap().origin(), "http://b");
        for wrong in ["//b/z", "z", "../z", ""] {
            assert_eq!(url.join(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_public_or_configured_addresses_may_be_fetched_from() {
        let is_public = |text: &str| may_fetch(text.parse().unwrap(), &[]);
        for public in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "198.20.0.1", "2606:4700::1", "::ffff:1.1.1.1"]
        {
            assert!(is_public(public), "{public}");
        }
        for other in [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "100.64.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:0:1::1",
            "::127.0.0.1",
            "2001:db8::1",
        ] {
            assert!(!is_public(other), "{other}");
        }
        let networks = ["127.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        for (address, may) in
            [("127.0.0.1", true), ("::ffff:127.9.9.9", true), ("fd00::1", true), ("10.0.0.1", false)]
        {
            assert_eq!(may_fetch(address.parse().unwrap(), &networks), may, "{address}");
        }
    }
}
