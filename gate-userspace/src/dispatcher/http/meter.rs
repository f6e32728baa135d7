//! A client's stream, and what passes it. It is not read while reads are paused.

use std::io;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::connection::{Connection, PREFACE};

/// A stream of any kind, whose connection is told what has been read and written.
#[derive(Debug)]
pub(super) struct Meter<S> {
    stream: S,
    connection: Rc<Connection>,
    /// The first bytes, which have been read to find out the version, and how many of them have been read again.
    first: ([u8; PREFACE.len()], usize),
    read_again: usize,
}

impl<S> Meter<S> {
    /// That of a connection over this socket.
    pub(super) fn new(stream: S, socket: RawFd, connection: Rc<Connection>) -> Self {
        connection.unread.open(socket);
        Self { stream, connection, first: Default::default(), read_again: 0 }
    }

    /// Reads as much as tells whether the client speaks HTTP/2, to be read again. False as well if it ends before.
    ///
    /// # Errors
    ///
    /// The stream's.
    pub(super) async fn begins_as_http2(&mut self) -> io::Result<bool>
    where
        S: AsyncRead + Unpin,
    {
        loop {
            let (mut first, len) = self.first;
            if first[..len] != PREFACE[..len] || len == PREFACE.len() {
                return Ok(first[..len] == *PREFACE);
            }
            // They are given again from the start.
            self.read_again = len;
            match self.read(&mut first[len..]).await? {
                0 => return Ok(false),
                more => self.first = (first, len + more),
            }
            self.read_again = 0;
        }
    }

    fn note_written(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(len)) = result {
            self.connection.unread.wrote(len);
        }
        result
    }
}

impl<S> Drop for Meter<S> {
    fn drop(&mut self) {
        self.connection.unread.close();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Meter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.connection.poll_paused(cx) {
            return Poll::Pending;
        }
        let (first, len) = self.first;
        if self.read_again < len {
            let rest = &first[self.read_again..len];
            let taken = rest.len().min(buf.remaining());
            buf.put_slice(&rest[..taken]);
            self.read_again += taken;
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = &buf.filled()[before..];
        if !read.is_empty() {
            self.connection.on_read(read);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Meter<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_written(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.note_written(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
