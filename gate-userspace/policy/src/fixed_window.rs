//! The fixed window: so much per window, then nothing until the next one begins.
//!
//! **Problem.** The oldest quota there is, here to be compared with the token bucket.
//!
//! **Source.** What Databricks' rate limiter did first ("High performance rate limiting at
//! Databricks"): a counter per tenant and second.
//!
//! **Invariants.** [`FixedWindow::take`] admits at most the limit in a window, and so at most twice
//! the limit in any interval as long as a window: once at the end of one, once at the beginning of
//! the next. What is charged from elsewhere may exceed it. A clock that goes back counts into the
//! newest window. Counts saturate.

use gate_common::units::Nanos;

use super::range::{OutOfRange, ensure};
use super::rejection_rate::Rejection;

/// A quota by fixed windows. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    length: Nanos,
    /// Number of the newest window, from the clock's origin.
    window: u64,
    used: u64,
}

impl FixedWindow {
    /// `limit` units in each window of `length`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if either is zero.
    pub fn new(limit: u64, length: Nanos) -> Result<Self, OutOfRange> {
        ensure(limit > 0, "limit", limit, "above 0")?;
        ensure(length > Nanos::ZERO, "length", length, "above 0")?;
        Ok(Self { limit, length, window: 0, used: 0 })
    }

    /// Asks for `cost` units: true if they are within the limit, and taken.
    #[inline]
    pub fn take(&mut self, now: Nanos, cost: u64) -> bool {
        self.turn(now);
        let used = self.used.saturating_add(cost);
        let admits = used <= self.limit;
        if admits {
            self.used = used;
        }
        admits
    }

    /// Charges `cost` units that were admitted elsewhere.
    pub fn charge(&mut self, now: Nanos, cost: u64) {
        self.turn(now);
        self.used = self.used.saturating_add(cost);
    }

    /// The instruction to a gate: nothing, or to refuse until the next window begins.
    #[must_use]
    pub fn rejection(&self, now: Nanos) -> Rejection {
        let exhausted = self.window >= now.0 / self.length.0 && self.used >= self.limit;
        if !exhausted {
            return Rejection::NONE;
        }
        Rejection::all_until(Nanos(self.window.saturating_add(1).saturating_mul(self.length.0)))
    }

    #[inline]
    fn turn(&mut self, now: Nanos) {
        let window = now.0 / self.length.0;
        if window > self.window {
            (self.window, self.used) = (window, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use gate_common::units::Fraction;
    use proptest::prelude::*;

    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    #[test]
    fn a_window_admits_its_limit_and_the_next_one_again() {
        let mut quota = FixedWindow::new(10, SECOND).unwrap();
        for (millis, cost, admits) in [
            (0, 10, true),
            (999, 1, false),
            (1_000, 4, true),
            (1_500, 7, false),
            (1_999, 6, true),
            (1_500, 1, false),
            (2_000, 11, false),
            (2_000, 10, true),
        ] {
            assert_eq!(quota.take(Nanos::from_millis(millis), cost), admits, "{cost} at {millis} ms");
        }
    }

    #[test]
    fn refusals_last_until_the_next_window() {
        let mut quota = FixedWindow::new(10, SECOND).unwrap();
        quota.charge(Nanos::from_millis(2_100), 9);
        assert_eq!(quota.rejection(Nanos::from_millis(2_200)), Rejection::NONE);
        quota.charge(Nanos::from_millis(2_300), 5);
        let rejection = Rejection { rate: Fraction::ONE, until: Nanos::from_secs(3) };
        assert_eq!(quota.rejection(Nanos::from_millis(2_300)), rejection);
        assert_eq!(quota.rejection(Nanos::from_secs(3)), Rejection::NONE);
    }

    #[test]
    fn impossible_parameters_are_refused() {
        assert_eq!(FixedWindow::new(0, SECOND).unwrap_err().field, "limit");
        assert_eq!(FixedWindow::new(1, Nanos::ZERO).unwrap_err().field, "length");
    }

    proptest! {
        #[test]
        fn a_window_admits_the_limit_and_an_interval_at_most_twice(
            limit in 1..50_u64, length in 1..100_u64,
            steps in prop::collection::vec((0..30_u64, 0..40_u64), 1..200),
        ) {
            let mut quota = FixedWindow::new(limit, Nanos(length)).unwrap();
            let mut now = 0;
            let mut admitted = Vec::new();
            for (step, cost) in steps {
                now += step;
                if quota.take(Nanos(now), cost) {
                    admitted.push((now, cost));
                }
            }
            let sum = |inside: &dyn Fn(u64) -> bool| -> u64 {
                admitted.iter().filter(|&&(at, _)| inside(at)).map(|&(_, cost)| cost).sum()
            };
            for &(start, _) in &admitted {
                prop_assert!(sum(&|at| at / length == start / length) <= limit);
                prop_assert!(sum(&|at| (start..start + length).contains(&at)) <= 2 * limit);
            }
        }

        #[test]
        fn any_time_and_cost_is_safe(
            limit in 1..=u64::MAX, length in 1..=u64::MAX, steps in prop::collection::vec(any::<(u64, u64)>(), 1..20),
        ) {
            let mut quota = FixedWindow::new(limit, Nanos(length)).unwrap();
            for (now, cost) in steps {
                quota.take(Nanos(now), cost);
                quota.charge(Nanos(now), cost);
                let rejection = quota.rejection(Nanos(now));
                prop_assert!(rejection == Rejection::NONE || rejection.until > Nanos(now) || rejection.until == Nanos::MAX);
            }
        }
    }
}
