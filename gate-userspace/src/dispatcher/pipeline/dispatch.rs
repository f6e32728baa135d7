//! Requests that wait for a place before the store: how they join the queue and leave it.

use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};

use super::Service;
use super::request::{count_passed, refuse};
use crate::dispatcher::clients::client::Client;
use crate::dispatcher::clients::replies::SeqNo;
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::queue::tier_queue::{Queue, Queued};
use crate::dispatcher::stores::connection::Outgoing;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::Wire;
use crate::policy::admission;
use crate::protocol::Refusal;
impl<W: Wire> Service<W> {
    /// Puts a request into the queue, whoever waits there.
    pub(crate) fn enqueue(&self, held: Held<W>, bytes: &[u8], now: Nanos) {
        self.enqueue_in(&mut self.queue.borrow_mut(), held, bytes, now);
    }

    pub(crate) fn enqueue_in(&self, queue: &mut Queue<Held<W>>, held: Held<W>, bytes: &[u8], now: Nanos) {
        let (waiting, lowest) = held.client.queued.get();
        // Behind the client's own requests, whatever it is.
        let tier = if waiting > 0 { held.class.tier.max(lowest) } else { held.class.tier };
        held.client.queued.set((waiting + 1, tier));
        self.policy.enqueued(held.class);
        self.metrics.of_type(held.class.query_type).enqueued();
        queue.push(tier, held, bytes, now);
    }

    /// Lets requests out of the queue, as many as there are places.
    pub(crate) fn dispatch(&self, now: Nanos) {
        loop {
            let Some((tier, queued, behind)) = self.queue.borrow_mut().pop() else { return };
            let (held, waited) = (queued.item, now.saturating_sub(queued.since));
            self.on_dequeued(&held);
            let delay_refusal = self.delay.borrow_mut().left(tier, now, waited, behind);
            match self.check_still_wanted(&held, waited, delay_refusal, now) {
                Ok(()) => {
                    let Held { client, tenant, seq, request, class, charged, cache_role } = held;
                    if let Some(charged) = charged {
                        count_passed(&client, tenant, &self.ledger.borrow(), charged);
                    }
                    let (bytes, admitted, silent) =
                        (&queued.bytes, queued.since, W::wants_no_reply(&request));
                    let (client, request) = (&client, &request);
                    let paid = charged.unwrap_or(MilliRu::ZERO);
                    let outgoing = Outgoing {
                        client,
                        tenant,
                        paid,
                        seq,
                        request,
                        bytes,
                        class,
                        silent,
                        admitted,
                        cache_role,
                    };
                    self.submit(outgoing, &mut self.queue.borrow_mut(), now);
                }
                Err(refusal) => {
                    self.queue.borrow_mut().leave();
                    self.refuse_queued_request(held, refusal);
                }
            }
            self.queue.borrow_mut().recycle(queued.bytes);
        }
    }

    /// Refuses what has waited too long while no place became free.
    pub(crate) fn expire(&self, now: Nanos) {
        loop {
            let lost = |tier, queued: &Queued<Held<W>>| {
                let waited = now.saturating_sub(queued.since);
                self.is_past_deadline(&queued.item, waited)
                    || (!queued.item.client.shadow && self.delay.borrow().has_expired(tier, waited))
            };
            let Some((tier, queued)) = self.queue.borrow_mut().pop_expired(lost) else { return };
            let (held, waited) = (queued.item, now.saturating_sub(queued.since));
            self.on_dequeued(&held);
            self.delay.borrow_mut().left(tier, now, waited, 0);
            let refusal = if self.is_past_deadline(&held, waited) { LATE } else { self.delay_refusal() };
            self.refuse_queued_request(held, refusal);
            self.queue.borrow_mut().recycle(queued.bytes);
        }
    }

    /// A request has left the queue.
    fn on_dequeued(&self, held: &Held<W>) {
        let (waiting, lowest) = held.client.queued.get();
        held.client.queued.set((waiting - 1, lowest));
        self.policy.dequeued(held.class);
        self.metrics.of_type(held.class.query_type).dequeued();
    }

    /// Whether a request that has waited so long should still go to the store.
    fn check_still_wanted(
        &self,
        held: &Held<W>,
        waited: Nanos,
        delay_refusal: bool,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let Held { client, tenant, charged, .. } = held;
        if self.is_past_deadline(held, waited) {
            return Err(LATE);
        }
        client.store().accepts(now)?;
        if delay_refusal && !client.shadow {
            return Err(self.delay_refusal());
        }
        if delay_refusal {
            let charged = charged.unwrap_or(MilliRu::ZERO);
            self.ledger.borrow().count_refusal(*tenant, Reason::QueueDelay, charged, true);
        }
        Ok(())
    }

    /// Whether nobody wants the answer any more to a request that has waited so long.
    fn is_past_deadline(&self, held: &Held<W>, waited: Nanos) -> bool {
        let late = self.limits.get().deadline.is_some_and(|deadline| waited > deadline);
        // A flight is wanted by whoever follows it.
        !held.cache_role.is_own() && (late || held.client.is_gone() || held.client.left.get())
    }

    fn delay_refusal(&self) -> Refusal {
        Refusal::after(Reason::QueueDelay, self.delay.borrow().retry_after())
    }

    fn refuse_queued_request(&self, held: Held<W>, refusal: Refusal) {
        let Held { client, tenant, seq, request, class, charged, cache_role } = held;
        if let Some(charged) = charged {
            let counts = self.metrics.of_type(class.query_type);
            refuse(tenant, &mut self.ledger.borrow_mut(), counts, charged, refusal);
        } else if !cache_role.is_own() {
            self.count_refusal(tenant, refusal.reason);
        }
        if !cache_role.is_own() {
            self.refuse_queued(&client, seq, W::wants_no_reply(&request) || client.left.get(), refusal);
        }
        cache_role.refuse(refusal);
    }
}

/// A request in the queue.
#[derive(Debug)]
pub(crate) struct Held<W: Wire> {
    pub(crate) client: Rc<Client<W>>,
    /// Who is charged.
    pub(crate) tenant: TenantId,
    pub(crate) seq: SeqNo,
    pub(crate) request: W::Request,
    pub(crate) class: admission::Request,
    /// What it has paid, unless it has been counted as passed.
    pub(crate) charged: Option<MilliRu>,
    pub(crate) cache_role: CacheRole,
}

/// Refuses a request that nobody waits for any more.
const LATE: Refusal = Refusal::of(Reason::Deadline);
