//! The time that a client waits for a refusal: from when its request was decoded until gate has written it.
//!
//! **Timed** are refusals that are decided as soon as a request is decoded, and that nothing holds back: no earlier
//! request of the client is unanswered, and its socket takes the output. So the time is gate's own. It begins before
//! the first request of a read is processed, so those behind others in one read count these as well.
//!
//! **Only counted** are refusals whose place is behind an answer that the store has not given, and those that the client's
//! socket has no room for. Their time depends on the store, or on the client.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::units::Nanos;

use super::latency::{LatencyHistogram, LatencySnapshot};

/// One thread's refusals at one service. All counts only grow, and only that thread writes.
#[derive(Debug, Default)]
pub(crate) struct RefusalMetrics {
    took: LatencyHistogram,
    held_back: AtomicU64,
}

/// All threads' refusals at one point in time, or between two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalSnapshot {
    /// The times of those that nothing held back.
    pub took: LatencySnapshot,
    /// The others.
    pub held_back: u64,
}

/// A client's refusals that are in its output.
#[derive(Debug, Default)]
pub(crate) struct PendingRefusals(Cell<Option<Pending>>);

/// Refusals that are written together.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// When the first of them was decoded.
    since: Nanos,
    count: u64,
}

impl RefusalMetrics {
    /// Counts refusals that could not be written at once.
    pub(crate) fn held_back(&self, count: u64) {
        self.held_back.store(self.held_back.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }
}

impl RefusalSnapshot {
    /// Adds one thread's.
    pub(crate) fn add(&mut self, metrics: &RefusalMetrics) {
        self.took.add(&metrics.took);
        self.held_back = self.held_back.wrapping_add(metrics.held_back.load(Ordering::Relaxed));
    }

    /// The difference to an `earlier` reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            took: self.took.since(&earlier.took),
            held_back: self.held_back.wrapping_sub(earlier.held_back),
        }
    }
}

impl PendingRefusals {
    /// Adds a refusal whose request was decoded at `decoded`.
    pub(crate) fn add(&self, decoded: Nanos) {
        let batch = self.0.get().unwrap_or(Pending { since: decoded, count: 0 });
        self.0.set(Some(Pending { count: batch.count + 1, ..batch }));
    }

    /// All that is in the output has been written; `now` is asked only if there are refusals among it.
    #[inline]
    pub(crate) fn on_written(&self, metrics: &RefusalMetrics, now: impl FnOnce() -> Nanos) {
        if let Some(Pending { since, count }) = self.0.take() {
            metrics.took.record(now().saturating_sub(since), count);
        }
    }

    /// Notes that something in the output has to wait.
    pub(crate) fn on_held_back(&self, metrics: &RefusalMetrics) {
        self.0.take().iter().for_each(|batch| metrics.held_back(batch.count));
    }

    /// Discards them: the client will not read them.
    pub(crate) fn discard(&self) {
        self.0.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(metrics: &RefusalMetrics) -> RefusalSnapshot {
        let mut refusals = RefusalSnapshot::default();
        refusals.add(metrics);
        refusals
    }

    #[test]
    fn refusals_of_one_write_took_as_long_as_the_first() {
        let metrics = RefusalMetrics::default();
        let pending_refusals = PendingRefusals::default();
        pending_refusals.add(Nanos::from_millis(100));
        pending_refusals.add(Nanos::from_millis(103));
        pending_refusals.on_written(&metrics, || Nanos::from_millis(104));
        let all = read(&metrics);
        assert_eq!((all.took.len(), all.held_back), (2, 0));
        let took = all.took.percentile(1.0).unwrap();
        assert!((Nanos::from_millis(4)..Nanos::from_micros(4_501)).contains(&took), "{took}");
        // There is nothing left of it, and nobody asks for the time.
        pending_refusals.on_written(&metrics, || unreachable!());
        assert_eq!(read(&metrics), all);
    }

    #[test]
    fn held_back_refusals_are_counted_only_and_lost_ones_neither() {
        let metrics = RefusalMetrics::default();
        let pending_refusals = PendingRefusals::default();
        metrics.held_back(1);
        let before = read(&metrics);
        (0..3).for_each(|ms| pending_refusals.add(Nanos::from_millis(ms)));
        pending_refusals.on_held_back(&metrics);
        pending_refusals.add(Nanos::ZERO);
        pending_refusals.discard();
        pending_refusals.on_written(&metrics, || unreachable!());
        let interval = read(&metrics).since(&before);
        assert_eq!((interval.took.len(), interval.held_back), (0, 3));
    }
}
