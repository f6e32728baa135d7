//! One connection of an Envoy.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

use super::counters::{Counters, Event};

/// A socket of either family.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection, which is counted and has a place among so many. One that does not begin with HTTP/2's preface within
/// [`PREFACE_WITHIN`] is closed, so that nobody keeps a place by saying nothing.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Socket,
    /// The bytes of the preface that have come, and when the rest must have; `None` after it.
    preface: Option<(usize, Pin<Box<Sleep>>)>,
    counters: Arc<Counters>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    pub(super) fn new(socket: Socket, place: OwnedSemaphorePermit, counters: Arc<Counters>) -> Self {
        counters.connections.fetch_add(1, Ordering::Relaxed);
        Self { socket, preface: Some((0, Box::pin(sleep(PREFACE_WITHIN)))), counters, _place: place }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counters.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = match &mut this.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Socket::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        };
        let Some((seen, deadline)) = &mut this.preface else { return read };
        if let Poll::Ready(result) = read {
            *seen += buffer.filled().len() - before;
            if *seen >= PREFACE_BYTES {
                this.preface = None;
            }
            return Poll::Ready(result);
        }
        ready!(deadline.as_mut().poll(context));
        this.counters.count(Event::Silent);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            Socket::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_flush(context),
            Socket::Unix(socket) => Pin::new(socket).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}

/// `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`.
const PREFACE_BYTES: usize = 24;
/// Far more than a peer on the same host takes.
const PREFACE_WITHIN: Duration = Duration::from_secs(5);
