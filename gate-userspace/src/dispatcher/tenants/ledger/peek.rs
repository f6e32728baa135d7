//! The decisions of a ledger on a request that is only asked about: nothing is taken, counted or drawn.

use std::sync::atomic::Ordering;

use gate_common::abi::{Reason, ServiceState, TenantState, view_flags};
use gate_common::token_bucket::{Limits, Take, take};
use gate_common::units::{MilliRu, Nanos};

use super::quotas::quota_of;
use super::{Account, Ledger, TenantId};
use crate::protocol::{Refusal, Rule};

/// One quota that a request is charged to, and its answer to the price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaLevel {
    /// The tenant that has it.
    pub(crate) tenant: TenantId,
    pub(crate) limits: Limits,
    /// The time that it takes to be full again.
    pub(crate) debt: Nanos,
    /// The result of taking the price.
    pub(crate) take: Take,
}

impl Ledger {
    /// The state of the generator of draws. A question that puts it back has drawn nothing.
    pub(crate) fn draws(&self) -> u64 {
        self.draw
    }

    /// Puts the generator of draws back to where [`Ledger::draws`] found it.
    pub(crate) fn restore_draws(&mut self, draws: u64) {
        self.draw = draws;
    }

    /// A tenant's quota in units a second; `None` for one without limit.
    pub(crate) fn units_per_sec(&mut self, tenant: TenantId) -> Option<u64> {
        self.quota(tenant)?.rate.units_per_sec()
    }

    /// The prices and the shedding of a service, by its place at the start, as of this generation.
    pub(crate) fn prices(&self, service: usize) -> ServiceState {
        self.services.get(service).map_or_else(ServiceState::default, |(state, _)| *state)
    }

    /// A tenant's state in this generation.
    pub(crate) fn state_of(&mut self, tenant: TenantId) -> TenantState {
        *self.state(tenant)
    }

    /// True if all refusals are only counted.
    pub(crate) fn is_all_shadowed(&self) -> bool {
        self.view.flags & view_flags::SHADOW != 0
    }

    /// The refusal of a tenant's request that was decided ahead, if there is one. Draws as a charge does.
    pub(crate) fn peek_pushed(&mut self, tenant: TenantId, rung: u32, now: Nanos) -> Option<Refusal> {
        let now = self.at(now);
        let state = *self.state(tenant);
        self.pushed(&state, rung, now).err()
    }

    /// The dearest request that the buckets of a tenant and of those charged with it ever admit.
    pub(crate) fn dearest(&mut self, tenant: TenantId) -> MilliRu {
        let parents = self.state(tenant).parents.map(TenantId);
        let all = [tenant, parents[0], parents[1]];
        let dearest = all.into_iter().filter_map(|charged| Some(self.quota(charged)?.dearest())).min();
        MilliRu(dearest.unwrap_or(u32::MAX))
    }

    /// The refusal of a price that a bucket of a tenant never admits, where the request costs `asked` without multiplier and
    /// rung. If only those make it so dear, it passes once they are gone.
    pub(crate) fn too_dear(&mut self, tenant: TenantId, asked: MilliRu) -> Refusal {
        match asked > self.dearest(tenant) {
            true => Refusal::by(Reason::TooLarge, Rule::Burst),
            false => Refusal::of(Reason::Penalty),
        }
    }

    /// The quotas that a tenant's request is charged to, in the order in which they are asked.
    pub(crate) fn quota_levels(
        &mut self,
        (tenant, member): Account<'_>,
        price: MilliRu,
        now: Nanos,
    ) -> impl Iterator<Item = QuotaLevel> + use<> {
        let now = self.at(now);
        let [first, second] = self.state(tenant).parents.map(TenantId);
        let level = |ledger: &mut Self, (tenant, member)| {
            let limits = quota_of(tenant, ledger.state(tenant))?;
            let tat = ledger.quota_word((tenant, member)).load(Ordering::Relaxed);
            let debt = Nanos(tat.saturating_sub(now.0));
            Some(QuotaLevel { tenant, limits, debt, take: take(tat, now.0, price.0, &limits) })
        };
        [(tenant, member), (first, None), (second, None)]
            .map(|charged| level(self, charged))
            .into_iter()
            .flatten()
    }
}
