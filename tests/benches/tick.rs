//! The cost of the daemon's tick with 10,000 tenants on a machine with 64 CPUs, which are faked: one thread counts in
//! the rows of all of them, on another CPU than the one that ticks.
//!
//! The tick reads what was counted, decides (by the rejection rate, which needs the counts of every tenant), and writes the
//! idle bank. In each row of the table another share of the lines is touched between two ticks.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use gate_common::abi::CounterLine;
use gate_common::units::Nanos;
use gate_tests::world::pin;
use gate_userspace::config::Config;
use gate_userspace::control::decide::Rules;
use gate_userspace::control::layout::Layout;
use gate_userspace::control::occupied::occupied;
use gate_userspace::control::sizes::{counter_bytes, sizes};
use gate_userspace::control::tick::Ticker;
use gate_userspace::kernel::{Cpus, Loaded, Maps, jiffies, owner};
use serde_json::json;

const TENANTS: usize = 10_000;
const CPUS: usize = 64;
const TICKS: usize = 100;

fn main() -> Result<()> {
    let cpus = Cpus::parse(&format!("0-{}", CPUS - 1), &format!("0-{}", CPUS - 1)).context("a list")?;
    let config = Config::parse("gate.toml", &config()?)?;
    let sizes = sizes(&config, &cpus, 2)?;
    let mut loaded = Loaded::new(&sizes, None)?;
    let clock = jiffies::measure(&mut loaded)?;
    let maps = Arc::clone(&loaded.maps);
    maps.init(clock);
    maps.give_rows(cpus.online());
    let (ownership, _) = owner::take(&*maps)?;
    let layout = Layout::build(&config, &occupied(&maps))?;
    let rules = Rules { rejection_rate: true, ..Rules::default() };
    let mut ticker = Ticker::new(Arc::clone(&maps), ownership, layout, rules)?;
    let mut now = Nanos::from_secs(1_000);
    let mut tick = || -> Result<f64> {
        now = now.saturating_add(Nanos::from_millis(100));
        let start = Instant::now();
        ticker.tick(now, &[])?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    for _ in 0..4 {
        tick()?;
    }
    println!(
        "{TENANTS} tenants, {CPUS} CPUs, counters of {} MiB; medians and maxima of {TICKS} ticks",
        counter_bytes(&sizes).div_ceil(1 << 20)
    );
    println!("{:<34} {:>9} {:>9} {:>9}", "touched between two ticks", "lines", "ms", "most");
    let mut results = Vec::new();
    let (orders, asked) = mpsc::channel::<usize>();
    let (done, counted) = mpsc::channel();
    let counter = Arc::clone(&maps);
    let thread = std::thread::spawn(move || {
        pin(std::thread::available_parallelism().map_or(1, std::num::NonZero::get) - 1);
        for share in asked {
            count(&counter, share);
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

fn config() -> Result<String> {
    let mut text =
        "[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"198.18.0.1:9000\"\n".to_owned();
    for id in 0..TENANTS {
        let source = format!("10.0.{}.{}", id >> 8, id & 255);
        write!(text, "[[tenant]]\nname = \"t{id}\"\nsources = [\"{source}\"]\nquota = \"9 RU/s\"\n")?;
    }
    Ok(text)
}

/// Counts a request of every tenant in one of `share` rows, as the CPUs would.
fn count(maps: &Maps, share: usize) {
    if share == usize::MAX {
        return;
    }
    for cpu in 0..CPUS {
        let row = maps.row(maps.row_of(cpu));
        for tenant in (1..=TENANTS).filter(|tenant| (tenant + cpu) % share == 0) {
            for (offset, more) in
                [(offset_of!(CounterLine, passed), 1), (offset_of!(CounterLine, charged_mru), 1_000)]
            {
                let word = maps.counters.word(row.line + tenant, offset);
                word.store(word.load(Ordering::Relaxed) + more, Ordering::Relaxed);
            }
            maps.touch(row.touched, tenant);
        }
    }
}
