//! Clients and stores that do what RFC 9110 to 9113 allow, and that many do.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::FakeStore;
use gate_tests::proxy::Listening;

use super::{OPEN, client, gate, respond};

/// The values of a field in a head.
fn values<'h>(head: &'h str, name: &str) -> Vec<&'h str> {
    let named = head.lines().filter_map(|line| line.split_once(": "));
    named.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

#[test]
fn an_upgrade_that_gate_does_not_want_is_passed_over() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "")?;
    let client = &mut client(&gate)?;
    for fields in [
        "upgrade: TLS/1.2\r\nconnection: upgrade\r\n",
        "upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABk\r\n",
        "upgrade: foo/2\r\nconnection: upgrade\r\n",
        "upgrade: websocket\r\n",
    ] {
        client.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n").as_bytes())?;
        let (mut connection, request) = store.next()?;
        let request = String::from_utf8(request)?.to_lowercase();
        ensure!(!request.contains("upgrade") && !request.contains("http2-settings"), "{request}");
        respond(&mut connection, "ok")?;
        ensure!(client.reply(false)?.text() == "ok", "{fields}");
    }
    Ok(())
}

#[test]
fn a_request_of_http_1_0_without_a_host_has_the_stores() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "")?;
    for (head, host) in [("", store.address.to_string()), ("host: a\r\n", "a".to_owned())] {
        let mut client = client(&gate)?;
        client.send(format!("GET / HTTP/1.0\r\n{head}\r\n").as_bytes())?;
        let (mut connection, request) = store.next()?;
        let request = String::from_utf8(request)?;
        ensure!(values(&request, "host") == [host], "{request}");
        respond(&mut connection, "ok")?;
        ensure!(client.reply(false)?.text() == "ok");
    }
    Ok(())
}

#[test]
fn cookies_of_http2_reach_the_store_in_one_line() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "")?;
    let mut curl = Command::new("curl");
    curl.args(["-s", "--noproxy", "*", "--max-time", "20", "--http2-prior-knowledge"]);
    curl.args(["-H", "cookie: a=1", "-H", "cookie: b=2", "-H", "cookie: c=3"]);
    let asking = curl.arg(format!("http://{}/", gate.address)).spawn()?;
    let (mut connection, request) = store.next()?;
    respond(&mut connection, "ok")?;
    ensure!(asking.wait_with_output()?.status.success());
    let request = String::from_utf8(request)?;
    ensure!(values(&request, "cookie") == ["a=1; b=2; c=3"], "{request}");
    Ok(())
}

#[test]
fn what_may_be_done_twice_is_sent_again_once() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = Listening::gate_with("threads = \"1\"", "http", store.address, "", OPEN)?;
    let client = &mut client(&gate)?;
    for (method, is_repeated) in [
        ("GET", true),
        ("HEAD", true),
        ("OPTIONS", true),
        ("PUT", true),
        ("DELETE", true),
        ("POST", false),
        ("PATCH", false),
    ] {
        // A connection that is kept.
        client.send(b"GET /first HTTP/1.1\r\nhost: a\r\n\r\n")?;
        let (mut kept, _) = store.next()?;
        respond(&mut kept, "first")?;
        ensure!(client.reply(false)?.text() == "first");
        client.send(format!("{method} /second HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes())?;
        let (ended, first) = store.next()?;
        ended.shutdown(Shutdown::Both)?;
        if is_repeated {
            let (mut connection, second) = store.next()?;
            ensure!(first == second, "{method}: {}", String::from_utf8_lossy(&second));
            connection.write_all(b"HTTP/1.1 204 None\r\nconnection: close\r\n\r\n")?;
        }
        let reply = client.reply(method == "HEAD")?;
        ensure!(reply.status == if is_repeated { 204 } else { 502 }, "{method}: {reply:?}");
    }
    // On a new connection it is lost.
    client.send(b"GET /third HTTP/1.1\r\nhost: a\r\n\r\n")?;
    store.next()?.0.shutdown(Shutdown::Both)?;
    ensure!(client.reply(false)?.status == 502);
    Ok(())
}

#[test]
fn chunks_that_are_none_are_malformed() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "")?;
    for body in
        ["zz\r\nhello\r\n0\r\n\r\n", "-5\r\nhello\r\n", "5\r\nhelloXX0\r\n\r\n", "5\r\nhello\r\nzz\r\n"]
    {
        let mut client = client(&gate)?;
        client.send(
            format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{body}").as_bytes(),
        )?;
        let reply = client.reply(false)?;
        ensure!((reply.status, reply.reason()) == (400, "malformed"), "{body:?}: {reply:?}");
        ensure!(client.is_closed()?);
    }
    Ok(())
}

#[test]
fn who_ends_its_side_behind_its_requests_is_answered() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "")?;
    let mut client = client(&gate)?;
    client.send(&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(2))?;
    client.stream().shutdown(Shutdown::Write)?;
    for number in ["one", "two"] {
        let (mut connection, _) = store.next().context(number)?;
        respond(&mut connection, number)?;
        ensure!(client.reply(false)?.text() == number);
    }
    ensure!(client.is_closed()?);
    Ok(())
}

#[test]
fn what_waits_in_the_queue_is_not_with_the_store() -> Result<()> {
    let store = FakeStore::start()?;
    let service =
        "parallelism = \"2\"\nmax_dedicated = \"3\"\nadmission = \"off\"\ncodel = { law = \"off\" }";
    let gate = Listening::gate_with("threads = \"1\"", "http", store.address, service, OPEN)?;
    let mut clients = (0..10).map(|_| client(&gate)).collect::<Result<Vec<_>>>()?;
    for client in &mut clients {
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
    }
    for _ in 0..10 {
        respond(&mut store.next()?.0, "ok")?;
    }
    for client in &mut clients {
        let reply = client.reply(false)?;
        ensure!(reply.status == 200, "{reply:?}");
    }
    Ok(())
}

/// The next request by this method: pieces of bodies are passed over.
fn next(store: &FakeStore, method: &str) -> Result<TcpStream> {
    loop {
        let (connection, piece) = store.next()?;
        if piece.starts_with(method.as_bytes()) {
            return Ok(connection);
        }
    }
}

/// A gate before a store that is spoken to by HTTP/2: another gate, whose own store is this one.
fn gates(store: &FakeStore) -> Result<[Listening; 2]> {
    let second = gate(store.address, "")?;
    Ok([gate(second.address, "backend_http = \"h2\"")?, second])
}

/// The head of a request with a body of this length, and the first of the body.
fn begin(method: &str, length: usize) -> Vec<u8> {
    format!("{method} / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\nbody").into_bytes()
}

#[test]
fn a_client_goes_on_where_the_store_wants_no_more_of_a_body() -> Result<()> {
    let store = FakeStore::start()?;
    let [gate, _second] = gates(&store)?;
    let client = &mut client(&gate)?;
    for method in ["POST", "PUT", "DELETE"] {
        client.send(&begin(method, 100_004))?;
        next(&store, method)?.write_all(ENOUGH)?;
        ensure!(client.reply(false)?.status == 405, "{method}");
        client.send(&[b'x'; 100_000])?;
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
        respond(&mut next(&store, "GET")?, "ok")?;
        ensure!(client.reply(false)?.text() == "ok", "{method}");
    }
    Ok(())
}

#[test]
fn a_long_body_that_the_store_does_not_want_ends_its_client() -> Result<()> {
    let store = FakeStore::start()?;
    let [gate, _second] = gates(&store)?;
    let client = &mut client(&gate)?;
    client.send(&begin("POST", 900_000))?;
    next(&store, "POST")?.write_all(ENOUGH)?;
    ensure!(client.reply(false)?.status == 405);
    // It may be cut off while it sends.
    let _ = client.send(&[b'x'; 600_000]);
    ensure!(client.reply(false).is_err());
    Ok(())
}

/// The last answer on a connection of the store, to a request of which it wants no more.
const ENOUGH: &[u8] = b"HTTP/1.1 405 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
