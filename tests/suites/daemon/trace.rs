//! `gate run --trace`: each step of one source's packets, and of no other's.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::packet::Packet;
use gate_tests::privilege;
use gate_tests::raw::RawSender;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use xtask::lab::process::ChildProcess;

/// A bucket of two requests, refilled in hours; and another tenant, charged to it.
const CONFIG: &str = r#"
[[service]]
name = "cache"
protocol = "memcached"
listen = "198.18.0.1:11211"
price = { base = "1 RU", row = "0 RU", kib = "0 RU" }

[[tenant]]
name = "whole"
sources = "198.18.9.1"
quota = "0.001 RU/s"
burst = "2000s"

[[tenant]]
name = "part"
sources = "198.18.9.2"
quota = "unlimited"
charge = ["whole"]
"#;
const WHOLE: &str = "198.18.9.1";
const PART: &str = "198.18.9.2";
const UNKNOWN: &str = "198.18.9.3";
const CACHE: u16 = 11_211;

fn get(source: &str, port: u16) -> Vec<u8> {
    Packet::memcached(source, "198.18.0.1", port, 7, b"get a\r\n").bytes()
}

/// The lines of a trace, up to one that contains `last`.
fn until(gate: &mut ChildProcess, last: &str) -> Result<Vec<String>> {
    let mut lines: Vec<String> = Vec::new();
    wait_until(last, || {
        lines.extend(gate.printed());
        Ok(lines.iter().any(|line| line.contains(last)))
    })
    .with_context(|| lines.join("\n"))?;
    Ok(lines)
}

/// Checks that lines are those of the packet of [`WHOLE`] with this number, with these steps, of which the beginnings are given.
fn check(lines: &[String], number: usize, steps: &[&str]) -> Result<()> {
    ensure!(lines.len() == steps.len(), "{lines:#?} instead of {steps:#?}");
    for (line, step) in lines.iter().zip(steps) {
        let said = line.splitn(4, ' ').skip(1).collect::<Vec<_>>();
        let is_said = said[0] == WHOLE && said[1] == format!("#{number}") && said[2].starts_with(step);
        ensure!(is_said, "{line} instead of {step}");
    }
    Ok(())
}

/// The exits that were counted, by name.
fn exits(site: &Site) -> Result<BTreeMap<String, u64>> {
    let status = site.json(&["status"])?;
    let exits = status["exits"].as_object().context("exits")?;
    Ok(exits.iter().map(|(name, count)| (name.clone(), count.as_u64().unwrap_or(0))).collect())
}

const BEFORE: [&str; 7] = [
    "headers: IPv4, UDP at byte 34",
    "port: 11211, a service listens there",
    "payload: 15 bytes at byte 42",
    "service: cache",
    "tenant: whole",
    "price: 1.000 RU, a single get",
    "pushed: nothing is refused ahead",
];

#[test]
fn each_step_of_a_packet_is_named_up_to_the_counted_exit() -> Result<()> {
    if !privilege::root("trace::each_step_of_a_packet_is_named_up_to_the_counted_exit") {
        return Ok(());
    }
    let site = Site::new(CONFIG)?;
    let mut gate = site.start(&["--trace", WHOLE])?;
    let _peer = site.peer()?;
    let sender = RawSender::open(&site.net)?;
    let charged = "bucket: quota of whole: took 50.00 % of its burst; ";
    let refused = [
        "bucket: quota of whole: lacks the price, 50.00 % of its burst; 0.",
        "refusal: quota",
        "bucket: reply_budget: took ",
        "reply: written",
        "exit: refused-replied, XDP_TX",
    ];
    let passed = [charged, "exit: passed, XDP_PASS"];
    let elsewhere = [BEFORE[0], "port: 53, no service listens there", "exit: not-ours, XDP_PASS"];
    let packets = [
        (CACHE, [&BEFORE[..], &passed].concat()),
        (CACHE, [&BEFORE[..], &passed].concat()),
        (CACHE, [&BEFORE[..], &refused].concat()),
        (53, elsewhere.to_vec()),
    ];
    for (number, (port, steps)) in (1..).zip(packets) {
        let before = exits(&site)?;
        // Nothing is said of others.
        sender.send(&get(PART, 53))?;
        sender.send(&get(UNKNOWN, CACHE))?;
        sender.send(&get(WHOLE, port))?;
        check(&until(&mut gate, " exit: ")?, number, &steps)?;
        let said = steps.last().and_then(|exit| exit.strip_prefix("exit: ")?.split_once(','));
        let (exit, _) = said.context("an exit")?;
        let after = exits(&site)?;
        ensure!(after[exit] > before[exit], "{exit}: {before:?}, then {after:?}");
    }
    Ok(())
}

#[test]
fn a_takeover_begins_and_ends_a_trace_and_a_reload_does_not() -> Result<()> {
    if !privilege::root("trace::a_takeover_begins_and_ends_a_trace_and_a_reload_does_not") {
        return Ok(());
    }
    let site = Site::new(CONFIG)?;
    let mut first = site.start(&[])?;
    let sender = RawSender::open(&site.net)?;
    let ask = || sender.send(&get(PART, CACHE));
    let mut second = site.start(&["--takeover", "--trace", "198.18.9.0/24"])?;
    ask()?;
    let lines = until(&mut second, " exit: ")?;
    // The step of the bucket names whose it is.
    let has = |lines: &[String], step: &str| lines.iter().any(|line| line.contains(step));
    ensure!(has(&lines, "bucket: quota of whole: took 50.00 %"), "{lines:#?}");
    ensure!(has(&lines, "tenant: part"), "{lines:#?}");
    site.configure(&CONFIG.replace("\"part\"", "\"renamed\""))?;
    second.signal(Signal::SIGHUP)?;
    second.wait_for("configuration read again", PATIENCE)?;
    ask()?;
    let lines = until(&mut second, " exit: ")?;
    ensure!(has(&lines, "tenant: renamed") && has(&lines, "exit: passed"), "{lines:#?}");
    let mut third = site.start(&["--takeover"])?;
    let refused = || anyhow::Ok(exits(&site)?["refused-replied"]);
    ask()?;
    wait_until("the refusal is counted", || Ok(refused()? == 1))?;
    ensure!(third.printed().is_empty() && second.printed().is_empty() && first.printed().is_empty());
    third.end()?;
    ensure!(site.anything_left()?.is_none(), "{:?}", site.anything_left()?);
    Ok(())
}

#[test]
fn a_flood_is_traced_in_part_and_the_rest_is_counted() -> Result<()> {
    if !privilege::root("trace::a_flood_is_traced_in_part_and_the_rest_is_counted") {
        return Ok(());
    }
    const SENT: u64 = 5_000;
    let site = Site::new(CONFIG)?;
    let mut gate = site.start(&["--trace", WHOLE])?;
    let sender = RawSender::open(&site.net)?;
    (0..SENT).try_for_each(|_| sender.send(&get(WHOLE, 53)))?;
    let mut traced = 0;
    let mut missed = 0;
    wait_until("every packet is traced or counted", || {
        for line in gate.printed() {
            traced += u64::from(line.contains(" exit: "));
            missed += not_traced(&line).unwrap_or(0);
        }
        Ok(traced + missed == SENT)
    })
    .with_context(|| format!("{traced} traced, {missed} counted"))?;
    ensure!(traced >= 100 && missed > traced, "{traced} traced, {missed} counted");
    Ok(())
}

/// The packets that a line says were not traced.
fn not_traced(line: &str) -> Option<u64> {
    line.split_once(" not traced: ")?.1.split_once(" packets")?.0.parse().ok()
}
