//! The queue before a store that has stopped is bounded by default.

use std::io::{ErrorKind, Read as _, Write as _};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
/// As many clients, each with as many requests of as many bytes, come to 256 MB.
const CLIENTS: usize = 8;
const REQUESTS: usize = 500;
const VALUE: usize = 60 << 10;

fn request() -> Vec<u8> {
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${VALUE}\r\n");
    [head.as_bytes(), &vec![b'v'; VALUE], b"\r\n"].concat()
}

#[test]
fn its_memory_is_bounded_and_deadlines_hold() -> Result<()> {
    let store = Listening::redis()?;
    let service = "deadline = \"300ms\"\nstore_timeout = \"60s\"";
    let gate = Listening::gate_with("threads = \"2\"", "resp", store.address, service, EVERYONE)?;
    ensure!(gate.ask(b"PING\r\n", b"\r\n")? == b"+PONG\r\n");
    let before = gate.memory()?;
    store.stall()?;
    let request = request();
    let mut most = before;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = gate.connect()?;
        client.set_nonblocking(true)?;
        let mut left = REQUESTS;
        let mut rest = &request[..0];
        wait_until("it can neither send nor is it done", || {
            if rest.is_empty() && left == 0 {
                return Ok(true);
            }
            if rest.is_empty() {
                (left, rest) = (left - 1, &request[..]);
            }
            most = most.max(gate.memory()?);
            match client.write(rest) {
                Ok(len) => {
                    rest = &rest[len..];
                    Ok(false)
                }
                // Its requests are not read any more: that is a bound as well.
                Err(error) => Ok(error.kind() == ErrorKind::WouldBlock),
            }
        })?;
        client.set_nonblocking(false)?;
        clients.push(client);
    }
    ensure!(most < before + (160 << 20), "{most} bytes, {before} before");
    // The first that waited too long say so, though the store is silent.
    let late = |gate: &Listening| -> Result<u64> {
        let refused = gate.json(&["tenants", "all"])?["tenants"][0]["refused"].take();
        Ok(["deadline", "queue-full"].iter().filter_map(|reason| refused[reason].as_u64()).sum())
    };
    wait_until("nothing is refused", || Ok(late(&gate)? > 0))?;
    let memory = gate.memory()?;
    ensure!(memory < before + (160 << 20), "{memory} bytes, {before} before");
    drop(clients);
    store.signal(Signal::SIGCONT)?;
    wait_until("it does not go on", || Ok(gate.ask(b"PING\r\n", b"\r\n")? == b"+PONG\r\n"))
}

/// With `auto`, an admission policy that is configured refuses what a stopped store would make late.
#[test]
fn a_configured_policy_refuses_before_a_stopped_store() -> Result<()> {
    let store = Listening::redis()?;
    let service = "admission = \"max-queue-length\"\nmax_queue_length = \"50\"\nstore_timeout = \"60s\"";
    let gate = Listening::gate_with("threads = \"2\"", "resp", store.address, service, EVERYONE)?;
    ensure!(gate.ask(b"PING\r\n", b"\r\n")? == b"+PONG\r\n");
    store.stall()?;
    let mut client = gate.connect()?;
    client.write_all(&b"GET a\r\n".repeat(900))?;
    wait_until("nothing is refused", || {
        let refused = gate.json(&["tenants", "all"])?["tenants"][0]["refused"].take();
        Ok(refused["slo"].as_u64() > Some(100))
    })?;
    store.signal(Signal::SIGCONT)?;
    let mut said = read_until(&mut client, b"\r\n")?;
    while said.iter().filter(|&&byte| byte == b'\n').count() < 900 {
        let mut piece = [0; 4_096];
        let len = client.read(&mut piece)?;
        ensure!(len > 0, "it is closed");
        said.extend_from_slice(&piece[..len]);
    }
    Ok(())
}
