//! Linux as the oracle: what it hands to a protected socket, gate has judged.
//!
//! Packets of every odd shape, in whole and in fragments, go over a veth pair to real sockets behind the attached
//! program, and over a second pair to the same sockets without gate. Two configurations make the answer exact:
//!
//! - **Nothing may pass** ([`Demand::NothingPasses`]): all sources are unknown or have spent their quota, every service drops
//!   unknown SYNs, and nothing is shadowed. Whatever would be judged is dropped, so a datagram, a SYN or a segment
//!   with data that arrives has left the program by an exit that does not judge.
//! - **Everything may pass** ([`Demand::EverythingPasses`]): one source, far within its quota. What arrives without gate arrives with it,
//!   and no more arrives than left by an exit that judges.
//!
//! Segments are taken where IP hands them to TCP, by raw sockets, datagrams from UDP sockets. A unit is a packet or the
//! fragments of one. A failure prints the unit, shrunk; `GATE_SEED=<seed>` starts elsewhere, `GATE_LONG=1` runs a
//! hundred times as many.

mod generate;
mod lane;
mod losses;
mod rows;
mod shrink;
mod site;
mod spec;

use std::collections::BTreeMap;

use gate_common::abi::Exit;
use gate_tests::privilege;
use gate_tests::rng::Rng;
use gate_tests::world::pin;

use generate::{Sender, unit};
use shrink::shrink;
use site::{Demand, Outcome, Site};
use spec::{Spec, hex};

/// Units, without `GATE_LONG`; as many packets at least.
const HOSTILE: u32 = 70_000;
const FROM_TENANT: u32 = 40_000;
/// Units that are sent together.
const BATCH: u32 = 50;
const SEED: u64 = 20_261_122;

#[test]
fn nothing_reaches_a_protected_socket_unjudged() {
    if !privilege::root("oracle::nothing_reaches_a_protected_socket_unjudged") {
        return;
    }
    drive(Demand::NothingPasses, HOSTILE, &[Sender::Unknown, Sender::Spent]);
}

#[test]
fn packets_within_quota_arrive_as_without_gate() {
    if !privilege::root("oracle::packets_within_quota_arrive_as_without_gate") {
        return;
    }
    drive(Demand::EverythingPasses, FROM_TENANT, &[Sender::Tenant]);
}

/// Sends so many units of these senders, and fails at the first that contradicts the demand.
fn drive(demand: Demand, units: u32, senders: &[Sender]) {
    // One CPU: what is sent first arrives first.
    pin(0);
    let units = if std::env::var_os("GATE_LONG").is_some() { 100 * units } else { units };
    let seed = std::env::var("GATE_SEED").map_or(SEED, |seed| seed.parse().expect("a number"));
    println!("GATE_SEED={seed}, {units} units");
    let mut rng = Rng::new(seed);
    let mut site = Site::open().unwrap();
    let mut seen = Seen::default();
    for first in (0..units).step_by(BATCH as usize) {
        let mut next = |number| {
            let sender = rng.pick(senders);
            unit(&mut rng, sender, number)
        };
        let batch: Vec<Spec> = (first..first + BATCH).map(&mut next).collect();
        let outcome = site.run(&batch).unwrap();
        seen.add(&outcome);
        if let Some(fault) = outcome.fault(demand, &batch) {
            panic!(
                "GATE_SEED={seed}, after {} packets: {}",
                seen.frames,
                explain(&mut site, demand, &batch, &fault)
            );
        }
    }
    println!("{seen:?}, {} batches sent again", site.repeated);
    assert_eq!(site.lost().unwrap(), 0, "packets were lost to full queues");
    seen.check(units);
}

/// Which unit it was, made as simple as it can be.
fn explain(site: &mut Site, demand: Demand, batch: &[Spec], fault: &str) -> String {
    // Fragments of their own each time: those that wait for others must not be completed by these.
    let mut id = 1 << 24;
    let mut shows = |spec: &Spec| {
        id += 1;
        let single = [spec.clone().with(|spec| spec.id = id)];
        site.run(&single).unwrap().fault(demand, &single).is_some()
    };
    let Some(unit) = batch.iter().find(|unit| shows(unit)) else {
        let all: Vec<_> =
            batch.iter().map(|unit| format!("{}{}", unit.described(), hex(&unit.frames()))).collect();
        return format!("{fault}, and of no unit alone; these were sent:\n{}", all.join("\n"));
    };
    let simplest = shrink(unit.clone(), &mut shows);
    let sent = hex(&unit.frames());
    let shown = hex(&simplest.frames());
    let outcome = site.run(std::slice::from_ref(&simplest)).unwrap();
    let exits: Vec<_> = outcome
        .exits
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(exit, count)| (exit.name(), count))
        .collect();
    format!(
        "{fault}\nsent {}{sent}\nas simple as it can be: {}{shown}\nexits, markers included: {exits:?}",
        unit.described(),
        simplest.described()
    )
}

/// The features that were seen.
#[derive(Debug, Default)]
struct Seen {
    frames: u64,
    /// Arrivals behind gate, and at the twin.
    gate: u64,
    twin: u64,
    exits: BTreeMap<Exit, u64>,
}

impl Seen {
    fn add(&mut self, outcome: &Outcome) {
        self.frames += outcome.frames;
        self.gate += outcome.gate.len() as u64;
        self.twin += outcome.twin.len() as u64;
        for (exit, count) in &outcome.exits {
            *self.exits.entry(*exit).or_default() += count;
        }
    }

    /// An oracle that Linux drops everything for says nothing.
    fn check(&self, units: u32) {
        assert!(self.twin > u64::from(units) / 4, "hardly anything arrives without gate: {self:?}");
    }
}
