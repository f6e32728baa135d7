//! The metrics of the owners of limits, as this gate knows them.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::families::Family;
use crate::admin::fleet::FleetOwner;

/// All families of owners.
pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, owners: &[FleetOwner]) -> fmt::Result {
    let up = |owner: &FleetOwner| u64::from(!owner.lost);
    let gates = |owner: &FleetOwner| u64::from(owner.gates);
    for (family, value) in
        [(UP, &up as &dyn Fn(&FleetOwner) -> u64), (GATES, &gates), (LIMITS, &|owner| owner.limits)]
    {
        let mut series = family.begin(encoder)?;
        for owner in owners {
            series.add(&[("owner", &owner.address)], value(owner))?;
        }
    }
    Ok(())
}

const UP: Family = Family::gauge(
    "gate_fleet_owner_up",
    "1 while what an owner of limits said last holds, 0 while gate goes by on_lost.",
);
const GATES: Family =
    Family::gauge("gate_fleet_owner_gates", "The gates that share an owner's limits, as it said last.");
const LIMITS: Family =
    Family::gauge("gate_fleet_owner_limits", "The limits that this gate reports to an owner.");
