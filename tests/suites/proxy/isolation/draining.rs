//! A gate that is told to end while it has clients.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

fn ask(client: &mut TcpStream) -> Result<()> {
    client.write_all(b"PING\r\n")?;
    let said = read_until(client, b"\r\n")?;
    ensure!(said == b"+PONG\r\n", "{said:?}");
    Ok(())
}

/// Until it accepts nobody.
fn until_closed(gate: &Listening) -> Result<()> {
    wait_until("it still accepts clients", || Ok(TcpStream::connect(gate.address).is_err()))
}

#[test]
fn sigterm_lets_clients_finish_and_a_second_one_does_not() -> Result<()> {
    let store = Listening::redis()?;
    let mut gate = Listening::gate_with("drain = \"60s\"", "resp", store.address, "", EVERYONE)?;
    let mut first = gate.connect()?;
    let mut second = gate.connect()?;
    ask(&mut first)?;
    ask(&mut second)?;
    gate.signal(Signal::SIGTERM)?;
    until_closed(&gate)?;
    ask(&mut first)?;
    drop(first);
    ask(&mut second)?;
    // The tick goes on, and so does what reads what it says.
    let before = gate.json(&["status"])?["generation"].clone();
    wait_until("the tick stands still", || Ok(gate.json(&["status"])?["generation"] != before))?;
    ensure!(gate.program().is_running()?);
    gate.signal(Signal::SIGTERM)?;
    wait_until("it does not end", || Ok(!gate.program().is_running()?))?;
    ensure!(second.read(&mut [0; 1])? == 0);
    Ok(())
}

#[test]
fn sigterm_ends_a_gate_when_its_last_client_leaves() -> Result<()> {
    let store = Listening::redis()?;
    let mut gate = Listening::gate_with("drain = \"60s\"", "resp", store.address, "", EVERYONE)?;
    let mut client = gate.connect()?;
    ask(&mut client)?;
    gate.signal(Signal::SIGTERM)?;
    until_closed(&gate)?;
    ask(&mut client)?;
    drop(client);
    wait_until("it does not end", || Ok(!gate.program().is_running()?))
}

#[test]
fn after_drain_idle_clients_close_and_requests_are_answered() -> Result<()> {
    let store = Listening::redis()?;
    let service = "store_timeout = \"20s\"";
    let mut gate = Listening::gate_with("drain = \"0ms\"", "resp", store.address, service, EVERYONE)?;
    let mut idle = gate.connect()?;
    let mut asking = gate.connect()?;
    ask(&mut idle)?;
    ask(&mut asking)?;
    store.stall()?;
    asking.write_all(b"PING\r\n")?;
    wait_until("the store is not asked", || {
        let queues = gate.json(&["queues"])?;
        Ok(queues["services"][0]["events"]["requests"].as_u64() >= Some(3))
    })?;
    gate.signal(Signal::SIGTERM)?;
    let closed = idle.read(&mut [0; 1]);
    store.signal(Signal::SIGCONT)?;
    ensure!(closed? == 0, "it was told something");
    let said = read_until(&mut asking, b"\r\n")?;
    ensure!(said == b"+PONG\r\n", "{said:?}");
    wait_until("it does not end", || Ok(!gate.program().is_running()?))
}

#[test]
fn gates_without_clients_or_interrupted_end_at_once() -> Result<()> {
    let store = Listening::redis()?;
    for (signal, clients) in [(Signal::SIGTERM, 0), (Signal::SIGINT, 3)] {
        let mut gate = Listening::gate_with("drain = \"60s\"", "resp", store.address, "", EVERYONE)?;
        let mut open: Vec<TcpStream> = (0..clients).map(|_| gate.connect()).collect::<Result<_>>()?;
        open.iter_mut().try_for_each(ask)?;
        gate.signal(signal)?;
        wait_until("it does not end", || Ok(!gate.program().is_running()?))?;
    }
    Ok(())
}
