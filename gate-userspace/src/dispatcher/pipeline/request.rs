//! A decoded request, in order: deny, limits, charge, hot cache, admission policy, permit or queue.
//!
//! [`Service::requests`] decodes. [`crate::dispatcher::admission`] charges, admits and queues. Replies come back through
//! [`super::complete`], and [`Service::dispatch`] sends what waits in the queue.

use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};

use super::dispatch::is_slow;
use super::key_sizes::SizeStep;
use super::nodes::Parts;
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::admission::demand::Demand;
use crate::dispatcher::clients::conversation::ConnectionMode;
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::hot_cache::{CacheDecision, ReadResult};
use crate::dispatcher::metrics::Event;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::metrics::verdicts::{RefusingBucket, VerdictSample};
use crate::dispatcher::request::{Charged, Decoded, InFlight, ReplySlot, Target};
use crate::dispatcher::size_question::SizeQuestion;
use crate::dispatcher::tenants::ledger::{Ledger, TenantId};
use crate::dispatcher::wire::{Effect, Route, SessionState, Wire};
use crate::kernel::Layer;
use crate::policy::admission::QueryType;
use crate::protocol::{Blame, Refusal, Rule};

impl<W: Wire> Service<W> {
    /// Takes a decoded request through the pipeline.
    #[inline]
    pub(crate) fn request(
        &self,
        client: &Rc<Session<W>>,
        replies: &mut Replies,
        request: &W::Request,
        bytes: &[u8],
        now: Nanos,
    ) -> NextStep {
        let slot = ReplySlot { seq: replies.next(), first: replies.first() };
        let (tenant, denied) = client.tenant_for(request, bytes);
        let target = self.target(client, request, bytes, now);
        let decoded = Decoded { client, tenant, slot, request, bytes, target, told: None };
        if self.must_wait_for_slots(client, replies) || self.hot.must_wait_for_flight(decoded) {
            return NextStep::Wait;
        }
        if let Some(refusal) = client.refused_with_earlier(request) {
            // An answer that has come meanwhile is for this request alone.
            client.size_question.set(SizeQuestion::None);
            self.refuse_with_earlier(client, replies, request, refusal, now);
            return NextStep::Refused;
        }
        let route = W::route(request);
        if route == Route::Shared && is_slow::<W>(request) && !client.use_slow_lane(replies) {
            return NextStep::Wait;
        }
        let asked = match self.ask_first(decoded, (route, denied), replies.outstanding(), now) {
            Ok(SizeStep::Wait) => return NextStep::Wait,
            Ok(SizeStep::GoOn(told)) => Ok(told),
            Err(refusal) => Err(refusal),
        };
        let decoded = Decoded { told: asked.ok().flatten(), ..decoded };
        self.metrics.count(Event::Request);
        let verdict = asked.and_then(|_| self.check_limits(decoded, denied, replies.outstanding()));
        let verdict = verdict.and_then(|()| match self.presents(decoded) {
            true => self.admit_presented(decoded, now).map(|()| Verdict::Presented),
            false => self.admit(decoded, route, now),
        });
        let verdict = verdict.map_err(|refusal| self.refusal_before_login(refusal));
        self.sample_verdict(decoded, verdict.as_ref().err(), now);
        match &verdict {
            Ok(Verdict::Hit(answer)) => {
                replies.answer(answer);
                return NextStep::Continue;
            }
            Ok(Verdict::Login) => return NextStep::Switch(ConnectionMode::Login),
            Ok(Verdict::Dedicated) => return NextStep::Switch(ConnectionMode::Dedicated),
            Ok(Verdict::Sent | Verdict::SentInParts(_) | Verdict::Quit) | Err(_) => {}
            Ok(Verdict::GateStats | Verdict::Presented) => {}
        }
        let streams_body = W::is_streamed(request) && matches!(verdict, Ok(Verdict::Sent));
        let seq = replies.open();
        debug_assert!(seq == slot.seq, "what has been sent is answered in its place");
        match verdict {
            Ok(Verdict::Sent | Verdict::Hit(_) | Verdict::Login | Verdict::Dedicated) => {}
            Ok(Verdict::SentInParts(parts)) => Self::open_parts(replies, seq, parts),
            Ok(Verdict::Quit) => {
                replies.part(seq, W::GOODBYE);
                replies.whole(seq);
                return NextStep::Close;
            }
            Ok(Verdict::Presented) => self.reply_presented(decoded, replies),
            Ok(Verdict::GateStats) => {
                self.reply(
                    client,
                    replies,
                    seq,
                    self.own_stats.borrow_mut().document(&self.service_metrics, now),
                );
            }
            Err(refusal) => {
                client.note_refused(request, refusal);
                self.refuse_decoded(client, replies, seq, W::wants_no_reply(request), refusal, now);
                if matches!(refusal.blame(), Blame::Throttled | Blame::Denied) {
                    return NextStep::Refused;
                }
            }
        }
        if streams_body { NextStep::StreamBody } else { NextStep::Continue }
    }

    /// Samples the verdict on a request.
    #[inline]
    fn sample_verdict(&self, decoded: Decoded<'_, W, Session<W>>, refusal: Option<&Refusal>, now: Nanos) {
        let every = || {
            let mut ledger = self.ledger.borrow_mut();
            (ledger.sample_every(), ledger.draw())
        };
        if self.verdicts.is_due(every) {
            let Decoded { client, tenant, request, bytes, .. } = decoded;
            let query_type = self.types.borrow().classify::<W>(request, bytes).query_type;
            self.send_verdict(client, (tenant, query_type), refusal, now);
        }
    }

    /// Samples the refusal of a request that has waited.
    pub(super) fn sample_late_refusal(
        &self,
        client: &Session<W>,
        (tenant, query_type): (TenantId, QueryType),
        refusal: &Refusal,
    ) {
        let every = || {
            let mut ledger = self.ledger.borrow_mut();
            (ledger.sample_every(), ledger.draw())
        };
        if self.verdicts.is_due(every) {
            self.send_verdict(client, (tenant, query_type), Some(refusal), clock::monotonic());
        }
    }

    /// Sends a sampled verdict.
    #[cold]
    fn send_verdict(
        &self,
        client: &Session<W>,
        (tenant, query_type): (TenantId, QueryType),
        refusal: Option<&Refusal>,
        now: Nanos,
    ) {
        self.verdicts.send(VerdictSample {
            at: now,
            source: client.source,
            layer: Layer::Proxy,
            service: 0,
            tenant: tenant.0,
            weight: self.ledger.borrow().sample_every(),
            query_type: Some(query_type),
            reason: refusal.map(|refusal| refusal.reason),
            bucket: refusal.and_then(|refusal| refusal.limit.or(refusal.bucket)).map(RefusingBucket::Named),
        });
    }

    /// Checks a request against denied commands and hard limits, while its client has `outstanding` others.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted.
    #[inline(always)]
    fn check_limits(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        denied: Option<Rule>,
        outstanding: usize,
    ) -> Result<(), Refusal> {
        let Decoded { client, tenant, request, bytes, .. } = decoded;
        if let Some(rule) = denied
            && self.refuses(client, tenant, Reason::Unsupported)
        {
            return Err(Refusal::by(Reason::Unsupported, rule));
        }
        if let Some(rule) = self.refused_by_stores(decoded.target) {
            // Where refusals are only counted it is refused all the same: there is no store to pass it on to.
            self.refuses(client, tenant, Reason::Unsupported);
            return Err(Refusal::by(Reason::Unsupported, rule));
        }
        // The client sends nothing more to the store until a session command is answered.
        let has_quota = client.has_request_quota(outstanding) || W::Session::changes_session(request);
        if !has_quota && self.refuses(client, client.tenant.get(), Reason::Limit) {
            return Err(Refusal::of(Reason::Limit));
        }
        if self.is_too_long(request, bytes) && self.refuses(client, tenant, Reason::TooLarge) {
            return Err(Refusal::by(Reason::TooLarge, Rule::Size));
        }
        Ok(())
    }

    /// Admits a request by its route.
    #[inline(always)]
    fn admit(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        route: Route,
        now: Nanos,
    ) -> Result<Verdict, Refusal> {
        match route {
            Route::Shared => self.admit_request(decoded, now),
            Route::Dedicated => self.admit_dedicated(decoded, now),
            Route::Login => self.admit_login(decoded, now),
            Route::Quit => Ok(Verdict::Quit),
            Route::GateStats => self.admit_own_stats(decoded, now),
        }
    }

    /// A request for the store: charge, hot cache, admission policy, permit or queue.
    #[inline]
    fn admit_request(&self, decoded: Decoded<'_, W, Session<W>>, now: Nanos) -> Result<Verdict, Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        let mut charged = self.charge(decoded, ledger, now)?;

        // Hot key: a hit is answered here, a read of a key in flight joins it, a write marks its key.
        let may_cache = ledger.may_cache(decoded.tenant);
        let decision = match if may_cache {
            self.hot.read(decoded, &charged, || self.admission.rank(&charged), now)
        } else {
            ReadResult::UNCACHED
        } {
            ReadResult::ToStore(decision) => decision,
            ReadResult::Hit(answer) => {
                self.count_answered(decoded, ledger, &mut charged);
                return Ok(Verdict::Hit(answer));
            }
            ReadResult::Joined => {
                self.count_answered(decoded, ledger, &mut charged);
                return Ok(Verdict::Sent);
            }
        };
        self.admission.admit(ledger, &charged, now)?;
        self.hot.sample(decoded, self.settings.service, ledger);
        if let Target::Several(join) = decoded.target {
            return self.send_parts(decoded, join, charged, ledger, now).map(Verdict::SentInParts);
        }
        self.send(decoded, charged, decision, ledger, now)?;
        Ok(Verdict::Sent)
    }

    /// Counts and samples a request that needs no request of its own to the store.
    #[inline]
    fn count_answered(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        ledger: &mut Ledger,
        charged: &mut Charged,
    ) {
        self.admission.count_passed(ledger, charged);
        self.hot.sample(decoded, self.settings.service, ledger);
    }

    /// Sends a request to the store if a permit is free and no request waits, or puts it into the queue. Of the reads of
    /// a hot key one is sent, which the others follow.
    #[inline]
    fn send(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        mut charged: Charged,
        decision: CacheDecision,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let Decoded { client, slot: ReplySlot { seq, .. }, request, bytes, target, .. } = decoded;
        let admission = &self.admission;
        let node = target.node();
        let accepted = self.accepts(client, node, (charged.tenant, bytes.len()), is_slow::<W>(request), now);
        let has_permit = accepted.map_err(|refusal| admission.refuse(ledger, &charged, refusal))?;

        let cache_role = match decision {
            CacheDecision::Uncached(key) => self.hot.cache_role(decoded, key),
            CacheDecision::MayLead(key, version, rank) => {
                match self.hot.lead(decoded, &charged, (key, version, rank)) {
                    Some(cache_role) => cache_role,
                    None => {
                        if has_permit {
                            admission.release_permit();
                        }
                        admission.count_passed(ledger, &mut charged);
                        return Ok(());
                    }
                }
            }
        };
        // A queued request is counted when it leaves the queue, a coalesced one at once: its followers are not refused there.
        let is_coalesced = cache_role.is_coalesced();
        if has_permit || is_coalesced {
            admission.count_passed(ledger, &mut charged);
        }
        if is_coalesced {
            charged.price = MilliRu::ZERO;
        }
        let in_flight = InFlight {
            client: Rc::clone(client),
            node,
            seq,
            charged,
            features: CostFeatures::of::<W>(request),
            silent: W::wants_no_reply(request),
            redirects: 0,
            cache_role,
        };
        self.pass_on(in_flight, request, bytes, has_permit, now);
        Ok(())
    }

    /// A request that needs a dedicated connection: it is charged and admitted before the client has one. It gets its
    /// permit there ([`super::dedicated_requests`]).
    fn admit_dedicated(&self, decoded: Decoded<'_, W, Session<W>>, now: Nanos) -> Result<Verdict, Refusal> {
        let Decoded { client, tenant, request, bytes, .. } = decoded;
        let ledger = &mut *self.ledger.borrow_mut();
        let class = self.types.borrow().classify::<W>(request, bytes);
        // What follows of a streamed one is charged as it comes.
        let demand = Demand { bytes: bytes.len(), ..self.demand(client, (tenant, class), request, bytes) };
        let charged = self.admission.charge(ledger, client.payer(tenant), demand, class, now)?;
        // What waits for other clients does not wait for the store.
        if W::Session::effect(request) != Effect::Blocks && W::has_one_answer(request) {
            self.admission.admit(ledger, &charged, now)?;
        }
        self.reserve_dedicated(client, decoded.target.node())
            .map_err(|refusal| self.admission.refuse(ledger, &charged, refusal))?;
        *client.first_dedicated.borrow_mut() = Some(charged);
        client.awaits_replicas.set(W::Session::awaits_replicas(request));
        Ok(Verdict::Dedicated)
    }

    /// A request that may change who the client is. It is charged when its turn has come ([`super::login`]).
    fn admit_login(&self, decoded: Decoded<'_, W, Session<W>>, now: Nanos) -> Result<Verdict, Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        // An unauthenticated client may log in, and do nothing else.
        if decoded.client.is_unauthenticated() && !self.is_login_of_known_user(decoded, ledger) {
            let mut charged = self.charge(decoded, ledger, now)?;
            self.admission.count_passed(ledger, &mut charged);
        }
        Ok(Verdict::Login)
    }

    /// A request for gate's own statistics: it is charged like any other.
    fn admit_own_stats(&self, decoded: Decoded<'_, W, Session<W>>, now: Nanos) -> Result<Verdict, Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        let mut charged = self.charge(decoded, ledger, now)?;
        self.admission.count_passed(ledger, &mut charged);
        Ok(Verdict::GateStats)
    }

    /// The refusal of a request. That of a client that is nobody's asks it to log in, where some tenant has users.
    pub(super) fn refusal_before_login(&self, refusal: Refusal) -> Refusal {
        let may_log_in = || W::Session::HAS_USERS && self.tenants.borrow().have_users();
        match refusal.reason == Reason::UnknownSource && may_log_in() {
            true => Refusal { rule: Some(Rule::Users), ..refusal },
            false => refusal,
        }
    }

    /// True if an unauthenticated client names a user of some tenant.
    pub(super) fn is_login_of_known_user(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        ledger: &Ledger,
    ) -> bool {
        let login = || W::Session::login(decoded.request, decoded.bytes)?.login;
        let tenants = self.tenants.borrow();
        decoded.client.is_unauthenticated()
            && login().is_some_and(|login| tenants.of_user(&login, ledger).is_some())
    }

    /// Counts a request that is refused before it is priced. False if refusals of this client are only counted.
    pub(crate) fn refuses(&self, client: &Session<W>, tenant: TenantId, reason: Reason) -> bool {
        self.admission.refuse_unpriced(&client.payer(tenant), reason)
    }
}

/// The next step of the client's task after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Decodes the next request.
    Continue,
    /// Likewise: this one was refused, and that is its tenant's doing.
    Refused,
    /// Decodes this request again, once the client's reads that follow flights are answered.
    Wait,
    /// Closes the connection.
    Close,
    /// Streams the body to the store, now or when the request leaves the queue.
    StreamBody,
    /// Changes to another mode, before this request.
    Switch(ConnectionMode),
}

/// The result of a request that is not refused.
enum Verdict {
    /// Sent, queued, or following a flight: the store will answer it.
    Sent,
    /// Sent to several stores, or queued for them.
    SentInParts(Parts),
    /// Answered from the cache.
    Hit(Rc<[u8]>),
    Quit,
    GateStats,
    /// Answered as by the one node of a cluster.
    Presented,
    Login,
    /// To be sent over a dedicated connection.
    Dedicated,
}
