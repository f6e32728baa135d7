//! Where a store is: an address, or a name that stands for some.

use std::fmt;
use std::net::SocketAddr;

use super::parsers::address;
use super::units::Wrong;

/// Where a store listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreAddress {
    /// There, for good.
    Fixed(SocketAddr),
    /// Where the system says that this host is, at the time.
    Named {
        /// A host name of at most 253 bytes.
        host: String,
        /// Not 0.
        port: u16,
    },
}

impl StoreAddress {
    /// The address, if it is one.
    #[must_use]
    pub const fn fixed(&self) -> Option<SocketAddr> {
        match self {
            Self::Fixed(address) => Some(*address),
            Self::Named { .. } => None,
        }
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(address) => address.fmt(f),
            Self::Named { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// An address or a name, and a port.
pub(super) fn read(text: &str) -> Result<StoreAddress, Wrong> {
    if text.parse::<SocketAddr>().is_ok() {
        return address(text).map(StoreAddress::Fixed);
    }
    let wrong = || {
        "must be an address and a port or a host name and a port, e.g. \"198.18.0.1:11211\" or \"cache.example:11211\""
            .to_owned()
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if !is_host(host) || !digits {
        return Err(wrong());
    }
    let port = port.parse().ok().filter(|&port| port > 0).ok_or("must have a port from 1 to 65535")?;
    Ok(StoreAddress::Named { host: host.to_owned(), port })
}

/// True if a text is a host's name, and cannot be meant for an address.
pub(super) fn is_host(text: &str) -> bool {
    let labels = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        (1..=63).contains(&label.len()) && plain && !label.starts_with('-') && !label.ends_with('-')
    };
    let last = labels.rsplit('.').next().unwrap_or_default();
    text.len() <= 253 && labels.split('.').all(is_label) && !last.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_a_host_name_with_a_port_is_read() {
        for text in ["127.0.0.1:1", "[::1]:65535"] {
            assert_eq!(read(text), Ok(StoreAddress::Fixed(text.parse().unwrap())));
        }
        for text in ["localhost:6379", "a-b.c_d.example.:1", "1a:2", "x.2b:3"] {
            let (host, port) = text.rsplit_once(':').unwrap();
            let named = StoreAddress::Named { host: host.to_owned(), port: port.parse().unwrap() };
            assert_eq!(read(text), Ok(named.clone()));
            assert_eq!(named.to_string(), text);
        }
    }

    #[test]
    fn other_addresses_are_faults() {
        let long = format!("{}.example:1", "a".repeat(64));
        for text in [
            "",
            ":1",
            "host",
            "host:",
            "host:x",
            "host:0",
            "host:65536",
            "300.1.1.1:1",
            "1.2.3:4",
            "::1:2",
            "a b:1",
            "-a:1",
            "a-:1",
            "a..b:1",
            ".:1",
            "[host]:1",
            "host:+1",
            &long,
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }
}
