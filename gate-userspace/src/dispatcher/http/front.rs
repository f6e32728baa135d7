//! A client's connection, from its slot to its end.

use std::cell::RefCell;
use std::error::Error as _;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd as _;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use gate_common::abi::Reason;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::connection::Connection;
use super::exchange;
use super::meter::Meter;
use super::service::HttpService;
use super::websocket::tunnel::Tunnel;
use crate::clock;
use crate::dispatcher::accept::{Accepted, Front, reject_handshake, reject_header};
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::handshake::{self, HandshakeError};
use crate::dispatcher::clients::memory_budget::MemoryShare;
use crate::dispatcher::clients::proxy_header::{PendingHeaders, Rejected, begins_with_one};
use crate::dispatcher::clients::slots::MostSlots;
use crate::dispatcher::metrics::{Event, WorkerMetrics};
use crate::dispatcher::settings::Settings;
use crate::dispatcher::tenants::usage::UsageGuard;
use crate::dispatcher::tls;
use crate::dispatcher::tls::socket::TlsSocket;
use crate::dispatcher::tls::turns::Party;
use crate::protocol::Refusal;
use crate::protocol::http::refusal;

impl Front for HttpService {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    fn is_full(&self) -> bool {
        self.has_all_clients()
    }

    fn pending_headers(&self) -> &PendingHeaders {
        &self.pending_headers
    }

    fn take_in(self: &Rc<Self>, client: Accepted) -> io::Result<()> {
        let Accepted { socket, source, may_have_header } = client;
        socket.set_nodelay(true)?;
        let connection = {
            let mut ledger = self.ledger.borrow_mut();
            ledger.refresh();
            let tenant = ledger.tenant_of(source, self.settings.service);
            let memory = MemoryShare::new(&self.memory, tenant);
            Rc::new(Connection::new(source, self.trusts(source), tenant, memory, clock::monotonic()))
        };
        if self.has_all_clients() || !self.acquire_slot(&connection) {
            // Closed without a word: one could be taken for the answer to a request that was never read.
            self.metrics.count(Event::TurnedAway);
            self.admission.count_refusal(connection.tenant.get(), Reason::Limit);
            return Ok(());
        }
        self.metrics.count(Event::Accepted);
        self.connections.borrow_mut().push(Rc::downgrade(&connection));
        let service = Rc::clone(self);
        let socket = match &self.settings.tls {
            None => ClientSocket::Plain(socket),
            Some(tls) => ClientSocket::Tls(Box::new(tls.borrow().accept(socket)?)),
        };
        tokio::task::spawn_local(async move {
            let ended = match socket {
                ClientSocket::Plain(socket) => {
                    serve_plainly(&service, socket, may_have_header, &connection).await
                }
                ClientSocket::Tls(socket) => serve_securely(&service, socket, &connection).await,
            };
            service.count_end(ended);
        });
        Ok(())
    }
}

impl HttpService {
    /// Takes a connection of those that there may be, and of those that its tenant may have; false if there is none. A
    /// trusted proxy's connections are many tenants', and count for none.
    pub(super) fn acquire_slot(&self, connection: &Connection) -> bool {
        if connection.is_trusted {
            return true;
        }
        drop((connection.share.take(), connection.slot.take()));
        let ledger = self.ledger.borrow();
        let tenant = connection.tenant.get();
        let tenants = self.tenants.borrow();
        let usage = tenants.usage(tenant, &ledger);
        let most = MostSlots::of(&self.limits.get(), usage.as_deref(), tenants.are_several());
        let slot = self.slots.take(tenant, most);
        let has_limits = usage.is_some();
        let share = usage.and_then(UsageGuard::of_connection);
        let has_all = slot.is_some() && (!has_limits || share.is_some());
        *connection.slot.borrow_mut() = slot;
        *connection.share.borrow_mut() = share;
        // Where rules are only tried, what would be refused is counted.
        has_all || ledger.is_shadowed(connection.source)
    }

    fn count_end(&self, ended: CloseCause) {
        self.metrics.count(match ended {
            CloseCause::ClientLeft => Event::Left,
            CloseCause::SlowReader => Event::SlowReader,
            CloseCause::SlowWriter => Event::SlowWriter,
            CloseCause::StoreFailed => Event::Cut,
            CloseCause::Idle => Event::Idle,
        });
    }
}

/// A connection as it was accepted.
enum ClientSocket {
    Plain(TcpStream),
    Tls(Box<TlsSocket>),
}

/// Serves a plain connection, and says why it has ended.
async fn serve_plainly(
    service: &Rc<HttpService>,
    socket: TcpStream,
    may_have_header: bool,
    connection: &Rc<Connection>,
) -> CloseCause {
    let fd = socket.as_raw_fd();
    let (mut read, write) = socket.into_split();
    if may_have_header && begins_with_one(&mut read).await {
        reject_header(&**service, connection.source, &Rejected::Untrusted);
        return CloseCause::ClientLeft;
    }
    let mut stream = Meter::new(tokio::io::join(read, write), fd, Rc::clone(connection));
    let is_http2 = {
        let mut first = pin!(stream.begins_as_http2());
        let is_http2 = poll_fn(|cx| match (first.as_mut().poll(cx), connection.poll_state(cx)) {
            (_, (Some(ended), _)) => Poll::Ready(Err(ended)),
            (Poll::Ready(is_http2), _) => Poll::Ready(is_http2.map_err(|_| CloseCause::ClientLeft)),
            // It has asked for nothing.
            (Poll::Pending, (None, true)) => Poll::Ready(Err(CloseCause::ClientLeft)),
            (Poll::Pending, (None, false)) => Poll::Pending,
        });
        match is_http2.await {
            Ok(is_http2) => is_http2,
            Err(ended) => return ended,
        }
    };
    serve(service, is_http2, stream, connection).await
}

/// Serves a connection by TLS from its handshake on, and says why it has ended. Its version is the one that was chosen in the
/// handshake, HTTP/1.1 if none was.
async fn serve_securely(
    service: &Rc<HttpService>,
    socket: Box<TlsSocket>,
    connection: &Rc<Connection>,
) -> CloseCause {
    connection.set_secure();
    connection.note_socket(TlsSocket::IN_HANDSHAKE);
    {
        let patience = service.limits.get().unknown_timeout.into();
        // In a box: it is over soon.
        let tenant = Some(connection.tenant.get()).filter(|_| !connection.is_trusted);
        let turns = (&service.turns, Party::new(tenant, connection.source));
        let handshake = Box::pin(handshake::complete(&socket, turns, &service.metrics, patience));
        let result = tokio::select! {
            result = handshake => result,
            ended = poll_fn(|cx| connection.poll_ended(cx)) => return ended,
        };
        if let Err(why) = result {
            if let HandshakeError::Plain = why {
                socket.say_plainly(&plain_refusal());
            }
            reject_handshake(&**service, connection.source, &why);
            return CloseCause::ClientLeft;
        }
    }
    connection.note_socket(socket.memory());
    let is_http2 = socket.speaks(tls::HTTP2);
    let fd = socket.fd();
    serve(service, is_http2, Meter::new(socket, fd, Rc::clone(connection)), connection).await
}

/// The answer to a request that comes plainly where TLS is spoken.
fn plain_refusal() -> Vec<u8> {
    let text = refusal::text(Refusal::of(Reason::Unsupported), None);
    let head = "HTTP/1.1 400 Bad Request\r\ngate-reason: unsupported\r\ncontent-type: text/plain\r\nconnection: close\r\n";
    let length = format!("content-length: {}\r\n\r\n", text.len());
    [head.as_bytes(), length.as_bytes(), &text].concat()
}

/// Serves a connection over a stream of any kind by either version, and says why it has ended.
async fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    service: &Rc<HttpService>,
    is_http2: bool,
    stream: Meter<S>,
    connection: &Rc<Connection>,
) -> CloseCause {
    let stream = TokioIo::new(stream);
    // A WebSocket whose client is about to be told of it.
    let tunnel: Rc<RefCell<Option<Tunnel>>> = Rc::default();
    let requests = service_fn(|request| {
        exchange::answer(Rc::clone(service), Rc::clone(connection), request, Rc::clone(&tunnel))
    });
    if is_http2 {
        let mut serving = service.http2.serve_connection(stream, requests);
        return run(service, connection, &mut serving, |serving| serving.graceful_shutdown())
            .await
            .unwrap_or(CloseCause::ClientLeft);
    }
    let mut serving = service.http1.serve_connection(stream, requests);
    let ended = run(service, connection, &mut serving, |serving| serving.graceful_shutdown()).await;
    let tunnel = tunnel.take();
    match (ended, tunnel) {
        (Some(ended), _) => ended,
        (None, None) => {
            if connection.leaves_unread() {
                // However that ends.
                let _ = timeout(LINGER, read_on(&mut serving.into_parts().io.into_inner())).await;
            }
            CloseCause::ClientLeft
        }
        (None, Some(tunnel)) => {
            let parts = serving.into_parts();
            tunnel.run(parts.io.into_inner(), parts.read_buf).await
        }
    }
}

/// Reads what a client still sends before it has read that its connection has ended: a system that has to throw that away would
/// have the client lose the answer (RFC 9112, 9.6).
async fn read_on(from: &mut (impl AsyncRead + Unpin)) {
    let mut piece = vec![0; 4 << 10];
    let mut left = MOST_LINGERING;
    while left > 0
        && let Ok(len @ 1..) = from.read(&mut piece).await
    {
        left = left.saturating_sub(len);
    }
}

/// Runs a connection of either version, which `drain` has accept no more requests. Says why it has ended; `None` if its client was
/// served to its end.
async fn run<C: Future<Output = hyper::Result<()>> + Unpin>(
    service: &HttpService,
    connection: &Connection,
    serving: &mut C,
    drain: impl Fn(Pin<&mut C>),
) -> Option<CloseCause> {
    let mut drains = false;
    poll_fn(|cx| {
        let (ended, must_drain) = connection.poll_state(cx);
        if ended.is_some() {
            return Poll::Ready(ended);
        }
        if must_drain && !std::mem::replace(&mut drains, true) {
            drain(Pin::new(serving));
        }
        match Pin::new(&mut *serving).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(None),
            Poll::Ready(Err(error)) => Poll::Ready(Some(service.ended_by(connection, &error))),
        }
    })
    .await
}

impl HttpService {
    /// Why a connection has ended with this error. What is no HTTP is counted as malformed.
    fn ended_by(&self, connection: &Connection, error: &hyper::Error) -> CloseCause {
        let has_left = || {
            let cause = error.source();
            cause.is_some_and(|cause| cause.is::<io::Error>()) || error.is_closed() || error.is_canceled()
        };
        if error.is_parse() || (error.source().is_some() && error.to_string() == HTTP2_ERROR && !has_left()) {
            self.admission.count_refusal(connection.tenant.get(), Reason::Malformed);
        }
        if error.is_user() { CloseCause::StoreFailed } else { CloseCause::ClientLeft }
    }
}

/// The time, and the bytes, for which a client may go on sending after the end of its connection.
const LINGER: Duration = Duration::from_secs(2);
const MOST_LINGERING: usize = 1 << 20;
/// As hyper names a violation of HTTP/2.
const HTTP2_ERROR: &str = "http2 error";
