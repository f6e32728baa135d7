//! WebSockets of clients over HTTP/2 (RFC 8441), before a server that speaks HTTP/1.1.

use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;
use hyper::Method;
use nix::sys::signal::Signal;
use tungstenite::Message;
use tungstenite::handshake::derive_accept_key;
use tungstenite::protocol::CloseFrame;

use super::access_log::lines;
use super::cache::Directory;
use super::hostile::{END_HEADERS, HEADERS, PREFACE, RESET, SETTINGS, frame};
use super::http2_client::{Http2Client, request};
use super::processed::process;
use super::websocket::{AGREED, closed, server, with_poor_and_own};
use super::{OPEN, gate, respond};

fn client_from(gate: &Listening, last: u8) -> Result<Http2Client> {
    Http2Client::over_tcp(gate.connect_from(Ipv4Addr::new(127, 0, 0, last))?)
}

#[test]
fn messages_pass_over_http2_whole_and_charged() -> Result<()> {
    let directory = Directory::new("websocket-http2-log");
    let path = directory.path().with_extension("json");
    let gate = gate(server()?, &format!("websocket = \"on\"\naccess_log = {path:?}"))?;
    let client = client_from(&gate, 2)?;
    let before = gate.charged("all")?;
    let fields = [("cookie", "a=1"), ("cookie", "b=2"), ("sec-websocket-protocol", "chat")];
    let (parts, mut socket) = client.open("/echo?x", &fields)?.agreed()?;
    ensure!(parts.headers["x-seen"] == "Some(\"127.0.0.2\") Some(\"a=1; b=2\")", "{parts:?}");
    ensure!(parts.headers["sec-websocket-protocol"] == "chat", "{parts:?}");
    for name in ["sec-websocket-accept", "upgrade", "connection", "content-length"] {
        ensure!(!parts.headers.contains_key(name), "{parts:?}");
    }
    let (_, mut other) = client.open("/other", &[])?.agreed()?;
    for len in [0, 1, 125, 126, 65_535, 65_536, 1 << 20] {
        let sent = Message::binary((0..len).map(|at| (at % 251) as u8).collect::<Vec<_>>());
        socket.send(sent.clone())?;
        ensure!(socket.read()? == sent, "{len} bytes");
        other.send(Message::text("beside"))?;
        ensure!(other.read()? == Message::text("beside"));
    }
    ensure!(counter(&gate, "websockets")? == 2 && counter(&gate, "websockets-ended")? == 0);
    // 1,153 KiB each way, for the default of 1 RU each.
    wait_until("its bytes are not charged", || Ok(gate.charged("all")? - before >= 2.0 * 1_152.0))?;
    ensure!(gate.charged("all")? - before < 2.0 * 1_200.0);
    socket.close(Some(CloseFrame { code: 4_000.into(), reason: "mine".into() }))?;
    ensure!(u16::from(closed(&mut socket)?.code) == 4_000);
    drop(socket);
    wait_until("it has not ended", || Ok(counter(&gate, "websockets-ended")? == 1))?;
    let line = &lines(&path, 1)?[0];
    ensure!(line["status"] == 200 && line["method"] == "CONNECT" && line["path"] == "/echo", "{line}");
    ensure!(line["bytes"].as_u64().is_some_and(|bytes| bytes > 1_152 << 10), "{line}");
    other.send(Message::text("still"))?;
    ensure!(other.read()? == Message::text("still"));
    std::fs::remove_file(&path)?;
    Ok(())
}

#[test]
fn a_stream_that_is_refused_leaves_its_connection() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = with_poor_and_own(store.address)?;
    let refusal = |client: &Http2Client| client.open("/", &[("content-type", "application/grpc")])?.refusal();
    ensure!(refusal(&client_from(&gate, 7)?)? == (403, "unsupported".to_owned()));
    let poor = client_from(&gate, 8)?;
    let answers = std::thread::spawn(move || -> Result<FakeStore> {
        while let Ok((mut connection, _)) = store.next_within(Duration::from_secs(1)) {
            connection.write_all(b"HTTP/1.1 426 Other\r\ncontent-length: 2\r\n\r\nno")?;
        }
        Ok(store)
    });
    let answered = |_| Ok((poor.open("/", &[])?.refused()?.0.status.as_u16(), ()));
    let statuses: Vec<u16> =
        (0..20).map(|n| answered(n).map(|(status, ())| status)).collect::<Result<_>>()?;
    ensure!(statuses[0] == 426 && statuses.last() == Some(&429), "{statuses:?}");
    let store = answers.join().expect("it does not panic")?;
    let all = client_from(&gate, 5)?;
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| all.open("/", &[])?.refusal());
        let (mut connection, request) = store.next()?;
        let request = String::from_utf8(request)?.to_lowercase();
        ensure!(request.starts_with("get / http/1.1\r\n") && request.ends_with("\r\n\r\n"), "{request}");
        let fields = ["upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13"];
        ensure!(fields.iter().all(|field| request.lines().any(|line| line == *field)), "{request}");
        connection.write_all(AGREED.as_bytes())?;
        // That is no answer to gate's key.
        let refused = opening.join().expect("it does not panic")?;
        ensure!(refused.0 == 502, "{refused:?}");
        Ok(())
    })
}

/// Answers the next request of a store as one that goes on as a WebSocket.
fn agree(store: &FakeStore) -> Result<std::net::TcpStream> {
    let (mut connection, request) = store.next()?;
    let request = String::from_utf8(request)?;
    let key = request.lines().find_map(|line| line.strip_prefix("sec-websocket-key: ")).context("no key")?;
    let accept = derive_accept_key(key.as_bytes());
    connection.write_all(AGREED.replace("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", &accept).as_bytes())?;
    Ok(connection)
}

#[test]
fn streams_and_connections_share_the_bounds_of_a_tenant() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "websocket = \"on\"\nmax_dedicated = \"1\"")?;
    let client = client_from(&gate, 5)?;
    std::thread::scope(|scope| {
        let open = || client.open("/", &[])?.agreed();
        let opening = scope.spawn(open);
        let connection = agree(&store)?;
        let (_, socket) = opening.join().expect("it does not panic")?;
        ensure!(client.open("/", &[])?.refusal()? == (429, "limit".to_owned()));
        ensure!(client_from(&gate, 6)?.get("/")?.0.status == 429);
        // It has left, and so has the store.
        drop((socket, connection));
        wait_until("it has not ended", || Ok(counter(&gate, "websockets-ended")? == 1))?;
        let opening = scope.spawn(open);
        let _connection = agree(&store)?;
        opening.join().expect("it does not panic").map(drop)
    })
}

#[test]
fn what_a_store_says_instead_begins_no_tunnel() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "websocket = \"on\"")?;
    let client = client_from(&gate, 2)?;
    for (answer, status, text) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno", 502, ""),
        ("HTTP/1.1 204 None\r\n\r\n", 502, ""),
        ("HTTP/1.1 302 There\r\nlocation: /b\r\ncontent-length: 2\r\n\r\nno", 302, "no"),
        (
            "HTTP/1.1 426 Other\r\nupgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\nno",
            426,
            "no",
        ),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\n", 502, ""),
        (AGREED, 502, ""),
    ] {
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| client.open("/", &[])?.refused());
            store.next()?.0.write_all(answer.as_bytes())?;
            let (parts, said) = opening.join().expect("it does not panic")?;
            ensure!(parts.status == status, "{answer}: {parts:?}");
            ensure!(text.is_empty() || said == text, "{answer}: {said}");
            anyhow::Ok(())
        })?;
    }
    ensure!(counter(&gate, "websockets")? == 0);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| client.get("/"));
        respond(&mut store.next()?.0, "ok")?;
        ensure!(asking.join().expect("it does not panic")?.1 == "ok");
        Ok(())
    })
}

#[test]
fn a_stream_far_above_its_quota_is_slowed_and_told_so() -> Result<()> {
    let tenants = "[[tenant]]\nname = \"slow\"\nsources = [\"127.0.0.7\"]\nquota = \"200 RU/s\"\nburst = \"100ms\"\n\
                   [[tenant]]\nname = \"far\"\nsources = [\"127.0.0.8\"]\nquota = \"1 RU/s\"\nburst = \"5s\"\n";
    let service = "websocket = \"on\"\nclient_timeout = \"300ms\"";
    let gate = Listening::gate_with("tick = \"10ms\"", "http", server()?, service, tenants)?;
    let client = client_from(&gate, 7)?;
    let (_, mut slowed) = client.open("/", &[])?.agreed()?;
    let sent = Message::binary((0..150 << 10).map(|at| (at % 253) as u8).collect::<Vec<_>>());
    let began = Instant::now();
    slowed.send(sent.clone())?;
    ensure!(slowed.read()? == sent);
    // 300 KiB at 200 a second.
    ensure!(began.elapsed() > Duration::from_millis(1_200), "{:?}", began.elapsed());
    let far = client_from(&gate, 8)?;
    let (_, mut flooded) = far.open("/flood", &[])?.agreed()?;
    let close = closed(&mut flooded)?;
    ensure!((u16::from(close.code), close.reason.as_str()) == (1_013, "over quota"), "{close:?}");
    ensure!(counter(&gate, "websockets-over-quota")? == 1);
    // Its connection is there.
    ensure!(far.open("/", &[])?.refusal()?.0 == 429);
    Ok(())
}

#[test]
fn streams_that_wait_for_a_quota_hold_up_no_other() -> Result<()> {
    let tenants = "[[tenant]]\nname = \"spent\"\nids = [\"spent\"]\nquota = \"1 RU/s\"\nburst = \"10s\"\n\
                   [[tenant]]\nname = \"free\"\nids = [\"free\"]\nquota = \"unlimited\"\n";
    let service = "websocket = \"on\"\nclient_timeout = \"20s\"\ntrusted = [\"127.0.0.9\"]\ntenant_header = \"X-Org\"\n\
                   price = { learn = \"off\" }";
    let gate = Listening::gate_with("tick = \"10ms\"", "http", server()?, service, tenants)?;
    let proxy = client_from(&gate, 9)?;
    let mut waiting = Vec::new();
    for _ in 0..6 {
        waiting.push(proxy.open("/", &[("x-org", "spent")])?.agreed()?.1);
    }
    for socket in &mut waiting {
        socket.send(Message::binary(vec![b'w'; 100_000]))?;
    }
    let (_, mut free) = proxy.open("/", &[("x-org", "free")])?.agreed()?;
    for len in [1, 100_000] {
        let sent = Message::binary(vec![b'f'; len]);
        free.send(sent.clone())?;
        ensure!(free.read()? == sent);
    }
    ensure!(counter(&gate, "websockets-over-quota")? == 0, "the others have gone");
    Ok(())
}

#[test]
fn a_stream_that_is_not_read_ends_its_connection() -> Result<()> {
    let gate = gate(server()?, "websocket = \"on\"\nclient_timeout = \"2s\"")?;
    let unread = client_from(&gate, 2)?;
    let (_, mut quiet) = unread.open("/", &[])?.agreed()?;
    let (_, flooded) = unread.open("/flood", &[])?.agreed()?;
    let reader = client_from(&gate, 2)?;
    let (_, mut reading) = reader.open("/flood", &[])?.agreed()?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let goes_on = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                ensure!(reading.read()?.len() == 5_000);
            }
            Ok(())
        });
        let ended = wait_until("it keeps its connection", || Ok(counter(&gate, "slow-reader")? == 1))
            .and_then(|()| {
                wait_until("they hold what they had", || Ok(counter(&gate, "websockets-ended")? == 2))
            });
        over.store(true, Ordering::Relaxed);
        goes_on.join().expect("it does not panic")?;
        ended
    })?;
    ensure!(quiet.read().is_err(), "it goes on");
    drop(flooded);
    Ok(())
}

#[test]
fn streams_go_on_while_gate_drains_and_are_told_the_end() -> Result<()> {
    let mut gate = Listening::gate_with("drain = \"2s\"", "http", server()?, "websocket = \"on\"", OPEN)?;
    let client = client_from(&gate, 2)?;
    let (_, mut socket) = client.open("/", &[])?.agreed()?;
    gate.signal(Signal::SIGTERM)?;
    gate.program().wait_for("no new connections", super::websocket_takeover::PATIENCE)?;
    socket.send(Message::text("still"))?;
    ensure!(socket.read()? == Message::text("still"));
    let close = closed(&mut socket)?;
    ensure!(u16::from(close.code) == 1_012, "{close:?}");
    wait_until("it does not end", || Ok(!gate.program().is_running()?))
}

/// `CONNECT` to the host `a`, and a field more, by HPACK without its tables.
fn connect(fields: &[u8]) -> Vec<u8> {
    [&b"\x02\x07CONNECT\x41\x01a"[..], fields].concat()
}

const WEBSOCKET: &[u8] = b"\0\x09:protocol\x09websocket";
const SCHEME: &[u8] = b"\x86";
const PATH: &[u8] = b"\x84";

/// The kind and payload of the first frame of stream 1 that answers such a head, and the settings that gate sends before.
fn answered(gate: &Listening, head: &[u8]) -> Result<(u8, Vec<u8>, Vec<u8>)> {
    let mut stream = gate.connect()?;
    let frames = [frame(SETTINGS, 0, 0, b""), frame(HEADERS, END_HEADERS, 1, head)].concat();
    stream.write_all(&[PREFACE, &frames].concat())?;
    let mut settings = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload)?;
        if head[5..] == 1_u32.to_be_bytes() {
            return Ok((head[3], payload, settings));
        }
        if head[3] == SETTINGS && head[4] == 0 {
            settings = payload;
        }
    }
}

#[test]
fn what_is_no_websocket_over_http2_has_a_stated_answer() -> Result<()> {
    const OFFERED: &[u8] = &[0, 8, 0, 0, 0, 1];
    const PROTOCOL_ERROR: &[u8] = &[0, 0, 0, 1];
    let on = gate(server()?, "websocket = \"on\"")?;
    let off = gate(server()?, "")?;
    let other = b"\0\x09:protocol\x0aconnect-ip";
    for (gate, fields, kind) in [
        (&on, [WEBSOCKET, SCHEME, PATH].concat(), HEADERS),
        (&on, [&other[..], SCHEME, PATH].concat(), HEADERS),
        (&on, [WEBSOCKET, SCHEME].concat(), RESET),
        (&on, [WEBSOCKET, PATH].concat(), RESET),
        (&on, WEBSOCKET.to_vec(), RESET),
        (&on, Vec::new(), HEADERS),
        (&off, [WEBSOCKET, SCHEME, PATH].concat(), RESET),
        (&off, Vec::new(), HEADERS),
    ] {
        let (answered, payload, settings) = answered(gate, &connect(&fields))?;
        ensure!(answered == kind, "{fields:?}: {answered} {payload:?}");
        ensure!(kind == HEADERS || payload == PROTOCOL_ERROR, "{fields:?}: {payload:?}");
        let is_offered = settings.chunks(6).any(|setting| setting == OFFERED);
        ensure!(is_offered == std::ptr::eq(gate, &on), "{settings:?}");
    }
    let client = client_from(&on, 2)?;
    for (protocol, status) in [(Some("websocket2"), 501), (Some("WebSocket"), 200), (None, 403)] {
        let version = [("sec-websocket-version", "13")];
        let opened = client.send(request(Method::CONNECT, "/", &version, protocol)?)?;
        let status_of = match opened.refusal() {
            Ok((status, reason)) => {
                ensure!(reason == "unsupported", "{protocol:?}: {status} {reason}");
                status
            }
            Err(_) => 200,
        };
        ensure!(status_of == status, "{protocol:?}");
    }
    Ok(())
}

#[test]
fn paths_of_the_processor_are_no_websockets() -> Result<()> {
    let directory = Directory::new("websocket-http2-processed");
    let store = FakeStore::start()?;
    let process = process(store.address, gate_tests::proxy::address(), &[store.address], "");
    let service = format!("websocket = \"on\"\n{}\n{process}", directory.cache(""));
    let gate = gate(store.address, &service)?;
    let path = format!("/img/w/http://{}/a", store.address);
    let refusal = client_from(&gate, 2)?.open(&path, &[])?.refusal()?;
    ensure!(refusal == (403, "unsupported".to_owned()), "{refusal:?}");
    Ok(())
}
