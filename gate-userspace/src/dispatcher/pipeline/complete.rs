//! What becomes of those who follow a flight.

use std::rc::Rc;
use std::sync::Arc;

use gate_common::units::Nanos;

use super::Service;
use super::dispatch::Held;
use crate::clock;
use crate::dispatcher::hot_cache::flights::{Completion, Flight};
use crate::dispatcher::hot_cache::{CacheRole, Follower};
use crate::dispatcher::wire::Wire;

impl<W: Wire> Service<W> {
    /// Hears what becomes of flights, for ever.
    pub(crate) async fn receive_completions(self: Rc<Self>) {
        let Some(mut mailbox) = self.hot.mailbox() else { return };
        while let Some((flight, note)) = mailbox.recv().await {
            self.complete_followers(&flight, &note, clock::monotonic());
            self.flush_pending();
        }
    }

    /// A flight that clients of this thread follow has landed, or its answer may be kept.
    fn complete_followers(&self, flight: &Arc<Flight>, note: &Completion, now: Nanos) {
        match note {
            Completion::Cacheable(answer, until) => return self.hot.keep(flight, Some(answer), *until, now),
            Completion::TooLong => self.hot.keep(flight, None, Nanos::MAX, now),
            Completion::Answer(_)
            | Completion::ForOneClient(_)
            | Completion::Retry
            | Completion::Failed(_) => {}
        }
        let Some(following) = self.hot.complete_followers(flight) else { return };
        let mut is_given = false;
        for reader in following.followers {
            let Follower { client, tenant, seq, class } = reader;
            match note {
                Completion::Answer(answer) => self.answer(&client, seq, answer),
                Completion::ForOneClient(answer) if !is_given && !client.is_gone() => {
                    is_given = true;
                    self.answer(&client, seq, answer);
                }
                Completion::Failed(refusal) => {
                    self.count_refusal(tenant, refusal.reason);
                    self.refuse_queued(&client, seq, false, *refusal);
                }
                Completion::TooLong
                | Completion::ForOneClient(_)
                | Completion::Retry
                | Completion::Cacheable(..) => {
                    client.order.send_late(flight.key);
                    let (request, charged, cache_role) = (following.request, None, CacheRole::None);
                    let held = Held { client, tenant, seq, request, class, charged, cache_role };
                    self.enqueue(held, flight.flight_key().request, now);
                }
            }
        }
        self.dispatch(now);
    }
}
