//! This machine's own addresses.
//!
//! **Why.** What the machine sends to itself goes over loopback, past the XDP program; but of a datagram that it sends
//! to the address of an interface, the kernel says that it came in by that interface. Such a one has a source of the
//! machine's own, and one from outside cannot have: the kernel drops it (IPv4), or it is charged twice.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use foldhash::fast::RandomState;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

/// The addresses of all interfaces of a network namespace, as of some moment; by default they are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalAddrs {
    addresses: Option<HashSet<IpAddr, RandomState>>,
    /// The interfaces, by their indices, that lie on those that the XDP program is at.
    above: BTreeSet<u32>,
}

impl LocalAddrs {
    /// Those that there are now, in this thread's network namespace.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn read() -> io::Result<Self> {
        let addresses = getifaddrs()?.filter_map(|one| address(one.address.as_ref()?));
        let addresses = Some(addresses.map(|address| address.ip()).collect());
        Ok(Self { addresses, above: BTreeSet::new() })
    }

    /// The same addresses, and these interfaces.
    pub(crate) fn with_above(self, above: &BTreeSet<u32>) -> Self {
        Self { above: above.clone(), ..self }
    }

    /// True if an interface lies on one that the XDP program is at.
    #[inline]
    pub(crate) fn is_above(&self, interface: u32) -> bool {
        self.above.contains(&interface)
    }

    /// The same, or that they are not known.
    pub(crate) fn now() -> Self {
        Self::read().unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot list the machine's own addresses");
            Self::default()
        })
    }

    /// True if the address may be one of them.
    #[inline]
    pub(crate) fn may_have(&self, address: IpAddr) -> bool {
        // All of 127.0.0.0/8 is, though one of it is an interface's address.
        address.is_loopback() || self.addresses.as_ref().is_none_or(|addresses| addresses.contains(&address))
    }
}

/// An address as the standard library has it.
pub(crate) fn address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_always_local_and_others_only_until_known() {
        let known = LocalAddrs::read().unwrap();
        for (address, is_local) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("203.0.113.1", false),
            ("2001:db8::1", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(known.may_have(address), is_local, "{address}");
            assert!(LocalAddrs::default().may_have(address), "{address}");
        }
    }
}
