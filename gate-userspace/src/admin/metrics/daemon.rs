//! The metrics of the daemon and of the program at the interface.

use std::fmt;

use gate_common::abi::{Event, Exit};
use prometheus_client::encoding::DescriptorEncoder;

use super::families::Family;
use crate::admin::sources::Sources;
use crate::admin::status::age;
use crate::clock;
use crate::logging::{self, Lost};

/// All families of the daemon and of the program.
pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, sources: &Sources) -> fmt::Result {
    write_process(encoder)?;
    let report = sources.queues.report();
    TICK.write(encoder, report.took.0 as f64 / 1e9)?;
    let since_tick = clock::monotonic().saturating_sub(report.at);
    TICK_AGE.write(encoder, since_tick.0 as f64 / 1e9)?;
    HEARTBEAT_AGE.write(encoder, age(&sources.maps).0 as f64 / 1e9)?;
    GENERATION.write(encoder, report.generation)?;
    let counters = sources.maps.cpu_counters();
    let mut series = PACKETS.begin(encoder)?;
    for exit in Exit::ALL {
        series.add_touched(&[("exit", exit.name())], counters.exits[exit.index()])?;
    }
    let lost = logging::access_lines_lost();
    let mut series = ACCESS_LOG_LOST.begin(encoder)?;
    for cause in [Lost::QueueFull, Lost::WriteFailed] {
        series.add(&[("cause", cause.name())], lost.by(cause))?;
    }
    for (family, event) in [(SAMPLES, Event::Sampled), (SAMPLES_LOST, Event::SampleLost)] {
        // Alerts compare it from the start.
        family.write(encoder, counters.events[event.index()])?;
    }
    Ok(())
}

/// The families of every process that serves: its version, and what its log has lost.
pub(super) fn write_process(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    BUILD.begin(encoder)?.add(&[("version", env!("CARGO_PKG_VERSION"))], 1_u32)?;
    let lost = logging::lost();
    let mut series = LOG_LOST.begin(encoder)?;
    for cause in Lost::ALL {
        series.add(&[("cause", cause.name())], lost.by(cause))?;
    }
    Ok(())
}

const BUILD: Family = Family::gauge("gate_build_info", "Always 1; the version of gate is a label.");
const LOG_LOST: Family = Family::counter(
    "gate_log_lines_lost_total",
    "Lines of the log that were dropped: the queue was full, writing failed, or a place in the code logged too much.",
);
const ACCESS_LOG_LOST: Family = Family::counter(
    "gate_access_log_lines_lost_total",
    "Lines of access logs that were dropped: the queue was full, or writing failed.",
);
const TICK: Family = Family::gauge("gate_tick_seconds", "How long the last tick took.");
const TICK_AGE: Family = Family::gauge("gate_tick_age_seconds", "How long ago the last tick was.");
const HEARTBEAT_AGE: Family = Family::gauge(
    "gate_heartbeat_age_seconds",
    "How long ago the last heartbeat was; the program ignores decisions once it is stale.",
);
const GENERATION: Family = Family::gauge("gate_generation", "The number of the plan in force.");
const PACKETS: Family = Family::counter(
    "gate_packets_total",
    "Packets that the program at the interface has judged, by the way they left.",
);
const SAMPLES: Family = Family::counter("gate_samples_total", "Keys that were sampled at the interface.");
const SAMPLES_LOST: Family = Family::counter(
    "gate_samples_lost_total",
    "Keys that were not sampled at the interface: the daemon did not keep up.",
);
