//! The newest processing times of a type, in steps, of which the oldest leave as new ones come.

use std::collections::VecDeque;

use gate_common::units::Nanos;

use super::estimator::Rhythm;
use crate::histogram::Snapshot;

/// The values of about the last interval, or as many as are enough. At most twelve steps of 17 KiB.
#[derive(Debug)]
pub(super) struct SlidingHistogram {
    /// The oldest first.
    steps: VecDeque<Step>,
    /// Of all steps together.
    total: Snapshot,
    /// When the step began that is recorded now.
    began: Nanos,
}

#[derive(Debug)]
struct Step {
    began: Nanos,
    values: Snapshot,
}

impl SlidingHistogram {
    pub(super) fn new(now: Nanos) -> Self {
        Self { steps: VecDeque::new(), total: Snapshot::default(), began: now }
    }

    /// True if a step with so many values is over: a tenth of the interval and of the values that are
    /// enough, so that the window moves by no more and never has many steps.
    pub(super) fn is_due(&self, recorded: impl FnOnce() -> u64, rhythm: Rhythm, now: Nanos) -> bool {
        let step = Nanos((rhythm.interval.0 / STEPS).max(1));
        now.saturating_sub(self.began) >= step && recorded() >= rhythm.min_samples.div_ceil(STEPS)
    }

    /// Ends a step, which holds `values`. Steps leave as long as the rest covers the interval and holds enough.
    pub(super) fn push(&mut self, values: Snapshot, rhythm: Rhythm, now: Nanos) {
        self.total.add(&values);
        self.steps.push_back(Step { began: self.began, values });
        self.began = now;
        while let [oldest, next, ..] = self.steps.make_contiguous()
            && now.saturating_sub(next.began) >= rhythm.interval
            && self.total.count() - oldest.values.count() >= rhythm.min_samples
        {
            self.total.subtract(&oldest.values);
            self.steps.pop_front();
        }
    }

    /// The sum of all steps.
    pub(super) fn total(&self) -> &Snapshot {
        &self.total
    }

    /// When the oldest step began.
    pub(super) fn covers_from(&self) -> Nanos {
        self.steps.front().map_or(self.began, |oldest| oldest.began)
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) {
        self.steps.clear();
        self.total = Snapshot::default();
    }
}

/// Of a window.
const STEPS: u64 = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::histogram::Histogram;

    proptest! {
        #[test]
        fn it_holds_the_newest_values_that_are_enough_in_few_steps(
            interval in 1u64..2_000,
            min_samples in 1u64..500,
            ticks in prop::collection::vec((1u64..300, 0u64..200), 1..150),
        ) {
            let rhythm = Rhythm { interval: Nanos(interval), min_samples };
            let mut window = SlidingHistogram::new(Nanos::ZERO);
            let open = Histogram::new();
            let mut now = 0;
            let mut all = 0;
            let mut pushed = 0;
            for (passed, values) in ticks {
                now += passed;
                (0..values).for_each(|_| open.record(Nanos(5)));
                all += values;
                if window.is_due(|| open.count(), rhythm, Nanos(now)) {
                    window.push(open.drain(), rhythm, Nanos(now));
                    pushed = all;
                    prop_assert!(window.total().count() >= min_samples.min(pushed));
                    prop_assert!(window.steps.len() <= 12, "{} steps", window.steps.len());
                    let summed: u64 = window.steps.iter().map(|step| step.values.count()).sum();
                    prop_assert_eq!(summed, window.total().count());
                    let covers = now - window.steps[0].began.0;
                    prop_assert!(covers >= interval.min(now), "{} of {}", covers, interval);
                }
            }
            window.clear();
            prop_assert_eq!((window.total().count(), all >= pushed), (0, true));
        }
    }
}
