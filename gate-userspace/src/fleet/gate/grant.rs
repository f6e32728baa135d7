//! The part of a limit that a gate may give out by itself.

use gate_common::token_bucket::{Limits, Rate};
use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};

/// The part of a limit that a gate may give out by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Thousandths of a request unit per second; at least 1.
    pub per_sec: u64,
    /// The most at once, in thousandths of a request unit.
    pub burst: u64,
    /// The largest debt, in thousandths of a request unit.
    pub max_debt: u64,
    /// Nothing for so long.
    pub reject_for: Nanos,
}

impl Grant {
    /// A part of this at another rate, with a burst of at least one request unit. A request that is dearer than its burst passes while
    /// the bucket is full, as it does where the limit is whole.
    #[must_use]
    pub fn part(&self, per_sec: u64, burst: u64) -> Self {
        let burst = burst.max(MilliRu::ONE_RU.0.into());
        let max_debt = self.burst.saturating_add(self.max_debt).saturating_sub(burst);
        Self { per_sec, burst, max_debt, reject_for: self.reject_for }
    }

    /// The limits of a bucket here: gate's own quota is the ceiling of its part, of its rate and of its burst.
    #[must_use]
    pub fn within(&self, own: Limits) -> Limits {
        let amount = |per_sec, nanos| scaled(nanos, per_sec, NANOS_PER_SEC);
        let own_per_sec = own.rate.units_per_sec().unwrap_or(u64::MAX);
        let own_burst = own.rate.units_per_sec().map_or(u64::MAX, |per_sec| amount(per_sec, own.burst_ns));
        if own_per_sec <= self.per_sec && own_burst <= self.burst {
            return own;
        }
        let own_debt = own.rate.units_per_sec().map_or(u64::MAX, |per_sec| amount(per_sec, own.max_debt_ns));
        let per_sec = self.per_sec.min(own_per_sec).max(1);
        let burst = self.burst.min(own_burst);
        let dearest = self.burst.saturating_add(self.max_debt).min(own_burst.saturating_add(own_debt));
        let time_for = |amount| scaled(amount, NANOS_PER_SEC, per_sec);
        Limits {
            rate: Rate::per_sec(per_sec),
            burst_ns: time_for(burst),
            max_debt_ns: time_for(dearest.saturating_sub(burst)),
        }
    }
}

/// `amount * by / of`, or the largest number if that is larger.
pub(super) fn scaled(amount: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(amount) * u128::from(by) / u128::from(of);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
