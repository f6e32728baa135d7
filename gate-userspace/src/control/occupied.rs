//! The parts of the maps that are in use.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use gate_common::abi::{Block, View};

use super::tables::{self, ROOT_V4};
use crate::kernel::Maps;

/// The parts of the maps that are in use, and their capacity.
#[derive(Clone, Debug, Default)]
pub struct Occupied {
    /// Room for tenants, nobody included.
    pub tenant_capacity: u32,
    /// Room for services, the empty slot included.
    pub service_capacity: u32,
    /// Room for blocks.
    pub block_capacity: u32,
    /// The ids in use.
    pub tenants: HashMap<String, u32>,
    /// The ids of those that are charged with a tenant, by its id, where there are any.
    pub charged: HashMap<u32, [u32; 2]>,
    /// Ids of tenants that are gone, which connections or requests may still refer to.
    pub reserved: HashSet<u32>,
    /// The slot of the first service in use; zero if there is none.
    pub first_service: u32,
    /// The blocks in use.
    pub blocks: HashSet<u32>,
    /// The addresses of the interface's own namespace, as far as they are known.
    pub local: BTreeSet<IpAddr>,
    /// True if the kernel answers SYNs with cookies where a listening socket's queue is full.
    pub syn_cookies: bool,
}

/// The parts of the maps that are in use, and their capacity.
#[must_use]
pub fn occupied(maps: &Maps) -> Occupied {
    let sizes = maps.sizes();
    let view = maps.view();
    let tenants = maps.tenant_ids();
    let charged = tenants.values().map(|&id| (id, maps.parents(id))).filter(|(_, of)| *of != [0; 2]);
    Occupied {
        charged: charged.collect(),
        tenant_capacity: sizes.tenants,
        service_capacity: sizes.services,
        block_capacity: sizes.blocks,
        tenants,
        reserved: HashSet::new(),
        local: BTreeSet::new(),
        syn_cookies: false,
        first_service: view.first_service,
        blocks: blocks_in_force(&view, sizes.blocks, &|number| maps.tables.load(number as usize)),
    }
}

/// The blocks of the tables in force; `block` reads one.
#[must_use]
pub fn blocks_in_force(view: &View, capacity: u32, block: &dyn Fn(u32) -> Block) -> HashSet<u32> {
    let mut used = HashSet::new();
    let single = [view.sources_v6, view.protected_v4, view.protected_v6];
    let roots = single.map(|root| (root, 1)).into_iter().chain([(view.sources_v4, ROOT_V4 as u32)]);
    for (root, root_blocks) in roots {
        tables::blocks_of(root, root_blocks, capacity, &mut used, block);
    }
    used
}
