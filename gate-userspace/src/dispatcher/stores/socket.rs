//! A connection to a store: plain, by TLS or at a Unix socket.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::task::{Context, Poll};

use gate_common::units::Nanos;
use nix::sys::socket::{Shutdown, getsockopt, shutdown};
use nix::{getsockopt_impl, sockopt_impl};
use tokio::net::{TcpStream, UnixStream};

use crate::dispatcher::store_place::Endpoint;
use crate::dispatcher::tls::socket::TlsSocket;

/// A connection to a store.
#[derive(Debug)]
pub(crate) enum StoreSocket {
    /// As it is.
    Plain(TcpStream),
    /// At a Unix socket.
    Unix(UnixStream),
    /// Encrypted.
    Tls(Box<TlsSocket>),
}

impl StoreSocket {
    /// Reads what there is; 0 at the end.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] if there is nothing yet, or the socket's.
    #[inline]
    pub(crate) fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_read(bytes),
            Self::Unix(socket) => socket.try_read(bytes),
            Self::Tls(socket) => socket.try_read(bytes),
        }
    }

    /// Appends what there is to `bytes`, as [`StoreSocket::try_read`].
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn try_read_buf(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_read_buf(bytes),
            Self::Unix(socket) => socket.try_read_buf(bytes),
            Self::Tls(socket) => socket.try_read_buf(bytes),
        }
    }

    /// Takes bytes to be written, as many as there is room for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] if there is no room, or the socket's.
    #[inline]
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write(bytes),
            Self::Unix(socket) => socket.try_write(bytes),
            Self::Tls(socket) => socket.try_write(bytes),
        }
    }

    /// Gives the socket what has been taken.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] if it does not take all, or the socket's.
    #[inline]
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        match self {
            Self::Plain(_) | Self::Unix(_) => Ok(()),
            Self::Tls(socket) => socket.try_flush(),
        }
    }

    /// Ready when there may be something to read.
    #[inline]
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_read_ready(cx),
            Self::Unix(socket) => socket.poll_read_ready(cx),
            Self::Tls(socket) => socket.poll_read_ready(cx),
        }
    }

    /// Ready when the socket may take more.
    #[inline]
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_write_ready(cx),
            Self::Unix(socket) => socket.poll_write_ready(cx),
            Self::Tls(socket) => socket.poll_write_ready(cx),
        }
    }

    /// Waits until there may be something to read.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.readable().await,
            Self::Unix(socket) => socket.readable().await,
            Self::Tls(socket) => socket.readable().await,
        }
    }

    /// Appends what comes next to `bytes`; 0 at the end.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) async fn read_buf(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            self.readable().await?;
            bytes.reserve(LEAST_ROOM);
            match self.try_read_buf(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }

    /// Writes everything, as fast as the store reads.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(len) => bytes = &bytes[len..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable().await?,
                Err(error) => return Err(error),
            }
        }
        match self {
            Self::Plain(_) | Self::Unix(_) => Ok(()),
            Self::Tls(socket) => socket.flush_all().await,
        }
    }

    /// True if the store's machine has acknowledged nothing for so long, though it was asked to again and again. One whose store is
    /// stopped or busy acknowledges what the store does not read; of one at a Unix socket, which is this one, that is always so.
    pub(crate) fn is_unreachable(&self, time: Nanos) -> bool {
        let info = match self {
            Self::Plain(socket) => getsockopt(socket, TcpInfo),
            Self::Tls(socket) => getsockopt(&**socket, TcpInfo),
            Self::Unix(_) => return false,
        };
        info.is_ok_and(|info| {
            info.tcpi_retransmits >= RETRANSMISSIONS
                && Nanos::from_millis(info.tcpi_last_ack_recv.into()) >= time
        })
    }

    /// Says that nothing more comes. What the store still says can be read.
    pub(crate) fn end_output(&self) {
        let fd = match self {
            Self::Plain(socket) => socket.as_raw_fd(),
            Self::Unix(socket) => socket.as_raw_fd(),
            Self::Tls(socket) => return socket.end_output(),
        };
        // The store may have closed it.
        let _ = shutdown(fd, Shutdown::Write);
    }

    /// Where it leads to.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Self::Plain(socket) => socket.peer_addr().map(Endpoint::Tcp),
            Self::Unix(socket) => {
                let path = socket.peer_addr()?.as_pathname().map(|path| Endpoint::Unix(path.into()));
                path.ok_or_else(|| ErrorKind::NotConnected.into())
            }
            Self::Tls(socket) => socket.peer_addr().map(Endpoint::Tcp),
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.writable().await,
            Self::Unix(socket) => socket.writable().await,
            Self::Tls(socket) => socket.writable().await,
        }
    }
}

/// Answers to what gate asks itself are short.
const LEAST_ROOM: usize = 1 << 10;
/// So often what a machine did not acknowledge has been sent again before it counts as unreachable: a single one is lost now and then.
const RETRANSMISSIONS: u8 = 2;

sockopt_impl!(
    /// The kernel's view of a connection.
    TcpInfo, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, libc::tcp_info);
