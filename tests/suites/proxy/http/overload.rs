//! Two tenants ask an HTTP service for three times what it can do.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_common::units::Nanos;
use gate_tests::proxy::Listening;
use gate_tests::wait::within;
use gate_userspace::load::{self, Plan, Protocol, TenantSummary, Transport};

const TENANTS: &str = r#"
[[tenant]]
name = "critical"
sources = ["127.0.0.2"]
quota = "unlimited"
tier = "critical"
[[tenant]]
name = "batch"
sources = ["127.0.0.3"]
quota = "unlimited"
tier = "batch"
"#;
/// Requests a second that the store serves at most: two at a time, each in 10 ms.
const CAPACITY: f64 = 200.0;
const STORE: [&str; 4] = ["--concurrency", "2", "--service-time", "10ms"];
/// Long beside what a busy machine adds to an answer.
const OBJECTIVES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(200)];
/// Above an objective by as much is an answer that the client and the network were late with.
const TOLERANCE: f64 = 1.1;
/// Bouncer needs so many answers before it knows the requests.
const KNOWN: u64 = 600;
const MEASURED: Nanos = Nanos::from_secs(4);
const LONGEST: Duration = Duration::from_secs(60);

/// Asks for so many requests a second, as critical and as batch, open loop. A connection carries one request at a time.
fn ask(gate: &Listening, rates: [f64; 2], lasting: Nanos) -> Result<[TenantSummary; 2]> {
    let tenant = |(name, last), rate| {
        let tenant = format!("name={name},source=127.0.0.{last},rate={}/s,connections=200", rate as u64);
        tenant.parse().with_context(|| tenant.clone())
    };
    let tenants =
        [("critical", 2), ("batch", 3)].into_iter().zip(rates).map(|(named, rate)| tenant(named, rate));
    let plan = Plan {
        target: gate.address,
        transport: Transport::Tcp,
        protocol: Protocol::Http,
        tenants: tenants.collect::<Result<_>>()?,
        duration: lasting,
        count: None,
        timeout: Nanos::from_secs(5),
        seed: 1,
    };
    let tenants = load::start(&plan)?.finish().tenants;
    for tenant in &tenants {
        println!(
            "{}: offered {}, answered {} in {:?}, refused {:?}, lost {}",
            tenant.name,
            tenant.offered,
            tenant.answered,
            times(tenant),
            tenant.refused_by_reason,
            tenant.lost + tenant.failed + tenant.unsent
        );
    }
    tenants.try_into().ok().context("two tenants")
}

/// The time within which half of a tenant's answers came, and 90 %: from when the client was due to ask.
fn times(tenant: &TenantSummary) -> [Duration; 2] {
    [tenant.latency_ns.p50, tenant.latency_ns.p90].map(Duration::from_nanos)
}

fn keeps_objectives(tenant: &TenantSummary) -> bool {
    let mut kept = times(tenant).into_iter().zip(OBJECTIVES);
    kept.all(|(time, objective)| time <= objective.mul_f64(TOLERANCE))
}

#[test]
fn at_thrice_its_capacity_bouncer_keeps_objectives() -> Result<()> {
    for admission in ["off", "bouncer"] {
        let values = if admission == "bouncer" { "histogram_values = \"300\"" } else { "" };
        let service = format!(
            "parallelism = \"2\"\nadmission = \"{admission}\"\n{values}\n\
             objectives = {{ default = {{ p50 = \"{:?}\", p90 = \"{:?}\" }} }}\n\
             codel = {{ law = \"off\" }}\nshedding.enabled = \"off\"",
            OBJECTIVES[0], OBJECTIVES[1]
        );
        let store = Listening::embedded_with("http", &STORE)?;
        let gate = Listening::gate_with("threads = \"1\"", "http", store.address, &service, TENANTS)?;
        within("the store is not known", LONGEST, || {
            ask(&gate, [0.3 * CAPACITY, CAPACITY], Nanos::from_secs(1))?;
            let queues = gate.json(&["queues"])?;
            let types = queues["services"][0]["types"].as_array().context("no types")?.clone();
            let answered: u64 = types.iter().filter_map(|of_type| of_type["answered"].as_u64()).sum();
            Ok(answered >= KNOWN)
        })?;
        let [critical, batch] = ask(&gate, [0.4 * CAPACITY, 2.6 * CAPACITY], MEASURED)?;
        let kept = keeps_objectives(&critical) && keeps_objectives(&batch);
        ensure!(
            kept == (admission == "bouncer"),
            "{admission}: {:?} and {:?}",
            times(&critical),
            times(&batch)
        );
        if admission == "bouncer" {
            ensure!(critical.answered * 100 >= critical.offered * 99, "critical gets less than 99 %");
            ensure!(batch.refused > 0 && batch.answered > 0, "batch is not the one that gives way");
        }
    }
    Ok(())
}
