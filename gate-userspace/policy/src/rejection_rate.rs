//! The rejection rate: refuse the share that was too much.
//!
//! **Problem.** Several gates share one quota, and none may wait for a counter before it answers. So
//! each reports what it was offered, and is told what to do until the next report.
//!
//! **Source.** "High performance rate limiting at Databricks": `rejection rate = (estimated − limit) /
//! estimated`, until a point in time.
//!
//! **Deviations.** The estimate there looks at the last interval. Gates report at different moments,
//! so here it is the trailing interval: what came in the present one, and the part of the last one
//! that the present one has not reached yet.
//!
//! **Invariants.** At or below the limit nothing is refused. A higher estimate never means a lower
//! rate. What a gate was told ends by itself, also when no report comes any more. A clock that goes
//! back counts into the newest interval. Counts saturate.

use gate_common::units::{Fraction, NANOS_PER_SEC, Nanos};

use super::range::{OutOfRange, ensure};

/// The instruction to a gate: what to refuse between two reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    /// The share of requests to refuse ...
    pub rate: Fraction,
    /// ... before this point in time: `reject_until`, where the share is all of them.
    pub until: Nanos,
}

impl Rejection {
    /// Refuse nothing.
    pub const NONE: Self = Self { rate: Fraction::ZERO, until: Nanos::ZERO };

    /// Refuse everything before `until`.
    #[must_use]
    pub const fn all_until(until: Nanos) -> Self {
        Self { rate: Fraction::ONE, until }
    }

    /// True if a request passes, where `draw` is uniform over `u16`.
    #[must_use]
    #[inline]
    pub fn admits(self, now: Nanos, draw: u16) -> bool {
        now >= self.until || !self.rate.covers(draw)
    }
}

/// `(estimated - limit) / estimated`: the share of what is offered that is too much.
#[must_use]
pub fn share_over(limit: u64, estimated: u64) -> Fraction {
    Fraction::of(estimated.saturating_sub(limit), estimated)
}

/// Estimates what is offered, and says which share of it is too much. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectionRate {
    /// Units per interval.
    limit: u64,
    interval: Nanos,
    /// Number of the newest interval, from the clock's origin.
    newest: u64,
    current: u64,
    last: u64,
}

impl RejectionRate {
    /// A limit in units per second, with reports once every `interval`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if `per_sec` or `interval` is zero, or so small that less than one unit fits an
    /// interval; or if `interval` is longer than an hour.
    pub fn new(per_sec: u64, interval: Nanos) -> Result<Self, OutOfRange> {
        ensure(per_sec > 0, "per_sec", per_sec, "above 0")?;
        let fits = (Nanos(1)..=Nanos::from_secs(3_600)).contains(&interval);
        ensure(fits, "interval", interval, "above 0, at most an hour")?;
        let limit = u128::from(per_sec) * u128::from(interval.0) / u128::from(NANOS_PER_SEC);
        ensure(limit > 0, "interval", interval, "long enough for one unit at the limit")?;
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        Ok(Self { limit, interval, newest: 0, current: 0, last: 0 })
    }

    /// Counts what a gate was offered before `now`, whether it was refused or not.
    pub fn offered(&mut self, now: Nanos, units: u64) {
        let interval = now.0.saturating_sub(1) / self.interval.0;
        if interval > self.newest {
            self.last = if interval - self.newest == 1 { self.current } else { 0 };
            (self.newest, self.current) = (interval, 0);
        }
        self.current = self.current.saturating_add(units);
    }

    /// The amount offered in the interval that ends now.
    #[must_use]
    pub fn estimate(&self, now: Nanos) -> u64 {
        let interval = now.0 / self.interval.0;
        let passed = now.0 % self.interval.0;
        let part = |units: u64, rest: u64| {
            (u128::from(units) * u128::from(rest) / u128::from(self.interval.0)) as u64
        };
        match interval.checked_sub(self.newest) {
            Some(0) => self.current.saturating_add(part(self.last, self.interval.0 - passed)),
            Some(1) => part(self.current, self.interval.0 - passed),
            Some(_) => 0,
            None => self.current,
        }
    }

    /// The instruction to a gate: the share that is over the limit, for the next two intervals.
    #[must_use]
    pub fn rejection(&self, now: Nanos) -> Rejection {
        let estimate = self.estimate(now);
        let rate = share_over(self.limit, estimate);
        if rate == Fraction::ZERO {
            return Rejection::NONE;
        }
        Rejection { rate, until: now.saturating_add(Nanos(2 * self.interval.0)) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK: Nanos = Nanos::from_millis(100);

    #[test]
    fn the_rate_is_the_share_over_the_limit() {
        // 1,000 a second are 100 in an interval.
        for (offered, rate) in
            [(0, (0, 1)), (100, (0, 1)), (200, (1, 2)), (400, (3, 4)), (u64::MAX, (u64::MAX - 100, u64::MAX))]
        {
            let mut limit = RejectionRate::new(1_000, TICK).unwrap();
            limit.offered(Nanos::from_millis(1_050), offered);
            let rejection = limit.rejection(Nanos::from_millis(1_099));
            assert_eq!(rejection.rate, Fraction::of(rate.0, rate.1), "{offered}");
            assert_eq!(rejection.until == Nanos::from_millis(1_299), offered > 100);
        }
    }

    #[test]
    fn the_estimate_slides_from_one_interval_to_the_next() {
        let mut limit = RejectionRate::new(1_000, TICK).unwrap();
        limit.offered(Nanos::from_millis(200), 300);
        limit.offered(Nanos(200_000_001), 50);
        for (millis, estimate) in
            [(200, 350), (250, 200), (299, 53), (300, 50), (350, 25), (400, 0), (50, 50)]
        {
            assert_eq!(limit.estimate(Nanos::from_millis(millis)), estimate, "at {millis} ms");
        }
    }

    #[test]
    fn a_published_rejection_ends_by_itself() {
        let rejection = Rejection::all_until(Nanos(10));
        assert!(!rejection.admits(Nanos(9), 0) && !rejection.admits(Nanos(9), u16::MAX));
        assert!(rejection.admits(Nanos(10), 0));
        assert!(Rejection::NONE.admits(Nanos::ZERO, 0));
        let half = Rejection { rate: Fraction::of(1, 2), until: Nanos(10) };
        assert_eq!((0..=u16::MAX).filter(|&draw| half.admits(Nanos(0), draw)).count(), 32_768);
    }

    #[test]
    fn impossible_parameters_are_refused() {
        for (per_sec, interval, field) in [
            (0, TICK, "per_sec"),
            (1, Nanos::ZERO, "interval"),
            (1, TICK, "interval"),
            (1, Nanos::from_secs(3_601), "interval"),
        ] {
            assert_eq!(RejectionRate::new(per_sec, interval).unwrap_err().field, field);
        }
    }

    proptest! {
        #[test]
        fn more_offered_is_never_a_lower_rate(offered: u64, more: u64, per_sec in 10..=u64::MAX) {
            let rate = |offered| {
                let mut limit = RejectionRate::new(per_sec, TICK).unwrap();
                limit.offered(TICK, offered);
                limit.rejection(TICK).rate
            };
            prop_assert!(rate(offered) <= rate(offered.saturating_add(more)));
        }

        #[test]
        fn any_time_and_count_is_safe(
            per_sec: u64, interval: u64, steps in prop::collection::vec(any::<(u64, u64)>(), 1..20),
        ) {
            if let Ok(mut limit) = RejectionRate::new(per_sec, Nanos(interval)) {
                for (now, units) in steps {
                    limit.offered(Nanos(now), units);
                    let _ = limit.rejection(Nanos(now.wrapping_mul(31)));
                    prop_assert!(limit.estimate(Nanos(now)) >= limit.current.min(units));
                }
            }
        }
    }
}
