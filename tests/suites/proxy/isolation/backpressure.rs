//! Replies that a client does not read: how much of them gate holds, and who waits for that.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const ONE_THREAD: &str = "threads = \"1\"";
/// The length of the value under `large`.
const LARGE: usize = 120 << 20;
/// The memory that gate may take beside that without clients.
const LITTLE: usize = 24 << 20;

/// On a busy machine a store takes longer than a second to copy the value.
const PATIENT: &str = "store_timeout = \"30s\"";

/// A Redis with a value of 120 MiB.
fn store() -> Result<Listening> {
    let store = Listening::redis()?;
    let said = store.ask(format!("SETRANGE large {} x\r\n", LARGE - 1).as_bytes(), b"\r\n")?;
    ensure!(said == format!(":{LARGE}\r\n").as_bytes(), "{}", shown(&said));
    Ok(store)
}

/// The bytes of replies that wait in the store for its clients.
fn waiting_in(store: &Listening) -> Result<usize> {
    let list = store.ask(b"CLIENT LIST\r\n", b"\n\r\n")?;
    let list = String::from_utf8_lossy(&list).into_owned();
    let bytes =
        |line: &str| line.split(' ').find_map(|word| word.strip_prefix("omem=")?.parse::<usize>().ok());
    Ok(list.lines().filter_map(bytes).sum())
}

/// Reads the reply to `GET large`, and how long its value is.
fn read_large(client: &mut TcpStream, each: impl Fn() -> Result<()>) -> Result<()> {
    let head = read_until(client, b"\r\n")?;
    let begun = head.iter().position(|&byte| byte == b'\n').map_or(0, |end| head.len() - end - 1);
    ensure!(head.starts_with(format!("${LARGE}\r\n").as_bytes()), "{}", shown(&head[..20.min(head.len())]));
    let mut left = LARGE + 2 - begun;
    let mut piece = vec![0; 1 << 20];
    while left > 0 {
        let len = client.read(&mut piece)?;
        ensure!(len > 0, "it is closed with {left} bytes left");
        left -= len;
        each()?;
    }
    Ok(())
}

#[test]
fn a_reply_of_any_length_arrives_whole_and_waits_in_the_store() -> Result<()> {
    let store = store()?;
    let gate = Listening::gate_with(ONE_THREAD, "resp", store.address, PATIENT, EVERYONE)?;
    let before = gate.memory()?;
    let mut client = gate.connect()?;
    client.write_all(b"GET large\r\n")?;
    wait_until("the store is not read any more", || Ok(waiting_in(&store)? > LARGE / 2))?;
    let is_small = || {
        let memory = gate.memory()?;
        ensure!(memory < before + LITTLE, "{memory} bytes, {before} before");
        Ok(())
    };
    is_small()?;
    read_large(&mut client, is_small)?;
    client.write_all(b"PING\r\n")?;
    ensure!(read_until(&mut client, b"\r\n")? == b"+PONG\r\n");
    Ok(())
}

#[test]
fn a_client_that_does_not_read_holds_up_no_other() -> Result<()> {
    let store = store()?;
    let service = format!("connections = \"1\"\nparallelism = \"1\"\nadmission = \"off\"\n{PATIENT}");
    let gate = Listening::gate_with(ONE_THREAD, "resp", store.address, &service, EVERYONE)?;
    let mut deaf = gate.connect()?;
    deaf.write_all(b"GET large\r\n")?;
    wait_until("the store is not read any more", || Ok(waiting_in(&store)? > LARGE / 2))?;
    let mut other = gate.connect()?;
    for _ in 0..10 {
        other.write_all(b"PING\r\n")?;
        let said = read_until(&mut other, b"\r\n")?;
        ensure!(said == b"+PONG\r\n", "{}", shown(&said));
    }
    // And it gets its own.
    read_large(&mut deaf, || Ok(()))
}

#[test]
fn a_client_that_does_not_read_is_closed_for_its_memory() -> Result<()> {
    let store = store()?;
    let service = format!("connections = \"1\"\nclient_memory = \"32MiB\"\n{PATIENT}");
    let gate = Listening::gate_with(ONE_THREAD, "resp", store.address, &service, EVERYONE)?;
    let before = gate.memory()?;
    let mut deaf = gate.connect()?;
    deaf.write_all(b"GET large\r\n")?;
    wait_until("the store is not read any more", || Ok(waiting_in(&store)? > LARGE / 2))?;
    let mut other = gate.connect()?;
    other.write_all(b"PING\r\n")?;
    ensure!(read_until(&mut other, b"\r\n")? == b"+PONG\r\n");
    wait_until("it is closed", || Ok(counter(&gate, "slow-reader")? == 1))?;
    let memory = gate.memory()?;
    ensure!(memory < before + 3 * LITTLE, "{memory} bytes, {before} before");
    Ok(())
}

/// A store that answers is not slow because a client does not read: after its timeout of 1 s it would count as down.
#[test]
fn the_time_a_client_takes_to_read_is_not_the_stores() -> Result<()> {
    let store = store()?;
    let gate = Listening::gate_with(ONE_THREAD, "resp", store.address, "", EVERYONE)?;
    let mut deaf = gate.connect()?;
    deaf.write_all(b"GET large\r\n")?;
    wait_until("the store is not read any more", || Ok(waiting_in(&store)? > LARGE / 2))?;
    let mut other = gate.connect()?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2_500) {
        other.write_all(b"PING\r\n")?;
        ensure!(read_until(&mut other, b"\r\n")? == b"+PONG\r\n");
    }
    ensure!(counter(&gate, "store-failed")? == 0, "the store counts as down");
    read_large(&mut deaf, || Ok(()))?;
    let queues = gate.json(&["queues"])?;
    let types = queues["services"][0]["types"].as_array().cloned().unwrap_or_default();
    let get = types.iter().find(|found| found["name"] == "get");
    ensure!(get.is_none_or(|get| get["processing_ms"].is_null()), "{queues}");
    Ok(())
}
