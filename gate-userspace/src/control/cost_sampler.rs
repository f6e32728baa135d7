//! The cost samples of one proxied service's workers, taken once a tick.

use gate_common::units::Nanos;

use crate::dispatcher::{LatencySnapshot, ServiceMetrics};
use crate::policy::pricing::{AFTERMATH, ByClass, CostSamples};

/// Takes the samples, and keeps earlier readings to compare with.
#[derive(Debug)]
pub(super) struct CostSampler {
    metrics: ServiceMetrics,
    /// The readings of service times at the last two looks, the older first.
    looks: [ByClass<LatencySnapshot>; 2],
    looked: Nanos,
}

impl CostSampler {
    /// Starts sampling at `now`.
    pub(super) fn new(metrics: ServiceMetrics, now: Nanos) -> Self {
        let reading = metrics.service_times();
        // Earlier samples are discarded.
        metrics.take_window();
        Self { looks: [reading.clone(), reading], looked: now, metrics }
    }

    /// Takes this tick's samples.
    pub(super) fn take(&mut self, now: Nanos) -> CostSamples {
        let reading = self.metrics.service_times();
        let p95 = std::array::from_fn(|class| {
            let recent = reading[class].since(&self.looks[0][class]);
            recent.percentile(95.0).filter(|_| recent.len() >= ENOUGH)
        });
        if now.saturating_sub(self.looked) >= LOOK_EVERY {
            self.looks.swap(0, 1);
            (self.looks[1], self.looked) = (reading, now);
        }
        CostSamples { window: self.metrics.take_window(), p95 }
    }
}

/// A recent p95 covers the last one or two of these: long enough for rare classes.
const LOOK_EVERY: Nanos = Nanos::from_secs(5);
/// A p95 needs at least so many requests of a class.
const ENOUGH: u64 = 20;
// No recent reading is of an overload when learning resumes.
const _: () = assert!(2 * LOOK_EVERY.0 <= AFTERMATH.0);
