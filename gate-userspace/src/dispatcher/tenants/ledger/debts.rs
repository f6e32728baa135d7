//! Charges that no bucket refuses: they leave a debt.

use std::convert::Infallible;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use gate_common::abi::{Tenant, tenant_flags};
use gate_common::token_bucket::settle;
use gate_common::units::{MilliRu, Nanos};

use super::super::bucket_word::update;
use super::{Account, Ledger, TenantId};

impl Ledger {
    /// Charges a tenant, and those charged with it, a price that no bucket refuses: what they cannot pay is debt, of `max_debt` at
    /// most.
    pub(crate) fn charge_debt(&mut self, (tenant, member): Account<'_>, price: MilliRu, now: Nanos) {
        let now = self.at(now);
        let state = *self.state(tenant);
        if state.flags & tenant_flags::CANDIDATE != 0 {
            let word = self.word(tenant, offset_of!(Tenant, candidate_tat));
            update(word, |tat| settle(tat, now.0, price.0, &state.candidate));
        }
        let [first, second] = state.parents.map(TenantId);
        for charged in [(tenant, member), (first, None), (second, None)] {
            let Ok(()) = self
                .change_quota::<Infallible>(charged, |tat, limits| Ok(settle(tat, now.0, price.0, limits)));
        }
    }

    /// The time until bytes of a stream may pass: zero unless the tenant's requests are refused, by what was decided ahead for it or
    /// for the `rung` of its service and tier, or it or one charged with it owes more than its burst.
    pub(crate) fn wait_for_stream(&mut self, (tenant, member): Account<'_>, rung: u32, now: Nanos) -> Nanos {
        let now = self.at(now);
        let state = *self.state(tenant);
        if let Err(refusal) = self.pushed(&state, rung, now) {
            return refusal.retry_after.max(Nanos::from_millis(10));
        }
        let [first, second] = state.parents.map(TenantId);
        let waits = [(tenant, member), (first, None), (second, None)].map(|charged| {
            let Some(limits) = self.quota(charged.0) else { return Nanos::ZERO };
            let tat = self.quota_word(charged).load(Ordering::Relaxed);
            Nanos(tat.saturating_sub(now.0).saturating_sub(limits.burst_ns))
        });
        waits.into_iter().max().unwrap_or_default()
    }

    /// The time until a tenant, and those charged with it, may owe a price more: zero unless a debt is near `max_debt`.
    pub(crate) fn wait_for_debt(
        &mut self,
        (tenant, member): Account<'_>,
        price: MilliRu,
        now: Nanos,
    ) -> Nanos {
        let now = self.at(now);
        let state = *self.state(tenant);
        let [first, second] = state.parents.map(TenantId);
        let waits = [(tenant, member), (first, None), (second, None)].map(|charged| {
            let Some(limits) = self.quota(charged.0) else { return Nanos::ZERO };
            let most = limits.burst_ns.saturating_add(limits.max_debt_ns);
            let cost = limits.rate.time_for(price.0).min(most);
            let tat = self.quota_word(charged).load(Ordering::Relaxed);
            Nanos(tat.saturating_sub(now.0).saturating_sub(most - cost))
        });
        waits.into_iter().max().unwrap_or_default()
    }
}
