//! Limits of a service hold for all threads together: none is dealt out among them.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::memcached::Datagrams;
use gate_tests::proxy::{Listening, PATIENCE, read_until};
use gate_tests::slow_store::slow_store;
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
    let service =
        "parallelism = \"1\"\nadmission = \"off\"\ncodel = { law = \"off\" }\nshedding.enabled = \"off\"";
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

/// Sends one request after the other, until gate is gone.
fn ask_for_ever(mut client: TcpStream) {
    let mut answer = [0; 9];
    while client.write_all(REQUEST).is_ok() && client.read_exact(&mut answer).is_ok() {}
}

/// A request that waits in gate for another's answer on the same connection has a permit as well: the store has at most as
/// many as there are permits, and gets them all.
#[test]
fn the_store_gets_all_permits_and_no_more_on_any_threads() -> Result<()> {
    const CLIENTS: usize = 16;
    for (threads, permits) in [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)] {
        let store = FakeStore::start()?;
        let service = format!(
            "parallelism = \"{permits}\"\nadmission = \"off\"\nstore_timeout = \"60s\"\ncodel = {{ law = \"off\" }}\n\
             shedding.enabled = \"off\""
        );
        let gate = format!("threads = \"{threads}\"");
        let gate = Listening::gate_with(&gate, "memcached", store.address, &service, EVERYONE)?;
        for _ in 0..CLIENTS {
            let client = gate.connect()?;
            std::thread::spawn(move || ask_for_ever(client));
        }
        let mut at_store = VecDeque::new();
        let mut most = 0;
        for step in 0..400 {
            let patience = if at_store.is_empty() { PATIENCE } else { Duration::from_millis(1) };
            let mut next = store.next_within(patience);
            while let Ok((connection, bytes)) = next {
                for _ in 0..bytes.len() / REQUEST.len() {
                    at_store.push_back(connection.try_clone()?);
                }
                next = store.next_within(Duration::from_millis(1));
            }
            let count = at_store.len();
            ensure!(count <= permits, "{count} at the store for {permits} permits, {threads} threads");
            most = most.max(count);
            if step % 50 == 49 {
                // No permit is lost on its way between threads.
                wait_until("all others wait", || Ok(waiting(&gate)? == (CLIENTS - permits) as u64))?;
            }
            at_store.pop_front().context("the store is asked nothing")?.write_all(b"DELETED\r\n")?;
        }
        ensure!(most == permits, "at most {most} at the store for {permits} permits, {threads} threads");
    }
    Ok(())
}

#[test]
fn a_tenants_dedicated_connections_are_counted_on_all_threads() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with(TWO_THREADS, "resp", store.address, "max_dedicated = \"3\"", EVERYONE)?;
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = gate.connect()?;
        client.write_all(b"WATCH a\r\n")?;
        let said = read_until(&mut client, b"\r\n")?;
        clients.push((client, said));
    }
    let taken = clients.iter().filter(|(_, said)| said == b"+OK\r\n").count();
    let refused = clients.iter().filter(|(_, said)| said.ends_with(b"reason=limit\r\n")).count();
    ensure!((taken, refused) == (3, 17), "{taken} have one, {refused} are refused");
    Ok(())
}

#[test]
fn one_threads_datagrams_may_take_all_slots_of_a_service() -> Result<()> {
    const REFUSED: &str = "SERVER_ERROR throttled retry_after_ms=10 reason=limit\r\n";
    let store = FakeStore::start()?;
    let service = "transports = [\"udp\", \"tcp\"]\nmax_datagrams = \"4\"\nstore_timeout = \"60s\"\n\
                   connections = \"1\"";
    let gate = Listening::gate_with(TWO_THREADS, "memcached", store.address, service, EVERYONE)?;
    let mut client = Datagrams::to(gate.address.ip(), gate.address)?;
    // All come from one port, so one thread receives them.
    let waits = (0..4).map(|_| client.send(REQUEST)).collect::<Result<Vec<_>>>()?;
    wait_until("they do not come", || Ok(counter(&gate, "datagrams")? == 4))?;
    // Whichever thread theirs come to.
    let mut others =
        (0..16).map(|_| Datagrams::to(gate.address.ip(), gate.address)).collect::<Result<Vec<_>>>()?;
    for other in &mut others {
        ensure!(other.ask("delete b\r\n")? == REFUSED);
    }
    let mut answered = 0;
    while answered < waits.len() {
        let (mut connection, bytes) = store.next()?;
        let asked = bytes.len() / REQUEST.len();
        connection.write_all(&b"DELETED\r\n".repeat(asked))?;
        answered += asked;
    }
    for id in waits {
        ensure!(client.answer(id)?.0 == b"DELETED\r\n");
    }
    for other in &mut others {
        let id = other.send(b"delete b\r\n")?;
        store.next()?.0.write_all(b"DELETED\r\n")?;
        ensure!(other.answer(id)?.0 == b"DELETED\r\n", "no slot was given back");
    }
    Ok(())
}

fn service(gate: &Listening) -> Result<serde_json::Value> {
    Ok(gate.json(&["queues"])?["services"][0].take())
}

fn waiting(gate: &Listening) -> Result<u64> {
    let tiers = service(gate)?["tiers"].take();
    Ok(tiers.as_array().into_iter().flatten().filter_map(|tier| tier["waiting"].as_u64()).sum())
}

fn refused(gate: &Listening) -> Result<u64> {
    let tenants = gate.json(&["tenants", "all"])?["tenants"].take();
    Ok(tenants[0]["refused"]["queue-full"].as_u64().unwrap_or(0))
}
