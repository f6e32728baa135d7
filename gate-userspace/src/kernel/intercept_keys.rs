//! The addresses of stores as keys of the map of interception, and those that gate uses beside them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gate_common::abi::{InterceptKey, OWN_SOURCE};

/// The source of gate's own connections to a store at `address`, by which the program knows them.
#[must_use]
pub fn own_source(address: IpAddr, local: bool) -> IpAddr {
    match address {
        IpAddr::V4(_) if local => Ipv4Addr::from(OWN_SOURCE).into(),
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// The loopback addresses that a store at these addresses needs a listener at.
#[must_use]
pub fn loopbacks(addresses: &[SocketAddr]) -> Vec<IpAddr> {
    let keys = || addresses.iter().flat_map(|&address| keys(address));
    let families = [InterceptKey::V4, InterceptKey::V6];
    let needed = families.into_iter().filter(|&family| keys().any(|key| key.family == family));
    needed.map(loopback).collect()
}

/// The keys of an address; `[::]` stands for every address of both families.
pub(super) fn keys(address: SocketAddr) -> impl Iterator<Item = InterceptKey> {
    let key = |family, address| InterceptKey { address, port: 0, family };
    let keys = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => [Some(key(InterceptKey::V4, [0; 16])), None],
        IpAddr::V4(ip) => [Some(key(InterceptKey::V4, ip.to_ipv6_mapped().octets())), None],
        IpAddr::V6(ip) if ip.is_unspecified() => {
            [InterceptKey::V4, InterceptKey::V6].map(|family| Some(key(family, [0; 16])))
        }
        IpAddr::V6(ip) => [Some(key(InterceptKey::V6, ip.octets())), None],
    };
    keys.into_iter().flatten().map(move |key| InterceptKey { port: address.port(), ..key })
}

pub(super) const fn loopback(family: u16) -> IpAddr {
    match family {
        InterceptKey::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_of_ipv6_stands_for_both_families() {
        let of = |text: &str| {
            let keys = keys(text.parse().unwrap());
            keys.map(|key| (key.family, Ipv6Addr::from(key.address).to_string(), key.port))
                .collect::<Vec<_>>()
        };
        let zeros = "::".to_owned();
        assert_eq!(of("198.18.0.1:7"), [(4, "::ffff:198.18.0.1".to_owned(), 7)]);
        assert_eq!(of("0.0.0.0:7"), [(4, zeros.clone(), 7)]);
        assert_eq!(of("[fd00::1]:7"), [(6, "fd00::1".to_owned(), 7)]);
        assert_eq!(of("[::]:7"), [(4, zeros.clone(), 7), (6, zeros, 7)]);
        let at = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(loopbacks(&at(&["198.18.0.1:7", "0.0.0.0:8"])), [Ipv4Addr::LOCALHOST]);
        assert_eq!(loopbacks(&at(&["[fd00::1]:7"])), [Ipv6Addr::LOCALHOST]);
        assert_eq!(loopbacks(&at(&["[::]:7"])).len(), 2);
    }
}
