//! An HTTP service before Debian's nginx, and before stores whose answers the tests write.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::http_client::{HttpClient, Reply};
use gate_tests::nginx::Nginx;
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

mod access_log;
mod cache;
mod cache_clients;
mod cache_faults;
mod cache_sharing;
mod dedup;
mod explain;
mod grpc;
mod handshakes;
mod hostile;
mod http2_client;
mod images;
mod overload;
mod pace;
mod prices;
mod processed;
mod queue;
mod random;
mod refused_bodies;
mod smuggling;
mod tls;
mod tolerance;
mod tools;
mod unread;
mod websocket;
mod websocket_http2;
mod websocket_takeover;

/// Everyone on loopback, without a limit.
pub(super) const OPEN: &str =
    "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n";

/// A gate before a store, for everyone.
pub(super) fn gate(store: std::net::SocketAddr, service: &str) -> Result<Listening> {
    Listening::gate_with("tick = \"10ms\"", "http", store, service, OPEN)
}

pub(super) fn client(gate: &Listening) -> Result<HttpClient> {
    Ok(HttpClient::new(gate.connect()?))
}

fn client_from(gate: &Listening, last: u8) -> Result<HttpClient> {
    Ok(HttpClient::new(gate.connect_from(Ipv4Addr::new(127, 0, 0, last))?))
}

/// Answers a request of a fake store.
pub(super) fn respond(store: &mut TcpStream, body: &str) -> Result<()> {
    let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    Ok(store.write_all(reply.as_bytes())?)
}

const TENANTS: &str = r#"
[[tenant]]
name = "direct"
sources = ["127.0.0.8", "198.18.0.8"]
ids = ["org-direct"]
quota = "unlimited"
[[tenant]]
name = "named"
ids = ["org-1", "org-2"]
quota = "unlimited"
[[tenant]]
name = "plain"
sources = ["127.0.0.7"]
quota = "unlimited"
"#;

fn passed(gate: &Listening, name: &str) -> Result<u64> {
    gate.json(&["tenants", name])?["tenants"][0]["passed"].as_u64().context("no such tenant")
}

#[test]
fn a_request_is_of_the_tenant_that_a_trusted_proxy_names() -> Result<()> {
    let store = Nginx::start(&[])?;
    let service = "trusted = [\"127.0.0.9\", \"10.0.0.0/8\"]\ntenant_header = \"X-Scope-OrgID\"";
    let gate = Listening::gate_with("tick = \"10ms\"", "http", store.address, service, TENANTS)?;
    for (last, fields, tenant, reported) in [
        (8, "", "direct", "for=127.0.0.8 proto=http host=test real= tenant=org-direct"),
        // Nobody believes what a client says of itself.
        (
            8,
            "x-scope-orgid: org-1\r\nx-forwarded-for: 10.9.9.9\r\nx-real-ip: 1.2.3.4\r\nx-forwarded-proto: https\r\n",
            "direct",
            "for=127.0.0.8 proto=http host=test real= tenant=org-direct",
        ),
        (7, "x-scope-orgid: org-1\r\n", "plain", "for=127.0.0.7 proto=http host=test real= tenant= "),
        (9, "x-scope-orgid: org-2\r\n", "named", "for=127.0.0.9 proto=http host=test real= tenant=org-2"),
        (
            9,
            "x-forwarded-for: 6.6.6.6, 198.18.0.8, 10.1.1.1\r\nx-forwarded-proto: https\r\nx-forwarded-host: a\r\n",
            "direct",
            "for=6.6.6.6, 198.18.0.8, 10.1.1.1, 127.0.0.9 proto=https host=a real= tenant=org-direct",
        ),
        (
            9,
            "x-forwarded-for: 198.18.0.8\r\nx-scope-orgid: org-1\r\nconnection: x-forwarded-for\r\n",
            "named",
            "for=198.18.0.8, 127.0.0.9 proto=http host=test real= tenant=org-1",
        ),
        // Nor does `Connection` have the other one of a tenant's names told.
        (
            9,
            "x-scope-orgid: org-2\r\nconnection: x-scope-orgid\r\n",
            "named",
            "for=127.0.0.9 proto=http host=test real= tenant=org-2",
        ),
    ] {
        let before = passed(&gate, tenant)?;
        let reply = client_from(&gate, last)?.ask("GET /echo", fields)?;
        ensure!(reply.status == 200 && reply.text().contains(reported), "{fields:?}: {reply:?}");
        wait_until(tenant, || Ok(passed(&gate, tenant)? == before + 1))?;
    }
    for (last, fields, status, reason) in [
        (9, "x-scope-orgid: org-3\r\n", 403, "unknown-source"),
        (9, "x-scope-orgid: org-1\r\nx-scope-orgid: org-2\r\n", 400, "malformed"),
        (6, "", 403, "unknown-source"),
    ] {
        let reply = client_from(&gate, last)?.ask("GET /echo", fields)?;
        ensure!((reply.status, reply.reason()) == (status, reason), "{fields:?}: {reply:?}");
        ensure!(reply.field("www-authenticate").is_none(), "{fields:?}: {reply:?}");
    }
    // The proxy has not said whose it is.
    let reply = client_from(&gate, 9)?.ask("GET /echo", "x-forwarded-for: 198.18.9.9\r\n")?;
    ensure!((reply.status, reply.reason()) == (401, "unknown-source"), "{reply:?}");
    ensure!(reply.field("www-authenticate") == Some("Gate field=\"x-scope-orgid\""), "{reply:?}");
    ensure!(
        reply.text().trim() == "denied reason=unknown-source rule=tenant_header field=x-scope-orgid",
        "{reply:?}"
    );
    Ok(())
}

/// Stores that hand fields to programs as variables do not tell these from the ones that gate writes.
const ALIKE: &str = "X_Scope_OrgID: org-1\r\nx_scope-orgid: org-1\r\nX_Forwarded_For: 10.9.9.9\r\nX-Forwarded_Proto: https\r\n\
                     X_Forwarded_Host: b\r\nX_Real_IP: 1.2.3.4\r\nX_Tier: critical\r\n";

#[test]
fn no_spelling_of_a_claim_reaches_the_store() -> Result<()> {
    let store = Nginx::start(&[])?;
    let service = "trusted = [\"127.0.0.9\"]\ntenant_header = \"X-Scope-OrgID\"\ntier_header = \"X-Tier\"";
    let gate = Listening::gate_with("tick = \"10ms\"", "http", store.address, service, TENANTS)?;
    for (last, claims, reported) in [
        (7, ALIKE, "for=127.0.0.7 proto=http host=test real= tenant= tier= "),
        (8, ALIKE, "for=127.0.0.8 proto=http host=test real= tenant=org-direct tier= "),
        (8, "x-tier: standard\r\n", "for=127.0.0.8 proto=http host=test real= tenant=org-direct tier= "),
    ] {
        let claims = [claims, "connection: x-forwarded-for, x-scope-orgid\r\n"];
        for fields in [claims.concat(), claims[0].to_owned()] {
            let reply = client_from(&gate, last)?.ask("GET /echo", &fields)?;
            ensure!(reply.status == 200 && reply.text().contains(reported), "{fields:?}: {reply:?}");
        }
    }
    // A proxy that passes such fields on has not said them.
    let fields = format!("{ALIKE}x-forwarded-for: 198.18.0.8\r\n");
    let reply = client_from(&gate, 9)?.ask("GET /echo", &fields)?;
    let reported = "for=198.18.0.8, 127.0.0.9 proto=http host=test real= tenant=org-direct tier= ";
    ensure!(reply.text().contains(reported), "{reply:?}");
    Ok(())
}

#[test]
fn refusals_say_when_and_why() -> Result<()> {
    let store = Nginx::start(&[])?;
    let tenants = "[[tenant]]\nname = \"poor\"\nsources = [\"127.0.0.8\"]\nquota = \"1 RU/s\"\nburst = \"10s\"\n\
                   limits = { query = \"1/s\" }\n[[tenant]]\nname = \"rich\"\nsources = [\"127.0.0.7\"]\nquota = \"unlimited\"\n\
                   max_outstanding = \"1\"\n[[tenant]]\nname = \"bound\"\nsources = [\"127.0.0.6\"]\nquota = \"unlimited\"\n\
                   keys = \"own\"\nkey_prefixes = [\"a\"]\n[[tenant]]\nname = \"small\"\nsources = [\"127.0.0.5\"]\n\
                   quota = \"1 RU/s\"\nburst = \"1s\"\n";
    let service = "max_request = \"1KiB\"\nrate_limit_fields = \"on\"\nquery_types = { query = \"GET /echo/q*\" }\n\
                   rows = { query = \"9\" }\nprice = { learn = \"off\" }";
    let gate = Listening::gate("http", store.address, service, tenants)?;
    let mut poor = client_from(&gate, 8)?;
    ensure!(poor.ask("GET /echo/q", "")?.status == 200);
    let reply = poor.ask("GET //echo/%71?x", "")?;
    ensure!((reply.status, reply.reason()) == (429, "quota"), "the limit of its query type: {reply:?}");
    ensure!(reply.text().contains("limit=query"), "{}", reply.text());
    let reply = (0..20)
        .map(|_| poor.ask("GET /echo", ""))
        .find(|reply| !matches!(reply, Ok(Reply { status: 200, .. })));
    let reply = reply.context("never refused")??;
    let millis: u64 = reply.field("gate-retry-after-ms").context("no time")?.parse()?;
    let seconds: u64 = reply.field("retry-after").context("no time")?.parse()?;
    ensure!(
        (reply.status, reply.reason()) == (429, "quota") && reply.text().contains("bucket=poor"),
        "{reply:?}"
    );
    ensure!(millis > 0 && seconds == millis.div_ceil(1_000), "{reply:?}");
    ensure!(reply.field("ratelimit-policy") == Some("\"quota\";q=1;w=1;qu=\"request-units\""), "{reply:?}");
    ensure!(reply.field("ratelimit").is_some_and(|value| value.starts_with("\"quota\";r=0;t=")), "{reply:?}");
    for (line, fields, status, reason) in [
        ("CONNECT a:1", "", 403, "unsupported"),
        ("GET /echo", "upgrade: websocket\r\nconnection: upgrade\r\n", 403, "unsupported"),
        ("POST /echo", "content-length: 1025\r\n", 413, "too-large"),
        ("POST /echo", "content-length: 1\r\nexpect: more\r\n", 417, "unsupported"),
        ("GET /echo", "host: other\r\n", 400, "malformed"),
    ] {
        let reply = client_from(&gate, 7)?.ask(line, fields)?;
        ensure!((reply.status, reply.reason()) == (status, reason), "{line}: {reply:?}");
        ensure!(reply.field("retry-after").is_none(), "{line}: {reply:?}");
    }
    let reply = client_from(&gate, 6)?.ask("GET /echo", "")?;
    ensure!((reply.status, reply.reason()) == (403, "unsupported"), "nobody knows its keys: {reply:?}");
    ensure!(reply.text().trim() == "denied reason=unsupported rule=keys", "{reply:?}");
    let reply = client_from(&gate, 5)?.ask("GET /echo/q", "")?;
    ensure!((reply.status, reply.reason()) == (429, "too-large"), "its bucket never holds 5 RU: {reply:?}");
    let is_named = reply.text().trim() == "denied reason=too-large rule=burst";
    ensure!(is_named && reply.field("retry-after").is_none(), "{reply:?}");
    // A body that says no length is bounded as it passes, and the store does not get all of it.
    let mut rich = client_from(&gate, 7)?;
    rich.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")?;
    rich.send(&[b"400\r\n", &[b'x'; 1_024][..], b"\r\n1\r\nx\r\n"].concat())?;
    let reply = rich.reply(false)?;
    ensure!((reply.status, reply.reason()) == (413, "too-large"), "{reply:?}");
    Ok(())
}

#[test]
fn lost_garbled_and_late_answers_differ() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "store_timeout = \"200ms\"\nslow_timeout = \"300ms\"")?;
    for (answer, status) in [
        ("", 502),
        ("no HTTP at all\r\n\r\n", 502),
        ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 502),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 502),
        ("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", 502),
        ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 502),
    ] {
        let mut client = client(&gate)?;
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
        let (mut connection, _) = store.next()?;
        connection.write_all(answer.as_bytes())?;
        // gate may have closed it, as no HTTP.
        let _ = connection.shutdown(std::net::Shutdown::Both);
        let reply = client.reply(false)?;
        ensure!((reply.status, reply.reason()) == (status, "store-down"), "{answer:?}: {reply:?}");
        ensure!(reply.field("retry-after").is_none(), "it may have run: {reply:?}");
    }
    let mut late = client(&gate)?;
    late.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let _unanswered = store.next()?;
    let reply = late.reply(false)?;
    ensure!((reply.status, reply.reason()) == (504, "store-down"), "{reply:?}");
    Ok(())
}

#[test]
fn without_a_store_requests_are_refused_at_once() -> Result<()> {
    let gate = gate(gate_tests::proxy::address(), "")?;
    let mut client = client(&gate)?;
    for _ in 0..3 {
        let reply = client.ask("GET /", "")?;
        ensure!((reply.status, reply.reason()) == (503, "store-down"), "{reply:?}");
        ensure!(reply.field("gate-retry-after-ms").is_some(), "{reply:?}");
    }
    ensure!(counter(&gate, "store-failed")? >= 1);
    Ok(())
}

#[test]
fn a_client_is_asked_for_its_body_once_it_is_admitted() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate(store.address, "max_request = \"1KiB\"")?;
    let mut asked = client(&gate)?;
    asked.send(b"POST /echo HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")?;
    ensure!(asked.line()?.starts_with("HTTP/1.1 100") && asked.line()?.is_empty());
    asked.send(b"abc")?;
    ensure!(asked.reply(false)?.text().contains("length=3"));
    let mut refused = client(&gate)?;
    refused
        .send(b"POST /echo HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3000\r\n\r\n")?;
    ensure!(refused.line()?.starts_with("HTTP/1.1 413"), "not before it is refused");
    Ok(())
}

#[test]
fn trailers_pass_both_ways() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "trusted = [\"10.0.0.0/8\"]\ntenant_header = \"X-Scope-OrgID\"")?;
    let mut client = client(&gate)?;
    // But for claims: some stores take trailers for fields.
    client.send(
        b"POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntrailer: x-sum, x-scope-orgid, x_scope_orgid, x-real-ip\r\n\
          transfer-encoding: chunked\r\n\r\n\
          3\r\nabc\r\n0\r\nx-scope-orgid: 1\r\nx_scope_orgid: 1\r\nx-real-ip: 1\r\nx-sum: 1\r\n\r\n",
    )?;
    let mut request = Vec::new();
    let mut connection = loop {
        let (connection, bytes) = store.next()?;
        request.extend(bytes);
        if request.ends_with(b"\r\n\r\n") && request.windows(5).any(|bytes| bytes == b"\r\n0\r\n") {
            break connection;
        }
    };
    let request = String::from_utf8(request)?;
    ensure!(request.ends_with("3\r\nabc\r\n0\r\nx-sum: 1\r\n\r\n"), "{request}");
    connection.write_all(
        b"HTTP/1.1 200 OK\r\ntrailer: x-end\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-end: 2\r\n\r\n",
    )?;
    let reply = client.reply(false)?;
    ensure!(reply.trailers == [("x-end".to_owned(), "2".to_owned())] && reply.body == b"ok", "{reply:?}");
    Ok(())
}

#[test]
fn clients_leave_with_their_answers_when_gate_ends() -> Result<()> {
    let store = FakeStore::start()?;
    // One thread: they learn of it together.
    let mut gate = Listening::gate_with("threads = \"1\"", "http", store.address, "", OPEN)?;
    let mut idle = client(&gate)?;
    idle.send(b"GET /first HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let (mut connection, _) = store.next()?;
    respond(&mut connection, "first")?;
    ensure!(idle.reply(false)?.text() == "first");
    let mut busy = client(&gate)?;
    busy.send(b"GET /second HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let (mut connection, _) = store.next()?;
    gate.signal(Signal::SIGTERM)?;
    ensure!(idle.is_closed()?, "there is nothing to wait for");
    respond(&mut connection, "second")?;
    let reply = busy.reply(false)?;
    ensure!(reply.text() == "second" && reply.field("connection") == Some("close"), "{reply:?}");
    ensure!(busy.is_closed()?);
    wait_until("gate has ended", || Ok(!gate.program().is_running()?))
}
