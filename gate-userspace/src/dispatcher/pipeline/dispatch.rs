//! The queue before the store: how requests join it and leave it.

use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::Service;
use super::in_flight::InFlight;
use super::request::{count_passed, refuse};
use super::session::Session;
use super::streaming::StreamedRequest;
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::queue::tier_queue::{Queue, Queued};
use crate::dispatcher::stores::events::FollowUp;
use crate::dispatcher::wire::Wire;
use crate::protocol::Refusal;

/// A request in the queue.
pub(crate) type QueueItem<W> = (InFlight<Rc<Session<W>>>, <W as Wire>::Request);

impl<W: Wire> Service<W> {
    /// Puts a request into the queue, whoever waits there.
    pub(crate) fn enqueue(
        &self,
        in_flight: InFlight<Rc<Session<W>>>,
        request: W::Request,
        bytes: &[u8],
        now: Nanos,
    ) {
        self.enqueue_in(&mut self.queue.borrow_mut(), (in_flight, request), bytes, now);
    }

    pub(crate) fn enqueue_in(
        &self,
        queue: &mut Queue<QueueItem<W>>,
        item: QueueItem<W>,
        bytes: &[u8],
        now: Nanos,
    ) {
        let (client, class) = (&item.0.client, item.0.class);
        let (waiting, lowest) = client.queued.get();
        // A client's requests keep their order: a later one joins the lowest tier of those before it.
        let tier = if waiting > 0 { class.tier.max(lowest) } else { class.tier };
        client.queued.set((waiting + 1, tier));
        self.policy.enqueued(class);
        self.metrics.of_type(class.query_type).enqueued();
        queue.push(tier, item, bytes, now);
    }

    /// Sends requests from the queue, as many as there are permits.
    pub(crate) fn dispatch(&self, now: Nanos) {
        loop {
            let Some((tier, queued, behind)) = self.queue.borrow_mut().pop() else { return };
            let ((mut in_flight, request), waited) = (queued.item, now.saturating_sub(queued.since));
            self.on_dequeued(&in_flight);
            let delay_refusal = self.delay.borrow_mut().left(tier, now, waited, behind);
            match self.check_still_wanted(&in_flight, waited, delay_refusal, now) {
                Ok(()) => {
                    if !std::mem::replace(&mut in_flight.is_counted, true) {
                        let InFlight { client, tenant, charged, .. } = &in_flight;
                        count_passed(client, *tenant, &self.ledger.borrow(), *charged);
                    }
                    self.submit(in_flight, &request, &queued.bytes, &mut self.queue.borrow_mut(), now);
                }
                Err(refusal) => {
                    self.queue.borrow_mut().leave();
                    self.refuse_queued_request(in_flight, refusal);
                }
            }
            self.queue.borrow_mut().recycle(queued.bytes);
        }
    }

    /// Sends a request that has a concurrency permit. A request whose body is still to come gives it back for now.
    #[inline(always)]
    pub(crate) fn submit(
        &self,
        in_flight: InFlight<Rc<Session<W>>>,
        request: &W::Request,
        bytes: &[u8],
        queue: &mut Queue<QueueItem<W>>,
        now: Nanos,
    ) {
        if W::is_streamed(request) {
            queue.leave();
            let (client, in_flight) = in_flight.split();
            client.start_streaming(StreamedRequest::new(in_flight, client.tenant.get(), request, bytes, now));
            return;
        }
        let store = in_flight.client.store();
        let follow_up = match in_flight.cache_role {
            CacheRole::LeadFlight(_) => query_ttl(&in_flight, request, bytes),
            _ => None,
        };
        store.send(in_flight, request, bytes, follow_up, now);
    }

    /// Refuses what has waited too long while no place became free.
    pub(crate) fn expire(&self, now: Nanos) {
        loop {
            let lost = |tier, queued: &Queued<QueueItem<W>>| {
                let waited = now.saturating_sub(queued.since);
                self.is_past_deadline(&queued.item.0, waited)
                    || (!queued.item.0.client.shadow && self.delay.borrow().has_expired(tier, waited))
            };
            let Some((tier, queued)) = self.queue.borrow_mut().pop_expired(lost) else { return };
            let ((in_flight, _), waited) = (queued.item, now.saturating_sub(queued.since));
            self.on_dequeued(&in_flight);
            self.delay.borrow_mut().left(tier, now, waited, 0);
            let refusal = if self.is_past_deadline(&in_flight, waited) { LATE } else { self.delay_refusal() };
            self.refuse_queued_request(in_flight, refusal);
            self.queue.borrow_mut().recycle(queued.bytes);
        }
    }

    /// A request has left the queue.
    fn on_dequeued(&self, in_flight: &InFlight<Rc<Session<W>>>) {
        let (waiting, lowest) = in_flight.client.queued.get();
        in_flight.client.queued.set((waiting - 1, lowest));
        self.policy.dequeued(in_flight.class);
        self.metrics.of_type(in_flight.class.query_type).dequeued();
    }

    /// Whether a request that has waited so long should still go to the store.
    fn check_still_wanted(
        &self,
        in_flight: &InFlight<Rc<Session<W>>>,
        waited: Nanos,
        delay_refusal: bool,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let InFlight { client, tenant, charged, .. } = in_flight;
        if self.is_past_deadline(in_flight, waited) {
            return Err(LATE);
        }
        client.store().accepts(now)?;
        if delay_refusal && !client.shadow {
            return Err(self.delay_refusal());
        }
        if delay_refusal {
            self.ledger.borrow().count_refusal(*tenant, Reason::QueueDelay, *charged, true);
        }
        Ok(())
    }

    /// Whether nobody wants the answer any more to a request that has waited so long.
    fn is_past_deadline(&self, in_flight: &InFlight<Rc<Session<W>>>, waited: Nanos) -> bool {
        let late = self.limits.get().deadline.is_some_and(|deadline| waited > deadline);
        // A flight is wanted by whoever follows it.
        !in_flight.cache_role.is_coalesced()
            && (late || in_flight.client.is_gone() || in_flight.client.left.get())
    }

    fn delay_refusal(&self) -> Refusal {
        Refusal::after(Reason::QueueDelay, self.delay.borrow().retry_after())
    }

    fn refuse_queued_request(&self, in_flight: InFlight<Rc<Session<W>>>, refusal: Refusal) {
        let InFlight { client, tenant, charged, is_counted, seq, class, silent, cache_role, .. } = in_flight;
        if !is_counted {
            let counts = self.metrics.of_type(class.query_type);
            refuse(tenant, &mut self.ledger.borrow_mut(), counts, charged, refusal);
        } else if !cache_role.is_coalesced() {
            self.count_refusal(tenant, refusal.reason);
        }
        if !cache_role.is_coalesced() {
            self.refuse_queued(&client, seq, silent || client.left.get(), refusal);
        }
        cache_role.fail(refusal);
    }
}

/// The query for the TTL of the key that a flight reads, to be sent behind it.
fn query_ttl<W: Wire>(
    flight: &InFlight<Rc<Session<W>>>,
    request: &W::Request,
    bytes: &[u8],
) -> Option<FollowUp<Service<W>>> {
    let (request, bytes) = W::query_ttl(request, bytes)?;
    let (client, cache_role) = (Rc::clone(&flight.client), CacheRole::QueryTtl(None));
    let in_flight = InFlight { client, silent: true, cache_role, ..*flight };
    Some(FollowUp { in_flight, request, bytes })
}

/// The refusal of a request that nobody waits for any more.
const LATE: Refusal = Refusal::of(Reason::Deadline);
