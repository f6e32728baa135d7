//! The report of the last tick: the input and the decisions of the control loop.
//!
//! Written once a tick and read on demand: readers get a whole tick's report, and keep it as long
//! as they like. The lock is held for the exchange of one pointer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gate_common::units::Nanos;
use serde::Serialize;

use super::in_passing::InPassingReport;

/// The place where a tick publishes its report. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Arc<Report>>>);

impl Board {
    /// The last tick's report; an empty one before the first.
    #[must_use]
    pub fn read(&self) -> Arc<Report> {
        Arc::clone(&self.lock())
    }

    /// Replaces it.
    pub fn publish(&self, report: Report) {
        *self.lock() = Arc::new(report);
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Report>> {
        // A pointer is replaced whole: a panic elsewhere has not broken it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One tick's report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The generation that it put in force.
    pub generation: u64,
    /// When that was, on the monotonic clock.
    #[serde(skip)]
    pub at: Nanos,
    /// How long the tick took until then.
    #[serde(skip)]
    pub took: Nanos,
    /// In the order of the configuration.
    pub services: Vec<ServiceReport>,
}

/// The observations of a service, and the decisions about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServiceReport {
    /// Its name.
    pub name: String,
    /// How its store is doing: about 1 when healthy, towards 0.3 when latency climbs. `None` while there is too
    /// little to say, or no measurement.
    pub latency_ratio: Option<f64>,
    /// The query types of which there were enough requests lately.
    pub types: Vec<TypeReport>,
    /// Requests that wait before the store.
    pub queued: u64,
    /// True if the queue stands: even the shortest wait was too long.
    pub queue_stands: bool,
    /// True while what the store cannot do is refused to tenants that ask for more than their share.
    pub shares_cut: bool,
    /// True if the store can be reached; `None` without a dispatcher or a probe.
    pub store_up: Option<bool>,
    /// Probes that failed so far; nothing where there is no probe.
    pub probe_failures: Option<u64>,
    /// The answers that were measured in passing; nothing where none are.
    pub in_passing: Option<InPassingReport>,
    /// Where shedding stands: `steady`, `shedding`, `restoring`, or `sharing` while tenants' shares decide; nothing where it is off.
    pub phase: Option<&'static str>,
    /// The rung of each tier, `critical` first: 0 none, 1 to 6 prices doubled so often, 7 refusal.
    pub rungs: [u32; 4],
    /// By tier: how long it has been dearer, or refused; `None` while it is neither.
    #[serde(skip)]
    pub treated_for: [Option<Nanos>; 4],
    /// The prices in force.
    pub prices: PriceReport,
}

/// One query type.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TypeReport {
    /// Its name in the configuration.
    pub name: String,
    /// As [`ServiceReport::latency_ratio`].
    pub latency_ratio: Option<f64>,
    /// The recent p95 from admission to answer, in microseconds.
    pub p95_us: u64,
}

/// The coefficients of a price, in thousandths of a request unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PriceReport {
    /// Of any request.
    pub base_mru: u32,
    /// Of each row.
    pub row_mru: u32,
    /// Of each 1,024 bytes.
    pub kib_mru: u32,
    /// Of the latency expected of each price class, in their order.
    pub latency_mru: [u32; gate_common::abi::QueryClass::COUNT],
    /// The learned coefficients; `None` if prices are as configured.
    pub learned: Option<LearnedReport>,
}

/// The coefficients of learned prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LearnedReport {
    /// Of each reference read's worth of expected latency, in thousandths of a request unit.
    pub of_latency_mru: u32,
    /// The recent time of a reference read; `None` while there were too few.
    pub reference_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_their_report_and_the_next_get_the_new_one() {
        let board = Board::default();
        let reader = board.clone();
        let before = board.read();
        board.publish(Report { generation: 7, ..Report::default() });
        assert_eq!((before.generation, reader.read().generation), (0, 7));
    }
}
