//! How large the maps are made.

use gate_common::abi::{TopKey, maps};

/// How large the maps are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of counters: one for each number that a CPU may have, then those of the dispatcher's threads and one more.
    pub cpus: u32,
    /// Tenants, nobody (index zero) included.
    pub tenants: u32,
    /// Service slots, the empty one (index zero) included.
    pub services: u32,
    /// Blocks of the port and source tables.
    pub blocks: u32,
    /// Bytes of the ring buffer of samples: a power of two, at least a page.
    pub samples: u32,
}

impl Sizes {
    /// The number of elements of a map; `None` for a map whose size the object says.
    #[must_use]
    pub fn entries(&self, map: &str) -> Option<u32> {
        Some(match map {
            maps::TABLES => self.blocks,
            maps::SERVICES => self.services,
            maps::TENANT_LINES | maps::TENANTS => self.tenants,
            maps::COUNTERS => self.tenants.checked_mul(self.cpus)?,
            maps::CPUS => self.cpus,
            maps::SAMPLES => self.samples,
            maps::TOP_KEYS => TopKey::COUNT as u32,
            maps::CONTROL | maps::PORTS => 1,
            _ => return None,
        })
    }

    /// The larger of each; the ring buffer's as `needed` says.
    pub(super) fn or_larger(&self, needed: &Self) -> Self {
        Self {
            cpus: self.cpus.max(needed.cpus),
            tenants: self.tenants.max(needed.tenants),
            services: self.services.max(needed.services),
            blocks: self.blocks.max(needed.blocks),
            samples: needed.samples,
        }
    }
}
