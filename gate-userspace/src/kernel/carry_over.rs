//! The state that moves from one set of maps to another.

use std::fmt::Debug;
use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

use gate_common::abi::{Cpu, Name, Tenant, TenantCounters, TopKey, maps};

use super::maps::Maps;
use super::owner::ControlHead;

/// The state that moves from one set of maps, of any version of the ABI, to another.
pub(super) trait CarryOver: ControlHead + Debug {
    /// The names of their pins.
    fn pins(&self) -> &'static [&'static str];
    /// Room for tenants, nobody included.
    fn tenants(&self) -> usize;
    /// A tenant's name; empty if there is none of this id.
    fn name(&self, tenant: usize) -> Name;
    /// The word of one of a tenant's buckets.
    fn bucket(&self, tenant: usize, bucket: Bucket) -> &AtomicU64;
    /// The word of a tenant's bucket for connection attempts; `None` where there was none.
    fn syn_bucket(&self, _tenant: usize) -> Option<&AtomicU64> {
        None
    }
    /// A tenant's counters, all rows together.
    fn tenant_counters(&self, tenant: usize) -> TenantCounters;
    /// The CPUs' own counters, all together.
    fn cpu_counters(&self) -> Cpu;
    /// The hottest keys. They are found anew within seconds, so a version may leave them behind.
    fn top_keys(&self) -> Vec<TopKey> {
        Vec::new()
    }
}

/// A tenant's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bucket {
    /// The quota.
    Quota,
    /// The coarse second line of proxied TCP.
    Tcp,
    /// The budget for replies.
    Reply,
    /// The candidate quota.
    Candidate,
}

impl Bucket {
    pub(super) const ALL: [Self; 4] = [Self::Quota, Self::Tcp, Self::Reply, Self::Candidate];
}

impl CarryOver for Maps {
    fn pins(&self) -> &'static [&'static str] {
        &maps::ALL
    }

    fn tenants(&self) -> usize {
        self.tenants.len()
    }

    fn name(&self, tenant: usize) -> Name {
        self.tenants.load_at(tenant, offset_of!(Tenant, name))
    }

    fn bucket(&self, tenant: usize, bucket: Bucket) -> &AtomicU64 {
        let offset = match bucket {
            Bucket::Quota => return self.quota_tat(tenant),
            Bucket::Tcp => offset_of!(Tenant, tcp_tat),
            Bucket::Reply => offset_of!(Tenant, reply_tat),
            Bucket::Candidate => offset_of!(Tenant, candidate_tat),
        };
        self.tenants.word(tenant, offset)
    }

    fn syn_bucket(&self, tenant: usize) -> Option<&AtomicU64> {
        Some(self.tenants.word(tenant, offset_of!(Tenant, syn_tat)))
    }

    fn tenant_counters(&self, tenant: usize) -> TenantCounters {
        Self::tenant_counters(self, tenant)
    }

    fn cpu_counters(&self) -> Cpu {
        Self::cpu_counters(self)
    }

    fn top_keys(&self) -> Vec<TopKey> {
        (0..self.top_keys.len()).map(|rank| self.top_keys.load(rank)).collect()
    }
}
