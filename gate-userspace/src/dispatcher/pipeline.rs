//! What a request passes, in order. Everything that can become of it is decided here.
//!
//! classify, price, quota, hot key, admit, queue, store, observe. Decoding is before, in
//! [`Service::requests`]; answers come back through [`super::store`], which observes them
//! ([`Service::left_store`]) and lets the next ones out of the queue ([`Service::dispatch`]).

use std::rc::Rc;

use gate_common::abi::{QueryClass, Reason};
use gate_common::units::{MilliRu, Nanos};

use super::client::{Client, Moving};
use super::counts::ClassFigures;
use super::figures::Event;
use super::hot_cache::order::Turn;
use super::hot_cache::{Asked, Read, Ticket};
use super::ledger::{Charge, Ledger};
use super::queue::Queued;
use super::replies::{Place, Replies};
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
        let turn = Turn { place: replies.next(), first: replies.first() };
        let asked = Asked { client, turn, request, bytes };
        if self.hot.must_wait(asked) {
            return After::Wait;
        }
        let course = W::course(request);
        let denied = client.is_denied(request, bytes) && self.refuses(client, Reason::Unsupported);
        if course == Course::Own && !denied {
            return After::Move(Moving::Own);
        }
        self.figures.count(Event::Request);
        let verdict = if denied {
            Err(Refusal { reason: Reason::Unsupported, retry_after: Nanos::ZERO })
        } else if !client.may_ask(replies.outstanding()) && self.refuses(client, Reason::Limit) {
            Err(Refusal { reason: Reason::Limit, retry_after: Nanos::ZERO })
        } else {
            self.judge(asked, course, now)
        };
        if matches!(verdict, Ok(Verdict::Change)) {
            return After::Move(Moving::Change);
        }
        let place = replies.open();
        match verdict {
            Ok(Verdict::Change) => {}
            Ok(Verdict::Send(kind, ticket)) => {
                let silent = W::is_silent(request);
                let outgoing =
                    Outgoing { client, place, request, bytes, kind, silent, admitted: now, ticket };
                client.store().send(outgoing, now);
            }
            Ok(Verdict::Wait(kind, charged, ticket)) => {
                let (client, request) = (Rc::clone(client), *request);
                let held = Held { client, place, request, kind, charged, ticket };
                self.enqueue(held, bytes, now);
            }
            Ok(Verdict::Hit(answer)) => {
                replies.part(place, &answer);
                replies.whole(place);
            }
            Ok(Verdict::Joined) => {}
            Ok(Verdict::Goodbye) => {
                replies.part(place, W::GOODBYE);
                replies.whole(place);
                return After::Goodbye;
            }
            Ok(Verdict::OwnStats) => {
                let mut stats = Vec::new();
                self.all_figures.write_stats(&mut stats);
                self.tell(client, replies, place, &stats);
            }
            Err(refusal) => {
                self.refuse_at_once(client, replies, place, W::is_silent(request), refusal, now);
            }
        }
        After::Next
    }

    #[inline]
    fn judge(&self, asked: Asked<'_, W>, course: Course, now: Nanos) -> Result<Verdict, Refusal> {
        let Asked { client, request, bytes, .. } = asked;
        let tenant = client.tenant.get();
        let ledger = &mut *self.ledger.borrow_mut();

        // Classify: the tenant is the client's, tier and query type are the request's.
        match course {
            // Who is nobody yet may say who it is.
            Course::Change if self.names_tenant(client, request, bytes, ledger) => {
                return Ok(Verdict::Change);
            }
            Course::Shared | Course::Own | Course::Change => {}
            Course::Quit => return Ok(Verdict::Goodbye),
            Course::OwnStats => return Ok(Verdict::OwnStats),
        }
        let facts = W::facts(request);
        let query_type = QueryType(facts.class.index() as u16);
        let tier = ledger.tier(tenant).max(self.highest_tier(facts.class));
        let kind = admission::Request { tier, query_type };

        // Price and quota.
        let class = query_class(facts.class);
        let price = ledger.price(self.settings.service, 1, facts.rows, bytes.len(), class);
        if client.asks_for_itself() {
            ledger.count_asked(tenant, price);
        }
        let rung = ledger.rung(self.settings.service, kind.tier);
        let charged = match client.charged_ahead(price) {
            Some(charged) => charged,
            None => match ledger.charge(tenant, price, rung, now, client.shadow) {
                Charge::Passed(charged) => charged,
                Charge::Refused(refusal) => return Err(refusal),
            },
        };

        if course == Course::Change {
            ledger.count_passed(tenant, charged);
            return Ok(Verdict::Change);
        }

        // Hot key: a hit is answered here, a read of a key in flight joins it, a write marks its key.
        self.hot.sample(asked, ledger.sample_every(), || ledger.number(self.settings.service));
        let read = if ledger.may_cache(tenant) { self.hot.read(asked, kind, now) } else { Read::Alone };
        let lead = match read {
            Read::Alone => None,
            Read::MayLead(key, version) => Some((key, version)),
            Read::Hit(answer) => {
                count_passed(client, ledger, charged);
                return Ok(Verdict::Hit(answer));
            }
            Read::Joined => {
                count_passed(client, ledger, charged);
                return Ok(Verdict::Joined);
            }
        };
        let ticket = || match lead {
            None => Some(self.hot.ticket(asked)),
            Some(lead) => self.hot.lead(asked, kind, lead),
        };

        // Admit: would it keep its objective?
        let counts = self.figures.class(query_type);
        counts.offered();
        if let Some(retry_after) = self.policy.refuses(kind, now, || ledger.draw()) {
            if !client.shadow {
                return Err(refuse(
                    client,
                    ledger,
                    counts,
                    charged,
                    Refusal { reason: Reason::Slo, retry_after },
                ));
            }
            ledger.count_refusal(tenant, Reason::Slo, charged, true);
        }

        // Queue: at once if there is a place and nobody waits, among them this client.
        let queue = &mut *self.queue.borrow_mut();
        if client.queued.get().0 > 0 || !queue.pass() {
            if !queue.has_room(bytes.len()) {
                let refusal = Refusal { reason: Reason::QueueFull, retry_after: Nanos::ZERO };
                return Err(refuse(client, ledger, counts, charged, refusal));
            }
            let Some(ticket) = ticket() else {
                count_passed(client, ledger, charged);
                return Ok(Verdict::Joined);
            };
            // It is counted when it leaves the queue, unless others follow it.
            let counted = ticket.is_own();
            if counted {
                count_passed(client, ledger, charged);
            }
            return Ok(Verdict::Wait(kind, (!counted).then_some(charged), ticket));
        }

        // Store.
        if let Err(refusal) = client.store().accepts(now) {
            queue.leave();
            return Err(refuse(client, ledger, counts, charged, refusal));
        }
        count_passed(client, ledger, charged);
        let Some(ticket) = ticket() else {
            queue.leave();
            return Ok(Verdict::Joined);
        };
        self.delay.borrow_mut().left(kind.tier, now, Nanos::ZERO, 0);
        Ok(Verdict::Send(kind, ticket))
    }

    /// Whether a client that nobody is charged for names a user that some tenant is charged for.
    fn names_tenant(&self, client: &Client<W>, request: &W::Request, bytes: &[u8], ledger: &Ledger) -> bool {
        let login = || W::change(request, bytes)?.login;
        let tenants = self.tenants.borrow();
        client.is_unknown() && login().is_some_and(|login| tenants.of_user(&login, ledger).is_some())
    }

    /// Counts a request that is not even priced. Whether it is refused in earnest.
    pub(super) fn refuses(&self, client: &Client<W>, reason: Reason) -> bool {
        self.ledger.borrow().count_refusal(client.tenant.get(), reason, MilliRu::ZERO, client.shadow);
        !client.shadow
    }

    /// Puts a request into the queue, whoever waits there.
    pub(super) fn enqueue(&self, held: Held<W>, bytes: &[u8], now: Nanos) {
        let (waiting, lowest) = held.client.queued.get();
        // Behind the client's own requests, whatever it is.
        let tier = if waiting > 0 { held.kind.tier.max(lowest) } else { held.kind.tier };
        held.client.queued.set((waiting + 1, tier));
        self.policy.enqueued(held.kind);
        self.queue.borrow_mut().push(tier, held, bytes, now);
    }

    /// Lets requests out of the queue, as many as there are places.
    pub(super) fn dispatch(&self, now: Nanos) {
        loop {
            let Some((tier, queued, behind)) = self.queue.borrow_mut().pop() else { return };
            let (held, waited) = (queued.item, now.saturating_sub(queued.since));
            self.unqueued(&held);
            let delayed = self.delay.borrow_mut().left(tier, now, waited, behind);
            match self.still_wanted(&held, waited, delayed, now) {
                Ok(()) => {
                    let Held { client, place, request, kind, charged, ticket } = held;
                    charged.iter().for_each(|&charged| count_passed(&client, &self.ledger.borrow(), charged));
                    let (bytes, admitted, silent) = (&queued.bytes, queued.since, W::is_silent(&request));
                    let (client, request) = (&client, &request);
                    let outgoing = Outgoing { client, place, request, bytes, kind, silent, admitted, ticket };
                    client.store().send(outgoing, now);
                }
                Err(refusal) => {
                    self.queue.borrow_mut().leave();
                    self.refuse_held(held, refusal);
                }
            }
            self.queue.borrow_mut().recycle(queued.bytes);
        }
    }

    /// Refuses what has waited too long while no place became free.
    pub(super) fn expire(&self, now: Nanos) {
        loop {
            let lost = |tier, queued: &Queued<Held<W>>| {
                let waited = now.saturating_sub(queued.since);
                self.is_late(&queued.item, waited)
                    || (!queued.item.client.shadow && self.delay.borrow().has_given_up(tier, waited))
            };
            let Some((tier, queued)) = self.queue.borrow_mut().pop_lost(lost) else { return };
            let (held, waited) = (queued.item, now.saturating_sub(queued.since));
            self.unqueued(&held);
            self.delay.borrow_mut().left(tier, now, waited, 0);
            let refusal = if self.is_late(&held, waited) { LATE } else { self.delayed() };
            self.refuse_held(held, refusal);
            self.queue.borrow_mut().recycle(queued.bytes);
        }
    }

    /// A request has left the queue.
    fn unqueued(&self, held: &Held<W>) {
        let (waiting, lowest) = held.client.queued.get();
        held.client.queued.set((waiting - 1, lowest));
        self.policy.dequeued(held.kind);
    }

    /// Whether a request that has waited so long should still go to the store.
    fn still_wanted(&self, held: &Held<W>, waited: Nanos, delayed: bool, now: Nanos) -> Result<(), Refusal> {
        let Held { client, charged, .. } = held;
        if self.is_late(held, waited) {
            return Err(LATE);
        }
        client.store().accepts(now)?;
        if delayed && !client.shadow {
            return Err(self.delayed());
        }
        if delayed {
            let charged = charged.unwrap_or(MilliRu::ZERO);
            self.ledger.borrow().count_refusal(client.tenant.get(), Reason::QueueDelay, charged, true);
        }
        Ok(())
    }

    /// Whether nobody wants the answer any more to a request that has waited so long.
    fn is_late(&self, held: &Held<W>, waited: Nanos) -> bool {
        let late = self.limits.get().deadline.is_some_and(|deadline| waited > deadline);
        // A flight is wanted by whoever follows it.
        !held.ticket.is_own() && (late || held.client.is_gone() || held.client.left.get())
    }

    fn delayed(&self) -> Refusal {
        Refusal { reason: Reason::QueueDelay, retry_after: self.delay.borrow().retry_after() }
    }

    fn refuse_held(&self, held: Held<W>, refusal: Refusal) {
        let Held { client, place, request, kind, charged, ticket } = held;
        if let Some(charged) = charged {
            let counts = self.figures.class(kind.query_type);
            refuse(&client, &mut self.ledger.borrow_mut(), counts, charged, refusal);
        } else if !ticket.is_own() {
            self.count_refusal(&client, refusal.reason);
        }
        if !ticket.is_own() {
            self.refuse_late(&client, place, W::is_silent(&request) || client.left.get(), refusal);
        }
        ticket.refuse(refusal);
    }
}

/// Refuses a request that nobody waits for any more.
const LATE: Refusal = Refusal { reason: Reason::Deadline, retry_after: Nanos::ZERO };

/// Counts a request that passes, unless the kernel has.
#[inline]
fn count_passed<W: Wire>(client: &Client<W>, ledger: &Ledger, charged: MilliRu) {
    if client.charged_ahead(charged).is_none() {
        ledger.count_passed(client.tenant.get(), charged);
    }
}

/// Refuses a request that has been charged: it gets that back.
fn refuse<W: Wire>(
    client: &Client<W>,
    ledger: &mut Ledger,
    counts: &ClassFigures,
    charged: MilliRu,
    refusal: Refusal,
) -> Refusal {
    counts.refused();
    ledger.refund(client.tenant.get(), charged);
    ledger.count_refusal(client.tenant.get(), refusal.reason, charged, false);
    refusal
}

/// A request in the queue.
#[derive(Debug)]
pub(super) struct Held<W: Wire> {
    pub(super) client: Rc<Client<W>>,
    pub(super) place: Place,
    pub(super) request: W::Request,
    pub(super) kind: admission::Request,
    /// What it has paid, unless it has been counted as passed.
    pub(super) charged: Option<MilliRu>,
    pub(super) ticket: Ticket,
}

/// What becomes of a client after its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It is listened to.
    Next,
    /// It is listened to once its reads have landed, from this request on.
    Wait,
    /// It has said goodbye.
    Goodbye,
    /// It goes elsewhere, before this request.
    Move(Moving),
}

/// What becomes of a request that is not refused.
enum Verdict {
    Send(admission::Request, Ticket),
    Wait(admission::Request, Option<MilliRu>, Ticket),
    Hit(Rc<[u8]>),
    Joined,
    Goodbye,
    OwnStats,
    Change,
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
