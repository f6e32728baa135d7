//! One service's prices, as they are learned from one tick's cost samples for the next generation.
//!
//! **Problem.** A configured price is a guess, and a store's costs change. **How.** The
//! [cost model](super::cost_model) finds the coefficients. What is expected of a class's latency is the recent p95
//! of the store's time for it, counted in reference reads; times its coefficient that is a part of the price for
//! each price class, so that a price needs no more than a look-up.
//!
//! **Invariants.** Prices change only in a tick with usable samples: not during an overload or shortly after it, whose
//! last answers come in later, and none without enough reference reads. No part of a price moves faster than
//! [`Learning::max_change`] (or [`SMALLEST_STEP`]) in a tick, and what latency adds is never more than `base` and `row`
//! together may become. A class of which nothing is known is taken for reads of one key, and what could not be read is as
//! dear as the dearest class. Requests are [measured](Pricing::measure) once they are answered by what the last ticks that
//! learned from took the reference read to be, and never while learning is paused.

use gate_common::abi::{QueryClass, ServiceState};
use gate_common::units::{MilliRu, Nanos};

use super::cost_model::{CostModel, Learning, Measure, Prices, SMALLEST_STEP, Window, expected};
use super::range::OutOfRange;

/// By [`QueryClass`].
pub type ByClass<T> = [T; QueryClass::COUNT];

/// One tick's cost samples: the times of the requests that a store answered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostSamples {
    /// The observations of the tick.
    pub window: Window,
    /// The recent p95 of each class; `None` where there were too few.
    pub p95: ByClass<Option<Nanos>>,
}

/// Where prices begin, and how far they may go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The configured ones; what they say of latency is where its coefficient begins.
    pub prices: Prices,
    /// How fast, and how far.
    pub learning: Learning,
}

/// Prices that follow what requests take. See the [module](self).
#[derive(Clone, Debug)]
pub struct Pricing {
    settings: Settings,
    model: CostModel,
    /// In thousandths of a reference read.
    expected: ByClass<u32>,
    /// True for a class that was ever measured.
    seen: ByClass<bool>,
    /// The part of a price that this makes.
    latency: ByClass<u32>,
    /// The last tick that was an overload.
    last_overload: Option<Nanos>,
    /// The last tick with usable samples.
    last_learned: Option<Nanos>,
    /// True while the reference read's time of that tick may be used.
    measures: bool,
}

impl Pricing {
    /// Starts from the configured prices.
    ///
    /// # Errors
    ///
    /// As [`CostModel::new`].
    pub fn new(settings: Settings) -> Result<Self, OutOfRange> {
        let model = CostModel::new(settings.prices, settings.learning)?;
        let (expected, seen, latency) = Default::default();
        let last_overload = None;
        let last_learned = None;
        Ok(Self { settings, model, expected, seen, latency, last_overload, last_learned, measures: false })
    }

    /// Where they began.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Learns from a tick's samples at `now`; `overloaded` if the store could not keep up.
    pub fn tick(&mut self, now: Nanos, cost_samples: &CostSamples, overloaded: bool) {
        if overloaded {
            self.last_overload = Some(now);
        }
        let near_overload = self.last_overload.is_some_and(|last| now.saturating_sub(last) < AFTERMATH);
        let has_learned = self.model.tick(&cost_samples.window, near_overload);
        self.last_learned = if has_learned { Some(now) } else { self.last_learned };
        let is_recent = self.last_learned.is_some_and(|last| now.saturating_sub(last) < RECENT);
        self.measures = is_recent && !near_overload;
        if !has_learned {
            return;
        }
        let reference = self.model.reference().unwrap_or_default();
        for (class, p95) in cost_samples.p95.into_iter().enumerate() {
            if let Some(p95) = p95 {
                (self.expected[class], self.seen[class]) = (expected(p95, reference), true);
            } else if !self.seen[class] {
                // The reads come first.
                self.expected[class] = self.expected[GET];
            }
        }
        let prices = self.model.prices();
        let most = self.dearest_latency();
        let mut dearest = 0;
        for class in 0..UNREAD {
            let goal = prices.of_latency(self.expected[class]).0.min(most);
            self.latency[class] = towards(self.latency[class], goal, self.settings.learning.max_change);
            dearest = dearest.max(self.latency[class]);
        }
        self.latency[UNREAD] = dearest;
    }

    /// A service's state with these prices.
    #[must_use]
    pub fn put_into(&self, state: ServiceState) -> ServiceState {
        let Prices { base, row, kib, .. } = self.model.prices();
        ServiceState { base_mru: base.0, row_mru: row.0, kib_mru: kib.0, latency_mru: self.latency, ..state }
    }

    /// The expected time of each class, in thousandths of a reference read.
    #[must_use]
    pub const fn expected(&self) -> &ByClass<u32> {
        &self.expected
    }

    /// The price of each reference read's worth of expected latency.
    #[must_use]
    pub fn of_latency(&self) -> MilliRu {
        self.model.prices().latency
    }

    /// The recent time of a reference read.
    #[must_use]
    pub const fn reference(&self) -> Option<Nanos> {
        self.model.reference()
    }

    /// The measure for requests that are answered now; `None` if it cannot be known.
    #[must_use]
    pub fn measure(&self) -> Option<Measure> {
        let reference = self.model.reference().filter(|_| self.measures)?;
        let Settings { prices: Prices { base, row, kib, .. }, learning } = self.settings;
        let dearest = |price: MilliRu| MilliRu((f64::from(price.0) * learning.range) as u32);
        let base = dearest(base).saturating_add(MilliRu(self.dearest_latency()));
        let row = dearest(row);
        let kib = dearest(kib);
        let latency = MilliRu::ZERO;
        Some(Measure { reference, dearest: Prices { base, row, kib, latency } })
    }

    fn dearest_latency(&self) -> u32 {
        let Settings { prices: Prices { base, row, .. }, learning } = self.settings;
        // A float beyond the range becomes the largest integer.
        (f64::from(base.saturating_add(row).0) * learning.range) as u32
    }
}

/// `from`, moved towards `goal` as far as one tick allows.
fn towards(from: u32, goal: u32, max_change: f64) -> u32 {
    let step = (f64::from(from) * max_change).max(SMALLEST_STEP * 1e3) as u32;
    goal.clamp(from.saturating_sub(step), from.saturating_add(step))
}

const GET: usize = QueryClass::Get as usize;
const UNREAD: usize = QueryClass::Unread as usize;
const _: () = assert!(GET == 0 && UNREAD + 1 == QueryClass::COUNT);
/// For so long after an overload, what comes in may be of it: answers, and what the p95 covers.
pub const AFTERMATH: Nanos = Nanos::from_secs(10);
/// The time of a reference read is a measure for so long. Then prices may stay as they are, but nobody is charged
/// more for a store that has become slower since.
const RECENT: Nanos = Nanos::from_secs(10);

#[cfg(test)]
mod tests;
