//! Counters over a sliding window.
//!
//! **Problem.** Policies ask "how many in the last second?" at every request, from several threads,
//! without a lock and without touching every step of the window.
//!
//! **How.** Each counter only ever grows. Whoever is first in a new step writes down where the
//! counters stood; the sum over the window is where they stand now less where they stood when the
//! window's oldest step began. So counting is one atomic addition and a sum two loads.
//!
//! **Invariants.** A count is in the sum from when it is made until its step leaves the window:
//! `(steps - 1) * step < age <= steps * step`. Nothing is lost to a race; a thread that is overtaken
//! between finding the step and counting may count into the next one. Time going backwards counts
//! as standing still. Counters wrap: sums are right as long as a window holds less than 2^64.

use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::units::Nanos;

use super::range::{OutOfRange, ensure};

/// Some counters over one sliding window. See the [module](self).
#[derive(Debug)]
pub struct SlidingWindow {
    step_ns: u64,
    steps: u64,
    counters: Box<[AtomicU64]>,
    /// Where the counters stood when a step began: one row per step, in a ring of `rows`.
    began: Box<[AtomicU64]>,
    /// More than steps, so that a reader that is overtaken by a step or two still finds the row that
    /// it looks for; a power of two, so that finding it needs no division.
    rows: usize,
    /// Number of the newest step, counted from the clock's origin, whose rows are all written.
    newest: AtomicU64,
    /// The same, or ahead of it while a thread writes the rows up to there.
    claimed: AtomicU64,
    origin: Nanos,
}

impl SlidingWindow {
    /// `counters` counters over `steps` steps of length `step`, from `now` on.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if `step` is zero, `steps` not from 1 to 1,000, or `counters` not from 1 to
    /// 4,096.
    pub fn new(counters: usize, step: Nanos, steps: usize, now: Nanos) -> Result<Self, OutOfRange> {
        ensure(step > Nanos::ZERO, "window.step", step, "above 0")?;
        ensure((1..=MAX_STEPS).contains(&steps), "window.steps", steps, "from 1 to 1000")?;
        ensure((1..=MAX_COUNTERS).contains(&counters), "window.counters", counters, "from 1 to 4096")?;
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let rows = (steps + 2).next_power_of_two();
        Ok(Self {
            step_ns: step.0,
            steps: steps as u64,
            counters: zeros(counters),
            began: zeros(counters * rows),
            rows,
            newest: AtomicU64::new(now.0 / step.0),
            claimed: AtomicU64::new(now.0 / step.0),
            origin: now,
        })
    }

    /// Adds `amount` to counter number `counter` (which must exist).
    #[inline]
    pub fn add(&self, counter: usize, amount: u64) {
        self.counters[counter].fetch_add(amount, Ordering::Relaxed);
    }

    /// The sum of counter number `counter` (which must exist) over the window that [`Self::advance`]
    /// found.
    #[inline]
    #[must_use]
    pub fn sum(&self, counter: usize, at: Position) -> u64 {
        let stands = self.counters[counter].load(Ordering::Relaxed);
        stands.wrapping_sub(self.began[at.row + counter].load(Ordering::Relaxed))
    }

    /// Moves the window up to `now`. To be called before counting and before summing.
    #[inline]
    pub fn advance(&self, now: Nanos) -> Position {
        let newest = self.newest.load(Ordering::Acquire);
        let newest = if now.0 - self.start_of(newest).min(now.0) < self.step_ns {
            newest
        } else {
            self.begin_steps(newest, now.0 / self.step_ns)
        };
        Position { row: self.row(newest.saturating_add(1).saturating_sub(self.steps)), newest }
    }

    /// How much time the sums cover: the window's length, or less in the beginning; never zero.
    #[must_use]
    pub fn span(&self, at: Position, now: Nanos) -> Nanos {
        let start = Nanos(self.start_of((at.newest.saturating_add(1)).saturating_sub(self.steps)));
        now.saturating_sub(start.max(self.origin)).max(Nanos(1))
    }

    /// The window's full length.
    #[must_use]
    pub fn length(&self) -> Nanos {
        Nanos(self.step_ns.saturating_mul(self.steps))
    }

    fn start_of(&self, step: u64) -> u64 {
        step.saturating_mul(self.step_ns)
    }

    fn row(&self, step: u64) -> usize {
        (step as usize & (self.rows - 1)) * self.counters.len()
    }

    /// Begins every step after `newest` up to `step`, unless another thread is at it. The newest then.
    #[cold]
    fn begin_steps(&self, newest: u64, step: u64) -> u64 {
        if self.claimed.compare_exchange(newest, step, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return self.newest.load(Ordering::Acquire);
        }
        for begun in step - (step - newest).min(self.rows as u64) + 1..=step {
            let row = self.row(begun);
            for (counter, began) in self.counters.iter().zip(&self.began[row..]) {
                began.store(counter.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.newest.store(step, Ordering::Release);
        step
    }
}

/// Where a window stands.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Where the row of the window's oldest step begins.
    row: usize,
    newest: u64,
}

/// Bounds on memory: at most 64 MiB.
const MAX_STEPS: usize = 1_000;
const MAX_COUNTERS: usize = 4_096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(step: u64, steps: usize) -> SlidingWindow {
        SlidingWindow::new(2, Nanos(step), steps, Nanos::ZERO).unwrap()
    }

    #[test]
    fn impossible_windows_are_refused() {
        for (counters, step, steps, field) in [
            (1, 0, 1, "window.step"),
            (1, 1, 0, "window.steps"),
            (1, 1, 1_001, "window.steps"),
            (0, 1, 1, "window.counters"),
            (4_097, 1, 1, "window.counters"),
        ] {
            let error = SlidingWindow::new(counters, Nanos(step), steps, Nanos::ZERO).unwrap_err();
            assert_eq!(error.field, field);
        }
    }

    #[test]
    fn the_span_grows_up_to_the_length() {
        let window = SlidingWindow::new(1, Nanos(10), 10, Nanos(1_003)).unwrap();
        for (now, span) in [(0, 1), (1_003, 1), (1_023, 20), (1_099, 96), (1_100, 90), (9_999, 99)] {
            let at = window.advance(Nanos(now));
            assert_eq!(window.span(at, Nanos(now)), Nanos(span), "at {now}");
        }
        assert_eq!(window.length(), Nanos(100));
    }

    #[test]
    fn threads_that_count_at_once_lose_nothing() {
        let window = window(10, 100);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for now in 0..900 {
                        window.advance(Nanos(now));
                        window.add(1, 1);
                    }
                });
            }
        });
        assert_eq!(window.sum(1, window.advance(Nanos(899))), 1_800);
        assert_eq!(window.sum(1, window.advance(Nanos(5_000))), 0);
    }

    proptest! {
        #[test]
        fn a_sum_is_what_was_counted_in_the_newest_steps(
            step in 1u64..50,
            steps in 1usize..20,
            counts in prop::collection::vec((0u64..200, 0usize..2, 0u64..1_000), 1..200),
        ) {
            let window = window(step, steps);
            let mut now = 0;
            let mut counted = Vec::new();
            for (gap, counter, amount) in counts {
                now += gap;
                let at = window.advance(Nanos(now));
                window.add(counter, amount);
                counted.push((now / step, counter, amount));
                for counter in 0..2 {
                    let oldest = (now / step + 1).saturating_sub(steps as u64);
                    let inside = counted.iter().filter(|&&(at, of, _)| at >= oldest && of == counter);
                    prop_assert_eq!(window.sum(counter, at), inside.map(|&(_, _, amount)| amount).sum::<u64>());
                }
            }
        }

        #[test]
        fn any_time_in_any_order_is_safe(
            step in 1u64..,
            steps in 1usize..100,
            start in any::<u64>(),
            times in prop::collection::vec(any::<u64>(), 1..20),
        ) {
            let window = SlidingWindow::new(1, Nanos(step), steps, Nanos(start)).unwrap();
            let mut total = 0u64;
            for now in times {
                let at = window.advance(Nanos(now));
                window.add(0, 1);
                total += 1;
                prop_assert!((1..=total).contains(&window.sum(0, at)));
                prop_assert!(window.span(at, Nanos(now)) >= Nanos(1));
            }
        }
    }
}
