//! One proxied service in one thread: what its clients and its store connections share.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::clients::client::{Client, CloseCause, ConnectionMode, Conversation};
use super::clients::datagrams::Senders;
use super::clients::local_addrs::LocalAddrs;
use super::clients::memory_budget::ClientMemory;
use super::clients::replies::Replies;
use super::clients::slots::{MostSlots, Slots};
use super::hot_cache::{self, HotCache};
use super::metrics::cost_samples::ReplyBatch;
use super::metrics::{Event, OwnStats, ServiceMetrics, WorkerMetrics};
use super::pipeline::NextStep;
use super::query_types::QueryTypeTable;
use super::queue::delay::Delay;
use super::queue::dispatch::Held;
use super::queue::policy::Policy;
use super::queue::queue::Queue;
use super::settings::{Limits, Settings};
use super::stores::dedicated::IdleConnections;
use super::stores::error::StoreError;
use super::stores::pool::{Pool, Pools};
use super::tenants::Tenants;
use super::tenants::ledger::{Ledger, TenantId};
use super::tenants::usage::Usage;
use super::wire::Wire;
use crate::clock;
use crate::policy::cost_model::{Measure, Window};
use crate::policy::{Tier, admission};
use crate::protocol::{Refusal, Step};

/// What a thread's services share, and which thread it is.
#[derive(Debug)]
pub(super) struct WorkerShared {
    pub(super) ledger: Rc<RefCell<Ledger>>,
    pub(super) scratch: Rc<RefCell<Box<[u8]>>>,
    pub(super) number: usize,
    pub(super) metrics: ServiceMetrics,
    pub(super) policy: Policy,
    pub(super) delay: Delay,
    pub(super) hot: hot_cache::SharedHotCache,
}

/// What one thread needs to serve one service.
#[derive(Debug)]
pub(super) struct Service<W: Wire> {
    pub(super) settings: Settings,
    /// As of the last tick.
    pub(super) limits: Cell<Limits>,
    pub(super) types: RefCell<Arc<QueryTypeTable>>,
    pub(super) tenants: RefCell<Arc<Tenants>>,
    /// The machine's own addresses, as of the last tick.
    pub(super) own: RefCell<Arc<LocalAddrs>>,
    /// Prices, quotas, tenants; shared by the thread's services.
    pub(super) ledger: Rc<RefCell<Ledger>>,
    /// Where whoever reads from a socket reads to; shared by the thread's services.
    pub(super) scratch: Rc<RefCell<Box<[u8]>>>,
    /// Who may join the queue.
    pub(super) policy: Policy,
    /// Reads that need not go to the store.
    pub(super) hot: HotCache<W>,
    /// Who is in it.
    pub(super) queue: RefCell<Queue<Held<W>>>,
    /// Who has been in it for too long.
    pub(super) delay: RefCell<Delay>,
    /// The shared connections.
    pub(super) pools: Pools<W>,
    /// Those on which it is asked who clients are.
    pub(super) lines: IdleConnections,
    /// What answers have taught about prices since the last tick.
    pub(super) cost_window: RefCell<Window>,
    /// What answers are measured by, as of the last tick, where what they have cost is settled.
    measure: Cell<Option<Measure>>,
    /// What happened in this thread.
    pub(super) metrics: Arc<WorkerMetrics>,
    /// What happened in all.
    pub(super) service_metrics: ServiceMetrics,
    /// What `stats gate` answers.
    pub(super) own_stats: RefCell<OwnStats>,
    /// Clients with something new to be written.
    pub(super) pending_writes: RefCell<Vec<Rc<Client<W>>>>,
    /// The store is in cluster mode, and counts as down: its answers would lead clients past gate.
    pub(super) in_cluster: Cell<bool>,
    /// The senders of datagrams.
    pub(super) senders: RefCell<Senders<W>>,
    /// What clients hold.
    pub(super) memory: Rc<ClientMemory>,
    /// Everyone who is connected.
    pub(super) clients: RefCell<Vec<Weak<Client<W>>>>,
    /// Who takes how many connections.
    pub(super) slots: Slots,
    /// Whether this is the thread that does what one must do for all.
    pub(super) is_first: bool,
}

impl<W: Wire> Service<W> {
    pub(super) fn new(settings: Settings, shared: WorkerShared) -> Rc<Self> {
        let WorkerShared { ledger, scratch, number, metrics: service_metrics, policy, delay, hot } = shared;
        let metrics = Arc::clone(&service_metrics.threads[number]);
        let pools = Pools::new(settings.backend.max_pools, settings.connections, Arc::clone(&hot.scopes));
        let hot = HotCache::new(&settings, hot, number, Arc::clone(&metrics));
        let (pending_writes, clients) = (RefCell::default(), RefCell::default());
        let senders = RefCell::new(Senders::new(settings.max_datagrams));
        let (limits, tenants) = (*settings.limits.borrow(), settings.tenants.borrow().clone());
        let types = RefCell::new(settings.types.borrow().clone());
        let own = RefCell::new(settings.own.borrow().clone());
        let queue = RefCell::new(Queue::new(settings.permits(number), limits.queue, limits.queue_memory));
        Rc::new(Self {
            settings,
            limits: Cell::new(limits),
            types,
            tenants: RefCell::new(tenants),
            own,
            ledger,
            scratch,
            policy,
            hot,
            queue,
            delay: RefCell::new(delay),
            pools,
            lines: IdleConnections::new(W::HAS_USERS),
            cost_window: RefCell::default(),
            measure: Cell::default(),
            metrics,
            service_metrics,
            own_stats: RefCell::default(),
            pending_writes,
            memory: Rc::default(),
            clients,
            slots: Slots::default(),
            senders,
            in_cluster: Cell::new(false),
            is_first: number == 0,
        })
    }

    /// Whom a source is charged to, and whether its refusals are only counted.
    pub(super) fn tenant_of_client(&self, source: IpAddr) -> (TenantId, bool) {
        let mut ledger = self.ledger.borrow_mut();
        ledger.refresh();
        (ledger.tenant_of(source, self.settings.service), ledger.is_shadowed(source))
    }

    /// Whether a client is listened to: it may have more replies outstanding, and its order lets it go on.
    #[inline]
    pub(super) fn has_room(&self, client: &Client<W>, replies: &Replies) -> bool {
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
    }

    /// Takes all requests out of `input` that are there and have room; returns how many bytes that took.
    pub(super) fn requests(
        &self,
        client: &Rc<Client<W>>,
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
                                conversation.decoder = W::decoder(&self.settings);
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

    /// A request has left the store: answered ([`Service::observe`]), or not at all.
    #[inline]
    pub(super) fn release_permit(&self) {
        self.queue.borrow_mut().leave();
    }

    /// Observes how long the store took for requests that it has answered at `at`.
    pub(super) fn observe(&self, answered: Answered, at: Nanos) {
        let Answered { request, admitted, sent, count } = answered;
        let took = at.saturating_sub(sent);
        self.metrics.answered(request.query_type, sent.saturating_sub(admitted), took, count);
        (0..count).for_each(|_| self.policy.completed(request, took, at));
        self.service_metrics.responded(request.query_type, at.saturating_sub(admitted), count);
    }

    /// Learns how long the store took for answers that came together, and charges what that is beyond their price.
    pub(super) fn record_costs(&self, answers: &ReplyBatch, took: Nanos, now: Nanos) {
        let cost_samples = &self.metrics.cost_samples;
        cost_samples.observe(answers, took, &mut self.cost_window.borrow_mut());
        if let (Some(measure), Some((tenant, paid))) = (self.measure.get(), answers.payer()) {
            let cost = measure.cost(&answers.batch(), took);
            cost_samples.settled(self.ledger.borrow_mut().settle(tenant, cost, paid, now));
        }
    }

    pub(super) fn on_store_up(&self) {
        self.metrics.count(Event::StoreConnected);
        self.metrics.set_store_connected(true);
        tracing::debug!(service = self.settings.name, "connected to the store");
    }

    pub(super) fn on_store_down(&self, why: &StoreError, pause: Nanos) {
        self.metrics.count(Event::StoreFailed);
        let store = self.settings.backend.address;
        tracing::warn!(service = self.settings.name, %store, %why, %pause, "lost a connection to the store");
    }

    /// The store no longer accepts the user of a pool: so its clients read, and are closed. False if they have not
    /// said who they are, since then it is not theirs to mend.
    pub(super) fn close_with(&self, pool: &Rc<Pool<W>>, why: &[u8]) -> bool {
        let Some(login) = pool.identity().login else { return false };
        self.metrics.count(Event::PoolRefused);
        let user = String::from_utf8_lossy(login.user()).into_owned();
        tracing::warn!(service = self.settings.name, user, "the store no longer accepts a user");
        self.pools.remove(pool);
        pool.stop();
        for client in self.clients.borrow().iter().filter_map(Weak::upgrade) {
            if client.is_of(pool) {
                client.close_with(why);
                self.mark_pending_write(&client);
            }
        }
        let now = clock::monotonic();
        pool.stores().iter().for_each(|store| store.disconnect(self, why, now));
        self.flush_pending();
        true
    }

    /// Whether there are as many clients as there may be, whoever they are: this thread's share of them. Where rules
    /// are only tried, this holds too.
    pub(super) fn is_full(&self) -> bool {
        let limits = self.limits.get();
        self.metrics.connected() >= (limits.clients + limits.unknown_clients) as u64
    }

    /// How many connections there may be for clients of a tenant: this thread's share of them.
    pub(super) fn most_slots(&self, usage: Option<&Usage>) -> MostSlots {
        let limits = self.limits.get();
        let may_have_all = usage.is_some_and(Usage::has_own_limit) || !self.tenants.borrow().are_several();
        let tenant = if may_have_all { limits.clients } else { limits.tenant_clients };
        MostSlots { unknown: limits.unknown_clients, known: limits.clients, tenant }
    }

    /// Counts a client that is one too many, and says what it is told.
    pub(super) fn refuse_connection(&self, client: &Client<W>) -> Vec<u8> {
        self.metrics.count(Event::TurnedAway);
        self.count_refusal(client.tenant.get(), Reason::Limit);
        let mut answer = Vec::new();
        W::refuse(Refusal::of(Reason::Limit), &mut answer);
        answer
    }

    /// A client has come.
    pub(super) fn register(&self, client: &Rc<Client<W>>) {
        self.metrics.count(Event::Accepted);
        self.clients.borrow_mut().push(Rc::downgrade(client));
    }

    /// A client has gone.
    pub(super) fn unregister(&self, ended: CloseCause) {
        self.metrics.count(match ended {
            CloseCause::ClientLeft => Event::Left,
            CloseCause::SlowReader => Event::SlowReader,
            CloseCause::SlowWriter => Event::SlowWriter,
            CloseCause::StoreFailed => Event::Cut,
            CloseCause::Idle => Event::Idle,
        });
    }

    /// Closes the connections of clients that have nothing under way.
    pub(super) fn close_idle_clients(&self) {
        let clients = self.clients.borrow();
        let clients = clients.iter().filter_map(Weak::upgrade);
        clients.filter(|client| client.is_idle()).for_each(|client| client.end(CloseCause::ClientLeft));
    }

    /// What has to be done now and then.
    pub(super) fn housekeeping(&self, now: Nanos) {
        let timeout = self.settings.store_timeout();
        self.pools.check(now, timeout, self.limits.get().slow_timeout);
        self.hot.housekeeping(now, timeout);
        self.expire(now);
        self.dispatch(now);
        self.flush_pending();
    }

    /// What has to be done at every tick.
    pub(super) fn tick(&self, now: Nanos) {
        for tier in Tier::ALL {
            let (waiting, since) = self.queue.borrow().waiting(tier);
            let first = now.saturating_sub(since.unwrap_or(now));
            self.metrics.set_queue(tier, self.delay.borrow_mut().read(tier, waiting, first));
        }
        if self.is_first {
            self.policy.refresh(now);
        }
        self.metrics.cost_samples.submit(&self.cost_window);
        self.measure.set(self.metrics.cost_samples.measure());
        self.refresh_limits();
        *self.types.borrow_mut() = self.settings.types.borrow().clone();
        self.refresh_tenants();
        self.own.borrow_mut().clone_from(&self.settings.own.borrow());
    }

    /// Takes over what has changed about tenants. A client may be another's from now on, or nobody's.
    fn refresh_tenants(&self) {
        let tenants = self.settings.tenants.borrow().clone();
        if Arc::ptr_eq(&tenants, &self.tenants.borrow()) {
            return;
        }
        *self.tenants.borrow_mut() = tenants;
        for client in
            self.clients.borrow().iter().filter_map(Weak::upgrade).filter(|client| !client.is_gone())
        {
            client.identify_again(self);
        }
        self.flush_pending();
    }

    /// Takes over limits that have changed.
    fn refresh_limits(&self) {
        let limits = *self.settings.limits.borrow();
        let before = self.limits.replace(limits);
        self.queue.borrow_mut().set_limits(limits.queue, limits.queue_memory);
        if limits.codel != before.codel {
            match Delay::new(limits.codel) {
                Ok(delay) => *self.delay.borrow_mut() = delay,
                Err(error) => tracing::error!(%error, "the configuration should have refused it"),
            }
        }
    }

    /// Looks after clients that nothing has happened to for `interval`: gives back memory, and ends those that
    /// are stuck.
    pub(super) fn release(&self, interval: Duration) {
        let limits = self.limits.get();
        self.clients.borrow_mut().retain(|client| {
            let client = client.upgrade();
            client.inspect(|client| client.check_timeout(interval, &limits)).is_some()
        });
        self.senders.borrow_mut().release();
    }
}

/// Requests alike that were let in together, sent together, and answered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) request: admission::Request,
    pub(super) admitted: Nanos,
    pub(super) sent: Nanos,
    /// How many they are.
    pub(super) count: u32,
}

impl Answered {
    /// Puts them with those before them, if they are like them; else in their place, and gives those.
    #[inline]
    pub(super) fn follow(self, before: &mut Option<Self>) -> Option<Self> {
        match before {
            Some(before) if Self { count: before.count, ..self } == *before => {
                before.count += self.count;
                None
            }
            before => before.replace(self),
        }
    }
}

/// A client with so many bytes of replies waiting is not listened to.
const PAUSE_OUTPUT: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::admission::{QueryType, Request};

    #[test]
    fn only_what_is_alike_is_observed_together_and_nothing_is_lost() {
        let one = |tier, query_type, admitted, sent| Answered {
            request: Request { tier, query_type: QueryType(query_type) },
            admitted: Nanos(admitted),
            sent: Nanos(sent),
            count: 1,
        };
        let first = one(Tier::Standard, 0, 1, 2);
        let others = [
            one(Tier::Batch, 0, 1, 2),
            one(Tier::Standard, 1, 1, 2),
            one(Tier::Standard, 0, 0, 2),
            one(Tier::Standard, 0, 1, 3),
        ];
        for other in others {
            let mut last = None;
            let mut observed: Vec<_> =
                [first, first, other, first].into_iter().filter_map(|next| next.follow(&mut last)).collect();
            observed.extend(last);
            assert_eq!(observed, [Answered { count: 2, ..first }, other, first]);
        }
    }
}
