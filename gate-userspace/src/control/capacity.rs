//! The room that a configuration needs in the maps, and how large new maps are made for it.

use std::collections::BTreeSet;

use super::addresses::{LOCAL_BLOCKS, endpoints, listens_anywhere, protected_tables, source_tables};
use super::occupied::Occupied;
use super::tables::{FIRST_FREE, Table};
use crate::config::Config;

/// The size of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Tenants, nobody included.
    pub tenants: u32,
    /// Services, one for each address and transport.
    pub services: u32,
    /// Blocks below the roots of the tables.
    pub blocks: u32,
}

/// The room that a configuration needs in the maps.
#[must_use]
pub fn needs(config: &Config) -> Needs {
    let identity: Vec<u32> = (1..=config.tenants.len() as u32).collect();
    let [v4, v6] = source_tables(config, &identity);
    let services = endpoints(config).count() as u32;
    let sources = v4.len_below_root() + v6.len_below_root();
    let protected: usize = protected_tables(config, &BTreeSet::new()).iter().map(Table::len_below_root).sum();
    let local = if listens_anywhere(config) { LOCAL_BLOCKS } else { 0 };
    let blocks = sources + protected + local + SINGLE_ROOTS;
    Needs { tenants: config.tenants.len() as u32 + 1, services, blocks: blocks as u32 }
}

/// Sizes for new maps: room for this configuration and, beside it, for one twice as large, as far as
/// `most_blocks` allows.
#[must_use]
pub fn capacities(needs: &Needs, most_blocks: u32) -> Occupied {
    Occupied {
        tenant_capacity: needs.tenants.saturating_mul(2).max(LEAST_TENANTS),
        service_capacity: 1 + 2 * needs.services.saturating_mul(2).max(LEAST_SERVICES),
        block_capacity: FIRST_FREE
            + needs.blocks.saturating_mul(3).max(LEAST_BLOCKS).min(most_blocks.max(needs.blocks)),
        ..Occupied::default()
    }
}

/// Tables whose root is a single block: IPv6 sources, protected addresses of either kind.
const SINGLE_ROOTS: usize = 3;
/// Small maps cost nothing, and leave room for reloads.
const LEAST_TENANTS: u32 = 64;
const LEAST_SERVICES: u32 = 32;
const LEAST_BLOCKS: u32 = 256;
