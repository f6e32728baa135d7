//! The two directions of a client's connection, plain or by TLS.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use nix::sys::socket::{MsgFlags, Shutdown, recv, send, setsockopt, shutdown};
use nix::{setsockopt_impl, sockopt_impl};
use tokio::io::{AsyncRead as _, Interest, ReadBuf};
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

/// The direction to a client, until it is released: requests that the store has not answered hold their client, and must not hold
/// its socket.
#[derive(Debug)]
pub(crate) struct ClientWriter(RefCell<Option<Rc<Output>>>);

/// The socket of the direction to a client.
#[derive(Debug)]
enum Output {
    /// As it is.
    Plain(OwnedWriteHalf),
    /// Encrypted.
    Tls(Rc<TlsSocket>),
}

/// The directions of a plain connection.
pub(crate) fn plain(socket: TcpStream) -> (ClientReader, ClientWriter) {
    let (read, write) = socket.into_split();
    (ClientReader::Plain(read), ClientWriter::of(Output::Plain(write)))
}

/// The directions of a connection by TLS.
pub(crate) fn secure(socket: TlsSocket) -> (ClientReader, ClientWriter) {
    let socket = Rc::new(socket);
    (ClientReader::Tls(Rc::clone(&socket)), ClientWriter::of(Output::Tls(socket)))
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
}

impl ClientWriter {
    fn of(output: Output) -> Self {
        Self(RefCell::new(Some(Rc::new(output))))
    }

    /// Takes bytes to be written, as many as there is room for.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is no room, or the socket's.
    #[inline]
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.borrow().as_deref().ok_or(io::ErrorKind::NotConnected)? {
            Output::Plain(socket) => socket.try_write(bytes),
            Output::Tls(socket) => socket.try_write(bytes),
        }
    }

    /// Gives the socket what has been taken.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if it does not take all, or the socket's.
    #[inline]
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        match self.0.borrow().as_deref() {
            Some(Output::Plain(_)) | None => Ok(()),
            Some(Output::Tls(socket)) => socket.try_flush(),
        }
    }

    /// The address at which the client has reached gate; `None` once the socket is released.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        let address = match self.0.borrow().as_deref()? {
            Output::Plain(socket) => socket.local_addr(),
            Output::Tls(socket) => socket.local_addr(),
        };
        address.ok().map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// True if the socket has not taken all.
    pub(crate) fn has_unsent(&self) -> bool {
        match self.0.borrow().as_deref() {
            Some(Output::Plain(_)) | None => false,
            Some(Output::Tls(socket)) => socket.has_unsent(),
        }
    }

    /// True if the client has sent something that nobody has read.
    pub(crate) fn has_unread(&self) -> bool {
        let fd = match self.0.borrow().as_deref() {
            None => return false,
            Some(Output::Plain(socket)) => socket.as_ref().as_raw_fd(),
            Some(Output::Tls(socket)) => socket.fd(),
        };
        let peeked = recv(fd, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
        peeked.is_ok_and(|len| len > 0)
    }

    /// The memory that it takes for itself, in bytes, about.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        match self.0.borrow().as_deref() {
            Some(Output::Plain(_)) | None => 0,
            Some(Output::Tls(socket)) => socket.memory(),
        }
    }

    /// Waits until the socket may take more.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        let output = self.0.borrow().clone();
        match output.as_deref().ok_or(io::ErrorKind::NotConnected)? {
            Output::Plain(socket) => socket.writable().await,
            Output::Tls(socket) => socket.writable().await,
        }
    }

    /// Waits until the connection is lost: the client has reset it, or its kernel does not answer any more. A client that has only
    /// ended its own direction may still read.
    pub(crate) async fn lost(&self) {
        let output = self.0.borrow().clone();
        let waited = match output.as_deref() {
            None => return,
            Some(Output::Plain(socket)) => socket.ready(Interest::ERROR).await.map(drop),
            Some(Output::Tls(socket)) => socket.lost().await,
        };
        // It fails with the runtime alone.
        drop(waited);
    }

    /// Has the kernel hold back what is written from now on, so that the end of the connection leaves with it; or has it send that.
    pub(crate) fn hold_back(&self, holds: bool) {
        let output = self.0.borrow();
        // Where it cannot be had, what is written leaves sooner.
        let _ = match output.as_deref() {
            None => Ok(()),
            Some(Output::Plain(socket)) => setsockopt(socket.as_ref(), Cork, &holds),
            Some(Output::Tls(socket)) => setsockopt(socket.as_ref(), Cork, &holds),
        };
    }

    /// Ends the connection, in both directions.
    pub(crate) fn close(&self) {
        match self.0.borrow().as_deref() {
            None => {}
            Some(Output::Plain(socket)) => {
                // It may have been closed by the client.
                let _ = shutdown(socket.as_ref().as_raw_fd(), Shutdown::Both);
            }
            Some(Output::Tls(socket)) => socket.close(),
        }
    }

    /// Closes the socket, as far as this direction holds it open. Nothing is written from now on.
    pub(crate) fn release(&self) {
        self.0.take();
    }

    /// A last word, not encrypted, to a client that does not speak TLS, or has not begun to: nobody waits for it to read.
    pub(crate) fn say_plainly(&self, word: &[u8]) {
        match self.0.borrow().as_deref() {
            None => {}
            Some(Output::Plain(socket)) => {
                // It may have left.
                let _ =
                    send(socket.as_ref().as_raw_fd(), word, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
            }
            Some(Output::Tls(socket)) => socket.say_plainly(word),
        }
    }
}

sockopt_impl!(
    /// Full segments alone leave.
    Cork, SetOnly, libc::IPPROTO_TCP, libc::TCP_CORK, bool);
