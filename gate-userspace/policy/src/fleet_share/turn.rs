//! The turns of gates whose parts hold less than one request.

use gate_common::units::Nanos;

use super::{LEAST_BURST, SHORTEST, fraction};
use crate::rate::Rate;

/// The next request of a gate whose part holds less than one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// The amount that has come in towards it, in thousandths of a request unit.
    saved: f64,
    as_of: Nanos,
    /// The time between its last two reports.
    pub(super) interval: Nanos,
}

impl Turn {
    /// That of a gate with this number: the turns of many are spread evenly.
    pub(super) fn of(gate: u32, now: Nanos) -> Self {
        Self { saved: (f64::from(gate) * GOLDEN).fract() * ONE, as_of: now, interval: SHORTEST }
    }

    /// The rate at which a gate gives out its next request at once, if it is its turn, as `per_sec` comes in.
    pub(super) fn take(&mut self, now: Nanos, per_sec: f64) -> Option<Rate> {
        let passed = now.saturating_sub(std::mem::replace(&mut self.as_of, now)).min(Nanos::from_secs(1));
        self.saved += per_sec * fraction(passed, Nanos::from_secs(1));
        if self.saved < ONE {
            return None;
        }
        self.saved = (self.saved - ONE).min(ONE);
        let in_time = Nanos(self.interval.max(TICK).0 / 4 * 3);
        Some(Rate::within(LEAST_BURST.0.into(), in_time))
    }
}

/// One request, in thousandths of a request unit.
pub(super) const ONE: f64 = LEAST_BURST.0 as f64;
/// The time between two reports of a gate, usually. One that reports twice in a shorter time goes by the answer for as long all the same.
const TICK: Nanos = Nanos::from_millis(100);
/// The golden ratio: parts of multiples of it are spread evenly, however many there are.
const GOLDEN: f64 = 0.618_033_988_749_895;
