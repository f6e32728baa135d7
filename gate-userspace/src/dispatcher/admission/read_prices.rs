//! The part of a price that is for what a request reads: learned from replies, known before the request runs.
//!
//! [`crate::policy::read_cost`] expects as many rows and bytes of a request as the last ones of its tenant and price class
//! read; of requests that read whole keys [`crate::policy::key_reads`] expects the size of the key, where that is known.
//! Replies are recorded in [`super::reply_costs`].

use std::cell::Cell;
use std::sync::Arc;

use gate_common::units::Nanos;

use crate::config::{Learn, Settle};
use crate::dispatcher::learned_reads::LearnedReads;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::policy::key_reads::{KeyRead, SeenKey};
use crate::policy::read_cost::{ReadSize, Reply, RequestedRows};
use crate::protocol::price_class::PriceClass;

/// The prices of reads of one service, in one thread.
#[derive(Debug)]
pub(in crate::dispatcher) struct ReadPrices {
    learned: Arc<LearnedReads>,
    /// The sizes that prices follow; `None` if they stay as configured.
    learn: Cell<Option<Learn>>,
}

impl ReadPrices {
    pub(in crate::dispatcher) fn new(learned: Arc<LearnedReads>, learn: Option<Learn>) -> Self {
        Self { learned, learn: Cell::new(learn) }
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

    /// The number by which a key is remembered; never zero.
    pub(in crate::dispatcher) fn key_number(&self, key: &[u8]) -> u32 {
        self.learned.number(key)
    }

    /// The size of a tenant's key, if it is known as a large one.
    pub(in crate::dispatcher) fn seen(&self, tenant: TenantId, key: u32, now: Nanos) -> Option<SeenKey> {
        self.learn.get()?;
        self.learned.keys.seen(tenant.0, key, now)
    }

    /// True if a tenant's reads of this kind were large lately.
    pub(in crate::dispatcher) fn were_large(&self, tenant: TenantId, kind: u8, now: Nanos) -> bool {
        self.learn.get().is_some() && self.learned.keys.were_large(tenant.0, kind, now)
    }

    /// The expected read of a tenant's request; `None` if that is the one that the request says.
    #[inline]
    pub(in crate::dispatcher) fn expected(
        &self,
        tenant: TenantId,
        (class, read): (PriceClass, &KeyRead),
        requested: RequestedRows,
    ) -> Option<ReadSize> {
        self.learn.get()?;
        let expected = self.learned.expected(tenant, (class, read), requested);
        (expected.rows != requested.rows || expected.more_bytes > 0).then_some(expected)
    }

    /// Learns from a reply. Returns what its request has read; `None` if prices do not follow that.
    #[inline]
    pub(in crate::dispatcher) fn observe(
        &self,
        tenant: TenantId,
        (class, read): (PriceClass, &KeyRead),
        requested: RequestedRows,
        reply: Reply,
    ) -> Option<ReadSize> {
        self.learn.get()?;
        Some(self.learned.observe(tenant, (class, read), requested, reply))
    }
}
