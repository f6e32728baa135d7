//! The tenant of a WebSocket, and the charge of what passes.

use std::cell::Cell;
use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};
use hyper::header::HeaderMap;

use crate::clock;
use crate::dispatcher::http::admitted::Offer;
use crate::dispatcher::http::connection::Connection;
use crate::dispatcher::http::identity::Origin;
use crate::dispatcher::http::service::HttpService;
use crate::dispatcher::http::websocket_state::{Stop, WebSocketState};
use crate::dispatcher::metrics::Event;
use crate::dispatcher::request::RequestClass;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::tenants::membership::Lookup;

/// A WebSocket, and who pays for it.
#[derive(Debug)]
pub(super) struct WebSocket {
    pub(super) state: Rc<WebSocketState>,
    service: Rc<HttpService>,
    /// The fields that said where its request came from, and whose it was.
    fields: HeaderMap,
    /// Its tenant by name: its number may be another's after a reload.
    tenant: Option<String>,
    class: RequestClass,
    /// True if its tenant was not there at the last look.
    was_lost: Cell<bool>,
}

impl WebSocket {
    /// One that begins at `now`, whose request asked for that and had these fields.
    pub(super) fn new(
        service: &Rc<HttpService>,
        client: &Rc<Connection>,
        offer: &Offer,
        fields: HeaderMap,
        now: Nanos,
    ) -> Self {
        service.metrics.count(Event::WebSocket);
        let state = Rc::new(WebSocketState::new(client, now));
        service.websockets.borrow_mut().push(Rc::downgrade(&state));
        let tenant = service.tenants.borrow().name(offer.origin.tenant).map(str::to_owned);
        let service = Rc::clone(service);
        Self { state, service, fields, tenant, class: offer.class, was_lost: Cell::new(false) }
    }

    /// Charges bytes that are to pass, in either direction, and waits until they may.
    ///
    /// # Errors
    ///
    /// Why they may not.
    pub(super) async fn pay(&self, bytes: usize) -> Result<(), Stop> {
        let Err(wait) = self.try_pay(bytes)? else { return Ok(()) };
        self.state.pays(true);
        let paid = self.pay_later(bytes, wait).await;
        self.state.pays(false);
        paid
    }

    async fn pay_later(&self, bytes: usize, mut wait: Nanos) -> Result<(), Stop> {
        let begun = clock::monotonic();
        loop {
            tokio::time::sleep(wait.into()).await;
            match self.try_pay(bytes)? {
                Ok(()) => return Ok(()),
                Err(longer) => wait = longer,
            }
            let most = self.service.limits.get().client_timeout;
            if clock::monotonic().saturating_sub(begun) > most {
                return Err(Stop::OverQuota);
            }
        }
    }

    /// Charges bytes that are to pass, if they may now; else says how long they have to wait.
    ///
    /// # Errors
    ///
    /// If nobody is there who pays.
    pub(super) fn try_pay(&self, bytes: usize) -> Result<Result<(), Nanos>, Stop> {
        let payer = self.origin().map(|origin| origin.payer()).ok_or(Stop::NotAllowed)?;
        Ok(self.service.admission.charge_stream(&payer, bytes, self.class))
    }

    /// Charges bytes that pass without a wait.
    pub(super) fn charge_as_debt(&self, bytes: usize) {
        let Some(origin) = self.origin().filter(|origin| !origin.shadow) else { return };
        let ledger = &mut *self.service.ledger.borrow_mut();
        let price = ledger.price(self.service.settings.service, 0, 0, bytes, None);
        ledger.settle(origin.account(), price, MilliRu::ZERO, clock::monotonic());
    }

    /// Where it comes from: found anew each time, since a reload may change that, and idle members are forgotten. `None` if it is
    /// nobody's any more.
    fn origin(&self) -> Option<Origin> {
        let origin = self.service.origin(&self.state.client, &self.fields, Lookup::Charge).ok()?;
        Some(origin).filter(|origin| origin.tenant != TenantId::UNKNOWN || origin.shadow)
    }

    /// True if it is another tenant's than at its beginning, as of two looks: a reload changes names and numbers one after the other.
    pub(super) fn has_lost_tenant(&self) -> bool {
        let origin = self.origin();
        let tenants = self.service.tenants.borrow();
        let is_lost = origin.is_none_or(|origin| tenants.name(origin.tenant) != self.tenant.as_deref());
        self.was_lost.replace(is_lost) && is_lost
    }

    /// Counts its end for its tenant, if that is a refusal. Returns the reason.
    pub(super) fn count_refusal(&self, stop: Stop) -> Option<Reason> {
        let reason = stop.refusal()?;
        if stop == Stop::OverQuota {
            self.service.metrics.count(Event::WebSocketOverQuota);
        }
        let tenant = self.origin().map_or(TenantId::UNKNOWN, |origin| origin.tenant);
        self.service.admission.count_refusal(tenant, reason);
        Some(reason)
    }
}

impl Drop for WebSocket {
    fn drop(&mut self) {
        self.service.metrics.count(Event::WebSocketEnded);
    }
}
