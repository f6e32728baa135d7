//! The part of a price that is for what a request reads: learned from replies, known before the request runs.
//!
//! [`crate::policy::read_cost`] expects as many rows and bytes of a request as the last ones of its tenant and price class
//! read. Replies are recorded in [`super::reply_costs`].

use std::cell::Cell;
use std::sync::Arc;

use crate::config::{Learn, Settle};
use crate::dispatcher::tenants::ledger::TenantId;
use crate::policy::read_cost::{ReadSize, ReadSizes, Reply, RequestedRows};
use crate::protocol::price_class::PriceClass;

/// The sizes of reads of one service, learned by all threads.
#[derive(Debug)]
pub(in crate::dispatcher) struct ReadPrices {
    sizes: Arc<ReadSizes>,
    /// The sizes that prices follow; `None` if they stay as configured.
    learn: Cell<Option<Learn>>,
}

impl ReadPrices {
    pub(in crate::dispatcher) fn new(sizes: Arc<ReadSizes>, learn: Option<Learn>) -> Self {
        Self { sizes, learn: Cell::new(learn) }
    }

    /// Sets the sizes that prices follow.
    pub(in crate::dispatcher) fn follow(&self, learn: Option<Learn>) {
        self.learn.set(learn);
    }

    /// True if a request that has read beyond its price is charged the difference.
    #[inline]
    pub(in crate::dispatcher) fn settles(&self) -> bool {
        self.learn.get().is_some_and(|learn| learn.settle == Settle::Debt)
    }

    /// The expected read of a tenant's request; `None` if that is the one that the request says.
    #[inline]
    pub(in crate::dispatcher) fn expected(
        &self,
        tenant: TenantId,
        class: PriceClass,
        requested: RequestedRows,
    ) -> Option<ReadSize> {
        self.learn.get()?;
        let expected = self.sizes.expected(tenant.0, class.index(), requested);
        (expected.rows != requested.rows || expected.more_bytes > 0).then_some(expected)
    }

    /// Learns from a reply. Returns what its request has read; `None` if prices do not follow that.
    #[inline]
    pub(in crate::dispatcher) fn observe(
        &self,
        tenant: TenantId,
        class: PriceClass,
        requested: RequestedRows,
        reply: Reply,
    ) -> Option<ReadSize> {
        self.learn.get()?;
        Some(self.sizes.observe(tenant.0, class.index(), requested, reply))
    }
}
