//! The order at the store: tenants take turns, and slow commands have a connection of their own.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Result, ensure};
use gate_tests::fake_store::FakeStore;
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const TWO: &str = "[[tenant]]\nname = \"busy\"\nsources = [\"127.0.0.5\"]\nquota = \"unlimited\"\n\
                   [[tenant]]\nname = \"polite\"\nsources = [\"127.0.0.6\"]\nquota = \"unlimited\"";
const ONE_THREAD: &str = "threads = \"1\"";

fn waiting(gate: &Listening) -> Result<u64> {
    let tiers = gate.json(&["queues"])?["services"][0]["tiers"].take();
    Ok(tiers.as_array().into_iter().flatten().filter_map(|tier| tier["waiting"].as_u64()).sum())
}

#[test]
fn a_tenant_with_one_request_does_not_wait_for_all_of_another() -> Result<()> {
    let store = FakeStore::start()?;
    let service =
        "parallelism = \"1\"\nadmission = \"off\"\ncodel = { law = \"off\" }\nstore_timeout = \"60s\"";
    let gate = Listening::gate_with(ONE_THREAD, "memcached", store.address, service, TWO)?;
    let mut busy = gate.connect_from(Ipv4Addr::new(127, 0, 0, 5))?;
    busy.write_all(&b"delete a\r\n".repeat(200))?;
    wait_until("it waits", || Ok(waiting(&gate)? == 199))?;
    let mut polite = gate.connect_from(Ipv4Addr::new(127, 0, 0, 6))?;
    polite.write_all(b"delete b\r\n")?;
    wait_until("it waits", || Ok(waiting(&gate)? == 200))?;
    let mut before = 0;
    loop {
        let (mut answers, asked) = store.next()?;
        answers.write_all(b"DELETED\r\n")?;
        if asked == b"delete b\r\n" {
            break;
        }
        before += 1;
        ensure!(before < 20, "the other has not had its turn");
    }
    read_until(&mut polite, b"DELETED\r\n")?;
    Ok(())
}

#[test]
fn a_client_with_one_request_does_not_wait_for_a_long_pipeline() -> Result<()> {
    let store = FakeStore::start()?;
    let service = "connections = \"1\"\nparallelism = \"off\"\nstore_timeout = \"60s\"";
    let gate = Listening::gate_with(ONE_THREAD, "memcached", store.address, service, TWO)?;
    let mut busy = gate.connect_from(Ipv4Addr::new(127, 0, 0, 5))?;
    let mut polite = gate.connect_from(Ipv4Addr::new(127, 0, 0, 6))?;
    for client in [&mut busy, &mut polite] {
        client.write_all(b"delete a\r\n")?;
        store.next()?.0.write_all(b"DELETED\r\n")?;
        read_until(client, b"DELETED\r\n")?;
    }
    // The pipeline is there first, and whole.
    gate.stall()?;
    busy.write_all(&b"delete a\r\n".repeat(900))?;
    polite.write_all(b"delete b\r\n")?;
    gate.signal(Signal::SIGCONT)?;
    let mut asked = Vec::new();
    let mut answered = 0;
    let before = loop {
        let (mut answers, bytes) = store.next()?;
        asked.extend(bytes);
        // What is gathered meanwhile is sent when an answer comes.
        let complete = asked.iter().filter(|&&byte| byte == b'\n').count();
        answers.write_all(&b"DELETED\r\n".repeat(complete - answered))?;
        answered = complete;
        let mut requests = asked.split(|&byte| byte == b'\n');
        if let Some(before) = requests.position(|request| request == b"delete b\r") {
            break before;
        }
    };
    ensure!(before < 300, "{before} of the pipeline's requests went before it");
    Ok(())
}

#[test]
fn what_is_slow_by_kind_goes_elsewhere_and_few_at_a_time() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = Listening::gate_with(ONE_THREAD, "memcached", store.address, "store_timeout = \"60s\"", TWO)?;
    let mut busy = gate.connect_from(Ipv4Addr::new(127, 0, 0, 5))?;
    busy.write_all(&b"stats\r\n".repeat(10))?;
    let mut asked = Vec::new();
    let mut slow: BTreeSet<SocketAddr> = BTreeSet::new();
    let mut answers = None;
    while asked.len() < 4 * b"stats\r\n".len() {
        let (stream, bytes) = store.next()?;
        slow.insert(stream.local_addr()?);
        slow.insert(stream.peer_addr()?);
        asked.extend(bytes);
        answers = Some(stream);
    }
    ensure!(asked == b"stats\r\n".repeat(4), "more than the store should work on at once");
    wait_until("the others wait", || Ok(waiting(&gate)? == 6))?;
    let mut polite = gate.connect_from(Ipv4Addr::new(127, 0, 0, 6))?;
    for _ in 0..3 {
        polite.write_all(b"delete b\r\n")?;
        let (mut stream, bytes) = store.next()?;
        ensure!(bytes == b"delete b\r\n" && !slow.contains(&stream.peer_addr()?), "{bytes:?}");
        stream.write_all(b"DELETED\r\n")?;
        read_until(&mut polite, b"DELETED\r\n")?;
    }
    // Each that is answered lets the next go.
    let mut answers = answers.expect("the store was asked");
    for _ in 0..6 {
        answers.write_all(b"END\r\n")?;
        let (_, bytes) = store.next()?;
        ensure!(bytes == b"stats\r\n", "{bytes:?}");
    }
    answers.write_all(&b"END\r\n".repeat(4))?;
    let mut said = vec![0; 10 * b"END\r\n".len()];
    busy.read_exact(&mut said)?;
    ensure!(said == b"END\r\n".repeat(10));
    Ok(())
}

/// A client's requests are answered in the order in which the store must get them, whatever their kind.
#[test]
fn a_clients_fast_and_slow_requests_keep_their_order() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with(ONE_THREAD, "resp", store.address, "", TWO)?;
    let mut client = gate.connect_from(Ipv4Addr::new(127, 0, 0, 6))?;
    let mut expected = String::new();
    let mut request = String::new();
    for number in 0..200 {
        request += &format!("SET k {number}\r\nEVAL \"return redis.call('GET','k')\" 1 k\r\nINCR k\r\n");
        let shown = number.to_string();
        expected += &format!("+OK\r\n${}\r\n{shown}\r\n:{}\r\n", shown.len(), number + 1);
    }
    client.write_all(request.as_bytes())?;
    let mut said = vec![0; expected.len()];
    client.read_exact(&mut said)?;
    ensure!(said == expected.as_bytes(), "{}", String::from_utf8_lossy(&said));
    Ok(())
}
