//! The price of a request, known before it runs, learned from the times that requests took.
//!
//! **Problem.** Quotas in requests let a tenant take the store with few, expensive ones. A price must
//! be known before the request runs, and stay true while the store changes.
//!
//! **How.** `RU = base + row·rows + kib·bytes/1024 + latency·expected`, where `expected` is the recent
//! p95 of the request's query type, counted in reference reads. The four coefficients are those that
//! would have priced the recent past best: recursive least squares with exponential forgetting
//! (Haykin, *Adaptive Filter Theory*), of which a request's target is the time it took, divided by
//! what the reference point read took in the same window. So a store that becomes slower as a whole
//! changes no price.
//!
//! **Deviations.** The recursion is kept in information form: sums per window, one small
//! least-squares problem per tick, solved within a box. The box is what bounds a coefficient's change
//! and keeps it from becoming negative; a solution that were merely clipped would not be the best one
//! inside. Where the past says nothing (with reads of single keys only, `base` and `row` cannot be
//! told apart), coefficients stay where they are. Of a batch (requests answered by one read) only the sum of
//! their times is known: they are one observation of the sum of their shapes, which a linear price allows.
//! A batch weighs as much as its requests would alone, if each had taken the same.
//!
//! **Invariants.** No coefficient is negative, none moves more than [`Learning::max_change`] (or
//! [`SMALLEST_STEP`] RU) in a tick, `base` never falls below [`LOWEST_BASE`]: no request is free. `base`,
//! `row` and `kib` stay within [`Learning::range`] of what they began with: one that began as nothing stays
//! nothing. An overload is not recorded: its windows are thrown away. Neither does a window without the
//! reference read.

use gate_common::units::{MilliRu, Nanos};

use super::range::{OutOfRange, ensure};

/// The properties of a request that are known before it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Rows (keys) that it is expected to touch.
    pub rows: u32,
    /// Its length.
    pub bytes: u32,
    /// The recent p95 of its query type, in thousandths of a reference read. See [`expected`].
    pub expected_milli: u32,
}

/// A batch of requests that were answered by one read: how many, and their shapes' sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// How many.
    pub count: u32,
    /// As of [`Shape`], of all of them.
    pub rows: u64,
    /// As of [`Shape`], of all of them.
    pub bytes: u64,
    /// As of [`Shape`], of all of them.
    pub expected_milli: u64,
}

impl From<Shape> for Batch {
    fn from(Shape { rows, bytes, expected_milli }: Shape) -> Self {
        Self { count: 1, rows: rows.into(), bytes: bytes.into(), expected_milli: expected_milli.into() }
    }
}

/// A query type's recent p95 in thousandths of a reference read; zero if either is unknown.
#[must_use]
pub fn expected(p95: Nanos, reference: Nanos) -> u32 {
    let milli = (u128::from(p95.0) * 1_000).checked_div(u128::from(reference.0)).unwrap_or(0);
    u32::try_from(milli).unwrap_or(u32::MAX)
}

/// The coefficients of a price, in integers, as the kernel reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Of any request.
    pub base: MilliRu,
    /// Of each row.
    pub row: MilliRu,
    /// Of each 1,024 bytes, charged in proportion.
    pub kib: MilliRu,
    /// Of each reference read's worth of expected latency, charged in proportion.
    pub latency: MilliRu,
}

impl Prices {
    /// The price of a request: rounded up, saturating.
    #[must_use]
    #[inline]
    pub const fn price(&self, shape: Shape) -> MilliRu {
        let exact = self.base.0 as u64
            + (shape.bytes as u64 * self.kib.0 as u64).div_ceil(1_024)
            + self.of_latency(shape.expected_milli).0 as u64;
        let exact = exact.saturating_add(shape.rows as u64 * self.row.0 as u64);
        MilliRu(if exact > u32::MAX as u64 { u32::MAX } else { exact as u32 })
    }

    /// The part of a price that a query type's expected latency makes.
    #[must_use]
    #[inline]
    pub const fn of_latency(&self, expected_milli: u32) -> MilliRu {
        let exact = (expected_milli as u64 * self.latency.0 as u64).div_ceil(1_000);
        MilliRu(if exact > u32::MAX as u64 { u32::MAX } else { exact as u32 })
    }
}

/// The measure of answered requests, in integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// The time of a reference read.
    pub reference: Nanos,
    /// The highest prices: no request is measured to have cost more. Expected latency is in `base`.
    pub dearest: Prices,
}

impl Measure {
    /// The cost of a batch that took the store so long: rounded down, saturating.
    #[must_use]
    #[inline]
    pub fn cost(&self, requests: &Batch, took: Nanos) -> MilliRu {
        let Prices { base, row, kib, .. } = self.dearest;
        let times = |count: u64, price: MilliRu| count.saturating_mul(price.0.into());
        let most = times(requests.count.into(), base)
            .saturating_add(times(requests.rows, row))
            .saturating_add(times(requests.bytes, kib) / 1_024);
        MilliRu(expected(took, self.reference).min(u32::try_from(most).unwrap_or(u32::MAX)))
    }
}

/// How fast prices learn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learning {
    /// After this many ticks, the past counts half. From 1 to 1,000,000.
    pub half_life_ticks: u32,
    /// The share of itself by which a coefficient moves in one tick at most. Above 0, up to 1.
    pub max_change: f64,
    /// Fewer reference reads than this in a window are no reference. At least 1.
    pub min_reference: u32,
    /// `base`, `row` and `kib` stay within so many times what they began with, upwards and downwards. At least 1.
    pub range: f64,
}

impl Default for Learning {
    /// At ticks of 100 ms: the past minute counts most, prices double in 1.5 s at the fastest.
    fn default() -> Self {
        Self { half_life_ticks: 600, max_change: 0.05, min_reference: 10, range: 10.0 }
    }
}

/// The times of requests in one tick, as sums that a price can learn from. Any thread may add to them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Their times in nanoseconds.
    sums: Sums,
    /// Reference reads: how many, and the sum of their times in nanoseconds.
    reference: (u64, f64),
}

impl Window {
    /// Of nothing.
    pub const EMPTY: Self = Self {
        sums: Sums { products: [[0.0; COEFFICIENTS]; COEFFICIENTS], targets: [0.0; COEFFICIENTS] },
        reference: (0, 0.0),
    };

    /// Adds a batch of requests of these shapes, and the time that the store took for it.
    pub fn observe(&mut self, requests: impl Into<Batch>, took: Nanos) {
        let requests = requests.into();
        if requests.count > 0 {
            self.sums.add(&requests, took.min(LONGEST).0 as f64);
        }
    }

    /// The same for reference reads: each of one small row, by its key.
    pub fn observe_reference(&mut self, requests: impl Into<Batch>, took: Nanos) {
        let requests = requests.into();
        self.observe(requests, took);
        let (count, sum) = &mut self.reference;
        *count = count.saturating_add(requests.count.into());
        *sum += took.min(LONGEST).0 as f64;
    }

    /// Adds what another has observed in the same tick.
    pub fn merge(&mut self, other: &Self) {
        self.sums.merge(&other.sums, 1.0);
        self.reference.0 = self.reference.0.saturating_add(other.reference.0);
        self.reference.1 += other.reference.1;
    }
}

/// Prices that learn. See the [module](self).
#[derive(Clone, Debug)]
pub struct CostModel {
    learning: Learning,
    keep: f64,
    /// In request units: base, row, KiB, reference read of expected latency.
    coefficients: Vector,
    /// The range of each coefficient.
    bounds: [(f64, f64); COEFFICIENTS],
    /// Everything learned from, forgotten by and by.
    past: Sums,
    /// The time of a reference read in the last window that had enough of them.
    last_reference: Option<Nanos>,
}

impl CostModel {
    /// A model that starts from `prices`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if a field of `learning` is, if the base is below 0.01 RU, or any price above
    /// a million.
    pub fn new(prices: Prices, learning: Learning) -> Result<Self, OutOfRange> {
        let Learning { half_life_ticks, max_change, min_reference, range } = learning;
        let half_life_fits = (1..=1_000_000).contains(&half_life_ticks);
        ensure(half_life_fits, "half_life_ticks", half_life_ticks, "from 1 to 1000000")?;
        ensure(max_change > 0.0 && max_change <= 1.0, "max_change", max_change, "above 0, at most 1")?;
        ensure(min_reference >= 1, "min_reference", min_reference, "at least 1")?;
        ensure(range >= 1.0, "range", range, "at least 1")?;
        let Prices { base, row, kib, latency } = prices;
        for (name, price) in [("base", base), ("row", row), ("kib", kib), ("latency", latency)] {
            ensure(ru(price) <= HIGHEST, &format!("prices.{name}"), price, "at most 1000000 RU")?;
        }
        let coefficients = [base, row, kib, latency].map(ru);
        ensure(ru(base) >= LOWEST_BASE, "prices.base", base, "at least 0.01 RU")?;
        Ok(Self {
            learning,
            keep: 0.5_f64.powf(1.0 / f64::from(half_life_ticks)),
            coefficients,
            bounds: std::array::from_fn(|j| match j {
                BASE => ((coefficients[j] / range).max(LOWEST_BASE), (coefficients[j] * range).min(HIGHEST)),
                // What latency is expected to cost nobody has said before.
                LATENCY => (0.0, HIGHEST),
                _ => (coefficients[j] / range, (coefficients[j] * range).min(HIGHEST)),
            }),
            past: Sums::default(),
            last_reference: None,
        })
    }

    /// Learns from a window, unless it was `overloaded` or has too few reference reads. Whether it did.
    pub fn tick(&mut self, window: &Window, overloaded: bool) -> bool {
        let (count, sum) = window.reference;
        let learns = !overloaded && count >= self.learning.min_reference.into() && sum > 0.0;
        if learns {
            let reference_ns = sum / count as f64;
            self.last_reference = Some(Nanos(reference_ns.round() as u64).max(Nanos(1)));
            self.past.forget(self.keep);
            self.past.merge(&window.sums, reference_ns);
            self.learn();
        }
        learns
    }

    /// The prices of now.
    #[must_use]
    pub fn prices(&self) -> Prices {
        let [base, row, kib, latency] = self.coefficients.map(|ru| MilliRu((ru * 1e3).round() as u32));
        Prices { base, row, kib, latency }
    }

    /// The time of a reference read in the last window that had enough of them and was no overload.
    #[must_use]
    pub const fn reference(&self) -> Option<Nanos> {
        self.last_reference
    }

    /// Moves the coefficients to the least squares within their box, by coordinate descent: each in
    /// turn goes to its best place given the others. The problem is convex, so this converges; what a
    /// tick leaves to be done, the next does.
    fn learn(&mut self) {
        let old = self.coefficients;
        let Sums { products, targets } = &self.past;
        for _ in 0..SWEEPS {
            for j in 0..COEFFICIENTS {
                let damped = products[j][j] * (1.0 + DAMPING);
                // Nothing seen of this feature: nothing learned.
                if damped <= 0.0 {
                    continue;
                }
                let explained: f64 = (0..COEFFICIENTS).map(|k| products[j][k] * self.coefficients[k]).sum();
                let pull = products[j][j] * DAMPING * (old[j] - self.coefficients[j]);
                let best = self.coefficients[j] + (targets[j] - explained + pull) / damped;
                let step = (old[j] * self.learning.max_change).max(SMALLEST_STEP);
                let (lowest, highest) = self.bounds[j];
                self.coefficients[j] = best.clamp((old[j] - step).max(lowest), (old[j] + step).min(highest));
            }
        }
    }
}

const COEFFICIENTS: usize = 4;
/// The place of the price of any request, and of that of expected latency.
const BASE: usize = 0;
const LATENCY: usize = 3;
type Vector = [f64; COEFFICIENTS];

fn ru(price: MilliRu) -> f64 {
    f64::from(price.0) / 1e3
}

fn features(requests: &Batch) -> Vector {
    let Batch { count, rows, bytes, expected_milli } = *requests;
    [f64::from(count), rows as f64, bytes as f64 / 1_024.0, expected_milli as f64 / 1_000.0]
}

/// The sums that least squares need: of the features' products, and of features times target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    products: [Vector; COEFFICIENTS],
    targets: Vector,
}

impl Sums {
    /// As if each of the requests had had an equal part of their features and of the target.
    fn add(&mut self, requests: &Batch, target: f64) {
        let features = features(requests);
        let weight = 1.0 / f64::from(requests.count);
        for j in 0..COEFFICIENTS {
            let weighted = features[j] * weight;
            for (product, feature) in self.products[j].iter_mut().zip(features) {
                *product += weighted * feature;
            }
            self.targets[j] += weighted * target;
        }
    }

    fn forget(&mut self, keep: f64) {
        self.products.iter_mut().flatten().chain(&mut self.targets).for_each(|sum| *sum *= keep);
    }

    /// Adds other sums, whose targets are in parts of `unit`.
    fn merge(&mut self, other: &Self, unit: f64) {
        for j in 0..COEFFICIENTS {
            for k in 0..COEFFICIENTS {
                self.products[j][k] += other.products[j][k];
            }
            self.targets[j] += other.targets[j] / unit;
        }
    }
}

/// In request units. A request is never free, however cheap the rest.
pub const LOWEST_BASE: f64 = 0.01;
/// In request units. The dearest coefficient.
const HIGHEST: f64 = 1e6;
/// In request units. A coefficient of zero must be able to move at all.
pub const SMALLEST_STEP: f64 = 0.005;
/// Longer than any request takes, and no infinity.
const LONGEST: Nanos = Nanos::from_secs(3_600);
/// How much each coefficient is held back within a tick, as a share of what is known about it. It
/// decides between those that cannot be told apart, and delays the others by a percent.
const DAMPING: f64 = 0.01;
/// Sweeps of coordinate descent per tick: a few microseconds.
const SWEEPS: usize = 50;

#[cfg(test)]
mod tests;
