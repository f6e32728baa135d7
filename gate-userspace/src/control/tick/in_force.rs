//! State that is in the maps from before this daemon's configuration.

use std::collections::HashSet;

use gate_common::token_bucket::Rate;

use super::rates::Part;
use crate::control::layout::{Layout, Tenant};
use crate::kernel::Maps;

/// The rate of a tenant's quota as the maps have it. It is a part of a limit if it is not what the configuration says: another gate has
/// put it there.
pub(super) fn rate_in_force(maps: &Maps, tenant: &Tenant) -> Part {
    let configured = tenant.state.quota.rate;
    if tenant.fresh {
        return Part::whole(configured);
    }
    let rate = maps.quota_rate(tenant.id);
    // New maps, which an older gate's counters were brought to, say nothing of rates.
    if rate == Rate::UNLIMITED {
        return Part::whole(configured);
    }
    Part { rate, is_part: rate != configured }
}

/// The tenants that this layout charges with others than those in force, and at which of their places.
pub(super) fn replaced(maps: &Maps, layout: &Layout) -> Vec<(u32, [bool; 2])> {
    let fresh: HashSet<u32> =
        layout.tenants.iter().filter(|tenant| tenant.fresh).map(|tenant| tenant.id).collect();
    let known = layout.tenants.iter().filter(|tenant| !tenant.fresh);
    let places = known.map(|tenant| {
        let before = maps.parents(tenant.id);
        let now = tenant.state.parents;
        // A fresh tenant is another, whoever had its number before.
        (tenant.id, [0, 1].map(|place| before[place] != now[place] || fresh.contains(&now[place])))
    });
    places.filter(|(_, places)| *places != [false; 2]).collect()
}
