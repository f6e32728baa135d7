//! A socket for datagrams: who sent each, where it came in, and the way back.
//!
//! **The way back.** A socket that listens at every address learns which one a datagram was sent to, and answers
//! from there: a client takes an answer from no other.
//!
//! **Who has charged it.** The XDP program sees every datagram that comes in by its interface, and charges it,
//! unless it is a fragment. So each is received with the interface that it came in by, and with a mark if the kernel
//! put it together. What comes in by another interface, a VLAN on top of the attached one included, or over
//! loopback, counts as not charged; so does what the machine sends to itself ([`super::local_addrs`]).

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use nix::{setsockopt_impl, sockopt_impl};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: UdpSocket,
    /// It listens at every address, so an answer must say where it comes from.
    any: bool,
}

/// Where a datagram came from, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Who sent it.
    pub(crate) peer: SocketAddr,
    /// What it was sent to, if the socket listens at every address.
    to: Option<PacketInfo>,
    /// The interface that it came in by.
    pub(crate) interface: u32,
    /// The kernel put it together from fragments.
    pub(crate) fragmented: bool,
}

/// The kernel's word on a datagram's other end, in its own form.
#[derive(Clone, Copy)]
enum PacketInfo {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

impl Socket {
    /// Takes a socket made by [`crate::dispatcher::listen::udp`].
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let address = socket.local_addr()?;
        // A socket for IPv6 may receive IPv4 as well.
        setsockopt(&socket, FragmentSizeV4, &true)?;
        if address.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
            setsockopt(&socket, FragmentSizeV6, &true)?;
        }
        Ok(Self { socket: UdpSocket::from_std(socket)?, any: address.ip().is_unspecified() })
    }

    /// Waits until there is a datagram.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Waits until there is room for a datagram.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// Takes the next datagram, which has so many bytes.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none.
    pub(crate) fn receive(&self, into: &mut [u8], control: &mut [u8]) -> io::Result<(usize, Arrival)> {
        self.socket.try_io(Interest::READABLE, || {
            let mut pieces = [IoSliceMut::new(into)];
            let socket = self.socket.as_raw_fd();
            let received =
                recvmsg::<SockaddrStorage>(socket, &mut pieces, Some(control), MsgFlags::MSG_DONTWAIT)?;
            let peer = received.address.as_ref().and_then(address).ok_or(io::ErrorKind::InvalidData)?;
            let mut arrival = Arrival { peer, to: None, interface: 0, fragmented: false };
            for message in received.cmsgs()? {
                match message {
                    ControlMessageOwned::Ipv4PacketInfo(info) => {
                        arrival.interface = info.ipi_ifindex as u32;
                        arrival.to = self.any.then_some(PacketInfo::V4(info));
                    }
                    ControlMessageOwned::Ipv6PacketInfo(info) => {
                        arrival.interface = info.ipi6_ifindex;
                        arrival.to = self.any.then_some(PacketInfo::V6(info));
                    }
                    // Nothing else was asked for but the size of fragments, which is told of fragments alone.
                    _ => arrival.fragmented = true,
                }
            }
            Ok((received.bytes, arrival))
        })
    }

    /// Sends one datagram, in two pieces, back to where another came from.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room now.
    pub(crate) fn answer(&self, arrival: &Arrival, head: &[u8], body: &[u8]) -> io::Result<()> {
        let peer = SockaddrStorage::from(arrival.peer);
        let pieces = [IoSlice::new(head), IoSlice::new(body)];
        // By whatever interface leads there, as any answer.
        let from = arrival.to.map(|to| match to {
            PacketInfo::V4(info) => PacketInfo::V4(libc::in_pktinfo { ipi_ifindex: 0, ..info }),
            PacketInfo::V6(info) => PacketInfo::V6(libc::in6_pktinfo { ipi6_ifindex: 0, ..info }),
        });
        let from = from.as_ref().map(|from| match from {
            PacketInfo::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            PacketInfo::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        });
        self.socket.try_io(Interest::WRITABLE, || {
            let socket = self.socket.as_raw_fd();
            sendmsg(socket, &pieces, from.as_slice(), MsgFlags::MSG_DONTWAIT, Some(&peer))?;
            Ok(())
        })
    }
}

impl Arrival {
    /// Whose quota it counts against is decided by this address.
    pub(crate) fn source(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }
}

impl std::fmt::Debug for PacketInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V4(_) => "V4(..)",
            Self::V6(_) => "V6(..)",
        })
    }
}

/// An address as the standard library has it.
pub(crate) fn address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

// Datagrams that the kernel put together from fragments come with the size of the largest of these.
sockopt_impl!(FragmentSizeV4, SetOnly, libc::IPPROTO_IP, libc::IP_RECVFRAGSIZE, bool);
sockopt_impl!(FragmentSizeV6, SetOnly, libc::IPPROTO_IPV6, libc::IPV6_RECVFRAGSIZE, bool);
