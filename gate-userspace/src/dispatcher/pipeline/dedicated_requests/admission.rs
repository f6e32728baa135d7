//! Charge, admission and permit of one request over a dedicated connection.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use gate_common::abi::Reason;

use super::super::dedicated_input::NextRequest;
use super::super::queue_item::QueueItem;
use super::DedicatedRequests;
use crate::clock;
use crate::dispatcher::admission::demand::Demand;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::request::{Charged, RequestClass};
use crate::dispatcher::stores::socket::StoreSocket;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::{Effect, Wire};
use crate::protocol::Refusal;

impl<W: Wire> DedicatedRequests<'_, W> {
    /// Charges a request, or a part of its body, to a tenant, given with its client's. Waits until it can pay.
    pub(super) async fn charge(
        &mut self,
        (tenant, client_tenant): (TenantId, TenantId),
        demand: Demand,
        class: RequestClass,
        to_store: &StoreSocket,
    ) -> Result<Charged, CloseCause> {
        let client = self.client;
        let payer = || client.payer(client.still_charged(tenant, client_tenant));
        let admission = &self.service.admission;
        match admission.try_charge(payer(), demand, class) {
            Ok(charged) => Ok(charged),
            Err(refusal) => {
                // What is gathered may have permits.
                self.write(to_store).await?;
                let charged = admission.charge_when_affordable(payer, demand, class, refusal).await;
                charged.map_err(|_| CloseCause::ClientLeft)
            }
        }
    }

    /// Admission policy, limits, and permit. Returns true if the request has a permit, false if it needs none, or its refusal.
    pub(super) async fn admit(
        &mut self,
        next: &NextRequest<W>,
        charged: &mut Charged,
        is_first: bool,
        to_store: &StoreSocket,
    ) -> Result<Result<bool, Refusal>, CloseCause> {
        let client = self.client;
        let admission = &self.service.admission;
        let in_transaction = self.in_transaction();
        let takes_permit = next.takes_permit(in_transaction);
        // What is behind a session command depends on it.
        let must_run =
            in_transaction || next.changes_session || self.exchange.outstanding.borrow().has_lost_count();
        let may_refuse = !must_run && next.instead.is_none();
        if may_refuse && !is_first {
            if !client.has_request_quota(self.exchange.unanswered()) {
                self.wait_for_replies(0, to_store).await?;
                if !client.has_request_quota(0) && !client.shadow {
                    let refusal = Refusal::of(Reason::Limit);
                    return Ok(Err(admission.refuse(
                        &mut self.service.ledger.borrow_mut(),
                        charged,
                        refusal,
                    )));
                }
            }
            if takes_permit || next.effect == Effect::Begin {
                let admitted =
                    admission.admit(&mut self.service.ledger.borrow_mut(), charged, clock::monotonic());
                if let Err(refusal) = admitted {
                    return Ok(Err(refusal));
                }
            }
        } else if takes_permit && in_transaction {
            admission.note_offered(charged);
        }
        if !takes_permit {
            return Ok(Ok(false));
        }
        if !admission.take_permit(&client.queued, false) {
            // What is gathered has permits, and is not to wait behind this.
            self.write(to_store).await?;
            let is_only = !self.service.tenants.borrow().are_several();
            let accepted = admission.queue_accepts(charged.tenant, 0, is_only);
            if !must_run && let Err(refusal) = accepted {
                return Ok(Err(admission.refuse(&mut self.service.ledger.borrow_mut(), charged, refusal)));
            }
            let now = clock::monotonic();
            let item = QueueItem::Dedicated { client: Rc::clone(client), charged: charged.clone(), must_run };
            admission.enqueue(item, &[], now);
            // A permit may have become free meanwhile.
            self.service.dispatch(now);
            let granted = poll_fn(|_| client.granted.take().map_or(Poll::Pending, Poll::Ready)).await;
            // It has been counted there.
            charged.is_counted = true;
            return Ok(granted.map(|()| true));
        }
        admission.note_not_queued(charged, clock::monotonic());
        Ok(Ok(true))
    }
}
