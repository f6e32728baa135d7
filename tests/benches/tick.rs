//! The cost of the daemon's tick with 10,000 tenants on a machine with 64 CPUs, which are faked: one thread counts in
//! the rows of all of them, on another CPU than the one that ticks.
//!
//! The tick reads what was counted, decides (by the rejection rate, which needs the counts of every tenant), and writes the
//! idle bank. In each row of the table another share of the lines is touched between two ticks.

use std::sync::Arc;
use std::sync::mpsc;

use anyhow::Result;
use gate_common::units::Nanos;
use gate_tests::ticking::{Ticking, count};
use gate_tests::world::pin;
use serde_json::json;

const TENANTS: usize = 10_000;
const CPUS: usize = 64;
const TICKS: usize = 100;

fn main() -> Result<()> {
    let mut ticking = Ticking::new(TENANTS, CPUS)?;
    let counter_mib = ticking.counter_bytes.div_ceil(1 << 20);
    let counter = Arc::clone(&ticking.maps);
    let mut now = Nanos::from_secs(1_000);
    let mut tick = || -> Result<f64> {
        now = now.saturating_add(Nanos::from_millis(100));
        let [took, _] = ticking.tick(now)?;
        Ok(took.as_secs_f64() * 1e3)
    };
    for _ in 0..4 {
        tick()?;
    }
    println!(
        "{TENANTS} tenants, {CPUS} CPUs, counters of {counter_mib} MiB; medians and maxima of {TICKS} ticks"
    );
    println!("{:<34} {:>9} {:>9} {:>9}", "touched between two ticks", "lines", "ms", "most");
    let mut results = Vec::new();
    let (orders, asked) = mpsc::channel::<usize>();
    let (done, counted) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        pin(std::thread::available_parallelism().map_or(1, std::num::NonZero::get) - 1);
        for share in asked {
            if share != usize::MAX {
                count(&counter, TENANTS, CPUS, share);
            }
            let _ = done.send(());
        }
    });
    pin(0);
    for (name, share) in
        [("nothing", usize::MAX), ("every tenant on one CPU", CPUS), ("every tenant on every CPU", 1)]
    {
        let mut times = Vec::new();
        // Two more, so that what the row before left to be read once more is not measured.
        for measured in 0..TICKS + 2 {
            orders.send(share)?;
            counted.recv()?;
            let ms = tick()?;
            if measured >= 2 {
                times.push(ms);
            }
        }
        times.sort_by(f64::total_cmp);
        let median = times[TICKS / 2];
        let most = times[TICKS - 1];
        let lines = if share == usize::MAX { 0 } else { TENANTS * CPUS / share };
        println!("{name:<34} {lines:>9} {median:>9.2} {most:>9.2}");
        results.push(json!({ "touched": name, "lines": lines, "median_ms": median, "most_ms": most }));
    }
    drop(orders);
    let _ = thread.join();
    match std::env::var_os("GATE_BENCH_JSON") {
        Some(path) => Ok(std::fs::write(path, serde_json::to_string_pretty(&results)?)?),
        None => Ok(()),
    }
}
