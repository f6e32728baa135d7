//! Requests by HTTP in the queue before the store.

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::FakeStore;
use gate_tests::http_client::HttpClient;
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;

use super::{OPEN, respond};

const TENANTS: &str = "[[tenant]]\nname = \"batch\"\nsources = [\"127.0.0.8\"]\nquota = \"unlimited\"\ntier = \"batch\"\n\
                       [[tenant]]\nname = \"critical\"\nsources = [\"127.0.0.7\"]\nquota = \"unlimited\"\ntier = \"critical\"\n";

fn waiting(gate: &Listening) -> Result<u64> {
    let queues = gate.json(&["queues"])?;
    let tiers = queues["services"][0]["tiers"].as_array().context("no tiers")?.clone();
    Ok(tiers.iter().filter_map(|tier| tier["waiting"].as_u64()).sum())
}

fn asks(gate: &Listening, last: u8, path: &str, fields: &str) -> Result<HttpClient> {
    let mut client = HttpClient::new(gate.connect_from(std::net::Ipv4Addr::new(127, 0, 0, last))?);
    client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{fields}\r\n").as_bytes())?;
    Ok(client)
}

#[test]
fn the_most_critical_request_takes_the_next_permit() -> Result<()> {
    let store = FakeStore::start()?;
    let service =
        "parallelism = \"1\"\nadmission = \"off\"\ncodel = { law = \"off\" }\ntier_header = \"x-tier\"";
    let gate =
        Listening::gate_with("tick = \"10ms\"\nthreads = \"1\"", "http", store.address, service, TENANTS)?;
    let mut first = asks(&gate, 8, "/first", "")?;
    let (mut connection, _) = store.next()?;
    let mut batch = asks(&gate, 8, "/batch", "")?;
    wait_until("it waits", || Ok(waiting(&gate)? == 1))?;
    // A request may make itself less urgent, and never more.
    let mut lowered = asks(&gate, 7, "/lowered", "x-tier: best-effort\r\n")?;
    wait_until("it waits", || Ok(waiting(&gate)? == 2))?;
    let mut raised = asks(&gate, 8, "/raised", "x-tier: critical\r\n")?;
    wait_until("it waits", || Ok(waiting(&gate)? == 3))?;
    let mut critical = asks(&gate, 7, "/critical", "")?;
    wait_until("it waits", || Ok(waiting(&gate)? == 4))?;
    respond(&mut connection, "first")?;
    ensure!(first.reply(false)?.text() == "first");
    for (path, client) in [
        ("/critical", &mut critical),
        ("/batch", &mut batch),
        ("/raised", &mut raised),
        ("/lowered", &mut lowered),
    ] {
        let (mut connection, request) = store.next()?;
        let request = String::from_utf8(request)?;
        ensure!(request.starts_with(&format!("GET {path} ")), "{path}: {request}");
        ensure!(!request.contains("x-tier"), "{request}");
        respond(&mut connection, path)?;
        ensure!(client.reply(false)?.text() == path);
    }
    Ok(())
}

#[test]
fn who_waits_too_long_or_leaves_is_not_sent() -> Result<()> {
    let store = FakeStore::start()?;
    let service = "parallelism = \"1\"\nadmission = \"off\"\ncodel = { law = \"off\" }\ndeadline = \"300ms\"";
    let gate =
        Listening::gate_with("tick = \"10ms\"\nthreads = \"1\"", "http", store.address, service, OPEN)?;
    let mut first = asks(&gate, 1, "/first", "")?;
    let (mut connection, _) = store.next()?;
    let mut late = asks(&gate, 1, "/late", "")?;
    let reply = late.reply(false)?;
    ensure!((reply.status, reply.reason()) == (503, "deadline"), "{reply:?}");
    ensure!(reply.field("retry-after") == Some("1"), "{reply:?}");
    let left = asks(&gate, 1, "/left", "")?;
    wait_until("it waits", || Ok(waiting(&gate)? == 1))?;
    drop(left);
    wait_until("it is gone", || Ok(waiting(&gate)? == 0))?;
    let mut last = asks(&gate, 1, "/last", "")?;
    wait_until("it waits", || Ok(waiting(&gate)? == 1))?;
    respond(&mut connection, "first")?;
    ensure!(first.reply(false)?.text() == "first");
    let (mut connection, request) = store.next()?;
    ensure!(request.starts_with(b"GET /last "), "{}", String::from_utf8_lossy(&request));
    respond(&mut connection, "last")?;
    ensure!(last.reply(false)?.text() == "last");
    Ok(())
}

#[test]
fn a_client_that_keeps_its_request_waiting_lends_its_permit() -> Result<()> {
    let store = FakeStore::start()?;
    let service = "parallelism = \"1\"\nadmission = \"off\"\ncodel = { law = \"off\" }";
    let gate =
        Listening::gate_with("tick = \"10ms\"\nthreads = \"1\"", "http", store.address, service, OPEN)?;
    let mut slow = HttpClient::new(gate.connect()?);
    slow.send(b"POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\na")?;
    let (mut of_slow, request) = store.next()?;
    ensure!(request.starts_with(b"POST /slow "));
    let mut other = asks(&gate, 1, "/other", "")?;
    let mut of_other = loop {
        // The first byte of the body may come by itself.
        let (connection, request) = store.next()?;
        if request.starts_with(b"GET /other ") {
            break connection;
        }
    };
    respond(&mut of_other, "other")?;
    ensure!(other.reply(false)?.text() == "other");
    slow.send(b"bc")?;
    let (_, rest) = store.next()?;
    ensure!(rest.ends_with(b"bc"));
    respond(&mut of_slow, "slow")?;
    ensure!(slow.reply(false)?.text() == "slow");
    of_slow.flush()?;
    Ok(())
}
