//! The part of a price that is for what a request reads: learned from replies, known before the request runs.
//!
//! [`crate::policy::read_cost`] expects as many rows and bytes of a request as the last ones of its tenant and price class
//! read. Replies teach it in [`super::reply_costs`].

use std::cell::Cell;
use std::sync::Arc;

use crate::config::{Learn, Settle};
use crate::dispatcher::tenants::ledger::TenantId;
use crate::policy::read_cost::{AskedRows, ReadSize, ReadSizes, Reply};
use crate::protocol::price_class::PriceClass;

/// What requests of one service read, learned by all threads.
#[derive(Debug)]
pub(super) struct ReadPrices {
    sizes: Arc<ReadSizes>,
    /// What prices follow; `None` if they stay as configured.
    learn: Cell<Option<Learn>>,
}

impl ReadPrices {
    pub(super) fn new(sizes: Arc<ReadSizes>, learn: Option<Learn>) -> Self {
        Self { sizes, learn: Cell::new(learn) }
    }

    /// From now on prices follow this.
    pub(super) fn follow(&self, learn: Option<Learn>) {
        self.learn.set(learn);
    }

    /// Whether a request that has read beyond its price is charged the difference.
    #[inline]
    pub(super) fn settles(&self) -> bool {
        self.learn.get().is_some_and(|learn| learn.settle == Settle::Debt)
    }

    /// What a tenant's request is expected to read, if that differs from what it says.
    #[inline]
    pub(super) fn expected(&self, tenant: TenantId, class: PriceClass, asked: AskedRows) -> Option<ReadSize> {
        self.learn.get()?;
        let expected = self.sizes.expected(tenant.0, class.index(), asked);
        (expected.rows != asked.rows || expected.more_bytes > 0).then_some(expected)
    }

    /// Learns from a reply. Returns what its request has read; `None` if prices do not follow that.
    #[inline]
    pub(super) fn observe(
        &self,
        tenant: TenantId,
        class: PriceClass,
        asked: AskedRows,
        reply: Reply,
    ) -> Option<ReadSize> {
        self.learn.get()?;
        Some(self.sizes.observe(tenant.0, class.index(), asked, reply))
    }
}
