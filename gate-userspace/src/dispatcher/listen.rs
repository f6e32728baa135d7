//! Listening sockets that several threads share.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};
use socket2::{SockFilter, SockRef};

/// Listens at `address` beside other sockets of this user that do so too: the kernel spreads connections
/// over them, and a successor can begin before its predecessor ends.
///
/// # Errors
///
/// The system's error: the address is another program's, or not this machine's.
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

/// Finds out that nobody listens at `address`: [`tcp`] would share it with another gate of this user, and each would have the whole of
/// every quota.
///
/// # Errors
///
/// The system's error, most likely that somebody does.
pub(crate) fn check_tcp_free(address: SocketAddr) -> io::Result<()> {
    TcpListener::bind(address).map(drop)
}

/// As [`check_tcp_free`], for [`udp`].
///
/// # Errors
///
/// As [`check_tcp_free`].
pub(crate) fn check_udp_free(address: SocketAddr) -> io::Result<()> {
    UdpSocket::bind(address).map(drop)
}

/// Has a port at `address` (0: any) that sockets of this user alone get with [`tcp`] while this one is open.
///
/// # Errors
///
/// As [`tcp`].
pub(crate) fn reserve(address: SocketAddr) -> io::Result<OwnedFd> {
    bound(address, SockType::Stream)
}

/// Has connections from now on wait at one of the sockets that listen at a listener's address: at the one that began to as
/// number `place`, from 0. Where there are not so many the kernel spreads them over all, as it does without this.
///
/// # Errors
///
/// The system's error.
pub(crate) fn prefer(listener: &impl AsFd, place: u32) -> io::Result<()> {
    let mut program =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: place }];
    let program = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    Ok(setsockopt(listener, sockopt::AttachReusePortCbpf, &program)?)
}

/// A number of a socket that there never is, for [`prefer`].
pub(crate) const NO_PLACE: u32 = u32::MAX;

/// Has a listening socket begin no more connections. Those that wait to be accepted stay, and those whose handshake is in progress
/// still come. Whoever asks for another asks again after a second, and most likely finds another socket.
///
/// # Errors
///
/// The system's error.
pub(crate) fn begin_no_more(listener: &impl AsFd) -> io::Result<()> {
    let load_flags = SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, TCP_FLAGS);
    let keep_both = SockFilter::new((libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16, 0, 0, SYN | ACK);
    let skip_unless_first = SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, SYN);
    let take = |len| SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, len);
    SockRef::from(listener).attach_filter(&[
        load_flags,
        keep_both,
        skip_unless_first,
        take(0),
        take(u32::MAX),
    ])
}

/// The place of the flags in a TCP header, and two of them.
const TCP_FLAGS: u32 = 13;
const SYN: u32 = 0x02;
const ACK: u32 = 0x10;

/// Has the kernel look whether the other end is still there when nothing comes from it: one that is gone without a
/// word is noticed within two minutes.
///
/// # Errors
///
/// The system's error.
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

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write as _};
    use std::net::Ipv4Addr;
    use std::net::TcpStream;
    use std::time::Duration;

    use nix::{setsockopt_impl, sockopt_impl};

    use super::*;

    fn three() -> [TcpListener; 3] {
        let first = tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = first.local_addr().unwrap();
        [first, tcp(address).unwrap(), tcp(address).unwrap()]
    }

    /// Where each of so many connections waits: as many numbers as there are sockets.
    fn connected(listeners: &[TcpListener], count: usize) -> Vec<usize> {
        let address = listeners[0].local_addr().unwrap();
        let _clients: Vec<_> = (0..count).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut counts = vec![0; listeners.len()];
        for _ in 0..1_000 {
            for (count, listener) in counts.iter_mut().zip(listeners) {
                *count += std::iter::from_fn(|| listener.accept().ok()).count();
            }
            if counts.iter().sum::<usize>() >= count {
                break;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        counts
    }

    #[test]
    fn connections_wait_at_the_preferred_socket_while_there_is_one() {
        let [one, two, three] = three();
        prefer(&one, 1).unwrap();
        assert_eq!(connected(&[&one, &two, &three].map(|of| of.try_clone().unwrap()), 64), [0, 64, 0]);
        prefer(&two, NO_PLACE).unwrap();
        let all = [one, two, three];
        assert!(connected(&all, 256).iter().all(|&count| count > 0), "they are not spread");
        // The sockets of a gate that leaves are the first. It closes them in any order, and none gets a connection.
        let [one, two, three] = all;
        let four = tcp(one.local_addr().unwrap()).unwrap();
        prefer(&two, 2).unwrap();
        drop(two);
        assert_eq!(connected(&[&one, &three, &four].map(|of| of.try_clone().unwrap()), 64), [0, 64, 0]);
        drop(one);
        assert!(connected(&[three, four], 256).iter().all(|&count| count > 0), "they are not spread");
    }

    #[test]
    fn what_has_begun_is_accepted_after_others_are_dropped() {
        let listener = tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let waits = TcpStream::connect(address).unwrap();
        // The kernel takes its handshake for unfinished until it says something.
        setsockopt(&listener, DeferAccept, &30).unwrap();
        let mut begun = TcpStream::connect(address).unwrap();
        begin_no_more(&listener).unwrap();
        let dropped = TcpStream::connect_timeout(&address, Duration::from_millis(50));
        assert_eq!(dropped.unwrap_err().kind(), ErrorKind::TimedOut);
        let accepted = || listener.accept().map(|(_, source)| source);
        assert_eq!(accepted().unwrap(), waits.local_addr().unwrap());
        assert_eq!(accepted().unwrap_err().kind(), ErrorKind::WouldBlock);
        begun.write_all(b"x").unwrap();
        let accepted = (0..10_000).find_map(|_| {
            std::thread::park_timeout(Duration::from_millis(1));
            accepted().ok()
        });
        assert_eq!(accepted, Some(begun.local_addr().unwrap()));
    }

    sockopt_impl!(
        /// Connections are accepted once something has come by them.
        DeferAccept, SetOnly, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, u32);
}
