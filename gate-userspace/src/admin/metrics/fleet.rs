//! The metrics of the owners of limits, as this gate knows them.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::families::Family;
use crate::admin::fleet::FleetOwner;

/// All families of owners.
pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, owners: &[FleetOwner]) -> fmt::Result {
    write_each(encoder, UP, owners, |owner| u64::from(!owner.lost))?;
    write_each(encoder, GATES, owners, |owner| owner.gates.into())?;
    write_each(encoder, LIMITS, owners, |owner| owner.limits)
}

/// One family, with a series for each owner.
fn write_each(
    encoder: &mut DescriptorEncoder<'_>,
    family: Family,
    owners: &[FleetOwner],
    value: impl Fn(&FleetOwner) -> u64,
) -> fmt::Result {
    let mut series = family.begin(encoder)?;
    owners.iter().try_for_each(|owner| series.add(&[("owner", &owner.address)], value(owner)))
}

const UP: Family = Family::gauge(
    "gate_fleet_owner_up",
    "1 while what an owner of limits said last holds, 0 while gate goes by on_lost.",
);
const GATES: Family =
    Family::gauge("gate_fleet_owner_gates", "The gates that share an owner's limits, as it said last.");
const LIMITS: Family =
    Family::gauge("gate_fleet_owner_limits", "The limits that this gate reports to an owner.");
