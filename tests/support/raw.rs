//! Frames that are sent as they are, and segments with a right checksum, whoever is said to send them.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{MsgFlags, send};
use xtask::sh;

use crate::net::{CLIENT_INTERFACE, Net, SERVER_INTERFACE};
use crate::packet::{GATE_MAC, Inside, Packet};

/// A packet socket at the client's end.
#[derive(Debug)]
pub struct RawSender(OwnedFd);

impl RawSender {
    /// Opens one, and gives the server's end the address that [`Packet`]s are sent to.
    ///
    /// # Errors
    ///
    /// Without root.
    pub fn open(net: &Net) -> Result<Self> {
        let [a, b, c, d, e, f] = GATE_MAC;
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        let ip = |ip: &mut Command, arguments: &[&str]| sh::run(ip.args(arguments));
        ip(&mut net.server.command("ip"), &["link", "set", SERVER_INTERFACE, "address", &mac])?;
        ip(&mut net.client.command("ip"), &["neigh", "flush", "dev", CLIENT_INTERFACE])?;
        net.client.enter(|| packet_socket(CLIENT_INTERFACE).map(Self))?
    }

    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let sent = send(self.0.as_raw_fd(), frame, MsgFlags::empty());
        sent.map(|_| ()).with_context(|| format!("cannot send {} bytes", frame.len()))
    }
}

/// The frame of a segment that acknowledges `acknowledgment`, with its checksum.
///
/// # Panics
///
/// If the packet is no segment with the flags of [`Inside::Tcp`].
#[must_use]
pub fn segment(packet: &Packet, acknowledgment: u32) -> Vec<u8> {
    assert!(matches!(packet.inside, Inside::Tcp { .. }), "{packet:?}");
    let mut frame = packet.bytes();
    let payload = frame.len() - packet.padding;
    let ip = packet.link_len();
    let transport = match packet.source {
        IpAddr::V4(_) => ip + 20 + packet.options.len(),
        IpAddr::V6(_) => ip + 40,
    };
    frame[transport + 8..transport + 12].copy_from_slice(&acknowledgment.to_be_bytes());
    frame[transport + 16..transport + 18].fill(0);
    let segment = &frame[transport..payload];
    let mut sum = 6 + segment.len() as u64;
    let addresses = match (packet.source, packet.destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [&from.octets()[..], &to.octets()].concat(),
        (IpAddr::V6(from), IpAddr::V6(to)) => [&from.octets()[..], &to.octets()].concat(),
        addresses => panic!("one family: {addresses:?}"),
    };
    for pair in addresses.chunks(2).chain(segment.chunks(2)) {
        sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[transport + 16..transport + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame
}

/// A socket that sends frames from an interface as they are, and receives nothing.
///
/// # Errors
///
/// Without root, or without the interface.
#[allow(unsafe_code, reason = "nix makes no address of an interface")]
pub fn packet_socket(interface: &str) -> Result<OwnedFd> {
    let index = if_nametoindex(interface)?;
    // SAFETY: plain system calls; the descriptor is new and nobody else's, and `bind` reads an address that
    // outlives the call and is as long as it is told.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        ensure!(fd >= 0, "no packet socket: {}", io::Error::last_os_error());
        let fd = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let bound = libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len);
        ensure!(bound == 0, "cannot bind: {}", io::Error::last_os_error());
        Ok(fd)
    }
}
