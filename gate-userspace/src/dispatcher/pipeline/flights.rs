//! The end of flights of hot keys, for the clients of this thread that follow them.

use std::rc::Rc;
use std::sync::Arc;

use gate_common::units::Nanos;

use super::queue_item::QueueItem;
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::hot_cache::flights::{Completion, Flight};
use crate::dispatcher::hot_cache::{CacheRole, Followers};
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::Wire;
use crate::protocol::Refusal;

impl<W: Wire> Service<W> {
    /// Hears what becomes of flights, for ever.
    pub(crate) async fn receive_completions(self: Rc<Self>) {
        let Some(mut mailbox) = self.hot.mailbox() else { return };
        while let Some((flight, note)) = mailbox.recv().await {
            self.complete_followers(&flight, &note, clock::monotonic());
            self.flush_pending();
        }
    }

    /// A flight that clients of this thread follow has completed, or its answer may be kept.
    fn complete_followers(&self, flight: &Arc<Flight>, note: &Completion, now: Nanos) {
        match note {
            Completion::Cacheable(answer, until) => return self.hot.keep(flight, Some(answer), *until, now),
            Completion::TooLong => self.hot.keep(flight, None, Nanos::MAX, now),
            Completion::Answer(_)
            | Completion::ForOneClient(_)
            | Completion::Retry
            | Completion::Failed(_)
            | Completion::Declined(..) => {}
        }
        let Some(following) = self.hot.complete_followers(flight) else { return };
        let following = match note {
            Completion::Declined(tenant, refusal) => self.decline(following, *tenant, *refusal, now),
            Completion::Answer(_)
            | Completion::TooLong
            | Completion::ForOneClient(_)
            | Completion::Retry
            | Completion::Failed(_)
            | Completion::Cacheable(..) => Some(following),
        };
        let Some(following) = following else { return self.dispatch(now) };
        let mut is_given = false;
        for follower in following.followers {
            let client = &follower.client;
            let seq = follower.seq;
            match note {
                Completion::Answer(answer) => self.answer(client, seq, answer),
                Completion::ForOneClient(answer) if !is_given && !client.is_gone() => {
                    is_given = true;
                    self.answer(client, seq, answer);
                }
                Completion::Failed(refusal) => {
                    self.admission.count_refusal(follower.charged.tenant, refusal.reason);
                    self.refuse_queued(client, seq, false, *refusal);
                }
                Completion::TooLong
                | Completion::ForOneClient(_)
                | Completion::Retry
                | Completion::Declined(..)
                | Completion::Cacheable(..) => {
                    client.order.send_late(flight.key);
                    let mut in_flight = follower.with_role(CacheRole::None);
                    in_flight.charged.at = now;
                    let item = QueueItem::Shared { in_flight, request: following.request };
                    self.admission.enqueue(item, flight.flight_key().request, now);
                }
            }
        }
        self.dispatch(now);
    }

    /// Refuses those who follow a flight that was refused for the sake of their tenant, or would be refused as well, and has the others
    /// lead one anew. Returns those who have to ask for themselves.
    fn decline(
        &self,
        mut following: Followers<W, Session<W>>,
        tenant: TenantId,
        refusal: Refusal,
        now: Nanos,
    ) -> Option<Followers<W, Session<W>>> {
        let (refused, mut others): (Vec<_>, Vec<_>) = following.followers.into_iter().partition(|follower| {
            let charged = &follower.charged;
            !charged.shadow && (charged.tenant == tenant || !self.admission.may_wait_on(charged, now))
        });
        for follower in refused {
            self.admission.count_refusal(follower.charged.tenant, refusal.reason);
            self.refuse_queued(&follower.client, follower.seq, false, refusal);
        }
        let ranks = others.iter().map(|follower| self.admission.rank(&follower.charged)).enumerate();
        let (first, rank) = ranks.min_by_key(|&(_, rank)| rank)?;
        others.swap(0, first);
        following.followers = others;
        let request = following.request;
        match self.hot.lead_anew(following, rank, now) {
            Ok(Some(read)) => {
                let CacheRole::LeadFlight(leading) = &read.cache_role else { return None };
                let flight = Arc::clone(leading.flight());
                let item = QueueItem::Shared { in_flight: read, request };
                self.admission.enqueue(item, flight.flight_key().request, now);
                None
            }
            Ok(None) => None,
            Err(following) => Some(following),
        }
    }
}
