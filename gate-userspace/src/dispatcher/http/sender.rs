//! The sender of requests to the store: by HTTP/1.1 one at a time, by HTTP/2 many beside each other.
//!
//! **Sharing.** A connection of HTTP/2 carries the requests of one tenant: a store that ends a connection whose requests are given up
//! too often, or one answer that holds up the others behind it, is felt by nobody else.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error;
use std::pin::Pin;
use std::rc::Rc;

use foldhash::fast::RandomState;
use gate_common::units::Nanos;
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::{HOST, TRANSFER_ENCODING};
use hyper::http::uri::Scheme;
use hyper::{Request, Response, Uri, Version};

use crate::clock;
use crate::dispatcher::store_place::Endpoint;
use crate::dispatcher::tenants::ledger::TenantId;

/// The body of a request to the store.
pub(super) type RequestBody = Pin<Box<dyn Body<Data = Bytes, Error = BodyError>>>;
/// The cause of the end of a body.
pub(super) type BodyError = Box<dyn Error + Send + Sync>;
/// The end of an attempt to send a request, which is in the error if nothing of it was sent.
type Sent = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>;

/// The sender of a connection of the store.
#[derive(Debug)]
pub(super) enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>, Stream),
}

/// One of the requests that a connection of HTTP/2 carries, as long as this is there.
#[derive(Debug)]
pub(super) struct Stream(Rc<Shared>);

/// The part of a connection of HTTP/2 that its requests share.
#[derive(Debug)]
struct Shared {
    streams: Cell<usize>,
    idle_since: Cell<Nanos>,
    /// True once it takes no more requests.
    is_retired: Cell<bool>,
    is_secure: bool,
}

/// A thread's connections of HTTP/2 to the store of a service, by the tenants whose requests they carry.
#[derive(Debug, Default)]
pub(super) struct SharedConnections(RefCell<HashMap<TenantId, Vec<SharedConnection>, RandomState>>);

#[derive(Debug)]
struct SharedConnection {
    endpoint: Endpoint,
    sender: http2::SendRequest<RequestBody>,
    shared: Rc<Shared>,
}

/// Runs the tasks of HTTP/2 connections in their own thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

impl Sender {
    /// Waits until it takes a request; false if its connection has ended.
    pub(super) async fn is_ready(&mut self) -> bool {
        match self {
            Self::Http1(sender) => sender.ready().await.is_ok(),
            Self::Http2(sender, _) => sender.ready().await.is_ok(),
        }
    }

    /// True if its connection carries other requests as well.
    pub(super) const fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(..))
    }

    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender, _) => sender.is_closed(),
        }
    }

    /// Sends a request, and waits for the head of its answer.
    pub(super) fn send(&mut self, request: Request<RequestBody>) -> impl Future<Output = Sent> + use<> {
        let by_version = match self {
            Self::Http1(sender) => Either::Http1(sender.try_send_request(request)),
            Self::Http2(sender, stream) => {
                Either::Http2(sender.try_send_request(to_http2(request, stream.0.is_secure)))
            }
        };
        async move {
            match by_version {
                Either::Http1(sending) => sending.await,
                Either::Http2(sending) => sending.await,
            }
        }
    }

    /// Has its connection carry no more requests: it has not answered one in time, and may be dead.
    pub(super) fn retire(&self) {
        match self {
            Self::Http1(_) => {}
            Self::Http2(_, stream) => stream.0.is_retired.set(true),
        }
    }
}

/// The same of either version.
enum Either<One, Two> {
    Http1(One),
    Http2(Two),
}

impl SharedConnections {
    /// A connection that carries this tenant's requests and has room for one more, and its endpoint.
    pub(super) fn take(
        &self,
        tenant: TenantId,
        is_current: impl Fn(&Endpoint) -> bool,
    ) -> Option<(Sender, Endpoint)> {
        let connections = self.0.borrow();
        // The newest one was made since the others were full.
        let mut newest_first = connections.get(&tenant)?.iter().rev();
        let connection =
            newest_first.find(|connection| connection.has_room() && is_current(&connection.endpoint))?;
        Some((connection.sender(), connection.endpoint.clone()))
    }

    /// Keeps a new connection for this tenant's requests, and returns the sender of its first one.
    pub(super) fn keep(
        &self,
        tenant: TenantId,
        endpoint: Endpoint,
        sender: http2::SendRequest<RequestBody>,
        is_secure: bool,
    ) -> Sender {
        let shared = Shared {
            streams: Cell::new(0),
            idle_since: Cell::new(clock::monotonic()),
            is_retired: Cell::new(false),
            is_secure,
        };
        let connection = SharedConnection { endpoint, sender, shared: Rc::new(shared) };
        let first = connection.sender();
        self.0.borrow_mut().entry(tenant).or_default().push(connection);
        first
    }

    /// Closes connections that have carried nothing for so long, and forgets those that have ended.
    pub(super) fn release(&self, kept_for: Nanos, now: Nanos) {
        let is_kept = |connection: &mut SharedConnection| {
            let shared = &connection.shared;
            let is_idle =
                shared.streams.get() == 0 && now.saturating_sub(shared.idle_since.get()) >= kept_for;
            !is_idle && !shared.is_retired.get() && !connection.sender.is_closed()
        };
        self.0.borrow_mut().retain(|_, connections| {
            connections.retain_mut(is_kept);
            !connections.is_empty()
        });
    }
}

impl SharedConnection {
    fn has_room(&self) -> bool {
        !self.sender.is_closed() && !self.shared.is_retired.get() && self.shared.streams.get() < STREAMS
    }

    fn sender(&self) -> Sender {
        self.shared.streams.set(self.shared.streams.get() + 1);
        Sender::Http2(self.sender.clone(), Stream(Rc::clone(&self.shared)))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
        self.0.idle_since.set(clock::monotonic());
    }
}

/// A request as HTTP/2 has it: its host in its target, and no transfer coding. One that has been sent in vain is so already.
fn to_http2(request: Request<RequestBody>, is_secure: bool) -> Request<RequestBody> {
    let (mut parts, body) = request.into_parts();
    parts.headers.remove(TRANSFER_ENCODING);
    parts.version = Version::HTTP_2;
    if let Some(host) = parts.headers.remove(HOST) {
        let mut uri = std::mem::take(&mut parts.uri).into_parts();
        uri.scheme = Some(if is_secure { Scheme::HTTPS } else { Scheme::HTTP });
        uri.authority = host.as_bytes().try_into().ok();
        // Without a host hyper refuses it.
        parts.uri = Uri::from_parts(uri).unwrap_or_default();
    }
    Request::from_parts(parts, body)
}

/// The requests that one connection carries: fewer than any server that is known takes.
pub(super) const STREAMS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::http::upstreams::NoBody;

    #[test]
    fn a_request_names_its_host_once() {
        let request =
            Request::builder().uri("/a?b").header("host", "h:1").header("transfer-encoding", "chunked");
        let request: Request<RequestBody> =
            request.header("te", "trailers").body(Box::pin(NoBody) as _).unwrap();
        let sent = to_http2(request, false);
        assert_eq!((sent.uri().to_string().as_str(), sent.version()), ("http://h:1/a?b", Version::HTTP_2));
        assert_eq!(sent.headers().len(), 1);
        let again = to_http2(sent, false);
        assert_eq!(again.uri().to_string(), "http://h:1/a?b");
        let asterisk = Request::builder().method("OPTIONS").uri("*").header("host", "h");
        let sent = to_http2(asterisk.body(Box::pin(NoBody) as _).unwrap(), true);
        assert_eq!(sent.uri().scheme_str(), Some("https"));
    }
}
