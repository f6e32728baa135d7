//! What a request passes, in order. Everything that can become of it is decided here.
//!
//! classify, price, quota, hot key, admit, queue, store, observe. Decoding is before, in
//! [`Service::requests`]; answers come back through [`crate::dispatcher::stores::connection`], which observes them
//! ([`Service::release_permit`]) and lets the next ones out of the queue ([`Service::dispatch`]).

use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};

use super::Service;
use super::in_flight::InFlight;
use super::session::Session;
use crate::dispatcher::clients::client::ConnectionMode;
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::hot_cache::key_order::ReplySlot;
use crate::dispatcher::hot_cache::{CacheDecision, CacheRequest, ReadResult};
use crate::dispatcher::metrics::Event;
use crate::dispatcher::metrics::by_type::TypeMetrics;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::tenants::ledger::{Charge, Ledger, TenantId};
use crate::dispatcher::wire::{Route, Wire};
use crate::policy::admission;
use crate::protocol::{Refusal, RequestMeta};

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
        let turn = ReplySlot { seq: replies.next(), first: replies.first() };
        let (tenant, denied) = client.tenant_for(request, bytes);
        let asked = CacheRequest { client, tenant, turn, request, bytes };
        if self.hot.must_wait_for_flight(asked) {
            return NextStep::Wait;
        }
        if let Some(refusal) = client.refused_with_multi(request) {
            self.refuse_with_multi(client, replies, request, refusal, now);
            return NextStep::Continue;
        }
        let route = W::route(request);
        let denied = denied && self.refuses(client, tenant, Reason::Unsupported);
        if route == Route::Dedicated && !denied {
            client.awaits_replicas.set(W::awaits_replicas(request));
            return NextStep::Switch(ConnectionMode::Dedicated);
        }
        self.metrics.count(Event::Request);
        let verdict = if denied {
            Err(Refusal::of(Reason::Unsupported))
        } else if !client.has_request_quota(replies.outstanding())
            && self.refuses(client, client.tenant.get(), Reason::Limit)
        {
            Err(Refusal::of(Reason::Limit))
        } else if self.is_too_long(request, bytes) && self.refuses(client, tenant, Reason::TooLarge) {
            Err(Refusal::of(Reason::TooLarge))
        } else {
            match route {
                Route::Shared | Route::Dedicated => self.admit_request(asked, now),
                Route::Login => self.admit_login(asked, now),
                Route::Quit => Ok(Verdict::Quit),
                Route::GateStats => self.judge_own_stats(asked, now),
            }
        };
        match &verdict {
            Ok(Verdict::Hit(answer)) => {
                replies.answer(answer);
                return NextStep::Continue;
            }
            Ok(Verdict::Login) => return NextStep::Switch(ConnectionMode::Login),
            _ => {}
        }
        let streams_body = W::is_streamed(request) && matches!(verdict, Ok(Verdict::Sent));
        let seq = replies.open();
        debug_assert!(seq == turn.seq, "what has been sent is answered in its place");
        match verdict {
            Ok(Verdict::Sent | Verdict::Hit(_) | Verdict::Login) => {}
            Ok(Verdict::Quit) => {
                replies.part(seq, W::GOODBYE);
                replies.whole(seq);
                return NextStep::Close;
            }
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
            }
        }
        if streams_body { NextStep::StreamBody } else { NextStep::Continue }
    }

    /// What becomes of a request for the store.
    #[inline]
    fn admit_request(&self, asked: CacheRequest<'_, W, Session<W>>, now: Nanos) -> Result<Verdict, Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        let class = self.classify(asked, ledger);
        let charged = self.charge(asked, class, ledger, now)?;

        // Hot key: a hit is answered here, a read of a key in flight joins it, a write marks its key.
        let may_cache = ledger.may_cache(asked.tenant);
        let way = match if may_cache { self.hot.read(asked, class, now) } else { ReadResult::UNCACHED } {
            ReadResult::ToStore(way) => way,
            ReadResult::Hit(answer) => {
                self.count_answered(asked, ledger, charged);
                return Ok(Verdict::Hit(answer));
            }
            ReadResult::Joined => {
                self.count_answered(asked, ledger, charged);
                return Ok(Verdict::Sent);
            }
        };
        self.admit(asked, class, charged, ledger, now)?;
        self.hot.sample(asked, self.settings.service, ledger);
        self.send(asked, class, charged, way, ledger, now)?;
        Ok(Verdict::Sent)
    }

    /// Counts and samples a request that needs no request of its own to the store.
    #[inline]
    fn count_answered(&self, asked: CacheRequest<'_, W, Session<W>>, ledger: &mut Ledger, charged: MilliRu) {
        count_passed(asked.client, asked.tenant, ledger, charged);
        self.hot.sample(asked, self.settings.service, ledger);
    }

    /// The tenant is known already; tier and query type are the request's.
    #[inline(always)]
    fn classify(&self, asked: CacheRequest<'_, W, Session<W>>, ledger: &mut Ledger) -> admission::Request {
        let tier = ledger.tier(asked.tenant);
        self.types.borrow().classify::<W>(tier, asked.request, asked.bytes)
    }

    /// Price and quota: what it has been charged.
    #[inline(always)]
    fn charge(
        &self,
        asked: CacheRequest<'_, W, Session<W>>,
        class: admission::Request,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<MilliRu, Refusal> {
        let CacheRequest { client, tenant, request, .. } = asked;
        let (meta, service) = (W::meta(request), self.settings.service);
        let price = ledger.price(service, 1, meta.rows, length(meta), W::price_class(meta.class));
        if client.counts_for_deep_debt(tenant) {
            ledger.count_demand(tenant, price);
        }
        let rung = ledger.rung(service, class.tier);
        if client.is_charged_by_xdp() {
            // It has been charged this, at least, unless it is shadowed.
            return Ok(if client.shadow {
                MilliRu::ZERO
            } else {
                ledger.apply_multiplier(tenant, price, rung)
            });
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
        asked: CacheRequest<'_, W, Session<W>>,
        class: admission::Request,
        charged: MilliRu,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let counts = self.metrics.of_type(class.query_type);
        counts.offered(class.tier);
        let Some(retry_after) = self.policy.refuses(class, now, || ledger.draw()) else { return Ok(()) };
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
        asked: CacheRequest<'_, W, Session<W>>,
        class: admission::Request,
        charged: MilliRu,
        way: CacheDecision,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let CacheRequest { client, tenant, turn: ReplySlot { seq, .. }, request, bytes } = asked;
        let queue = &mut *self.queue.borrow_mut();
        let at_once = client.queued.get().0 == 0 && queue.pass();
        let accepted = match at_once {
            true => client.store().accepts(now).inspect_err(|_| queue.leave()),
            false if queue.has_room(bytes.len()) => Ok(()),
            false => Err(Refusal::of(Reason::QueueFull)),
        };
        let counts = self.metrics.of_type(class.query_type);
        accepted.map_err(|refusal| refuse(tenant, ledger, counts, charged, refusal))?;

        let cache_role = match way {
            CacheDecision::Uncached(key) => self.hot.cache_role(asked, key),
            CacheDecision::MayLead(key, version) => match self.hot.lead(asked, class, (key, version)) {
                Some(cache_role) => cache_role,
                None => {
                    if at_once {
                        queue.leave();
                    }
                    count_passed(client, tenant, ledger, charged);
                    return Ok(());
                }
            },
        };
        // A queued request is counted when it leaves the queue, a coalesced one at once: its followers are not refused there.
        let is_coalesced = cache_role.is_coalesced();
        let is_counted = at_once || is_coalesced;
        if is_counted {
            count_passed(client, tenant, ledger, charged);
        }
        let in_flight = InFlight {
            client: Rc::clone(client),
            tenant,
            charged: if is_coalesced { MilliRu::ZERO } else { charged },
            is_counted,
            seq,
            class,
            features: CostFeatures::of::<W>(request),
            silent: W::wants_no_reply(request),
            admitted: now,
            cache_role,
        };
        if at_once {
            self.delay.borrow_mut().left(class.tier, now, Nanos::ZERO, 0);
            self.submit(in_flight, request, bytes, queue, now);
        } else {
            self.enqueue_in(queue, (in_flight, *request), bytes, now);
        }
        Ok(())
    }

    /// What becomes of a request that may change who the client is: it is charged like any other.
    fn admit_login(&self, asked: CacheRequest<'_, W, Session<W>>, now: Nanos) -> Result<Verdict, Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        // Who is nobody yet may say who it is.
        if !self.is_login_of_known_user(asked, ledger) {
            let class = self.classify(asked, ledger);
            let charged = self.charge(asked, class, ledger, now)?;
            ledger.count_passed(asked.tenant, charged);
        }
        Ok(Verdict::Login)
    }

    /// What becomes of a request for gate's own figures: it is charged like any other.
    fn judge_own_stats(
        &self,
        asked: CacheRequest<'_, W, Session<W>>,
        now: Nanos,
    ) -> Result<Verdict, Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        let class = self.classify(asked, ledger);
        let charged = self.charge(asked, class, ledger, now)?;
        count_passed(asked.client, asked.tenant, ledger, charged);
        Ok(Verdict::GateStats)
    }

    /// Whether a client that nobody is charged for names a user that some tenant is charged for.
    fn is_login_of_known_user(&self, asked: CacheRequest<'_, W, Session<W>>, ledger: &Ledger) -> bool {
        let login = || W::change(asked.request, asked.bytes)?.login;
        let tenants = self.tenants.borrow();
        asked.client.is_unauthenticated()
            && login().is_some_and(|login| tenants.of_user(&login, ledger).is_some())
    }

    /// Counts a request that is not even priced. Whether it is refused in earnest.
    pub(crate) fn refuses(&self, client: &Session<W>, tenant: TenantId, reason: Reason) -> bool {
        self.ledger.borrow().count_refusal(tenant, reason, MilliRu::ZERO, client.shadow);
        !client.shadow
    }
}

/// Counts a request that passes, unless the kernel has.
#[inline]
pub(crate) fn count_passed<W: Wire>(
    client: &Session<W>,
    tenant: TenantId,
    ledger: &Ledger,
    charged: MilliRu,
) {
    if !client.is_charged_by_xdp() {
        ledger.count_passed(tenant, charged);
    }
}

/// Refuses a request that has been charged: it gets that back.
pub(crate) fn refuse(
    tenant: TenantId,
    ledger: &mut Ledger,
    counts: &TypeMetrics,
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
pub(crate) enum NextStep {
    /// It is listened to.
    Continue,
    /// It is listened to once its reads have landed, from this request on.
    Wait,
    /// It has said goodbye.
    Close,
    /// It takes its body to the store, now or once it is let out of the queue.
    StreamBody,
    /// It goes elsewhere, before this request.
    Switch(ConnectionMode),
}

/// What becomes of a request that is not refused.
enum Verdict {
    /// It has been sent, waits to be, or follows one that has been: the store will answer it.
    Sent,
    /// This is its answer.
    Hit(Rc<[u8]>),
    Quit,
    GateStats,
    Login,
}

/// What a request is known to be long, body included.
fn length(meta: &RequestMeta) -> usize {
    usize::try_from(meta.bytes).unwrap_or(usize::MAX)
}
