//! What becomes of those who follow a flight.

use std::rc::Rc;
use std::sync::Arc;

use gate_common::units::Nanos;

use super::flights::{Flight, Note};
use super::{Reader, Ticket};
use crate::clock;
use crate::dispatcher::admission::waiting::Held;
use crate::dispatcher::service::Service;
use crate::dispatcher::wire::Wire;

impl<W: Wire> Service<W> {
    /// Hears what becomes of flights, for ever.
    pub(in crate::dispatcher) async fn hear_of_flights(self: Rc<Self>) {
        let Some(mut mailbox) = self.hot.mailbox() else { return };
        while let Some((flight, note)) = mailbox.recv().await {
            self.landed(&flight, &note, clock::monotonic());
            self.deliver();
        }
    }

    /// A flight that clients of this thread follow has landed, or its answer may be kept.
    fn landed(&self, flight: &Arc<Flight>, note: &Note, now: Nanos) {
        match note {
            Note::Keep(answer, until) => return self.hot.keep(flight, Some(answer), *until, now),
            Note::TooLong => self.hot.keep(flight, None, Nanos::MAX, now),
            Note::Answer(_) | Note::ForOne(_) | Note::ForOther | Note::Failed(_) => {}
        }
        let Some(following) = self.hot.landed(flight) else { return };
        let mut is_given = false;
        for reader in following.readers {
            let Reader { client, tenant, place, kind } = reader;
            match note {
                Note::Answer(answer) => self.answer(&client, place, answer),
                Note::ForOne(answer) if !is_given && !client.is_gone() => {
                    is_given = true;
                    self.answer(&client, place, answer);
                }
                Note::Failed(refusal) => {
                    self.count_refusal(tenant, refusal.reason);
                    self.refuse_late(&client, place, false, *refusal);
                }
                Note::TooLong | Note::ForOne(_) | Note::ForOther | Note::Keep(..) => {
                    client.order.send_late(flight.key);
                    let (request, charged, ticket) = (following.request, None, Ticket::None);
                    let held = Held { client, tenant, place, request, kind, charged, ticket };
                    self.enqueue(held, flight.question().request, now);
                }
            }
        }
        self.dispatch(now);
    }
}
