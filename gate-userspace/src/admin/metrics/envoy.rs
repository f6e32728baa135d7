//! The metrics of the server that Envoys ask, and of named limits.

use std::fmt;
use std::sync::Arc;

use gate_common::units::Nanos;
use prometheus_client::encoding::DescriptorEncoder;

use super::families::Family;
use crate::envoy::{Counters, Event};
use crate::limits::{AskedLimit, Table};

/// The limits, the server's counters, and how many limits are named.
type Source = (Arc<Table>, Arc<Counters>, usize);

/// All families of the server and its limits; without a server they have no series.
pub(super) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    (envoy, now): (Option<&Source>, Nanos),
) -> fmt::Result {
    let mut series = EVENTS.begin(encoder)?;
    if let Some((_, counters, _)) = envoy {
        for event in Event::ALL {
            series.add(&[("event", event.name())], counters.of(event))?;
        }
    }
    let values = envoy.map(|(table, counters, _)| (table.totals(), counters));
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
    let asked = envoy.map(|(table, _, named)| table.most_asked(*named, now)).unwrap_or_default();
    write_most_asked(encoder, &asked)
}

/// The number of a limit in one family.
type Amount = fn(&AskedLimit) -> f64;

/// The families of limits by name; without a limit they have no series.
fn write_most_asked(encoder: &mut DescriptorEncoder<'_>, limits: &[AskedLimit]) -> fmt::Result {
    let families: [(Family, Amount); 3] = [
        (ASKED, |limit| limit.asked as f64 / 1e3),
        (REFUSED, |limit| limit.refused as f64 / 1e3),
        (LEFT, |limit| limit.standing.remaining as f64 / 1e3),
    ];
    for (family, value) in families {
        let mut series = family.begin(encoder)?;
        limits.iter().try_for_each(|limit| series.add(&[("limit", limit.name.as_str())], value(limit)))?;
    }
    Ok(())
}

const ASKED: Family = Family::counter(
    "gate_limit_asked_request_units_total",
    "Request units that were asked for under a name, refused ones included.",
);
const REFUSED: Family = Family::counter(
    "gate_limit_refused_request_units_total",
    "Request units that a name's limit has refused.",
);
const LEFT: Family =
    Family::gauge("gate_limit_left_request_units", "Request units left in a name's bucket here.");
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
