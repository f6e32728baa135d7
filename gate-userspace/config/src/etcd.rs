//! The key `etcd` of `[fleet]` and `[quota]`: where owners of limits are found.

use std::net::IpAddr;

use super::raw::Section;
use super::units::Wrong;

/// Reads `etcd`: URLs of the members of one cluster, distinct; none if the key is absent or wrong.
pub(super) fn etcd(s: &mut Section<'_>) -> Vec<String> {
    let mut endpoints: Vec<String> = Vec::new();
    for item in s.list("etcd", endpoint) {
        if endpoints.contains(&item.value) {
            item.fault("is listed twice");
        } else if endpoints.len() == MAX_ENDPOINTS {
            item.fault(format!("is one too many: there may be {MAX_ENDPOINTS}"));
        } else {
            endpoints.push(item.value);
        }
    }
    let encrypted = endpoints.iter().filter(|url| url.starts_with("https:")).count();
    if encrypted > 0 && encrypted < endpoints.len() {
        s.fault(
            "etcd",
            "has members with https and without: they are one cluster, so name all in one way".to_owned(),
        );
    } else if encrypted > 0 && !s.has("tls") {
        s.fault("etcd", NEEDS_TLS.to_owned());
    }
    endpoints
}

/// The URL of a member.
///
/// # Errors
///
/// The form that would be right.
pub fn endpoint(text: &str) -> Result<String, Wrong> {
    let wrong = || "must be a URL with an address and a port, e.g. \"http://127.0.0.1:2379\"".to_owned();
    let (scheme, authority) = text.split_once("://").ok_or_else(wrong)?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
    let is_name = |host: &str| {
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
    };
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    if !(ip.is_some() || is_name(host)) || port.parse::<u16>().ok().filter(|port| *port > 0).is_none() {
        return Err(wrong());
    }
    let is_loopback = host == "localhost" || ip.is_some_and(|ip| ip.is_loopback());
    match scheme {
        "http" if is_loopback => Ok(format!("http://{authority}")),
        "http" => Err("is neither encrypted nor on loopback: name a member by https, e.g. \"https://etcd.example:2379\"".to_owned()),
        "https" => Ok(format!("https://{authority}")),
        _ => Err(wrong()),
    }
}

const NEEDS_TLS: &str = "has a member with https: write tls = { ca = ..., certificate = ..., key = ... } as well, which members are shown \
                         and checked with";
const MAX_ENDPOINTS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LimitsIn, QuotaConfig};

    /// The section of an owner, and what is wrong with it.
    fn faults(section: &str) -> Vec<String> {
        match QuotaConfig::parse("quota.toml", &format!("[quota]\n{section}\n")) {
            Ok(config) => {
                assert!(matches!(config.limits, LimitsIn::Etcd(_)), "{section}");
                Vec::new()
            }
            Err(faults) => faults.to_string().lines().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn an_owner_by_etcd_has_an_address_and_no_limits_of_its_own() {
        const TLS: &str = "tls = { ca = \"/a\", certificate = \"/c\", key = \"/k\" }";
        const SECURE: &str = r#"etcd = ["https://etcd.example:2379"]"#;
        const PLAIN: &str = r#"etcd = ["http://127.0.0.1:2379"]"#;
        let listen = "listen = \"0.0.0.0:9920\"";
        for (section, expected) in [
            (PLAIN.to_owned(), ""),
            (format!("{SECURE}\n{TLS}"), ""),
            (SECURE.to_owned(), "has a member with https"),
            (r#"etcd = []"#.to_owned(), "2: quota.etcd"),
            (format!("{PLAIN}\n{PLAIN}"), "duplicate"),
            (
                r#"etcd = ["http://[::1]:1", "https://[::1]:2"]"#.to_owned(),
                "has members with https and without",
            ),
            (r#"etcd = ["http://[::1]:1", "http://[::1]:1"]"#.to_owned(), "is listed twice"),
            (format!("{PLAIN}\n{TLS}\n{listen}"), "is no address that gates can report to"),
            (format!("{PLAIN}\n[[limit]]\nname = \"a\"\nquota = \"1 RU/s\""), "are in etcd, where"),
        ] {
            let faults = faults(&section);
            let fits = if expected.is_empty() {
                faults.is_empty()
            } else {
                faults.iter().any(|fault| fault.contains(expected))
            };
            assert!(fits, "{section}: {faults:?}");
        }
    }

    #[test]
    fn a_member_is_a_url_on_loopback_or_by_https() {
        for (text, url) in [
            ("http://127.0.0.1:2379", "http://127.0.0.1:2379"),
            ("http://127.0.0.2:2379/", "http://127.0.0.2:2379"),
            ("http://[::1]:1", "http://[::1]:1"),
            ("http://localhost:65535", "http://localhost:65535"),
            ("https://etcd.example:2379/", "https://etcd.example:2379"),
        ] {
            assert_eq!(endpoint(text).as_deref(), Ok(url), "{text}");
        }
        for (text, why) in [
            ("127.0.0.1:2379", "must be a URL"),
            ("ftp://127.0.0.1:2379", "must be a URL"),
            ("http://127.0.0.1", "must be a URL"),
            ("http://127.0.0.1:0", "must be a URL"),
            ("http://a b:1", "must be a URL"),
            ("http://:1", "must be a URL"),
            ("http://127.0.0.1:2379/path", "must be a URL"),
            ("http://10.0.0.1:2379", "is neither encrypted nor on loopback"),
            ("http://etcd.example:2379", "is neither encrypted nor on loopback"),
        ] {
            assert!(endpoint(text).unwrap_err().starts_with(why), "{text}");
        }
    }
}
