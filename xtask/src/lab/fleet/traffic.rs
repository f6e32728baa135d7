//! The clients: `greedy` asks at all gates, and at one after the other far more; `polite` asks at all alike; one asks Envoy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use super::limits::{ENVOYS, GREEDY, LIMITS, Limit, POLITE};
use super::programs::{GATES, envoy_address, gate_address};
use crate::lab::process::{ChildProcess, PATIENCE, bound_command};
use crate::lab::stage::{Seen, collect};

/// Requests of `greedy` a second at one gate at a time: half of all.
const MOVING: u32 = GREEDY.demand_per_sec / 2;
/// How long that stays at a gate.
const STAY: Duration = Duration::from_secs(3);

/// The clients' programs.
#[derive(Debug)]
pub(super) struct Traffic {
    loads: Vec<Load>,
    began: Instant,
    /// How many of those that ask at one gate at a time have been started.
    moving: usize,
}

#[derive(Debug)]
struct Load {
    /// The gate that it asks, or the one behind Envoy.
    gate: usize,
    program: ChildProcess,
    /// When it began, in seconds after the first.
    began: f64,
    /// When it was last read, in seconds after the first began.
    read: f64,
    seen: BTreeMap<String, Seen>,
}

/// The clients' view since they began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Seconds after the first began: the mean, where one was read a little later than the other.
    pub(super) seconds: f64,
    /// By gate.
    pub(super) greedy: [Seen; GATES],
    /// At all gates.
    pub(super) polite: Seen,
    /// Through Envoy.
    pub(super) envoy: Seen,
}

impl Traffic {
    /// Starts them.
    ///
    /// # Errors
    ///
    /// If one cannot be started.
    pub(super) fn start(gate: &Path) -> Result<Self> {
        let mut traffic = Self { loads: Vec::new(), began: Instant::now(), moving: 0 };
        for number in 0..GATES {
            let clients = [
                client(&GREEDY, (GREEDY.demand_per_sec - MOVING) / GATES as u32),
                client(&POLITE, POLITE.demand_per_sec / GATES as u32),
            ];
            traffic.add(gate, number, gate_address(number), &["--tcp"], &clients)?;
        }
        // Envoy takes the requests of a connection one after the other.
        let clients = [client(&ENVOYS, ENVOYS.demand_per_sec) + ",connections=8"];
        traffic.add(gate, 0, envoy_address(), &["--protocol", "http"], &clients)?;
        traffic.move_on(gate)?;
        Ok(traffic)
    }

    /// Starts those that ask at one gate at a time, when it is time.
    ///
    /// # Errors
    ///
    /// If one cannot be started.
    pub(super) fn move_on(&mut self, gate: &Path) -> Result<()> {
        let number = self.moving;
        if number < GATES && self.began.elapsed() >= STAY * number as u32 {
            self.moving += 1;
            let stay = STAY.as_secs();
            let bursts = format!("{},bursts={stay}s/{}s", client(&GREEDY, MOVING), stay * GATES as u64);
            self.add(gate, number, gate_address(number), &["--tcp"], &[bursts])?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        gate: &Path,
        number: usize,
        target: SocketAddr,
        how: &[&str],
        clients: &[String],
    ) -> Result<()> {
        let mut command = bound_command(gate);
        command.args(["load", "--json", "--every", "200ms", "--timeout", "5s", "--for", FOREVER]).args(how);
        command.args(["--target", &target.to_string()]);
        clients.iter().for_each(|client| {
            command.args(["--tenant", client]);
        });
        let program = ChildProcess::start("gate load", command)?;
        let began = self.began.elapsed().as_secs_f64();
        self.loads.push(Load { gate: number, program, began, read: began, seen: BTreeMap::new() });
        Ok(())
    }

    /// Their view so far.
    ///
    /// # Errors
    ///
    /// If one has ended.
    pub(super) fn read(&mut self) -> Result<Counts> {
        let mut counts = Counts::default();
        for load in &mut self.loads {
            ensure!(load.program.is_running()?, "gate load ended by itself");
            let lines = load.program.printed();
            if let Some(line) = lines.last() {
                load.read = load.began + collect(line, &mut load.seen)?;
            }
            counts.add(load.gate, &load.seen);
        }
        counts.seconds = self.loads.iter().map(|load| load.read).sum::<f64>() / self.loads.len() as f64;
        Ok(counts)
    }

    /// Ends them; their view at the end.
    ///
    /// # Errors
    ///
    /// If one fails.
    pub(super) fn end(self) -> Result<Counts> {
        self.loads.iter().try_for_each(|load| load.program.signal(Signal::SIGINT))?;
        let mut counts = Counts { seconds: self.began.elapsed().as_secs_f64(), ..Counts::default() };
        for Load { gate, program, mut seen, .. } in self.loads {
            if let Some(line) = program.finish(PATIENCE)?.last() {
                collect(line, &mut seen)?;
            }
            counts.add(gate, &seen);
        }
        Ok(counts)
    }
}

impl Counts {
    /// Adds the view of a program that asks this gate.
    fn add(&mut self, gate: usize, seen: &BTreeMap<String, Seen>) {
        for (client, seen) in seen {
            let of = match client.as_str() {
                client if client == GREEDY.client => &mut self.greedy[gate],
                client if client == POLITE.client => &mut self.polite,
                _ => &mut self.envoy,
            };
            *of = sum([*of, *seen]);
        }
    }

    /// In the order of [`LIMITS`].
    pub(super) fn by_limit(&self) -> [Seen; LIMITS.len()] {
        [sum(self.greedy), self.polite, self.envoy]
    }
}

fn sum<const N: usize>(all: [Seen; N]) -> Seen {
    all.into_iter().fold(Seen::default(), |sum, seen| Seen {
        offered: sum.offered + seen.offered,
        answered: sum.answered + seen.answered,
        refused: sum.refused + seen.refused,
        failed: sum.failed + seen.failed,
        lost: sum.lost + seen.lost,
        unsent: sum.unsent + seen.unsent,
        latency: sum.latency,
    })
}

/// A client, in the words of `gate load`.
fn client(limit: &Limit, per_sec: u32) -> String {
    let Limit { client, source, .. } = limit;
    format!("name={client},source={source},rate={per_sec}/s,arrivals=constant,reads=100%")
}

/// Long enough for whoever watches until Ctrl-C.
const FOREVER: &str = "24h";
