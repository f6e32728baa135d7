//! The counters of tenants in this thread's row: requests that passed, their charges, refusals and demand.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use gate_common::abi::{CounterLine, OtherBucket, RareCounters, Reason};
use gate_common::units::MilliRu;

use super::{Ledger, TenantId};

impl Ledger {
    /// Counts a request that passes, with its charge.
    #[inline]
    pub(crate) fn count_passed(&self, tenant: TenantId, charged: MilliRu) {
        self.count(tenant, offset_of!(CounterLine, passed), 1);
        self.count_charged(tenant, charged);
    }

    /// Counts a charge beyond the one that a request was counted with.
    pub(crate) fn count_charged(&self, tenant: TenantId, charged: MilliRu) {
        self.count(tenant, offset_of!(CounterLine, charged_mru), u64::from(charged.0));
        self.touch(tenant);
    }

    /// Counts the demand of a tenant over a connection of its own source, whether it is served or not.
    #[inline]
    pub(crate) fn count_demand(&self, tenant: TenantId, price: MilliRu) {
        if self.is_shared {
            self.count_rare(tenant, offset_of!(RareCounters, asked_mru), u64::from(price.0));
        } else {
            self.count(tenant, offset_of!(CounterLine, bare_or_asked), u64::from(price.0));
        }
        self.touch(tenant);
    }

    /// Counts a refusal that the buckets have no part in.
    pub(crate) fn count_refusal(&self, tenant: TenantId, reason: Reason, price: MilliRu, shadow: bool) {
        let by_reason = reason.index() * size_of::<u64>();
        if shadow {
            return self.count_rare(tenant, offset_of!(RareCounters, shadowed) + by_reason, 1);
        }
        self.count(tenant, offset_of!(CounterLine, refused_mru), u64::from(price.0));
        match CounterLine::place(tenant.0, reason) {
            Some(place) => self.count(tenant, offset_of!(CounterLine, refused) + place * size_of::<u64>(), 1),
            None => self.count_rare(tenant, offset_of!(RareCounters, refused) + by_reason, 1),
        }
        self.touch(tenant);
    }

    /// Counts that a refusal for the quota, which is counted itself, is that of another bucket than the tenant's own.
    pub(crate) fn count_other_bucket(&self, tenant: TenantId, bucket: OtherBucket) {
        let by_bucket = bucket.index() * size_of::<u64>();
        self.count_rare(tenant, offset_of!(RareCounters, quota_refused) + by_bucket, 1);
    }

    /// This thread alone writes its row: a load and a store do.
    #[inline]
    pub(super) fn count(&self, tenant: TenantId, offset: usize, more: u64) {
        let word = self.maps.counters.word(self.row.line + tenant.0 as usize, offset);
        if self.is_shared {
            word.fetch_add(more, Ordering::Relaxed);
        } else {
            word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }

    /// Counts what is seldom counted, where other rows are counted as well.
    pub(super) fn count_rare(&self, tenant: TenantId, offset: usize, more: u64) {
        let word = self.maps.rare_counters.word(self.row.rare + tenant.0 as usize, offset);
        word.fetch_add(more, Ordering::Relaxed);
    }

    /// Marks a line as touched for the next tick.
    #[inline]
    fn touch(&self, tenant: TenantId) {
        self.maps.touch(self.row.touched, tenant.0 as usize);
    }

    /// Counts from now on in the row in which others count as well.
    pub(crate) fn count_in_shared_row(&mut self) {
        (self.row, self.is_shared) = (self.maps.row(0), true);
    }
}
