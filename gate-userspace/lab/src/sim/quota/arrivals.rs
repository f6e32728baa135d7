//! When a tenant sends.

use gate_common::units::Nanos;
use serde::Serialize;

use crate::sim::rng::Rng;

/// When a tenant sends. All have the same mean in the long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// At any time alike: a Poisson process.
    Steady,
    /// All of a second's requests within a tenth of it, anywhere in it.
    Bursts,
    /// Twice the mean for about a second, nothing for about a second.
    Onoff,
    /// From nothing to twice the mean and back, a day in a minute.
    Diurnal,
    /// Steady, but tenants differ: the first offer most.
    Zipf,
    /// Steady, but all to one gate, and to the next one two seconds later. The other patterns go to any gate alike.
    Hop,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Steady, Self::Bursts, Self::Onoff, Self::Diurnal, Self::Zipf, Self::Hop];

    /// Its name on the command line and in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Bursts => "bursts",
            Self::Onoff => "onoff",
            Self::Diurnal => "diurnal",
            Self::Zipf => "zipf",
            Self::Hop => "hop",
        }
    }
}

/// The arrivals of one tenant: a Poisson process whose rate is constant within slots of 10 ms.
pub(super) struct Arrivals {
    pattern: Pattern,
    per_slot: f64,
    gaps: Rng,
    shape: Rng,
    /// Number of the present slot.
    slot: u64,
    /// How much of it has passed, from 0 to 1.
    passed: f64,
    /// The present slot's rate, times the mean.
    factor: f64,
    /// Under [`Pattern::Bursts`], where in the present second the burst begins.
    burst_at: u64,
}

impl Arrivals {
    pub(super) fn new(pattern: Pattern, per_sec: f64, seed: u64, tenant: u64) -> Self {
        let [gaps, shape] = [0, 1].map(|stream| Rng::new(seed, tenant * STREAMS + stream));
        let mut arrivals = Self {
            pattern,
            per_slot: per_sec / SLOTS_PER_SEC as f64,
            gaps,
            shape,
            slot: 0,
            passed: 0.0,
            factor: 2.0,
            burst_at: 0,
        };
        arrivals.begin_slot();
        arrivals
    }

    fn begin_slot(&mut self) {
        let in_second = self.slot % SLOTS_PER_SEC;
        self.factor = match self.pattern {
            Pattern::Steady | Pattern::Zipf | Pattern::Hop => 1.0,
            Pattern::Bursts => {
                if in_second == 0 {
                    self.burst_at = self.shape.bits() % (SLOTS_PER_SEC - BURST_SLOTS + 1);
                }
                let bursts = (self.burst_at..self.burst_at + BURST_SLOTS).contains(&in_second);
                if bursts { SLOTS_PER_SEC as f64 / BURST_SLOTS as f64 } else { 0.0 }
            }
            Pattern::Onoff => {
                let turns = self.shape.bits().is_multiple_of(SLOTS_PER_SEC);
                if turns { 2.0 - self.factor } else { self.factor }
            }
            Pattern::Diurnal => {
                let day = self.slot as f64 / (60 * SLOTS_PER_SEC) as f64;
                1.0 - (day * std::f64::consts::TAU).cos()
            }
        };
    }
}

impl Iterator for Arrivals {
    type Item = Nanos;

    /// The next arrival. There is always one.
    fn next(&mut self) -> Option<Nanos> {
        let mut rest = self.gaps.exponential();
        loop {
            let rate = self.per_slot * self.factor;
            let left = rate * (1.0 - self.passed);
            if rest < left {
                self.passed += rest / rate;
                return Some(Nanos(((self.slot as f64 + self.passed) * SLOT_NS).round() as u64));
            }
            rest -= left;
            self.slot += 1;
            self.passed = 0.0;
            self.begin_slot();
        }
    }
}

/// Streams of random numbers for each tenant: gaps, shape, gates and draws.
pub(super) const STREAMS: u64 = 3;
const SLOTS_PER_SEC: u64 = 100;
const SLOT_NS: f64 = 10_000_000.0;
/// A tenth of a second.
const BURST_SLOTS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_has_its_mean_and_its_times_rise() {
        for pattern in Pattern::ALL {
            let seconds = 600;
            let until = Nanos::from_secs(seconds);
            let times: Vec<_> = Arrivals::new(pattern, 500.0, 1, 0).take_while(|&at| at < until).collect();
            assert!(times.is_sorted());
            let mean = times.len() as f64 / seconds as f64;
            assert!((mean / 500.0 - 1.0).abs() < 0.1, "{}: {mean}", pattern.name());
        }
    }

    #[test]
    fn bursts_are_a_tenth_of_a_second_long() {
        let times: Vec<_> = Arrivals::new(Pattern::Bursts, 1_000.0, 1, 0).take(5_000).collect();
        for second in times.chunk_by(|a, b| a.0 / 1_000_000_000 == b.0 / 1_000_000_000) {
            let length = second[second.len() - 1].saturating_sub(second[0]);
            assert!(length < Nanos::from_millis(101), "{length}");
        }
    }
}
