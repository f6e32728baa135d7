//! WebSockets through an HTTP service, by a client and a server of a library of its own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::http_client::HttpClient;
use gate_tests::proxy::{Listening, PATIENCE};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::handshake::server::{Request, Response};
use tungstenite::http::HeaderValue;
use tungstenite::protocol::CloseFrame;
use tungstenite::{Message, WebSocket};

use super::access_log::lines;
use super::cache::Directory;
use super::explain::explain;
use super::{OPEN, client, client_from, gate};

/// A server that goes on as a WebSocket on each connection: at `/flood` it sends without an end, elsewhere it sends back what it gets.
pub(super) fn server() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(serve(stream)));
        }
    });
    Ok(address)
}

fn serve(stream: TcpStream) -> Result<()> {
    let floods = Arc::new(AtomicBool::new(false));
    let of_request = Arc::clone(&floods);
    #[expect(clippy::result_large_err, reason = "the library wants it so")]
    let on_request = move |request: &Request, mut response: Response| {
        of_request.store(request.uri().path() == "/flood", Ordering::Relaxed);
        let field = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let seen = format!("{:?} {:?}", field("x-forwarded-for"), field("cookie"));
        response.headers_mut().insert("x-seen", HeaderValue::from_str(&seen).expect("plain text"));
        if let Some(protocol) = request.headers().get("sec-websocket-protocol") {
            response.headers_mut().insert("sec-websocket-protocol", protocol.clone());
        }
        Ok(response)
    };
    let mut socket = tungstenite::accept_hdr(stream, on_request)?;
    loop {
        let message = if floods.load(Ordering::Relaxed) {
            Message::binary(vec![b'f'; 5_000])
        } else {
            socket.read()?
        };
        // It answers pings itself.
        if message.is_text() || message.is_binary() {
            socket.send(message)?;
        }
    }
}

fn open(gate: &Listening, path: &str, last: u8) -> Result<(WebSocket<TcpStream>, Response)> {
    let mut request = format!("ws://{}{path}", gate.address).into_client_request()?;
    request.headers_mut().insert("cookie", HeaderValue::from_static("a=1"));
    request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("chat"));
    let stream = gate.connect_from(Ipv4Addr::new(127, 0, 0, last))?;
    tungstenite::client(request, stream)
        .map(|(socket, response)| (socket, response.map(|_| ())))
        .map_err(|error| anyhow::anyhow!("no WebSocket: {error}"))
}

/// The close frame that a WebSocket ends with.
pub(super) fn closed<S: Read + Write>(socket: &mut WebSocket<S>) -> Result<CloseFrame> {
    let began = Instant::now();
    loop {
        ensure!(began.elapsed() < PATIENCE, "it is not closed in time");
        match socket.read() {
            Ok(Message::Close(frame)) => return frame.context("it says no code"),
            Ok(_) => {}
            Err(error) => bail!("closed without a word: {error}"),
        }
    }
}

const UPGRADE: &str = "GET / HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                       sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
pub(super) const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
                      sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

#[test]
fn messages_pass_both_ways_whole_and_charged() -> Result<()> {
    let directory = Directory::new("websocket-log");
    let path = directory.path().with_extension("json");
    let service = format!("websocket = \"on\"\naccess_log = {path:?}");
    let gate = gate(server()?, &service)?;
    let (mut socket, response) = open(&gate, "/echo?x", 2)?;
    ensure!(response.headers()["x-seen"] == "Some(\"127.0.0.2\") Some(\"a=1\")", "{response:?}");
    ensure!(response.headers()["sec-websocket-protocol"] == "chat", "{response:?}");
    let before = gate.charged("all")?;
    for len in [0, 1, 125, 126, 65_535, 65_536, 1 << 20] {
        let sent = Message::binary((0..len).map(|at| (at % 251) as u8).collect::<Vec<_>>());
        socket.send(sent.clone())?;
        ensure!(socket.read()? == sent, "{len} bytes");
    }
    socket.send(Message::text("text"))?;
    ensure!(socket.read()? == Message::text("text"));
    socket.send(Message::Ping("ping".into()))?;
    ensure!(socket.read()? == Message::Pong("ping".into()));
    ensure!(counter(&gate, "websockets")? == 1 && counter(&gate, "websockets-ended")? == 0);
    // 1,153 KiB each way, for the default of 1 RU each.
    wait_until("its bytes are not charged", || Ok(gate.charged("all")? - before >= 2.0 * 1_152.0))?;
    ensure!(gate.charged("all")? - before < 2.0 * 1_200.0);
    let closing = CloseFrame { code: 4_000.into(), reason: "mine".into() };
    socket.close(Some(closing.clone()))?;
    ensure!(closed(&mut socket)?.code == closing.code);
    drop(socket);
    wait_until("it has not ended", || Ok(counter(&gate, "websockets-ended")? == 1))?;
    let line = &lines(&path, 1)?[0];
    ensure!(line["status"] == 101 && line["path"] == "/echo", "{line}");
    ensure!(line["bytes"].as_u64().is_some_and(|bytes| bytes > 1_152 << 10), "{line}");
    std::fs::remove_file(&path)?;
    Ok(())
}

#[test]
fn where_it_is_not_configured_it_is_refused() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "")?;
    let client = &mut client(&gate)?;
    client.send(UPGRADE.as_bytes())?;
    let reply = client.reply(false)?;
    ensure!((reply.status, reply.reason()) == (403, "unsupported"), "{reply:?}");
    client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
    super::respond(&mut store.next()?.0, "ok")?;
    ensure!(client.reply(false)?.text() == "ok");
    Ok(())
}

/// A gate for WebSockets, one at a time, with three tenants: `poor` at 127.0.0.8, `own` at 127.0.0.7, which may ask for `a` alone, and
/// everyone else.
pub(super) fn with_poor_and_own(store: SocketAddr) -> Result<Listening> {
    let tenants = "[[tenant]]\nname = \"poor\"\nsources = [\"127.0.0.8\"]\nquota = \"1 RU/s\"\nburst = \"5s\"\n\
                   [[tenant]]\nname = \"own\"\nsources = [\"127.0.0.7\"]\nquota = \"unlimited\"\nkeys = \"own\"\n\
                   key_prefixes = [\"a\"]\n[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n";
    let service =
        "websocket = \"on\"\nmax_dedicated = \"1\"\nprice = { learn = \"off\" }\nslow_timeout = \"20s\"";
    Listening::gate_with("tick = \"10ms\"", "http", store, service, tenants)
}

#[test]
fn a_request_that_is_refused_leaves_its_connection() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = with_poor_and_own(store.address)?;
    let mut own = client_from(&gate, 7)?;
    own.send(UPGRADE.as_bytes())?;
    let reply = own.reply(false)?;
    ensure!((reply.status, reply.reason()) == (403, "unsupported"), "{reply:?}");
    let mut poor = client_from(&gate, 8)?;
    let mut refused = None;
    for _ in 0..20 {
        poor.send(UPGRADE.as_bytes())?;
        // Either refused by gate, or by the store.
        if let Ok((mut connection, _)) = store.next_within(Duration::from_millis(200)) {
            connection.write_all(
                b"HTTP/1.1 426 Other\r\nupgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\nno",
            )?;
            let reply = poor.reply(false)?;
            ensure!((reply.status, reply.text().as_str()) == (426, "no"), "{reply:?}");
            ensure!(reply.field("upgrade").is_none(), "{reply:?}");
            continue;
        }
        refused = Some(poor.reply(false)?);
        break;
    }
    let refused = refused.context("never refused")?;
    ensure!((refused.status, refused.reason()) == (429, "quota"), "{refused:?}");
    // A tenant's WebSockets take its connections of the store.
    let mut first = client_from(&gate, 5)?;
    first.send(UPGRADE.as_bytes())?;
    let (mut connection, _) = store.next()?;
    connection.write_all(AGREED.as_bytes())?;
    ensure!(switched(&mut first)?);
    let mut second = client_from(&gate, 6)?;
    second.send(UPGRADE.as_bytes())?;
    let reply = second.reply(false)?;
    ensure!((reply.status, reply.reason()) == (429, "limit"), "{reply:?}");
    drop((first, connection));
    wait_until("it has not ended", || Ok(counter(&gate, "websockets-ended")? == 1))?;
    second.send(UPGRADE.as_bytes())?;
    store.next()?.0.write_all(AGREED.as_bytes())?;
    ensure!(switched(&mut second)?);
    Ok(())
}

/// True if the next head says that the store goes on as a WebSocket.
fn switched(client: &mut HttpClient) -> Result<bool> {
    let mut is_switched = client.line()?.starts_with("HTTP/1.1 101 ");
    let mut fields = Vec::new();
    loop {
        let line = client.line()?.to_lowercase();
        if line.is_empty() {
            break;
        }
        fields.push(line);
    }
    for field in
        ["upgrade: websocket", "connection: upgrade", "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="]
    {
        is_switched &= fields.iter().any(|line| line == field);
    }
    Ok(is_switched)
}

#[test]
fn a_store_that_agrees_to_something_else_is_garbled() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "websocket = \"on\"")?;
    let client = &mut client(&gate)?;
    for answer in [
        AGREED.replace("sec-websocket-accept", "x"),
        AGREED.replace("websocket\r\n", "other\r\n"),
        AGREED.replace("connection: Upgrade", "connection: close"),
        "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned(),
    ] {
        client.send(UPGRADE.as_bytes())?;
        let (mut connection, _) = store.next()?;
        connection.write_all(answer.as_bytes())?;
        let reply = client.reply(false)?;
        ensure!(reply.status == 502, "{answer}: {reply:?}");
    }
    // Nobody has asked.
    client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
    store.next()?.0.write_all(AGREED.as_bytes())?;
    ensure!(client.reply(false)?.status == 502);
    ensure!(counter(&gate, "websockets")? == 0);
    Ok(())
}

#[test]
fn what_comes_behind_a_request_goes_nowhere_before_101() -> Result<()> {
    const BEHIND: &[u8] = b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    let store = FakeStore::start()?;
    let gate = gate(store.address, "websocket = \"on\"")?;
    let mut agreed = client(&gate)?;
    agreed.send(&[UPGRADE.as_bytes(), BEHIND].concat())?;
    let (mut connection, request) = store.next()?;
    let request = String::from_utf8(request)?.to_lowercase();
    ensure!(request.ends_with("\r\n\r\n") && !request.contains("smuggled"), "{request}");
    ensure!(
        request.contains("upgrade: websocket\r\n") && request.contains("connection: upgrade\r\n"),
        "{request}"
    );
    // With the first of what follows.
    connection.write_all(&[AGREED.as_bytes(), b"first"].concat())?;
    ensure!(switched(&mut agreed)?);
    let mut first = [0; 5];
    agreed.read_exact(&mut first)?;
    ensure!(&first == b"first");
    ensure!(store.next()?.1 == BEHIND, "as it came");
    // Where the store does not agree it is the next request, of its own.
    let mut refused = client(&gate)?;
    refused.send(&[UPGRADE.as_bytes(), BEHIND].concat())?;
    let (mut connection, request) = store.next()?;
    ensure!(!String::from_utf8(request)?.contains("smuggled"));
    super::respond(&mut connection, "no")?;
    ensure!(refused.reply(false)?.text() == "no");
    let (mut connection, request) = store.next()?;
    ensure!(String::from_utf8(request)?.starts_with("GET /smuggled HTTP/1.1\r\n"));
    super::respond(&mut connection, "ok")?;
    ensure!(refused.reply(false)?.text() == "ok");
    Ok(())
}

#[test]
fn a_tenant_above_its_quota_is_slowed_and_loses_nothing() -> Result<()> {
    let tenants =
        "[[tenant]]\nname = \"slow\"\nsources = [\"127.0.0.0/8\"]\nquota = \"200 RU/s\"\nburst = \"100ms\"\n";
    let gate = Listening::gate_with("tick = \"10ms\"", "http", server()?, "websocket = \"on\"", tenants)?;
    let (mut socket, _) = open(&gate, "/", 2)?;
    let sent = Message::binary((0..150 << 10).map(|at| (at % 253) as u8).collect::<Vec<_>>());
    let began = Instant::now();
    socket.send(sent.clone())?;
    ensure!(socket.read()? == sent);
    // 300 KiB at 200 a second.
    ensure!(began.elapsed() > Duration::from_millis(1_200), "{:?}", began.elapsed());
    Ok(())
}

#[test]
fn a_tenant_far_above_its_quota_is_told_so() -> Result<()> {
    let tenants = "[[tenant]]\nname = \"far\"\nsources = [\"127.0.0.8\"]\nquota = \"1 RU/s\"\nburst = \"5s\"\n\
                   [[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n";
    let service = "websocket = \"on\"\nclient_timeout = \"300ms\"";
    let gate = Listening::gate_with("tick = \"10ms\"", "http", server()?, service, tenants)?;
    let (mut polite, _) = open(&gate, "/", 2)?;
    // From the store, in frames of which gate has a part.
    let (mut flooded, _) = open(&gate, "/flood", 8)?;
    let close = closed(&mut flooded)?;
    ensure!((u16::from(close.code), close.reason.as_str()) == (1_013, "over quota"), "{close:?}");
    ensure!(counter(&gate, "websockets-over-quota")? == 1);
    wait_until("it has not ended", || Ok(counter(&gate, "websockets-ended")? == 1))?;
    let refused = gate.json(&["tenants", "far"])?["tenants"][0]["refused"]["quota"].as_u64();
    ensure!(refused.is_some_and(|refused| refused > 0), "{refused:?}");
    polite.send(Message::text("still"))?;
    ensure!(polite.read()? == Message::text("still"));
    Ok(())
}

#[test]
fn one_on_which_nothing_passes_is_closed() -> Result<()> {
    let gate = gate(server()?, "websocket = \"on\"\nidle_timeout = \"1s\"\nclient_timeout = \"300ms\"")?;
    let (mut socket, _) = open(&gate, "/", 2)?;
    socket.send(Message::text("a"))?;
    ensure!(socket.read()? == Message::text("a"));
    let began = Instant::now();
    let close = closed(&mut socket)?;
    ensure!(u16::from(close.code) == 1_001, "{close:?}");
    // `client_timeout` is for what has begun.
    ensure!(began.elapsed() > Duration::from_millis(700), "{:?}", began.elapsed());
    Ok(())
}

#[test]
fn one_of_a_tenant_that_is_removed_is_closed() -> Result<()> {
    let tenants = "[[tenant]]\nname = \"leaves\"\nsources = [\"127.0.0.8\"]\nquota = \"unlimited\"\n\
                   [[tenant]]\nname = \"stays\"\nsources = [\"127.0.0.7\"]\nquota = \"unlimited\"\n";
    let gate = Listening::gate_with("tick = \"10ms\"", "http", server()?, "websocket = \"on\"", tenants)?;
    let (mut leaves, _) = open(&gate, "/", 8)?;
    let (mut stays, _) = open(&gate, "/", 7)?;
    let (config, _) = gate.files()?;
    let text = std::fs::read_to_string(config)?;
    std::fs::write(
        config,
        text.replace("\"leaves\"\nsources = [\"127.0.0.8\"]", "\"leaves\"\nsources = [\"127.0.0.9\"]"),
    )?;
    gate.signal(Signal::SIGHUP)?;
    let close = closed(&mut leaves)?;
    ensure!(u16::from(close.code) == 1_008, "{close:?}");
    stays.send(Message::text("a"))?;
    ensure!(stays.read()? == Message::text("a"));
    Ok(())
}

#[test]
fn a_gate_that_ends_says_so() -> Result<()> {
    let gate = Listening::gate_with("drain = \"0ms\"", "http", server()?, "websocket = \"on\"", OPEN)?;
    let (mut socket, _) = open(&gate, "/", 2)?;
    let (mut flooded, _) = open(&gate, "/flood", 2)?;
    gate.signal(Signal::SIGTERM)?;
    for socket in [&mut socket, &mut flooded] {
        let close = closed(socket)?;
        ensure!(u16::from(close.code) == 1_012, "{close:?}");
    }
    Ok(())
}

#[test]
fn an_explanation_says_what_is_charged() -> Result<()> {
    let gate = gate(server()?, "websocket = \"on\"")?;
    let words = ["GET", "/", "upgrade: websocket", "connection: upgrade"];
    let explained = explain(&gate, ["--source", "127.0.0.2"], &words)?;
    let explained = explained.map_err(anyhow::Error::msg)?;
    ensure!(explained["verdict"] == "passes", "{explained}");
    ensure!(explained["notes"].to_string().contains("goes on as a WebSocket"), "{explained}");
    Ok(())
}
