//! What a request passes, in order. Everything that can become of it is decided here.
//!
//! classify, price, quota, hot key, admit, queue, store, observe; decoding is before, in
//! [`Service::requests`], and answers come back through [`super::store`].

use std::rc::Rc;

use gate_common::abi::{QueryClass, Reason};
use gate_common::units::Nanos;

use super::client::Client;
use super::figures::Event;
use super::ledger::Charge;
use super::replies::Replies;
use super::service::Service;
use super::store::Outgoing;
use super::wire::{Course, Wire};
use crate::policy::admission::{self, QueryType};
use crate::protocol::{Class, Refusal};

impl<W: Wire> Service<W> {
    /// Takes a decoded request through the pipeline.
    #[inline]
    pub(super) fn request(
        &self,
        client: &Rc<Client<W>>,
        replies: &mut Replies,
        request: &W::Request,
        bytes: &[u8],
        now: Nanos,
    ) -> After {
        let course = W::course(request);
        if course == Course::Own {
            return After::Own;
        }
        self.figures.count(Event::Request);
        let place = replies.open();
        match self.admit(client, request, course, bytes, now) {
            Ok(Verdict::Send(kind)) => {
                let outgoing = Outgoing { client, place, request, bytes, kind };
                self.stores[client.lane].send(&outgoing, now);
            }
            Ok(Verdict::Goodbye) => {
                replies.part(place, W::GOODBYE);
                replies.whole(place);
                return After::Goodbye;
            }
            Ok(Verdict::OwnStats) => {
                let mut stats = Vec::new();
                self.all_figures.write_stats(&mut stats);
                replies.part(place, &stats);
                replies.whole(place);
            }
            Err(_) if W::is_silent(request) => replies.whole(place),
            Err(refusal) => replies.refuse(place, refusal),
        }
        After::Next
    }

    fn admit(
        &self,
        client: &Client<W>,
        request: &W::Request,
        course: Course,
        bytes: &[u8],
        now: Nanos,
    ) -> Result<Verdict, Refusal> {
        let tenant = client.tenant.get();
        let mut ledger = self.ledger.borrow_mut();

        // Classify: tenant and shadow are the client's; tier and query type the request's.
        let facts = W::facts(request);
        let kind = admission::Request {
            tier: ledger.tier(tenant),
            query_type: QueryType(facts.class.index() as u16),
        };
        match course {
            Course::Shared | Course::Own => {}
            Course::Quit => return Ok(Verdict::Goodbye),
            Course::OwnStats => return Ok(Verdict::OwnStats),
        }

        // Price and quota.
        let price = ledger.price(self.settings.service, 1, facts.rows, bytes.len(), query_class(facts.class));
        if let Charge::Refused(refusal) = ledger.charge(tenant, price, now, client.shadow) {
            return Err(refusal);
        }

        // Hot key: a hit is answered here, a read of a key in flight joins it, a write marks its key.
        // (The state machine for this does not exist yet.)

        // Admit.

        // Queue.

        // Store.
        self.stores[client.lane].accepts(now).inspect_err(|_| {
            ledger.count_refusal(tenant, Reason::StoreDown, price, false);
        })?;
        Ok(Verdict::Send(kind))
    }
}

/// What becomes of a client after its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It is listened to.
    Next,
    /// It has said goodbye.
    Goodbye,
    /// It needs a connection to the store that no one else uses, before this request.
    Own,
}

/// What becomes of a request that is not refused.
enum Verdict {
    Send(admission::Request),
    Goodbye,
    OwnStats,
}

/// The class for which XDP and daemon agree on what latency to expect.
const fn query_class(class: Class) -> QueryClass {
    match class {
        Class::Get => QueryClass::Get,
        Class::Mget => QueryClass::MultiGet,
        Class::Set => QueryClass::Set,
        Class::Delete => QueryClass::Delete,
        Class::Counter => QueryClass::Arithmetic,
        Class::Touch => QueryClass::Touch,
        _ => QueryClass::Other,
    }
}
