//! Connections to origins and to the processor: HTTP/1.1, one request at a time, used again by the next.
//!
//! Requests here are safe to send twice, so one that meets a kept connection at its end is sent over a new one.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use gate_common::units::Nanos;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::head::{self, UntilClosed};
use super::sender::BodyError;
use crate::clock;
use crate::dispatcher::own_connections::OwnConnections;
use crate::dispatcher::tls::OriginTls;

/// One thread's connections.
#[derive(Debug, Default)]
pub(super) struct Upstreams(RefCell<Vec<Upstream>>);

/// A connection.
#[derive(Debug)]
pub(super) struct Upstream {
    /// Scheme and authority.
    origin: String,
    sender: SendRequest<NoBody>,
    idle_since: Nanos,
}

impl Upstreams {
    /// A connection to an origin that is kept, ready for a request.
    pub(super) async fn kept(&self, origin: &str) -> Option<Upstream> {
        loop {
            let place = self.0.borrow().iter().rposition(|kept| kept.origin == origin)?;
            let mut kept = self.0.borrow_mut().remove(place);
            if kept.sender.ready().await.is_ok() {
                return Some(kept);
            }
        }
    }

    /// Keeps a connection that has carried a whole answer.
    pub(super) fn keep(&self, upstream: Upstream) {
        let kept = &mut *self.0.borrow_mut();
        if upstream.sender.is_closed() {
            return;
        }
        if kept.len() == MOST_KEPT {
            // The one that was kept for longest.
            kept.remove(0);
        }
        kept.push(Upstream { idle_since: clock::monotonic(), ..upstream });
    }

    /// Closes connections that have not been used for a while. To be called every second or so.
    pub(super) fn release(&self, now: Nanos) {
        self.0
            .borrow_mut()
            .retain(|kept| !kept.sender.is_closed() && now.saturating_sub(kept.idle_since) < KEPT_FOR);
    }
}

impl Upstream {
    /// Connects to one of these addresses, the first that takes the connection; over TLS if there is a host that it has to show
    /// to be.
    ///
    /// # Errors
    ///
    /// The last one's, or that there is none.
    pub(super) async fn connect(
        origin: &str,
        (own_connections, addresses): (&OwnConnections, &[SocketAddr]),
        tls: Option<(OriginTls, &str)>,
    ) -> io::Result<Self> {
        let mut last = io::Error::other("no address");
        for &address in addresses {
            match Self::connect_to(origin, own_connections.connect(address), tls.as_ref()).await {
                Ok(upstream) => return Ok(upstream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn connect_to(
        origin: &str,
        connecting: impl Future<Output = io::Result<TcpStream>>,
        tls: Option<&(OriginTls, &str)>,
    ) -> io::Result<Self> {
        let stream = connecting.await?;
        stream.set_nodelay(true)?;
        match tls {
            None => Self::begin(origin, stream).await,
            Some((tls, host)) => Self::begin(origin, tls.connect(stream, host).await?).await,
        }
    }

    async fn begin<S: AsyncRead + AsyncWrite + Unpin + 'static>(origin: &str, stream: S) -> io::Result<Self> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // Its requests learn of its errors.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(Self { origin: origin.to_owned(), sender, idle_since: clock::monotonic() })
    }

    /// Sends a request, and waits for the head of its answer, which has one meaning. `None` without one.
    pub(super) async fn ask(&mut self, request: Request<NoBody>) -> Option<Response<Incoming>> {
        let (mut parts, body) = self.sender.send_request(request).await.ok()?.into_parts();
        let ends_itself =
            parts.headers.contains_key(CONTENT_LENGTH) || parts.headers.contains_key(TRANSFER_ENCODING);
        head::prepare_answer(&mut parts, None).ok()?;
        if !ends_itself && !body.is_end_stream() {
            parts.extensions.insert(UntilClosed);
        }
        Some(Response::from_parts(parts, body))
    }
}

/// No body.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoBody;

impl Body for NoBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(0)
    }
}

/// So many connections wait for the next requests of a thread.
const MOST_KEPT: usize = 64;
/// The longest head, and what is read at a time: while it is copied others wait.
const BUFFER: usize = 16 << 10;
/// Servers close idle connections after 60 s or more.
const KEPT_FOR: Nanos = Nanos::from_secs(30);
