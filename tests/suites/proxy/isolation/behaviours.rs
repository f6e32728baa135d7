//! The table of docs/ISOLATION.md, through gate and at reduced size: a polite tenant feels nothing of its neighbours.
//!
//! `xtask/src/isolation/not_kept.rs` lists the behaviours that are felt, and these have to be felt here: an entry that holds
//! is to be removed there.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use xtask::isolation::{Behaviour, Breaks, Group, Measured, Site, Target, behaviours, limit};

/// A p99 that only a store or a gate that stands still explains, on a busy machine too.
const STANDSTILL: Duration = Duration::from_millis(600);

/// Below this p99 without a neighbour, the machine is quiet enough to tell that one is not felt.
const QUIET: Duration = Duration::from_millis(5);

#[test]
fn connections_of_a_neighbour_are_not_felt() -> Result<()> {
    check(Group::Connections)
}

#[test]
fn memcached_requests_of_a_neighbour_are_not_felt() -> Result<()> {
    check(Group::Memcached)
}

#[test]
fn datagrams_of_a_neighbour_are_not_felt() -> Result<()> {
    check(Group::Datagrams)
}

#[test]
fn redis_requests_of_a_neighbour_are_not_felt() -> Result<()> {
    check(Group::Redis)
}

/// A request may wait, as those of all do that ask this store.
#[test]
fn no_request_fails_for_a_dear_command_of_a_neighbour() -> Result<()> {
    check(Group::Dear)
}

#[test]
fn reloads_and_takeovers_beside_a_neighbour_are_not_felt() -> Result<()> {
    check(Group::Operation)
}

fn check(group: Group) -> Result<()> {
    let is_long = std::env::var_os("GATE_LONG").is_some();
    let lasts = Duration::from_millis(if is_long { 2_000 } else { 500 });
    let site = Site::make()?.with_elements(if is_long { 1_000_000 } else { 100_000 });
    let mut wrong = Vec::new();
    for behaviour in behaviours().iter().filter(|behaviour| behaviour.group == group) {
        // The strict limit is asked of those alone that are known to be above it.
        let baseline = behaviour.not_kept().map(|_| lasts);
        let measured = site
            .measure(behaviour, Target::ThroughGate, baseline, lasts)
            .with_context(|| behaviour.name.to_owned())?;
        wrong.extend(unexpected(behaviour, &measured));
    }
    ensure!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    Ok(())
}

/// A message if the result is not as the table says.
fn unexpected(behaviour: &Behaviour, measured: &Measured) -> Option<String> {
    let Measured { baseline, with_neighbour, .. } = measured;
    let within = |p99| with_neighbour.errors == 0 && with_neighbour.p99 <= p99;
    let seen = format!(
        "{} ({}): {} of {} requests failed, p99 {:?}; {}",
        behaviour.name,
        behaviour.store.name(),
        with_neighbour.errors,
        with_neighbour.requests,
        with_neighbour.p99,
        with_neighbour.first_error.as_deref().unwrap_or("no error")
    );
    // On a busy machine everything is slow, and what is felt cannot be told.
    let strict =
        baseline.as_ref().filter(|baseline| baseline.p99 < QUIET).map(|baseline| limit(baseline.p99));
    match behaviour.not_kept().map(|entry| entry.breaks) {
        None if behaviour.may_wait => (with_neighbour.errors > 0).then_some(seen),
        None => (!within(STANDSTILL)).then_some(seen),
        Some(Breaks::Sometimes) => None,
        Some(Breaks::Errors) if with_neighbour.errors > 0 => None,
        Some(Breaks::Latency) if !strict.is_some_and(within) => None,
        Some(_) => Some(format!("{seen}; it is listed as not kept, and holds: remove it there")),
    }
}
