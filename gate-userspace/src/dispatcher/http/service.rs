//! A proxied HTTP service in one thread.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use hyper::header::HeaderName;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;
use tokio::sync::oneshot;

use super::call::{Call, QueuedCall};
use super::claims::Claims;
use super::connection::Connection;
use super::head::BUFFER;
use super::sender::LocalExecutor;
use super::store::Store;
use super::upstreams::Upstreams;
use super::websocket_state::WebSocketState;
use crate::cache::Cache;
use crate::config::{Http, StoreAddress};
use crate::dispatcher::admission::Admission;
use crate::dispatcher::admission::queueing::Dequeued;
use crate::dispatcher::clients::SharedBounds;
use crate::dispatcher::clients::memory_budget::{ClientMemory, MemoryLimits};
use crate::dispatcher::clients::proxy_header::PendingHeaders;
use crate::dispatcher::clients::refusal_pace::RefusalPace;
use crate::dispatcher::clients::slots::Slots;
use crate::dispatcher::in_force::Follower;
use crate::dispatcher::metrics::verdicts::VerdictSampler;
use crate::dispatcher::metrics::{ServiceMetrics, WorkerMetrics};
use crate::dispatcher::query_types::QueryTypeTable;
use crate::dispatcher::queue::delay::Delay;
use crate::dispatcher::settings::{Limits, Settings};
use crate::dispatcher::shared_service::SharedService;
use crate::dispatcher::tenants::Tenants;
use crate::dispatcher::tenants::ledger::Ledger;
use crate::dispatcher::tls::LOCALHOST;
use crate::dispatcher::tls::turns::Turns;
use crate::logging::AccessLog;
use crate::processing::Processing;
use gate_common::units::Nanos;

/// One HTTP service in one thread.
#[derive(Debug)]
pub(crate) struct HttpService {
    pub(crate) settings: Settings,
    /// As of the last tick.
    pub(super) limits: Cell<Limits>,
    pub(super) types: RefCell<Arc<QueryTypeTable>>,
    pub(super) tenants: RefCell<Arc<Tenants>>,
    pub(super) claims: Claims,
    /// Shared by the thread's services.
    pub(super) ledger: Rc<RefCell<Ledger>>,
    pub(super) admission: Admission<QueuedCall>,
    pub(super) store: Rc<Store>,
    /// The cache, which all threads share; `None` if there is none.
    pub(super) cache: Option<Arc<Cache>>,
    /// The log of its requests, which all threads share; `None` if there is none.
    pub(super) access_log: Option<Arc<AccessLog>>,
    /// The processing of originals; `None` if there is none.
    pub(super) processing: Option<Arc<Processing>>,
    /// This thread's connections to origins and to the processor.
    pub(super) upstreams: Upstreams,
    pub(super) metrics: Arc<WorkerMetrics>,
    /// All threads' metrics.
    pub(super) service_metrics: ServiceMetrics,
    pub(super) verdicts: VerdictSampler,
    /// The connections of each tenant's clients.
    pub(super) slots: Arc<Slots>,
    /// The store connections of each tenant's requests.
    pub(super) store_slots: Arc<Slots>,
    pub(super) memory: Rc<ClientMemory>,
    /// True unless idle connections have been looked at in this round for the memory that they hold.
    pub(super) may_close_idle: Cell<bool>,
    pub(super) refusal_pace: RefCell<RefusalPace<oneshot::Sender<()>>>,
    pub(super) pending_headers: PendingHeaders,
    /// The turns of handshakes in this thread.
    pub(super) turns: Turns,
    pub(super) connections: RefCell<Vec<Weak<Connection>>>,
    /// Requests that have been charged and not been answered.
    pub(super) calls: RefCell<Vec<Weak<Call>>>,
    /// The WebSockets of its clients.
    pub(super) websockets: RefCell<Vec<Weak<WebSocketState>>>,
    pub(super) http1: http1::Builder,
    pub(super) http2: http2::Builder<LocalExecutor>,
    /// How far this thread has followed changes.
    pub(super) follower: Follower,
    /// True in the thread that acts for all.
    pub(super) is_first: bool,
}

impl HttpService {
    /// The service in the thread with this number, whose ledger, turns, delay and samples these are.
    pub(crate) fn new(
        shared: SharedService,
        number: usize,
        ledger: &Rc<RefCell<Ledger>>,
        turns: &Turns,
        delay: Delay,
        verdicts: VerdictSampler,
    ) -> Rc<Self> {
        let SharedService {
            settings, metrics: service_metrics, policy, cache, access_log, processing, ..
        } = shared;
        let SharedBounds { slots, dedicated_slots, memory, .. } = shared.bounds;
        let metrics = Arc::clone(&service_metrics.threads[number]);
        let limits = *settings.limits.borrow();
        let tenants = settings.tenants.borrow().clone();
        let admission = Admission::new(
            &settings,
            number,
            Rc::clone(ledger),
            (policy, delay),
            service_metrics.clone(),
            (&shared.limits, shared.learned_reads),
        );
        let state = Arc::clone(&service_metrics.stores[0]);
        let memory =
            ClientMemory::new(memory, settings.threads, MemoryLimits::of(&limits, tenants.are_several()));
        let types = RefCell::new(settings.types.borrow().clone());
        let http = settings.backend.http.as_ref();
        let field = |name: Option<&String>| name.and_then(|name| HeaderName::try_from(name.as_str()).ok());
        Rc::new(Self {
            limits: Cell::new(limits),
            types,
            tenants: RefCell::new(tenants),
            claims: Claims::new(
                field(http.and_then(|http| http.tenant_header.as_ref())),
                field(http.and_then(|http| http.tier_header.as_ref())),
            ),
            ledger: Rc::clone(ledger),
            admission,
            store: Rc::new(Store::new(settings.clone(), Arc::clone(&metrics), state)),
            cache,
            access_log,
            processing,
            upstreams: Upstreams::default(),
            metrics,
            service_metrics,
            verdicts,
            slots,
            store_slots: dedicated_slots,
            memory: Rc::new(memory),
            may_close_idle: Cell::new(true),
            refusal_pace: RefCell::default(),
            pending_headers: PendingHeaders::default(),
            turns: turns.clone(),
            connections: RefCell::default(),
            calls: RefCell::default(),
            websockets: RefCell::default(),
            http1: http1_server(),
            http2: http2_server(http.is_some_and(|http| http.websocket)),
            follower: Follower::new(Arc::clone(&settings.in_force), number),
            is_first: number == 0,
            settings,
        })
    }

    /// The settings of HTTP.
    pub(super) fn http(&self) -> &Http {
        self.settings.backend.http.as_ref().expect("a service with this protocol has them")
    }

    /// The host of the store, as its address is configured.
    pub(super) fn store_host(&self) -> String {
        match &self.settings.backend.address {
            StoreAddress::Network(network) => network.to_string(),
            StoreAddress::Unix(_) => LOCALHOST.to_owned(),
        }
    }

    /// True if there are as many clients as there may be. This holds in shadow mode too.
    pub(super) fn has_all_clients(&self) -> bool {
        let limits = self.limits.get();
        let connected = self.service_metrics.clients() + self.pending_headers.count() as u64;
        connected >= (limits.max_clients + limits.max_unknown_clients) as u64
    }

    /// Lets requests out of the queue, as many as there are permits.
    pub(super) fn dispatch(&self, now: Nanos) {
        while let Some(Dequeued { request, bytes, result }) = self.admission.dequeue(now) {
            request.end_wait(result);
            self.admission.recycle(bytes);
        }
    }
}

/// A server for HTTP/1, with bounds on what one connection may have gate hold. Timeouts are of [`Connection`].
fn http1_server() -> http1::Builder {
    let mut server = http1::Builder::new();
    // A client may end its side behind its last request.
    server.timer(TokioTimer::new()).max_buf_size(BUFFER).header_read_timeout(None).half_close(true);
    server
}

/// A server for HTTP/2, with such bounds.
fn http2_server(websockets: bool) -> http2::Builder<LocalExecutor> {
    let mut server = http2::Builder::new(LocalExecutor);
    server
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        // One body that waits holds up no other, which may be another tenant's: each request's memory counts its window.
        .initial_connection_window_size(STREAMS * WINDOW)
        .max_send_buf_size(BUFFER)
        .max_header_list_size(BUFFER as u32)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(RESETS);
    if websockets {
        server.enable_connect_protocol();
    }
    server
}

/// Requests of one HTTP/2 connection at a time.
const STREAMS: u32 = 100;
/// The bytes of a body that one stream may send ahead.
const WINDOW: u32 = 64 << 10;
/// Streams that a client may reset before they are looked at: more end its connection.
const RESETS: usize = 20;
