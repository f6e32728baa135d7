//! Which interfaces lie on others: a VLAN on its parent, a bond or a bridge on its ports.
//!
//! A packet that comes in by the lower one goes through the upper one as well, and would be charged twice. The kernel is
//! asked, not `/sys`, which may show another network namespace.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::AsRawFd as _;

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

use super::error::{Error, Result};

/// The first of these interfaces that cannot be had beside another, by its place, and why: it is the same, or lies on the
/// other, directly or not.
///
/// # Errors
///
/// [`Error::System`].
pub fn conflict(names: &[String]) -> Result<Option<(usize, Error)>> {
    if names.len() < 2 {
        return Ok(None);
    }
    let links = links()?;
    let indices: Vec<_> = names.iter().map(|name| if_nametoindex(name.as_str()).ok()).collect();
    for (place, index) in indices.iter().enumerate() {
        let Some(index) = index else { continue };
        let interface = names[place].clone();
        if indices[..place].contains(&Some(*index)) {
            return Ok(Some((place, Error::SameInterface { interface })));
        }
        let below = below(&links, *index);
        let lies_on = |lower: &Option<u32>| lower.is_some_and(|lower| below.contains(&lower));
        if let Some(lower) = indices.iter().position(lies_on) {
            return Ok(Some((place, Error::Stacked { interface, lower: names[lower].clone() })));
        }
    }
    Ok(None)
}

/// The interfaces that lie on one of these, by their indices, directly or not.
///
/// # Errors
///
/// [`Error::System`].
pub fn above(lower: &BTreeSet<u32>) -> Result<BTreeSet<u32>> {
    let links = links()?;
    Ok(links.keys().copied().filter(|&upper| !below(&links, upper).is_disjoint(lower)).collect())
}

/// The interfaces that lie on one of these, or that one of these lies on: what comes in by them goes through it as well.
///
/// # Errors
///
/// [`Error::System`].
pub fn related(to: &BTreeSet<u32>) -> Result<BTreeSet<u32>> {
    let links = links()?;
    let mut related = above(to)?;
    related.extend(to.iter().flat_map(|&upper| below(&links, upper)));
    Ok(related)
}

fn links() -> Result<HashMap<u32, Link>> {
    let listed = list().map_err(|source| Error::System { what: "listing the interfaces", source })?;
    Ok(listed.into_iter().map(|link| (link.index, link)).collect())
}

/// An interface, and what it says of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Link {
    index: u32,
    /// The interface that it is a port of; zero if none.
    master: u32,
    /// The interface that it lies on; zero if none.
    parent: u32,
}

/// All interfaces that one lies on.
fn below(links: &HashMap<u32, Link>, upper: u32) -> BTreeSet<u32> {
    let mut below = BTreeSet::new();
    let mut next = vec![upper];
    while let Some(above) = next.pop() {
        let parent = links.get(&above).map(|link| link.parent).filter(|&parent| parent != 0);
        let ports = links.values().filter(|link| link.master == above).map(|link| link.index);
        next.extend(parent.into_iter().chain(ports).filter(|&index| index != upper && below.insert(index)));
    }
    below
}

/// The interfaces of this thread's network namespace, from the kernel (`RTM_GETLINK`).
fn list() -> io::Result<Vec<Link>> {
    let route = SockProtocol::NetlinkRoute;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, route)?;
    // A header of 16 bytes and a `struct ifinfomsg` of zeros.
    let mut request = [0; 32];
    request[..4].copy_from_slice(&32_u32.to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    sendto(socket.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut links = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let len = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = &buffer[..len];
        while let Some((kind, message, next)) = message(rest) {
            match kind {
                libc::RTM_NEWLINK => links.extend(link(message)),
                DONE => return Ok(links),
                ERROR => return Err(io::ErrorKind::InvalidData.into()),
                _ => {}
            }
            rest = next;
        }
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The type and the body of the next message, and what follows it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(16..len)?;
    Some((kind, body, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// The next attribute: its type, its value, and what follows it.
fn attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
    let value = bytes.get(4..len)?;
    Some((kind & 0x3fff, value, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// An interface of a message that begins with `struct ifinfomsg`.
fn link(message: &[u8]) -> Option<Link> {
    let mut link = Link { index: word(message.get(4..)?)?, ..Link::default() };
    let mut lower = 0;
    let mut is_virtual = false;
    let mut elsewhere = false;
    let mut rest = message.get(16..)?;
    while let Some((kind, value, next)) = attribute(rest) {
        match kind {
            libc::IFLA_MASTER => link.master = word(value).unwrap_or(0),
            libc::IFLA_LINK => lower = word(value).unwrap_or(0),
            libc::IFLA_LINK_NETNSID => elsewhere = true,
            libc::IFLA_LINKINFO => is_virtual = lies_on_its_link(value),
            _ => {}
        }
        rest = next;
    }
    if is_virtual && !elsewhere {
        link.parent = lower;
    }
    Some(link)
}

/// True for the kinds whose link is what they lie on. That of a veth is its peer.
fn lies_on_its_link(info: &[u8]) -> bool {
    let mut rest = info;
    while let Some((kind, value, next)) = attribute(rest) {
        if kind == INFO_KIND {
            return ON_THEIR_LINK.contains(&text(value).as_str());
        }
        rest = next;
    }
    false
}

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.first_chunk()?))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

const ON_THEIR_LINK: [&str; 6] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"];
/// The type of an interface's kind within `IFLA_LINKINFO`.
const INFO_KIND: u16 = 1;
/// Ends a list of messages.
const DONE: u16 = 3;
/// Says what is wrong.
const ERROR: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_lies_on_its_parents_and_its_ports() {
        let link = |index, master, parent| (index, Link { index, master, parent });
        // Ports 1 and 2 of bond 3, VLAN 4 on the bond, one that is alone, and two that name each other.
        let links = [
            link(1, 3, 0),
            link(2, 3, 0),
            link(3, 0, 0),
            link(4, 0, 3),
            link(5, 0, 0),
            link(6, 0, 7),
            link(7, 0, 6),
        ];
        let links = HashMap::from(links);
        for (upper, expected) in
            [(1, &[][..]), (2, &[]), (3, &[1, 2]), (4, &[1, 2, 3]), (5, &[]), (6, &[7]), (9, &[])]
        {
            assert!(below(&links, upper).iter().eq(expected), "{upper}");
        }
    }

    #[test]
    fn the_kernel_lists_loopback() {
        let loopback = if_nametoindex("lo").unwrap();
        assert!(list().unwrap().contains(&Link { index: loopback, master: 0, parent: 0 }));
        assert!(conflict(&["lo".to_owned(), "none".to_owned()]).unwrap().is_none());
        let twice = conflict(&["lo".to_owned(), "lo".to_owned()]).unwrap();
        assert!(matches!(twice, Some((1, Error::SameInterface { .. }))), "{twice:?}");
    }
}
