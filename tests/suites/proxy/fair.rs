//! Two tenants before a store that cannot do all that they ask for together, by default configuration: who asks for less than their
//! share notices little, who asks for more gets what is left.
//!
//! Counts and orders alone: how fast the store is, the machine decides.

mod crowd;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_common::units::Nanos;
use gate_tests::proxy::Listening;
use gate_tests::slow_store::slow_store;
use gate_tests::wait::within;
use gate_userspace::load::{self, Plan, Protocol, TenantSummary, Transport};
use xtask::paths;

/// The store does some 200 requests a second, one after the other.
const SERVICE_TIME: Duration = Duration::from_millis(5);
const LASTING: Nanos = Nanos::from_secs(6);
const LONGEST: Duration = Duration::from_secs(30);

/// A gate before a slow store. `tiers` are those of the tenants `small` and `large`.
fn gate(tiers: [&str; 2]) -> Result<Listening> {
    let tenant = |name: &str, source: &str, tier: &str| {
        format!(
            "[[tenant]]\nname = \"{name}\"\nsources = [\"{source}\"]\nquota = \"5000 RU/s\"\ntier = \"{tier}\"\n"
        )
    };
    let tenants = [tenant("small", "127.0.0.2", tiers[0]), tenant("large", "127.0.0.3", tiers[1])].concat();
    let gate = Listening::gate_with("threads = \"2\"", "memcached", slow_store(SERVICE_TIME)?, "", &tenants)?;
    // The usual latency of the store.
    let alone = ask(gate.address, &[("small", "127.0.0.2", 20)], Nanos::from_secs(2))?;
    ensure!(alone[0].refused == 0, "alone: {:?}", alone[0]);
    Ok(gate)
}

/// Asks for so many requests a second, open loop.
fn ask(target: SocketAddr, tenants: &[(&str, &str, u64)], lasting: Nanos) -> Result<Vec<TenantSummary>> {
    let tenant = |&(name, source, rate): &(&str, &str, u64)| {
        let tenant = format!("name={name},source={source},rate={rate}/s,connections=16");
        tenant.parse().with_context(|| tenant.clone())
    };
    let plan = Plan {
        target,
        transport: Transport::Tcp,
        protocol: Protocol::Memcached,
        tenants: tenants.iter().map(tenant).collect::<Result<_>>()?,
        duration: lasting,
        count: None,
        timeout: Nanos::from_secs(20),
        seed: 1,
    };
    let summary = load::start(&plan)?.finish();
    for tenant in &summary.tenants {
        let TenantSummary { name, offered, answered, refused_by_reason, latency_ns, .. } = tenant;
        println!("{name}: {answered} of {offered} in {latency_ns:?}, refused {refused_by_reason:?}");
    }
    Ok(summary.tenants)
}

/// Both at once: `small` a tenth of what the store can do, `large` ten times all of it.
fn ask_both(target: SocketAddr) -> Result<(TenantSummary, TenantSummary)> {
    let mut tenants = ask(target, &[("small", "127.0.0.2", 20), ("large", "127.0.0.3", 2_000)], LASTING)?;
    Ok((tenants.remove(0), tenants.remove(0)))
}

/// The explanation of the next request of `large`.
fn explain(gate: &Listening) -> Result<serde_json::Value> {
    let (_, socket) = gate.files()?;
    let mut command = Command::new(paths::gate());
    command.args(["explain", "--json", "--service", "store", "--tenant", "large", "--socket"]).arg(socket);
    let output = command.args(["--", "get", "k"]).output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[test]
fn who_asks_for_less_than_their_share_is_not_refused() -> Result<()> {
    let gate = gate(["standard"; 2])?;
    let (small, large) = ask_both(gate.address)?;
    ensure!(small.answered == small.offered, "{small:?}");
    ensure!(large.refused > large.answered && large.lost == 0, "{large:?}");
    // It has had what the other left: nine parts of ten.
    ensure!(large.answered > 3 * small.answered, "{large:?}");
    ensure!(small.latency_ns.p50 < large.latency_ns.p50, "{:?}, {:?}", small.latency_ns, large.latency_ns);
    Ok(())
}

#[test]
fn a_lesser_tier_gets_what_a_critical_one_leaves() -> Result<()> {
    let gate = gate(["critical", "best-effort"])?;
    let (critical, rest) = ask_both(gate.address)?;
    ensure!(critical.answered == critical.offered, "{critical:?}");
    ensure!(rest.answered > 3 * critical.answered && rest.refused > 0, "{rest:?}");
    Ok(())
}

#[test]
fn shares_are_shown_and_explained_and_end() -> Result<()> {
    let gate = gate(["standard"; 2])?;
    let shedding = || -> Result<String> {
        let queues = gate.json(&["queues"])?;
        Ok(queues["services"][0]["shedding"].as_str().unwrap_or_default().to_owned())
    };
    let address = gate.address;
    std::thread::scope(|scope| -> Result<()> {
        let load = scope.spawn(move || ask_both(address));
        within("shares do not bind", LONGEST, || Ok(shedding()? == "sharing"))?;
        within("the share is not explained", LONGEST, || {
            let explained = explain(&gate)?;
            let notes = explained["notes"].to_string();
            let chance = explained["refused_by_chance"].as_f64().unwrap_or(0.0);
            Ok(notes.contains("of it this tenant may have") && chance > 0.0)
        })?;
        load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        Ok(())
    })?;
    within("shares do not end", LONGEST, || Ok(shedding()? == "steady"))?;
    let after = ask(gate.address, &[("large", "127.0.0.3", 50)], Nanos::from_secs(2))?;
    ensure!(after[0].refused == 0, "{:?}", after[0]);
    Ok(())
}
