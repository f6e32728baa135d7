//! The metrics of the server that Envoys ask, and of named limits.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::DescriptorEncoder;

use super::families::Family;
use crate::envoy::{Counters, Event};
use crate::limits::Table;

/// All families of the server and its limits; without a server they have no series.
pub(super) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    envoy: Option<&(Arc<Table>, Arc<Counters>)>,
) -> fmt::Result {
    let mut series = EVENTS.begin(encoder)?;
    if let Some((_, counters)) = envoy {
        for event in Event::ALL {
            series.add(&[("event", event.name())], counters.of(event))?;
        }
    }
    let values = envoy.map(|(table, counters)| (table.totals(), counters));
    for (family, value) in [
        (CONNECTIONS, values.map(|(_, counters)| counters.connections())),
        (STREAMS, values.map(|(_, counters)| counters.streams())),
        (NAMES, values.map(|(totals, _)| totals.names as u64)),
        (BYTES, values.map(|(totals, _)| totals.bytes as u64)),
        (UNTRACKED, values.map(|(totals, _)| totals.untracked)),
        (EVICTIONS, values.map(|(totals, _)| totals.evictions)),
    ] {
        match value {
            Some(value) => family.write(encoder, value)?,
            None => {
                family.begin(encoder)?;
            }
        }
    }
    Ok(())
}

const EVENTS: Family = Family::counter("gate_envoy_events_total", "What Envoys have asked, by event.");
const CONNECTIONS: Family = Family::gauge("gate_envoy_connections", "Connections of Envoys.");
const STREAMS: Family = Family::gauge("gate_envoy_streams", "Streams of usage reports.");
const NAMES: Family = Family::gauge("gate_limits_names", "Names that have a bucket.");
const BYTES: Family = Family::gauge("gate_limits_bytes", "The most memory that buckets of names take.");
const UNTRACKED: Family = Family::counter(
    "gate_limits_untracked_total",
    "Charges that passed uncounted: there was no room for their names.",
);
const EVICTIONS: Family =
    Family::counter("gate_limits_evictions_total", "Idle buckets of names that made room for others.");
