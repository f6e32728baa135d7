//! Adaptive concurrency: how many requests the store gets at once, found by measurement.
//!
//! **Problem.** A limit on the requests at the store protects it and keeps what waits where it can be ordered and refused. The
//! right limit depends on the store, the machine and the load, and changes with them.
//!
//! **Source.** The gradient controller of Envoy's adaptive concurrency filter, as its documentation describes it. Now and then
//! the latency at low concurrency is measured (minRTT). Every tick the latency of the last tick (sampleRTT) is compared with it:
//! `gradient = (minRTT + buffer) / sampleRTT`, within 0.5 and 2, and the limit becomes `gradient * limit + headroom`, where the
//! headroom is the root of the limit. So the limit grows while latency is near its minimum, and shrinks in proportion when
//! requests queue at the store.
//!
//! **Deviations.**
//! - *Classes.* Requests cost differently, and a change of mix is no overload. Each class has a minimum and a sample (a median) of
//!   its own; the gradient is the mean of theirs, weighted by requests.
//! - *Where latency is measured.* gate has a queue of its own before the limit. Latency counts from when a request is sent,
//!   so that this queue does not count as the store's.
//! - *The buffer* is a quarter of the minimum, and at least [`Config::floor`]. A store in memory answers in microseconds, and
//!   batches make it faster: ten times a latency of 50 us is no overload, and holding it to that would cost throughput.
//! - *Use.* The limit grows only if requests found no permit. What is not used, beyond the initial limit, is given up by a
//!   twentieth a tick: a store that stops gets about as many requests as it was used to.
//! - *Lowering in vain.* Latency may come from elsewhere, say a busy machine. Where a limit that was lowered by a quarter let
//!   about a quarter less be answered, nothing had queued at the store: the limit is restored, and kept for a while, each time
//!   twice as long.
//! - *Measuring.* A tick in which no more than [`Config::min`] requests were at the store measures the minimum by itself.
//!   Otherwise the limit is lowered to that for a measurement at most once in [`Config::interval`] plus jitter, and only
//!   while the gradient is below 1: else a smaller minimum would change nothing. A measurement at most doubles a minimum, so that a
//!   hiccup cannot pass for the normal state.
//!
//! **Invariants.** Pure: time and randomness are arguments. The limit stays within [`Config::min`] and [`Config::max`]. No
//! allocation after construction. A `now` before an earlier one counts as that one.

use gate_common::units::Nanos;

use super::range::{OutOfRange, ensure};

/// Parameters. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The lowest limit, at which the minimum is measured; 1 to `initial`.
    pub min: u32,
    /// The limit at the start; up to `max`.
    pub initial: u32,
    /// The highest limit; up to 1,000,000.
    pub max: u32,
    /// The latency that is fine above the minimum, as a share of it; 0 to 10.
    pub buffer: f64,
    /// The latency that is fine above the minimum in any case; up to 10 s.
    pub floor: Nanos,
    /// The time between two measurements; 1 s to 1 h.
    pub interval: Nanos,
    /// The most that is added to the interval at random, as a share of it; 0 to 1.
    pub jitter: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min: 4,
            initial: 20,
            max: 10_000,
            buffer: 0.25,
            floor: Nanos::from_millis(1),
            interval: Nanos::from_secs(60),
            jitter: 0.15,
        }
    }
}

/// Latencies by class, as one thread or all of them have seen them since the last tick.
#[derive(Clone, Debug)]
pub struct Window {
    classes: Box<[Class]>,
}

/// The latencies of one class, in buckets an eighth of a doubling wide.
#[derive(Clone, Debug)]
struct Class {
    total: u32,
    counts: [u32; BUCKETS],
}

impl Window {
    /// For so many classes, at least one. A higher class counts as the last.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        let class = Class { total: 0, counts: [0; BUCKETS] };
        Self { classes: vec![class; classes.max(1)].into_boxed_slice() }
    }

    /// `count` requests of a class took the store `took` each.
    #[inline]
    pub fn record(&mut self, class: usize, took: Nanos, count: u32) {
        let class = class.min(self.classes.len() - 1);
        let class = &mut self.classes[class];
        class.total = class.total.saturating_add(count);
        let bucket = &mut class.counts[bucket(took)];
        *bucket = bucket.saturating_add(count);
    }

    /// Moves all that is in `other` here.
    pub fn take_from(&mut self, other: &mut Self) {
        for (to, from) in self.classes.iter_mut().zip(&mut other.classes) {
            if from.total == 0 {
                continue;
            }
            to.total = to.total.saturating_add(from.total);
            for (to, from) in to.counts.iter_mut().zip(&from.counts) {
                *to = to.saturating_add(*from);
            }
            from.clear();
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.classes.iter_mut().filter(|class| class.total > 0).for_each(Class::clear);
    }

    /// The number of requests in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.classes.iter().map(|class| u64::from(class.total)).sum()
    }

    /// True if nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.total == 0)
    }
}

impl Class {
    fn clear(&mut self) {
        self.total = 0;
        self.counts.fill(0);
    }

    fn median(&self) -> Nanos {
        let mut before = 0_u64;
        let half = u64::from(self.total).div_ceil(2);
        for (bucket, &count) in self.counts.iter().enumerate() {
            before += u64::from(count);
            if before >= half {
                return middle(bucket);
            }
        }
        middle(BUCKETS - 1)
    }
}

/// The events of a tick, beside latencies.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    /// The time.
    pub now: Nanos,
    /// True if a request found no permit.
    pub is_reached: bool,
    /// The most requests that were at the store at once, or more.
    pub peak: usize,
    /// A random number in `[0, 1)`.
    pub draw: f64,
}

/// The controller. See the [module](self).
#[derive(Debug)]
pub struct Gradient {
    config: Config,
    limit: f64,
    /// By class: its latency at low concurrency; zero while it is not known.
    minima: Box<[Nanos]>,
    /// The latencies since the limit was changed last.
    window: Window,
    measuring: Option<Nanos>,
    next_measurement: Nanos,
    /// Where the limit was lowered from, unless it has been raised since.
    lowered_from: Option<Reference>,
    /// For so many ticks the limit is not lowered, and for so many after the next time in vain.
    kept_for: u32,
    keep_next: u32,
    now: Nanos,
}

/// A limit, and how many requests were answered in a tick with it.
#[derive(Clone, Copy, Debug)]
struct Reference {
    limit: f64,
    answered: f64,
}

impl Gradient {
    /// A controller for so many classes, from `now` on.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for a parameter outside of its range.
    pub fn new(config: Config, classes: usize, now: Nanos) -> Result<Self, OutOfRange> {
        let Config { min, initial, max, buffer, floor, interval, jitter } = config;
        ensure((1..=initial).contains(&min), "min", min, "from 1 to initial")?;
        ensure(initial <= max, "initial", initial, "at most max")?;
        ensure(max <= 1_000_000, "max", max, "at most 1,000,000")?;
        ensure((0.0..=10.0).contains(&buffer), "buffer", buffer, "from 0 to 10")?;
        ensure(floor <= Nanos::from_secs(10), "floor", floor, "at most 10s")?;
        let intervals = Nanos::from_secs(1)..=Nanos::from_secs(3_600);
        ensure(intervals.contains(&interval), "interval", interval, "from 1s to 1h")?;
        ensure((0.0..=1.0).contains(&jitter), "jitter", jitter, "from 0 to 1")?;
        Ok(Self {
            config,
            limit: f64::from(initial),
            minima: vec![Nanos::ZERO; classes.max(1)].into_boxed_slice(),
            window: Window::new(classes),
            measuring: None,
            next_measurement: now.saturating_add(interval),
            lowered_from: None,
            kept_for: 0,
            keep_next: FIRST_KEPT,
            now,
        })
    }

    /// The number of requests that may be at the store.
    #[must_use]
    pub fn limit(&self) -> u32 {
        if self.measuring.is_some() { self.config.min } else { self.limit as u32 }
    }

    /// While a measurement lasts, when it began: requests that were sent before do not belong to it.
    #[must_use]
    pub const fn measuring_since(&self) -> Option<Nanos> {
        self.measuring
    }

    /// A tick is over, in which these latencies were seen; `latencies` is empty afterwards. To be called every 100 ms.
    pub fn tick(&mut self, latencies: &mut Window, tick: Tick) {
        self.now = self.now.max(tick.now);
        self.window.take_from(latencies);
        if let Some(since) = self.measuring {
            let is_over = self.now.saturating_sub(since) >= LONGEST_MEASUREMENT;
            if is_over || self.window.len() >= ENOUGH {
                self.measure(tick.draw);
                self.window.clear();
                // Measuring => Steady
                self.measuring = None;
            }
            return;
        }
        if self.window.len() < FEWEST {
            return self.give_up_unused(tick);
        }
        if tick.peak <= self.config.min as usize {
            self.measure(tick.draw);
        }
        let answered = self.window.len() as f64;
        let gradient = self.gradient();
        self.window.clear();
        let scaled = self.limit * gradient;
        let next = (scaled + scaled.sqrt()).clamp(f64::from(self.config.min), f64::from(self.config.max));
        if next < self.limit {
            self.lower(next, answered, tick.is_reached);
        } else {
            self.lowered_from = None;
            if tick.is_reached {
                self.limit = next;
            } else {
                self.give_up_unused(tick);
            }
        }
        if gradient < 1.0 && self.now >= self.next_measurement {
            // Steady => Measuring
            self.measuring = Some(self.now);
        }
    }

    /// The mean of the classes' gradients. A class that is new gets what is seen as its minimum.
    fn gradient(&mut self) -> f64 {
        let mut sum = 0.0;
        let mut weight = 0.0;
        for (class, minimum) in self.window.classes.iter().zip(&mut self.minima) {
            if class.total == 0 {
                continue;
            }
            let sample = class.median();
            *minimum = if *minimum == Nanos::ZERO { sample } else { sample.min(*minimum) };
            let allowed = (minimum.0 as f64 * self.config.buffer).max(self.config.floor.0 as f64);
            let gradient = ((minimum.0 as f64 + allowed) / sample.0.max(1) as f64).clamp(LOWEST, HIGHEST);
            sum += gradient * f64::from(class.total);
            weight += f64::from(class.total);
        }
        if weight > 0.0 { sum / weight } else { 1.0 }
    }

    /// Takes what was seen for the latency at low concurrency.
    fn measure(&mut self, draw: f64) {
        for (class, minimum) in self.window.classes.iter().zip(&mut self.minima) {
            if u64::from(class.total) < FEWEST {
                continue;
            }
            let sample = class.median();
            let most = if *minimum == Nanos::ZERO { sample } else { Nanos(minimum.0.saturating_mul(2)) };
            *minimum = sample.min(most);
        }
        let jitter = self.config.interval.0 as f64 * self.config.jitter * draw;
        self.next_measurement =
            self.now.saturating_add(self.config.interval).saturating_add(Nanos(jitter as u64));
    }

    /// Lowers the limit, or restores it if that has been in vain so far. `answered` requests were answered in this tick.
    fn lower(&mut self, next: f64, answered: f64, is_reached: bool) {
        if self.kept_for > 0 {
            self.kept_for -= 1;
            return;
        }
        let from = *self.lowered_from.get_or_insert(Reference { limit: self.limit, answered });
        let share = self.limit / from.limit;
        if share > LOWERED_ENOUGH {
            self.limit = next;
        } else if is_reached && answered < from.answered * f64::midpoint(1.0, share) {
            // Lowered => Restored
            self.limit = from.limit;
            self.lowered_from = None;
            self.kept_for = self.keep_next;
            self.keep_next = (self.keep_next * 2).min(LONGEST_KEPT);
        } else {
            self.keep_next = FIRST_KEPT;
            self.lowered_from = Some(Reference { limit: self.limit, answered });
            self.limit = next;
        }
    }

    /// Lowers a limit that is far from being reached.
    fn give_up_unused(&mut self, tick: Tick) {
        let initial = f64::from(self.config.initial);
        let used = tick.peak as f64 * 2.0;
        if !tick.is_reached && self.limit > initial.max(used) {
            self.limit = (self.limit * KEPT_PER_TICK).max(initial).max(used);
        }
    }
}

/// The bucket of a duration: the position of its highest bit, and the three bits behind it.
#[inline]
fn bucket(took: Nanos) -> usize {
    let value = took.0.max(1 << FIRST_BIT);
    let high = value.ilog2();
    let index =
        ((high - FIRST_BIT) << SUB_BITS) + (value >> (high - SUB_BITS) & ((1 << SUB_BITS) - 1)) as u32;
    (index as usize).min(BUCKETS - 1)
}

/// The middle of a bucket.
fn middle(bucket: usize) -> Nanos {
    let high = FIRST_BIT + (bucket as u32 >> SUB_BITS);
    let sub = bucket as u64 & ((1 << SUB_BITS) - 1);
    let width = 1_u64 << (high - SUB_BITS);
    Nanos((1 << high) + sub * width + width / 2)
}

/// Shorter durations, below a microsecond, are not told apart, nor longer ones than an hour.
const FIRST_BIT: u32 = 10;
const SUB_BITS: u32 = 3;
const BUCKETS: usize = 32 << SUB_BITS;
/// The bounds of the gradient.
const LOWEST: f64 = 0.5;
const HIGHEST: f64 = 2.0;
/// A median of fewer requests says little; they are counted with the next tick's.
const FEWEST: u64 = 10;
/// As many as Envoy takes for a measurement.
const ENOUGH: u64 = 50;
/// A store that is so slow that it answers fewer in this time is measured by those.
const LONGEST_MEASUREMENT: Nanos = Nanos::from_millis(500);
/// A limit that was lowered to this share shows whether that was in vain.
const LOWERED_ENOUGH: f64 = 0.75;
/// In ticks: half a second, and 13 seconds.
const FIRST_KEPT: u32 = 5;
const LONGEST_KEPT: u32 = 130;
/// Of a limit that is not used: half in 14 ticks.
const KEPT_PER_TICK: f64 = 0.95;

#[cfg(test)]
mod tests;
