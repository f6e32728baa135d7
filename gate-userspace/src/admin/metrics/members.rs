//! The metrics of tenants' members: sums, since there is no bound to their names.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::families::Family;
use crate::dispatcher::{MemberCounts, MemberTotals};

pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, counts: Option<&MemberCounts>) -> fmt::Result {
    let all = counts.map(MemberCounts::all).unwrap_or_default();
    let mut each = |family: Family, of: fn(&MemberTotals) -> u64| {
        let mut series = family.begin(encoder)?;
        all.iter().try_for_each(|(tenant, totals)| series.add(&[("tenant", tenant)], of(totals)))
    };
    each(MEMBERS, |totals| totals.members as u64)?;
    each(MEMORY, |totals| totals.bytes as u64)?;
    each(EVICTED, |totals| totals.evictions)?;
    each(WITHOUT_ROOM, |totals| totals.without_room)
}

const MEMBERS: Family = Family::gauge("gate_tenant_members", "Members of a tenant that have a bucket.");
const MEMORY: Family = Family::gauge(
    "gate_tenant_member_memory_bytes",
    "The memory that the buckets of a tenant's members take.",
);
const EVICTED: Family = Family::counter(
    "gate_tenant_members_evicted_total",
    "Full buckets of a tenant's members that made room for others.",
);
const WITHOUT_ROOM: Family = Family::counter(
    "gate_tenant_members_without_room_total",
    "Look-ups of a tenant's members for which there was no room: they share one bucket.",
);
