//! Listening sockets that several threads share.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};

/// Listens at `address` beside other sockets of this user that do so too: the kernel spreads connections
/// over them, and a successor can begin before its predecessor ends.
///
/// # Errors
///
/// What the system says: the address is another program's, or not this machine's.
pub(crate) fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(address, SockType::Stream)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(TcpListener::from(socket))
}

/// As [`tcp`], for datagrams: the kernel spreads them by their sender.
///
/// # Errors
///
/// As [`tcp`].
pub(crate) fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    Ok(UdpSocket::from(bound(address, SockType::Datagram)?))
}

/// Has the kernel look whether the other end is still there when nothing comes from it: one that is gone without a
/// word is noticed within two minutes.
///
/// # Errors
///
/// What the system says.
pub(crate) fn keep_alive(socket: &impl AsFd) -> io::Result<()> {
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &KEEP_IDLE_SECS)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &KEEP_INTERVAL_SECS)?;
    setsockopt(socket, sockopt::TcpKeepCount, &KEEP_COUNT)?;
    Ok(())
}

fn bound(address: SocketAddr, kind: SockType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, kind, flags, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    setsockopt(&socket, sockopt::ReusePort, &true)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(socket)
}

/// How long nothing has come when the other end is asked, how often it is asked, and how often in vain.
const KEEP_IDLE_SECS: u32 = 60;
const KEEP_INTERVAL_SECS: u32 = 15;
const KEEP_COUNT: u32 = 4;
/// Connections that may wait to be accepted; the kernel's own limit (`somaxconn`) may be lower.
const BACKLOG: i32 = 1_024;
