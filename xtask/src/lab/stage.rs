//! The stage of a scene: a store, a gate, and callers whose view is read while they ask.
//!
//! A program that ends by itself fails the scene, whichever it is, within `LOOK_EVERY`. A signal to stop ends it, too.
//! Dropped, everything ends and goes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::Value;

use super::net::CLIENT_INTERFACE;
use super::place::Place;
use super::process::ChildProcess;
use super::programs::START;
use super::report::grouped;
use crate::sh;

/// A scene's programs, and what they count.
#[derive(Debug)]
pub struct Stage<'a> {
    gate_program: &'a Path,
    stop: &'a Receiver<i32>,
    /// The loads of the present phase, which end first; then gate and its peer, then the store.
    loads: Vec<ChildProcess>,
    gates: Vec<ChildProcess>,
    store: Option<ChildProcess>,
    began: Instant,
    /// Where all this runs.
    pub place: Place,
}

/// A store's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's.
    Memcached,
    /// Redis'.
    Resp,
    /// HTTP, of which `gate store` is the server everywhere.
    Http,
}

/// Callers that ask one address in one way.
#[derive(Debug, Clone)]
pub struct Load {
    /// The address.
    pub target: SocketAddr,
    /// The transport and protocol, in the words of `gate load`.
    pub how: &'static [&'static str],
    /// A store that gets all keys first that are read.
    pub fill: Option<String>,
    /// The callers, in the words of `gate load --tenant`.
    pub callers: Vec<String>,
}

/// A caller's view so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// Requests that were due.
    pub offered: u64,
    /// Requests that the store answered, or gate in its place.
    pub answered: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Errors.
    pub failed: u64,
    /// Requests without an answer in time.
    pub lost: u64,
    /// Requests that were due and could not be sent.
    pub unsent: u64,
    /// Latency of answers, from when the request was due, since the phase began.
    #[serde(rename = "latency_ns")]
    pub latency: Quantiles,
}

/// Latencies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Quantiles {
    /// The median, in nanoseconds.
    pub p50: u64,
    /// 90 % were at most so long, in nanoseconds.
    pub p90: u64,
    /// 99 % were at most so long, in nanoseconds.
    pub p99: u64,
}

/// The callers' view of a phase, reading by reading.
#[derive(Debug, Clone, Default)]
pub struct Phase {
    /// Seconds since the phase began, and each caller's view until then; the last is the end.
    readings: Vec<(f64, BTreeMap<String, Seen>)>,
}

/// The user has had enough.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ended by a signal")
    }
}

impl std::error::Error for Interrupted {}

impl<'a> Stage<'a> {
    /// An empty one: on a network, or on loopback.
    ///
    /// # Errors
    ///
    /// If the place cannot be made.
    pub fn open(gate_program: &'a Path, network: bool, stop: &'a Receiver<i32>) -> Result<Self> {
        let place = Place::open(network)?;
        let began = Instant::now();
        let loads = Vec::new();
        let gates = Vec::new();
        Ok(Self { gate_program, stop, loads, gates, store: None, began, place })
    }

    /// Starts the store: a real one on a network, and on loopback `gate store` with these arguments. Returns its
    /// process id.
    ///
    /// # Errors
    ///
    /// If it does not start; with its last lines.
    pub fn start_store(&mut self, protocol: Protocol, embedded: &[&str]) -> Result<u32> {
        self.kill_store();
        let address = self.place.store();
        let ip = address.ip().to_string();
        let port = address.port().to_string();
        let (name, arguments) = match (self.place.is_network(), protocol) {
            (true, Protocol::Memcached) => {
                ("memcached", vec!["-u", "root", "-l", &ip, "-p", &port, "-U", &port, "-m", "256"])
            }
            (true, Protocol::Resp) => {
                ("redis-server", vec!["--bind", &ip, "--port", &port, "--save", "", "--protected-mode", "no"])
            }
            (false, _) | (true, Protocol::Http) => ("gate store", embedded.to_vec()),
        };
        let mut command = match name {
            "gate store" => self.place.server_command(self.gate_program),
            program => {
                let found = sh::find(program);
                self.place.server_command(
                    found.with_context(|| format!("no {program}: `cargo xtask setup` installs it"))?,
                )
            }
        };
        if name == "gate store" {
            let protocol = match protocol {
                Protocol::Memcached => "memcached",
                Protocol::Resp => "resp",
                Protocol::Http => "http",
            };
            command.args(["store", "--protocol", protocol, "--listen", &address.to_string()]);
        }
        command.args(arguments);
        let store = ChildProcess::start(name, command)?;
        let id = store.id();
        self.store = Some(store);
        self.wait_for(address)?;
        Ok(id)
    }

    /// Ends the store at once: an overloaded one would first work off what it has read.
    fn kill_store(&mut self) {
        if let Some(store) = self.store.take() {
            // One that has ended by itself needs none.
            let _ = store.signal(Signal::SIGKILL);
        }
    }

    /// Starts gate with this configuration behind its section `[gate]`, and on a network what receives XDP's replies.
    ///
    /// # Errors
    ///
    /// If it does not start; with its last lines.
    pub fn start_gate(&mut self, config: &str) -> Result<()> {
        let file = self.place.config_file();
        fs::write(&file, format!("{}{config}", self.place.section()))
            .with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = self.place.server_command(self.gate_program);
        command.args(["run", "--config"]).arg(&file);
        let mut gate = ChildProcess::start("gate run", command)?;
        let network = self.place.is_network();
        let started =
            gate.wait_for(if network { "attached interface" } else { "running without XDP" }, START);
        fs::remove_file(&file)?;
        started?;
        self.gates.push(gate);
        if network {
            let mut command = self.place.client_command(self.gate_program);
            command.args(["peer", "--interface", CLIENT_INTERFACE]);
            let mut peer = ChildProcess::start("gate peer", command)?;
            peer.wait_for("passes", START)?;
            self.gates.insert(0, peer);
        }
        Ok(())
    }

    /// Ends gate, and leaves the store.
    ///
    /// # Errors
    ///
    /// If it fails at its end.
    pub fn end_gate(&mut self) -> Result<()> {
        self.gates.drain(..).try_for_each(|gate| gate.end().map(drop))?;
        if self.place.is_network() {
            // The program outlives its daemon.
            sh::run(self.place.server_command(self.gate_program).arg("detach").args(self.place.query()))?;
        }
        Ok(())
    }

    /// The output of a command of gate for the running one, e.g. `tenants`.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn show(&self, command: &str) -> Result<Value> {
        let mut show = self.place.server_command(self.gate_program);
        show.args([command, "--json"]).args(self.place.query());
        Ok(serde_json::from_str(&sh::output(&mut show)?)?)
    }

    /// Waits until somebody accepts connections there.
    fn wait_for(&mut self, address: SocketAddr) -> Result<()> {
        let deadline = Instant::now() + START;
        while self.place.connect(address).is_err() {
            ensure!(Instant::now() < deadline, "{address} does not accept connections in {START:?}");
            self.wait(Duration::from_millis(10))?;
        }
        Ok(())
    }

    /// Has the loads ask for so long, and shows their views. `meanwhile` is called every `LOOK_EVERY` with the time.
    ///
    /// # Errors
    ///
    /// If a program ends by itself, the user has had enough, or `meanwhile` fails.
    pub fn play(
        &mut self,
        phase: &str,
        time: Duration,
        loads: &[Load],
        mut meanwhile: impl FnMut(&mut Self, Duration) -> Result<()>,
    ) -> Result<Phase> {
        self.loads = loads.iter().map(|load| self.start_load(load, time)).collect::<Result<_>>()?;
        let began = Instant::now();
        let offset = self.began.elapsed().as_secs_f64();
        let mut played = Phase::default();
        let mut shown = 0.0;
        let mut latest = BTreeMap::new();
        while !self.loads.is_empty() {
            ensure!(began.elapsed() < time + GIVE_UP, "the callers do not end");
            self.wait(LOOK_EVERY)?;
            if began.elapsed() < time {
                meanwhile(self, began.elapsed())?;
            }
            let mut read = false;
            for mut load in std::mem::take(&mut self.loads) {
                let runs = load.is_running()?;
                let lines = if runs {
                    let lines = load.printed();
                    self.loads.push(load);
                    lines
                } else {
                    load.finish(START)?
                };
                if let Some(line) = lines.last() {
                    collect(line, &mut latest)?;
                    read = true;
                }
            }
            let over = self.loads.is_empty();
            let seconds = began.elapsed().as_secs_f64();
            if read || over {
                played.readings.push((seconds, latest.clone()));
            }
            if seconds >= shown + 1.0 && !over {
                println!("{:>4.0} s  {phase:<18} {}", offset + seconds, played.rates_since(shown));
                shown = seconds;
            }
        }
        Ok(played)
    }

    fn start_load(&self, load: &Load, time: Duration) -> Result<ChildProcess> {
        let mut command = self.place.client_command(self.gate_program);
        let time = format!("{}ms", time.as_millis());
        let target = load.target.to_string();
        command
            .args(["load", "--json", "--every", "500ms", "--for", &time, "--target", &target])
            .args(load.how);
        if let Some(store) = &load.fill {
            command.args(["--fill", store]);
        }
        for caller in &load.callers {
            command.args(["--tenant", caller]);
        }
        ChildProcess::start("gate load", command)
    }

    /// Waits, unless a program ends by itself or the user has had enough.
    fn wait(&mut self, time: Duration) -> Result<()> {
        match self.stop.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(RecvTimeoutError::Disconnected) => bail!(Interrupted),
        }
        for program in self.gates.iter_mut().chain(&mut self.store) {
            ensure!(program.is_running()?, "{} ended by itself", program.name());
        }
        Ok(())
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.loads.clear();
        self.gates.clear();
        self.kill_store();
    }
}

impl Seen {
    /// The counts since `earlier`; the latencies are those of the whole phase.
    #[must_use]
    pub fn since(&self, earlier: Option<&Self>) -> Self {
        let Some(earlier) = earlier else { return *self };
        Self {
            offered: self.offered.saturating_sub(earlier.offered),
            answered: self.answered.saturating_sub(earlier.answered),
            refused: self.refused.saturating_sub(earlier.refused),
            failed: self.failed.saturating_sub(earlier.failed),
            lost: self.lost.saturating_sub(earlier.lost),
            unsent: self.unsent.saturating_sub(earlier.unsent),
            latency: self.latency,
        }
    }

    /// Requests that were neither answered nor refused in time.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.failed + self.lost + self.unsent
    }
}

impl Phase {
    /// A caller's view at the end.
    #[must_use]
    pub fn of(&self, caller: &str) -> Seen {
        self.readings.last().and_then(|(_, seen)| seen.get(caller)).copied().unwrap_or_default()
    }

    /// A caller's counts from the first reading after so many seconds to the end.
    #[must_use]
    pub fn from(&self, seconds: f64, caller: &str) -> Seen {
        let before = self.readings.iter().find(|(at, _)| *at >= seconds);
        self.of(caller).since(before.and_then(|(_, seen)| seen.get(caller)))
    }

    /// The last reading until then.
    fn at(&self, seconds: f64) -> (f64, Option<&BTreeMap<String, Seen>>) {
        let before = self.readings.iter().rfind(|(at, _)| *at <= seconds);
        before.map_or((0.0, None), |(at, seen)| (*at, Some(seen)))
    }

    /// The rates of all callers from then to the last reading, as one line.
    fn rates_since(&self, seconds: f64) -> String {
        let Some((last, seen)) = self.readings.last() else { return String::new() };
        let (from, earlier) = self.at(seconds);
        let per_sec = |count: u64| grouped((count as f64 / (last - from).max(0.1)).round() as u64);
        let callers = seen.iter().map(|(name, seen)| {
            let since = seen.since(earlier.and_then(|earlier| earlier.get(name)));
            let mut text = format!("{name} {}/s answered", per_sec(since.answered));
            if seen.refused > 0 {
                text += &format!(", {}/s refused", per_sec(since.refused));
            }
            if since.unanswered() > 0 {
                text += &format!(", {}/s lost", per_sec(since.unanswered()));
            }
            text
        });
        callers.collect::<Vec<_>>().join("; ")
    }
}

/// Takes each caller's view out of a line of `gate load --json --every`. Returns its time, in seconds since the load began.
pub(super) fn collect(line: &str, seen: &mut BTreeMap<String, Seen>) -> Result<f64> {
    let summary: Value = serde_json::from_str(line).with_context(|| format!("`gate load` printed {line}"))?;
    for caller in summary["tenants"].as_array().context("no callers")? {
        let name = caller["name"].as_str().context("a caller without a name")?;
        seen.insert(name.to_owned(), Seen::deserialize(caller)?);
    }
    summary["seconds"].as_f64().context("no time")
}

/// How often programs and signals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Callers wait for answers up to a second beyond their time; a busy machine starts and ends programs slowly.
const GIVE_UP: Duration = Duration::from_secs(15);
