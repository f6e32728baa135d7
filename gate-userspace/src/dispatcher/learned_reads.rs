//! The sizes of what a service's tenants have read, learned by all threads.

use std::hash::{BuildHasher as _, Hasher as _};

use foldhash::fast::FixedState;

use super::tenants::ledger::TenantId;
use crate::clock;
use crate::policy::key_reads::{KeyRead, KeyReads};
use crate::policy::read_cost::{ReadSize, ReadSizes, Reply, RequestedRows};
use crate::protocol::price_class::PriceClass;

/// Sizes by key, where a request reads whole keys, and else by price class.
#[derive(Debug)]
pub(super) struct LearnedReads {
    sizes: ReadSizes,
    pub(super) keys: KeyReads,
    /// Clients choose keys.
    hasher: FixedState,
}

impl LearnedReads {
    /// Nothing is known of so many tenants, whose numbers are below that.
    pub(super) fn new(tenants: usize) -> Self {
        let hasher = FixedState::with_seed(clock::entropy());
        Self { sizes: ReadSizes::new(tenants), keys: KeyReads::new(tenants), hasher }
    }

    /// The number by which a key is remembered; never zero.
    pub(super) fn number(&self, key: &[u8]) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        ((hasher.finish() >> 32) as u32).max(1)
    }

    /// The expected size of what a request reads.
    #[inline]
    pub(super) fn expected(
        &self,
        tenant: TenantId,
        (class, read): (PriceClass, &KeyRead),
        requested: RequestedRows,
    ) -> ReadSize {
        match read.is_none() {
            true => self.sizes.expected(tenant.0, class.index(), requested),
            false => self.keys.expected(tenant.0, read, requested),
        }
    }

    /// Learns from the reply to a request. Returns what the request read.
    #[inline]
    pub(super) fn observe(
        &self,
        tenant: TenantId,
        (class, read): (PriceClass, &KeyRead),
        requested: RequestedRows,
        reply: Reply,
    ) -> ReadSize {
        match read.is_none() {
            true => self.sizes.observe(tenant.0, class.index(), requested, reply),
            false => self.keys.observe(tenant.0, read, requested, reply, clock::monotonic()),
        }
    }

    /// Forgets a tenant: its number is another's from now on.
    pub(super) fn forget(&self, tenant: TenantId) {
        self.sizes.forget(tenant.0);
        self.keys.forget(tenant.0);
    }
}
