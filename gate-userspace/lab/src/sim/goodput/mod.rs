//! Goodput without objectives: how much of what a store can do is done for clients that still wait, in an overload that is
//! refused, dropped or reordered in several ways.
//!
//! Requests of the published study arrive before a store of as many processes, in its mix. A client waits for a while and
//! then leaves, which nobody tells the store: an answer later than that has been worked on for nothing. A request that has
//! waited so long before its turn comes is refused in any case, as `deadline` has gate do.
//!
//! A run has three parts: a lull, an overload, and the lull again. Measured are the overload after its first
//! [`Setup::SETTLING`], and how long after it everything is served again.

mod disciplines;
mod engine;

use gate_common::units::Nanos;
use serde::Serialize;

use super::parallel::{self, Progress};
use super::scenario::{Scenario, check_load};
use gate_policy::range::{OutOfRange, ensure};

/// How an overload is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// By the clients' patience alone, in order of arrival.
    Deadline,
    /// By `CoDel`, in order of arrival.
    Codel,
    /// By `CoDel`, and the newest first while it drops: adaptive LIFO.
    CodelLifo,
    /// By refusing a share of arrivals, which a controller sets by what comes in and goes out (Uber's Cinnamon).
    Pid,
    /// By a threshold on priorities, which follows how long requests wait (WeChat's DAGOR).
    Dagor,
    /// By refusing a share of arrivals, so that the store is busy at most 0.95 of the time (the Bouncer paper's baseline).
    AcceptFraction,
    /// By the queue's expected wait, at most 15 ms (the Bouncer paper's baseline).
    MaxQueueWait,
}

impl Discipline {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Deadline,
        Self::Codel,
        Self::CodelLifo,
        Self::Pid,
        Self::Dagor,
        Self::AcceptFraction,
        Self::MaxQueueWait,
    ];

    /// Its name on the command line and in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Codel => "codel",
            Self::CodelLifo => "codel+lifo",
            Self::Pid => "pid",
            Self::Dagor => "dagor",
            Self::AcceptFraction => "accept-fraction",
            Self::MaxQueueWait => "maxqwt",
        }
    }
}

/// A comparison.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The types of requests, and the store.
    pub scenario: Scenario,
    /// How overloads are met.
    pub disciplines: Vec<Discipline>,
    /// Offered load in the overload, times what the store can do.
    pub loads: Vec<f64>,
    /// How long a client waits, from 1 ms to 60 s.
    pub patience: Nanos,
    /// How long each of the three parts lasts, from 10 s to an hour.
    pub part: Nanos,
    /// The same seed gives the same figures.
    pub seed: u64,
}

/// The result of an overload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// How it was met.
    pub discipline: &'static str,
    /// Offered load, times what the store can do.
    pub load: f64,
    /// Work that was done for clients that still waited, of what the store can do, in percent.
    pub goodput_percent: f64,
    /// Work that was done for clients that had left, likewise.
    pub wasted_percent: f64,
    /// Requests that were refused at once or while they waited, in percent.
    pub refused_percent: f64,
    /// Response times of requests that were answered in time, in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// How long after the overload 99 of 100 requests are answered in time again, second by second; nothing if that never is.
    pub recovered_after_s: Option<u64>,
}

impl Setup {
    /// The offered load before and after an overload.
    pub const LULL: f64 = 0.7;
    /// The beginning of an overload that is not measured.
    pub const SETTLING: Nanos = Nanos::from_secs(5);

    /// Runs it, each discipline under each load.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`], naming the first parameter that is.
    pub fn run(&self, progress: &Progress) -> Result<Vec<Report>, OutOfRange> {
        let patience = Nanos::from_millis(1)..=Nanos::from_secs(60);
        ensure(patience.contains(&self.patience), "patience", self.patience, "from 1ms to 60s")?;
        let part = Nanos::from_secs(10)..=Nanos::from_secs(3_600);
        ensure(part.contains(&self.part), "part", self.part, "from 10s to 1h")?;
        self.loads.iter().try_for_each(|&load| check_load("load", load))?;
        let runs: Vec<(Discipline, f64)> = self
            .loads
            .iter()
            .flat_map(|&load| self.disciplines.iter().map(move |&discipline| (discipline, load)))
            .collect();
        let reports = parallel::run(runs.len(), |index| {
            let (discipline, load) = runs[index];
            let report = engine::run(self, discipline, load);
            progress.add(1);
            report
        });
        reports.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
