//! How large the maps are made.

use gate_common::abi::{RareCounters, TopKey, maps, touched_words};

/// How large the maps are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Numbers that a CPU may have: one more than the highest.
    pub cpus: u32,
    /// Rows of counters for CPUs.
    pub cpu_rows: u32,
    /// Rows of counters for the dispatcher's threads.
    pub thread_rows: u32,
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
    /// Those of tests that need maps of some size.
    #[cfg(test)]
    pub(crate) const SMALL: Self =
        Self { cpus: 1, cpu_rows: 1, thread_rows: 1, tenants: 4, services: 4, blocks: 16, samples: 4_096 };

    /// The number of elements of a map; `None` for a map whose size the object says.
    #[must_use]
    pub fn entries(&self, map: &str) -> Option<u32> {
        Some(match map {
            maps::TABLES => self.blocks,
            maps::SERVICES => self.services,
            maps::TENANT_LINES | maps::TENANTS => self.tenants,
            maps::COUNTERS => self.tenants.checked_mul(self.rows())?,
            maps::RARE_COUNTERS => self.tenants.checked_mul(self.rare_rows())?,
            maps::TOUCHED => self.rows().checked_mul(touched_words(self.tenants))?,
            maps::CPUS => self.cpus.checked_add(1)?,
            maps::SAMPLES => self.samples,
            maps::TOP_KEYS => TopKey::COUNT as u32,
            maps::CONTROL | maps::PORTS => 1,
            _ => return None,
        })
    }

    /// Rows of counters: the shared one, those of CPUs, those of threads.
    #[must_use]
    pub const fn rows(&self) -> u32 {
        1 + self.cpu_rows + self.thread_rows
    }

    /// Rows of rare counters: those that CPUs share, and one that all threads share.
    #[must_use]
    pub fn rare_rows(&self) -> u32 {
        let of_threads = self.thread_rows.min(1);
        self.cpu_rows.clamp(1, RareCounters::MOST_ROWS - of_threads) + of_threads
    }

    /// The larger of each; the ring buffer's as `needed` says.
    pub(super) fn or_larger(&self, needed: &Self) -> Self {
        Self {
            cpus: self.cpus.max(needed.cpus),
            cpu_rows: self.cpu_rows.max(needed.cpu_rows),
            thread_rows: self.thread_rows.max(needed.thread_rows),
            tenants: self.tenants.max(needed.tenants),
            services: self.services.max(needed.services),
            blocks: self.blocks.max(needed.blocks),
            samples: needed.samples,
        }
    }
}
