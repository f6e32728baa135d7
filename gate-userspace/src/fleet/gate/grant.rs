//! The part of a limit that a gate may give out by itself.

use gate_common::token_bucket::{Limits, Rate};
use gate_common::units::{NANOS_PER_SEC, Nanos};

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
    /// The limits of a bucket here: gate's own quota is the ceiling of its part.
    #[must_use]
    pub fn within(&self, own: Limits) -> Limits {
        let own_per_sec = own.rate.units_per_sec();
        if own_per_sec.is_some_and(|own| own <= self.per_sec) {
            return own;
        }
        let own_burst = own_per_sec.map_or(u64::MAX, |per_sec| scaled(own.burst_ns, per_sec, NANOS_PER_SEC));
        let time_for = |amount| scaled(amount, NANOS_PER_SEC, self.per_sec.max(1));
        Limits {
            rate: Rate::per_sec(self.per_sec),
            burst_ns: time_for(self.burst.min(own_burst)),
            max_debt_ns: time_for(self.max_debt),
        }
    }
}

/// `amount * by / of`, or the largest number if that is larger.
pub(super) fn scaled(amount: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(amount) * u128::from(by) / u128::from(of);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
