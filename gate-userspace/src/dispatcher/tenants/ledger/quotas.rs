//! The words of quotas, which all threads and XDP change by compare-and-swap.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::abi::{TenantState, tenant_flags};
use gate_common::token_bucket::{Limits, refund};
use gate_common::units::{MilliRu, Nanos};

use super::super::bucket_word::taken;
use super::super::members::Member;
use super::{Account, Ledger, TenantId};
use crate::protocol::Refusal;

impl Ledger {
    /// The quota of a tenant, if it has one.
    pub(super) fn quota(&mut self, tenant: TenantId) -> Option<Limits> {
        quota_of(tenant, self.state(tenant))
    }

    #[inline]
    pub(super) fn take_quota(
        &mut self,
        charged: Account<'_>,
        price: MilliRu,
        now: Nanos,
    ) -> Result<(), Refusal> {
        self.change_quota(charged, |tat, limits| taken(tat, now, price, limits))
    }

    pub(super) fn give_back(&mut self, charged: Account<'_>, price: MilliRu) {
        let Ok(()) = self.change_quota::<Infallible>(charged, |tat, limits| {
            Ok(refund(tat, limits.rate.time_for(price.0)))
        });
    }

    /// Changes the word of a quota, if there is one, by the limits in force. Others may be in force at any time: then the word, which
    /// is a time at their rate, is changed as well ([`crate::control::tick`]).
    #[inline]
    pub(super) fn change_quota<E>(
        &mut self,
        charged: Account<'_>,
        change: impl Fn(u64, &Limits) -> Result<u64, E>,
    ) -> Result<(), E> {
        loop {
            let Some(limits) = self.quota(charged.0) else { return Ok(()) };
            let word = self.quota_word(charged);
            // Before the generation is looked at: a word that was changed for another one shows that one as well.
            let seen = word.load(Ordering::Acquire);
            if self.maps.generation() != self.generation {
                self.follow();
                continue;
            }
            let tat = change(seen, &limits)?;
            if word.compare_exchange_weak(seen, tat, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Ok(());
            }
        }
    }

    /// The word of a member's quota, or of the tenant's where it has no member.
    #[inline]
    pub(super) fn quota_word<'m>(&'m self, (tenant, member): Account<'m>) -> &'m AtomicU64 {
        member.map_or_else(|| self.maps.quota_tat(tenant.0 as usize), Member::word)
    }
}

/// The quota of a tenant in this state, if it has one.
#[inline]
pub(super) fn quota_of(tenant: TenantId, state: &TenantState) -> Option<Limits> {
    (tenant != TenantId::UNKNOWN && state.flags & tenant_flags::UNLIMITED == 0).then_some(state.quota)
}

#[cfg(test)]
mod tests;
