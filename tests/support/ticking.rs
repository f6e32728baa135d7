//! A control loop over maps of its own, for benchmarks of its ticks.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gate_common::abi::CounterLine;
use gate_common::units::Nanos;
use gate_userspace::config::Config;
use gate_userspace::control::decide::Rules;
use gate_userspace::control::layout::Layout;
use gate_userspace::control::occupied::occupied;
use gate_userspace::control::sizes::{counter_bytes, sizes};
use gate_userspace::control::tick::Ticker;
use gate_userspace::kernel::{Cpus, Loaded, Maps, jiffies, owner};
use nix::time::{ClockId, clock_gettime};

/// A control loop with tenants `t0`, `t1` and so on, on a machine whose CPUs are faked.
#[derive(Debug)]
pub struct Ticking {
    /// The maps that it reads and writes.
    pub maps: Arc<Maps>,
    /// The loop.
    pub ticker: Ticker,
    /// The memory that counters take.
    pub counter_bytes: u64,
    _loaded: Loaded,
}

impl Ticking {
    /// One with so many tenants and CPUs.
    ///
    /// # Errors
    ///
    /// If the program cannot be loaded: that takes root.
    pub fn new(tenants: usize, cpus: usize) -> Result<Self> {
        let cpus = format!("0-{}", cpus - 1);
        let cpus = Cpus::parse(&cpus, &cpus).context("a list")?;
        let config = Config::parse("gate.toml", &config(tenants)?)?;
        let sizes = sizes(&config, &cpus, 2)?;
        let mut loaded = Loaded::new(&sizes, None)?;
        let clock = jiffies::measure(&mut loaded)?;
        let maps = Arc::clone(&loaded.maps);
        maps.init(clock);
        maps.give_rows(cpus.online());
        let (ownership, _) = owner::take(&*maps)?;
        let layout = Layout::build(&config, &occupied(&maps))?;
        // It needs the counts of every tenant.
        let rules = Rules { rejection_rate: true, ..Rules::default() };
        let ticker = Ticker::new(Arc::clone(&maps), ownership, layout, rules)?;
        Ok(Self { maps, ticker, counter_bytes: counter_bytes(&sizes), _loaded: loaded })
    }

    /// A tick at `now`. Returns how long it took, and the CPU time of it: another program on this CPU takes none of that.
    ///
    /// # Errors
    ///
    /// If another loop has the maps.
    pub fn tick(&mut self, now: Nanos) -> Result<[Duration; 2]> {
        let start = Instant::now();
        let before = ran()?;
        self.ticker.tick(now, &[])?;
        Ok([start.elapsed(), ran()?.saturating_sub(before)])
    }
}

/// The CPU time of this thread.
fn ran() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

fn config(tenants: usize) -> Result<String> {
    let mut text =
        "[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"198.18.0.1:9000\"\n".to_owned();
    for id in 0..tenants {
        let source = format!("10.0.{}.{}", id >> 8, id & 255);
        write!(text, "[[tenant]]\nname = \"t{id}\"\nsources = [\"{source}\"]\nquota = \"9 RU/s\"\n")?;
    }
    Ok(text)
}

/// Counts a request of every one of these tenants in one of `share` of these CPUs' rows, as the CPUs would.
pub fn count(maps: &Maps, tenants: usize, cpus: usize, share: usize) {
    for cpu in 0..cpus {
        let row = maps.row(maps.row_of(cpu));
        for tenant in (1..=tenants).filter(|tenant| (tenant + cpu) % share == 0) {
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
