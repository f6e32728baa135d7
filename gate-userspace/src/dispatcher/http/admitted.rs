//! The steps of a request before the queue: whose it is, what it costs, and whether it may pass.

use std::rc::Rc;
use std::sync::Arc;

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};
use hyper::StatusCode;
use hyper::http::request::Parts;

use super::answer::Refused;
use super::call::{Call, StoreSlots};
use super::connection::Connection;
use super::head::{self, HeadFault};
use super::identity::Origin;
use super::service::HttpService;
use super::under_way::{Attending, UnderWay};
use crate::clock;
use crate::dispatcher::admission::demand::Demand;
use crate::dispatcher::clients::memory_budget::MemoryShare;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::metrics::verdicts::{RefusingBucket, VerdictSample};
use crate::dispatcher::request::{Charged, Payer, RequestClass};
use crate::dispatcher::tenants::ledger::{Account, Ledger, TenantId};
use crate::dispatcher::tenants::request_limits::LimitSet;
use crate::dispatcher::tenants::usage::RequestGuard;
use crate::kernel::Layer;
use crate::policy::admission::QueryType;
use crate::protocol::http::path;
use crate::protocol::price_class::PriceClass;
use crate::protocol::{Class, Refusal, RowsBy, Rule};

/// A request that is ready to be charged.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) origin: Origin,
    pub(super) class: RequestClass,
    /// True if its client wants to go on as a WebSocket.
    pub(super) is_websocket: bool,
    /// True if its messages are those of gRPC, to a store that can take them.
    is_grpc: bool,
    demand: Demand,
    length: Option<u64>,
}

impl HttpService {
    /// Finds out what a request from there asks for. `length` is that of its body, if it says that; `parts` are ready to be passed on
    /// afterwards.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted.
    pub(super) fn identify(
        &self,
        client: &Connection,
        origin: Result<Origin, Reason>,
        parts: &mut Parts,
        length: Option<u64>,
    ) -> Result<Offer, Refused> {
        let origin = origin.map_err(|reason| {
            self.admission.count_refusal(client.tenant.get(), reason);
            Refused { closes: true, ..Refusal::of(reason).into() }
        })?;
        let is_websocket = self.prepare(parts).map_err(|fault| self.head_fault(&origin, fault))?;
        let (class, demand) = self.demand(origin.tenant, parts, length);
        self.write_origin(client, &origin, &mut parts.headers);
        let is_grpc = self.http().is_http2_to_store && head::is_grpc(&parts.headers);
        Ok(Offer { origin, class, is_websocket, is_grpc, demand, length })
    }

    /// Checks a request's head, and removes what is not passed on; true if its client wants to go on as a WebSocket.
    pub(super) fn prepare(&self, parts: &mut Parts) -> Result<bool, HeadFault> {
        let websockets = self.http().websocket;
        head::prepare_request(parts, || self.store_host(), |name| self.claims.contains(name), websockets)
    }

    /// Takes a request through the steps before the queue.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted.
    pub(super) fn admit(
        self: &Rc<Self>,
        client: &Rc<Connection>,
        offer: &Offer,
        now: Nanos,
    ) -> Result<UnderWay, Refused> {
        let result = self.take(client, offer, now);
        self.sample_verdict(&offer.origin, offer.class.query_type, result.as_ref().err(), now);
        result.map_err(|refusal| {
            // Its body is not read, and nobody is to log in here.
            let closes = refusal.reason == Reason::UnknownSource && !client.is_trusted;
            Refused { closes, ..refusal.into() }
        })
    }

    /// Checks a request against hard limits, and charges and admits it.
    fn take(
        self: &Rc<Self>,
        client: &Rc<Connection>,
        offer: &Offer,
        now: Nanos,
    ) -> Result<UnderWay, Refusal> {
        let &Offer { class, demand, .. } = offer;
        let payer = offer.origin.payer();
        let attending = self.attend(&payer)?;
        self.check_hard_limits(offer)?;
        let ledger = &mut *self.ledger.borrow_mut();
        let Demand { rows, bytes, price_class, .. } = demand;
        let charged = self.admission.charge(ledger, payer.clone(), demand, class, now)?;
        self.admission.admit(ledger, &charged, now)?;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let features =
            CostFeatures { class: price_class, rows_by: RowsBy::Request, rows, bytes, reply_rows: rows };
        let slots = StoreSlots::new(&self.store_slots, self.limits.get().max_dedicated);
        let store = (Rc::clone(&self.store), slots);
        let call = Call::new((payer, charged), features, Rc::clone(client), store);
        call.is_of_messages.set(offer.is_grpc);
        Ok(UnderWay::new(Rc::clone(self), Rc::new(call), attending))
    }

    /// Checks what no quota buys.
    fn check_hard_limits(&self, offer: &Offer) -> Result<(), Refusal> {
        let payer = offer.origin.payer();
        self.check(self.is_too_long(offer.length), &payer, Refusal::by(Reason::TooLarge, Rule::Size))?;
        let has_own_keys = self.has_own_keys(payer.tenant, &self.ledger.borrow());
        self.check(has_own_keys, &payer, Refusal::by(Reason::Unsupported, Rule::Keys))
    }

    /// The class of a request that has been prepared, and what it asks for.
    pub(super) fn demand(
        &self,
        tenant: TenantId,
        parts: &mut Parts,
        length: Option<u64>,
    ) -> (RequestClass, Demand) {
        let path = path::normalised(parts.uri.path());
        let (mut class, rows) = self.types.borrow().classify_http(parts.method.as_str(), &path);
        class.tier = class.tier.max(self.wanted_tier(&mut parts.headers));
        let length = usize::try_from(length.unwrap_or(0)).unwrap_or(usize::MAX);
        let bytes = head::size(parts).saturating_add(length);
        let price_class = PriceClass::of_http(usize::from(class.query_type.0));
        let limits = self.limits_of(tenant, class);
        (class, Demand { commands: 1, rows, price_class, limits, ..Demand::more(bytes) })
    }

    /// True for a body that says that it is longer than a request may be.
    pub(super) fn is_too_long(&self, length: Option<u64>) -> bool {
        length.is_some_and(|length| length > self.limits.get().max_request as u64)
    }

    /// True for a tenant that may touch its own keys only: nobody can say which ones a request touches.
    pub(super) fn has_own_keys(&self, tenant: TenantId, ledger: &Ledger) -> bool {
        let restrictions = self.tenants.borrow().restrictions(tenant, ledger);
        restrictions.is_some_and(|restrictions| restrictions.own_keys.is_some())
    }

    /// Charges a request what it costs if gate answers it itself.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted.
    pub(super) fn charge_hit(&self, offer: &Offer, now: Nanos) -> Result<(Charged, Attending), Refusal> {
        let payer = offer.origin.payer();
        let attending = self.attend(&payer)?;
        self.check_hard_limits(offer)?;
        let demand = Demand::answered_here(offer.demand.bytes, offer.demand.limits);
        let ledger = &mut *self.ledger.borrow_mut();
        let charged = self.admission.charge(ledger, payer, demand, offer.class, now)?;
        Ok((charged, attending))
    }

    /// Charges a request its full price, which it is not given back: it takes no permit of the store.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted.
    pub(super) fn charge_in_full(&self, offer: &Offer, now: Nanos) -> Result<(), Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        let payer = offer.origin.payer();
        let mut charged = self.admission.charge(ledger, payer, offer.demand, offer.class, now)?;
        self.admission.count_passed(ledger, &mut charged);
        Ok(())
    }

    /// Charges so many bytes and so much time that a request has taken beyond its price, as debt if need be.
    pub(super) fn charge_work(&self, offer: &Offer, bytes: u64, took: Nanos, price_ms: MilliRu) {
        if offer.origin.shadow {
            return;
        }
        let ledger = &mut *self.ledger.borrow_mut();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let of_bytes = ledger.price(self.settings.service, 0, 0, bytes, None);
        let of_time = u64::from(price_ms.0).saturating_mul(took.0) / Nanos::from_millis(1).0;
        let of_time = MilliRu(u32::try_from(of_time).unwrap_or(u32::MAX));
        ledger.settle(
            offer.origin.account(),
            of_bytes.saturating_add(of_time),
            MilliRu::ZERO,
            clock::monotonic(),
        );
    }

    /// Takes what a request holds while it is not answered, wherever it is.
    fn attend(&self, payer: &Payer) -> Result<Attending, Refusal> {
        let &Payer { tenant, .. } = payer;
        let usage = self.tenants.borrow().usage(tenant, &self.ledger.borrow());
        let request = match usage {
            None => None,
            Some(usage) => match RequestGuard::of_request(Arc::clone(&usage)) {
                Some(guard) => Some(guard),
                None => {
                    self.check(true, payer, Refusal::of(Reason::Limit))?;
                    Some(RequestGuard::unlimited(usage))
                }
            },
        };
        let memory = MemoryShare::new(&self.memory, tenant);
        memory.note(MEMORY);
        // What is idle has to go before it is refused.
        self.close_idle_over_budget();
        self.check(memory.is_exceeded(), payer, Refusal::of(Reason::Limit))?;
        Ok(Attending { request, memory })
    }

    /// Refuses a request that is not priced yet if `is_wrong`, unless refusals of its payer are only counted.
    fn check(&self, is_wrong: bool, payer: &Payer, refusal: Refusal) -> Result<(), Refusal> {
        match is_wrong && self.admission.refuse_unpriced(payer, refusal.reason) {
            true => Err(refusal),
            false => Ok(()),
        }
    }

    /// The limits of a tenant that a request of this class counts towards: those by query type.
    fn limits_of(&self, tenant: TenantId, class: RequestClass) -> LimitSet {
        let tenants = self.tenants.borrow();
        let types = self.types.borrow();
        let no_command = QueryType(Class::Unknown.index() as u16);
        let of = |limits: &crate::dispatcher::tenants::request_limits::RequestLimits| {
            limits.of(types.name(class.query_type), no_command)
        };
        tenants.limits_of(tenant).map_or(LimitSet::NONE, of)
    }

    /// Counts the refusal of a request for its head.
    pub(super) fn head_fault(&self, origin: &Origin, fault: HeadFault) -> Refused {
        let refused = match fault {
            HeadFault::Malformed => Refused::with_status(Reason::Malformed, StatusCode::BAD_REQUEST),
            HeadFault::Unsupported => Refused::with_status(Reason::Unsupported, StatusCode::FORBIDDEN),
            HeadFault::WebSocket => Refusal::of(Reason::Unsupported).into(),
            // As RFC 9220, 3, has it.
            HeadFault::Protocol => Refused {
                closes: false,
                ..Refused::with_status(Reason::Unsupported, StatusCode::NOT_IMPLEMENTED)
            },
            HeadFault::Expectation => {
                Refused::with_status(Reason::Unsupported, StatusCode::EXPECTATION_FAILED)
            }
        };
        self.admission.count_refusal(origin.tenant, refused.refusal.reason);
        refused
    }

    pub(super) fn sample_verdict(
        &self,
        origin: &Origin,
        query_type: QueryType,
        refusal: Option<&Refusal>,
        now: Nanos,
    ) {
        let every = || {
            let mut ledger = self.ledger.borrow_mut();
            (ledger.sample_every(), ledger.draw())
        };
        if self.verdicts.is_due(every) {
            self.verdicts.send(VerdictSample {
                at: now,
                source: origin.source,
                layer: Layer::Proxy,
                service: 0,
                tenant: origin.tenant.0,
                weight: self.ledger.borrow().sample_every(),
                query_type: Some(query_type),
                reason: refusal.map(|refusal| refusal.reason),
                bucket: refusal
                    .and_then(|refusal| refusal.limit.or(refusal.bucket))
                    .map(RefusingBucket::Named),
            });
        }
    }
}

impl Origin {
    /// The bucket that its requests are charged to.
    pub(super) fn account(&self) -> Account<'_> {
        (self.tenant, self.member.as_deref())
    }

    /// The payer of a request that comes from there.
    pub(super) fn payer(&self) -> Payer {
        Payer {
            tenant: self.tenant,
            member: self.member.clone(),
            shadow: self.shadow,
            is_charged_by_xdp: false,
            is_datagram: false,
            counts_for_deep_debt: self.is_by_source,
        }
    }
}

/// The memory that one request may take: two heads, and what is read ahead of either body.
const MEMORY: usize = 256 << 10;
