//! A socket for datagrams: who sent each, where it came in, and the way back.
//!
//! **The way back.** A socket that listens at every address learns which one a datagram was sent to, and answers
//! from there: a client takes an answer from no other.
//!
//! **Who has charged it.** Each datagram is received with the kernel's mark, one bit of which says that the XDP program
//! has judged it (`gate_mark`). At an interface where nothing can be marked, it is inferred: the XDP program sees every datagram
//! that comes in by its interface, and charges it, unless it is a fragment. So each is received with the interface as
//! well, and with the size of fragments if the kernel put it together. What comes in by another interface, or over
//! loopback, then counts as not charged; so does what the machine sends to itself ([`crate::dispatcher::local_addrs`]).

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    ControlMessage, MsgFlags, SockaddrStorage, connect, recvmsg, sendmsg, setsockopt, sockopt,
};
use nix::{setsockopt_impl, sockopt_impl};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::dispatcher::local_addrs::address;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: UdpSocket,
    /// True if it listens at every address, so that an answer must name the address that it comes from.
    any: bool,
}

/// Where a datagram came from, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The sender's address.
    pub(crate) peer: SocketAddr,
    /// The address that it was sent to, if the socket listens at every address.
    to: Option<PacketInfo>,
    /// The interface that it came in by.
    pub(crate) interface: u32,
    /// The kernel put it together from fragments.
    pub(crate) fragmented: bool,
    /// The kernel's mark.
    pub(crate) mark: u32,
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
    /// The system's error.
    pub(crate) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let address = socket.local_addr()?;
        // A socket for IPv6 may receive IPv4 as well.
        setsockopt(&socket, FragmentSizeV4, &true)?;
        // Linux 6.0. Without it nothing is marked either.
        let _ = setsockopt(&socket, ReceiveMark, &true);
        if address.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
            setsockopt(&socket, FragmentSizeV6, &true)?;
        }
        Ok(Self { socket: UdpSocket::from_std(socket)?, any: address.ip().is_unspecified() })
    }

    /// Has datagrams from now on go to the other sockets at its address: it takes none but from itself. What has come stays, and
    /// answers leave as before.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn turn_away(&self) -> io::Result<()> {
        let own = self.socket.local_addr()?;
        let reachable = match own.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let itself = SockaddrStorage::from(SocketAddr::new(reachable, own.port()));
        Ok(connect(self.socket.as_raw_fd(), &itself)?)
    }

    /// Waits until there is a datagram.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Waits until there is room for a datagram.
    ///
    /// # Errors
    ///
    /// The system's error.
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
            control.fill(0);
            let mut pieces = [IoSliceMut::new(into)];
            let socket = self.socket.as_raw_fd();
            let received =
                recvmsg::<SockaddrStorage>(socket, &mut pieces, Some(&mut *control), MsgFlags::MSG_DONTWAIT)?;
            let peer = received.address.as_ref().and_then(address).ok_or(io::ErrorKind::InvalidData)?;
            let bytes = received.bytes;
            let mut arrival = Arrival { peer, to: None, interface: 0, fragmented: false, mark: 0 };
            Control(control).for_each(|message| arrival.note(message, self.any));
            Ok((bytes, arrival))
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

/// The control messages of a datagram, in a buffer that was zero before: level, type and data of each. (nix's own
/// iterator puts what it does not know, such as a mark, on the heap.)
struct Control<'a>(&'a [u8]);

impl<'a> Iterator for Control<'a> {
    type Item = (libc::c_int, libc::c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, _) = self.0.split_first_chunk::<CONTROL_HEADER>()?;
        let [len, kind] = header.as_chunks::<8>().0 else { return None };
        let len = usize::from_ne_bytes(*len);
        let kind = kind.as_chunks::<4>().0;
        let message = self.0.get(CONTROL_HEADER..len)?;
        self.0 = self.0.get(len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        Some((i32::from_ne_bytes(kind[0]), i32::from_ne_bytes(kind[1]), message))
    }
}

/// Bytes of `struct cmsghdr`: its length, level and type.
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(CONTROL_HEADER == 16 && size_of::<usize>() == 8);

impl Arrival {
    fn note(&mut self, (level, kind, data): (libc::c_int, libc::c_int, &[u8]), any: bool) {
        let word = |place: usize| Some(u32::from_ne_bytes(*data.as_chunks::<4>().0.get(place)?));
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SO_MARK) => self.mark = word(0).unwrap_or(0),
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let (Some(interface), Some(local), Some(address)) = (word(0), word(1), word(2)) else {
                    return;
                };
                let info = libc::in_pktinfo {
                    ipi_ifindex: interface as i32,
                    ipi_spec_dst: libc::in_addr { s_addr: local },
                    ipi_addr: libc::in_addr { s_addr: address },
                };
                self.interface = interface;
                self.to = any.then_some(PacketInfo::V4(info));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let (Some(address), Some(interface)) = (data.first_chunk::<16>(), word(4)) else { return };
                let ipi6_addr = libc::in6_addr { s6_addr: *address };
                self.interface = interface;
                self.to =
                    any.then_some(PacketInfo::V6(libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: interface }));
            }
            // Nothing else was asked for but the size of fragments, which is told of fragments alone.
            _ => self.fragmented = true,
        }
    }

    /// The address that decides whose quota the datagram is charged to.
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

// Datagrams that the kernel put together from fragments come with the size of the largest of these.
sockopt_impl!(ReceiveMark, SetOnly, libc::SOL_SOCKET, libc::SO_RCVMARK, bool);
sockopt_impl!(FragmentSizeV4, SetOnly, libc::IPPROTO_IP, libc::IP_RECVFRAGSIZE, bool);
sockopt_impl!(FragmentSizeV6, SetOnly, libc::IPPROTO_IPV6, libc::IPV6_RECVFRAGSIZE, bool);
