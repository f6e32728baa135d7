//! Listening sockets that several threads share.

use std::io;
use std::net::{SocketAddr, TcpListener};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};

/// Listens at `address` beside other sockets of this user that do so too: the kernel spreads connections
/// over them, and a successor can begin before its predecessor ends.
///
/// # Errors
///
/// What the system says: the address is another program's, or not this machine's.
pub(super) fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    setsockopt(&socket, sockopt::ReusePort, &true)?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrStorage::from(address))?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(TcpListener::from(socket))
}

/// Connections that may wait to be accepted; the kernel's own limit (`somaxconn`) may be lower.
const BACKLOG: i32 = 1_024;
