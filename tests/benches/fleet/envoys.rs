//! Envoy's response times while it asks gate about each request, beside a server that always says OK, its own `local_ratelimit`, and no
//! limit at all. Requests are due at a fixed rate, whatever the answers do.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::envoy::{Envoy, Filter};
use gate_tests::proxy::{Listening, address};
use serde_json::{Value, json};
use xtask::paths;

use super::requests::{always_ok, gate};
use super::{ROUNDS, median};

const PER_SEC: u32 = 500;
const EACH: &str = "4s";

pub(super) fn run() -> Result<Value> {
    let store = Listening::memcached()?;
    let [at_gate, at_ok] = [(); 2].map(|()| address());
    let _gate = gate(&store, at_gate)?;
    let _always_ok = always_ok(at_ok)?;
    let envoys = [
        ("gate", Envoy::start(&at_gate.to_string(), Filter::EachPath)?),
        ("always OK", Envoy::start(&at_ok.to_string(), Filter::EachPath)?),
        ("local_ratelimit", Envoy::start(&at_ok.to_string(), Filter::Local)?),
        ("no limit", Envoy::start(&at_ok.to_string(), Filter::Off)?),
    ];
    let mut quantiles: [[Vec<f64>; 2]; 4] = Default::default();
    for round in 0..=ROUNDS {
        for ((name, envoy), quantiles) in envoys.iter().zip(&mut quantiles) {
            let measured = load(envoy).context(*name)?;
            if round > 0 {
                quantiles.iter_mut().zip(measured).for_each(|(all, one)| all.push(one));
            }
        }
    }
    let quantiles = quantiles.map(|quantiles| quantiles.map(median));
    println!("Envoy at {PER_SEC} requests a second; medians of {ROUNDS} rounds of {EACH} in turn, in us");
    println!("{:<20} {:>8} {:>8} {:>28}", "it asks", "p50", "p99", "p99 by that with always OK");
    let mut results = Vec::new();
    for ((name, _), [p50, p99]) in envoys.iter().zip(quantiles) {
        let ratio = p99 / quantiles[1][1];
        println!("{name:<20} {p50:>8.0} {p99:>8.0} {ratio:>28.2}");
        results.push(json!({ "asks": name, "p50_us": p50, "p99_us": p99, "of_always_ok": ratio }));
    }
    Ok(results.into())
}

/// The response times at p50 and p99, in microseconds.
fn load(envoy: &Envoy) -> Result<[f64; 2]> {
    let mut command = Command::new(paths::gate());
    command.args(["load", "--json", "--protocol", "http", "--for", EACH]);
    command.args(["--target", &envoy.address.to_string(), "--tenant"]);
    command.arg(format!("name=a,rate={PER_SEC}/s,keys=uniform:1000,connections=16"));
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout)?;
    let tenant = &summary["tenants"][0];
    let [offered, answered] = ["offered", "answered"].map(|count| tenant[count].as_f64().unwrap_or(0.0));
    ensure!(answered > 0.99 * offered, "{tenant}");
    let micros = |quantile| tenant["latency_ns"][quantile].as_f64().map(|ns| ns / 1e3);
    Ok([micros("p50").context("no p50")?, micros("p99").context("no p99")?])
}
