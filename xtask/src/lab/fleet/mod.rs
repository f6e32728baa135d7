//! The lab of several gates that share their limits, on loopback: an owner of limits is killed in view.
//!
//! ```text
//!   gate load: greedy, polite ──► gate-1, gate-2, gate-3 ──► gate store
//!                                 │ reports, shares
//!   gate load ──► Envoy ─► gate-1 ▼
//!                                 two owners (gate quota run) ──► etcd: who they are, and the limits
//! ```
//!
//! - [`etcd`], [`owner`], [`envoy`]: how each is started; shared with the tests.
//! - `programs`: all of them; `limits`: what they share; `traffic`: who asks for it.
//! - `schedule`: when an owner is killed; `watch`: what happens then.
//! - `measurement`: what was given out, and the claims; `report`: the output.

pub mod envoy;
pub mod etcd;
mod limits;
mod measurement;
pub mod owner;
mod programs;
mod report;
mod schedule;
mod traffic;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use self::programs::Fleet;
use self::schedule::SHORTEST;
use self::watch::Watch;
use super::{stop_signals, story};

/// How the lab runs, and where its results go.
#[derive(Debug)]
pub struct FleetLab {
    /// The gate that runs in it.
    pub gate: PathBuf,
    /// How long; `None` until Ctrl-C.
    pub duration: Option<Duration>,
    /// Where the results are written as JSON.
    pub json: Option<PathBuf>,
    /// Where the run is drawn, as SVG.
    pub plot: Option<PathBuf>,
}

impl FleetLab {
    /// Checks that a run may be so long.
    ///
    /// # Errors
    ///
    /// If an owner could not be replaced in that time.
    pub fn check(duration: Option<Duration>) -> Result<()> {
        let is_enough = duration.is_none_or(|duration| duration >= SHORTEST);
        ensure!(
            is_enough,
            "a fleet takes at least {} s: an owner is killed, and replaced",
            SHORTEST.as_secs()
        );
        Ok(())
    }

    /// Starts the fleet, shows it, and ends it again.
    ///
    /// # Errors
    ///
    /// If a program does not start, dies or fails, with what it said last, or a claim does not hold. Nothing is left behind.
    pub fn run(&self) -> Result<()> {
        let stop = stop_signals()?;
        let mut fleet = Fleet::open(&self.gate)?;
        fleet.introduce();
        let mut watch = Watch::begin(&self.gate, self.duration)?;
        let is_whole = watch.run(&mut fleet, &stop)?;
        let (summary, chart) = watch.end()?;
        print!("\n{summary}");
        drop(fleet);
        let claim = summary.measurement.claim(is_whole);
        if let Some(file) = &self.json {
            let text = serde_json::to_string_pretty(&summary.json(&claim))?;
            std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        if self.plot.is_some() {
            story::draw(&[], &[chart], self.plot.as_deref())?;
        }
        match claim {
            Err(broken) => bail!("what the lab claims does not hold:\n  {broken}"),
            Ok(()) if summary.measurement.is_enough() => println!("holds"),
            Ok(()) => println!("ended before there was anything to claim"),
        }
        Ok(())
    }
}
