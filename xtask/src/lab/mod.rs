//! The lab: a gate at the interface between a few tenants and a store, on a network of its own.
//!
//! ```text
//!   client namespace                       server namespace
//!   gate load: polite, bursty, hostile ──► client0 ═ veth ═ gate0 (XDP) ──► gate store
//!   gate load: proxied, over TCP       ──►                     └──► gate run ──► ┘
//!   gate peer (receives XDP's replies)
//! ```
//!
//! Without root, [`loopback`] is its proxied half.
//!
//! - [`net`]: the namespaces and the pair between them; shared with the tests.
//! - [`process`]: a program that runs in them; shared with the tests.
//! - [`tenants`]: who asks for what.
//! - [`scene`]: the programs, and how they are started and ended.
//! - [`counts`], [`report`], [`picture`]: the gate's counters, and the output made from them.

pub mod counts;
pub mod loopback;
pub mod net;
pub mod picture;
pub mod process;
pub mod report;
pub mod scene;
pub mod tenants;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::report::{History, View};
use self::scene::Scene;

/// How the lab runs, and where its results go.
#[derive(Debug, Clone)]
pub struct Lab {
    /// The gate that runs in it.
    pub gate: PathBuf,
    /// True for the whole lab, which needs root; false for its proxied half.
    pub xdp: bool,
    /// How long the tenants ask; `None` until Ctrl-C.
    pub duration: Option<Duration>,
    /// Where the summary is written as JSON.
    pub json: Option<PathBuf>,
    /// Where what passed and was refused is drawn, as SVG.
    pub plot: Option<PathBuf>,
}

impl Lab {
    /// Opens the lab, shows it, and closes it again.
    ///
    /// # Errors
    ///
    /// If a part of it does not start, dies or fails; with what it said last. Nothing is left behind.
    pub fn run(&self) -> Result<()> {
        let stop = stop_signals()?;
        let duration = self.duration.unwrap_or(FOREVER);
        let open = if self.xdp { Scene::with_xdp } else { Scene::on_loopback };
        let mut scene = open(&self.gate, duration)?;
        let tenants = scene.tenants();
        let history = watch(&mut scene, duration, &stop)?;
        let summary = scene.close(&history)?;
        print!("\n{summary}");
        if let Some(file) = &self.json {
            let text = serde_json::to_string_pretty(&summary.json())?;
            write(file, &text)?;
        }
        if let Some(file) = &self.plot {
            write(file, &picture::svg(tenants, history.rates()))?;
        }
        Ok(())
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Shows the counters once a second while the tenants ask: until they are done or the user has had enough.
fn watch(scene: &mut Scene, duration: Duration, stop: &Receiver<i32>) -> Result<History> {
    let mut view = View::new(scene.tenants());
    let mut history = History::begin();
    let began = Instant::now();
    let mut next = began;
    loop {
        next += REDRAWN;
        match stop.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(history),
        }
        if !scene.is_under_load()? {
            return Ok(history);
        }
        // After that they only wait for answers.
        if next < began + duration {
            history.add(scene.snapshot()?);
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
