//! Where a store is: an address, a name that stands for some, or a Unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::parsers::address;
use super::units::Wrong;

/// Where a store listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreAddress {
    /// On the network.
    Network(NetworkAddress),
    /// At a Unix socket of this machine.
    Unix(SocketPath),
}

/// An address and a port, or a host name and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NetworkAddress {
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

/// The path of a Unix socket: absolute, and no longer than the system takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SocketPath(PathBuf);

impl StoreAddress {
    /// The address, if it is one.
    #[must_use]
    pub const fn fixed(&self) -> Option<SocketAddr> {
        match self {
            Self::Network(network) => network.fixed(),
            Self::Unix(_) => None,
        }
    }
}

impl NetworkAddress {
    /// The address, if it is one.
    #[must_use]
    pub const fn fixed(&self) -> Option<SocketAddr> {
        match self {
            Self::Fixed(address) => Some(*address),
            Self::Named { .. } => None,
        }
    }
}

impl SocketPath {
    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.0.display()),
        }
    }
}

impl fmt::Display for NetworkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(address) => address.fmt(f),
            Self::Named { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// An address or a name, and a port; or a Unix socket.
pub(super) fn read(text: &str) -> Result<StoreAddress, Wrong> {
    match text.strip_prefix(UNIX) {
        Some(path) => socket_path(path).map(StoreAddress::Unix),
        None => read_network(text).map(StoreAddress::Network),
    }
}

/// An address or a name, and a port.
pub(super) fn read_network(text: &str) -> Result<NetworkAddress, Wrong> {
    if text.parse::<SocketAddr>().is_ok() {
        return address(text).map(NetworkAddress::Fixed);
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
    Ok(NetworkAddress::Named { host: host.to_owned(), port })
}

fn socket_path(path: &str) -> Result<SocketPath, Wrong> {
    if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
        return Err("must be the whole path of a socket, e.g. \"unix:/run/redis/redis.sock\"".to_owned());
    }
    match path.len() {
        ..=LONGEST_PATH => Ok(SocketPath(path.into())),
        len => Err(format!("has a path of {len} bytes: the system takes {LONGEST_PATH} of a socket's")),
    }
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

/// The beginning of a Unix socket's address.
const UNIX: &str = "unix:";
/// The size of `sun_path` without the byte that ends it.
const LONGEST_PATH: usize = 107;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_a_host_name_with_a_port_is_read() {
        for text in ["127.0.0.1:1", "[::1]:65535"] {
            assert_eq!(read_network(text), Ok(NetworkAddress::Fixed(text.parse().unwrap())));
        }
        for text in ["localhost:6379", "a-b.c_d.example.:1", "1a:2", "x.2b:3"] {
            let (host, port) = text.rsplit_once(':').unwrap();
            let named = NetworkAddress::Named { host: host.to_owned(), port: port.parse().unwrap() };
            assert_eq!(read_network(text), Ok(named.clone()));
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

    #[test]
    fn a_socket_is_a_whole_path_of_at_most_107_bytes() {
        let longest = format!("unix:/{}", "a".repeat(LONGEST_PATH - 1));
        for text in ["unix:/run/redis.sock", "unix:/a b", &longest] {
            let address = read(text).unwrap();
            assert_eq!((address.to_string().as_str(), address.fixed()), (text, None));
            assert!(read_network(text).is_err());
        }
        for text in
            ["unix:", "unix:/", "unix:run/redis.sock", "unix://", "unix:/a\0", "unix:/run/", "UNIX:/a"]
        {
            assert!(read(text).is_err(), "{text:?}");
        }
        let long = format!("{longest}a");
        assert!(read(&long).unwrap_err().contains("108 bytes: the system takes 107"));
    }
}
