//! Interfaces whose other end has to be prepared before it takes what the program sends.
//!
//! A veth hands on replies of the program (`XDP_TX`) only if its peer has an XDP program too. Otherwise they are lost without a word:
//! clients wait for refusals that never come. The peer is usually in another namespace, where this process cannot look.

use std::io;
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// True for a veth of this thread's network namespace, by its index.
pub(super) fn is_veth(index: u32) -> io::Result<bool> {
    let route = SockProtocol::NetlinkRoute;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, route)?;
    // A header of 16 bytes, and a `struct ifinfomsg` of which only the index is set.
    let mut request = [0; 32];
    request[..4].copy_from_slice(&32_u32.to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request[20..24].copy_from_slice(&index.to_ne_bytes());
    sendto(socket.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = vec![0; 1 << 16];
    let len = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // An error has no attributes there.
    let is_link = answer[4..6] == libc::RTM_NEWLINK.to_ne_bytes();
    let kind = answer.get(32..len).and_then(|attributes| attribute(attributes, libc::IFLA_LINKINFO));
    let kind = kind.and_then(|info| attribute(info, INFO_KIND));
    Ok(is_link && kind.is_some_and(|kind| kind.strip_suffix(b"\0").unwrap_or(kind) == b"veth"))
}

/// The value of the first attribute of a type.
fn attribute(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..len)?;
        if kind & 0x3fff == wanted {
            return Some(value);
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

/// The type of an interface's kind within `IFLA_LINKINFO`.
const INFO_KIND: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_by_their_type_and_nothing_else_is() {
        let link = [&[8, 0, 3, 0][..], b"eth0", &[12, 0, 18, 0], &[8, 0, 1, 0], b"veth"].concat();
        let info = attribute(&link, libc::IFLA_LINKINFO).unwrap();
        assert_eq!(attribute(info, INFO_KIND), Some(&b"veth"[..]));
        assert_eq!(attribute(&link, INFO_KIND), None);
        for cut in [&[][..], &[0; 4], &[200, 0, 18, 0], &link[..7]] {
            assert_eq!(attribute(cut, libc::IFLA_LINKINFO), None, "{cut:?}");
        }
    }

    #[test]
    fn loopback_is_no_veth() {
        assert!(!is_veth(nix::net::if_::if_nametoindex("lo").unwrap()).unwrap());
        assert!(!is_veth(u32::MAX >> 1).unwrap());
    }
}
