//! Two targets, asked the same in turn: what else the machine does harms both alike.

use serde::Serialize;

use super::Summary;
use super::counters::Quantiles;

/// The results of two targets, and how they compare.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The first target's.
    pub first: Summary,
    /// The second's.
    pub second: Summary,
    /// By tenant: the second's as parts of the first's.
    pub ratios: Vec<Ratios>,
}

/// The second target's figures as parts of the first's; `None` where the first has none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// The tenant.
    pub name: String,
    /// Of requests that were answered.
    pub answered: Option<f64>,
    /// Of refusals.
    pub refused: Option<f64>,
    /// Of latencies.
    pub p50: Option<f64>,
    /// At 90%.
    pub p90: Option<f64>,
    /// At 99%.
    pub p99: Option<f64>,
}

impl Comparison {
    /// Compares two summaries with the same tenants.
    #[must_use]
    pub fn new(first: Summary, second: Summary) -> Self {
        let pairs = first.tenants.iter().zip(&second.tenants);
        let ratios = pairs.map(|(one, other)| {
            let latency = |at: fn(&Quantiles) -> u64| ratio(at(&other.latency_ns), at(&one.latency_ns));
            Ratios {
                name: one.name.clone(),
                answered: ratio(other.answered, one.answered),
                refused: ratio(other.refused, one.refused),
                p50: latency(|times| times.p50),
                p90: latency(|times| times.p90),
                p99: latency(|times| times.p99),
            }
        });
        let ratios = ratios.collect();
        Self { first, second, ratios }
    }
}

fn ratio(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}
