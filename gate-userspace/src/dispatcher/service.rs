//! One proxied service in one thread: what its clients and its store connections share.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::admission::delay::Delay;
use super::admission::policy::Policy;
use super::admission::queue::Queue;
use super::admission::waiting::Held;
use super::clients::client::{Client, Ended, Moving, Talk};
use super::clients::datagrams::Senders;
use super::clients::memory::Memory;
use super::clients::own::Own;
use super::clients::replies::Replies;
use super::clients::slots::{MostSlots, Slots};
use super::figures::lessons::Answers;
use super::figures::{Event, Figures, OwnStats, ServiceFigures};
use super::hot_cache::{self, HotCache};
use super::pipeline::After;
use super::settings::{Limits, Settings};
use super::stores::broken::Broken;
use super::stores::line::Lines;
use super::stores::pool::{Pool, Pools};
use super::tenants::Tenants;
use super::tenants::ledger::{Ledger, TenantId};
use super::tenants::usage::Usage;
use super::types::Types;
use super::wire::Wire;
use crate::clock;
use crate::policy::cost_model::{Measure, Window};
use crate::policy::{Tier, admission};
use crate::protocol::{Refusal, Step};

/// What a thread's services share, and which thread it is.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) ledger: Rc<RefCell<Ledger>>,
    pub(super) scratch: Rc<RefCell<Box<[u8]>>>,
    pub(super) number: usize,
    pub(super) figures: ServiceFigures,
    pub(super) policy: Policy,
    pub(super) delay: Delay,
    pub(super) hot: hot_cache::Shared,
}

/// What one thread needs to serve one service.
#[derive(Debug)]
pub(super) struct Service<W: Wire> {
    pub(super) settings: Settings,
    /// As of the last tick.
    pub(super) limits: Cell<Limits>,
    pub(super) types: RefCell<Arc<Types>>,
    pub(super) tenants: RefCell<Arc<Tenants>>,
    /// The machine's own addresses, as of the last tick.
    pub(super) own: RefCell<Arc<Own>>,
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
    pub(super) lines: Lines,
    /// What answers have taught about prices since the last tick.
    pub(super) taught: RefCell<Window>,
    /// What answers are measured by, as of the last tick, where what they have cost is settled.
    measure: Cell<Option<Measure>>,
    /// What happened in this thread.
    pub(super) figures: Arc<Figures>,
    /// What happened in all.
    pub(super) all_figures: ServiceFigures,
    /// What `stats gate` answers.
    pub(super) own_stats: RefCell<OwnStats>,
    /// Clients with something new to be written.
    pub(super) news: RefCell<Vec<Rc<Client<W>>>>,
    /// The store is in cluster mode, and counts as down: its answers would lead clients past gate.
    pub(super) in_cluster: Cell<bool>,
    /// The senders of datagrams.
    pub(super) senders: RefCell<Senders<W>>,
    /// What clients hold.
    pub(super) memory: Rc<Memory>,
    /// Everyone who is connected.
    pub(super) clients: RefCell<Vec<Weak<Client<W>>>>,
    /// Who takes how many connections.
    pub(super) slots: Slots,
    /// Whether this is the thread that does what one must do for all.
    pub(super) is_first: bool,
}

impl<W: Wire> Service<W> {
    pub(super) fn new(settings: Settings, shared: Shared) -> Rc<Self> {
        let Shared { ledger, scratch, number, figures: all_figures, policy, delay, hot } = shared;
        let figures = Arc::clone(&all_figures.threads[number]);
        let pools = Pools::new(settings.backend.max_pools, settings.connections, Arc::clone(&hot.scopes));
        let hot = HotCache::new(&settings, hot, number, Arc::clone(&figures));
        let (news, clients) = (RefCell::default(), RefCell::default());
        let senders = RefCell::new(Senders::new(settings.max_datagrams));
        let (limits, tenants) = (*settings.limits.borrow(), settings.tenants.borrow().clone());
        let types = RefCell::new(settings.types.borrow().clone());
        let own = RefCell::new(settings.own.borrow().clone());
        let queue = RefCell::new(Queue::new(settings.places(number), limits.queue, limits.queue_memory));
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
            lines: Lines::new(W::HAS_USERS),
            taught: RefCell::default(),
            measure: Cell::default(),
            figures,
            all_figures,
            own_stats: RefCell::default(),
            news,
            memory: Rc::default(),
            clients,
            slots: Slots::default(),
            senders,
            in_cluster: Cell::new(false),
            is_first: number == 0,
        })
    }

    /// Whom a source is charged to, and whether its refusals are only counted.
    pub(super) fn identify(&self, source: IpAddr) -> (TenantId, bool) {
        let mut ledger = self.ledger.borrow_mut();
        ledger.refresh();
        (ledger.tenant_of(source, self.settings.service), ledger.shadows(source))
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
    pub(super) fn requests(&self, client: &Rc<Client<W>>, talk: &mut Talk<W>, input: &[u8]) -> usize {
        let now = clock::monotonic();
        self.ledger.borrow_mut().refresh();
        if talk.replies.outstanding() == 0 {
            client.choose_lane(now);
        }
        let mut taken = 0;
        // The last one; of a request, the same bytes behind it are the same request.
        let mut step = Step::More { want: 0 };
        talk.want = 0;
        while !talk.ending && talk.moving == Moving::No {
            if !self.has_room(client, &talk.replies) {
                talk.stalled = taken < input.len();
                break;
            }
            let rest = &input[taken..];
            if !matches!(step, Step::Request { len, .. } if rest.starts_with(&input[taken - len..taken])) {
                step = W::decode(&mut talk.decoder, rest);
            }
            match &step {
                Step::More { want } => {
                    talk.want = *want;
                    break;
                }
                Step::Request { request, .. } if client.datagram().is_some() && W::is_streamed(request) => {
                    // The rest of it cannot come.
                    break;
                }
                Step::Request { len, request } => {
                    let bytes = W::bytes(&talk.decoder, request, &rest[..*len]);
                    match self.request(client, &mut talk.replies, request, bytes, now) {
                        After::Next => {}
                        After::Wait => {
                            if W::is_streamed(request) {
                                // This one is past its head.
                                talk.decoder = W::decoder(&self.settings);
                            }
                            talk.stalled = true;
                            break;
                        }
                        After::Body => talk.moving = Moving::Large,
                        After::Goodbye => talk.ending = true,
                        After::Move(to) => {
                            talk.moving = to;
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
                    let place = talk.replies.open();
                    self.fault(client, talk, place, fault, now);
                }
            }
        }
        client.note_open(talk.replies.outstanding());
        taken
    }

    /// A request has left the store: answered ([`Service::observe`]), or not at all.
    #[inline]
    pub(super) fn left_store(&self) {
        self.queue.borrow_mut().leave();
    }

    /// Observes how long the store took for requests that it has answered at `at`.
    pub(super) fn observe(&self, answered: Answered, at: Nanos) {
        let Answered { request, admitted, sent, count } = answered;
        let took = at.saturating_sub(sent);
        self.figures.answered(request.query_type, sent.saturating_sub(admitted), took, count);
        (0..count).for_each(|_| self.policy.completed(request, took, at));
        self.all_figures.responded(request.query_type, at.saturating_sub(admitted), count);
    }

    /// Learns how long the store took for answers that came together, and charges what that is beyond their price.
    pub(super) fn learn(&self, answers: &Answers, took: Nanos, now: Nanos) {
        let lessons = &self.figures.lessons;
        lessons.observe(answers, took, &mut self.taught.borrow_mut());
        if let (Some(measure), Some((tenant, paid))) = (self.measure.get(), answers.payer()) {
            let cost = measure.cost(&answers.together(), took);
            lessons.settled(self.ledger.borrow_mut().settle(tenant, cost, paid, now));
        }
    }

    pub(super) fn store_is_up(&self) {
        self.figures.count(Event::StoreConnected);
        self.figures.note_store_link(true);
        tracing::debug!(service = self.settings.name, "connected to the store");
    }

    pub(super) fn store_is_down(&self, why: &Broken, pause: Nanos) {
        self.figures.count(Event::StoreFailed);
        let store = self.settings.backend.address;
        tracing::warn!(service = self.settings.name, %store, %why, %pause, "lost a connection to the store");
    }

    /// The store no longer accepts the user of a pool: so its clients read, and are closed. False if they have not
    /// said who they are, since then it is not theirs to mend.
    pub(super) fn turn_out(&self, pool: &Rc<Pool<W>>, why: &[u8]) -> bool {
        let Some(login) = pool.identity().login else { return false };
        self.figures.count(Event::PoolRefused);
        let user = String::from_utf8_lossy(login.user()).into_owned();
        tracing::warn!(service = self.settings.name, user, "the store refuses a user that it knew");
        self.pools.remove(pool);
        pool.stop();
        for client in self.clients.borrow().iter().filter_map(Weak::upgrade) {
            if client.is_of(pool) {
                client.turn_out(why);
                self.has_news(&client);
            }
        }
        let now = clock::monotonic();
        pool.stores().iter().for_each(|store| store.give_up(self, why, now));
        self.deliver();
        true
    }

    /// Whether there are as many clients as there may be, whoever they are: this thread's share of them. Where rules
    /// are only tried, this holds too.
    pub(super) fn is_full(&self) -> bool {
        let limits = self.limits.get();
        self.figures.connected() >= (limits.clients + limits.unknown_clients) as u64
    }

    /// How many connections there may be for clients of a tenant: this thread's share of them.
    pub(super) fn most_slots(&self, usage: Option<&Usage>) -> MostSlots {
        let limits = self.limits.get();
        let may_have_all = usage.is_some_and(Usage::has_own_limit) || !self.tenants.borrow().are_several();
        let tenant = if may_have_all { limits.clients } else { limits.tenant_clients };
        MostSlots { unknown: limits.unknown_clients, known: limits.clients, tenant }
    }

    /// Counts a client that is one too many, and says what it is told.
    pub(super) fn too_many(&self, client: &Client<W>) -> Vec<u8> {
        self.figures.count(Event::TurnedAway);
        self.count_refusal(client.tenant.get(), Reason::Limit);
        let mut answer = Vec::new();
        W::refuse(Refusal::of(Reason::Limit), &mut answer);
        answer
    }

    /// A client has come.
    pub(super) fn welcome(&self, client: &Rc<Client<W>>) {
        self.figures.count(Event::Accepted);
        self.clients.borrow_mut().push(Rc::downgrade(client));
    }

    /// A client has gone.
    pub(super) fn farewell(&self, ended: Ended) {
        self.figures.count(match ended {
            Ended::Left => Event::Left,
            Ended::SlowReader => Event::SlowReader,
            Ended::SlowWriter => Event::SlowWriter,
            Ended::Cut => Event::Cut,
            Ended::Idle => Event::Idle,
        });
    }

    /// Closes the connections of clients that have nothing under way.
    pub(super) fn part_with_idle(&self) {
        let clients = self.clients.borrow();
        let clients = clients.iter().filter_map(Weak::upgrade);
        clients.filter(|client| client.is_idle()).for_each(|client| client.end(Ended::Left));
    }

    /// What has to be done now and then.
    pub(super) fn tidy(&self, now: Nanos) {
        let timeout = self.settings.store_timeout();
        self.pools.check(now, timeout, self.limits.get().slow_timeout);
        self.hot.tidy(now, timeout);
        self.expire(now);
        self.dispatch(now);
        self.deliver();
    }

    /// What has to be done at every tick.
    pub(super) fn tick(&self, now: Nanos) {
        for tier in Tier::ALL {
            let (waiting, since) = self.queue.borrow().waiting(tier);
            let first = now.saturating_sub(since.unwrap_or(now));
            self.figures.note_queue(tier, self.delay.borrow_mut().read(tier, waiting, first));
        }
        if self.is_first {
            self.policy.refresh(now);
        }
        self.figures.lessons.hand_over(&self.taught);
        self.measure.set(self.figures.lessons.measure());
        self.follow_limits();
        *self.types.borrow_mut() = self.settings.types.borrow().clone();
        self.follow_tenants();
        self.own.borrow_mut().clone_from(&self.settings.own.borrow());
    }

    /// Takes over what has changed about tenants. A client may be another's from now on, or nobody's.
    fn follow_tenants(&self) {
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
        self.deliver();
    }

    /// Takes over limits that have changed.
    fn follow_limits(&self) {
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
            client.inspect(|client| client.look_after(interval, &limits)).is_some()
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
