//! Eight gates before one memcached share a limit that three times as much is asked for. The store's own counters are the judge.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fleet::{Owner, section};
use gate_tests::fleet_site::ONE_RU;
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;
use xtask::lab::process::ChildProcess;
use xtask::paths;

/// Owners know these; a request costs one unit.
const LIMITS: &str = r#"
[[limit]]
name = "greedy"
quota = "2000 RU/s"

[[limit]]
name = "polite"
quota = "400 RU/s"
"#;
const TENANTS: &str = r#"
[[tenant]]
name = "greedy"
sources = ["127.0.1.0/24"]
quota = "unlimited"

[[tenant]]
name = "polite"
sources = ["127.0.2.0/24"]
quota = "unlimited"
"#;
const GATES: usize = 8;

/// Gates before a store, all of one fleet.
fn gates(store: &Listening, owners: &[&Owner]) -> Result<Vec<Listening>> {
    let gate = |number: usize| {
        let fleet = section(owners, &format!("gate-{number}"));
        Listening::gate_with(&fleet, "memcached", store.address, ONE_RU, TENANTS)
    };
    let gates = (0..GATES).map(gate).collect::<Result<Vec<_>>>()?;
    for owner in owners {
        wait_until("all gates report", || Ok(owner.gates()? == GATES))?;
    }
    Ok(gates)
}

/// Reads through a gate for so long: three times the limit of `greedy` at all gates together, and half of that of `polite`.
fn load(gate: &Listening, time: Duration) -> Result<ChildProcess> {
    let mut command = Command::new(paths::gate());
    command.args(["load", "--tcp", "--json", "--target", &gate.address.to_string()]);
    for (tenant, rate, source) in [("greedy", 6_000, "127.0.1.1"), ("polite", 200, "127.0.2.1")] {
        let rate = rate / GATES;
        command.args([
            "--tenant",
            &format!("name={tenant},rate={rate}/s,source={source},reads=100%,connections=1"),
        ]);
    }
    command.args(["--for", &format!("{}s", time.as_secs())]);
    ChildProcess::start("gate load", command)
}

fn refused(gates: &[Listening], tenant: &str) -> Result<u64> {
    gates.iter().try_fold(0, |sum, gate| {
        let document = gate.json(&["tenants", tenant])?;
        let refused = document["tenants"][0]["refused"].as_object().context("no refusals")?;
        Ok(sum + refused.values().filter_map(serde_json::Value::as_u64).sum::<u64>())
    })
}

/// The reads of the store a second, in each ten of so many seconds.
fn windows(store: &Listening, seconds: u64) -> Result<Vec<f64>> {
    let from = Instant::now();
    let mut readings = Vec::new();
    for second in 0..=seconds {
        let due = from + Duration::from_secs(second);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        readings.push((Instant::now(), store.stat("cmd_get")?));
    }
    let ten = readings.iter().zip(readings.iter().skip(10));
    Ok(ten
        .map(|((from, before), (to, after))| (after - before) as f64 / (*to - *from).as_secs_f64())
        .collect())
}

#[test]
fn eight_gates_give_out_one_limit_and_refuse_nobody_below_it() -> Result<()> {
    let store = Listening::memcached()?;
    let owners = [Owner::start(LIMITS)?, Owner::start(LIMITS)?];
    let gates = gates(&store, &[&owners[0], &owners[1]])?;
    let loads = gates.iter().map(|gate| load(gate, Duration::from_secs(18))).collect::<Result<Vec<_>>>()?;
    wait_until("the limit holds gates back", || Ok(refused(&gates, "greedy")? > 1_000))?;
    let rates = windows(&store, 13)?;
    drop(loads);
    println!("reads a second in each ten seconds, of 2,000 and 200: {rates:.0?}");
    ensure!(rates.iter().all(|rate| (2_100.0..2_310.0).contains(rate)), "{rates:?}");
    ensure!(refused(&gates, "polite")? == 0, "somebody below its limit was refused");
    Ok(())
}
