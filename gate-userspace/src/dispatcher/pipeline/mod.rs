//! The pipeline: every step that a request passes, from its bytes to its reply.
//!
//! [`Service`] binds the rooms of the dispatcher together for one proxied service in one thread; this folder holds its
//! only `impl`s.
//!
//! 1. [`client_task`] reads from a client and decodes; [`datagrams`] does so for datagrams.
//! 2. [`request`]: each step of a decoded request. [`login`]: a request that may change the user.
//! 3. [`admission`]: charge, admission policy, permit and queue, for requests of every kind. [`dispatch`]: the requests
//!    that leave the queue for the store.
//! 4. [`complete`]: the ends of flights of hot keys. [`respond`]: gate's own replies, and writing to clients.
//!
//! [`dedicated`], [`dedicated_requests`] and [`streaming`] take the requests that need a store connection for themselves. [`store_access`] and
//! [`housekeeping`] are periodic work.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use gate_common::abi::Reason;

use self::admission::Admission;
use self::datagrams::Senders;
use self::dispatch::QueueItem;
use self::request::NextStep;
use self::session::Session;
use crate::clock;
use crate::dispatcher::clients::client::{CloseCause, ConnectionMode, Conversation};
use crate::dispatcher::clients::memory_budget::ClientMemory;
use crate::dispatcher::clients::proxy_header::PendingHeaders;
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::clients::slots::{MostSlots, Slots};
use crate::dispatcher::hot_cache::{self, HotCache};
use crate::dispatcher::local_addrs::LocalAddrs;
use crate::dispatcher::metrics::{Event, OwnStats, ServiceMetrics, WorkerMetrics};
use crate::dispatcher::query_types::QueryTypeTable;
use crate::dispatcher::queue::concurrency::SharedLimits;
use crate::dispatcher::queue::delay::Delay;
use crate::dispatcher::queue::policy::Policy;
use crate::dispatcher::settings::{Limits, Settings};
use crate::dispatcher::stores::dedicated::IdleConnections;
use crate::dispatcher::stores::pool::{Pool, Pools};
use crate::dispatcher::tenants::Tenants;
use crate::dispatcher::tenants::ledger::{Ledger, TenantId};
use crate::dispatcher::tenants::usage::Usage;
use crate::dispatcher::wire::{SessionState, Wire};
use crate::protocol::{Refusal, Step};

pub(super) mod admission;
mod client_task;
mod complete;
pub(super) mod datagrams;
mod dedicated;
mod dedicated_input;
mod dedicated_requests;
pub(super) mod dispatch;
mod housekeeping;
mod login;
pub(super) mod request;
mod respond;
pub(super) mod session;
pub(super) mod store_access;
pub(super) mod streaming;

/// The state that a thread's services share, and the thread's number.
#[derive(Debug)]
pub(crate) struct WorkerShared {
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    pub(crate) scratch: Rc<RefCell<Box<[u8]>>>,
    pub(crate) number: usize,
    pub(crate) metrics: ServiceMetrics,
    pub(crate) policy: Policy,
    pub(crate) delay: Delay,
    pub(crate) hot: hot_cache::SharedHotCache,
    pub(crate) limits: SharedLimits,
    pub(crate) slots: Arc<Slots>,
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
    pub(crate) own: RefCell<Arc<LocalAddrs>>,
    /// Prices, quotas, tenants; shared by the thread's services.
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    /// The buffer for one read from a socket; shared by the thread's services.
    pub(crate) scratch: Rc<RefCell<Box<[u8]>>>,
    /// The step that each request passes before it goes to the store.
    pub(crate) admission: Admission<QueueItem<W>>,
    /// The cache of hot keys.
    pub(crate) hot: HotCache<W, Session<W>>,
    /// The shared connections.
    pub(crate) pools: Pools<Self>,
    /// The store connections for logins, streamed requests and dedicated clients.
    pub(crate) lines: IdleConnections,
    /// This thread's metrics.
    pub(crate) metrics: Arc<WorkerMetrics>,
    /// All threads' metrics.
    pub(crate) service_metrics: ServiceMetrics,
    /// The reply to `stats gate`.
    pub(crate) own_stats: RefCell<OwnStats>,
    /// Clients with replies to be written.
    pub(crate) pending_writes: RefCell<Vec<Rc<Session<W>>>>,
    /// The store is in cluster mode, and counts as down: its answers would lead clients past gate.
    pub(crate) in_cluster: Cell<bool>,
    /// The senders of datagrams.
    pub(crate) senders: RefCell<Senders<W>>,
    /// The memory that clients hold.
    pub(crate) memory: Rc<ClientMemory>,
    /// The connected clients.
    pub(crate) clients: RefCell<Vec<Weak<Session<W>>>>,
    /// The connections of each tenant's clients.
    pub(crate) slots: Arc<Slots>,
    /// Connections whose proxy has not said yet whose they are.
    pub(crate) pending_headers: PendingHeaders,
    /// The dedicated connections of each tenant's clients.
    pub(crate) dedicated_slots: Slots,
    /// True in the thread that acts for all.
    pub(crate) is_first: bool,
}

impl<W: Wire> Service<W> {
    pub(crate) fn new(settings: Settings, shared: WorkerShared) -> Rc<Self> {
        let WorkerShared {
            ledger,
            scratch,
            number,
            metrics: service_metrics,
            policy,
            delay,
            hot,
            limits: counted,
            slots,
        } = shared;
        let metrics = Arc::clone(&service_metrics.threads[number]);
        let pools = Pools::new(settings.backend.max_pools, settings.connections, Arc::clone(&hot.scopes));
        let hot = HotCache::new(&settings, hot, number, Arc::clone(&metrics));
        let (pending_writes, clients) = (RefCell::default(), RefCell::default());
        let senders = RefCell::new(Senders::new(settings.max_datagrams));
        let (limits, tenants) = (*settings.limits.borrow(), settings.tenants.borrow().clone());
        let types = RefCell::new(settings.types.borrow().clone());
        let own = RefCell::new(settings.own.borrow().clone());
        let (policy, shared_metrics) = ((policy, delay), service_metrics.clone());
        let admission =
            Admission::new(&settings, number, Rc::clone(&ledger), policy, shared_metrics, &counted);
        Rc::new(Self {
            settings,
            limits: Cell::new(limits),
            types,
            tenants: RefCell::new(tenants),
            own,
            ledger,
            scratch,
            admission,
            hot,
            pools,
            lines: IdleConnections::new(W::Session::HAS_USERS),
            metrics,
            service_metrics,
            own_stats: RefCell::default(),
            pending_writes,
            memory: Rc::default(),
            clients,
            slots,
            pending_headers: PendingHeaders::default(),
            dedicated_slots: Slots::default(),
            senders,
            in_cluster: Cell::new(false),
            is_first: number == 0,
        })
    }

    /// The tenant of a source, and whether its refusals are only counted.
    pub(crate) fn tenant_of_client(&self, source: IpAddr) -> (TenantId, bool) {
        let mut ledger = self.ledger.borrow_mut();
        ledger.refresh();
        (ledger.tenant_of(source, self.settings.service), ledger.is_shadowed(source))
    }

    /// True if a client is read: it may have more replies outstanding, and no order of keys holds it back.
    #[inline]
    pub(crate) fn has_room(&self, client: &Session<W>, replies: &Replies) -> bool {
        let limits = self.limits.get();
        // What waits for the rest of a datagram's answer leaves no earlier for being waited for.
        let pause = match client.datagram() {
            Some(_) => usize::MAX,
            None if self.memory.is_tight(limits.memory) => 1,
            None => PAUSE_OUTPUT,
        };
        replies.outstanding() < limits.depth
            && replies.waiting() < pause.min(limits.output)
            && !client.order.waits()
            && !(client.awaits_lane.get() && replies.outstanding() > 0)
    }

    /// Takes all requests out of `input` that are there and have room; returns how many bytes that took.
    pub(crate) fn requests(
        &self,
        client: &Rc<Session<W>>,
        conversation: &mut Conversation<W>,
        input: &[u8],
    ) -> usize {
        let now = clock::monotonic();
        self.ledger.borrow_mut().refresh();
        if conversation.replies.outstanding() == 0 {
            client.choose_connection(now);
        }
        let mut taken = 0;
        // The last one; of a request, the same bytes behind it are the same request.
        let mut step = Step::More { want: 0 };
        conversation.want = 0;
        while !conversation.closing && conversation.next_mode == ConnectionMode::Shared {
            if !self.has_room(client, &conversation.replies) {
                conversation.decode_paused = taken < input.len();
                break;
            }
            let rest = &input[taken..];
            if !matches!(step, Step::Request { len, .. } if rest.starts_with(&input[taken - len..taken])) {
                step = W::decode(&mut conversation.decoder, rest);
            }
            match &step {
                Step::More { want } => {
                    conversation.want = *want;
                    break;
                }
                Step::Request { request, .. } if client.datagram().is_some() && W::is_streamed(request) => {
                    // The rest of it cannot come.
                    break;
                }
                Step::Request { len, request } => {
                    let bytes = W::bytes(&conversation.decoder, request, &rest[..*len]);
                    match self.request(client, &mut conversation.replies, request, bytes, now) {
                        NextStep::Continue => {}
                        NextStep::Wait => {
                            if W::is_streamed(request) {
                                // This one is past its head.
                                conversation.decoder = W::decoder(self.settings.max_request());
                            }
                            conversation.decode_paused = true;
                            break;
                        }
                        NextStep::StreamBody => conversation.next_mode = ConnectionMode::Streaming,
                        NextStep::Close => conversation.closing = true,
                        NextStep::Switch(to) => {
                            conversation.next_mode = to;
                            break;
                        }
                    }
                    taken += len;
                    if W::is_streamed(request) {
                        // Its body may look like another.
                        step = Step::More { want: 0 };
                    }
                }
                // Bodies are of requests that were refused.
                Step::Skip { len } | Step::Body { len, .. } => taken += len,
                Step::Fault { len, fault } => {
                    taken += len;
                    let seq = conversation.replies.open();
                    self.fault(client, conversation, seq, fault, now);
                }
            }
        }
        client.set_outstanding(conversation.replies.outstanding());
        taken
    }

    /// The store no longer accepts the user of a pool: so its clients read, and are closed. False if they have not
    /// said who they are, since then it is not theirs to mend.
    pub(crate) fn close_pool_clients(&self, pool: &Rc<Pool<Self>>, why: &[u8]) -> bool {
        let Some(login) = pool.identity().login else { return false };
        self.metrics.count(Event::PoolRefused);
        let user = String::from_utf8_lossy(login.user()).into_owned();
        tracing::warn!(service = self.settings.name, user, "the store no longer accepts a user");
        self.pools.remove(pool);
        pool.stop();
        for client in self.clients.borrow().iter().filter_map(Weak::upgrade) {
            if client.uses_pool(pool) {
                client.close_with(why);
                self.mark_pending_write(&client);
            }
        }
        let now = clock::monotonic();
        pool.stores().iter().for_each(|store| store.disconnect(self, why, now));
        self.flush_pending();
        true
    }

    /// True if there are as many clients as there may be. This holds in shadow mode too.
    pub(crate) fn is_full(&self) -> bool {
        let limits = self.limits.get();
        let connected: u64 = self.service_metrics.threads.iter().map(|thread| thread.connected()).sum();
        let pending = self.pending_headers.count() as u64;
        connected + pending >= (limits.clients + limits.unknown_clients) as u64
    }

    /// The number of connections that there may be for clients of a tenant.
    pub(crate) fn most_slots(&self, usage: Option<&Usage>) -> MostSlots {
        let limits = self.limits.get();
        let may_have_all = usage.is_some_and(Usage::has_own_limit) || !self.tenants.borrow().are_several();
        let tenant = if may_have_all { limits.clients } else { limits.tenant_clients };
        MostSlots { unknown: limits.unknown_clients, known: limits.clients, tenant }
    }

    /// Counts a client that is one too many. Returns the reply to it.
    pub(crate) fn refuse_connection(&self, client: &Session<W>) -> Vec<u8> {
        self.metrics.count(Event::TurnedAway);
        self.admission.count_refusal(client.tenant.get(), Reason::Limit);
        let mut answer = Vec::new();
        W::refuse(Refusal::of(Reason::Limit), &mut answer);
        answer
    }

    /// Adds a client.
    pub(crate) fn register(&self, client: &Rc<Session<W>>) {
        self.metrics.count(Event::Accepted);
        self.clients.borrow_mut().push(Rc::downgrade(client));
    }

    /// Removes a client.
    pub(crate) fn unregister(&self, ended: CloseCause) {
        self.metrics.count(match ended {
            CloseCause::ClientLeft => Event::Left,
            CloseCause::SlowReader => Event::SlowReader,
            CloseCause::SlowWriter => Event::SlowWriter,
            CloseCause::StoreFailed => Event::Cut,
            CloseCause::Idle => Event::Idle,
        });
    }

    /// Closes the connections of clients that have nothing under way.
    pub(crate) fn close_idle_clients(&self) {
        let clients = self.clients.borrow();
        let clients = clients.iter().filter_map(Weak::upgrade);
        clients.filter(|client| client.is_idle()).for_each(|client| client.end(CloseCause::ClientLeft));
    }
}

/// A client with so many bytes of replies waiting is not read.
const PAUSE_OUTPUT: usize = 256 << 10;
