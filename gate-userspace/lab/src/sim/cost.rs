//! A limit on requests beside a limit on request units.
//!
//! Two callers send equally many requests a second to one store: one reads a single row each time, the other many.
//! To a limit that counts requests they look alike. Either it is wide enough for both, and the large reads fill the
//! store, or it is narrow enough for the store, and refuses small reads for which there was room. A limit in RU
//! tells them apart. All runs meet the same arrivals.

use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::token_bucket::{Limits, Take, take};
use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};
use serde::Serialize;

use super::distribution::Distribution;
use super::engine::{self, Length, Outcome, TypeOutcome, Workload};
use super::parallel::{self, Progress};
use gate_policy::admission::{Admission, Decision, Request};
use gate_policy::cost_model::{Prices, Shape};
use gate_policy::range::{OutOfRange, ensure};

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// Requests a second of each caller. From 1 to 100,000.
    pub per_sec: u32,
    /// Rows that the second caller reads with each request; the first reads one. From 1 to 1,000,000.
    pub rows: u32,
    /// How many requests the store works on at once. From 1 to 1,000.
    pub workers: u32,
    /// Simulated time, from 1 s to an hour. A tenth of it goes before as a warm-up.
    pub lasts: Nanos,
    /// The same seed gives the same figures.
    pub seed: u64,
}

impl Default for Setup {
    /// The command line's defaults.
    fn default() -> Self {
        Self { per_sec: 150, rows: 100_000, workers: 8, lasts: Nanos::from_secs(60), seed: 1 }
    }
}

/// The limit that holds for each caller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// None, and the second caller is silent: what the first sees when alone.
    NoNeighbour,
    /// None.
    Unlimited,
    /// So many requests a second.
    Requests(u32),
    /// So many RU a second.
    RequestUnits(u32),
}

/// The figures of one caller.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Caller {
    /// Refused requests in percent of those sent; 0 where none were sent.
    pub refused_percent: f64,
    /// Response times of admitted requests in milliseconds; `None` where there are none.
    pub p50_ms: Option<f64>,
    /// As `p50_ms`.
    pub p99_ms: Option<f64>,
}

/// The result under one limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The limit, as text: `alone`, `none`, `150 requests/s`, `40000 RU/s`.
    pub limit: String,
    /// The caller that reads one row.
    pub small_reads: Caller,
    /// The caller that reads many.
    pub large_reads: Caller,
    /// The share of the store's time in which it worked, in percent.
    pub utilization_percent: f64,
}

impl Limit {
    /// Its text in a [`Report`].
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::NoNeighbour => "alone".to_owned(),
            Self::Unlimited => "none".to_owned(),
            Self::Requests(per_sec) => format!("{per_sec} requests/s"),
            Self::RequestUnits(per_sec) => format!("{per_sec} RU/s"),
        }
    }
}

impl Setup {
    /// Fails on the first parameter that is out of range.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`], naming it.
    pub fn check(&self) -> Result<(), OutOfRange> {
        ensure((1..=100_000).contains(&self.per_sec), "per-sec", self.per_sec, "from 1 to 100000")?;
        ensure((1..=1_000_000).contains(&self.rows), "rows", self.rows, "from 1 to 1000000")?;
        ensure((1..=1_000).contains(&self.workers), "workers", self.workers, "from 1 to 1000")?;
        let lasts = Nanos::from_secs(1)..=Nanos::from_secs(3_600);
        ensure(lasts.contains(&self.lasts), "for", self.lasts, "from 1s to an hour")
    }

    /// The limits that are compared: a quarter more requests than each caller sends, which nobody exceeds; half of the
    /// requests that the store can answer of both; half of the RU that it can answer.
    #[must_use]
    pub fn limits(&self) -> [Limit; 5] {
        let wide = self.per_sec + self.per_sec.div_ceil(4);
        let pair = self.processing(1) + self.processing(self.rows);
        let fair = (f64::from(self.workers) / pair * HEADROOM).max(1.0) as u32;
        let units = f64::from(self.workers) / self.processing(1) * HEADROOM / 2.0;
        [
            Limit::NoNeighbour,
            Limit::Unlimited,
            Limit::Requests(wide),
            Limit::Requests(fair.min(wide)),
            Limit::RequestUnits(units as u32),
        ]
    }

    /// Requests of all runs together.
    #[must_use]
    pub fn work(&self) -> u64 {
        let length = self.length(2 * self.per_sec);
        self.limits().len() as u64 * (length.warm_up + length.queries)
    }

    /// Runs every limit, in the order of [`limits`](Self::limits).
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn run(&self, progress: &Progress) -> Result<Vec<Report>, OutOfRange> {
        self.check()?;
        let limits = self.limits();
        parallel::run(limits.len(), |index| self.run_under(limits[index], progress)).into_iter().collect()
    }

    fn run_under(&self, limit: Limit, progress: &Progress) -> Result<Report, OutOfRange> {
        let large = if limit == Limit::NoNeighbour { 0.0 } else { f64::from(self.per_sec) };
        let small = f64::from(self.per_sec);
        let processing = |rows| Distribution::exponential(nanos(self.processing(rows)));
        let workload = Workload {
            servers: self.workers as usize,
            per_sec: small + large,
            types: vec![
                (small / (small + large), processing(1)?),
                (large / (small + large), processing(self.rows)?),
            ],
        };
        let policy = PerCaller::new(limit, [1, self.rows]);
        let length = self.length((small + large) as u32);
        let outcome = engine::run(&workload, &policy, self.seed, length, progress);
        Ok(report(limit, &outcome))
    }

    fn length(&self, per_sec: u32) -> Length {
        let queries = (u64::from(per_sec) * self.lasts.0 / NANOS_PER_SEC).max(1);
        Length { warm_up: queries / 10, queries }
    }

    /// The mean processing time of a read of `rows`, in seconds.
    fn processing(&self, rows: u32) -> f64 {
        READ_OF_ONE_ROW + FURTHER_ROW * f64::from(rows - 1)
    }
}

/// A token bucket for each of the two callers, whose requests are the two query types.
struct PerCaller {
    limits: Limits,
    costs: [u32; 2],
    buckets: [AtomicU64; 2],
}

impl PerCaller {
    fn new(limit: Limit, rows: [u32; 2]) -> Self {
        let per_sec = |units: u32| Limits::new(u64::from(units) * 1_000, NANOS_PER_SEC);
        let price = |rows| PRICES.price(Shape { rows, ..Shape::default() }).0;
        let (limits, costs) = match limit {
            Limit::NoNeighbour | Limit::Unlimited => (Limits::UNLIMITED, [0; 2]),
            Limit::Requests(of) => (per_sec(of), [MilliRu::ONE_RU.0; 2]),
            Limit::RequestUnits(of) => (per_sec(of), rows.map(price)),
        };
        Self { limits, costs, buckets: Default::default() }
    }

    fn take(&self, request: Request, now: Nanos) -> Take {
        let caller = caller(request);
        take(self.buckets[caller].load(Ordering::Relaxed), now.0, self.costs[caller], &self.limits)
    }
}

/// The caller that a request is of.
fn caller(request: Request) -> usize {
    usize::from(request.query_type.0).min(1)
}

impl Admission for PerCaller {
    fn decide(&self, request: Request, now: Nanos, draw: f64) -> Decision {
        let decision = self.peek(request, now, draw);
        if let Take::Admit { tat } = self.take(request, now) {
            // One thread decides.
            self.buckets[caller(request)].store(tat, Ordering::Relaxed);
        }
        decision
    }

    fn peek(&self, request: Request, now: Nanos, _draw: f64) -> Decision {
        match self.take(request, now) {
            Take::Admit { .. } => Decision::Admit,
            Take::Refuse { wait_ns } => Decision::Refuse { retry_after: Nanos(wait_ns) },
            Take::TooLarge => Decision::Refuse { retry_after: Nanos::ZERO },
        }
    }

    fn enqueued(&self, _request: Request) {}

    fn dequeued(&self, _request: Request) {}

    fn completed(&self, _request: Request, _processing: Nanos, _now: Nanos) {}

    fn refresh(&self, _now: Nanos) {}
}

fn report(limit: Limit, outcome: &Outcome) -> Report {
    let caller = |of: &TypeOutcome| {
        let quantile = |quantile: f64| {
            (!of.response_us.is_empty()).then(|| of.response_us.value_at_quantile(quantile) as f64 / 1e3)
        };
        let refused_percent = 100.0 * of.rejected as f64 / of.received.max(1) as f64;
        Caller { refused_percent, p50_ms: quantile(0.5), p99_ms: quantile(0.99) }
    };
    Report {
        limit: limit.name(),
        small_reads: caller(&outcome.types[0]),
        large_reads: caller(&outcome.types[1]),
        utilization_percent: 100.0 * outcome.utilization,
    }
}

fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * NANOS_PER_SEC as f64).round() as u64)
}

/// The store's mean time for a read of one row, and for each row more, in seconds.
const READ_OF_ONE_ROW: f64 = 100e-6;
const FURTHER_ROW: f64 = 1e-6;
/// The prices that follow these times: 1 RU for a read of one row, 0.01 RU for each row more.
const PRICES: Prices = Prices { base: MilliRu(990), row: MilliRu(10), kib: MilliRu(0), latency: MilliRu(0) };
/// The share of the store's capacity that limits hand out.
const HEADROOM: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(setup: Setup) -> [Report; 5] {
        setup.run(&Progress::default()).unwrap().try_into().unwrap()
    }

    #[test]
    fn only_request_units_keep_small_reads_whole() {
        let [no_neighbour, none, wide, narrow, units] = run(Setup::default());
        let p99 = |report: &Report| report.small_reads.p99_ms.unwrap();
        // More requests a second than either sends: nothing is refused, and the store is full.
        assert_eq!(wide.small_reads.refused_percent, 0.0, "{wide:?}");
        assert!(p99(&none) > 1_000.0 * p99(&no_neighbour), "{none:?}");
        assert!(p99(&wide) > 1_000.0 * p99(&no_neighbour), "{wide:?}");
        // As many as the store can answer of both: small reads are refused as large ones are.
        assert!(narrow.small_reads.refused_percent > 50.0, "{narrow:?}");
        // In RU: no small read is refused or waits for a large one.
        assert_eq!(units.small_reads.refused_percent, 0.0, "{units:?}");
        assert!(units.large_reads.refused_percent > 70.0, "{units:?}");
        assert!(p99(&units) < 0.01 * p99(&wide), "{units:?} {wide:?}");
    }

    #[test]
    fn equal_reads_are_limited_alike() {
        let [_, _, wide, _, units] = run(Setup { rows: 1, ..Setup::default() });
        assert_eq!((wide.small_reads, wide.large_reads), (units.small_reads, units.large_reads));
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        assert_eq!(run(Setup::default()), run(Setup::default()));
        assert_ne!(run(Setup::default()), run(Setup { seed: 2, ..Setup::default() }));
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let fault = |setup: Setup| setup.check().unwrap_err().field;
        let usual = Setup::default();
        assert_eq!(fault(Setup { per_sec: 0, ..usual }), "per-sec");
        assert_eq!(fault(Setup { rows: 1_000_001, ..usual }), "rows");
        assert_eq!(fault(Setup { workers: 0, ..usual }), "workers");
        assert_eq!(fault(Setup { lasts: Nanos::from_millis(999), ..usual }), "for");
    }
}
