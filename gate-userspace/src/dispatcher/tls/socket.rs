//! A connection that speaks TLS.
//!
//! All that it does it does for whoever calls it, with a shared reference: it has no task of its own. What is written is
//! encrypted at once, in pieces of [`PIECE`] bytes; while the socket has not taken a piece, the next one has to wait. So no
//! connection holds more than two records in each direction, beside what the kernel has of it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};
use rustls::Connection;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::turns::{Party, Turns};

/// A connection that speaks TLS, of either side.
#[derive(Debug)]
pub(crate) struct TlsSocket {
    socket: TcpStream,
    tls: RefCell<Connection>,
    /// True if there may be something decrypted that nobody has read.
    has_input: Cell<bool>,
    /// True if the other side must say that nothing more comes.
    needs_end: bool,
}

impl TlsSocket {
    /// The memory that one may take until its handshake has ended, in bytes: what may have come of a message of the handshake.
    pub(crate) const IN_HANDSHAKE: usize = 64 << 10;

    pub(super) fn new(socket: TcpStream, tls: Connection) -> Self {
        Self { socket, tls: RefCell::new(tls), has_input: Cell::new(false), needs_end: false }
    }

    /// The same, which reads an end without a word as an error: somebody else may have cut off what has no length.
    pub(crate) fn with_end(self) -> Self {
        Self { needs_end: true, ..self }
    }

    /// The address of this side.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// True if the other side has chosen this protocol in its handshake.
    pub(crate) fn speaks(&self, protocol: &[u8]) -> bool {
        self.tls.borrow().alpn_protocol() == Some(protocol)
    }

    /// True if what the other side says first is how TLS begins; also if it says nothing and leaves. Nothing is taken of it.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) async fn begins_as_tls(&self) -> io::Result<bool> {
        let mut first = [0];
        Ok(self.socket.peek(&mut first).await? == 0 || first[0] == HANDSHAKE)
    }

    /// Takes the handshake to its end: a client's at each step when it has a turn, and calls `on_pause` whenever it is held for
    /// what was used.
    ///
    /// # Errors
    ///
    /// Why there is none; the other side has been told. [`ErrorKind::UnexpectedEof`] if it has left.
    pub(crate) async fn handshake(
        &self,
        turns: Option<(&Turns, Party)>,
        on_pause: impl Fn(),
    ) -> io::Result<()> {
        loop {
            self.flush_all().await?;
            if !self.tls.borrow().is_handshaking() {
                return Ok(());
            }
            self.socket.readable().await?;
            let turn = match turns {
                Some((turns, party)) => Some(turns.next(party, &on_pause).await),
                None => None,
            };
            let step = || self.receive(&mut self.tls.borrow_mut());
            let received = turn.as_ref().map_or_else(step, |turn| turn.take(step));
            match received {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                // Everybody else first.
                Ok(_) => tokio::task::yield_now().await,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            drop(turn);
        }
    }

    /// Reads what there is; 0 at the end.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] if there is nothing yet, or what is wrong with what came.
    pub(crate) fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let tls = &mut *self.tls.borrow_mut();
        match self.decrypted(tls, bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
        // Once: records without content may come without an end, and others wait.
        self.receive(tls)?;
        self.decrypted(tls, bytes)
    }

    /// Hands out what is decrypted.
    fn decrypted(&self, tls: &mut Connection, bytes: &mut [u8]) -> io::Result<usize> {
        let read = match tls.reader().read(bytes) {
            // It has ended the connection without a word, as many do. Requests and replies say how long they are.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && !self.needs_end => Ok(0),
            read => read,
        };
        self.has_input.set(read.as_ref().is_ok_and(|len| *len > 0 && *len == bytes.len()));
        read
    }

    /// Appends what there is to `bytes`, as [`TlsSocket::try_read`].
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn try_read_buf(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let before = bytes.len();
        bytes.resize(before + PIECE, 0);
        let read = self.try_read(&mut bytes[before..]);
        bytes.truncate(before + *read.as_ref().unwrap_or(&0));
        read
    }

    /// Takes bytes to be written, as many as there is room for; the socket may not have taken them yet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] if there is no room, or the socket's.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let tls = &mut *self.tls.borrow_mut();
        self.send(tls)?;
        let len = tls.writer().write(&bytes[..bytes.len().min(PIECE)])?;
        if len == 0 && !bytes.is_empty() {
            return Err(ErrorKind::WriteZero.into());
        }
        match self.send(tls) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(len),
        }
    }

    /// Gives the socket what has been taken.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] if it does not take all, or the socket's.
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        self.send(&mut self.tls.borrow_mut())
    }

    /// [`TlsSocket::try_flush`], as fast as the other side reads.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) async fn flush_all(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush_shared(cx)).await
    }

    /// True if the socket has not taken all.
    pub(crate) fn has_unsent(&self) -> bool {
        self.tls.borrow().wants_write()
    }

    /// The memory that it takes, in bytes, about.
    pub(crate) fn memory(&self) -> usize {
        if self.has_unsent() { STATE + PIECE } else { STATE }
    }

    /// Ready when there may be something to read.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_input.get() { Poll::Ready(Ok(())) } else { self.socket.poll_read_ready(cx) }
    }

    /// Ready when the socket may take more.
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_write_ready(cx)
    }

    /// Waits until there may be something to read.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Waits until the socket may take more.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// Waits until the other side has reset the connection, or its kernel does not answer any more.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) async fn lost(&self) -> io::Result<()> {
        self.socket.ready(Interest::ERROR).await.map(drop)
    }

    /// Reads, or waits for something to read.
    pub(crate) fn poll_read_shared(
        &self,
        cx: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.try_read(bytes.initialize_unfilled()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready!(self.poll_read_ready(cx))?,
                read => return Poll::Ready(read.map(|len| bytes.advance(len))),
            }
        }
    }

    fn poll_flush_shared(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.try_flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready!(self.poll_write_ready(cx))?,
                flushed => return Poll::Ready(flushed),
            }
        }
    }

    /// Where it leads to.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// The socket's descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Says that nothing more comes, if the socket takes that at once, and ends the connection.
    pub(crate) fn close(&self) {
        self.end(Shutdown::Both);
    }

    /// Says that nothing more comes, if the socket takes that at once. What the other side still says can be read.
    pub(crate) fn end_output(&self) {
        self.end(Shutdown::Write);
    }

    fn end(&self, direction: Shutdown) {
        let tls = &mut *self.tls.borrow_mut();
        if !tls.is_handshaking() {
            tls.send_close_notify();
        }
        // The other side may have left.
        let _ = self.send(tls);
        let _ = shutdown(self.fd(), direction);
    }

    /// A last word, not encrypted, to a client that does not speak TLS: nobody waits for it to read.
    pub(crate) fn say_plainly(&self, word: &[u8]) {
        // It may have left.
        let _ = send(self.fd(), word, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }

    /// Takes what the socket has, and decrypts it; 0 at the end.
    fn receive(&self, tls: &mut Connection) -> io::Result<usize> {
        let len = tls.read_tls(&mut Now(&self.socket))?;
        if let Err(error) = tls.process_new_packets() {
            // An alert says so, if there is room for it.
            let _ = self.send(tls);
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        Ok(len)
    }

    fn send(&self, tls: &mut Connection) -> io::Result<()> {
        while tls.wants_write() {
            tls.write_tls(&mut Now(&self.socket))?;
        }
        Ok(())
    }
}

impl AsFd for TlsSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_read_shared(cx, bytes)
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.try_write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready!(self.poll_write_ready(cx))?,
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_shared(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tls.borrow_mut().send_close_notify();
        ready!(self.poll_flush_shared(cx))?;
        Poll::Ready(Ok(shutdown(self.fd(), Shutdown::Write)?))
    }
}

/// A socket, as far as it can be read and written without waiting.
struct Now<'s>(&'s TcpStream);

impl Read for Now<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(bytes)
    }
}

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The longest record's content.
const PIECE: usize = 16 << 10;
/// The memory of a connection on which nothing is under way.
const STATE: usize = 10 << 10;
/// The first byte of a record of a handshake.
const HANDSHAKE: u8 = 22;
