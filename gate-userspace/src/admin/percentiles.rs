//! Times in the admin documents.

use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dispatcher::LatencySnapshot;

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    #[serde(default)]
    pub p95: Option<f64>,
    /// The 99th percentile.
    pub p99: f64,
}

impl Percentiles {
    /// The percentiles of these times; `None` if there are none.
    pub(super) fn of(times: &LatencySnapshot) -> Option<Self> {
        let at = |percent| times.percentile(percent).map(ms);
        Some(Self { p50: at(50.0)?, p90: at(90.0)?, p95: at(95.0), p99: at(99.0)? })
    }

    /// The time at a percentile that an objective names, if it is measured.
    #[must_use]
    pub fn at(&self, percentile: &str) -> Option<f64> {
        match percentile {
            "p50" => Some(self.p50),
            "p90" => Some(self.p90),
            "p95" => self.p95,
            "p99" => Some(self.p99),
            _ => None,
        }
    }
}

/// In milliseconds.
pub(super) fn ms(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}
