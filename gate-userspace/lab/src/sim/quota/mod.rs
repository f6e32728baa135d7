//! How exact each rate-limiting scheme is.
//!
//! Tenants send requests of one request unit to several gates, which share each tenant's limit
//! through a counter. A gate asks nobody before it answers: it reports what it did once in every
//! report interval, at moments spread evenly over the gates, and is told what to refuse until its
//! next report. With the local bucket on, it also has a token bucket of its own for each tenant.
//!
//! The yardstick is an exact shared counter: one token bucket that all gates would ask for every
//! request, on the very same arrivals.

mod arrivals;
mod fleet;
mod gates;
mod tenant;

use gate_common::units::{MilliRu, Nanos};
use gate_limits::Limits;
use serde::Serialize;

pub use self::arrivals::Pattern;
use super::parallel::{self, Progress};
use gate_policy::range::{OutOfRange, ensure};
use gate_policy::rate::Rate;

/// How a limit is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// A debt in the counter's bucket is waited for.
    TokenBucket,
    /// Nothing passes until the next second once the limit is used up.
    FixedWindow,
    /// The share of the last interval's requests that was too much is refused.
    RejectionRate,
    /// Each gate gets a part of the limit, and debts are paid back: the code that gates and owners run ([`gate_fleet`]).
    Shares,
    /// Every request asks the shared counter, and waits.
    RemoteCall,
    /// A gate fetches tokens for 10 ms at the limit when it has none.
    PrefetchedTokens,
    /// The counter is told of one request in 16, at once, as if it were all of them.
    Sampling,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::TokenBucket,
        Self::FixedWindow,
        Self::RejectionRate,
        Self::Shares,
        Self::RemoteCall,
        Self::PrefetchedTokens,
        Self::Sampling,
    ];

    /// Its name on the command line and in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token-bucket",
            Self::FixedWindow => "fixed-window",
            Self::RejectionRate => "rejection-rate",
            Self::Shares => "shares",
            Self::RemoteCall => "remote-call",
            Self::PrefetchedTokens => "prefetched-tokens",
            Self::Sampling => "sampling",
        }
    }
}

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// How the limit is kept.
    pub algorithm: Algorithm,
    /// Each tenant's limit, in requests in the time `per`. From 1 to 1,000,000.
    pub limit: u64,
    /// The time of `limit`. From a second, and for a rejection rate no more, to an hour.
    pub per: Nanos,
    /// A tenant's average offered load, in requests a second. From 1 to 1,000,000.
    pub offered: u64,
    /// Time between two reports of a gate. From 1 ms to a minute.
    pub report_interval: Nanos,
    /// From 1 to 1,000.
    pub gates: u32,
    /// From 1 to 10,000.
    pub tenants: u32,
    /// When a tenant sends.
    pub pattern: Pattern,
    /// Exponent of Zipf's law, by which tenants share what is offered under [`Pattern::Zipf`]. From 0
    /// to 3.
    pub skew: f64,
    /// The burst of a bucket, in time. From 1 ms to an hour.
    pub burst: Nanos,
    /// True if each gate also has a local bucket.
    pub local_bucket: bool,
    /// How long is simulated. From 10 s to a day.
    pub length: Nanos,
    /// The time before which nothing counts as above the limit in a second or in 10 seconds: a fleet learns first where its
    /// requests come in. From 0 to half of `length`.
    pub settling: Nanos,
    /// The same seed gives the same report.
    pub seed: u64,
}

impl Default for Setup {
    /// The command line's defaults.
    fn default() -> Self {
        Self {
            algorithm: Algorithm::TokenBucket,
            limit: 1_000,
            per: Nanos::from_secs(1),
            offered: 3_000,
            report_interval: Nanos::from_millis(100),
            gates: 1,
            tenants: 1,
            pattern: Pattern::Steady,
            skew: 1.0,
            burst: Nanos::from_millis(100),
            local_bucket: true,
            length: Nanos::from_secs(60),
            settling: Nanos::ZERO,
            seed: 1,
        }
    }
}

/// How far above and below its limit the scheme let the worst tenant go.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The scheme.
    pub algorithm: Algorithm,
    /// True if each gate also had a local bucket.
    pub local_bucket: bool,
    /// When tenants sent.
    pub pattern: Pattern,
    /// Requests that arrived, of all tenants.
    pub requests: u64,
    /// Requests that passed, of all tenants.
    pub admitted: u64,
    /// Requests that passed the exact shared counter.
    pub exact_admitted: u64,
    /// The most requests of any tenant that passed within a second, and within 10 seconds.
    pub most_within: MostWithin,
    /// Above the limit, in percent of it.
    pub above_limit_percent: Above,
    /// Below the exact shared counter, in percent of the limit.
    pub below_exact_percent: Below,
    /// The time that a request waited for the shared counter on average, in microseconds, if a question takes 500.
    pub added_latency_us: f64,
}

/// The most requests of any tenant that passed within a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MostWithin {
    /// Any second.
    pub second: u64,
    /// Any 10 seconds.
    pub ten_seconds: u64,
}

/// The most that any tenant got above its limit, in percent of the limit. Zero if it stayed below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Above {
    /// Over any second.
    pub worst_second: f64,
    /// Over any 10 seconds.
    pub worst_10_seconds: f64,
    /// Over the whole run.
    pub overall: f64,
}

/// The most that any tenant got less than under an exact shared counter, in percent of the limit.
/// Zero if it got no less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Below {
    /// Over any whole second of the clock.
    pub worst_second: f64,
    /// Over the whole run.
    pub overall: f64,
}

/// Requests that passed in each tenth of a second, of the first tenant: what a chart shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Requests that arrived.
    pub offered: Vec<u32>,
    /// Requests that passed.
    pub admitted: Vec<u32>,
    /// Requests that passed the exact shared counter.
    pub exact: Vec<u32>,
}

impl Setup {
    /// Fails if something is impossible.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`], naming the field.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let within = |time: Nanos, least: Nanos, most: Nanos| (least..=most).contains(&time);
        let millisecond = Nanos::from_millis(1);
        let [second, minute, hour] = [1, 60, 3_600].map(Nanos::from_secs);
        let rate = "from 1 to 1000000 requests a second";
        ensure((1..=1_000_000).contains(&self.limit), "limit", self.limit, "from 1 to 1000000 requests")?;
        let is_per_second = self.per == second || self.algorithm != Algorithm::RejectionRate;
        ensure(
            is_per_second && within(self.per, second, hour),
            "per",
            self.per,
            "1s, or up to 1h but of a rejection rate",
        )?;
        ensure((1..=1_000_000).contains(&self.offered), "offered", self.offered, rate)?;
        let reports = within(self.report_interval, millisecond, minute);
        ensure(reports, "report_interval", self.report_interval, "from 1ms to 60s")?;
        ensure((1..=1_000).contains(&self.gates), "gates", self.gates, "from 1 to 1000")?;
        ensure((1..=10_000).contains(&self.tenants), "tenants", self.tenants, "from 1 to 10000")?;
        ensure((0.0..=3.0).contains(&self.skew), "skew", self.skew, "from 0 to 3")?;
        ensure(within(self.burst, millisecond, hour), "burst", self.burst, "from 1ms to 1h")?;
        let lasts = within(self.length, Nanos::from_secs(10), Nanos::from_secs(86_400));
        ensure(lasts, "length", self.length, "from 10s to 24h")?;
        ensure(self.settling.0 <= self.length.0 / 2, "settling", self.settling, "at most half the length")?;
        let counts = self.algorithm != Algorithm::RejectionRate
            || u128::from(self.limit) * u128::from(self.report_interval.0) >= 1_000_000_000;
        ensure(counts, "report_interval", self.report_interval, "long enough for one request at the limit")?;
        let one_fits = u128::from(self.limit) * u128::from(self.burst.0) >= u128::from(self.per.0);
        ensure(one_fits, "burst", self.burst, "long enough for one request at the limit")?;
        ensure(self.requests() <= MAX_REQUESTS, "offered", self.offered, "at most 10^10 requests in all")
    }

    /// The limit as a bucket's, without debts.
    fn limits(&self) -> Limits {
        let rate = Rate::within(self.limit * u64::from(MilliRu::ONE_RU.0), self.per);
        // The rate is rounded down: as much in the burst all the same.
        let burst = u128::from(self.limit) * 1_000 * u128::from(self.burst.0) / u128::from(self.per.0);
        Limits { rate, burst_ns: rate.time_for(burst as u64), max_debt_ns: 0, window: None }
    }

    /// Requests that will arrive, of all tenants, about.
    #[must_use]
    pub fn requests(&self) -> u64 {
        let requests = u128::from(self.offered) * u128::from(self.tenants) * u128::from(self.length.0);
        u64::try_from(requests / 1_000_000_000).unwrap_or(u64::MAX)
    }

    /// Simulates every tenant, on all cores.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if something is impossible.
    pub fn run(&self, progress: &Progress) -> Result<Report, OutOfRange> {
        self.check()?;
        let shares = self.shares();
        let outcomes = parallel::run(self.tenants as usize, |tenant| {
            let outcome =
                tenant::run(self, tenant as u64, self.offered as f64 * shares[tenant], &mut |_, _, _| {});
            progress.add(outcome.requests);
            outcome
        });
        Ok(self.report(&outcomes))
    }

    /// The first tenant's first `tenths` tenths of a second.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if something is impossible.
    pub fn trace(&self, tenths: usize) -> Result<Trace, OutOfRange> {
        self.check()?;
        let mut trace = Trace { offered: vec![0; tenths], admitted: vec![0; tenths], exact: vec![0; tenths] };
        let offered = self.offered as f64 * self.shares()[0];
        tenant::run(self, 0, offered, &mut |now, admits, exact| {
            let tenth = (now.0 / 100_000_000) as usize;
            if tenth < tenths {
                trace.offered[tenth] += 1;
                trace.admitted[tenth] += u32::from(admits);
                trace.exact[tenth] += u32::from(exact);
            }
        });
        Ok(trace)
    }

    /// Each tenant's offered load, as a multiple of the average.
    fn shares(&self) -> Vec<f64> {
        let skew = if self.pattern == Pattern::Zipf { self.skew } else { 0.0 };
        let weights: Vec<f64> = (1..=self.tenants).map(|rank| f64::from(rank).powf(-skew)).collect();
        let mean = weights.iter().sum::<f64>() / f64::from(self.tenants);
        weights.into_iter().map(|weight| weight / mean).collect()
    }

    fn report(&self, outcomes: &[tenant::Outcome]) -> Report {
        let limit = self.limit as f64 * 1e9 / self.per.0 as f64;
        let seconds = self.length.0 as f64 / 1e9;
        let worst =
            |percent: &dyn Fn(&tenant::Outcome) -> f64| outcomes.iter().map(percent).fold(0.0, f64::max);
        let above = |units: u64, seconds: f64| (units as f64 / (limit * seconds) - 1.0) * 100.0;
        let sum = |units: fn(&tenant::Outcome) -> u64| outcomes.iter().map(units).sum::<u64>();
        let most = |units: fn(&tenant::Outcome) -> u64| outcomes.iter().map(units).max().unwrap_or(0);
        Report {
            algorithm: self.algorithm,
            local_bucket: self.local_bucket,
            pattern: self.pattern,
            requests: sum(|tenant| tenant.requests),
            admitted: sum(|tenant| tenant.admitted),
            exact_admitted: sum(|tenant| tenant.exact),
            most_within: MostWithin {
                second: most(|tenant| tenant.most_in_second),
                ten_seconds: most(|tenant| tenant.most_in_10_seconds),
            },
            above_limit_percent: Above {
                worst_second: worst(&|tenant| above(tenant.most_in_second, 1.0)),
                worst_10_seconds: worst(&|tenant| above(tenant.most_in_10_seconds, 10.0)),
                overall: worst(&|tenant| above(tenant.admitted, seconds)),
            },
            added_latency_us: sum(|tenant| tenant.waited.0) as f64
                / sum(|tenant| tenant.requests).max(1) as f64
                / 1e3,
            below_exact_percent: Below {
                worst_second: worst(&|tenant| tenant.most_missed_in_second as f64 / limit * 100.0),
                overall: worst(&|tenant| {
                    tenant.exact.saturating_sub(tenant.admitted) as f64 / (limit * seconds) * 100.0
                }),
            },
        }
    }
}

/// Minutes of simulation, not hours.
const MAX_REQUESTS: u64 = 10_000_000_000;

#[cfg(test)]
mod tests;
