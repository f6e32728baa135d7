//! Random requests, each sent to nginx and to a gate before it, without a cache and with one: the answers are the same, but for
//! fields that are of one connection, and what CONFIGURATION.md says of answers out of a cache. `GATE_LONG=1` sends a hundred thousand.

use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, Result, ensure};
use gate_tests::http_client::{HttpClient, Reply};
use gate_tests::nginx::Nginx;
use gate_tests::proxy::PATIENCE;
use gate_tests::rng::Rng;

use super::cache::{Directory, status, wait_open};
use super::gate;

const FILES: [usize; 6] = [0, 1, 1_000, 65_536, 70_001, 300_000];
const METHODS: [&str; 8] = ["GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"];
/// Fields that differ between two connections, or two seconds.
const OF_CONNECTIONS: [&str; 4] = ["date", "connection", "keep-alive", "transfer-encoding"];
/// Fields that the cache writes.
const OF_CACHE: [&str; 3] = ["age", "cache-status", "accept-ranges"];
/// A request that a cache may share, for an answer that says what was asked.
const PLAIN_ECHO: &[u8] = b"GET /echo/x?y=1&z=%20 HTTP/1.1\r\nhost: test\r\n\r\n";
/// A machine that others keep busy is no overload of the store.
const CALM: &str = "shedding.enabled = \"off\"";
/// Clients at a time, and the requests of each.
const CLIENTS: u64 = 4;
const REQUESTS: usize = 150;
const LONG_REQUESTS: usize = 25_000;

/// A request, and true if its reply has no body.
fn request(rng: &mut Rng) -> (Vec<u8>, bool) {
    let method = rng.pick(&METHODS);
    let file = rng.pick(&FILES);
    let path = match rng.below(6) {
        0 => "/echo/x?y=1&z=%20".to_owned(),
        1 => "/missing".to_owned(),
        2 => format!("/%2e/{file}"),
        3 => format!("/x/../{file}?q"),
        _ => format!("/{file}"),
    };
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
    match rng.below(6) {
        0 => text += &format!("range: bytes={}-{}\r\n", rng.below(70_000), 70_000 + rng.below(1_000)),
        1 => text += &format!("range: bytes=-{}\r\n", rng.below(100)),
        2 => text += "range: bytes=0-0,2-4\r\n",
        3 => text += "if-modified-since: Mon, 23 Nov 2099 00:00:00 GMT\r\n",
        _ => {}
    }
    let body: Vec<u8> = (0..rng.below(20_000)).map(|at| at as u8).collect();
    let mut bytes = Vec::new();
    match rng.below(3) {
        0 if method != "HEAD" => {
            bytes.extend(format!("{text}content-length: {}\r\n\r\n", body.len()).bytes());
            bytes.extend(&body);
        }
        1 if method == "POST" || method == "PUT" => {
            bytes.extend(format!("{text}transfer-encoding: chunked\r\n\r\n").bytes());
            for piece in body.chunks(1 + rng.below(5_000) as usize) {
                bytes.extend(format!("{:x}\r\n", piece.len()).bytes());
                bytes.extend(piece);
                bytes.extend(b"\r\n");
            }
            bytes.extend(b"0\r\n\r\n");
        }
        _ => bytes.extend(format!("{text}\r\n").bytes()),
    }
    (bytes, method == "HEAD")
}

/// Asks on a connection, or on a new one if that has ended.
fn ask(
    connection: &mut Option<HttpClient>,
    new: impl Fn() -> Result<HttpClient>,
    request: &[u8],
    is_head: bool,
) -> Result<Reply> {
    let mut client = connection.take().map_or_else(new, Ok)?;
    client.send(request)?;
    let reply = client.reply(is_head)?;
    *connection = Some(client).filter(|_| reply.field("connection") != Some("close"));
    Ok(reply)
}

/// The parts of a reply that are compared. Answers to ranges of several parts have a random boundary.
fn compared(reply: &Reply) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let is_random =
        reply.field("content-type").is_some_and(|value| value.starts_with("multipart/byteranges"));
    let fields = reply.fields.iter().filter(|(name, _)| !OF_CONNECTIONS.contains(&name.as_str()));
    let fields = fields.filter(|(name, _)| !(is_random && name == "content-type"));
    let mut fields: Vec<_> = fields.cloned().collect();
    fields.sort();
    (reply.status, fields, if is_random { Vec::new() } else { reply.body.clone() })
}

#[test]
fn random_requests_are_answered_as_without_gate() -> Result<()> {
    let store = Nginx::start(&FILES)?;
    let gate = gate(store.address, CALM)?;
    compare_all([store.address, gate.address], false)
}

#[test]
fn random_requests_are_answered_as_without_a_cache() -> Result<()> {
    let directory = Directory::new("random");
    let store = Nginx::start(&FILES)?;
    let service = format!("{CALM}\n{}", directory.cache(", memory = \"1MiB\""));
    let gate = gate(store.address, &service)?;
    wait_open(&gate)?;
    compare_all([store.address, gate.address], true)?;
    let events = gate.json(&["cache", "status"])?["caches"][0]["events"].take();
    ensure!(events["revalidated"].as_u64() > Some(20) && events["stored"].as_u64() > Some(5), "{events}");
    Ok(())
}

#[test]
fn random_requests_are_answered_as_without_gate_over_http2() -> Result<()> {
    let store = Nginx::start(&FILES)?;
    // Another gate is the one that speaks HTTP/2 before nginx.
    let second = gate(store.address, CALM)?;
    let first = gate(second.address, &format!("{CALM}\nbackend_http = \"h2\""))?;
    compare_all([store.address, first.address], false)
}

/// Has some clients compare nginx and gate, which may have a cache.
fn compare_all(servers: [SocketAddr; 2], has_cache: bool) -> Result<()> {
    let requests = if std::env::var_os("GATE_LONG").is_some() { LONG_REQUESTS } else { REQUESTS };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|seed| scope.spawn(move || compare(servers, has_cache, Rng::new(seed), requests)))
            .collect();
        clients.into_iter().try_for_each(|client| client.join().expect("it does not panic"))
    })
}

/// True if a reply out of the cache is what may stand for nginx's: its fields, and a whole body where nginx has one. Of several ranges it is the whole; `If-Modified-Since` counts by what is earlier, where nginx wants the same time; a
/// HEAD has no range; and a 416 has no page.
fn stands_for(reply: &Reply, expected: &Reply, request: &str) -> bool {
    let has = |name: &str| request.contains(&format!("\r\n{name}: "));
    let without = |reply: &Reply| {
        let (_, mut fields, body) = compared(reply);
        fields.retain(|(name, _)| !OF_CACHE.contains(&name.as_str()));
        (fields, body)
    };
    let is_same_body = || reply.field("etag").is_some() && reply.field("etag") == expected.field("etag");
    let length = |reply: &Reply| reply.field("content-length").map(str::to_owned);
    match (reply.status, expected.status) {
        (416, 416) => reply.field("content-range") == expected.field("content-range"),
        (304, 200) => has("if-modified-since") && reply.body.is_empty() && is_same_body(),
        (200, 206) if request.starts_with("HEAD ") => has("range") && is_same_body(),
        (200, 206) => {
            request.contains("range: bytes=0-0,2-4") && length(reply) == Some(reply.body.len().to_string())
        }
        (one, other) => one == other && without(reply) == without(expected) && is_same_body(),
    }
}

/// Sends as many requests to nginx and to gate, and compares the replies.
fn compare([store, gate]: [SocketAddr; 2], has_cache: bool, mut rng: Rng, requests: usize) -> Result<()> {
    let mut direct = None;
    let mut through = None;
    let connect = |server| {
        let stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(HttpClient::new(stream))
    };
    for number in 0..requests {
        let (request, is_head) = request(&mut rng);
        let shown = || format!("{number}: {}", String::from_utf8_lossy(&request[..request.len().min(300)]));
        let from = |server: &'static str| move || format!("{server}, {}", shown());
        let expected = ask(&mut direct, || connect(store), &request, is_head).with_context(from("nginx"))?;
        let reply = ask(&mut through, || connect(gate), &request, is_head).with_context(from("gate"))?;
        if shown().contains(" /echo") {
            // nginx says what it was asked, which gate has added to.
            let asked_for = |source: &str| reply.text().contains(&format!("for={source} "));
            // On behalf of all it is asked for nobody.
            let is_for_all = has_cache && request == PLAIN_ECHO && asked_for("");
            let has_source = is_head || asked_for("127.0.0.1") || is_for_all;
            ensure!(reply.status == expected.status && has_source, "{}\n{reply:?}", shown());
            continue;
        }
        let is_same = match status(&reply) {
            "none" => compared(&reply) == compared(&expected),
            _ => stands_for(&reply, &expected, &shown()[number.to_string().len() + 2..]),
        };
        let mut cut = [reply, expected];
        cut.iter_mut().for_each(|reply| reply.body.truncate(100));
        ensure!(is_same, "{}\n{cut:?}", shown());
    }
    Ok(())
}
