//! Adaptive concurrency: a store that becomes slower for a while and is flooded afterwards, with the number of requests that it gets
//! at once measured, fixed or unlimited.
//!
//! The store works on some requests at once; what it gets beyond waits in its own queue, where nobody can order or refuse it.
//! Before the limit waits gate's queue, which refuses what has waited longer than a deadline.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use gate_common::units::Nanos;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::rng::Rng;
use gate_policy::gradient::{Config, Gradient, Tick, Window};
use gate_policy::range::{OutOfRange, ensure};

/// How many requests the store gets at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// As many as measurement says.
    Auto,
    /// So many.
    Fixed(u32),
    /// All.
    Off,
}

/// A run of a minute.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How many requests the store gets at once.
    pub limit: Limit,
    /// How many it works on at once; 1 to 1,000.
    pub workers: u32,
    /// How long it works on one, in the mean.
    pub service_time: Nanos,
    /// Offered load, as a share of what the store can do; above 0, at most 10.
    pub load: f64,
    /// The same seed gives the same figures.
    pub seed: u64,
}

/// The events of half a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slice {
    /// When it began.
    pub from_seconds: f64,
    /// The limit at its end; nothing without one.
    pub limit: Option<u32>,
    /// Requests in the store's own queue at its end.
    pub waiting_at_store: usize,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were refused for the deadline.
    pub refused: u64,
    /// Response times of those answered, in milliseconds; nothing if there are none.
    pub p50_ms: Option<f64>,
    /// The 99th percentile.
    pub p99_ms: Option<f64>,
}

impl Setup {
    /// Runs it.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`], naming the first parameter that is.
    pub fn run(&self) -> Result<Vec<Slice>, OutOfRange> {
        ensure((1..=1_000).contains(&self.workers), "workers", self.workers, "from 1 to 1,000")?;
        ensure(self.load > 0.0 && self.load <= 10.0, "load", self.load, "above 0, at most 10")?;
        let times = Nanos::from_micros(1)..=Nanos::from_secs(1);
        ensure(times.contains(&self.service_time), "service_time", self.service_time, "from 1us to 1s")?;
        let gradient = Gradient::new(Config::default(), 1, Nanos::ZERO)?;
        Ok(Run::new(self, gradient).run())
    }

    /// The factors of service times and of arrivals at `now`.
    fn phase(now: Nanos) -> (f64, f64) {
        match now {
            _ if (SLOW_FROM..SLOW_UNTIL).contains(&now) => (4.0, 1.0),
            _ if (FLOOD_FROM..FLOOD_UNTIL).contains(&now) => (1.0, 4.0),
            _ => (1.0, 1.0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    /// A request is done that came and was sent then.
    Done {
        came: Nanos,
        sent: Nanos,
    },
    Tick,
}

struct Run<'s> {
    setup: &'s Setup,
    gradient: Gradient,
    window: Window,
    events: BinaryHeap<Reverse<(Nanos, Event)>>,
    rng: [Rng; 3],
    /// When requests in gate's queue came, and those in the store's own: when they came and were sent.
    queue: VecDeque<Nanos>,
    at_store: VecDeque<(Nanos, Nanos)>,
    working: u32,
    is_reached: bool,
    peak: usize,
    answered: Histogram<u64>,
    refused: u64,
}

impl<'s> Run<'s> {
    fn new(setup: &'s Setup, gradient: Gradient) -> Self {
        let first = [(Nanos::ZERO, Event::Arrival), (TICK, Event::Tick)];
        Self {
            setup,
            gradient,
            window: Window::new(1),
            events: first.into_iter().map(Reverse).collect(),
            rng: std::array::from_fn(|stream| Rng::new(setup.seed, stream as u64)),
            queue: VecDeque::new(),
            at_store: VecDeque::new(),
            working: 0,
            is_reached: false,
            peak: 0,
            answered: Histogram::new(3).expect("three digits are fine"),
            refused: 0,
        }
    }

    fn run(mut self) -> Vec<Slice> {
        let mut slices = Vec::new();
        let mut ticks = 0;
        while let Some(Reverse((now, event))) = self.events.pop()
            && now < END
        {
            match event {
                Event::Arrival => self.arrive(now),
                Event::Done { came, sent } => self.done(now, came, sent),
                Event::Tick => {
                    self.tick(now);
                    ticks += 1;
                    if ticks % TICKS == 0 {
                        slices.push(self.slice(now));
                    }
                }
            }
        }
        slices
    }

    fn limit(&self) -> usize {
        match self.setup.limit {
            Limit::Auto => self.gradient.limit() as usize,
            Limit::Fixed(limit) => limit as usize,
            Limit::Off => usize::MAX,
        }
    }

    fn sent(&self) -> usize {
        self.at_store.len() + self.working as usize
    }

    fn arrive(&mut self, now: Nanos) {
        let (_, arrivals) = Setup::phase(now);
        let capacity = f64::from(self.setup.workers) / (self.setup.service_time.0 as f64 / 1e9);
        let gap = self.rng[0].poisson_gap(capacity * self.setup.load * arrivals);
        self.events.push(Reverse((now.saturating_add(gap), Event::Arrival)));
        self.queue.push_back(now);
        self.dispatch(now);
    }

    fn dispatch(&mut self, now: Nanos) {
        while let Some(&came) = self.queue.front() {
            if now.saturating_sub(came) > DEADLINE {
                self.refused += 1;
            } else if self.sent() < self.limit() {
                self.at_store.push_back((came, now));
            } else {
                self.is_reached = true;
                break;
            }
            self.queue.pop_front();
        }
        self.peak = self.peak.max(self.sent());
        while self.working < self.setup.workers
            && let Some((came, sent)) = self.at_store.pop_front()
        {
            let (slower, _) = Setup::phase(now);
            let took = self.setup.service_time.0 as f64 * slower * self.rng[1].exponential();
            let done = now.saturating_add(Nanos(took as u64));
            self.events.push(Reverse((done, Event::Done { came, sent })));
            self.working += 1;
        }
    }

    fn done(&mut self, now: Nanos, came: Nanos, sent: Nanos) {
        self.working -= 1;
        self.window.record(0, now.saturating_sub(sent), 1);
        // It grows with what is recorded.
        let _ = self.answered.record(now.saturating_sub(came).0 / 1_000);
        self.dispatch(now);
    }

    fn tick(&mut self, now: Nanos) {
        let is_reached = std::mem::take(&mut self.is_reached);
        let sent = self.sent();
        let peak = std::mem::replace(&mut self.peak, sent);
        let draw = self.rng[2].unit();
        self.gradient.tick(&mut self.window, Tick { now, is_reached, peak, draw });
        self.dispatch(now);
        self.events.push(Reverse((now.saturating_add(TICK), Event::Tick)));
    }

    fn slice(&mut self, now: Nanos) -> Slice {
        let at = |quantile| {
            (!self.answered.is_empty()).then(|| self.answered.value_at_quantile(quantile) as f64 / 1e3)
        };
        let slice = Slice {
            from_seconds: now.saturating_sub(SLICE).0 as f64 / 1e9,
            limit: u32::try_from(self.limit()).ok(),
            waiting_at_store: self.at_store.len(),
            answered: self.answered.len(),
            refused: std::mem::take(&mut self.refused),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
        };
        self.answered.reset();
        slice
    }
}

const TICK: Nanos = Nanos::from_millis(100);
/// In a slice.
const TICKS: u32 = 5;
const SLICE: Nanos = Nanos::from_millis(500);
/// A request that has waited longer in gate's queue is refused.
const DEADLINE: Nanos = Nanos::from_millis(100);
/// Service times are four times as long.
pub const SLOW_FROM: Nanos = Nanos::from_secs(15);
const SLOW_UNTIL: Nanos = Nanos::from_secs(25);
/// Four times as many requests come.
pub const FLOOD_FROM: Nanos = Nanos::from_secs(40);
const FLOOD_UNTIL: Nanos = Nanos::from_secs(50);
const END: Nanos = Nanos::from_millis(60_050);

#[cfg(test)]
mod tests {
    use super::*;

    fn run(limit: Limit) -> Vec<Slice> {
        let service_time = Nanos::from_millis(1);
        Setup { limit, workers: 16, service_time, load: 0.7, seed: 1 }.run().unwrap()
    }

    fn at(slices: &[Slice], seconds: std::ops::Range<usize>) -> &[Slice] {
        &slices[2 * seconds.start..2 * seconds.end]
    }

    #[test]
    fn the_measured_limit_costs_nothing_and_bounds_the_stores_queue() {
        let [auto, off] = [Limit::Auto, Limit::Off].map(run);
        assert_eq!(auto, run(Limit::Auto), "the same seed, the same figures");
        assert_eq!(auto.len(), 120);
        let answered = |slices: &[Slice]| slices.iter().map(|slice| slice.answered).sum::<u64>() as f64;
        let quiet = [&auto, &off].map(|slices| answered(at(slices, 1..15)));
        assert!(quiet[0] > 0.99 * quiet[1], "{quiet:?}");
        // What is offered beyond what it can do waits in gate, and is refused there.
        let longest = |slices: &[Slice]| slices.iter().map(|slice| slice.waiting_at_store).max().unwrap();
        assert!(longest(at(&off, 41..50)) > 10_000);
        assert!(longest(at(&auto, 41..50)) < 200, "{}", longest(at(&auto, 41..50)));
        let flood = answered(at(&auto, 41..50)) / 9.0;
        assert!(flood > 0.95 * 16_000.0, "{flood} a second of 16,000");
        // And afterwards all is as before.
        assert!(at(&auto, 53..60).iter().all(|slice| slice.refused == 0));
        assert!(at(&auto, 53..60).iter().all(|slice| slice.p50_ms.is_some_and(|ms| ms < 3.0)));
    }

    #[test]
    fn parameters_outside_of_their_ranges_are_named() {
        let good =
            Setup { limit: Limit::Auto, workers: 1, service_time: Nanos::from_millis(1), load: 1.0, seed: 1 };
        let field = |setup: Setup| setup.run().unwrap_err().field;
        assert_eq!(field(Setup { workers: 0, ..good }), "workers");
        assert_eq!(field(Setup { load: f64::NAN, ..good }), "load");
        assert_eq!(field(Setup { service_time: Nanos::ZERO, ..good }), "service_time");
    }
}
