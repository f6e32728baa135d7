//! Where the client of a request is, by the word of the proxies between.
//!
//! **Problem.** `X-Forwarded-For` is a list that every proxy appends to, and whose beginning anyone can write. **Rule.** Its
//! last entry is that of the proxy that sent the request. If that proxy is trusted, the entry is believed; if the address
//! there is trusted as well, so is the entry before it. The client is at the first address from the right that is not
//! trusted. What cannot be read ends the search at the last address that could.

use std::net::{IpAddr, SocketAddr};

/// The address of the client of a request that `peer` sent, with these values of `X-Forwarded-For` in their order.
pub fn client<'v>(
    peer: IpAddr,
    values: impl DoubleEndedIterator<Item = &'v [u8]>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let mut client = peer;
    let entries = values.rev().flat_map(|value| value.rsplit(|&byte| byte == b','));
    for entry in entries {
        if !is_trusted(client) {
            break;
        }
        let Some(address) = address(entry) else { break };
        client = address;
    }
    client
}

/// An entry's address: with or without a port.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().ok();
    address.or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip())).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rightmost_address_that_is_not_trusted_is_the_client() {
        for (peer, values, expected) in [
            ("10.0.0.1", &[][..], "10.0.0.1"),
            ("10.0.0.1", &["198.18.0.1"], "198.18.0.1"),
            ("198.18.9.9", &["198.18.0.1"], "198.18.9.9"),
            ("10.0.0.1", &["1.2.3.4, 198.18.0.1"], "198.18.0.1"),
            ("10.0.0.1", &["1.2.3.4, 198.18.0.1, 10.0.0.2"], "198.18.0.1"),
            ("10.0.0.1", &["198.18.0.1", "10.0.0.2,10.0.0.3"], "198.18.0.1"),
            ("10.0.0.1", &["10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["198.18.0.1:80"], "198.18.0.1"),
            ("10.0.0.1", &["[fd00::1]:80"], "fd00::1"),
            ("10.0.0.1", &["[fd00::1]"], "fd00::1"),
            ("10.0.0.1", &["::ffff:198.18.0.1"], "198.18.0.1"),
            ("10.0.0.1", &["198.18.0.1, unknown, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["198.18.0.1,"], "10.0.0.1"),
            ("10.0.0.1", &[""], "10.0.0.1"),
        ] {
            let values = values.iter().map(|value| value.as_bytes());
            let is_trusted = |address: IpAddr| address.to_string().starts_with("10.");
            let found = client(peer.parse().unwrap(), values.clone(), is_trusted);
            assert_eq!(found.to_string(), expected, "{peer} {:?}", values.collect::<Vec<_>>());
        }
    }
}
