//! A proxied service in one thread, and its clients.
//!
//! Each refers to the other, so both types stand here. Their `impl`s are in the files of the steps.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use gate_common::units::Nanos;

use super::queue_item::QueueItem;
use super::redirected_request::RedirectedRequest;
use super::senders::Senders;
use super::streamed_request::StreamedRequest;
use crate::clock;
use crate::dispatcher::admission::Admission;
use crate::dispatcher::clients::SharedBounds;
use crate::dispatcher::clients::client::Client;
use crate::dispatcher::clients::memory_budget::{ClientMemory, MemoryLimits};
use crate::dispatcher::clients::proxy_header::PendingHeaders;
use crate::dispatcher::clients::refusal_pace::RefusalPace;
use crate::dispatcher::clients::slots::{DatagramSlots, Slot, Slots, TenantSlots};
use crate::dispatcher::hot_cache::HotCache;
use crate::dispatcher::in_force::Follower;
use crate::dispatcher::local_addrs::LocalAddrs;
use crate::dispatcher::metrics::verdicts::VerdictSampler;
use crate::dispatcher::metrics::{OwnStats, ServiceMetrics, WorkerMetrics};
use crate::dispatcher::query_types::QueryTypeTable;
use crate::dispatcher::queue::delay::Delay;
use crate::dispatcher::request::Charged;
use crate::dispatcher::settings::{Limits, Settings};
use crate::dispatcher::shared_service::SharedService;
use crate::dispatcher::size_question::{RefusedQuestions, SizeQuestion};
use crate::dispatcher::slot_map::SlotMap;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::store_silence::{SlowWork, ThreadWork};
use crate::dispatcher::stores::idle_connections::IdleConnections;
use crate::dispatcher::stores::pool::{Pool, PoolSize, Pools};
use crate::dispatcher::tenants::Tenants;
use crate::dispatcher::tenants::ledger::Ledger;
use crate::dispatcher::tls::turns::Turns;
use crate::dispatcher::wire::parts::PartBuffers;
use crate::dispatcher::wire::{SessionState, Wire};
use crate::protocol::Refusal;
use crate::protocol::resp::Command;

/// The state of a service that one thread alone has, and what the thread's services share.
#[derive(Debug)]
pub(crate) struct WorkerState {
    /// The thread's number.
    pub(crate) number: usize,
    /// Shared by the thread's services, as `scratch` and `turns`.
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    pub(crate) scratch: Rc<RefCell<Box<[u8]>>>,
    pub(crate) turns: Turns,
    pub(crate) delay: Delay,
    pub(crate) verdicts: VerdictSampler,
}

/// One service in one thread.
#[derive(Debug)]
pub(crate) struct Service<W: Wire> {
    pub(crate) settings: Settings,
    /// As of the last tick.
    pub(crate) limits: Cell<Limits>,
    pub(crate) types: RefCell<Arc<QueryTypeTable>>,
    pub(crate) tenants: RefCell<Arc<Tenants>>,
    /// The machine's own addresses, as of the last tick.
    pub(crate) local_addrs: RefCell<Arc<LocalAddrs>>,
    /// Prices, quotas, tenants; shared by the thread's services.
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    /// The buffer for one read from a socket; shared by the thread's services.
    pub(crate) scratch: Rc<RefCell<Box<[u8]>>>,
    /// The step that each request passes before it goes to the store.
    pub(crate) admission: Admission<QueueItem<W, Session<W>>>,
    /// The node of each slot of its cluster, as of the last time that a request's stores were chosen.
    pub(super) slot_map: RefCell<Arc<SlotMap>>,
    /// Requests that nodes of a cluster have sent to others.
    pub(super) redirected: RefCell<Vec<RedirectedRequest<W, Session<W>>>>,
    /// The requests to each store that a client's is being split into.
    pub(super) part_buffers: RefCell<PartBuffers>,
    /// The request that is sent in place of another.
    pub(super) freed: RefCell<Vec<u8>>,
    /// The questions for sizes that the store has refused lately.
    pub(super) refused_questions: RefusedQuestions,
    /// The bytes of requests that take as long as the splitting since the work for a request was counted last.
    pub(super) split_work: Cell<usize>,
    /// The cache of hot keys.
    pub(crate) hot: HotCache<W, Session<W>>,
    /// The shared connections.
    pub(crate) pools: Pools<Self>,
    /// The store connections for logins, streamed requests and dedicated clients, by store.
    lines: Box<[IdleConnections]>,
    /// This thread's requests that may occupy a store, by store.
    work: Box<[ThreadWork]>,
    /// This thread's metrics.
    pub(crate) metrics: Arc<WorkerMetrics>,
    /// All threads' metrics.
    pub(crate) service_metrics: ServiceMetrics,
    /// Sampled verdicts.
    pub(crate) verdicts: VerdictSampler,
    /// The reply to `stats gate`.
    pub(crate) own_stats: RefCell<OwnStats>,
    /// Clients with replies to be written.
    pub(crate) pending_writes: RefCell<Vec<Rc<Session<W>>>>,
    /// The store is in cluster mode, and counts as down: its answers would lead clients past gate.
    pub(crate) in_cluster: Cell<bool>,
    /// The senders of datagrams.
    pub(crate) senders: RefCell<Senders<Session<W>>>,
    /// The memory that clients hold.
    pub(crate) memory: Rc<ClientMemory>,
    /// How fast clients are read whose requests are refused.
    pub(crate) refusal_pace: RefCell<RefusalPace<Rc<Session<W>>>>,
    /// The connected clients.
    pub(crate) clients: RefCell<Vec<Weak<Session<W>>>>,
    /// True once connections are closed on which nothing is under way.
    pub(crate) closes_idle: Cell<bool>,
    /// True if a client has left whose requests may be in the queue.
    pub(crate) has_leavers: Cell<bool>,
    /// The connections of each tenant's clients.
    pub(crate) slots: Arc<Slots>,
    /// Connections whose proxy has not said yet whose they are.
    pub(crate) pending_headers: PendingHeaders,
    /// The turns of clients' TLS handshakes; shared by the thread's services.
    pub(crate) turns: Turns,
    /// The dedicated connections of each tenant's clients.
    pub(crate) dedicated_slots: Arc<Slots>,
    /// How far this thread has followed changes.
    pub(crate) follower: Follower,
    /// True in the thread that acts for all.
    pub(crate) is_first: bool,
}

/// A client, and the store connections that its requests take.
#[derive(Debug)]
pub(crate) struct Session<W: Wire> {
    pub(super) client: Client<W>,
    /// The shared store connections for its identity.
    pub(super) pool: RefCell<Rc<Pool<Service<W>>>>,
    /// The connection that its requests take. It stays the same while any is outstanding, so that the store receives them
    /// in their order.
    pub(super) connection_index: Cell<usize>,
    /// The epoch of the [`SlotMap`] by which it sent a request last.
    pub(super) slots_epoch: Cell<u64>,
    /// A request that may go to the store, whose body is still to be read.
    pub(super) streaming: RefCell<Option<Box<StreamedRequest<W>>>>,
    /// The charge of the request that it gets a dedicated connection for.
    pub(super) first_dedicated: RefCell<Option<Charged>>,
    /// The dedicated connections of its tenant's clients, once it has needed one.
    pub(super) dedicated_slots: RefCell<Option<TenantSlots>>,
    /// Its share of them.
    pub(super) dedicated_slot: RefCell<Option<Slot>>,
    /// The question for the size of what its next request reads.
    pub(super) size_question: Cell<SizeQuestion>,
    /// The end of its request's wait in the queue, on a dedicated connection.
    pub(super) granted: Cell<Option<Result<(), Refusal>>>,
}

impl<W: Wire> Service<W> {
    pub(crate) fn new(shared: SharedService, worker: WorkerState) -> Rc<Self> {
        let SharedService { settings, metrics: service_metrics, policy, hot, .. } = shared;
        let SharedBounds { slots, dedicated_slots, memory, datagrams } = shared.bounds;
        let WorkerState { number, ledger, scratch, turns, delay, verdicts } = worker;
        let metrics = Arc::clone(&service_metrics.threads[number]);
        let stores = settings.stores.len();
        let state = |node: NodeId| Arc::clone(&service_metrics.stores[node.index()]);
        let lines = |node| IdleConnections::new(node, W::Session::HAS_USERS, state(node));
        let lines = NodeId::all(stores).map(lines).collect();
        let work = NodeId::all(stores).map(|node| settings.pause(node).thread()).collect();
        let are_nodes = settings.cluster.is_some();
        let size = PoolSize { stores, connections: settings.connections, are_nodes };
        let pools = Pools::new(settings.backend.max_pools, size, Arc::clone(&hot.scopes));
        let hot = HotCache::new(&settings, hot, number, Arc::clone(&metrics));
        let pending_writes = RefCell::default();
        let clients = RefCell::default();
        let datagrams = DatagramSlots::new(datagrams, settings.backend.max_datagrams);
        let senders = RefCell::new(Senders::new(datagrams));
        let limits = *settings.limits.borrow();
        let tenants = settings.tenants.borrow().clone();
        let follower = Follower::new(Arc::clone(&settings.in_force), number);
        let types = RefCell::new(settings.types.borrow().clone());
        let local_addrs = RefCell::new(settings.local_addrs.borrow().clone());
        let shared_metrics = service_metrics.clone();
        let admission = Admission::new(
            &settings,
            number,
            Rc::clone(&ledger),
            (policy, delay),
            shared_metrics,
            (&shared.limits, shared.learned_reads),
        );
        let memory =
            ClientMemory::new(memory, settings.threads, MemoryLimits::of(&limits, tenants.are_several()));
        Rc::new(Self {
            settings,
            limits: Cell::new(limits),
            types,
            tenants: RefCell::new(tenants),
            local_addrs,
            ledger,
            scratch,
            admission,
            hot,
            pools,
            lines,
            work,
            slot_map: RefCell::new(Arc::new(SlotMap::unknown())),
            redirected: RefCell::default(),
            part_buffers: RefCell::new(PartBuffers::new(stores)),
            freed: RefCell::default(),
            refused_questions: RefusedQuestions::default(),
            split_work: Cell::new(0),
            metrics,
            service_metrics,
            verdicts,
            own_stats: RefCell::default(),
            pending_writes,
            memory: Rc::new(memory),
            refusal_pace: RefCell::default(),
            clients,
            closes_idle: Cell::new(false),
            has_leavers: Cell::new(false),
            slots,
            pending_headers: PendingHeaders::default(),
            turns,
            dedicated_slots,
            senders,
            in_cluster: Cell::new(false),
            follower,
            is_first: number == 0,
        })
    }

    /// Notes that a request is sent to a store at `now`, if it may occupy it.
    #[inline]
    pub(crate) fn begin_slow(&self, node: NodeId, request: &W::Request, now: Nanos) -> Option<SlowWork> {
        let is_of_several = self.settings.stores.len() > 1;
        W::occupies_store(request, is_of_several).map(|command| self.begin_work(node, command, now))
    }

    /// Notes that a request that may occupy a store is sent to it at `now`.
    #[inline]
    pub(crate) fn begin_work(&self, node: NodeId, command: Command, now: Nanos) -> SlowWork {
        let until = now.saturating_add(self.limits.get().slow_timeout);
        self.work[node.index()].begin(command, now, until)
    }

    /// The store connections of logins and dedicated clients, where that is of no matter: to the only store, or to a node of a
    /// cluster that is up.
    pub(crate) fn lines(&self) -> &IdleConnections {
        self.lines_to(self.login_node())
    }

    /// The store that is asked about logins.
    pub(crate) fn login_node(&self) -> NodeId {
        if self.settings.cluster.is_none() {
            return NodeId::FIRST;
        }
        let first = self.pools.first();
        let now = clock::monotonic();
        let mut nodes = NodeId::all(first.used());
        nodes.find(|node| !first.store(*node, 0).is_down(now)).unwrap_or(NodeId::FIRST)
    }

    /// Forgets the connections that are kept, to all stores.
    pub(crate) fn clear_lines(&self) {
        self.lines.iter().for_each(IdleConnections::clear);
    }

    /// The store connections of streamed requests to a store.
    pub(crate) fn lines_to(&self, node: NodeId) -> &IdleConnections {
        &self.lines[node.index()]
    }
}
