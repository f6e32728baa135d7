//! Admission: the one step between a decoded request and the store, whatever protocol and connection it came by.
//!
//! ```text
//! charge ──► admit ──► take_permit ─ yes ─────────────► store ──► release_permit, observe
//!   │          │            │ no                          ▲
//!   │          │            └──► enqueue ──► dequeue ─────┘
//!   ▼          ▼                                │
//! refused ◄── refuse: refund, count ◄───────────┘ (also `expire`)
//! ```
//!
//! Requests over shared and dedicated connections, streamed requests and datagrams pass it alike. It knows who pays
//! ([`Payer`]), what a request asks for ([`Demand`]) and its class; it knows no protocol, no codec and no socket. The queue
//! is in `queueing.rs`, the wait of a tenant that cannot pay yet in `affordable.rs`.
//!
//! **Invariants.** A request is charged once, and counted once, when its result is known. What is refused after its
//! charge is refunded. Each permit that is taken is released once. Nothing here awaits while a cell is borrowed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};

use self::answered::Answered;
use self::demand::Demand;
use self::read_prices::ReadPrices;
use crate::dispatcher::learned_reads::LearnedReads;
use crate::dispatcher::metrics::cost_samples::ReplyBatch;
use crate::dispatcher::metrics::{ServiceMetrics, WorkerMetrics};
use crate::dispatcher::queue::concurrency::{SharedLimits, ThreadLatencies};
use crate::dispatcher::queue::delay::Delay;
use crate::dispatcher::queue::policy::Policy;
use crate::dispatcher::queue::shares::ThreadShares;
use crate::dispatcher::queue::tier_queue::{Queue, QueueKey};
use crate::dispatcher::request::{Charged, Payer, RequestClass};
use crate::dispatcher::settings::{Limits, Settings};
use crate::dispatcher::tenants::Tenants;
use crate::dispatcher::tenants::ledger::{Charge, Ledger, TenantId};
use crate::dispatcher::tenants::request_limits::LimitSet;
use crate::policy::cost_model::{Measure, Window};
use crate::policy::fair_share::Sharer;
use crate::policy::read_cost::ReadSize;
use crate::protocol::Refusal;

mod affordable;
pub(super) mod answered;
pub(super) mod demand;
pub(super) mod explain;
mod limit_charges;
pub(super) mod queueing;
mod read_prices;
mod reply_costs;
mod shares;

/// Admission to one service's store, in one thread. `T` is a request in the queue.
#[derive(Debug)]
pub(crate) struct Admission<T> {
    /// The service's place in the configuration at the start.
    pub(super) service: usize,
    pub(super) ledger: Rc<RefCell<Ledger>>,
    pub(super) policy: Policy,
    /// As of the last tick.
    pub(super) tenants: RefCell<Arc<Tenants>>,
    /// The requests that wait for a permit, and the permits.
    pub(super) queue: RefCell<Queue<T>>,
    /// How long the store takes, where the number of permits is found by that.
    latencies: Option<RefCell<ThreadLatencies>>,
    pub(super) delay: RefCell<Delay>,
    /// The shares of tenants in what the store can do.
    pub(super) shares: RefCell<ThreadShares>,
    /// The requests that were answered since the last tick.
    answers: Cell<u64>,
    /// How long a request may wait.
    pub(super) deadline: Cell<Option<Nanos>>,
    pub(super) metrics: Arc<WorkerMetrics>,
    service_metrics: ServiceMetrics,
    /// The learned reads of requests, if prices follow them.
    pub(super) reads: ReadPrices,
    /// Cost samples since the last tick.
    cost_window: RefCell<Window>,
    /// The measure of a request's cost, as of the last tick, where prices are settled.
    measure: Cell<Option<Measure>>,
}

/// The number of a client's requests in the queue, and where the last of them waits.
pub(crate) type ClientQueue = (usize, Option<QueueKey>);

/// The price of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quote {
    /// With the request's own tier.
    pub(super) class: RequestClass,
    /// The rung of its service and tier; zero for a tenant within its share.
    pub(super) rung: u32,
    /// The price by its class, before multiplier and rung.
    pub(super) asked: MilliRu,
    /// The sum to be charged.
    pub(super) price: MilliRu,
    /// The read that is expected of it, if that is another than it says.
    pub(super) expected: Option<ReadSize>,
    /// The price by its class after multiplier and rung, if the price follows the expected read.
    pub(super) by_class: Option<MilliRu>,
}

impl<T> Admission<T> {
    pub(crate) fn new(
        settings: &Settings,
        thread: usize,
        ledger: Rc<RefCell<Ledger>>,
        (policy, delay): (Policy, Delay),
        service_metrics: ServiceMetrics,
        (shared, learned): (&SharedLimits, Arc<LearnedReads>),
    ) -> Self {
        let limits = *settings.limits.borrow();
        let permits = shared.permits.of_thread(thread);
        let queue = Queue::new(permits, Arc::clone(&shared.queued), limits.queue_limit, limits.queue_memory);
        Self {
            service: settings.service,
            ledger,
            policy,
            tenants: RefCell::new(settings.tenants.borrow().clone()),
            queue: RefCell::new(queue),
            latencies: shared.adaptive.as_ref().map(|adaptive| RefCell::new(adaptive.of_thread())),
            delay: RefCell::new(delay),
            shares: RefCell::new(shared.shares.of_thread()),
            answers: Cell::new(0),
            deadline: Cell::new(limits.deadline),
            metrics: Arc::clone(&service_metrics.threads[thread]),
            service_metrics,
            reads: ReadPrices::new(learned, limits.learn),
            cost_window: RefCell::default(),
            measure: Cell::default(),
        }
    }

    /// Prices a request and takes the price from its tenant's buckets. `class` has the highest tier that the query type
    /// may have; the result has the request's own.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted.
    #[inline(always)]
    pub(crate) fn charge(
        &self,
        ledger: &mut Ledger,
        payer: Payer,
        demand: Demand,
        class: RequestClass,
        now: Nanos,
    ) -> Result<Charged, Refusal> {
        let Quote { class, rung, asked, price, by_class, .. } = self.quote(ledger, &payer, &demand, class);
        let Payer { tenant, shadow, is_charged_by_xdp, is_datagram, .. } = payer;
        if payer.counts_for_deep_debt {
            ledger.count_demand(tenant, asked);
        }
        if let Some(by_class) = by_class {
            self.metrics.read_prices.record(demand.price_class, by_class, price);
        }
        let mut limits = demand.limits;
        if !self.take_limits(ledger, &payer, limits, price, now)? {
            limits = LimitSet::NONE;
        }
        let charge = match is_charged_by_xdp {
            false => ledger.charge(payer.account(), (asked, price), rung, now, shadow),
            true if shadow => Charge::Passed(MilliRu::ZERO),
            true => Charge::Passed(price),
        };
        let price = match charge {
            Charge::Passed(charged) => charged,
            Charge::Refused { refusal, bucket } => {
                self.return_to_limits(ledger, tenant, limits, price);
                let bucket = self.tenants.borrow().bucket_name(bucket, ledger);
                return Err(Refusal { bucket, ..refusal });
            }
        };
        Ok(Charged {
            tenant,
            member: payer.member,
            price,
            class,
            at: now,
            shadow,
            is_charged_by_xdp,
            is_datagram,
            is_counted: false,
            limits,
            read: demand.read,
        })
    }

    /// The price of a request, and the class that it is charged as. Takes and counts nothing. `class` as in
    /// [`Admission::charge`].
    #[inline(always)]
    pub(super) fn quote(
        &self,
        ledger: &mut Ledger,
        payer: &Payer,
        demand: &Demand,
        mut class: RequestClass,
    ) -> Quote {
        let &Payer { tenant, is_datagram, .. } = payer;
        class.tier = ledger.tier(tenant).max(class.tier);
        let Demand { commands, rows, bytes, price_class, .. } = *demand;
        let run_as = (!demand.is_answered_here).then_some(price_class);
        let asked = ledger.price(self.service, commands, rows, bytes, run_as);
        // Who asks for no more than their share is not made dearer for what others ask beyond theirs.
        let is_spared = self.shares.borrow().is_spared(Sharer { tier: class.tier, tenant: tenant.0 });
        let rung = if is_spared { 0 } else { ledger.rung(self.service, class.tier) };
        let class_price = ledger.apply_multiplier(tenant, asked, rung);
        // XDP charges datagrams the price of the class, which is all that it knows; so does this.
        let expected = (commands > 0 && !is_datagram && !demand.is_answered_here)
            .then(|| self.reads.expected(tenant, (price_class, &demand.read), demand.requested_rows()))
            .flatten();
        let (price, by_class) = match expected {
            Some(read) => {
                (self.learned_price(ledger, (tenant, rung), class_price, demand, read), Some(class_price))
            }
            None => (class_price, None),
        };
        Quote { class, rung, asked, price, expected, by_class }
    }

    /// Charges `bytes` more of a request that has been charged, and counts them.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted.
    pub(crate) fn charge_more(
        &self,
        payer: Payer,
        bytes: usize,
        class: RequestClass,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        ledger.refresh();
        let payer = Payer { counts_for_deep_debt: false, ..payer };
        let Charged { tenant, price, .. } = self.charge(ledger, payer, Demand::more(bytes), class, now)?;
        ledger.count_charged(tenant, price);
        Ok(())
    }

    /// Charges a request once more, which may leave a debt: it runs again.
    pub(crate) fn charge_again(&self, charged: &Charged, now: Nanos) {
        let ledger = &mut *self.ledger.borrow_mut();
        ledger.refresh();
        ledger.charge_again(charged.account(), charged.price, now);
    }

    /// Asks whether a request is within its tenant's share, and the admission policy whether it would keep its objective.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted and refunded.
    #[inline]
    pub(crate) fn admit(&self, ledger: &mut Ledger, charged: &Charged, now: Nanos) -> Result<(), Refusal> {
        let class = charged.class;
        if !self.offer(charged, || ledger.draw()) {
            if !charged.shadow {
                return Err(self.refuse(ledger, charged, Refusal::after(Reason::Penalty, ONE_TICK)));
            }
            ledger.count_refusal(charged.tenant, Reason::Penalty, charged.price, true);
        }
        let Some(retry_after) = self.policy.refuses(class, now, || ledger.draw()) else { return Ok(()) };
        if charged.shadow {
            ledger.count_refusal(charged.tenant, Reason::Slo, charged.price, true);
            return Ok(());
        }
        Err(self.refuse(ledger, charged, Refusal::after(Reason::Slo, retry_after)))
    }

    /// Notes that a request, which has been charged, wants to go to the store.
    #[inline]
    pub(crate) fn note_offered(&self, charged: &Charged) {
        self.offer(charged, || 0.0);
    }

    /// Counts a request that wants to go to the store. False if its tenant asks for more than its share, and this `draw` falls on it.
    #[inline]
    fn offer(&self, charged: &Charged, draw: impl FnOnce() -> f64) -> bool {
        let class = charged.class;
        self.metrics.of_type(class.query_type).offered(class.tier);
        let sharer = Sharer { tier: class.tier, tenant: charged.tenant.0 };
        self.shares.borrow_mut().offer(sharer, charged.price, draw)
    }

    /// Refuses a request that has been charged and not been counted: refunds and counts it.
    pub(crate) fn refuse(&self, ledger: &mut Ledger, charged: &Charged, refusal: Refusal) -> Refusal {
        self.metrics.of_type(charged.class.query_type).refused();
        ledger.refund(charged.account(), charged.price);
        self.return_to_limits(ledger, charged.tenant, charged.limits, charged.price);
        ledger.count_refusal(charged.tenant, refusal.reason, charged.price, false);
        refusal
    }

    /// Gives back the charge of a request that is about to be charged anew.
    pub(crate) fn give_back(&self, ledger: &mut Ledger, charged: &Charged) {
        ledger.refund(charged.account(), charged.price);
        self.return_to_limits(ledger, charged.tenant, charged.limits, charged.price);
    }

    /// Ends the charge of a request that has run in part, and been counted as passed without its price: what was not `spent` is given
    /// back. For limits by requests it stays one.
    pub(crate) fn end_charge(&self, ledger: &mut Ledger, charged: &Charged, spent: MilliRu) {
        if spent < charged.price {
            ledger.refund(charged.account(), MilliRu(charged.price.0 - spent.0));
            self.return_rest_to_limits(ledger, charged, spent);
        }
        if !charged.is_charged_by_xdp {
            ledger.count_charged(charged.tenant, spent);
        }
    }

    /// Counts a request as passed, unless it is counted.
    #[inline]
    pub(crate) fn count_passed(&self, ledger: &Ledger, charged: &mut Charged) {
        if !std::mem::replace(&mut charged.is_counted, true) && !charged.is_charged_by_xdp {
            ledger.count_passed(charged.tenant, charged.price);
        }
    }

    /// Counts a refusal without a price.
    pub(crate) fn count_refusal(&self, tenant: TenantId, reason: Reason) {
        self.ledger.borrow().count_refusal(tenant, reason, MilliRu::ZERO, false);
    }

    /// Counts a request that is refused before it is priced. False if refusals of this payer are only counted.
    pub(crate) fn refuse_unpriced(&self, payer: &Payer, reason: Reason) -> bool {
        self.ledger.borrow().count_refusal(payer.tenant, reason, MilliRu::ZERO, payer.shadow);
        !payer.shadow
    }

    /// Takes a permit if one is free and no request waits that is before this one; `client` are its client's requests in the
    /// queue.
    #[inline]
    pub(crate) fn take_permit(&self, client: &Cell<ClientQueue>, is_slow: bool) -> bool {
        client.get().0 == 0 && self.queue.borrow_mut().pass(is_slow)
    }

    /// Ends when this thread has been granted a permit, or may find one.
    pub(crate) fn woken(&self) -> impl Future<Output = ()> + use<T> {
        self.queue.borrow_mut().permits().woken()
    }

    /// Gives back permits that this thread keeps and others wait for.
    pub(crate) fn return_permits(&self) {
        self.queue.borrow_mut().permits().poll();
    }

    /// Takes a permit, even if none is free: the request had one, and released it for a while.
    pub(crate) fn retake_permit(&self) {
        self.queue.borrow_mut().enter();
    }

    /// True if [`Admission::take_permit`] would give a client one that has no requests in the queue.
    pub(crate) fn may_take_permit(&self, is_slow: bool) -> bool {
        self.queue.borrow().may_pass(is_slow)
    }

    /// Releases a permit: a request has been answered, or will not be.
    #[inline]
    pub(crate) fn release_permit(&self) {
        self.queue.borrow_mut().leave();
    }

    /// Notes that a request goes to the store without having waited.
    #[inline]
    pub(crate) fn note_not_queued(&self, charged: &Charged, now: Nanos) {
        self.note_wait(charged, (charged.class.tier, Nanos::ZERO, 0), now);
    }

    /// Checks that one more request of a tenant, of so many bytes, may wait; `is_only` says that there is no other
    /// tenant.
    ///
    /// # Errors
    ///
    /// The refusal, if the queue is full.
    pub(crate) fn queue_accepts(&self, tenant: TenantId, bytes: usize, is_only: bool) -> Result<(), Refusal> {
        let has_room = self.queue.borrow().has_room(tenant.0, bytes, is_only);
        if has_room { Ok(()) } else { Err(Refusal::of(Reason::QueueFull)) }
    }

    /// Observes requests that the store answered at `at`.
    pub(crate) fn observe(&self, answered: Answered, at: Nanos) {
        let Answered { class, charged, sent, count } = answered;
        let took = at.saturating_sub(sent);
        if let Some(latencies) = &self.latencies {
            latencies.borrow_mut().record(usize::from(class.query_type.0), sent, took, count);
        }
        self.metrics.answered(class.query_type, sent.saturating_sub(charged), took, count);
        (0..count).for_each(|_| self.policy.completed(class, took, at));
        self.service_metrics.responded(class.query_type, at.saturating_sub(charged), count);
    }

    /// True while cost samples are taken.
    #[inline]
    pub(crate) fn samples_costs(&self) -> bool {
        self.metrics.cost_samples.is_on()
    }

    /// Records how long the store took for replies that came together, and settles what that is beyond their price.
    pub(crate) fn record_costs(&self, replies: &ReplyBatch, took: Nanos, now: Nanos) {
        let cost_samples = &self.metrics.cost_samples;
        cost_samples.observe(replies, took, &mut self.cost_window.borrow_mut());
        if let (Some(measure), Some((account, paid))) = (self.measure.get(), replies.payer()) {
            let cost = measure.cost(&replies.batch(), took);
            cost_samples.settled(self.ledger.borrow_mut().settle(account, cost, paid, now));
        }
    }

    /// Takes over what has changed about tenants.
    pub(crate) fn set_tenants(&self, tenants: &Arc<Tenants>) {
        self.shares.borrow_mut().forget();
        self.tenants.borrow_mut().clone_from(tenants);
    }

    /// Puts changed limits in force.
    pub(crate) fn set_limits(&self, limits: &Limits, before: &Limits) {
        self.deadline.set(limits.deadline);
        self.reads.follow(limits.learn);
        self.queue.borrow_mut().set_limits(limits.queue_limit, limits.queue_memory);
        if limits.codel != before.codel {
            match Delay::new(limits.codel) {
                Ok(delay) => *self.delay.borrow_mut() = delay,
                Err(error) => tracing::error!(%error, "the configuration should have refused it"),
            }
        }
    }

    /// Reuses the memory of a request that has left the queue.
    pub(crate) fn recycle(&self, bytes: Vec<u8>) {
        self.queue.borrow_mut().recycle(bytes);
    }
}

/// A share is decided anew so often.
const ONE_TICK: Nanos = Nanos::from_millis(100);
