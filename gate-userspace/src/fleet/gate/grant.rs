//! The part of a limit that a gate may give out by itself.

use gate_common::units::{MilliRu, Nanos};

use crate::fleet::wire::Limit;
use crate::limits::{Limits, Period};
use crate::policy::rate::Rate;

/// The part of a limit that a gate may give out by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Above nothing.
    pub rate: Rate,
    /// The most at once, in thousandths of a request unit.
    pub burst: u64,
    /// The largest debt, in thousandths of a request unit.
    pub max_debt: u64,
    /// Nothing for so long.
    pub reject_for: Nanos,
    /// Of a limit that counts in windows their length: nothing comes in with time, and what may be given out is said each time.
    pub window: Option<Period>,
}

impl Grant {
    /// The whole of a limit.
    pub(super) fn of(limit: &Limit) -> Self {
        let [burst, max_debt] = [limit.burst_us, limit.max_debt_us].map(|micros| limit.amount_in(micros));
        Self { rate: limit.rate(), burst, max_debt, reject_for: Nanos::ZERO, window: limit.window() }
    }

    /// A part of this at another rate, with a burst of at least one request unit, if the limit admits one. A request that is dearer than its burst passes while
    /// the bucket is full, as it does where the limit is whole.
    #[must_use]
    pub fn part(&self, rate: Rate, burst: u64) -> Self {
        let dearest = self.burst.saturating_add(self.max_debt);
        let burst = burst.max(MilliRu::ONE_RU.0.into()).min(dearest);
        let max_debt = dearest - burst;
        // Of a window the rate only says what times stand for.
        let rate = if self.window.is_some() { self.rate } else { rate };
        Self { rate, burst, max_debt, ..*self }
    }

    /// The limits of a bucket here: gate's own quota is the ceiling of its part, of its rate and of its burst.
    #[must_use]
    pub fn within(&self, own: Limits) -> Limits {
        let own_burst = own.rate.amount_in(own.burst_ns);
        if own.window.is_some() != self.window.is_some() {
            // Rates are not about the same: the owner's way of counting holds.
            let burst = self.burst.min(own_burst);
            let max_debt_ns = self.rate.time_for(self.max_debt.min(own_burst - burst));
            let burst_ns = self.rate.time_for(burst);
            return Limits { rate: self.rate, burst_ns, max_debt_ns, window: self.window };
        }
        if own.rate <= self.rate && own_burst <= self.burst {
            return own;
        }
        let own_debt = own.rate.amount_in(own.max_debt_ns);
        let rate = self.rate.min(own.rate).max(Rate::SLOWEST);
        let burst = self.burst.min(own_burst);
        let dearest = self.burst.saturating_add(self.max_debt).min(own_burst.saturating_add(own_debt));
        let max_debt_ns = rate.time_for(dearest.saturating_sub(burst));
        Limits { rate, burst_ns: rate.time_for(burst), max_debt_ns, window: self.window }
    }
}

/// `amount * by / of`, or the largest number if that is larger.
pub(super) fn scaled(amount: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(amount) * u128::from(by) / u128::from(of);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
