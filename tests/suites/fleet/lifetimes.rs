//! The ends of what gates leave at an owner: sessions, parts, debts, and names.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fleet::{LIMIT, Owner};
use gate_tests::proxy::address;
use gate_tests::wait::wait_until;
use gate_userspace::fleet::wire::{Hello, Introduction, Report};
use xtask::paths;

use super::bare_gate::{BareGate, first, hello, next};

#[test]
fn a_successor_reports_beside_the_process_that_it_replaces() -> Result<()> {
    let owner = Owner::start(LIMIT)?;
    let mut old = BareGate::connect(owner.address, hello("gate-1"))??;
    old.exchange(first("acme", 1_000))??;
    let other = || Hello { session: 8, ..hello("gate-1") };
    let status = BareGate::connect(owner.address, other())?.err().context("two of one name")?;
    ensure!(status.message().contains("is connected"), "{status}");
    let mut new = BareGate::connect(owner.address, Hello { takes_over: true, ..other() })??;
    new.exchange(first("acme", 1_000))??;
    old.exchange(next(2, 0, 1_000))??;
    ensure!(owner.gates()? == 2);
    ensure!(owner.account("acme")?.context("no account")?["charged_ru"] == 3.0);
    // The old one drains: its stream is made anew, and one that does not take over finds its place free.
    drop((old, new));
    wait_until("both streams have ended", || Ok(owner.gates()? == 0))?;
    let mut old = BareGate::connect(owner.address, Hello { drains: true, ..hello("gate-1") })??;
    let mut new = BareGate::connect(owner.address, Hello { session: 9, ..hello("gate-1") })??;
    old.exchange(next(3, 0, 1_000))??;
    new.exchange(first("acme", 1_000))??;
    ensure!(owner.account("acme")?.context("no account")?["charged_ru"] == 5.0);
    Ok(())
}

#[test]
fn an_operator_resets_an_account_and_says_why() -> Result<()> {
    let owner = Owner::start(LIMIT)?;
    let mut gate = BareGate::connect(owner.address, hello("gate-1"))??;
    let answer = gate.exchange(first("acme", 1 << 60))??;
    ensure!(answer.full_in_ms == [300], "{answer:?}");
    let reset = |arguments: &[&str]| -> Result<_> {
        let at = owner.address.to_string();
        let mut command = Command::new(paths::gate());
        Ok(command.args(["quota", "reset", "--owner", &at]).args(arguments).output()?)
    };
    ensure!(!reset(&["acme"])?.status.success(), "without a reason");
    ensure!(!reset(&["globex", "--why", "a test"])?.status.success(), "there is no such account");
    let output = reset(&["acme", "--why", "a faulty gate"])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let account = owner.account("acme")?.context("no account")?;
    ensure!(account["left_ru"] == 10.0 && account["is_held_back"] == false, "{account}");
    ensure!(gate.exchange(next(2, 0, 0))??.per_sec.is_empty(), "its gate is told");
    ensure!(owner.count("reset")? == 1);
    Ok(())
}

#[test]
fn the_names_of_a_gate_that_has_left_make_room() -> Result<()> {
    const NAMES: usize = 4_000;
    let of_users = "[[limit]]\nname = \"shop/user=*\"\nquota = \"100 RU/s\"\n";
    let owner = Owner::start_with(address(), "memory = \"1MiB\"\n", of_users)?;
    let name = |text: String| Introduction { name: text, full_in_us: 0, ..Introduction::default() };
    let mut pod = BareGate::connect(owner.address, hello("pod-1"))??;
    pod.exchange(Report {
        introductions: (0..NAMES).map(|user| name(format!("shop/user={user}"))).collect(),
        ..next(1, 0, 1_000)
    })??;
    ensure!(owner.count("name-without-room")? > 0);
    drop(pod);
    let mut session = 100;
    wait_until("another gate's name has a limit", || {
        session += 1;
        let hello = Hello { session, ..hello(&format!("pod-{session}")) };
        let mut gate = BareGate::connect(owner.address, hello)??;
        let introductions = vec![name(format!("shop/user=new-{session}"))];
        let answer = gate.exchange(Report { introductions, ..next(1, 0, 1_000) })??;
        Ok(answer.limits[0].per_sec > 0)
    })
}
