//! The permit of a request, and all else that it holds from its charge to its end, however that comes.

use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::call::{Call, Permit, QueuedCall, WaitsFor};
use super::service::HttpService;
use super::store::Outstanding;
use crate::clock;
use crate::dispatcher::admission::answered::Answered;
use crate::dispatcher::clients::memory_budget::MemoryShare;
use crate::dispatcher::metrics::cost_samples::ReplyBatch;
use crate::dispatcher::request::Charged;
use crate::dispatcher::tenants::usage::RequestGuard;
use crate::protocol::Refusal;

/// A request that has been charged and is not done. Dropped, it gives back all that it holds.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) service: Rc<HttpService>,
    pub(super) call: Rc<Call>,
    attending: Attending,
    outstanding: Option<Outstanding>,
}

/// The holdings of a request while it is not answered.
#[derive(Debug)]
pub(super) struct Attending {
    /// Its part of what its tenant may have unanswered.
    pub(super) request: Option<RequestGuard>,
    pub(super) memory: MemoryShare,
}

impl UnderWay {
    pub(super) fn new(service: Rc<HttpService>, call: Rc<Call>, attending: Attending) -> Self {
        service.calls.borrow_mut().push(Rc::downgrade(&call));
        Self { service, call, attending, outstanding: None }
    }

    /// Takes a permit, or waits for one.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted and refunded.
    pub(super) async fn permit(&mut self) -> Result<(), Refusal> {
        let admission = &self.service.admission;
        let now = clock::monotonic();
        let mut charged = self.call.charged.borrow().clone();
        if admission.take_permit(self.call.queue(), false) {
            self.call.permit.set(Permit::Held);
            if let Err(refusal) = self.call.store_accepts(now) {
                return Err(admission.refuse(&mut self.service.ledger.borrow_mut(), &charged, refusal));
            }
            admission.count_passed(&self.service.ledger.borrow(), &mut charged);
            admission.note_not_queued(&charged, now);
            self.call.charged.replace(charged);
        } else {
            let is_only = !self.service.tenants.borrow().are_several();
            if let Err(refusal) = admission.queue_accepts(charged.tenant, 0, is_only) {
                return Err(admission.refuse(&mut self.service.ledger.borrow_mut(), &charged, refusal));
            }
            admission.enqueue(QueuedCall::new(Rc::clone(&self.call)), &[], now);
            self.call.granted().await?;
            self.call.permit.set(Permit::Held);
        }
        if !self.call.has_store_slot() {
            // Refusals of its payer are only counted.
            admission.refuse_unpriced(&self.call.payer, Reason::Limit);
        }
        self.outstanding = Some(self.call.store.outstanding());
        Ok(())
    }

    /// The request goes to the store, which has all of it at once if it `has_body` none.
    pub(super) fn sent(&self, has_body: bool) {
        let now = clock::monotonic();
        self.call.sent.set(now);
        self.call.has_body_ended.set(!has_body);
        self.call.progress(now);
        self.call.waits_for(if has_body { WaitsFor::Body } else { WaitsFor::Store }, now);
    }

    /// The store has answered all of it, with so many bytes.
    pub(super) fn complete(&self, received: usize) {
        let call = &self.call;
        let admission = &self.service.admission;
        let now = clock::monotonic();
        let call_charged = call.charged.borrow();
        let &Charged { tenant, class, at: charged, .. } = &*call_charged;
        let (read, paid) = admission.record_reply(&call_charged, &call.features.get(), received);
        let sent = call.sent.get();
        if call.permit.get() == Permit::Held && call.is_measured.get() {
            admission.observe(Answered { class, charged, sent, count: 1 }, now);
            if admission.samples_costs() {
                let mut batch = ReplyBatch::default();
                batch.add(read, ((tenant, call_charged.member.as_ref()), paid), sent, received);
                if let Some(took) = batch.took(Nanos::ZERO, now) {
                    admission.record_costs(&batch, took, now);
                }
            }
        } else {
            // Its time was its client's as well.
            self.service.metrics.answered(class.query_type, Nanos::ZERO, now.saturating_sub(sent), 1);
        }
        drop(call_charged);
        self.release();
    }

    /// The store has answered it, and goes on with another protocol: it keeps its connection of the store, and so much memory.
    pub(super) fn switch(&mut self, received: usize, memory: usize) {
        self.complete(received);
        self.call.waits_for(WaitsFor::Gate, clock::monotonic());
        self.outstanding = None;
        self.attending.request = None;
        self.attending.memory.note(memory);
    }

    /// Gives back the permit.
    fn release(&self) {
        let permit = self.call.permit.replace(Permit::Absent);
        if permit == Permit::Held || self.call.take_grant() {
            self.service.admission.release_permit();
            self.service.dispatch(clock::monotonic());
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.call.give_up();
        self.call.leave_store();
        self.release();
    }
}

impl HttpService {
    /// Lends the permit of a request that its client keeps waiting.
    pub(super) fn lend_permit(&self, call: &Call) {
        if call.permit.get() == Permit::Held {
            call.permit.set(Permit::Lent);
            call.is_measured.set(false);
            self.admission.release_permit();
        }
    }

    /// Takes back the permit of a request whose body has come: the store has something to do for it.
    pub(super) fn take_back_permit(&self, call: &Call) {
        if call.permit.get() == Permit::Lent {
            self.admission.retake_permit();
            call.permit.set(Permit::Held);
        }
    }
}
