//! The cost of a flood for the core that receives it: gate beside a bare `XDP_DROP`, a lean program, xdp-filter and
//! nftables; and the part of it that a polite tenant notices.
//!
//! Each contender has a veth pair of its own, in namespaces of the run's own. Frames of 64 bytes are sent in bursts; on
//! the same CPU the NAPI thread of the receiving end takes them in between, and its CPU time, divided by the packets, is
//! the cost. So what sending costs does not count. The contenders take turns within every round; figures are lower
//! quartiles of rounds, since whatever else runs only adds to them; quote the ratios.

mod contender;
mod flood;
mod polite;
mod receiver;

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use xtask::lab::stop_signals;

use contender::Contender;
use flood::Flood;
use receiver::Cost;

/// How many sources the floods have. Each is a tenant of its own, over its quota.
const SOURCES: [u32; 2] = [1, contender::SOURCES];
const ROUNDS: usize = 9;
const WARM_UP: Duration = Duration::from_millis(50);
const MEASURED: Duration = Duration::from_millis(250);

fn main() -> Result<()> {
    let stop = stop_signals()?;
    let mut results = floods(&stop)?;
    results.push(polite::compare(&stop)?);
    match std::env::var_os("GATE_BENCH_JSON") {
        Some(path) => Ok(std::fs::write(path, serde_json::to_string_pretty(&results)?)?),
        None => Ok(()),
    }
}

/// One line of the table: who is sent what, and what each round came to.
struct Line<'a> {
    contender: &'a Contender,
    name: &'static str,
    frame: &'a [u8],
    sources: u32,
    rounds: Vec<Cost>,
}

fn floods(stop: &Receiver<i32>) -> Result<Vec<Value>> {
    eprintln!("setting up ...");
    let contenders = contender::all()?;
    let mut flood = Flood::load()?;
    let mut tables = SOURCES.map(|sources| lines(&contenders, sources));
    for round in 1..=ROUNDS {
        eprintln!("floods, round {round} of {ROUNDS} ...");
        for line in tables.iter_mut().flatten() {
            go_on(stop)?;
            line.measure(&mut flood)?;
        }
    }
    Ok(tables.iter().flat_map(|lines| report(lines)).collect())
}

fn lines(contenders: &[Contender], sources: u32) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    for contender in contenders {
        for (name, frame) in &contender.frames {
            lines.push(Line { contender, name, frame, sources, rounds: Vec::new() });
        }
    }
    lines
}

impl Line<'_> {
    fn measure(&mut self, flood: &mut Flood) -> Result<()> {
        let Contender { net, receiver, .. } = self.contender;
        let cost = flood.during(net, self.frame, self.sources, || {
            std::thread::sleep(WARM_UP);
            let before = receiver.reading(net)?;
            std::thread::sleep(MEASURED);
            receiver.reading(net)?.since(&before).context("hardly any packet was received")
        });
        self.rounds.push(cost.with_context(|| format!("flooding {}", self.name))?);
        Ok(())
    }

    fn quartile(&self, of: fn(&Cost) -> f64) -> f64 {
        quantile(self.rounds.iter().map(of), 0.25)
    }
}

fn report(lines: &[Line<'_>]) -> Vec<Value> {
    let sources = lines[0].sources;
    let label = if sources == 1 { "one source".to_owned() } else { format!("{sources} sources") };
    println!("\nflood from {label} over quota, lower quartiles of {ROUNDS} rounds");
    println!(
        "{:<22} {:>10} {:>12} {:>9} {:>9} {:>14} {:>12}",
        "", "ns/packet", "packets/s", "of bare", "of lean", "of xdp-filter", "of nftables"
    );
    let ns = |name| {
        lines.iter().find(|line| line.name == name).map_or(f64::NAN, |line| line.quartile(|cost| cost.ns))
    };
    let others = [contender::BARE, contender::LEAN, contender::XDP_FILTER, contender::NFTABLES].map(ns);
    let results = lines.iter().map(|line| {
        let name = line.name;
        let ns = line.quartile(|cost| cost.ns);
        let per_sec = line.quartile(|cost| cost.per_sec);
        let [bare, lean, filter, nftables] = others.map(|other| ns / other);
        println!(
            "{name:<22} {ns:>10.1} {per_sec:>12.0} {bare:>9.2} {lean:>9.2} {filter:>14.2} {nftables:>12.3}"
        );
        json!({ "sources": sources, "contender": name, "ns_per_packet": ns,
            "packets_per_sec": per_sec, "of_bare": bare, "of_lean": lean, "of_xdp_filter": filter,
            "of_nftables": nftables })
    });
    results.collect()
}

/// Fails when the user has had enough.
fn go_on(stop: &Receiver<i32>) -> Result<()> {
    match stop.try_recv() {
        Err(TryRecvError::Empty) => Ok(()),
        _ => bail!("stopped"),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() as f64 * share) as usize]
}
