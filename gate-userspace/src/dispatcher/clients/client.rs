//! One client: its socket, what it has sent and not yet been understood, and its replies.
//!
//! A client's task reads and decodes. Replies are written by whoever has them: the client's own task for
//! what the gate answers by itself, the store connection's for what the store answers. The task is woken
//! only when its socket is full or when it has stopped reading.
//!
//! The sender of a datagram is a client without a task, for as long as its answer takes ([`super::datagrams`]).

use std::cell::{Cell, Ref, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use tokio::net::tcp::OwnedWriteHalf;

use super::datagrams::Sender;
use super::large::Large;
use super::memory::Holding;
use super::refusals::Unwritten;
use super::replies::Replies;
use super::slots::Slot;
use crate::dispatcher::hot_cache::order::Order;
use crate::dispatcher::identity::{Identity, Login};
use crate::dispatcher::service::Service;
use crate::dispatcher::settings::Limits;
use crate::dispatcher::stores::pool::Pool;
use crate::dispatcher::stores::store::Store;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::tenants::parts::Parts;
use crate::dispatcher::tenants::usage::Share;
use crate::dispatcher::wire::Wire;
use crate::dispatcher::wire::buffer::Buffer;
use crate::policy::Tier;
use crate::protocol::Refusal;
use crate::protocol::deny::Deny;

/// A connected client.
#[derive(Debug)]
pub(in crate::dispatcher) struct Client<W: Wire> {
    /// Where its replies go.
    pub(in crate::dispatcher) outlet: Outlet,
    /// Who is charged for what it asks.
    pub(in crate::dispatcher) tenant: Cell<TenantId>,
    /// Whose source it has connected from; nobody for the sender of a datagram, which may be forged.
    connected_as: Cell<TenantId>,
    /// The user as whom it has logged in last.
    pub(in crate::dispatcher) user: RefCell<Option<Rc<Login>>>,
    /// Whether refusals are only counted.
    pub(in crate::dispatcher) shadow: bool,
    /// Where it comes from.
    pub(in crate::dispatcher) source: IpAddr,
    /// Who it is to the store.
    pub(in crate::dispatcher) who: RefCell<Identity>,
    /// What is denied to its tenant.
    deny: RefCell<Option<Arc<Deny>>>,
    /// Who else may be charged for what it asks, by key: the parts of its tenant.
    parts: RefCell<Option<Arc<Parts>>>,
    /// What it takes of what its tenant may have open; none for datagrams.
    pub(in crate::dispatcher) share: RefCell<Option<Share>>,
    /// What it takes of the connections that there may be; none for datagrams.
    pub(in crate::dispatcher) slot: RefCell<Option<Slot>>,
    /// The shared store connections that its requests may take.
    pool: RefCell<Rc<Pool<W>>>,
    /// Which of these they take, the same while any is on its way, so that the store sees them in the order in which
    /// they were sent.
    lane: Cell<usize>,
    /// What it said and what it was told.
    pub(in crate::dispatcher) talk: RefCell<Talk<W>>,
    /// Whether it is on the list of clients to be written to.
    pub(in crate::dispatcher) has_news: Cell<bool>,
    pub(in crate::dispatcher) dead: Cell<Option<Ended>>,
    /// What it has outstanding, by key.
    pub(in crate::dispatcher) order: Order,
    /// Its requests in the queue, and the lowest of their tiers.
    pub(in crate::dispatcher) queued: Cell<(usize, Tier)>,
    /// What it gets a dedicated connection for waits for the store's replicas.
    pub(in crate::dispatcher) awaits_replicas: Cell<bool>,
    /// Its `MULTI` was refused so: what follows up to `EXEC` or `DISCARD` is refused with it.
    pub(in crate::dispatcher) refused_multi: Cell<Option<Refusal>>,
    /// Its refusals that are ready to be written.
    pub(in crate::dispatcher) unwritten: Unwritten,
    /// It sends nothing more, and has most likely left.
    pub(in crate::dispatcher) left: Cell<bool>,
    /// Whether bytes have come or gone lately, and for how long they have not.
    pub(in crate::dispatcher) moved: Cell<bool>,
    pub(in crate::dispatcher) stuck: Cell<Duration>,
    /// For how long the request that its input begins with has been unfinished; `None` before the first look at it.
    pub(in crate::dispatcher) unfinished: Cell<Option<Duration>>,
    /// For how long it has wanted nothing, or nobody has been charged for it.
    quiet: Cell<Duration>,
    /// On a dedicated connection: an answer is due, or what the store says by itself.
    pub(in crate::dispatcher) awaits_store: Cell<bool>,
    pub(in crate::dispatcher) waker: RefCell<Option<Waker>>,
    /// What it holds of what all may, and what of that is neither input nor replies.
    pub(in crate::dispatcher) holding: Holding,
    pub(in crate::dispatcher) beside: Cell<usize>,
    /// A request that may go to the store; its body is to be passed on.
    pub(in crate::dispatcher) large: RefCell<Option<Box<Large<W>>>>,
}

/// Where a client's replies go.
#[derive(Debug)]
pub(in crate::dispatcher) enum Outlet {
    /// To a connection, as soon as they are ready.
    Stream(OwnedWriteHalf),
    /// To the sender of a datagram, all together.
    Datagram(Sender),
}

/// What a client said and what it was told.
#[derive(Debug)]
pub(in crate::dispatcher) struct Talk<W: Wire> {
    /// Where the protocol stands.
    pub(in crate::dispatcher) decoder: W::Decoder,
    /// What was read and not yet taken; mostly nothing.
    pub(in crate::dispatcher) input: Buffer,
    /// How much input it takes to go on.
    pub(in crate::dispatcher) want: usize,
    /// Decoding has stopped for want of room or because of its order, not for want of input.
    pub(in crate::dispatcher) stalled: bool,
    /// Its task waits for room.
    pub(in crate::dispatcher) parked: bool,
    /// Nothing more is read from it: it has said goodbye, or what it sent makes no sense.
    pub(in crate::dispatcher) ending: bool,
    /// Where what it asks next needs it to be, once it has all its replies.
    pub(in crate::dispatcher) moving: Moving,
    /// Its replies, in order.
    pub(in crate::dispatcher) replies: Replies,
}

/// Where a client goes before its next request is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatcher) enum Moving {
    /// It stays.
    No,
    /// To the store, to become someone else.
    Change,
    /// To a connection of its own.
    Own,
    /// To the store with the body of a request that it is let out of the queue with; nowhere, if that is refused.
    Large,
}

/// Why a client's connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatcher) enum Ended {
    /// It left, or all was said.
    Left,
    /// It did not read its replies.
    SlowReader,
    /// It did not go on with its request.
    SlowWriter,
    /// The store broke off in the middle of a reply to it.
    Cut,
    /// It wanted nothing for too long, or did not say in time who it is.
    Idle,
}

impl<W: Wire> Client<W> {
    pub(in crate::dispatcher) fn new(outlet: Outlet, source: IpAddr, service: &Service<W>) -> Self {
        let (tenant, shadow) = service.identify(source);
        let connected_as = match outlet {
            Outlet::Stream(_) => service.ledger.borrow().tenant_named_by(source),
            Outlet::Datagram(_) => TenantId::NOBODY,
        };
        Self {
            outlet,
            tenant: Cell::new(tenant),
            connected_as: Cell::new(connected_as),
            user: RefCell::default(),
            shadow,
            source,
            who: RefCell::default(),
            share: RefCell::new(None),
            slot: RefCell::new(None),
            deny: RefCell::new(service.tenants.borrow().denied(tenant, &service.ledger.borrow())),
            parts: RefCell::new(service.tenants.borrow().parts(tenant, &service.ledger.borrow())),
            pool: RefCell::new(service.pools.first()),
            lane: Cell::new(0),
            talk: RefCell::new(Talk {
                decoder: W::decoder(&service.settings),
                input: Buffer::default(),
                want: 0,
                stalled: false,
                parked: false,
                ending: false,
                moving: Moving::No,
                replies: Replies::new(W::refuse),
            }),
            has_news: Cell::new(false),
            dead: Cell::new(None),
            order: Order::default(),
            queued: Cell::new((0, Tier::Critical)),
            awaits_replicas: Cell::new(false),
            refused_multi: Cell::new(None),
            unwritten: Unwritten::default(),
            left: Cell::new(false),
            moved: Cell::new(true),
            stuck: Cell::new(Duration::ZERO),
            unfinished: Cell::new(None),
            quiet: Cell::new(Duration::ZERO),
            awaits_store: Cell::new(false),
            waker: RefCell::new(None),
            holding: Holding::new(&service.memory),
            beside: Cell::new(0),
            large: RefCell::new(None),
        }
    }

    /// Whether nobody is there any more.
    pub(in crate::dispatcher) fn is_gone(&self) -> bool {
        self.dead.get().is_some()
    }

    /// The shared store connections that its requests may take.
    pub(in crate::dispatcher) fn pool(&self) -> Ref<'_, Pool<W>> {
        Ref::map(self.pool.borrow(), |pool| &**pool)
    }

    /// The shared store connection that its requests take.
    #[inline]
    pub(in crate::dispatcher) fn store(&self) -> Rc<Store<W>> {
        self.pool.borrow().store(self.lane.get())
    }

    /// It has nothing on its way: what it asks now may take another connection.
    #[inline]
    pub(in crate::dispatcher) fn choose_lane(&self, now: Nanos) {
        self.lane.set(self.pool.borrow().lane(now));
    }

    /// From now on its requests take these.
    pub(in crate::dispatcher) fn share(&self, pool: Rc<Pool<W>>) {
        *self.pool.borrow_mut() = pool;
    }

    /// Whether it is one of this pool's.
    pub(in crate::dispatcher) fn is_of(&self, pool: &Rc<Pool<W>>) -> bool {
        Rc::ptr_eq(&self.pool.borrow(), pool)
    }

    /// Whether what it asks for tells something about the tenant that is charged: it has a connection, from that
    /// tenant's own source. A part has no source, so what is asked of it never costs anybody a connection.
    #[inline]
    pub(in crate::dispatcher) fn asks_for_itself(&self, charged: TenantId) -> bool {
        self.connected_as.get() != TenantId::NOBODY && self.connected_as.get() == charged
    }

    /// Whether nobody is charged for it.
    pub(in crate::dispatcher) fn is_unknown(&self) -> bool {
        self.tenant.get() == TenantId::NOBODY
    }

    /// From now on this tenant is charged.
    pub(in crate::dispatcher) fn charge_to(&self, tenant: TenantId, service: &Service<W>) {
        self.tenant.set(tenant);
        self.quiet.set(Duration::ZERO);
        if !self.connects(service) {
            self.say(&service.too_many(self));
            self.talk.borrow_mut().ending = true;
        }
        self.follow_tenant(service);
    }

    /// The tenants are others now: it is whose a client would be that came from its source and logged in as it has.
    pub(in crate::dispatcher) fn identify_again(self: &Rc<Self>, service: &Service<W>) {
        let (by_source, _) = service.identify(self.source);
        let tenant = {
            let (ledger, user) = (service.ledger.borrow(), self.user.borrow());
            self.connected_as.set(ledger.tenant_named_by(self.source));
            let by_user = user.as_ref().and_then(|login| service.tenants.borrow().of_user(login, &ledger));
            by_user.unwrap_or(by_source)
        };
        if tenant != self.tenant.get() {
            self.tenant.set(tenant);
            self.quiet.set(Duration::ZERO);
            if !self.connects(service) {
                self.turn_out(&service.too_many(self));
                service.has_news(self);
                if self.talk.borrow().moving == Moving::Own {
                    self.end(Ended::Left);
                }
            }
        }
        self.follow_tenant(service);
    }

    /// Who is charged for more of what it asked while this tenant was charged: another, if it is another's by now.
    pub(in crate::dispatcher) fn still_charged(&self, charged: TenantId, whole: TenantId) -> TenantId {
        if self.tenant.get() == whole { charged } else { self.tenant.get() }
    }

    /// What is said of its tenant holds from now on: what is denied to it, and its parts.
    pub(in crate::dispatcher) fn follow_tenant(&self, service: &Service<W>) {
        let (tenants, ledger) = (service.tenants.borrow(), service.ledger.borrow());
        *self.deny.borrow_mut() = tenants.denied(self.tenant.get(), &ledger);
        *self.parts.borrow_mut() = tenants.parts(self.tenant.get(), &ledger);
    }

    /// Takes a connection of those that there may be, and of those that its tenant may have; false if there is none.
    pub(in crate::dispatcher) fn connects(&self, service: &Service<W>) -> bool {
        drop((self.share.take(), self.slot.take()));
        let tenant = self.tenant.get();
        let usage = service.tenants.borrow().usage(tenant, &service.ledger.borrow());
        let most = service.most_slots(usage.as_deref());
        let slot = service.slots.take(tenant, most);
        let is_full = slot.is_none();
        *self.slot.borrow_mut() = slot;
        let has_limits = usage.is_some();
        let share = usage.and_then(Share::of_connection);
        let is_beyond = has_limits && share.is_none();
        *self.share.borrow_mut() = share;
        // Where rules are only tried, what would be refused is counted.
        !(is_full || is_beyond) || (self.shadow && !service.refuses(self, tenant, Reason::Limit))
    }

    /// Whether it may ask once more while `open` requests of its own are unanswered.
    #[inline]
    pub(in crate::dispatcher) fn may_ask(&self, open: usize) -> bool {
        self.share.borrow().as_ref().is_none_or(|share| share.has_room(open))
    }

    /// So many of its requests are unanswered.
    #[inline]
    pub(in crate::dispatcher) fn note_open(&self, open: usize) {
        self.share.borrow().iter().for_each(|share| share.note(open));
    }

    /// Who is charged for a request, and whether it is denied to it.
    #[inline]
    pub(in crate::dispatcher) fn tenant_for(&self, request: &W::Request, bytes: &[u8]) -> (TenantId, bool) {
        let denied = self.deny.borrow().as_ref().is_some_and(|deny| W::is_denied(deny, request, bytes));
        match &*self.parts.borrow() {
            None => (self.tenant.get(), denied),
            Some(parts) => self.tenant_by_key(parts, denied, request, bytes),
        }
    }

    fn tenant_by_key(
        &self,
        parts: &Parts,
        denied: bool,
        request: &W::Request,
        bytes: &[u8],
    ) -> (TenantId, bool) {
        // The kernel has charged by source alone.
        let by_source = self.is_judged() || !W::names_keys(request);
        let part = if by_source { None } else { parts.of(W::keys(request, bytes), W::facts(request).keys) };
        let Some(part) = part else { return (self.tenant.get(), denied) };
        let deny = part.deny.as_ref();
        (part.tenant, denied || deny.is_some_and(|deny| W::is_denied(deny, request, bytes)))
    }

    /// It is listened to no more, and reads why if nothing else is to come.
    pub(in crate::dispatcher) fn turn_out(&self, why: &[u8]) {
        let waits = {
            let talk = &mut *self.talk.borrow_mut();
            talk.ending = true;
            talk.moving != Moving::No || talk.replies.outstanding() > 0
        };
        if !waits {
            self.say(why);
        }
    }

    /// Whether it has nothing under way, as far as can be seen here.
    pub(in crate::dispatcher) fn is_idle(&self) -> bool {
        let talk = self.talk.borrow();
        let waits = talk.moving != Moving::No || talk.replies.outstanding() > 0;
        !waits && talk.input.is_empty() && talk.replies.output.is_empty()
    }

    /// Where replies go.
    ///
    /// # Panics
    ///
    /// For the sender of a datagram, which has no connection.
    pub(in crate::dispatcher) fn socket(&self) -> &OwnedWriteHalf {
        match &self.outlet {
            Outlet::Stream(socket) => socket,
            Outlet::Datagram(_) => unreachable!("only a client with a connection has a task"),
        }
    }

    /// The datagram that it is the sender of.
    #[inline]
    pub(in crate::dispatcher) fn datagram(&self) -> Option<&Sender> {
        match &self.outlet {
            Outlet::Stream(_) => None,
            Outlet::Datagram(sender) => Some(sender),
        }
    }

    /// Ends the connection at once.
    pub(in crate::dispatcher) fn end(&self, why: Ended) {
        if self.dead.get().is_none() {
            self.dead.set(Some(why));
            self.wake();
        }
    }

    /// Gives back memory that an idle client does not need, and ends one that is stuck for too long, or takes too long
    /// for one request, or is idle or unknown for too long. To be called every `interval`.
    pub(in crate::dispatcher) fn look_after(&self, interval: Duration, limits: &Limits) {
        let patience = Duration::from(limits.client_timeout);
        if self.has_no_business(interval, limits) {
            return self.end(Ended::Idle);
        }
        if self.is_slow_to_write(interval, patience) {
            return self.end(Ended::SlowWriter);
        }
        if self.moved.replace(false) {
            self.stuck.set(Duration::ZERO);
            return;
        }
        self.release();
        let talk = self.talk.borrow();
        let (reading, writing) = (!talk.replies.output.is_empty(), !talk.input.is_empty() && !talk.parked);
        if !reading && !writing {
            return;
        }
        self.stuck.set(self.stuck.get() + interval);
        if self.stuck.get() > patience {
            self.end(if reading { Ended::SlowReader } else { Ended::SlowWriter });
        }
    }

    /// Whether it has wanted nothing for too long, or has not said in time who it is.
    fn has_no_business(&self, interval: Duration, limits: &Limits) -> bool {
        let is_unknown = self.is_unknown() && !self.shadow;
        let is_idle = || !self.moved.get() && !self.awaits_store.get() && self.is_idle();
        let quiet = if is_unknown || is_idle() { self.quiet.get() + interval } else { Duration::ZERO };
        self.quiet.set(quiet);
        let patience = if is_unknown { Some(limits.unknown_timeout) } else { limits.idle_timeout };
        patience.is_some_and(|patience| quiet > patience.into())
    }

    /// Whether the request that it is sending has been unfinished for longer than `patience`, however often a byte
    /// of it comes.
    fn is_slow_to_write(&self, interval: Duration, patience: Duration) -> bool {
        let is_writing = {
            let talk = self.talk.borrow();
            !talk.input.is_empty() && !talk.parked && !talk.stalled
        };
        let before = self.unfinished.get();
        self.unfinished.set(is_writing.then(|| before.map_or(Duration::ZERO, |before| before + interval)));
        self.unfinished.get().is_some_and(|unfinished| unfinished > patience)
    }

    /// A request has been taken out of its input.
    #[inline]
    pub(in crate::dispatcher) fn has_finished_a_request(&self) {
        self.unfinished.set(None);
    }

    /// Gives back memory that nothing is in.
    pub(in crate::dispatcher) fn release(&self) {
        let talk = &mut *self.talk.borrow_mut();
        talk.input.release();
        talk.replies.release();
        self.note_held(talk);
    }

    /// For how long it has neither read nor gone on, as far as has been looked.
    pub(in crate::dispatcher) fn stuck(&self) -> Duration {
        self.stuck.get()
    }

    /// Ends the connection for what it holds.
    pub(in crate::dispatcher) fn end_for_stuck(&self) {
        let reads = self.talk.borrow().replies.waiting() == 0;
        self.end(if reads { Ended::SlowWriter } else { Ended::SlowReader });
    }

    /// What it holds has changed.
    #[inline]
    pub(in crate::dispatcher) fn note_held(&self, talk: &Talk<W>) {
        self.holding.note(talk.input.memory() + talk.replies.memory() + self.beside.get());
    }
}
