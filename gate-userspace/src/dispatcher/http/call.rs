//! A request that has been charged: its state from the queue to the last byte of its answer.
//!
//! **Permits.** A request holds its permit while the store has something to do for it. While its own client keeps it, with
//! the rest of its body or by not reading the answer, the permit is lent to others after [`KEPT_WAITING`].
//!
//! **Times.** The store has as long as `slow_timeout` for each sign of life. A client has `client_timeout` for each
//! [`PIECE`] of a body, for each message of gRPC, and to read on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::connection::Connection;
use super::store::Store;
use crate::dispatcher::admission::ClientQueue;
use crate::dispatcher::admission::queueing::QueuedRequest;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::slots::{MostSlots, Slot, Slots};
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::request::{Charged, Payer};
use crate::dispatcher::settings::Limits;
use crate::protocol::Refusal;

/// A request that has been charged.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) payer: Payer,
    pub(super) charged: RefCell<Charged>,
    pub(super) features: Cell<CostFeatures>,
    pub(super) connection: Rc<Connection>,
    pub(super) store: Rc<Store>,
    /// Its tenant's slot for a store connection, while it is with the store.
    store_slot: RefCell<Option<Slot>>,
    store_slots: StoreSlots,
    pub(super) permit: Cell<Permit>,
    /// When the store had all of it.
    pub(super) sent: Cell<Nanos>,
    /// True once the store has all of its body.
    pub(super) has_body_ended: Cell<bool>,
    /// False once its time was not the store's alone.
    pub(super) is_measured: Cell<bool>,
    /// True if each part of its body is a message, however short.
    pub(super) is_of_messages: Cell<bool>,
    queue: Cell<ClientQueue>,
    granted: Cell<Option<Result<(), Refusal>>>,
    waits_for: Cell<WaitsFor>,
    waits_since: Cell<Nanos>,
    /// Of the present piece of its body: how much has come, and how long it was waited for.
    piece: Cell<(usize, Nanos)>,
    failure: Cell<Option<Failure>>,
    is_gone: Cell<bool>,
    wakers: RefCell<[Option<Waker>; 2]>,
}

/// The slots of tenants for store connections. A request takes one when it goes to the store: in the queue it needs none.
#[derive(Debug)]
pub(super) struct StoreSlots {
    slots: Arc<Slots>,
    most: usize,
}

impl StoreSlots {
    /// Those of a service, of which a tenant may have so many.
    pub(super) fn new(slots: &Arc<Slots>, most: usize) -> Self {
        Self { slots: Arc::clone(slots), most }
    }
}

/// A request's right to be with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    Absent,
    Held,
    /// Given back for as long as its client keeps it waiting.
    Lent,
}

/// The cause of a request's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// The queue, or a connection: both have timeouts of their own.
    Turn,
    /// The store: its answer, or more of it.
    Store,
    /// The client: more of its body.
    Body,
    /// The client: that it reads on.
    Reader,
    /// gate's own work: the store has answered all of it.
    Gate,
}

/// Why a request ends before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// More of it is refused than its head was charged for.
    Refused(Refusal),
    /// Its client was too slow with its body.
    SlowBody,
    /// Its client broke off its body.
    BrokenBody,
    /// Its body is no body.
    MalformedBody,
    /// The store has answered it before all of its body was there.
    Answered,
    /// The store was silent for too long.
    Timeout,
}

/// The part of a call that waits to be woken.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// Towards the store: the body of the request.
    Request = 0,
    /// Towards the client: the wait for the answer, and its body.
    Reply = 1,
}

/// A call in the queue.
#[derive(Debug)]
pub(super) struct QueuedCall {
    charged: Charged,
    call: Rc<Call>,
}

impl Call {
    pub(super) fn new(
        (payer, charged): (Payer, Charged),
        features: CostFeatures,
        connection: Rc<Connection>,
        (store, store_slots): (Rc<Store>, StoreSlots),
    ) -> Self {
        Self {
            payer,
            features: Cell::new(features),
            connection,
            store,
            store_slot: RefCell::default(),
            store_slots,
            permit: Cell::new(Permit::Absent),
            sent: Cell::new(charged.at),
            has_body_ended: Cell::new(false),
            is_measured: Cell::new(true),
            is_of_messages: Cell::new(false),
            queue: Cell::default(),
            granted: Cell::new(None),
            waits_for: Cell::new(WaitsFor::Turn),
            waits_since: Cell::new(charged.at),
            charged: RefCell::new(charged),
            piece: Cell::default(),
            failure: Cell::new(None),
            is_gone: Cell::new(false),
            wakers: RefCell::default(),
        }
    }

    /// Its requests in the queue: itself, at most. Requests of one connection may be of several tenants, and have no order.
    pub(super) fn queue(&self) -> &Cell<ClientQueue> {
        &self.queue
    }

    /// Checks that the store takes it, and takes a slot for a store connection.
    ///
    /// # Errors
    ///
    /// A refusal: the store is down, or its tenant has as many requests with the store as it may.
    pub(super) fn store_accepts(&self, now: Nanos) -> Result<(), Refusal> {
        self.store.accepts(now)?;
        let Payer { tenant, shadow, .. } = self.payer;
        let most = self.store_slots.most;
        let most = MostSlots { unknown: most, known: usize::MAX, tenant: most };
        *self.store_slot.borrow_mut() = self.store_slots.slots.take(tenant, most);
        if self.has_store_slot() || shadow { Ok(()) } else { Err(Refusal::of(Reason::Limit)) }
    }

    /// True if it has a slot for a store connection.
    pub(super) fn has_store_slot(&self) -> bool {
        self.store_slot.borrow().is_some()
    }

    /// Gives back its slot for a store connection.
    pub(super) fn leave_store(&self) {
        drop(self.store_slot.take());
    }

    /// Waits for its permit, or its refusal.
    pub(super) async fn granted(&self) -> Result<(), Refusal> {
        std::future::poll_fn(|cx| {
            self.register(Side::Reply, cx);
            self.granted.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// True if it was given a permit that it has not taken.
    pub(super) fn take_grant(&self) -> bool {
        self.granted.take() == Some(Ok(()))
    }

    /// From now on it waits for something else.
    pub(super) fn waits_for(&self, what: WaitsFor, now: Nanos) {
        if self.waits_for.replace(what) != what {
            self.waits_since.set(now);
        }
    }

    /// Notes that the store has shown a sign of life, or has been given something.
    pub(super) fn progress(&self, now: Nanos) {
        self.waits_since.set(now);
    }

    /// Notes that `len` bytes of its body have come.
    pub(super) fn body_came(&self, len: usize, now: Nanos) {
        let (bytes, waited) = self.piece.get();
        let waited = match self.waits_for.get() {
            WaitsFor::Body => waited.saturating_add(now.saturating_sub(self.waits_since.get())),
            WaitsFor::Turn | WaitsFor::Store | WaitsFor::Reader | WaitsFor::Gate => waited,
        };
        let is_whole = bytes + len >= PIECE || self.is_of_messages.get();
        self.piece.set(if is_whole { Default::default() } else { (bytes + len, waited) });
        self.waits_for.set(WaitsFor::Store);
        self.waits_since.set(now);
    }

    /// Ends it early, for the first failure.
    pub(super) fn fail(&self, why: Failure) {
        if self.failure.get().is_none() {
            self.failure.set(Some(why));
            let wakers = self.wakers.take();
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }

    /// Why it ends early, if it does.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure.get()
    }

    /// Why it ends early, if it does; else that side is woken when it does.
    pub(super) fn poll_failure(&self, side: Side, cx: &Context<'_>) -> Option<Failure> {
        self.register(side, cx);
        self.failure.get()
    }

    /// Nobody waits for its answer any more.
    pub(super) fn give_up(&self) {
        self.is_gone.set(true);
    }

    /// Looks for what has taken too long. True if its permit may be lent.
    pub(super) fn check(&self, limits: &Limits, now: Nanos) -> bool {
        let waited = now.saturating_sub(self.waits_since.get());
        match self.waits_for.get() {
            WaitsFor::Turn | WaitsFor::Gate => return false,
            WaitsFor::Store => {
                if waited > limits.slow_timeout {
                    self.fail(Failure::Timeout);
                }
                return false;
            }
            WaitsFor::Body => {
                if self.piece.get().1.saturating_add(waited) > limits.client_timeout {
                    self.fail(Failure::SlowBody);
                }
            }
            WaitsFor::Reader => {
                if waited > limits.client_timeout {
                    self.connection.end(CloseCause::SlowReader);
                }
            }
        }
        self.permit.get() == Permit::Held && waited > KEPT_WAITING
    }

    fn register(&self, side: Side, cx: &Context<'_>) {
        let waker = &mut self.wakers.borrow_mut()[side as usize];
        if waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }
}

impl QueuedCall {
    pub(super) fn new(call: Rc<Call>) -> Self {
        let charged = call.charged.borrow().clone();
        Self { charged, call }
    }

    /// Ends its wait. With `Ok` it has a permit.
    pub(super) fn end_wait(self, result: Result<(), Refusal>) {
        self.call.charged.replace(self.charged);
        self.call.granted.set(Some(result));
        let waker = self.call.wakers.borrow_mut()[Side::Reply as usize].take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl QueuedRequest for QueuedCall {
    fn charged(&self) -> &Charged {
        &self.charged
    }

    fn charged_mut(&mut self) -> &mut Charged {
        &mut self.charged
    }

    fn client_queue(&self) -> &Cell<ClientQueue> {
        &self.call.queue
    }

    fn is_wanted(&self) -> bool {
        !self.call.is_gone.get()
    }

    fn is_coalesced(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        false
    }

    fn store_has_window(&self) -> bool {
        true
    }

    fn must_run(&self) -> bool {
        false
    }

    fn store_accepts(&self, now: Nanos) -> Result<(), Refusal> {
        self.call.store_accepts(now)
    }
}

/// The bytes of a body that must come within `client_timeout`: a byte now and then is no progress.
const PIECE: usize = 64 << 10;
/// The time that a client may keep its request waiting before others get its permit: longer than its thread is busy.
const KEPT_WAITING: Nanos = Nanos::from_millis(20);
