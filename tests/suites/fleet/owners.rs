//! Owners of limits: their files, their gates, and what happens without them.

use std::process::Command;

use anyhow::{Result, ensure};
use gate_tests::fleet::{LIMIT, Owner, TENANTS, section};
use gate_tests::proxy::{Listening, PATIENCE};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use xtask::paths;

fn gate(store: &Listening, owner: &Owner, name: &str) -> Result<Listening> {
    Listening::gate_with(&section(&[owner], name), "memcached", store.address, "", TENANTS)
}

/// The quota of `acme` at a gate, in request units a second.
fn quota(gate: &Listening) -> Result<Option<f64>> {
    Ok(gate.json(&["tenants", "acme"])?["tenants"][0]["quota_ru_per_sec"].as_f64())
}

/// Asks for a missing key, and takes whatever is the answer.
fn ask(gate: &Listening) -> Result<()> {
    gate.ask(b"get k\r\n", b"\r\n").map(drop)
}

#[test]
fn every_fault_of_a_file_with_limits_is_named_with_its_line() -> Result<()> {
    let file = std::env::temp_dir().join(format!("gate-faults-{}.toml", std::process::id()));
    let faulty = "[quota]\nlisten = \"0.0.0.0:9920\"\nmemory = \"1\"\n[[limit]]\nname = \"a=b\"\nqouta = \"1 RU/s\"\n[[limit]]\nname = \"b\"\n";
    std::fs::write(&file, faulty)?;
    let output = Command::new(paths::gate()).args(["quota", "run", "--config"]).arg(&file).output()?;
    std::fs::remove_file(&file)?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success(), "it started");
    for (line, key) in [
        (2, "quota.listen"),
        (3, "quota.memory"),
        (5, "limit[0].name"),
        (6, "limit[0].qouta"),
        (7, "limit[1].quota"),
    ] {
        ensure!(
            said.contains(&format!(":{line}: {key}")) || said.contains(&format!("{line}: {key}")),
            "{key}: {said}"
        );
    }
    Ok(())
}

#[test]
fn limits_that_are_read_again_hold_at_the_gates() -> Result<()> {
    let store = Listening::memcached()?;
    let mut owner = Owner::start(LIMIT)?;
    let gate = gate(&store, &owner, "gate-1")?;
    ask(&gate)?;
    wait_until("the limit holds", || Ok(quota(&gate)? == Some(100.0)))?;
    let head = format!("[quota]\nlisten = \"{}\"\n", owner.address);
    std::fs::write(owner.config(), format!("{head}[[limit]]\nname = \"acme\"\nquota = \"300\"\n"))?;
    owner.program.signal(Signal::SIGHUP)?;
    owner.program.wait_for("limits and certificates stay as they were", PATIENCE)?;
    std::fs::write(owner.config(), format!("{head}[[limit]]\nname = \"acme\"\nquota = \"300 RU/s\"\n"))?;
    owner.program.signal(Signal::SIGHUP)?;
    owner.program.wait_for("limits read again", PATIENCE)?;
    ask(&gate)?;
    wait_until("the new limit holds", || Ok(quota(&gate)? == Some(300.0)))?;
    // A limit that is gone leaves the tenant its own quota.
    std::fs::write(owner.config(), format!("{head}[[limit]]\nname = \"other\"\nquota = \"10 RU/s\"\n"))?;
    owner.program.signal(Signal::SIGHUP)?;
    owner.program.wait_for("limits read again", PATIENCE)?;
    ask(&gate)?;
    wait_until("the own quota holds", || Ok(quota(&gate)? == Some(1_000.0)))
}

#[test]
fn a_second_gate_of_a_name_is_turned_away_and_goes_on_alone() -> Result<()> {
    let store = Listening::memcached()?;
    let owner = Owner::start(LIMIT)?;
    let first = gate(&store, &owner, "gate-1")?;
    ask(&first)?;
    wait_until("the limit holds", || Ok(quota(&first)? == Some(100.0)))?;
    let mut second = gate(&store, &owner, "gate-1")?;
    second.program().wait_for("is connected: name one otherwise", PATIENCE)?;
    ask(&second)?;
    ensure!(quota(&second)? == Some(1_000.0));
    // The name is free once the first has left.
    drop(first);
    wait_until("the second has the limit", || {
        ask(&second)?;
        // Whatever its share is: it asks as fast as it can.
        Ok(quota(&second)?.is_some_and(|quota| quota < 1_000.0))
    })?;
    ensure!(owner.gates()? == 1);
    Ok(())
}

#[test]
fn without_an_owner_a_gate_goes_on_and_joins_when_there_is_one() -> Result<()> {
    let store = Listening::memcached()?;
    let owner = Owner::start(LIMIT)?;
    let address = owner.address;
    let section = section(&[&owner], "gate-1");
    drop(owner);
    let gate = Listening::gate_with(&section, "memcached", store.address, "", TENANTS)?;
    ask(&gate)?;
    ensure!(quota(&gate)? == Some(1_000.0));
    let owner = Owner::start_at(address, LIMIT)?;
    wait_until("the limit holds", || {
        ask(&gate)?;
        Ok(quota(&gate)?.is_some_and(|quota| quota < 1_000.0))
    })?;
    let account = owner.account("acme")?.unwrap_or_default();
    ensure!(account["charged_ru"].as_f64().is_some_and(|charged| charged > 0.0), "{account}");
    // A lost owner leaves the limit to the only gate.
    drop(owner);
    wait_until("the only gate has the whole limit", || Ok(quota(&gate)? == Some(100.0)))
}
