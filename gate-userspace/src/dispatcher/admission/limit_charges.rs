//! Charges to a tenant's limits by what is asked, beside its quota: all or none.

use gate_common::abi::{OtherBucket, Reason};
use gate_common::units::{MilliRu, Nanos};

use super::Admission;
use crate::dispatcher::request::{Charged, Payer};
use crate::dispatcher::tenants::ledger::{Ledger, TenantId};
use crate::dispatcher::tenants::request_limits::LimitSet;
use crate::protocol::Refusal;

impl<T> Admission<T> {
    /// Takes a request of this price from its limits. False if one refuses it, and refusals of its payer are only counted.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted. The XDP program's charge, if there was one, is refunded.
    #[inline]
    pub(in crate::dispatcher) fn take_limits(
        &self,
        ledger: &mut Ledger,
        payer: &Payer,
        limits: LimitSet,
        price: MilliRu,
        now: Nanos,
    ) -> Result<bool, Refusal> {
        if limits == LimitSet::NONE {
            return Ok(true);
        }
        let &Payer { tenant, shadow, is_charged_by_xdp, .. } = payer;
        let refusal = {
            let tenants = self.tenants.borrow();
            let buckets = tenants.request_limits(tenant, ledger);
            buckets.and_then(|buckets| buckets.take(limits, price, now, shadow).err())
        };
        let Some(refusal) = refusal else { return Ok(true) };
        ledger.count_refusal(tenant, Reason::Quota, price, shadow);
        if shadow {
            return Ok(false);
        }
        ledger.count_other_bucket(tenant, OtherBucket::Limit);
        if is_charged_by_xdp {
            ledger.refund(payer.account(), price);
        }
        Err(refusal)
    }

    /// Gives back to its limits what a request took that is refused after all.
    #[inline]
    pub(in crate::dispatcher) fn return_to_limits(
        &self,
        ledger: &Ledger,
        tenant: TenantId,
        limits: LimitSet,
        price: MilliRu,
    ) {
        if limits != LimitSet::NONE
            && let Some(buckets) = self.tenants.borrow().request_limits(tenant, ledger)
        {
            buckets.give_back(limits, price);
        }
    }

    /// Gives back to its limits what a request took of which a part has run, but for the price that was `spent`.
    pub(in crate::dispatcher) fn return_rest_to_limits(
        &self,
        ledger: &Ledger,
        charged: &Charged,
        spent: MilliRu,
    ) {
        if charged.limits != LimitSet::NONE
            && let Some(buckets) = self.tenants.borrow().request_limits(charged.tenant, ledger)
        {
            buckets.give_back_rest(charged.limits, charged.price, spent);
        }
    }
}
