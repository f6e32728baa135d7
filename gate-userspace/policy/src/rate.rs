//! Rates of named limits, down to a few requests a year.
//!
//! **Problem.** The kernel's buckets count thousandths of a request unit a second: the slowest limit is 86 a day. Users write `5/day`.
//!
//! **Rule.** A rate is a whole number of billionths of a request unit per second; what is between two of them is the slower one. One request a
//! year is within 3 % of its rate, one a day within 0.01 %.
//!
//! **Invariants.** Pure integer arithmetic that saturates. Times are rounded up, amounts down: against the request.

use gate_common::units::{NANOS_PER_SEC, Nanos};

/// A rate, in billionths of a request unit per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// Nothing at all.
    pub const NONE: Self = Self(0);
    /// The slowest rate at which anything comes in.
    pub const SLOWEST: Self = Self(1);
    /// The fastest rate that is still a rate: a billion request units a second.
    pub const FASTEST: Self = Self::per_sec(gate_common::token_bucket::Rate::MAX_PER_SEC);
    /// Costs take no time.
    pub const UNLIMITED: Self = Self(u64::MAX);

    /// A rate in thousandths of a request unit per second, at most [`Rate::FASTEST`].
    #[must_use]
    pub const fn per_sec(milli: u64) -> Self {
        let most = gate_common::token_bucket::Rate::MAX_PER_SEC;
        Self((if milli < most { milli } else { most }) * NANO_PER_MILLI)
    }

    /// So many thousandths of a request unit in a time, at most [`Rate::FASTEST`]; nothing in no time.
    #[must_use]
    pub const fn within(milli: u64, time: Nanos) -> Self {
        if time.0 == 0 {
            return Self::NONE;
        }
        let nano = milli as u128 * (NANO_PER_MILLI as u128 * NANOS_PER_SEC as u128) / time.0 as u128;
        Self::from_nano(if nano > u64::MAX as u128 { u64::MAX } else { nano as u64 })
    }

    /// A rate in billionths of a request unit per second, at most [`Rate::FASTEST`].
    #[must_use]
    pub const fn from_nano(nano: u64) -> Self {
        if nano < Self::FASTEST.0 { Self(nano) } else { Self::FASTEST }
    }

    /// Billionths of a request unit per second, of [`Rate::FASTEST`] where there is no limit.
    #[must_use]
    pub const fn nano(self) -> u64 {
        if self.0 < Self::FASTEST.0 { self.0 } else { Self::FASTEST.0 }
    }

    /// Thousandths of a request unit per second, rounded down; `None` without a limit.
    #[must_use]
    pub const fn units_per_sec(self) -> Option<u64> {
        if self.0 == u64::MAX { None } else { Some(self.0 / NANO_PER_MILLI) }
    }

    /// The time in which so many thousandths of a request unit come in, rounded up; for ever, if nothing does.
    #[must_use]
    pub const fn time_for(self, milli: u64) -> u64 {
        match self.0 {
            u64::MAX => 0,
            _ if milli == 0 => 0,
            0 => u64::MAX,
            nano => {
                let time =
                    (milli as u128 * (NANO_PER_MILLI as u128 * NANOS_PER_SEC as u128)).div_ceil(nano as u128);
                if time > u64::MAX as u128 { u64::MAX } else { time as u64 }
            }
        }
    }

    /// The thousandths of a request unit that come in within so many nanoseconds, rounded down; all there are without a limit.
    #[must_use]
    pub const fn amount_in(self, nanos: u64) -> u64 {
        if self.0 == u64::MAX {
            return u64::MAX;
        }
        let amount = self.0 as u128 * nanos as u128 / (NANO_PER_MILLI as u128 * NANOS_PER_SEC as u128);
        if amount > u64::MAX as u128 { u64::MAX } else { amount as u64 }
    }

    /// One of so many parts of it, at least [`Rate::SLOWEST`] of what is above nothing.
    #[must_use]
    pub const fn part(self, parts: u64) -> Self {
        match self.0 {
            0 | u64::MAX => self,
            nano => {
                let part = nano / if parts > 0 { parts } else { 1 };
                Self(if part > 0 { part } else { 1 })
            }
        }
    }
}

/// Billionths to the thousandth.
const NANO_PER_MILLI: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Nanos = Nanos::from_secs(86_400);

    #[test]
    fn a_few_a_day_are_a_few_a_day() {
        let rate = Rate::within(5_000, DAY);
        assert_eq!((rate.nano(), rate.units_per_sec()), (57_870, Some(0)));
        let a_day = rate.time_for(5_000);
        assert!(a_day >= DAY.0 && a_day - DAY.0 < DAY.0 / 10_000, "{a_day}");
        assert_eq!(rate.amount_in(a_day), 5_000);
        let yearly = Rate::within(1_000, Nanos(365 * DAY.0));
        assert!((yearly.time_for(1_000) as f64 / (365.0 * DAY.0 as f64)) < 1.03);
    }

    #[test]
    fn the_ends_of_the_range_are_safe() {
        assert_eq!(Rate::within(u64::MAX, Nanos(1)), Rate::FASTEST);
        assert_eq!(Rate::within(1, Nanos::ZERO), Rate::NONE);
        assert_eq!((Rate::NONE.time_for(0), Rate::NONE.time_for(1)), (0, u64::MAX));
        assert_eq!((Rate::UNLIMITED.time_for(u64::MAX), Rate::UNLIMITED.amount_in(0)), (0, u64::MAX));
        assert_eq!(Rate::SLOWEST.time_for(u64::MAX), u64::MAX);
        assert_eq!(Rate::FASTEST.amount_in(u64::MAX), u64::MAX);
        assert_eq!(Rate::per_sec(5_000).units_per_sec(), Some(5_000));
        assert_eq!((Rate::SLOWEST.part(3), Rate::NONE.part(3)), (Rate::SLOWEST, Rate::NONE));
    }
}
