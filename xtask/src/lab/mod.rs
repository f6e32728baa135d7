//! The lab: a gate at the interface between a few tenants and a store, on a network of its own.
//!
//! ```text
//!   client namespace                       server namespace
//!   gate load: polite, bursty, hostile ──► client0 ═ veth ═ gate0 (XDP) ──► gate store
//!   gate load: proxied, over TCP       ──►                     └──► gate run ──► ┘
//!   gate peer (receives XDP's replies)
//! ```
//!
//! Without root, [`loopback`] is its proxied half. [`fleet`] is another lab, of several gates.
//!
//! - [`net`]: the namespaces and the pair between them; shared with the tests.
//! - [`process`]: a program that runs in them; shared with the tests.
//! - [`tenants`]: who asks for what.
//! - [`programs`]: their programs, and how they are started and ended.
//! - [`counts`], [`report`]: the gate's counters, and the output made from them.
//! - [`story`]: the scenes that come first; each is one of [`scenes`], played on a [`stage`] of its own.
//! - [`place`]: where all of them run; [`chart`] and [`picture`]: the picture of a run.

pub mod chart;
pub mod counts;
pub mod fleet;
pub mod loopback;
pub mod net;
pub mod picture;
pub mod place;
pub mod process;
pub mod programs;
pub mod report;
pub mod scenes;
pub mod stage;
pub mod story;
pub mod tenants;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::chart::Chart;
use self::picture::Row;
use self::programs::Programs;
use self::report::{History, View};
use self::story::Programme;

/// How the lab runs, and where its results go.
#[derive(Debug)]
pub struct Lab {
    /// The gate that runs in it.
    pub gate: PathBuf,
    /// True for the whole lab, which needs root; false for its proxied half.
    pub xdp: bool,
    /// The scenes that come first.
    pub story: Option<Programme>,
    /// How long the tenants ask after them; `None` until Ctrl-C. Zero for not at all.
    pub duration: Option<Duration>,
    /// Where the results are written as JSON.
    pub json: Option<PathBuf>,
    /// Where the run is drawn, as SVG; that of the scenes always is.
    pub plot: Option<PathBuf>,
}

impl Lab {
    /// Plays the story, then opens the lab, shows it, and closes it again.
    ///
    /// # Errors
    ///
    /// If a part of it does not start, dies or fails, with what it said last, or a claim of the story does not hold.
    /// Nothing is left behind.
    pub fn run(&self) -> Result<()> {
        let stop = stop_signals()?;
        let mut rows = Vec::new();
        let mut results = json!({});
        if let Some(story) = &self.story {
            let played = story.play(&self.gate, self.xdp, &stop)?;
            results["scenes"] = played.json();
            rows.clone_from(&played.rows);
            let ends =
                played.interrupted || played.verdict().is_err() || self.duration == Some(Duration::ZERO);
            if ends {
                self.write(&results, &rows, &[])?;
                return played.verdict();
            }
        }
        let chart = self.open(&stop, &mut results)?;
        self.write(&results, &rows, &[chart])
    }

    /// The tenants, until they are done or the user has had enough.
    fn open(&self, stop: &Receiver<i32>, results: &mut Value) -> Result<Chart> {
        let duration = self.duration.unwrap_or(FOREVER);
        let open = if self.xdp { Programs::with_xdp } else { Programs::on_loopback };
        let mut programs = open(&self.gate, duration)?;
        let tenants = programs.tenants();
        let history = watch(&mut programs, duration, stop)?;
        let summary = programs.close(&history)?;
        print!("\n{summary}");
        let chart = history.chart(tenants);
        if let (Value::Object(results), Value::Object(tenants)) = (results, summary.json()) {
            results.extend(tenants);
        }
        Ok(chart)
    }

    fn write(&self, results: &Value, rows: &[Row], charts: &[Chart]) -> Result<()> {
        if let Some(file) = &self.json {
            let text = serde_json::to_string_pretty(results)?;
            std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        if self.story.is_some() || self.plot.is_some() {
            story::draw(rows, charts, self.plot.as_deref())?;
        }
        Ok(())
    }
}

/// Shows the counters once a second while the tenants ask: until they are done or the user has had enough.
fn watch(programs: &mut Programs, duration: Duration, stop: &Receiver<i32>) -> Result<History> {
    let mut view = View::new(programs.tenants());
    let mut history = History::begin();
    let began = Instant::now();
    let mut next = began;
    loop {
        next += REDRAWN;
        match stop.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(history),
        }
        if !programs.is_under_load()? {
            return Ok(history);
        }
        // After that they only wait for answers.
        if next < began + duration {
            history.add(programs.snapshot()?);
            view.draw(&history);
        }
    }
}

/// The signals that end the lab, from now on: they no longer end the process.
///
/// # Errors
///
/// If the kernel refuses.
pub fn stop_signals() -> Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));
    Ok(receiver)
}

const REDRAWN: Duration = Duration::from_secs(1);
/// Long enough for whoever watches until Ctrl-C.
const FOREVER: Duration = Duration::from_secs(24 * 3_600);
