//! A gate's tick with 10,000 tenants, all of which have requests: without a fleet, and with one, below the limits and above them.
//! The gates report to real owners, as they do between ticks.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_common::units::Nanos;
use gate_tests::fleet::Owner;
use gate_tests::proxy::address;
use gate_tests::ticking::{Ticking, count};
use gate_tests::world::pin;
use gate_userspace::clock;
use gate_userspace::fleet::gate::book::{Book, OnLost, Settings};
use gate_userspace::fleet::gate::reporter::Reporter;
use gate_userspace::fleet::gate::shared::SharedBook;
use gate_userspace::fleet::membership::Owners;
use serde_json::{Value, json};

use super::LAST_CPU;

const TENANTS: usize = 10_000;
/// Faked.
const CPUS: usize = 64;
const TICKS: usize = 100;
const TICK: Duration = Duration::from_millis(100);

struct Gate {
    name: &'static str,
    ticking: Ticking,
    fleet: Option<(Reporter, Owner)>,
    /// How long ticks took, and their CPU time.
    ms: [Vec<f64>; 2],
}

pub(super) fn run() -> Result<Value> {
    // A request of each in each tick: 10 RU a second.
    let mut gates = [
        Gate::new("without a fleet", None)?,
        Gate::new("with a fleet, below the limits", Some(1_000))?,
        Gate::new("with a fleet, above the limits", Some(5))?,
    ];
    pin(0);
    // The names are introduced, and every tenant above its limit has a share, before it is measured.
    for measured in 0..TICKS + 20 {
        let begun = Instant::now();
        for (place, gate) in (1..).zip(&mut gates) {
            gate.tick(measured >= 20)?;
            // What a tick has the gate report is done before the next gate's.
            std::thread::sleep((TICK * place / 3).saturating_sub(begun.elapsed()));
        }
    }
    println!("a tick with {TENANTS} tenants, all active, {CPUS} CPUs: ms, of {TICKS} each in turn");
    println!("{:<34} {:>9} {:>9} {:>9} {:>11}", "", "median", "p90", "most", "median, CPU");
    let mut results = Vec::new();
    for gate in &mut gates {
        gate.ms.iter_mut().for_each(|ms| ms.sort_by(f64::total_cmp));
        let [median, p90, most] = [TICKS / 2, TICKS * 9 / 10, TICKS - 1].map(|place| gate.ms[0][place]);
        let cpu = gate.ms[1][TICKS / 2];
        let name = gate.name;
        println!("{name:<34} {median:>9.2} {p90:>9.2} {most:>9.2} {cpu:>11.2}");
        results.push(json!({
            "gate": name, "median_ms": median, "p90_ms": p90, "most_ms": most, "median_cpu_ms": cpu,
        }));
        if let Some((_, owner)) = &gate.fleet {
            let account = owner.account("t0")?.context("t0 has no account")?;
            ensure!(account["is_held_back"] == name.ends_with("above the limits"), "{account}");
        }
    }
    Ok(results.into())
}

impl Gate {
    /// One whose tenants each have this quota at an owner, in request units a second.
    fn new(name: &'static str, quota: Option<u32>) -> Result<Self> {
        let mut ticking = Ticking::new(TENANTS, CPUS)?;
        let fleet = quota.map(|quota| join(&mut ticking, quota)).transpose()?;
        Ok(Self { name, ticking, fleet, ms: Default::default() })
    }

    fn tick(&mut self, is_measured: bool) -> Result<()> {
        let maps = Arc::clone(&self.ticking.maps);
        let counted = std::thread::spawn(move || {
            pin(*LAST_CPU);
            count(&maps, TENANTS, CPUS, CPUS);
        });
        counted.join().ok().context("counting panicked")?;
        let now = self.ticking.maps.clock().at_monotonic(clock::monotonic());
        let took = self.ticking.tick(now)?;
        self.fleet.iter().for_each(|(reporter, _)| reporter.tick());
        if is_measured {
            self.ms.iter_mut().zip(took).for_each(|(ms, took)| ms.push(took.as_secs_f64() * 1e3));
        }
        Ok(())
    }
}

fn join(ticking: &mut Ticking, quota: u32) -> Result<(Reporter, Owner)> {
    let mut limits = String::new();
    for tenant in 0..TENANTS {
        write!(limits, "[[limit]]\nname = \"t{tenant}\"\nquota = \"{quota} RU/s\"\n")?;
    }
    let owner = Owner::start_with(address(), "memory = \"1GiB\"\n", &limits)?;
    let settings = Settings { interval: Nanos::from_millis(100), on_lost: OnLost::Share };
    let book = SharedBook::new(Book::new(settings));
    ticking.ticker.share(Some(book.clone()));
    let owners = Owners::Fixed(vec![owner.address.to_string()]);
    let reporter = Reporter::start(&book, "bench", owners, None, ticking.maps.clock())?;
    Ok((reporter, owner))
}
