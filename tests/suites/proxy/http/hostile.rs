//! Clients and stores that do what they should not: that request or connection fails alone, and gate stays small.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::http_client::HttpClient;
use gate_tests::nginx::Nginx;
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;

use super::{client, gate};

/// Refusals of the only tenant for this reason.
fn refused(gate: &Listening, reason: &str) -> Result<u64> {
    let tenant = gate.json(&["tenants", "all"])?["tenants"][0].clone();
    Ok(tenant["refused"][reason].as_u64().unwrap_or(0))
}

#[test]
fn slow_heads_and_bodies_end_their_connections() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate(store.address, "client_timeout = \"300ms\"\nidle_timeout = \"2s\"")?;
    let mut head = client(&gate)?;
    head.send(b"GET /echo HTTP/1.1\r\nhost: a\r\nx: ")?;
    ensure!(head.is_closed()?);
    wait_until("it is counted", || Ok(counter(&gate, "slow-writer")? == 1))?;
    let mut body = client(&gate)?;
    body.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc")?;
    // nginx may answer what it throws away; else gate does.
    ensure!([200, 408].contains(&body.reply(false)?.status));
    let mut idle = client(&gate)?;
    ensure!(idle.ask("GET /echo", "")?.status == 200);
    ensure!(idle.is_closed()?);
    wait_until("it is counted", || Ok(counter(&gate, "idle")? >= 1))?;
    ensure!(client(&gate)?.ask("GET /echo", "")?.status == 200);
    Ok(())
}

#[test]
fn a_body_that_trickles_is_broken_off() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "client_timeout = \"300ms\"")?;
    let mut slow = client(&gate)?;
    slow.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n")?;
    let (_connection, _) = store.next()?;
    let stream = slow.stream().try_clone()?;
    let trickle = std::thread::spawn(move || {
        let mut stream = stream;
        while stream.write_all(b"x").is_ok() {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    });
    let reply = slow.reply(false)?;
    ensure!((reply.status, reply.reason()) == (408, "limit"), "{reply:?}");
    drop(slow);
    trickle.join().map_err(|_| anyhow::anyhow!("it panicked"))
}

#[test]
fn long_heads_are_refused_and_counted() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate(store.address, "")?;
    for head in [
        format!("GET /echo HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(100 << 10)),
        format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "x".repeat(100 << 10)),
        format!("GET /echo HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(2_000)),
    ] {
        let before = refused(&gate, "malformed")?;
        let mut client = client(&gate)?;
        // It may be answered before it is all said.
        let _ = client.send(head.as_bytes());
        let reply = client.reply(false)?;
        ensure!([400, 414, 431].contains(&reply.status), "{reply:?}");
        wait_until("it is counted", || Ok(refused(&gate, "malformed")? > before))?;
    }
    ensure!(store.seen()?.is_empty());
    Ok(())
}

#[test]
fn an_endless_answer_passes_without_being_gathered() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "client_timeout = \"1s\"")?;
    let mut reader = client(&gate)?;
    reader.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let (mut endless, _) = store.next()?;
    endless.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
    let chunk = [&b"10000\r\n"[..], &[b'x'; 65_536], b"\r\n"].concat();
    let writing = std::thread::spawn(move || {
        let mut written = 0_usize;
        while endless.write_all(&chunk).is_ok() {
            written += chunk.len();
        }
        written
    });
    let mut piece = vec![0; 1 << 20];
    let mut read = 0;
    while read < 200 << 20 {
        read += reader.stream().read(&mut piece)?;
    }
    ensure!(gate.memory()? < 64 << 20, "{} bytes", gate.memory()?);
    // Then it does not read on: its connection is closed, and with it the store's.
    wait_until("it is closed", || Ok(counter(&gate, "slow-reader")? == 1))?;
    let written = writing.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
    ensure!(written >= read, "{written}");
    drop(reader);
    Ok(())
}

/// A frame of HTTP/2.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// `GET http://a/`, by the static table of HPACK.
const GET: &[u8] = b"\x82\x86\x84\x41\x01a";
pub(super) const HEADERS: u8 = 1;
pub(super) const RESET: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

/// Sends as much as is taken, and returns the kinds of frames that come until the connection ends.
fn kinds_until_closed(gate: &Listening, frames: &[u8]) -> Result<Vec<u8>> {
    let mut stream: TcpStream = gate.connect()?;
    let mut writer = stream.try_clone()?;
    let bytes = [PREFACE, &frame(SETTINGS, 0, 0, b""), frames].concat();
    // It may be closed before it is all said.
    let writing = std::thread::spawn(move || drop(writer.write_all(&bytes)));
    let mut kinds = Vec::new();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        kinds.push(head[3]);
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if stream.read_exact(&mut vec![0; len]).is_err() {
            break;
        }
        if head[3] == GOAWAY {
            break;
        }
    }
    drop(stream);
    writing.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
    Ok(kinds)
}

#[test]
fn floods_of_http2_frames_end_their_connection() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate(store.address, "client_timeout = \"1s\"")?;
    let resets: Vec<u8> = (0..20_000_u32)
        .flat_map(|number| {
            let stream = 2 * number + 1;
            let cancel = frame(RESET, 0, stream, &8_u32.to_be_bytes());
            [frame(HEADERS, END_STREAM | END_HEADERS, stream, GET), cancel].concat()
        })
        .collect();
    // A head without an end, of fields that are never indexed.
    let field = [&b"\x10\x01x\x7f\x81\x01"[..], &[b'y'; 256]].concat();
    let mut endless = frame(HEADERS, END_STREAM, 1, GET);
    (0..10_000).for_each(|_| endless.extend(frame(CONTINUATION, 0, 1, &field)));
    let empty: Vec<u8> = (0..200_000).flat_map(|_| frame(CONTINUATION, 0, 1, b"")).collect();
    let empty = [frame(HEADERS, END_STREAM, 1, GET), empty].concat();
    for (name, flood) in [("resets", resets), ("continuations", endless), ("empty continuations", empty)] {
        let kinds = kinds_until_closed(&gate, &flood).context(name)?;
        ensure!(kinds.contains(&GOAWAY) || kinds.len() < 100, "{name}: {} frames", kinds.len());
        ensure!(gate.memory()? < 64 << 20, "{name}: {} bytes", gate.memory()?);
        ensure!(client(&gate)?.ask("GET /echo", "")?.status == 200, "{name}");
    }
    Ok(())
}

/// A field that is never indexed: its name, and its value, both short.
fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0x10, name.len() as u8], name, &[value.len() as u8], value].concat()
}

#[test]
fn fields_of_http2_that_would_be_several_in_http1_never_pass() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate(store.address, "client_timeout = \"1s\"")?;
    for (name, value) in [
        (&b"x"[..], &b"y\r\nz: 1"[..]),
        (b"x", b"y\nz: 1"),
        (b"x", b"y\rz: 1"),
        (b"x", b"y\0z"),
        (b"x: y\r\nz", b"1"),
        (b"x:", b"y"),
        (b"x y", b"z"),
        (b"X", b"y"),
        (b"", b"y"),
        (b"connection", b"close"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"x"),
        (b"content-length", b"5"),
        (b"content-length", b"x"),
        (b"host", b"other"),
        (b":path", b"/second"),
        (b":other", b"x"),
    ] {
        let head = [GET, &field(name, value)].concat();
        let frames = frame(HEADERS, END_STREAM | END_HEADERS, 1, &head);
        // No answer, or one that refuses: nothing of it reaches the store.
        let mut stream = gate.connect()?;
        stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, b""), &frames].concat())?;
        stream.set_read_timeout(Some(Duration::from_millis(300)))?;
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
    }
    for path in [&b"/a b"[..], b"/a\r\nx: y", b"a", b"", b"/\0"] {
        let head = [&b"\x82\x86\x41\x01a"[..], &[0x04, path.len() as u8], path].concat();
        let frames = frame(HEADERS, END_STREAM | END_HEADERS, 1, &head);
        let mut stream = gate.connect()?;
        stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, b""), &frames].concat())?;
        stream.set_read_timeout(Some(Duration::from_millis(300)))?;
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
    }
    ensure!(client(&gate)?.ask("GET /echo", "")?.status == 200);
    // nginx logs a request behind its answer.
    wait_until("the last request is logged", || Ok(store.seen()?.contains("/echo")))?;
    let seen = store.seen()?;
    ensure!(seen == "GET /echo [-] [-]\n", "{seen}");
    Ok(())
}

#[test]
fn curl_speaks_either_version() -> Result<()> {
    let store = Nginx::start(&[70_001])?;
    let gate = gate(store.address, "")?;
    for version in ["--http1.0", "--http1.1", "--http2", "--http2-prior-knowledge"] {
        for (arguments, needle) in [
            (&["--data", "abc"][..], "POST /echo"),
            (&["--head"], "200"),
            (&["--header", "transfer-encoding: chunked", "--data", "abc"], "POST /echo"),
        ] {
            if version == "--http1.0" && arguments.len() > 2 {
                continue;
            }
            let mut curl = Command::new("curl");
            curl.args(["-s", "-S", "--noproxy", "*", "--max-time", "20", version]).args(arguments);
            let output = curl.arg(format!("http://{}/echo", gate.address)).output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(
                output.status.success() && said.contains(needle),
                "{version} {arguments:?}: {said} {output:?}"
            );
        }
        if version != "--http1.0" {
            // A body whose length nobody says, of a method that seldom has one.
            let url = format!("http://{}/echo", gate.address);
            let line = format!("printf abc | curl -s -S --noproxy '*' {version} -X GET -T - {url}");
            let output = Command::new("sh").args(["-c", &line]).output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(
                said.contains("GET /echo") && said.contains("coding=chunked"),
                "{version}: {said} {output:?}"
            );
        }
        let mut curl = Command::new("curl");
        curl.args(["-s", "--noproxy", "*", version, "--range", "1-70000"]);
        let output = curl.arg(format!("http://{}/70001", gate.address)).output()?;
        ensure!(output.stdout.len() == 70_000, "{version}: {}", output.stdout.len());
    }
    Ok(())
}

#[test]
fn an_unread_http2_stream_does_not_hold_up_the_others() -> Result<()> {
    let store = Nginx::start(&[300_000])?;
    let gate = gate(store.address, "parallelism = \"1\"\nadmission = \"off\"\ncodel = { law = \"off\" }")?;
    // Its window lets 65,535 bytes through, and it opens it no further.
    let path = b"/300000";
    let head = [&b"\x82\x86\x41\x01a"[..], &[0x04, path.len() as u8], path].concat();
    let mut stream = gate.connect()?;
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, &head);
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, b""), &request].concat())?;
    let mut read = 0;
    let mut piece = vec![0; 1 << 16];
    while read < 65_535 {
        read += stream.read(&mut piece)?;
    }
    let mut other: HttpClient = client(&gate)?;
    ensure!(other.ask("GET /echo", "")?.status == 200, "it has the only permit");
    Ok(())
}
