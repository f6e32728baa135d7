//! The part of a limit that a gate may give out by itself.

use gate_common::units::{MilliRu, Nanos};

use crate::wire::Limit;
use gate_limits::{Limits, Period};
use gate_policy::rate::Rate;

/// The part of a limit that a gate may give out by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Above nothing. Of a window [`Rate::UNLIMITED`], since its owner says what is left; without its owner that of a bucket which fills evenly.
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
        let window = limit.window();
        // The rate of a window only says what times stand for.
        let rate = if window.is_some() { Rate::UNLIMITED } else { limit.rate() };
        Self { rate, burst, max_debt, reject_for: Nanos::ZERO, window }
    }

    /// One part of so many of the whole, for a gate that has no owner to ask: of a window it comes in evenly.
    pub(super) fn one_of(&self, gates: u64) -> Self {
        let burst = self.burst / gates;
        let rate =
            self.window.map_or_else(|| self.rate.part(gates), |window| Rate::within(burst, window.length()));
        Self { rate, ..self.part(rate, burst) }
    }

    /// A part of this at another rate, with a burst of at least one request unit, if the limit admits one. A request that is dearer than its burst passes while
    /// the bucket is full, as it does where the limit is whole.
    #[must_use]
    pub fn part(&self, rate: Rate, burst: u64) -> Self {
        let dearest = self.burst.saturating_add(self.max_debt);
        let burst = burst.max(MilliRu::ONE_RU.0.into()).min(dearest);
        let max_debt = dearest - burst;
        let rate = if self.window.is_some() { self.rate } else { rate };
        Self { rate, burst, max_debt, ..*self }
    }

    /// The limits of a bucket here: gate's own quota is the ceiling of its part, of its rate and of its burst. One that fills evenly does so at its
    /// own rate also where the owner counts in windows, which refuses when the window is used up.
    #[must_use]
    pub fn within(&self, own: Limits) -> Limits {
        let own_burst = own.rate.amount_in(own.burst_ns);
        let is_as_own = own.window.is_none() || self.window.is_some();
        if is_as_own && own.rate <= self.rate && own_burst <= self.burst {
            return own;
        }
        let rate = match (own.window, self.window) {
            (None, _) => self.rate.min(own.rate).max(Rate::SLOWEST),
            // In both what times stand for.
            (Some(_), Some(_)) => own.rate,
            // The owner's way of counting holds.
            (Some(_), None) => self.rate,
        };
        let own_debt = own.rate.amount_in(own.max_debt_ns);
        let burst = self.burst.min(own_burst);
        let dearest = self.burst.saturating_add(self.max_debt).min(own_burst.saturating_add(own_debt));
        let max_debt_ns = rate.time_for(dearest.saturating_sub(burst));
        let window = own.window.and(self.window);
        Limits { rate, burst_ns: rate.time_for(burst), max_debt_ns, window }
    }
}

/// `amount * by / of`, or the largest number if that is larger.
pub(super) fn scaled(amount: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(amount) * u128::from(by) / u128::from(of);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
