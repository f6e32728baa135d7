//! What a request passes, in order. Everything that can become of it is decided here.
//!
//! classify, price, quota, hot key, admit, queue, store, observe. Decoding is before, in
//! [`Service::requests`]; answers come back through [`super::stores::store`], which observes them
//! ([`Service::left_store`]) and lets the next ones out of the queue ([`Service::dispatch`]).

use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};

use super::admission::waiting::Held;
use super::clients::client::{Client, Moving};
use super::clients::replies::Replies;
use super::figures::Event;
use super::figures::counts::TypeFigures;
use super::hot_cache::order::Turn;
use super::hot_cache::{Asked, Read, Way};
use super::service::Service;
use super::stores::store::Outgoing;
use super::tenants::ledger::{Charge, Ledger, TenantId};
use super::wire::{Course, Wire};
use crate::policy::admission;
use crate::protocol::{Facts, Refusal};

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
        let (tenant, denied) = client.tenant_for(request, bytes);
        let asked = Asked { client, tenant, turn, request, bytes };
        if self.hot.must_wait(asked) {
            return After::Wait;
        }
        if let Some(refusal) = client.refused_with_multi(request) {
            self.refuse_with_multi(client, replies, request, refusal, now);
            return After::Next;
        }
        let course = W::course(request);
        let denied = denied && self.refuses(client, tenant, Reason::Unsupported);
        if course == Course::Own && !denied {
            client.awaits_replicas.set(W::awaits_replicas(request));
            return After::Move(Moving::Own);
        }
        self.figures.count(Event::Request);
        let verdict = if denied {
            Err(Refusal::of(Reason::Unsupported))
        } else if !client.may_ask(replies.outstanding())
            && self.refuses(client, client.tenant.get(), Reason::Limit)
        {
            Err(Refusal::of(Reason::Limit))
        } else if self.is_too_long(request, bytes) && self.refuses(client, tenant, Reason::TooLarge) {
            Err(Refusal::of(Reason::TooLarge))
        } else {
            match course {
                Course::Shared | Course::Own => self.judge(asked, now),
                Course::Change => self.judge_change(asked, now),
                Course::Quit => Ok(Verdict::Goodbye),
                Course::OwnStats => self.judge_own_stats(asked, now),
            }
        };
        match &verdict {
            Ok(Verdict::Hit(answer)) => {
                replies.answer(answer);
                return After::Next;
            }
            Ok(Verdict::Change) => return After::Move(Moving::Change),
            _ => {}
        }
        let sends_body = W::is_streamed(request) && matches!(verdict, Ok(Verdict::Sent));
        let place = replies.open();
        debug_assert!(place == turn.place, "what has been sent is answered in its place");
        match verdict {
            Ok(Verdict::Sent | Verdict::Hit(_) | Verdict::Change) => {}
            Ok(Verdict::Goodbye) => {
                replies.part(place, W::GOODBYE);
                replies.whole(place);
                return After::Goodbye;
            }
            Ok(Verdict::OwnStats) => {
                self.tell(
                    client,
                    replies,
                    place,
                    self.own_stats.borrow_mut().document(&self.all_figures, now),
                );
            }
            Err(refusal) => {
                client.note_refused(request, refusal);
                self.refuse_at_once(client, replies, place, W::is_silent(request), refusal, now);
            }
        }
        if sends_body { After::Body } else { After::Next }
    }

    /// What becomes of a request for the store.
    #[inline]
    fn judge(&self, asked: Asked<'_, W>, now: Nanos) -> Result<Verdict, Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        let kind = self.classify(asked, ledger);
        let charged = self.charge(asked, kind, ledger, now)?;

        // Hot key: a hit is answered here, a read of a key in flight joins it, a write marks its key.
        self.hot.sample(asked, self.settings.service, ledger);
        let may_cache = ledger.may_cache(asked.tenant);
        let way = match if may_cache { self.hot.read(asked, kind, now) } else { Read::ALONE } {
            Read::ToStore(way) => way,
            Read::Hit(answer) => {
                count_passed(asked.client, asked.tenant, ledger, charged);
                return Ok(Verdict::Hit(answer));
            }
            Read::Joined => {
                count_passed(asked.client, asked.tenant, ledger, charged);
                return Ok(Verdict::Sent);
            }
        };
        self.admit(asked, kind, charged, ledger, now)?;
        self.send(asked, kind, charged, way, ledger, now)?;
        Ok(Verdict::Sent)
    }

    /// The tenant is known already; tier and query type are the request's.
    #[inline(always)]
    fn classify(&self, asked: Asked<'_, W>, ledger: &mut Ledger) -> admission::Request {
        let tier = ledger.tier(asked.tenant);
        self.types.borrow().classify::<W>(tier, asked.request, asked.bytes)
    }

    /// Price and quota: what it has been charged.
    #[inline(always)]
    fn charge(
        &self,
        asked: Asked<'_, W>,
        kind: admission::Request,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<MilliRu, Refusal> {
        let Asked { client, tenant, request, .. } = asked;
        let (facts, service) = (W::facts(request), self.settings.service);
        let price = ledger.price(service, 1, facts.rows, length(facts), W::price_class(facts.class));
        if client.asks_for_itself(tenant) {
            ledger.count_asked(tenant, price);
        }
        let rung = ledger.rung(service, kind.tier);
        if client.is_judged() {
            // It has been charged this, at least, unless it is shadowed.
            return Ok(if client.shadow { MilliRu::ZERO } else { ledger.dear(tenant, price, rung) });
        }
        match ledger.charge(tenant, price, rung, now, client.shadow) {
            Charge::Passed(charged) => Ok(charged),
            Charge::Refused(refusal) => Err(refusal),
        }
    }

    /// Admission: would it keep its objective?
    #[inline]
    fn admit(
        &self,
        asked: Asked<'_, W>,
        kind: admission::Request,
        charged: MilliRu,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let counts = self.figures.of_type(kind.query_type);
        counts.offered(kind.tier);
        let Some(retry_after) = self.policy.refuses(kind, now, || ledger.draw()) else { return Ok(()) };
        if asked.client.shadow {
            ledger.count_refusal(asked.tenant, Reason::Slo, charged, true);
            return Ok(());
        }
        Err(refuse(asked.tenant, ledger, counts, charged, Refusal::after(Reason::Slo, retry_after)))
    }

    /// Sends it to the store if there is a place and nobody waits, among them this client; else it queues. Of a hot
    /// key's reads one is sent, which the others follow.
    #[inline]
    fn send(
        &self,
        asked: Asked<'_, W>,
        kind: admission::Request,
        charged: MilliRu,
        way: Way,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let Asked { client, tenant, turn: Turn { place, .. }, request, bytes } = asked;
        let queue = &mut *self.queue.borrow_mut();
        let at_once = client.queued.get().0 == 0 && queue.pass();
        let accepted = match at_once {
            true => client.store().accepts(now).inspect_err(|_| queue.leave()),
            false if queue.has_room(bytes.len()) => Ok(()),
            false => Err(Refusal::of(Reason::QueueFull)),
        };
        let counts = self.figures.of_type(kind.query_type);
        accepted.map_err(|refusal| refuse(tenant, ledger, counts, charged, refusal))?;

        let ticket = match way {
            Way::Alone(key) => self.hot.ticket(asked, key),
            Way::MayLead(key, version) => match self.hot.lead(asked, kind, (key, version)) {
                Some(ticket) => ticket,
                None => {
                    if at_once {
                        queue.leave();
                    }
                    count_passed(client, tenant, ledger, charged);
                    return Ok(());
                }
            },
        };
        // What queues is counted when it leaves the queue, unless others follow it.
        let counted = at_once || ticket.is_own();
        if counted {
            count_passed(client, tenant, ledger, charged);
        }
        if at_once {
            self.delay.borrow_mut().left(kind.tier, now, Nanos::ZERO, 0);
            let silent = W::is_silent(request);
            // Others follow what is nobody's own.
            let paid = if ticket.is_own() { MilliRu::ZERO } else { charged };
            let outgoing =
                Outgoing { client, tenant, paid, place, request, bytes, kind, silent, admitted: now, ticket };
            self.hand_over(outgoing, queue, now);
        } else {
            let (client, request, charged) = (Rc::clone(client), *request, (!counted).then_some(charged));
            self.join_queue(
                queue,
                Held { client, tenant, place, request, kind, charged, ticket },
                bytes,
                now,
            );
        }
        Ok(())
    }

    /// What becomes of a request that may change who the client is: it is charged like any other.
    fn judge_change(&self, asked: Asked<'_, W>, now: Nanos) -> Result<Verdict, Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        // Who is nobody yet may say who it is.
        if !self.names_tenant(asked, ledger) {
            let kind = self.classify(asked, ledger);
            let charged = self.charge(asked, kind, ledger, now)?;
            ledger.count_passed(asked.tenant, charged);
        }
        Ok(Verdict::Change)
    }

    /// What becomes of a request for gate's own figures: it is charged like any other.
    fn judge_own_stats(&self, asked: Asked<'_, W>, now: Nanos) -> Result<Verdict, Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        let kind = self.classify(asked, ledger);
        let charged = self.charge(asked, kind, ledger, now)?;
        count_passed(asked.client, asked.tenant, ledger, charged);
        Ok(Verdict::OwnStats)
    }

    /// Whether a client that nobody is charged for names a user that some tenant is charged for.
    fn names_tenant(&self, asked: Asked<'_, W>, ledger: &Ledger) -> bool {
        let login = || W::change(asked.request, asked.bytes)?.login;
        let tenants = self.tenants.borrow();
        asked.client.is_unknown() && login().is_some_and(|login| tenants.of_user(&login, ledger).is_some())
    }

    /// Counts a request that is not even priced. Whether it is refused in earnest.
    pub(super) fn refuses(&self, client: &Client<W>, tenant: TenantId, reason: Reason) -> bool {
        self.ledger.borrow().count_refusal(tenant, reason, MilliRu::ZERO, client.shadow);
        !client.shadow
    }
}

/// Counts a request that passes, unless the kernel has.
#[inline]
pub(super) fn count_passed<W: Wire>(client: &Client<W>, tenant: TenantId, ledger: &Ledger, charged: MilliRu) {
    if !client.is_judged() {
        ledger.count_passed(tenant, charged);
    }
}

/// Refuses a request that has been charged: it gets that back.
pub(super) fn refuse(
    tenant: TenantId,
    ledger: &mut Ledger,
    counts: &TypeFigures,
    charged: MilliRu,
    refusal: Refusal,
) -> Refusal {
    counts.refused();
    ledger.refund(tenant, charged);
    ledger.count_refusal(tenant, refusal.reason, charged, false);
    refusal
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
    /// It takes its body to the store, now or once it is let out of the queue.
    Body,
    /// It goes elsewhere, before this request.
    Move(Moving),
}

/// What becomes of a request that is not refused.
enum Verdict {
    /// It has been sent, waits to be, or follows one that has been: the store will answer it.
    Sent,
    /// This is its answer.
    Hit(Rc<[u8]>),
    Goodbye,
    OwnStats,
    Change,
}

/// What a request is known to be long, body included.
fn length(facts: &Facts) -> usize {
    usize::try_from(facts.bytes).unwrap_or(usize::MAX)
}
