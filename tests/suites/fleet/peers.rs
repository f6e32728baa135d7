//! Gates that report what does not hold together.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fleet::Owner;
use gate_tests::proxy::address;
use gate_tests::wait::wait_until;
use gate_userspace::fleet::wire::{Hello, Introduction, Report, Reservation, VERSION};
use nix::sys::signal::Signal;

use super::bare_gate::{BareGate, first, hello, next};

const LIMIT: &str =
    "[[limit]]\nname = \"acme\"\nquota = \"100 RU/s\"\n[[limit]]\nname = \"globex\"\nquota = \"100 RU/s\"\n";

const OF_USERS: &str = "[[limit]]\nname = \"shop/user=*\"\nquota = \"10 RU/s\"\n";

/// Reports that end a stream, one after the other, and what is said to the last one.
fn faulty() -> Vec<(Vec<Report>, &'static str)> {
    let introduction =
        |name: &str| Introduction { name: name.to_owned(), full_in_us: 0, ..Introduction::default() };
    vec![
        (vec![next(0, 0, 0)], "report 0 follows report 0"),
        (vec![next(2, 0, 0)], "report 2 follows report 0"),
        (vec![first("acme", 0), next(2, 0, 0), next(1, 0, 0)], "report 1 follows report 2"),
        (vec![next(u64::MAX, 0, 0)], "follows report 0"),
        (vec![next(1, 0, 0)], "not introduced; 0 were"),
        (vec![first("acme", 0), next(2, u32::MAX, 0)], "not introduced; 1 were"),
        (vec![Report { handles: vec![0, 0], ..first("acme", 0) }], "2 handles with 1 and 1 counts"),
        (vec![Report { refused: vec![0, 0], ..first("acme", 0) }], "1 handles with 1 and 2 counts"),
        (
            vec![Report {
                reservations: vec![Reservation { handle: 1, ..Reservation::default() }],
                ..first("acme", 0)
            }],
            "not introduced; 1 were",
        ),
        (vec![first("", 0)], "a name that is none"),
        (vec![first("a=*", 0)], "a name that is none"),
        (
            vec![Report { introductions: vec![introduction(&"n".repeat(9 << 20))], ..first("acme", 0) }],
            "message length too large",
        ),
    ]
}

#[test]
fn a_report_that_does_not_hold_together_ends_its_stream_alone() -> Result<()> {
    let owner = Owner::start(LIMIT)?;
    let mut neighbour = BareGate::connect(owner.address, hello("gate-1"))??;
    neighbour.exchange(first("globex", 1_000))??;
    for (place, (reports, said)) in faulty().into_iter().enumerate() {
        let before = owner.count("fault")?;
        let mut gate = BareGate::connect(owner.address, hello(&format!("gate-of-fault-{place}")))??;
        let mut answers = reports.into_iter().map(|report| gate.exchange(report));
        let status = answers.find_map(|answer| answer.map(Result::err).transpose()).context(said)??;
        ensure!(status.message().contains(said), "{said}: {status}");
        ensure!(owner.count("fault")? == before + 1, "{said}: it is not counted");
        let answer = neighbour.exchange(next(place as u64 + 2, 0, 1_000))??;
        ensure!(answer.per_sec.is_empty(), "{said}: the neighbour is held back");
    }
    let account = owner.account("globex")?.context("no account")?;
    ensure!(account["charged_ru"] == 1.0 + faulty().len() as f64, "{account}");
    Ok(())
}

#[test]
fn counts_at_the_ends_of_their_range_cost_that_limit_alone() -> Result<()> {
    let owner = Owner::start(LIMIT)?;
    let mut neighbour = BareGate::connect(owner.address, hello("gate-1"))??;
    neighbour.exchange(first("globex", 1_000))??;
    let mut gate = BareGate::connect(owner.address, hello("gate-2"))??;
    let most = |number| Report {
        within_us: if number % 2 == 0 { 0 } else { u64::MAX },
        refused: vec![u64::MAX],
        unit: u64::MAX,
        ..next(number, 0, u64::MAX)
    };
    let introductions =
        vec![Introduction { name: "acme".to_owned(), full_in_us: u64::MAX, ..Introduction::default() }];
    let mut answer = gate.exchange(Report { introductions, ..most(1) })??;
    for number in 2..6 {
        answer = gate.exchange(most(number))??;
    }
    // A burst of 100 ms, and twice as much of debt.
    ensure!(answer.full_in_ms == [300] && answer.per_sec == [1], "{answer:?}");
    ensure!(neighbour.exchange(next(2, 0, 1_000))??.per_sec.is_empty());
    ensure!(owner.account("globex")?.context("no account")?["charged_ru"] == 2.0);
    Ok(())
}

#[test]
fn a_gate_of_another_version_or_without_a_name_is_turned_away() -> Result<()> {
    let owner = Owner::start(LIMIT)?;
    for (hello, said) in [
        (
            Hello { version: VERSION + 1, ..hello("gate-1") },
            "this owner speaks versions 2 to 2, the gate version 3",
        ),
        (Hello { version: 1, ..hello("gate-1") }, "this owner speaks versions 2 to 2, the gate version 1"),
        (hello(""), "a gate needs a name"),
        (hello("gate\n1"), "a gate needs a name"),
        (hello(&"g".repeat(257)), "a gate needs a name"),
    ] {
        let before = owner.count("turned-away")?;
        let status = BareGate::connect(owner.address, hello)?.err().context(said)?;
        ensure!(status.message().contains(said), "{said}: {status}");
        ensure!(owner.count("turned-away")? == before + 1, "{said}: it is not counted");
    }
    ensure!(owner.gates()? == 0);
    Ok(())
}

#[test]
fn a_newer_gate_that_speaks_this_version_too_is_spoken_to() -> Result<()> {
    let owner = Owner::start(LIMIT)?;
    let newer = Hello { version: VERSION + 1, oldest: VERSION, ..hello("gate-1") };
    let mut gate = BareGate::connect(owner.address, newer)??;
    let answer = gate.exchange(first("acme", 5_000))??;
    ensure!(answer.number == 1 && answer.limits.len() == 1, "{answer:?}");
    let later = Hello { version: VERSION + 2, oldest: VERSION + 1, ..hello("gate-2") };
    ensure!(BareGate::connect(owner.address, later)?.is_err());
    Ok(())
}

#[test]
fn a_report_that_comes_again_is_charged_once() -> Result<()> {
    let owner = Owner::start(LIMIT)?;
    let mut gate = BareGate::connect(owner.address, hello("gate-1"))??;
    let mut last = gate.exchange(first("acme", 5_000))??;
    for _ in 0..3 {
        // The connection breaks, and the same session goes on.
        drop(gate);
        wait_until("the stream has ended", || Ok(owner.gates()? == 0))?;
        gate = BareGate::connect(owner.address, hello("gate-1"))??;
        let again = gate.exchange(first("acme", 5_000))??;
        ensure!(again.number == last.number && again.limits.len() == 1, "{again:?} after {last:?}");
        last = again;
    }
    ensure!(owner.account("acme")?.context("no account")?["charged_ru"] == 5.0);
    ensure!(owner.count("repeated")? == 3);
    Ok(())
}

#[test]
fn an_owner_outlives_gates_that_leave_while_it_answers() -> Result<()> {
    const ENTRIES: usize = 10_000;
    let mut owner = Owner::start(LIMIT)?;
    // A long answer, which is written in pieces.
    let mut handles = vec![1; ENTRIES];
    handles[0] = 0;
    let name = |place| Introduction {
        name: format!("globex/user={place}"),
        full_in_us: 0,
        ..Introduction::default()
    };
    let introductions = (0..ENTRIES).map(name).collect();
    let counts = vec![0; ENTRIES];
    let report = Report { introductions, handles, charged: counts.clone(), refused: counts, ..next(1, 0, 0) };
    for place in 0..100 {
        let mut gate = BareGate::connect(owner.address, hello(&format!("gate-{place}")))??;
        gate.send(report.clone())?;
        gate.leave_in(Duration::from_micros(place * 100));
        ensure!(owner.program.is_running()?, "it has ended");
    }
    ensure!(owner.count("connected")? == 100);
    // Whether one leaves between two pieces is chance; what it would then be told must not end it.
    let status = std::fs::read_to_string(format!("/proc/{}/status", owner.program.id()))?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).context("no signals")?;
    let ignored = u64::from_str_radix(ignored.trim(), 16)?;
    ensure!(ignored & 1 << (Signal::SIGPIPE as i32 - 1) != 0, "SIGPIPE ends it");
    Ok(())
}

/// The first report of so many names of users, each of which has used this much.
fn users(count: usize, charged: u64) -> Report {
    let name =
        |place| Introduction { name: format!("shop/user={place}"), full_in_us: 0, ..Introduction::default() };
    let mut handles = vec![1; count];
    handles[0] = 0;
    Report {
        introductions: (0..count).map(name).collect(),
        handles,
        charged: vec![charged; count],
        refused: vec![0; count],
        ..next(1, 0, 0)
    }
}

#[test]
fn names_beyond_an_owners_memory_count_nowhere_else() -> Result<()> {
    const NAMES: usize = 4_000;
    const ROOM: usize = (1 << 20) / 512;
    let owner = Owner::start_with(address(), "memory = \"1MiB\"\n", &format!("{LIMIT}{OF_USERS}"))?;
    let mut neighbour = BareGate::connect(owner.address, hello("gate-1"))??;
    neighbour.exchange(first("globex", 1_000))??;
    let mut gate = BareGate::connect(owner.address, hello("gate-2"))??;
    let answer = gate.exchange(users(NAMES, 5_000))??;
    let without = answer.limits.iter().filter(|limit| limit.per_sec == 0).count();
    // Names are spread over as many parts as there are cores.
    ensure!((NAMES - ROOM - 200..NAMES - ROOM / 2).contains(&without), "{without}");
    ensure!(owner.count("name-without-room")? as usize == without);
    // They are answered as those that no rule fits are, and nobody else notices.
    for (limit, per_sec) in answer.limits.iter().zip(&answer.per_sec) {
        ensure!((limit.per_sec == 0) == (*per_sec == 0), "{limit:?}: {per_sec}");
    }
    ensure!(neighbour.exchange(next(2, 0, 1_000))??.per_sec.is_empty());
    ensure!(owner.account("globex")?.context("no account")?["charged_ru"] == 2.0);
    let unknown = neighbour.exchange(Report {
        introductions: vec![Introduction {
            name: "initech".to_owned(),
            full_in_us: u64::MAX,
            ..Introduction::default()
        }],
        ..next(3, 1, u64::MAX)
    })??;
    ensure!(unknown.per_sec.is_empty() && unknown.limits[0].per_sec == 0, "{unknown:?}");
    ensure!(owner.count("name-without-rule")? == 1);
    Ok(())
}

#[test]
fn a_gate_that_never_reads_its_answers_is_let_go_alone() -> Result<()> {
    let owner = Owner::start(&format!("{LIMIT}{OF_USERS}"))?;
    let mut neighbour = BareGate::connect(owner.address, hello("gate-1"))??;
    neighbour.exchange(first("globex", 1_000))??;
    let mut gate = BareGate::connect(owner.address, hello("gate-2"))??;
    // Each is in debt, so that answers are long.
    let report = users(100_000, 100_000);
    let mut number = 0;
    let mut taken = true;
    while taken && number < 100 {
        number += 1;
        let introductions = if number == 1 { report.introductions.clone() } else { Vec::new() };
        let report = Report { number, introductions, ..report.clone() };
        taken = gate.send_within(report, Duration::from_millis(300))?;
    }
    ensure!(!taken, "{number} reports were taken, whose answers nobody reads");
    let mut next_number = 1;
    wait_until("it is let go", || {
        // It answers pings meanwhile, and nothing else.
        gate.send_within(Report::default(), Duration::from_millis(100))?;
        next_number += 1;
        ensure!(neighbour.exchange(next(next_number, 0, 1_000))??.per_sec.is_empty());
        Ok(owner.count("unread")? == 1)
    })?;
    wait_until("its name is free", || Ok(owner.gates()? == 1))
}
