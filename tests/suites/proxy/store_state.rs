//! A store that is down, as operators see it: few lines in the log, and its state in `gate status` and `gate queues`.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::paths;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

/// The store as the two documents show it, which have to agree.
fn store_in(gate: &Listening) -> Result<Value> {
    let by_status = gate.json(&["status"])?["services"][0]["store"].clone();
    let by_queues = gate.json(&["queues"])?["services"][0]["store"].clone();
    ensure!(by_status.is_object() && by_queues.is_object(), "{by_status} {by_queues}");
    Ok(by_queues)
}

fn failures(gate: &Listening) -> Result<u64> {
    let failed = gate.json(&["queues"])?["services"][0]["events"]["store-failed"].clone();
    failed.as_u64().context("no count of failures")
}

#[test]
fn a_dead_store_is_shown_at_once_and_logged_once() -> Result<()> {
    let mut store = Listening::redis()?;
    let mut gate = Listening::gate("resp", store.address, "connections = \"4\"", EVERYONE)?;
    let held = gate.connect()?;
    gate.ask(b"PING\r\n", b"+PONG\r\n")?;
    wait_until("the store is not up, with one client", || {
        let shown = store_in(&gate)?;
        Ok(shown["up"] == true && shown["connections"].as_u64() > Some(0) && shown["clients"] == 1)
    })?;
    let address = store.address;
    store.signal(Signal::SIGKILL)?;
    let killed = Instant::now();
    wait_until("the store is not down", || Ok(store_in(&gate)?["up"] == false))?;
    // Gate has more patience with a store that does not answer.
    ensure!(killed.elapsed() < Duration::from_secs(5), "it took {:?}", killed.elapsed());
    let before = failures(&gate)?;
    wait_until("it has not been tried again and again", || Ok(failures(&gate)? >= before + 12))?;
    ensure!(store_in(&gate)?["connections"] == 0);
    let _ = store.program().is_running();
    let _again = Listening::redis_at(address, &[])?;
    let mut lines = Vec::new();
    while !lines.last().is_some_and(|line: &String| line.contains("the store is up again")) {
        lines.push(gate.program().wait_for(" service=\"store\" store=", PATIENCE)?);
    }
    ensure!(lines.len() <= 3 && lines.iter().any(|line| line.contains("the store is down")), "{lines:#?}");
    wait_until("the store is not up again", || Ok(store_in(&gate)?["up"] == true))?;
    drop(held);
    Ok(())
}

#[test]
fn a_busy_store_says_what_it_may_be_busy_with() -> Result<()> {
    let store = Listening::redis()?;
    let service = "store_timeout = \"60s\"\nslow_timeout = \"60s\"\nhot_keys.cache = \"off\"";
    let gate = Listening::gate("resp", store.address, service, EVERYONE)?;
    let words = |command: &str| Ok::<_, anyhow::Error>(String::from_utf8(gate.command(&[command])?.stdout)?);
    let mut clients = [gate.connect()?, gate.connect()?];
    for client in &mut clients {
        client.write_all(b"GET none\r\n")?;
        read_until(client, b"$-1\r\n")?;
    }
    for (request, answer, command, name) in [
        (&b"SMEMBERS reports\r\n"[..], &b"*0\r\n"[..], "smembers", "SMEMBERS"),
        (b"SET reports x\r\n", b"+OK\r\n", "set", "SET"),
        (b"XINFO STREAM none\r\n", b"\r\n", "xinfo|stream", "XINFO STREAM"),
    ] {
        store.stall()?;
        // A short request is no cause for a silence, whoever sent it first.
        clients[0].write_all(b"GET none\r\n")?;
        clients[1].write_all(request)?;
        wait_until("it is not busy", || Ok(store_in(&gate)?["busy"]["command"] == command))?;
        for document in ["queues", "status"] {
            let said = words(document)?;
            let has_words = said.contains(", busy for ") && said.contains(&format!(" s ({name})"));
            ensure!(has_words, "{document}: {said}");
        }
        let for_s = || store_in(&gate)?["busy"]["for_s"].as_f64().context("no time");
        let before = for_s()?;
        ensure!(before >= 0.1 && store_in(&gate)?["up"] == true, "{before}");
        wait_until("its time does not pass", || Ok(for_s()? > before + 0.1))?;
        store.signal(Signal::SIGCONT)?;
        read_until(&mut clients[0], b"$-1\r\n")?;
        read_until(&mut clients[1], answer)?;
        wait_until("it is still busy", || Ok(store_in(&gate)?["busy"].is_null()))?;
    }
    ensure!(!words("queues")?.contains("busy"));
    // Nothing is known of a store that is silent about short requests but that it is silent.
    store.stall()?;
    clients[0].write_all(b"GET none\r\n")?;
    let asked = Instant::now();
    wait_until("time passes", || {
        ensure!(store_in(&gate)?["busy"].is_null(), "it is busy");
        Ok(asked.elapsed() > Duration::from_millis(300))
    })?;
    store.signal(Signal::SIGCONT)
}

#[test]
fn a_silent_store_is_known_to_all_threads_at_once() -> Result<()> {
    let store = Listening::redis()?;
    let service = "store_timeout = \"1s\"\nhot_keys.cache = \"off\"";
    let gate = Listening::gate_with("threads = \"4\"", "resp", store.address, service, EVERYONE)?;
    let mut clients = (0..32).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    let ask = |client: &mut TcpStream| -> Result<String> {
        client.write_all(b"GET none\r\n")?;
        Ok(String::from_utf8(read_until(client, b"\r\n")?)?)
    };
    for client in &mut clients {
        ensure!(ask(client)? == "$-1\r\n");
    }
    store.stall()?;
    let first = ask(&mut clients[0])?;
    ensure!(first.contains("reason=store-down"), "{first}");
    // Nobody has asked on the others' connections.
    wait_until("the others trust it", || Ok(store_in(&gate)?["connections"] == 0))?;
    for client in &mut clients {
        let said = ask(client)?;
        ensure!(said.starts_with("-UNAVAILABLE") && said.contains("reason=store-down"), "{said}");
    }
    let said = gate.ask(b"MULTI\r\n", b"\r\n")?;
    ensure!(said.starts_with(b"-UNAVAILABLE"), "{}", shown(&said));
    store.signal(Signal::SIGCONT)?;
    for client in &mut clients {
        wait_until("one is not served again", || Ok(ask(client)? == "$-1\r\n"))?;
    }
    Ok(())
}

#[test]
fn a_log_in_json_is_an_object_a_line() -> Result<()> {
    let mut store = Listening::redis()?;
    let mut gate = Listening::gate_with_json_log("resp", store.address, EVERYONE)?;
    gate.ask(b"PING\r\n", b"+PONG\r\n")?;
    store.signal(Signal::SIGKILL)?;
    let line = gate.program().wait_for("the store is down", PATIENCE)?;
    let line: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
    ensure!(line["level"] == "WARN" && line["service"] == "store", "{line}");
    ensure!(line["store"] == store.address.to_string() && line["timestamp"].is_string(), "{line}");
    let _ = store.program().is_running();
    Ok(())
}

#[test]
fn a_log_level_or_format_that_means_nothing_is_refused() -> Result<()> {
    for (name, value, answer) in [
        ("GATE_LOG_FORMAT", "xml", "gate: GATE_LOG_FORMAT=xml: must be json or text"),
        ("GATE_LOG", "gate=loud", "gate: GATE_LOG=gate=loud: "),
    ] {
        let mut gate = Command::new(paths::gate());
        let output = gate.args(["run", "--config", "none.toml"]).env(name, value).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && said.starts_with(answer), "{said}");
    }
    Ok(())
}
