//! Limits of a service hold for all threads together: none is dealt out among them.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use anyhow::{Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::proxy::{Listening, read_until, slow_store};
use gate_tests::wait::wait_until;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const TWO_THREADS: &str = "threads = \"2\"";
const REQUEST: &[u8] = b"delete a\r\n";

/// The number of requests that the store has got, once it has got as many as `wanted`.
fn requests_at(store: &FakeStore, wanted: usize) -> Result<usize> {
    let mut bytes = 0;
    while bytes < wanted * REQUEST.len() {
        bytes += store.next()?.1.len();
    }
    Ok(bytes / REQUEST.len())
}

#[test]
fn one_threads_clients_may_have_all_permits() -> Result<()> {
    let store = FakeStore::start()?;
    let service =
        "parallelism = \"4\"\nadmission = \"off\"\nstore_timeout = \"60s\"\ncodel = { law = \"off\" }";
    let gate = Listening::gate_with(TWO_THREADS, "memcached", store.address, service, EVERYONE)?;
    let mut client = gate.connect()?;
    client.write_all(&REQUEST.repeat(6))?;
    ensure!(requests_at(&store, 4)? == 4, "more than there are permits");
    wait_until("two wait", || Ok(waiting(&gate)? == 2))
}

#[test]
fn one_threads_clients_may_fill_the_queue() -> Result<()> {
    let store = FakeStore::start()?;
    let service = "parallelism = \"2\"\nadmission = \"off\"\nstore_timeout = \"60s\"\nqueue_limit = \"10\"\n\
                   codel = { law = \"off\" }";
    let gate = Listening::gate_with(TWO_THREADS, "memcached", store.address, service, EVERYONE)?;
    let mut client = gate.connect()?;
    client.write_all(&REQUEST.repeat(12))?;
    wait_until("ten wait", || Ok(waiting(&gate)? == 10))?;
    ensure!(refused(&gate)? == 0, "a request is refused though there is room");
    client.write_all(REQUEST)?;
    wait_until("one is refused", || Ok(refused(&gate)? == 1))
}

#[test]
fn as_many_clients_as_configured_find_a_slot_on_any_thread() -> Result<()> {
    let service = "max_clients = \"32\"";
    let gate =
        Listening::gate_with(TWO_THREADS, "memcached", slow_store(Duration::ZERO)?, service, EVERYONE)?;
    wait_until("gate was only looked at", || Ok(counter(&gate, "left")? == counter(&gate, "accepted")?))?;
    let mut clients = Vec::new();
    for number in 0..32 {
        let mut client = gate.connect()?;
        client.write_all(b"version\r\n")?;
        let said = read_until(&mut client, b"\r\n")?;
        ensure!(said.starts_with(b"VERSION"), "client {number}: {}", String::from_utf8_lossy(&said));
        clients.push(client);
    }
    let mut said = String::new();
    gate.connect()?.read_to_string(&mut said)?;
    ensure!(said.ends_with("reason=limit\r\n"), "{said}");
    Ok(())
}

/// With one permit, each answer in one thread is what the other thread's requests wait for.
#[test]
fn a_permit_goes_to_and_fro_between_threads() -> Result<()> {
    let service = "parallelism = \"1\"\nadmission = \"off\"\ncodel = { law = \"off\" }";
    let gate =
        Listening::gate_with(TWO_THREADS, "memcached", slow_store(Duration::ZERO)?, service, EVERYONE)?;
    let clients: Vec<_> = (0..16)
        .map(|_| {
            let mut client = gate.connect()?;
            Ok(std::thread::spawn(move || -> Result<()> {
                for _ in 0..200 {
                    client.write_all(REQUEST)?;
                    let said = read_until(&mut client, b"\r\n")?;
                    ensure!(said == b"DELETED\r\n", "{}", String::from_utf8_lossy(&said));
                }
                Ok(())
            }))
        })
        .collect::<Result<_>>()?;
    clients.into_iter().try_for_each(|client| client.join().expect("it does not panic"))
}

fn service(gate: &Listening) -> Result<serde_json::Value> {
    Ok(gate.json(&["queues"])?["services"][0].take())
}

fn waiting(gate: &Listening) -> Result<u64> {
    let tiers = service(gate)?["tiers"].take();
    Ok(tiers.as_array().into_iter().flatten().filter_map(|tier| tier["waiting"].as_u64()).sum())
}

fn refused(gate: &Listening) -> Result<u64> {
    let tenants = gate.json(&["tenants", "all"])?;
    Ok(tenants[0]["refused"]["queue-full"].as_u64().unwrap_or(0))
}
