//! The queue's part of [admission](super): into it where no permit is free, and out of it with a permit or a
//! refusal.

use std::cell::Cell;

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::{Admission, ClientQueue, ONE_TICK};
use crate::dispatcher::queue::tier_queue::{QueueKey, Queued};
use crate::dispatcher::request::Charged;
use crate::policy::Tier;
use crate::protocol::Refusal;

/// A request in the queue, as far as admission is concerned.
pub(crate) trait QueuedRequest {
    fn charged(&self) -> &Charged;

    fn charged_mut(&mut self) -> &mut Charged;

    /// Its client's requests in the queue.
    fn client_queue(&self) -> &Cell<ClientQueue>;

    /// False if its client has left.
    fn is_wanted(&self) -> bool;

    /// True if no single client owns it: it is not refused for being late, and not counted by itself.
    fn is_coalesced(&self) -> bool;

    /// True if it is a part of a request, which counts as a whole.
    fn is_part(&self) -> bool {
        false
    }

    /// True if the request is slow by kind.
    fn is_slow(&self) -> bool;

    /// True if its store connection takes one more such request.
    fn store_has_window(&self) -> bool;

    /// True if it waits however long that takes, and is not refused while its client is there.
    fn must_run(&self) -> bool;

    /// Checks that the store takes requests.
    ///
    /// # Errors
    ///
    /// A refusal, while the circuit breaker is open.
    fn store_accepts(&self, now: Nanos) -> Result<(), Refusal>;
}

/// A request that has left the queue.
#[derive(Debug)]
pub(crate) struct Dequeued<T> {
    pub(crate) request: T,
    pub(crate) bytes: Vec<u8>,
    /// With a permit, or refused without one.
    pub(crate) result: Result<(), Refusal>,
}

impl<T: QueuedRequest> Admission<T> {
    /// Adds a request to the queue, whether or not [`Admission::queue_accepts`] one more.
    pub(crate) fn enqueue(&self, request: T, bytes: &[u8], now: Nanos) {
        let &Charged { tenant, price, class, .. } = request.charged();
        let rank = self.rank_of(tenant, class.tier);
        let wanted = QueueKey { rank, tenant: tenant.0, is_slow: request.is_slow() };
        let (waiting, before) = request.client_queue().get();
        let key = match before.filter(|_| waiting > 0) {
            // A client's requests keep their order: a later one joins the lowest rank of those before it.
            Some(before) => QueueKey { rank: wanted.rank.max(before.rank), ..before },
            None => wanted,
        };
        request.client_queue().set((waiting + 1, Some(key)));
        self.shares.borrow_mut().count_from_now();
        self.policy.enqueued(class);
        self.metrics.of_type(class.query_type).enqueued();
        let cost = u64::from(price.0).max(LEAST_COST);
        self.queue.borrow_mut().push(key, cost, request, bytes, now);
    }

    /// The next request of the queue, if a permit is free.
    pub(crate) fn dequeue(&self, now: Nanos) -> Option<Dequeued<T>> {
        let next = self.queue.borrow_mut().pop(T::store_has_window)?;
        let (tier, Queued { item: mut request, bytes, since, .. }, behind) = next;
        let waited = now.saturating_sub(since);
        self.on_dequeued(&request);
        let is_delayed = self.note_wait(request.charged(), (tier, waited, behind), now);
        let result = self.check_dequeued(&request, waited, is_delayed, now);
        match result {
            Ok(()) => self.count_passed(&self.ledger.borrow(), request.charged_mut()),
            Err(refusal) => {
                self.release_permit();
                self.refuse_queued(&request, refusal);
            }
        }
        Some(Dequeued { request, bytes, result })
    }

    /// A request of the queue that has waited too long while no permit became free. It is refused.
    pub(crate) fn expire(&self, now: Nanos) -> Option<Dequeued<T>> {
        let has_expired = |tier, queued: &Queued<T>| {
            let waited = now.saturating_sub(queued.since);
            let charged = queued.item.charged();
            let may_be_refused = !charged.shadow && !queued.item.must_run();
            self.is_late(&queued.item, waited) || (may_be_refused && self.has_expired(charged, tier, waited))
        };
        let (tier, Queued { item: request, bytes, since, .. }) =
            self.queue.borrow_mut().pop_expired(has_expired)?;
        let waited = now.saturating_sub(since);
        self.on_dequeued(&request);
        self.note_wait(request.charged(), (tier, waited, 0), now);
        let refusal = if self.is_late(&request, waited) { LATE } else { self.delay_refusal() };
        self.refuse_queued(&request, refusal);
        Some(Dequeued { request, bytes, result: Err(refusal) })
    }

    /// All requests of the queue whose reply nobody wants any more, wherever they wait. They are refused.
    pub(crate) fn remove_late(&self, now: Nanos) -> Vec<Dequeued<T>> {
        let is_late = |queued: &Queued<T>| self.is_late(&queued.item, now.saturating_sub(queued.since));
        let removed = self.queue.borrow_mut().remove_lost(is_late);
        let refused = removed.into_iter().map(|(tier, Queued { item: request, bytes, since, .. })| {
            self.on_dequeued(&request);
            self.note_wait(request.charged(), (tier, now.saturating_sub(since), 0), now);
            self.refuse_queued(&request, LATE);
            Dequeued { request, bytes, result: Err(LATE) }
        });
        refused.collect()
    }

    /// Publishes the queue's state and the cost samples. `is_first` is true in the thread that acts for all.
    pub(crate) fn tick(&self, is_first: bool, now: Nanos) {
        for tier in Tier::ALL {
            let (waiting, since) = self.queue.borrow().waiting(tier);
            let first = now.saturating_sub(since.unwrap_or(now));
            self.metrics.set_queue(tier, self.delay.borrow_mut().read(tier, waiting, first));
        }
        if let Some(latencies) = &self.latencies {
            let peak = self.queue.borrow_mut().permits().take_peak();
            let mut latencies = latencies.borrow_mut();
            let adaptive = latencies.submit(peak);
            if is_first {
                self.policy.set_parallelism(adaptive.tick(now, self.ledger.borrow_mut().draw()));
            }
        }
        if is_first {
            self.policy.refresh(now);
        }
        self.share(is_first, now);
        self.metrics.cost_samples.submit(&self.cost_window);
        self.measure.set(self.metrics.cost_samples.measure());
    }

    fn on_dequeued(&self, request: &T) {
        let (waiting, last) = request.client_queue().get();
        request.client_queue().set((waiting - 1, last));
        let class = request.charged().class;
        self.policy.dequeued(class);
        self.metrics.of_type(class.query_type).dequeued();
    }

    /// Decides if a request that has waited so long still goes to the store.
    fn check_dequeued(
        &self,
        request: &T,
        waited: Nanos,
        is_delayed: bool,
        now: Nanos,
    ) -> Result<(), Refusal> {
        if self.is_late(request, waited) {
            return Err(LATE);
        }
        if request.must_run() {
            return Ok(());
        }
        request.store_accepts(now)?;
        let &Charged { tenant, price, shadow, .. } = request.charged();
        if is_delayed && !shadow {
            return Err(self.delay_refusal());
        }
        let only_counted = [
            (is_delayed, Reason::QueueDelay),
            (shadow && !request.is_coalesced() && self.is_past_deadline(request, waited), Reason::Deadline),
        ];
        for (_, reason) in only_counted.into_iter().filter(|(would_refuse, _)| *would_refuse) {
            self.ledger.borrow().count_refusal(tenant, reason, price, true);
        }
        Ok(())
    }

    /// True if nobody wants the reply to a request that has waited so long.
    fn is_late(&self, request: &T, waited: Nanos) -> bool {
        let is_refused = self.is_past_deadline(request, waited) && !request.charged().shadow;
        !request.is_coalesced() && (is_refused || !request.is_wanted())
    }

    fn is_past_deadline(&self, request: &T, waited: Nanos) -> bool {
        !request.must_run() && self.deadline.get().is_some_and(|deadline| waited > deadline)
    }

    fn delay_refusal(&self) -> Refusal {
        Refusal::after(Reason::QueueDelay, self.delay.borrow().retry_after().max(ONE_TICK))
    }

    fn refuse_queued(&self, request: &T, refusal: Refusal) {
        let charged = request.charged();
        if request.is_part() {
            return;
        }
        if !charged.is_counted {
            self.refuse(&mut self.ledger.borrow_mut(), charged, refusal);
        } else if !request.is_coalesced() {
            self.count_refusal(charged.tenant, refusal.reason);
        }
    }
}

/// The refusal of a request whose reply nobody wants any more.
const LATE: Refusal = Refusal::of(Reason::Deadline);
/// The least that a request counts when tenants take turns, in thousandths of an RU: a coalesced one has no price.
const LEAST_COST: u64 = 1_000;
