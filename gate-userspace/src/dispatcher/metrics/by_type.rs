//! Requests by query type at one service, counted by one thread and read by any.

use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::units::Nanos;

use super::latency::{LatencyHistogram, LatencySnapshot};
use crate::policy::Tier;

/// One thread's counts. Only that thread writes. All but the number that waits only grow.
#[derive(Debug, Default)]
pub(crate) struct TypeMetrics {
    /// By tier.
    offered: [AtomicU64; Tier::ALL.len()],
    refused: AtomicU64,
    waiting: AtomicU64,
    timings: [LatencyHistogram; Timing::ALL.len()],
    /// By timing: the sum, in nanoseconds.
    sums_ns: [AtomicU64; Timing::ALL.len()],
}

/// A part of the time that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// In the queue before the store.
    Wait,
    /// With the store.
    Processing,
    /// Both together.
    Response,
}

impl Timing {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Wait, Self::Processing, Self::Response];
}

/// All threads' counts at one point in time, or between two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By tier: requests that could pay and wanted to the store.
    pub offered_by_tier: [u64; Tier::ALL.len()],
    /// Those of them that were refused on their way there.
    pub refused: u64,
    /// Requests that wait; between two points in time, at the later.
    pub waiting: u64,
    timings: [LatencySnapshot; Timing::ALL.len()],
    sums_ns: [u64; Timing::ALL.len()],
}

impl TypeMetrics {
    /// Counts a request that has paid and wants to the store.
    #[inline]
    pub(crate) fn offered(&self, tier: Tier) {
        add_one(&self.offered[tier.index()]);
    }

    /// Counts a request that is refused on its way to the store.
    pub(crate) fn refused(&self) {
        add_one(&self.refused);
    }

    /// Counts a request that joins the queue.
    pub(crate) fn enqueued(&self) {
        add_one(&self.waiting);
    }

    /// Counts a request that leaves the queue.
    pub(crate) fn dequeued(&self) {
        self.waiting.store(self.waiting.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// Counts requests that were answered: they had waited for `waited`, and the store took `took`.
    #[inline]
    pub(crate) fn answered(&self, waited: Nanos, took: Nanos, count: u32) {
        let times = [waited, took, waited.saturating_add(took)];
        for ((timing, sum), time) in self.timings.iter().zip(&self.sums_ns).zip(times) {
            timing.record(time, count.into());
            add(sum, time.0.wrapping_mul(count.into()));
        }
    }
}

impl Counts {
    /// Adds one thread's.
    pub(crate) fn add(&mut self, metrics: &TypeMetrics) {
        for (sum, offered) in self.offered_by_tier.iter_mut().zip(&metrics.offered) {
            *sum += offered.load(Ordering::Relaxed);
        }
        self.refused += metrics.refused.load(Ordering::Relaxed);
        self.waiting += metrics.waiting.load(Ordering::Relaxed);
        for (sum, of_thread) in self.sums_ns.iter_mut().zip(&metrics.sums_ns) {
            *sum = sum.wrapping_add(of_thread.load(Ordering::Relaxed));
        }
        for (sum, timing) in self.timings.iter_mut().zip(&metrics.timings) {
            sum.add(timing);
        }
    }

    /// The difference to an `earlier` reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            offered_by_tier: std::array::from_fn(|tier| {
                self.offered_by_tier[tier].wrapping_sub(earlier.offered_by_tier[tier])
            }),
            refused: self.refused.wrapping_sub(earlier.refused),
            waiting: self.waiting,
            timings: Timing::ALL.map(|timing| self.timing(timing).since(earlier.timing(timing))),
            sums_ns: std::array::from_fn(|timing| self.sums_ns[timing].wrapping_sub(earlier.sums_ns[timing])),
        }
    }

    /// Requests that could pay and wanted to the store.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.offered_by_tier.iter().sum()
    }

    /// Requests that the store answered.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.timing(Timing::Processing).len()
    }

    /// How long a part of it took.
    #[must_use]
    pub fn timing(&self, timing: Timing) -> &LatencySnapshot {
        &self.timings[timing as usize]
    }

    /// How long a part of it took, all requests together.
    #[must_use]
    pub fn sum(&self, timing: Timing) -> Nanos {
        Nanos(self.sums_ns[timing as usize])
    }
}

fn add_one(count: &AtomicU64) {
    add(count, 1);
}

#[inline]
fn add(sum: &AtomicU64, more: u64) {
    sum.store(sum.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_the_difference_of_two_readings() {
        let metrics = TypeMetrics::default();
        let read = || {
            let mut counts = Counts::default();
            counts.add(&metrics);
            counts
        };
        metrics.offered(Tier::Standard);
        metrics.enqueued();
        metrics.answered(Nanos::from_millis(100), Nanos::from_millis(100), 1);
        let before = read();
        [Tier::Critical, Tier::Batch, Tier::Batch].iter().for_each(|&tier| metrics.offered(tier));
        (0..2).for_each(|_| metrics.enqueued());
        metrics.dequeued();
        metrics.refused();
        metrics.answered(Nanos::from_millis(1), Nanos::from_millis(3), 2);
        let counts = read().since(&before);
        assert_eq!((counts.offered(), counts.refused, counts.answered()), (3, 1, 2));
        assert_eq!((counts.offered_by_tier, counts.waiting), ([1, 0, 2, 0], 2));
        for (timing, ms) in [(Timing::Wait, 1.0), (Timing::Processing, 3.0), (Timing::Response, 4.0)] {
            let found = counts.timing(timing).percentile(99.0).unwrap().0 as f64 / 1e6;
            assert!((ms..ms * 1.13).contains(&found), "{timing:?}: {found} ms");
            assert_eq!(counts.sum(timing).0 as f64, 2.0 * ms * 1e6, "{timing:?}");
        }
    }
}
