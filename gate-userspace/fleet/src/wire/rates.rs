//! Rates on the wire: in thousandths of a request unit per second, and beside that in billionths where thousandths are too coarse.

use gate_common::units::{NANOS_PER_SEC, Nanos};

use super::generated::Limit;
use gate_limits::{Limits, Period};
use gate_policy::rate::Rate;

impl Limit {
    /// The limits of a handle.
    pub(crate) fn of(handle: u32, limits: Limits) -> Self {
        let (per_sec, nano_per_sec) = encoded(limits.rate);
        Self {
            handle,
            per_sec,
            burst_us: limits.burst_ns / 1_000,
            max_debt_us: limits.max_debt_ns / 1_000,
            nano_per_sec,
            window: number(limits.window),
        }
    }

    /// The limits, as far as they are said: times are in whole microseconds.
    pub(crate) fn limits(&self) -> Limits {
        let [burst_ns, max_debt_ns] =
            [self.burst_us, self.max_debt_us].map(|micros| Nanos::from_micros(micros).0);
        Limits { rate: self.rate(), burst_ns, max_debt_ns, window: self.window() }
    }

    /// The length of its windows; `None` if it fills evenly, or in windows that this version does not know.
    pub(crate) fn window(&self) -> Option<Period> {
        Period::ALL.into_iter().find(|&period| number(Some(period)) == self.window)
    }

    /// The rate.
    pub(crate) fn rate(&self) -> Rate {
        decoded(self.per_sec, self.nano_per_sec)
    }

    /// The amount that comes in within so many microseconds.
    pub(crate) fn amount_in(&self, micros: u64) -> u64 {
        self.rate().amount_in(Nanos::from_micros(micros).0)
    }
}

/// The number of a window's length; 0 for none.
pub(crate) fn number(window: Option<Period>) -> u32 {
    let place = |window| Period::ALL.into_iter().zip(1..).find(|(period, _)| *period == window);
    window.and_then(place).map_or(0, |(_, number)| number)
}

/// A rate in thousandths, at least 1, and in billionths if that is not exact. A fast one is exact enough.
pub(crate) fn encoded(rate: Rate) -> (u64, u64) {
    let nano = rate.nano();
    let per_sec = (nano / NANO_PER_MILLI).max(1);
    (per_sec, if nano < NANOS_PER_SEC && nano != per_sec * NANO_PER_MILLI { nano } else { 0 })
}

/// The rate of both columns.
pub(crate) fn decoded(per_sec: u64, nano: u64) -> Rate {
    if nano > 0 { Rate::from_nano(nano) } else { Rate::per_sec(per_sec) }
}

const NANO_PER_MILLI: u64 = 1_000_000;
