//! Limits that several gates share, each goal beside its peer, in turn: `cargo xtask bench fleet`.
//!
//! - `entries`, `gates`, `redis`: what an owner takes, beside redis-server with GCRA; bytes and memory.
//! - `tick`: a gate's tick with 10,000 tenants, with a fleet and without.
//! - `proxied`: reads of memcached through a gate, with a fleet and without.
//! - `requests`, `ok_server`: Envoy's questions, beside a server that always says OK and throttlecrab-server.
//! - `envoys`: Envoy's response times, with either, and with its own limits.

mod entries;
mod envoys;
mod gates;
mod ok_server;
mod proxied;
mod redis;
mod requests;
mod tick;

use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use gate_tests::world::pin;
use serde_json::{Map, Value};

type Part = fn() -> Result<Value>;

const PARTS: [(&str, Part); 6] = [
    ("entries", entries::entries),
    ("memory", entries::memory),
    ("tick", tick::run),
    ("proxied", proxied::run),
    ("requests", requests::run),
    ("envoys", envoys::run),
];
const ROUNDS: usize = 5;
/// A thread that is bound to a CPU sees no other.
static LAST_CPU: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(0, |cpus| cpus.get() - 1));

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, address] = &arguments[..]
        && flag == ok_server::FLAG
    {
        return ok_server::serve(address.parse()?);
    }
    LazyLock::force(&LAST_CPU);
    let only = arguments.iter().find(|argument| !argument.starts_with("--"));
    let mut results = Map::new();
    for (name, part) in PARTS.into_iter().filter(|(name, _)| only.is_none_or(|only| only == name)) {
        // In a thread of its own, which may bind itself and what it starts to a CPU.
        let result = std::thread::spawn(part).join().map_err(|_| anyhow!("{name} panicked"))?;
        results.insert(name.to_owned(), result.context(name)?);
        println!();
    }
    match std::env::var_os("GATE_BENCH_JSON") {
        Some(path) => Ok(fs::write(path, serde_json::to_string_pretty(&results)?)?),
        None => Ok(()),
    }
}

/// Has what is measured started on the first CPU. This thread, and what it starts later, has the last one.
fn on_own_cpu<T>(start: impl FnOnce() -> T) -> T {
    pin(0);
    let started = start();
    pin(*LAST_CPU);
    started
}

/// How long the threads of a process have run.
fn ran(process: u32) -> Result<Duration> {
    ran_by(process, "")
}

/// How long those have run whose names begin so.
fn ran_by(process: u32, name: &str) -> Result<Duration> {
    let mut ns = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?.path();
        if !fs::read_to_string(task.join("comm"))?.starts_with(name) {
            continue;
        }
        let said = fs::read_to_string(task.join("schedstat"))?;
        ns += said.split(' ').next().context("no time")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(ns))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// True until this much time has passed since.
fn lasts(from: Instant, time: Duration) -> bool {
    from.elapsed() < time
}
