//! The two directions of a client's connection, plain or by TLS.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::dispatcher::tls::socket::TlsSocket;

/// The direction from a client.
#[derive(Debug)]
pub(crate) enum ClientReader {
    /// As it is.
    Plain(OwnedReadHalf),
    /// Encrypted.
    Tls(Rc<TlsSocket>),
}

/// The direction to a client.
#[derive(Debug)]
pub(crate) enum ClientWriter {
    /// As it is.
    Plain(OwnedWriteHalf),
    /// Encrypted.
    Tls(Rc<TlsSocket>),
}

/// The directions of a plain connection.
pub(crate) fn plain(socket: TcpStream) -> (ClientReader, ClientWriter) {
    let (read, write) = socket.into_split();
    (ClientReader::Plain(read), ClientWriter::Plain(write))
}

/// The directions of a connection by TLS.
pub(crate) fn secure(socket: TlsSocket) -> (ClientReader, ClientWriter) {
    let socket = Rc::new(socket);
    (ClientReader::Tls(Rc::clone(&socket)), ClientWriter::Tls(socket))
}

impl ClientReader {
    /// Reads, or waits for something to read.
    #[inline]
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, bytes),
            Self::Tls(socket) => socket.poll_read_shared(cx, bytes),
        }
    }

    /// Ready when the socket may take more of what goes to the client.
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.as_ref().poll_write_ready(cx),
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
            Self::Tls(socket) => socket.readable().await,
        }
    }

    /// Appends what there is to `bytes`; 0 at the end.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is nothing yet, or the socket's.
    pub(crate) fn try_read_buf(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_read_buf(bytes),
            Self::Tls(socket) => socket.try_read_buf(bytes),
        }
    }

    /// Ends the connection, in both directions.
    pub(crate) fn close(&self) {
        match self {
            Self::Plain(socket) => {
                // It may have been closed by the client.
                let _ = shutdown(socket.as_ref().as_raw_fd(), Shutdown::Both);
            }
            Self::Tls(socket) => socket.close(),
        }
    }
}

impl ClientWriter {
    /// Takes bytes to be written, as many as there is room for.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is no room, or the socket's.
    #[inline]
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write(bytes),
            Self::Tls(socket) => socket.try_write(bytes),
        }
    }

    /// Gives the socket what has been taken.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if it does not take all, or the socket's.
    #[inline]
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(socket) => socket.try_flush(),
        }
    }

    /// The address at which the client has reached gate.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        let address = match self {
            Self::Plain(socket) => socket.local_addr(),
            Self::Tls(socket) => socket.local_addr(),
        };
        address.ok().map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// True if the socket has not taken all.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(socket) => socket.has_unsent(),
        }
    }

    /// The memory that it takes for itself, in bytes, about.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Tls(socket) => socket.memory(),
        }
    }

    /// Waits until the socket may take more.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.writable().await,
            Self::Tls(socket) => socket.writable().await,
        }
    }

    /// A last word, not encrypted, to a client that does not speak TLS, or has not begun to: nobody waits for it to read.
    pub(crate) fn say_plainly(&self, word: &[u8]) {
        match self {
            Self::Plain(socket) => {
                // It may have left.
                let _ =
                    send(socket.as_ref().as_raw_fd(), word, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
            }
            Self::Tls(socket) => socket.say_plainly(word),
        }
    }
}
