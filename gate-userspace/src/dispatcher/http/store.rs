//! Connections to an HTTP store: one for each request under way, used again by the next; by HTTP/2 one for many of a tenant.
//!
//! **Failures.** The store is down when it cannot be connected to, or when a request gets no answer in time and no other has
//! got one since it was sent: a request that is slow, or breaks its own connection, says nothing of the others. Then all
//! requests are refused for a pause, as for other protocols ([`Health`]).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, Parts};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::head::BUFFER;
use super::sender::{LocalExecutor, RequestBody, STREAMS, Sender, SharedConnections};
use crate::clock;
use crate::dispatcher::metrics::store_state::StoreState;
use crate::dispatcher::metrics::{Event, WorkerMetrics};
use crate::dispatcher::settings::Settings;
use crate::dispatcher::store_place::{self, Endpoint, NodeId};
use crate::dispatcher::stores::error::StoreError;
use crate::dispatcher::stores::health::Health;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::tls::HTTP2;
use crate::protocol::Refusal;

/// One thread's connections to the store of a service.
#[derive(Debug)]
pub(super) struct Store {
    settings: Settings,
    metrics: Arc<WorkerMetrics>,
    state: Arc<StoreState>,
    idle: RefCell<Vec<StoreConnection>>,
    /// The connections of HTTP/2.
    shared: SharedConnections,
    is_http2: bool,
    health: RefCell<Health>,
    /// Requests that are with the store, or about to be.
    outstanding: Cell<usize>,
    last_answer: Cell<Nanos>,
}

/// A connection to the store.
#[derive(Debug)]
pub(super) struct StoreConnection {
    pub(super) sender: Sender,
    endpoint: Endpoint,
    idle_since: Nanos,
    /// True if it has carried a request before.
    pub(super) is_reused: bool,
    /// Its stream, when the store goes on with another protocol; `None` unless that is asked for.
    pub(super) switched: Option<oneshot::Receiver<SwitchedStream>>,
}

/// A stream of any kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// The stream of a connection of the store on which HTTP has ended.
pub(super) struct SwitchedStream {
    pub(super) stream: Box<dyn Stream>,
    /// The part of what follows that has been read already.
    pub(super) early: Bytes,
    pub(super) connected: Connected,
}

impl fmt::Debug for SwitchedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchedStream").field("early", &self.early.len()).finish_non_exhaustive()
    }
}

/// A connection that the store has, as long as this is there.
#[derive(Debug)]
pub(super) struct Connected(Arc<StoreState>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}

/// The receiver of the stream of a connection on which HTTP has ended.
type Switch = Option<oneshot::Sender<SwitchedStream>>;

/// A request that is with the store, as long as this is there.
#[derive(Debug)]
pub(super) struct Outstanding(Rc<Store>);

impl Store {
    pub(super) fn new(settings: Settings, metrics: Arc<WorkerMetrics>, state: Arc<StoreState>) -> Self {
        let is_http2 = settings.backend.http.as_ref().is_some_and(|http| http.is_http2_to_store);
        Self {
            settings,
            metrics,
            state,
            idle: RefCell::default(),
            shared: SharedConnections::default(),
            is_http2,
            health: RefCell::new(Health::new()),
            outstanding: Cell::new(0),
            last_answer: Cell::new(Nanos::ZERO),
        }
    }

    /// Checks that the store takes one more request.
    ///
    /// # Errors
    ///
    /// A refusal, while the circuit breaker is open.
    pub(super) fn accepts(&self, now: Nanos) -> Result<(), Refusal> {
        let health = &mut *self.health.borrow_mut();
        if self.outstanding.get() == 0 {
            health.idle(now);
        }
        if health.may_be_tried(now) {
            health.retry();
            health.connected(now);
        }
        health
            .accepts(self.outstanding.get(), now)
            .map_err(|retry_after| Refusal::after(Reason::StoreDown, retry_after))
    }

    /// Counts one more request with the store.
    pub(super) fn outstanding(self: &Rc<Self>) -> Outstanding {
        self.outstanding.set(self.outstanding.get() + 1);
        Outstanding(Rc::clone(self))
    }

    /// A connection that is ready for a request of this tenant: one that is kept, or a new one.
    ///
    /// # Errors
    ///
    /// If the store cannot be connected to in time. It is down then.
    pub(super) async fn connection(&self, tenant: TenantId) -> Result<StoreConnection, StoreError> {
        if self.is_http2 {
            let kept =
                self.shared.take(tenant, |endpoint| self.settings.store(NodeId::FIRST).is_current(endpoint));
            return match kept {
                Some((sender, endpoint)) => {
                    let idle_since = clock::monotonic();
                    Ok(StoreConnection { sender, endpoint, idle_since, is_reused: true, switched: None })
                }
                None => self.new_connection(tenant).await,
            };
        }
        loop {
            let kept = self.idle.borrow_mut().pop();
            let Some(mut kept) = kept else { break };
            if self.settings.store(NodeId::FIRST).is_current(&kept.endpoint) && kept.sender.is_ready().await {
                return Ok(kept);
            }
        }
        self.new_connection(tenant).await
    }

    /// A new connection.
    ///
    /// # Errors
    ///
    /// If the store cannot be connected to in time. It is down then.
    pub(super) async fn new_connection(&self, tenant: TenantId) -> Result<StoreConnection, StoreError> {
        self.connect(tenant, false).await.inspect_err(|error| self.failed(error))
    }

    /// A new connection on which the store may go on with another protocol.
    ///
    /// # Errors
    ///
    /// If the store cannot be connected to in time. It is down then.
    pub(super) async fn connection_to_switch(&self, tenant: TenantId) -> Result<StoreConnection, StoreError> {
        self.connect(tenant, true).await.inspect_err(|error| self.failed(error))
    }

    async fn connect(&self, tenant: TenantId, switches: bool) -> Result<StoreConnection, StoreError> {
        let (switch, switched) = switches.then(oneshot::channel).unzip();
        let mut switch = switch;
        let connecting = async {
            let mut last = StoreError::Unresolved;
            for endpoint in self.settings.store(NodeId::FIRST).endpoints().await {
                match self.connect_to(tenant, &endpoint, &mut switch).await {
                    Ok(sender) => return Ok((sender, endpoint)),
                    Err(error) => last = error,
                }
            }
            Err(last)
        };
        let patience = self.settings.store_timeout().into();
        let (sender, endpoint) = timeout(patience, connecting).await.map_err(|_| StoreError::TimedOut)??;
        Ok(StoreConnection { sender, endpoint, idle_since: clock::monotonic(), is_reused: false, switched })
    }

    /// Connects to this endpoint for this tenant, and speaks TLS to it where that is configured.
    async fn connect_to(
        &self,
        tenant: TenantId,
        endpoint: &Endpoint,
        switch: &mut Switch,
    ) -> Result<Sender, StoreError> {
        let stream = match endpoint.connect(&self.settings.own_connections).await? {
            store_place::Stream::Tcp(stream) => stream,
            store_place::Stream::Unix(stream) if self.is_http2 => {
                return self.begin_http2(stream, (tenant, endpoint)).await;
            }
            store_place::Stream::Unix(stream) => return self.begin(stream, switch).await,
        };
        let Some(tls) = self.settings.store_tls.as_ref().map(|tls| tls.borrow().clone()) else {
            return match self.is_http2 {
                true => self.begin_http2(stream, (tenant, endpoint)).await,
                false => self.begin(stream, switch).await,
            };
        };
        if self.is_http2 {
            let stream = tls.connect_by(stream, HTTP2).await.map_err(StoreError::Tls)?;
            return self.begin_http2(stream.with_end(), (tenant, endpoint)).await;
        }
        let stream = tls.connect(stream).await.map_err(StoreError::Tls)?;
        // An answer may be as long as its connection.
        self.begin(stream.with_end(), switch).await
    }

    async fn begin<S: AsyncRead + AsyncWrite + Unpin + 'static>(
        &self,
        stream: S,
        switch: &mut Switch,
    ) -> Result<Sender, StoreError> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER);
        let handshake = builder.handshake::<_, RequestBody>(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|_| StoreError::Closed)?;
        let connected = self.connected();
        let switch = switch.take();
        tokio::task::spawn_local(async move {
            let mut connection = connection;
            // Its requests learn of its errors.
            let ended = (&mut connection).await;
            if let (Some(switch), Ok(())) = (switch, ended) {
                let Parts { io, read_buf, .. } = connection.into_parts();
                let stream = Box::new(io.into_inner());
                // The receiver is gone, unless the store goes on with another protocol.
                let _ = switch.send(SwitchedStream { stream, early: read_buf, connected });
            }
        });
        Ok(Sender::Http1(sender))
    }

    async fn begin_http2<S: AsyncRead + AsyncWrite + Unpin + 'static>(
        &self,
        stream: S,
        (tenant, endpoint): (TenantId, &Endpoint),
    ) -> Result<Sender, StoreError> {
        let mut builder = http2::Builder::new(LocalExecutor);
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            // One answer that is not read holds up no other.
            .initial_connection_window_size(WINDOW * STREAMS as u32)
            .max_send_buf_size(BUFFER)
            .max_header_list_size(BUFFER as u32);
        let handshake = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|_| StoreError::Closed)?;
        let connected = self.connected();
        tokio::task::spawn_local(async move {
            let _connected = connected;
            // Its requests learn of its errors.
            let _ = connection.await;
        });
        let is_secure = self.settings.store_tls.is_some();
        Ok(self.shared.keep(tenant, endpoint.clone(), sender, is_secure))
    }

    /// Notes that the store is connected.
    fn connected(&self) -> Connected {
        let now = clock::monotonic();
        self.metrics.count(Event::StoreConnected);
        self.health.borrow_mut().connected(now);
        if let Some(line) = self.state.connected(now) {
            line.write(&self.settings.name, &self.settings.backend.address, &"");
        }
        Connected(Arc::clone(&self.state))
    }

    /// Keeps a connection that has carried a whole answer; one of HTTP/2 is kept already.
    pub(super) fn keep(&self, connection: StoreConnection) {
        if self.is_http2 {
            return;
        }
        let idle = &mut *self.idle.borrow_mut();
        if idle.len() < MOST_KEPT && !connection.sender.is_closed() {
            let idle_since = clock::monotonic();
            idle.push(StoreConnection { idle_since, is_reused: true, switched: None, ..connection });
        }
    }

    /// Closes connections that have not been used for a while, before the store does. To be called every second or so.
    pub(super) fn release(&self, now: Nanos) {
        self.shared.release(KEPT_FOR, now);
        self.idle
            .borrow_mut()
            .retain(|kept| !kept.sender.is_closed() && now.saturating_sub(kept.idle_since) < KEPT_FOR);
    }

    /// Notes that the store has begun to answer a request.
    pub(super) fn answered(&self, now: Nanos) {
        self.last_answer.set(now);
        self.health.borrow_mut().answered();
    }

    /// Notes that a request that was sent at `sent` has got no answer in time.
    pub(super) fn timed_out(&self, sent: Nanos) {
        if self.last_answer.get() < sent {
            self.failed(&StoreError::TimedOut);
        }
    }

    fn failed(&self, why: &StoreError) {
        let now = clock::monotonic();
        self.health.borrow_mut().failed(now);
        self.metrics.count(Event::StoreFailed);
        if let Some(line) = self.state.failed(now) {
            line.write(&self.settings.name, &self.settings.backend.address, why);
        }
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.0.outstanding.set(self.0.outstanding.get() - 1);
    }
}

/// So many connections wait for the next requests of a thread.
const MOST_KEPT: usize = 64;
/// Servers close idle connections after 5 s or more (Apache, Node.js, uvicorn). One that closes earlier costs a request that may be
/// done twice nothing.
const KEPT_FOR: Nanos = Nanos::from_secs(4);
/// The bytes of an answer that the store may send ahead.
const WINDOW: u32 = 64 << 10;
