//! The lab's polite tenant behind gate, and behind a filter that does nothing but drop the hostile one's packets.

use std::any::Any;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::maps::{Array, MapData};
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use gate_tests::net::{Net, SERVER_INTERFACE};
use serde_json::{Value, json};
use xtask::lab::programs::{network, start_daemon, start_load, start_peer, start_store};
use xtask::lab::tenants::TENANTS;
use xtask::paths;

use crate::flood::bench_object;
use crate::{go_on, median};

const ROUNDS: usize = 3;
/// Long enough for the burst that the hostile tenant has saved, and gate lets pass, to be less than one in a hundred.
const LASTS: Duration = Duration::from_secs(12);
/// For the answers to what was asked last.
const PATIENCE: Duration = Duration::from_secs(10);

/// The two, in turn.
pub(crate) fn compare(stop: &Receiver<i32>) -> Result<Value> {
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 1..=ROUNDS {
        eprintln!("polite tenant, round {round} of {ROUNDS} ...");
        for (guard, rounds) in [behind_gate, behind_filter].into_iter().zip(&mut rounds) {
            go_on(stop)?;
            rounds.push(run(guard)?);
        }
    }
    let [gate, filter] =
        rounds.map(|rounds| [0, 1].map(|which| median(rounds.iter().map(|p: &[f64; 2]| p[which] / 1e3))));
    println!("\nthe lab's polite tenant under its hostile one, medians of {ROUNDS} rounds of {LASTS:?}");
    println!("{:<28} {:>8} {:>8}", "", "p50, us", "p99, us");
    for (name, [p50, p99]) in [("gate", gate), ("only the hostile dropped", filter)] {
        println!("{name:<28} {p50:>8.0} {p99:>8.0}");
    }
    println!("p99, of the bare filter's: {:.2}", gate[1] / filter[1]);
    Ok(json!({ "polite_us": { "gate": gate, "filter": filter }, "p99_of_filter": gate[1] / filter[1] }))
}

/// The process or program before the store, for as long as requests are sent.
type Guard = Box<dyn Any>;

fn behind_gate(net: &Net) -> Result<Guard> {
    Ok(Box::new(start_daemon(net, &paths::gate())?))
}

fn behind_filter(net: &Net) -> Result<Guard> {
    let mut ebpf = bench_object()?;
    let [.., hostile] = TENANTS;
    let attacker: std::net::Ipv4Addr = hostile.source.parse()?;
    let mut map: Array<&mut MapData, [u8; 4]> =
        ebpf.map_mut("ATTACKER").context("no ATTACKER")?.try_into()?;
    map.set(0, attacker.octets(), 0)?;
    let program: &mut Xdp = ebpf.program_mut("drop_attacker").context("no program")?.try_into()?;
    program.load()?;
    net.server.enter(|| program.attach(SERVER_INTERFACE, XdpMode::Driver))??;
    Ok(Box::new(ebpf))
}

/// The polite tenant's p50 and p99, in nanoseconds.
fn run(guard: fn(&Net) -> Result<Guard>) -> Result<[f64; 2]> {
    let gate: &Path = &paths::gate();
    let net = network()?;
    let _store = start_store(&net, gate)?;
    let _guard = guard(&net)?;
    let _peer = start_peer(&net, gate)?;
    let printed = start_load(&net, gate, LASTS)?.finish(LASTS + PATIENCE)?.concat();
    let load: Value =
        serde_json::from_str(&printed).with_context(|| format!("`gate load` printed {printed}"))?;
    let [polite, ..] = TENANTS;
    let tenants = load["tenants"].as_array().context("no tenants")?;
    let latency =
        tenants.iter().find(|tenant| tenant["name"] == polite.name).map(|tenant| &tenant["latency_ns"]);
    let percentile = |name| latency.and_then(|latency| latency[name].as_f64()).context("no latency");
    Ok([percentile("p50")?, percentile("p99")?])
}
