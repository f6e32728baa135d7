//! A store that becomes slow for a while, and who gives way.
//!
//! Tenants of four tiers send requests of two types through a gate to a store of some workers.
//! The critical tenants are below their quota; the others offer what their quota allows (in
//! [`Scenario::MixShift`], only after it), in bursts of at most 100 ms. Something happens to the store, and is over some time later, or stays. What is
//! compared is the gate without a queue discipline and without shedding, with each, and with both.
//!
//! Nobody retries: what is refused is gone. A request that is answered later than the deadline is no
//! good to anyone, but has been worked on all the same.

mod engine;

use gate_common::units::Nanos;
use serde::Serialize;

use super::distribution::Distribution;
use super::parallel::{self, Progress};
use gate_policy::Tier;
use gate_policy::codel::Law;
use gate_policy::range::{OutOfRange, ensure};
use gate_policy::shedding::Transition;

/// An event at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Workers fail, and come back.
    CapacityDrop,
    /// Every request takes three times as long from now on, and there is room for that.
    LatencyStep,
    /// Slow queries become four times as frequent from now on, and there is room for that.
    MixShift,
    /// Every request takes four times as long from now on: 200 instead of 50 microseconds.
    TinyLatency,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::CapacityDrop, Self::LatencyStep, Self::MixShift, Self::TinyLatency];

    /// Its name on the command line and in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CapacityDrop => "capacity-drop",
            Self::LatencyStep => "latency-step",
            Self::MixShift => "mix-shift",
            Self::TinyLatency => "tiny-latency",
        }
    }
}

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// The event at the store.
    pub scenario: Scenario,
    /// How many requests the store works on at once, and how many the gate has outstanding. From 10
    /// to 10,000.
    pub workers: u32,
    /// The store's capacity in a capacity drop, as a share of the offered load. Above 0, up to 1.
    pub drop_to: f64,
    /// The critical tier's share of what is offered; the rest is shared by the lower tiers as 5 to 4
    /// to 3. Above 0, below 1.
    pub critical: f64,
    /// When it happens, after a beginning in which the gate learns what is usual. From 10 s to an hour.
    pub begins: Nanos,
    /// How long it lasts, from 10 s to an hour; but for a capacity drop, it lasts.
    pub lasts: Nanos,
    /// How long is simulated after that. From 10 s to an hour.
    pub after: Nanos,
    /// How `CoDel` drops.
    pub law: Law,
    /// The same seed gives the same report.
    pub seed: u64,
}

impl Default for Setup {
    /// The command line's defaults.
    fn default() -> Self {
        Self {
            scenario: Scenario::CapacityDrop,
            workers: 100,
            drop_to: 0.6,
            critical: 0.4,
            begins: Nanos::from_secs(60),
            lasts: Nanos::from_secs(60),
            after: Nanos::from_secs(60),
            law: Law::Overload,
            seed: 1,
        }
    }
}

/// The mechanisms that are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Mechanisms {
    /// A queue by tiers with `CoDel`, rather than one for all.
    pub codel: bool,
    /// Latency ratio and shedding.
    pub shedding: bool,
}

impl Mechanisms {
    /// None, each, both.
    pub const ALL: [Self; 4] = [
        Self { codel: false, shedding: false },
        Self { codel: true, shedding: false },
        Self { codel: false, shedding: true },
        Self { codel: true, shedding: true },
    ];

    /// Its name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.codel, self.shedding) {
            (false, false) => "none",
            (true, false) => "codel",
            (false, true) => "shedding",
            (true, true) => "codel+shedding",
        }
    }
}

/// A number for each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ByTier {
    /// Gives way last.
    pub critical: f64,
    /// The default of tenants.
    pub standard: f64,
    /// Can wait.
    pub batch: f64,
    /// Gives way first.
    pub best_effort: f64,
}

impl ByTier {
    fn of(number: impl Fn(Tier) -> f64) -> Self {
        let [critical, standard, batch, best_effort] = Tier::ALL.map(number);
        Self { critical, standard, batch, best_effort }
    }

    /// One tier's number.
    #[must_use]
    pub const fn get(&self, tier: Tier) -> f64 {
        match tier {
            Tier::Critical => self.critical,
            Tier::Standard => self.standard,
            Tier::Batch => self.batch,
            Tier::BestEffort => self.best_effort,
        }
    }
}

/// The result of a run with some mechanisms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Which were on.
    pub mechanisms: &'static str,
    /// Requests that were answered in time, in percent of those offered, before it happened (but for
    /// the first ten seconds) ...
    pub goodput_percent_before: ByTier,
    /// ... while it lasted ...
    pub goodput_percent_during: ByTier,
    /// ... and after (but for the first ten seconds).
    pub goodput_percent_after: ByTier,
    /// Lowest latency ratio while it lasted; `None` if there was no signal.
    pub lowest_ratio: Option<f64>,
    /// Highest multiplier of each tier.
    pub highest_multiplier: ByTier,
    /// How long each tier's multiplier was above 1, in seconds.
    pub shed_seconds: ByTier,
    /// From the end of a capacity drop, or the beginning of what lasts, until all multipliers were back
    /// to 1 for good, in seconds; `None` if they are not.
    pub restored_after_seconds: Option<f64>,
    /// Multipliers that rose later than a second after the end of a capacity drop.
    pub raised_after_recovery: u32,
    /// Every change of a tier's treatment.
    pub transitions: Vec<Change>,
    /// The points of a chart, at every tick of 100 ms.
    #[serde(skip)]
    pub trace: Vec<TracePoint>,
}

/// A [`Transition`] with its time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Since the beginning.
    pub seconds: f64,
    /// The tier that is treated differently from now on.
    pub tier: Tier,
    /// Its name.
    pub name: &'static str,
    /// Why.
    pub cause: &'static str,
    /// The tier's multiplier from now on.
    pub multiplier: u32,
}

impl Change {
    fn new(now: Nanos, transition: &Transition) -> Self {
        Self {
            seconds: seconds(now),
            tier: transition.tier,
            name: transition.name(),
            cause: transition.cause.name(),
            multiplier: transition.to.multiplier().0 >> 16,
        }
    }
}

/// How things stood at a tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TracePoint {
    /// Since the beginning.
    pub seconds: f64,
    /// The latency ratio, if there was a signal.
    pub ratio: Option<f64>,
    /// Each tier's multiplier.
    pub multipliers: ByTier,
    /// Good answers since the last tick, in percent of what the tier offered.
    pub goodput_percent: ByTier,
}

impl Setup {
    /// Fails if something is impossible.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`], naming the field.
    pub fn check(&self) -> Result<(), OutOfRange> {
        ensure((10..=10_000).contains(&self.workers), "workers", self.workers, "from 10 to 10000")?;
        let drops = self.drop_to > 0.0 && self.drop_to <= 1.0;
        ensure(drops, "drop_to", self.drop_to, "above 0, up to 1")?;
        let shares = self.critical > 0.0 && self.critical < 1.0;
        ensure(shares, "critical", self.critical, "above 0, below 1")?;
        for (field, time) in [("begins", self.begins), ("lasts", self.lasts), ("after", self.after)] {
            let fits = (Nanos::from_secs(10)..=Nanos::from_secs(3_600)).contains(&time);
            ensure(fits, field, time, "from 10s to 1h")?;
        }
        Ok(())
    }

    /// The total that [`Self::run`] reports as progress.
    #[must_use]
    pub fn work(&self) -> u64 {
        Mechanisms::ALL.len() as u64 * self.length().0 / 1_000_000_000
    }

    /// Simulates with every set of [`Mechanisms`], on all cores, on the very same requests.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if something is impossible.
    pub fn run(&self, progress: &Progress) -> Result<Vec<Report>, OutOfRange> {
        self.check()?;
        let runs = Mechanisms::ALL;
        Ok(parallel::run(runs.len(), |run| engine::run(self, runs[run], progress)))
    }

    fn length(&self) -> Nanos {
        self.ends().saturating_add(self.after)
    }

    /// When it is over, if it ever is.
    fn ends(&self) -> Nanos {
        self.begins.saturating_add(self.lasts)
    }

    /// The store as it is at first, and what becomes of it.
    fn store(&self) -> Store {
        let millis = |mean: f64, median: f64| {
            let nanos = |millis: f64| Nanos((millis * 1e6) as u64);
            Distribution::lognormal(nanos(mean), nanos(median)).expect("constants in range")
        };
        let usual = Store {
            types: [(0.9, millis(2.0, 1.5)), (0.1, millis(20.0, 15.0))],
            utilization: 0.75,
            slow_share: 0.1,
            slowness: 1.0,
            workers: self.workers,
        };
        match self.scenario {
            Scenario::CapacityDrop => {
                let left = f64::from(self.workers) * usual.utilization * self.drop_to;
                Store { workers: (left as u32).max(1), ..usual }
            }
            // Little enough load that the slow store is not busier than the usual one.
            Scenario::LatencyStep => Store { slowness: 3.0, utilization: 0.2, ..usual },
            Scenario::MixShift => Store { slow_share: 0.4, utilization: 0.3, ..usual },
            Scenario::TinyLatency => Store {
                types: [(0.9, millis(0.04, 0.04)), (0.1, millis(0.06, 0.06))],
                slowness: 4.0,
                utilization: 0.18,
                ..usual
            },
        }
    }
}

/// A store: usual, and what happens to it.
#[derive(Clone, Copy, Debug)]
struct Store {
    /// Of fast and slow queries, their usual share and their usual processing times.
    types: [(f64, Distribution); 2],
    /// Busy workers over all, as usual.
    utilization: f64,
    /// The share of slow queries when it has happened.
    slow_share: f64,
    /// How many times as long processing takes then.
    slowness: f64,
    /// Workers that are left then.
    workers: u32,
}

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

#[cfg(test)]
mod tests;
