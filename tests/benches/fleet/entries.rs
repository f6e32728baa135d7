//! Entries of reports at an owner of limits, gRPC included, beside redis-server running a script that does GCRA over the same
//! batches; the bytes of an entry; and the memory of a million active pairs of a gate and a limit.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gate_tests::fleet::Owner;
use gate_tests::proxy::{Listening, address};
use serde_json::{Value, json};

use super::gates::{Amounts, Gates};
use super::redis::Script;
use super::{ROUNDS, median, ran};

/// Entries of a report, and names in all.
const ENTRIES: usize = 10_000;
const EACH: Duration = Duration::from_secs(2);

/// The entries, and their bytes.
pub(super) fn entries() -> Result<Value> {
    println!(
        "batches of {ENTRIES} entries, thousands of them per CPU second of the server; medians of {ROUNDS} rounds of {EACH:?}"
    );
    println!(
        "{:<40} {:>8} {:>8} {:>6} {:>12} {:>12}",
        "", "owner", "redis", "ratio", "bytes there", "bytes back"
    );
    let mut results = Vec::new();
    for (name, quota, load) in [
        ("below the limits", 1_000_000, Amounts { refused: 0, bytes: 0 }),
        ("above the limits", 10, Amounts { refused: 2, bytes: 0 }),
        ("above the limits, prices by bytes", 10, Amounts { refused: 2, bytes: 7 }),
    ] {
        let owner = owner(quota)?;
        let mut gates = Gates::connect(owner.address, 4, ENTRIES, load)?;
        let mut redis = Listening::redis()?;
        let mut script = Script::load(redis.address, ENTRIES, quota)?;
        // Once without measuring: names and keys are made.
        gates.report_for(EACH / 4)?;
        script.run_for(EACH / 4)?;
        let mut rates = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            rates[0].push(rate(owner.program.id(), || gates.report_for(EACH))?);
            rates[1].push(rate(redis.program().id(), || script.run_for(EACH))?);
        }
        let [at_owner, at_redis] = rates.map(median);
        let [there, back] = gates.bytes_of_an_entry();
        let ratio = at_owner / at_redis;
        println!(
            "{name:<40} {:>8.0} {:>8.0} {ratio:>6.2} {there:>12.2} {back:>12.2}",
            at_owner / 1e3,
            at_redis / 1e3
        );
        results.push(json!({
            "limits": name, "owner_per_cpu_s": at_owner, "redis_per_cpu_s": at_redis, "ratio": ratio,
            "bytes_there": there, "bytes_back": back,
        }));
    }
    Ok(results.into())
}

/// The memory of a million pairs.
pub(super) fn memory() -> Result<Value> {
    let mut results = Vec::new();
    for (count, names) in [(10, 100_000), (100, 10_000)] {
        let owner = owner(1_000_000)?;
        let before = resident(owner.program.id())?;
        let mut gates = Gates::connect(owner.address, count, names, Amounts { refused: 0, bytes: 0 })?;
        gates.report_once()?;
        let mib = (resident(owner.program.id())? - before) as f64 / f64::from(1 << 20);
        println!("{count:>4} gates with {names:>7} names each: {mib:>5.0} MiB more");
        results.push(json!({ "gates": count, "names": names, "mib": mib }));
    }
    Ok(results.into())
}

/// An owner of a limit for each user of a shop.
fn owner(quota: u32) -> Result<Owner> {
    let limit = format!("[[limit]]\nname = \"shop/user=*\"\nquota = \"{quota} RU/s\"\n");
    Owner::start_with(address(), "memory = \"1GiB\"\n", &limit)
}

/// The entries that a process takes per second of CPU time, while they are put to it.
fn rate(process: u32, put: impl FnOnce() -> Result<u64>) -> Result<f64> {
    let before = ran(process)?;
    let entries = put()?;
    Ok(entries as f64 / (ran(process)? - before).as_secs_f64())
}

/// The memory of a process, in bytes.
fn resident(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no size")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}
