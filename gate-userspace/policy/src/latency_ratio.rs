//! The latency ratio: is the store slower than it used to be?
//!
//! **Problem.** To shed load in time, an overload must be told from a store that is slow by nature.
//! No threshold in milliseconds fits every store, type of query and size of answer.
//!
//! **How.** `long-term p95 / short-term p95`: about 1 when healthy, towards 0.3 when latency climbs.
//! The ratio is computed for each query type and combined by how many requests of the type there were, so
//! that a mix with more slow queries is no overload. A request's latency is counted from its admission
//! to the answer: what waits for a slow store waits in front of it.
//!
//! **Deviations.** A type that became faster counts as 1, or it would make up for one that became
//! slower. Each window is two halves, of which the older is dropped when the newer is full, so a
//! window covers between half and all of its length.
//!
//! **Invariants.** No signal from a type with fewer than `min_samples` in either window, or whose
//! short-term p95 is under `floor`: a step from 50 to 200 microseconds is nobody's problem. The
//! long-term window learns nothing during an overload, until it has lasted `learn_after`: then it
//! forgets what was, and what it is like is the new normal. The ratio is from 0 to 1. A clock that
//! goes back stands still.

use std::sync::Arc;

use gate_common::units::Nanos;

use super::histogram::{Histogram, Snapshot};
use super::range::{OutOfRange, ensure};

/// The windows that the ratio compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How far back the short-term window reaches. Above 0.
    pub short: Nanos,
    /// How far back the long-term window reaches. Longer than the short one, at most a day.
    pub long: Nanos,
    /// Fewer values than this say nothing. At least 1.
    pub min_samples: u64,
    /// A p95 under this is no problem, whatever it was before.
    pub floor: Nanos,
    /// An overload that lasts this long is learned.
    pub learn_after: Nanos,
}

impl Default for Settings {
    /// A second beside a minute; 100 values; 1 ms; 5 minutes.
    fn default() -> Self {
        Self {
            short: Nanos::from_secs(1),
            long: Nanos::from_secs(60),
            min_samples: 100,
            floor: Nanos::from_millis(1),
            learn_after: Nanos::from_secs(300),
        }
    }
}

/// Latencies by query type, recorded by all threads at once.
#[derive(Debug)]
pub struct Latencies(Box<[Box<Histogram>]>);

impl Latencies {
    /// Of so many query types, 8.5 KiB each.
    #[must_use]
    pub fn new(types: usize) -> Self {
        Self((0..types).map(|_| Histogram::new()).collect())
    }

    /// Records how long a request of type number `query_type` (which must exist) took.
    #[inline]
    pub fn record(&self, query_type: usize, latency: Nanos) {
        self.record_many(query_type, latency, 1);
    }

    /// As [`Latencies::record`], for so many requests that took equally long.
    #[inline]
    pub fn record_many(&self, query_type: usize, latency: Nanos, count: u32) {
        self.0[query_type].record_many(latency, count);
    }
}

/// Compares what is recorded with what used to be. See the [module](self).
#[derive(Debug)]
pub struct LatencyRatio {
    settings: Settings,
    latencies: Arc<Latencies>,
    types: Box<[Compared]>,
    last_tick: Nanos,
    baseline: Baseline,
}

/// The state of the long-term windows.
#[derive(Clone, Copy, Debug)]
enum Baseline {
    /// They learn.
    Usual,
    /// They learn nothing, since an overload began.
    Frozen { since: Nanos },
    /// They learn, in spite of an overload.
    Anew,
}

/// One query type.
#[derive(Debug)]
struct Compared {
    short: Window,
    long: Window,
    /// The p95 of the short-term window, where it holds enough values.
    recent: Option<Nanos>,
    ratio: Option<f64>,
}

impl LatencyRatio {
    /// Compares `types` query types, from `now` on.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if `types` is not from 1 to 256 (75 KiB each), or a field of `settings` is out
    /// of its range.
    pub fn new(types: usize, settings: Settings, now: Nanos) -> Result<Self, OutOfRange> {
        Self::of(Arc::new(Latencies::new(types)), settings, now)
    }

    /// Compares what others record, from `now` on.
    ///
    /// # Errors
    ///
    /// As [`LatencyRatio::new`].
    pub fn of(latencies: Arc<Latencies>, settings: Settings, now: Nanos) -> Result<Self, OutOfRange> {
        let types = latencies.0.len();
        let Settings { short, long, min_samples, .. } = settings;
        ensure((1..=256).contains(&types), "types", types, "from 1 to 256")?;
        ensure(short > Nanos::ZERO, "short", short, "above 0")?;
        let long_fits = long > short && long <= Nanos::from_secs(86_400);
        ensure(long_fits, "long", long, "longer than the short window, at most a day")?;
        ensure(min_samples >= 1, "min_samples", min_samples, "at least 1")?;
        let compared =
            || Compared { short: Window::new(short), long: Window::new(long), recent: None, ratio: None };
        Ok(Self {
            settings,
            types: latencies.0.iter().map(|_| compared()).collect(),
            latencies,
            last_tick: now,
            baseline: Baseline::Usual,
        })
    }

    /// Where to record.
    #[must_use]
    pub fn latencies(&self) -> Arc<Latencies> {
        Arc::clone(&self.latencies)
    }

    /// Takes in what was recorded since the last tick, and says how the store is doing; `None` if
    /// nothing can be said. `overloaded` is what the last ratio was taken for.
    pub fn tick(&mut self, now: Nanos, overloaded: bool) -> Option<f64> {
        let passed = now.saturating_sub(self.last_tick);
        self.last_tick = self.last_tick.max(now);
        let learns = self.learns(overloaded);
        let mut weights = 0;
        let mut sum = 0.0;
        for (compared, recorded) in self.types.iter_mut().zip(&self.latencies.0) {
            compared.tick(&recorded.drain(), passed, learns, &self.settings);
            if let Some(ratio) = compared.ratio {
                weights += compared.short.count();
                sum += ratio * compared.short.count() as f64;
            }
        }
        (weights > 0).then(|| sum / weights as f64)
    }

    /// The ratio of one query type (which must exist) at the last tick.
    #[must_use]
    pub fn of_type(&self, query_type: usize) -> Option<f64> {
        self.types[query_type].ratio
    }

    /// The short-term p95 of one query type (which must exist) at the last tick, if there were enough
    /// values: what a price expects its latency to be.
    #[must_use]
    pub fn recent_p95(&self, query_type: usize) -> Option<Nanos> {
        self.types[query_type].recent
    }

    /// The short-term quantile (`share` is from 0 to 1) of one query type (which must exist), or of all together, if there were
    /// enough values.
    #[must_use]
    pub fn recent(&self, query_type: Option<usize>, share: f64) -> Option<Nanos> {
        let types = match query_type {
            Some(one) => &self.types[one..=one],
            None => &self.types[..],
        };
        let mut all = Snapshot::default();
        types.iter().for_each(|compared| compared.short.add_to(&mut all));
        (all.count() >= self.settings.min_samples).then(|| all.quantile(share))
    }

    fn learns(&mut self, overloaded: bool) -> bool {
        self.baseline = match self.baseline {
            // Frozen, Anew => Usual: the overload is over.
            _ if !overloaded => Baseline::Usual,
            // Usual => Frozen: an overload.
            Baseline::Usual => Baseline::Frozen { since: self.last_tick },
            // Frozen => Anew: it has lasted too long to be one.
            Baseline::Frozen { since }
                if self.last_tick.saturating_sub(since) >= self.settings.learn_after =>
            {
                self.types.iter_mut().for_each(|compared| compared.long.clear());
                Baseline::Anew
            }
            unchanged => unchanged,
        };
        !matches!(self.baseline, Baseline::Frozen { .. })
    }
}

impl Compared {
    fn tick(&mut self, recorded: &Snapshot, passed: Nanos, learns: bool, settings: &Settings) {
        self.short.pass(passed);
        self.short.add(recorded);
        if learns {
            self.long.pass(passed);
            self.long.add(recorded);
        }
        self.recent = self.short.p95(settings.min_samples);
        let comparable = self.recent.filter(|&recent| recent >= settings.floor.max(Nanos(1)));
        self.ratio = comparable.zip(self.long.p95(settings.min_samples)).map(|(recent, usual)| {
            // A type that became faster says no more than "healthy".
            (usual.0 as f64 / recent.0 as f64).min(1.0)
        });
    }
}

/// Recent records, in two halves.
#[derive(Debug)]
struct Window {
    half: Nanos,
    /// How long the newer half has been filling.
    age: Nanos,
    /// The newer one first.
    halves: [Box<Snapshot>; 2],
}

impl Window {
    fn new(length: Nanos) -> Self {
        Self { half: Nanos(length.0.div_ceil(2)), age: Nanos::ZERO, halves: Default::default() }
    }

    fn pass(&mut self, time: Nanos) {
        self.age = self.age.saturating_add(time);
        if self.age < self.half {
            return;
        }
        if self.age.0 / 2 >= self.half.0 {
            *self.halves[0] = Snapshot::default();
        }
        self.halves.swap(0, 1);
        *self.halves[0] = Snapshot::default();
        self.age = Nanos::ZERO;
    }

    fn clear(&mut self) {
        self.halves.iter_mut().for_each(|half| **half = Snapshot::default());
    }

    fn add(&mut self, recorded: &Snapshot) {
        self.halves[0].add(recorded);
    }

    fn count(&self) -> u64 {
        self.halves.iter().map(|half| half.count()).sum()
    }

    fn add_to(&self, sum: &mut Snapshot) {
        self.halves.iter().for_each(|half| sum.add(half));
    }

    fn p95(&self, min_samples: u64) -> Option<Nanos> {
        if self.count() < min_samples {
            return None;
        }
        let mut both = Snapshot::default();
        self.add_to(&mut both);
        Some(both.quantile(0.95))
    }
}

#[cfg(test)]
mod tests;
