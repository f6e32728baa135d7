//! The cache before an origin whose answers the tests write.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::FakeStore;
use gate_tests::http_client::Reply;
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::{OPEN, client, client_from};

/// A directory for a cache, which goes when the test ends.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("gate-http-cache-{}-{name}", std::process::id())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The key of a service that caches here.
    pub(super) fn cache(&self, more: &str) -> String {
        format!("cache = {{ dir = {:?}{more} }}", self.0)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An origin that answers each path with the bytes that the test wrote for it, a 304 if the request names their tag, paths below
/// `/reflected/` with the head of the request, and notes what it was asked.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    answers: Arc<Mutex<HashMap<String, String>>>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    pub(super) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let this = Self { address: listener.local_addr()?, answers: Arc::default(), heads: Arc::default() };
        let origin = this.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let origin = origin.clone();
                // A client that leaves ends it.
                std::thread::spawn(move || drop(origin.serve(stream)));
            }
        });
        Ok(this)
    }

    fn serve(&self, stream: TcpStream) -> Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                ensure!(reader.read_line(&mut head)? > 0, "the end");
            }
            let field = |name: &str| {
                head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned))
            };
            let mut body = vec![0; field("content-length").map_or(0, |len| len.parse().unwrap())];
            reader.read_exact(&mut body)?;
            let mut chunks = String::new();
            while field("transfer-encoding").is_some() && !chunks.ends_with("0\r\n\r\n") {
                ensure!(reader.read_line(&mut chunks)? > 0, "the end");
            }
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let answer = self.answers.lock().unwrap().get(&path).cloned();
            let reflected = path
                .starts_with("/reflected/")
                .then(|| format!("HTTP/1.1 200 OK\r\n{FRESH}content-length: {}\r\n\r\n{head}", head.len()));
            let answer = answer.or(reflected);
            let answer =
                answer.unwrap_or_else(|| "HTTP/1.1 404 None\r\ncontent-length: 0\r\n\r\n".to_owned());
            let tag = answer.lines().find_map(|line| line.strip_prefix("etag: "));
            let is_known = tag.is_some() && field("if-none-match").as_deref() == tag;
            self.heads.lock().unwrap().push(head);
            let answer = match is_known {
                true => format!("HTTP/1.1 304 Same\r\netag: {}\r\nx-new: 1\r\n\r\n", tag.unwrap_or_default()),
                false => answer,
            };
            writer.write_all(answer.as_bytes())?;
            if answer.contains("connection: close") {
                return Ok(());
            }
        }
    }

    /// Answers a path with a body and these fields.
    pub(super) fn put(&self, path: &str, fields: &str, body: &str) {
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}content-length: {}\r\n\r\n{body}", body.len());
        self.put_raw(path, answer);
    }

    pub(super) fn put_raw(&self, path: &str, answer: String) {
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
    }

    /// The heads that it has got since this was asked last.
    pub(super) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().unwrap())
    }
}

pub(super) fn gate(origin: SocketAddr, directory: &Directory) -> Result<Listening> {
    Listening::gate_with("tick = \"10ms\"", "http", origin, &directory.cache(""), OPEN)
}

pub(super) const FRESH: &str = "cache-control: max-age=600\r\n";

pub(super) fn status(reply: &Reply) -> &str {
    reply.field("cache-status").unwrap_or("none")
}

#[test]
fn a_kept_answer_is_given_without_the_origin() -> Result<()> {
    let directory = Directory::new("hit");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    let client = &mut client(&gate)?;
    origin.put(
        "/a",
        "cache-control: max-age=600\r\ncontent-type: a/b\r\netag: \"own\"\r\nlink: <1>\r\nlink: <2>\r\n",
        "0123456789",
    );
    let first = client.ask("GET /a", "")?;
    ensure!((first.status, status(&first)) == (200, "gate; fwd=uri-miss; stored"), "{first:?}");
    let second = client.ask("GET /a", "")?;
    ensure!(status(&second) == "gate; hit" && second.text() == "0123456789", "{second:?}");
    // The origin's, by which a write can be conditional.
    let tag = "\"own\"";
    for reply in [&first, &second] {
        ensure!(reply.field("etag") == Some(tag) && reply.field("content-type") == Some("a/b"), "{reply:?}");
        ensure!(
            reply.field("age").is_some_and(|age| age.parse::<u64>().is_ok_and(|age| age < 60)),
            "{reply:?}"
        );
        let links = reply.fields.iter().filter(|(name, _)| name == "link").count();
        ensure!(links == 2, "every value of a field: {reply:?}");
    }
    ensure!(origin.asked().len() == 1);
    let wrong = tag.replace('"', "\"x");
    for (line, fields, code, body, range) in [
        ("HEAD /a", String::new(), 200, "", None),
        ("GET /a", "range: bytes=2-4\r\n".to_owned(), 206, "234", Some("bytes 2-4/10")),
        ("GET /a", "range: bytes=-2\r\n".to_owned(), 206, "89", Some("bytes 8-9/10")),
        ("GET /a", "range: bytes=10-\r\n".to_owned(), 416, "", Some("bytes */10")),
        ("GET /a", "range: bytes=1-2,4-5\r\n".to_owned(), 200, "0123456789", None),
        ("GET /a", format!("range: bytes=2-4\r\nif-range: {tag}\r\n"), 206, "234", Some("bytes 2-4/10")),
        ("GET /a", format!("range: bytes=2-4\r\nif-range: {wrong}\r\n"), 200, "0123456789", None),
        ("GET /a", format!("if-none-match: \"x\", W/{tag}\r\n"), 304, "", None),
        ("GET /a", "if-none-match: \"other\"\r\n".to_owned(), 200, "0123456789", None),
        ("GET /a", format!("if-match: {wrong}\r\n"), 412, "", None),
        ("GET /a", format!("if-match: {tag}\r\n"), 200, "0123456789", None),
        ("HEAD /a", "range: bytes=2-4\r\n".to_owned(), 200, "", None),
    ] {
        let reply = client.ask(line, &fields)?;
        ensure!((reply.status, reply.text().as_str()) == (code, body), "{line} {fields}: {reply:?}");
        ensure!(reply.field("content-range") == range, "{line} {fields}: {reply:?}");
        let length =
            if code == 304 { None } else { Some(if line.starts_with("HEAD") { 10 } else { body.len() }) };
        let said = reply.field("content-length").map(|len| len.parse().unwrap());
        ensure!(said == length, "{line} {fields}: {reply:?}");
    }
    ensure!(origin.asked().is_empty(), "the origin was asked again");
    let reply = client.ask("GET /b", "cache-control: only-if-cached\r\n")?;
    ensure!(reply.status == 504 && origin.asked().is_empty(), "{reply:?}");
    Ok(())
}

#[test]
fn nothing_but_the_key_is_sent_on_a_shared_fetch() -> Result<()> {
    let directory = Directory::new("key");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    let client = &mut client(&gate)?;
    origin.put("/a", FRESH, "all");
    let own = "user-agent: me\r\nreferer: http://secret/\r\nx-own: 1\r\nrange: bytes=0-0\r\nif-none-match: \"q\"\r\naccept-encoding: gzip\r\n";
    // Until it is known that the answer can be shared, the request is the client's own, and so is the answer.
    let reply = client.ask("GET /a", own)?;
    let asked = origin.asked();
    ensure!(asked.len() == 1 && own.lines().all(|line| asked[0].contains(line)), "{asked:?}");
    ensure!(status(&reply) == "none", "it was kept: {reply:?}");
    let reply = client.ask("GET /a", own)?;
    ensure!((reply.status, status(&reply)) == (206, "gate; fwd=uri-miss; stored"), "{reply:?}");
    let asked = origin.asked();
    ensure!(asked.len() == 1);
    let mut names: Vec<_> = asked[0].lines().skip(1).filter_map(|line| line.split(':').next()).collect();
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    let expected = ["accept-encoding", "host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
    ensure!(names == expected, "{asked:?}");
    // What makes an answer one client's own passes as it is, and is not kept.
    for (path, fields) in [
        ("/b", "cookie: a=1\r\n"),
        ("/c", "authorization: Basic x\r\n"),
        ("/d", "cache-control: no-store\r\n"),
    ] {
        origin.put(path, FRESH, "one");
        for _ in 0..2 {
            let reply = client.ask(&format!("GET {path}"), &format!("{fields}user-agent: me\r\n"))?;
            ensure!(reply.text() == "one" && status(&reply) == "none", "{reply:?}");
        }
        let asked = origin.asked();
        ensure!(asked.len() == 2 && asked.iter().all(|head| head.contains("user-agent: me")), "{asked:?}");
        client.ask(&format!("GET {path}"), "")?;
        ensure!(origin.asked().len() == 1, "{path}: it was kept");
    }
    // Another value of a field in the key is another answer.
    client.ask("GET /a", "accept-encoding: br\r\n")?;
    client.ask("GET /a", "accept-encoding: gzip\r\n")?;
    ensure!(origin.asked().len() == 1);
    Ok(())
}

#[test]
fn what_may_not_be_shared_is_never_kept() -> Result<()> {
    let directory = Directory::new("private");
    let origin = Origin::start()?;
    let service = directory.cache(", max_object = \"1KiB\"");
    let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
    let mut client = client(&gate)?;
    let long = "x".repeat(3_000);
    let answer = |fields: &str, body: &str| {
        format!("HTTP/1.1 200 OK\r\n{fields}content-length: {}\r\n\r\n{body}", body.len())
    };
    let rows = [
        ("/private", answer("cache-control: private, max-age=60\r\n", "x"), 200),
        ("/no-store", answer("cache-control: no-store\r\n", "x"), 200),
        ("/cookie", answer("cache-control: public, max-age=60\r\nset-cookie: a=1\r\n", "x"), 200),
        ("/vary", answer("cache-control: max-age=60\r\nvary: *\r\n", "x"), 200),
        ("/nothing-said", answer("", "x"), 200),
        ("/error", answer("etag: \"1\"\r\n", "x").replace("200 OK", "500 No"), 500),
        ("/long", answer(FRESH, &long), 200),
        (
            "/long-chunks",
            format!("HTTP/1.1 200 OK\r\n{FRESH}transfer-encoding: chunked\r\n\r\nbb8\r\n{long}\r\n0\r\n\r\n"),
            200,
        ),
        ("/until-closed", format!("HTTP/1.1 200 OK\r\n{FRESH}connection: close\r\n\r\nx"), 200),
        (
            "/broken",
            format!("HTTP/1.1 200 OK\r\n{FRESH}content-length: 9\r\nconnection: close\r\n\r\nx"),
            502,
        ),
        (
            "/broken-chunks",
            format!(
                "HTTP/1.1 200 OK\r\n{FRESH}connection: close\r\ntransfer-encoding: chunked\r\n\r\n5\r\nx"
            ),
            502,
        ),
        ("/age", answer("cache-control: max-age=60\r\nage: 18446744073709551615\r\n", "x"), 200),
    ];
    for (path, answer, code) in rows {
        origin.put_raw(path, answer);
        for _ in 0..2 {
            let reply = client.ask(&format!("GET {path}"), "")?;
            ensure!(reply.status == code && status(&reply) == "none", "{path}: {reply:?}");
            ensure!(!path.starts_with("/long") || reply.text() == long, "{path}: {}", reply.body.len());
        }
        ensure!(origin.asked().len() == 2, "{path}: it was kept");
    }
    // What a request says beside its key counts for an answer that is not shared.
    origin.put("/own", "cache-control: private\r\n", "one");
    for _ in 0..2 {
        ensure!(client.ask("GET /own", "x-api-key: k\r\n")?.text() == "one");
        let heads = origin.asked();
        ensure!(heads.len() == 1 && heads[0].contains("x-api-key: k"), "{heads:?}");
    }
    Ok(())
}

#[test]
fn a_stale_answer_is_asked_about_and_given_again() -> Result<()> {
    let directory = Directory::new("stale");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    let client = &mut client(&gate)?;
    let fields = |tag: &str| format!("cache-control: max-age=0\r\netag: {tag}\r\n");
    origin.put("/a", &fields("\"1\""), "one");
    client.ask("GET /a", "")?;
    let reply = client.ask("GET /a", "")?;
    ensure!(status(&reply) == "gate; fwd=stale; fwd-status=304" && reply.text() == "one", "{reply:?}");
    ensure!(reply.field("x-new") == Some("1"), "what the 304 says counts: {reply:?}");
    let asked = origin.asked();
    ensure!(asked.len() == 2 && asked[1].contains("if-none-match: \"1\"\r\n"), "{asked:?}");
    // A client's own condition is gate's to judge.
    let reply = client.ask("GET /a", "if-none-match: \"0\", \"1\"\r\n")?;
    ensure!(reply.status == 304 && origin.asked()[0].contains("if-none-match: \"1\"\r\n"), "{reply:?}");
    origin.put("/a", &fields("\"2\""), "two");
    let reply = client.ask("GET /a", "")?;
    ensure!(reply.text() == "two" && reply.field("etag") == Some("\"2\""), "{reply:?}");
    ensure!(client.ask("GET /a", "")?.text() == "two");
    // An answer that is kept no longer.
    origin.put("/a", "cache-control: no-store\r\netag: \"3\"\r\n", "three");
    ensure!(client.ask("GET /a", "")?.text() == "three");
    origin.put("/a", FRESH, "four");
    ensure!(client.ask("GET /a", "")?.text() == "four");
    ensure!(client.ask("GET /a", "cache-control: no-cache\r\n")?.text() == "four");
    Ok(())
}

#[test]
fn a_change_ends_what_is_kept_of_its_url() -> Result<()> {
    let directory = Directory::new("change");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    let client = &mut client(&gate)?;
    for (line, answer, is_kept) in [
        ("POST /a", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false),
        ("DELETE /a", "HTTP/1.1 204 Gone\r\n\r\n", false),
        ("PURGE /a", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false),
        ("PUT /a", "HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n", true),
        ("OPTIONS /a", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
        ("POST /other", "HTTP/1.1 201 New\r\nlocation: /a\r\ncontent-length: 0\r\n\r\n", false),
        ("POST /other", "HTTP/1.1 201 New\r\nlocation: http://else/a\r\ncontent-length: 0\r\n\r\n", true),
    ] {
        origin.put("/a", FRESH, "one");
        client.ask("GET /a", "")?;
        let reply = client.ask("GET /a", "")?;
        ensure!(status(&reply) == "gate; hit", "{reply:?}");
        origin.put_raw(line.split(' ').nth(1).unwrap(), answer.to_owned());
        client.ask(line, "")?;
        origin.put("/a", FRESH, "one");
        let reply = client.ask("GET /a", "")?;
        ensure!((status(&reply) == "gate; hit") == is_kept, "{line}: {reply:?}");
        client.ask("POST /a", "")?;
    }
    Ok(())
}

/// Has the store give an answer to this that may be shared, so that the next ones are fetched for all. It is kept no longer.
pub(super) fn show_that_it_is_shared(gate: &Listening, store: &FakeStore, path: &str) -> Result<()> {
    wait_open(gate)?;
    let mut first = client(gate)?;
    first.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes())?;
    let (mut stream, _) = store.next()?;
    let answer = format!("HTTP/1.1 200 OK\r\n{FRESH}connection: close\r\ncontent-length: 5\r\n\r\nfirst");
    stream.write_all(answer.as_bytes())?;
    ensure!(first.reply(false)?.text() == "first");
    let output = gate.command(&["cache", "purge", &format!("http://test{path}")])?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

#[test]
fn one_fetch_serves_all_who_ask_meanwhile() -> Result<()> {
    let directory = Directory::new("one");
    let store = FakeStore::start()?;
    let gate = gate(store.address, &directory)?;
    show_that_it_is_shared(&gate, &store, "/a")?;
    let mut clients = (0..8).map(|_| client(&gate)).collect::<Result<Vec<_>>>()?;
    let mut leader = client(&gate)?;
    leader.send(b"GET /a HTTP/1.1\r\nhost: test\r\n\r\n")?;
    let (mut stream, _) = store.next()?;
    for client in &mut clients {
        client.send(b"GET /a HTTP/1.1\r\nhost: test\r\n\r\n")?;
    }
    wait_until("all are there", || {
        let metrics = gate.json(&["cache", "status"])?;
        Ok(metrics["caches"][0]["events"]["misses"] == 1 + 9)
    })?;
    // The one that leads may leave.
    drop(leader);
    stream.write_all(format!("HTTP/1.1 200 OK\r\n{FRESH}content-length: 3\r\n\r\none").as_bytes())?;
    for client in &mut clients {
        ensure!(client.reply(false)?.text() == "one");
    }
    ensure!(store.next_within(std::time::Duration::ZERO).is_err(), "it was asked more than once");
    Ok(())
}

#[test]
fn a_leader_that_fails_does_not_fail_those_who_follow() -> Result<()> {
    let directory = Directory::new("fails");
    let store = FakeStore::start()?;
    let gate = gate(store.address, &directory)?;
    show_that_it_is_shared(&gate, &store, "/a")?;
    let mut leader = client(&gate)?;
    let mut follower = client(&gate)?;
    let request = b"GET /a HTTP/1.1\r\nhost: test\r\n\r\n";
    leader.send(request)?;
    let (stream, _) = store.next()?;
    follower.send(request)?;
    wait_until("both are there", || {
        Ok(gate.json(&["cache", "status"])?["caches"][0]["events"]["misses"] == 1 + 2)
    })?;
    stream.shutdown(Shutdown::Both)?;
    ensure!(leader.reply(false)?.status == 502);
    let (mut stream, _) = store.next()?;
    stream.write_all(format!("HTTP/1.1 200 OK\r\n{FRESH}content-length: 3\r\n\r\none").as_bytes())?;
    ensure!(follower.reply(false)?.text() == "one");
    Ok(())
}

#[test]
fn a_hit_never_waits_for_the_store_and_pays_for_its_bytes() -> Result<()> {
    let directory = Directory::new("queue");
    let store = FakeStore::start()?;
    let service = format!(
        "parallelism = \"1\"\nprice = {{ base = \"1 RU\", row = \"50 RU\", kib = \"1 RU\" }}\n{}",
        directory.cache("")
    );
    let tenants =
        "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"10 RU/s\"\nburst = \"20s\"\n";
    let gate = Listening::gate_with("tick = \"10ms\"", "http", store.address, &service, tenants)?;
    let mut first = client(&gate)?;
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
    first.send(request("/a").as_bytes())?;
    let (mut stream, _) = store.next()?;
    let body = "x".repeat(10 << 10);
    stream.write_all(
        format!("HTTP/1.1 200 OK\r\n{FRESH}content-length: {}\r\n\r\n{body}", body.len()).as_bytes(),
    )?;
    ensure!(first.reply(false)?.body.len() == 10 << 10);
    // The only permit is taken.
    let mut second = client(&gate)?;
    second.send(request("/b").as_bytes())?;
    let _slow = store.next()?;
    let mut hits = 0;
    let refused = loop {
        let reply = first.ask("GET /a", "")?;
        if reply.status != 200 {
            break reply;
        }
        ensure!(status(&reply) == "gate; hit", "{reply:?}");
        hits += 1;
    };
    // 200 RU: two misses of 51 and a bit, and hits of 1 RU and 10 KiB each.
    ensure!((refused.status, refused.reason()) == (429, "quota"), "{refused:?}");
    ensure!((7..=10).contains(&hits), "{hits} hits");
    Ok(())
}

#[test]
fn a_tenant_may_go_without_and_another_may_share_nothing() -> Result<()> {
    let origin = Origin::start()?;
    let tenant = |last: u8, more: &str| {
        format!(
            "[[tenant]]\nname = \"t{last}\"\nsources = [\"127.0.0.{last}\"]\nquota = \"unlimited\"\n{more}\n"
        )
    };
    let tenants = [tenant(2, ""), tenant(3, ""), tenant(4, "cache = \"off\"")].concat();
    for (dedup, kept) in [("service", true), ("tenant", false)] {
        let directory = Directory::new(dedup);
        let service = directory.cache(&format!(", dedup = \"{dedup}\""));
        let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, &tenants)?;
        origin.put("/a", FRESH, "one");
        client_from(&gate, 2)?.ask("GET /a", "")?;
        let reply = client_from(&gate, 3)?.ask("GET /a", "")?;
        ensure!((status(&reply) == "gate; hit") == kept, "{dedup}: {reply:?}");
        let reply = client_from(&gate, 2)?.ask("GET /a", "")?;
        ensure!(status(&reply) == "gate; hit", "{reply:?}");
        let reply = client_from(&gate, 4)?.ask("GET /a", "")?;
        ensure!(status(&reply) == "none" && reply.text() == "one", "{reply:?}");
    }
    Ok(())
}

#[test]
fn what_is_kept_outlasts_the_gate_and_a_kill_changes_no_byte() -> Result<()> {
    let directory = Directory::new("kill");
    let origin = Origin::start()?;
    let body = |n: usize| format!("body {n} ").repeat(1 + n * 7 % 900);
    let kills = if std::env::var_os("GATE_LONG").is_some() { 100 } else { 4 };
    for n in 0..200 * kills {
        // For longer than the test takes.
        origin.put(&format!("/{n}"), "cache-control: max-age=86400\r\n", &body(n));
    }
    let ask_all = |gate: &Listening, numbers: Range<usize>| -> Result<()> {
        let mut client = client(gate)?;
        for n in numbers {
            let reply = client.ask(&format!("GET /{n}"), "")?;
            ensure!(reply.status == 200 && reply.text() == body(n), "{n}: {:?}", reply.fields);
        }
        Ok(())
    };
    let records = |gate: &Listening| -> Result<usize> {
        let records = gate.json(&["cache", "status"])?["caches"][0]["records"].as_u64();
        Ok(records.context("no count")? as usize)
    };
    // Those that are on disk for sure.
    let mut kept = 0;
    for round in 0..kills {
        let gate = gate(origin.address, &directory)?;
        wait_open(&gate)?;
        let verified = gate.json(&["cache", "verify"])?;
        ensure!(verified["caches"][0]["damaged"] == 0 && verified["caches"][0]["missing"] == 0, "{verified}");
        origin.asked();
        ask_all(&gate, 0..200 * round)?;
        let gone = origin.asked().len();
        ensure!(gone <= 200 * round - kept, "{gone} of {} are gone, and {kept} were kept", 200 * round);
        ask_all(&gate, 200 * round..200 * round + 100)?;
        kept = records(&gate)?;
        ask_all(&gate, 200 * round + 100..200 * (round + 1))?;
        gate.signal(Signal::SIGKILL)?;
    }
    for is_last in [false, true] {
        let gate = gate(origin.address, &directory)?;
        wait_open(&gate)?;
        origin.asked();
        ask_all(&gate, 0..200 * kills)?;
        ensure!(!is_last || origin.asked().is_empty(), "what was kept is gone");
        wait_until("all is written", || Ok(records(&gate)? == 200 * kills))?;
        gate.signal(Signal::SIGKILL)?;
    }
    Ok(())
}

#[test]
fn what_was_kept_is_not_fetched_again_after_a_restart() -> Result<()> {
    let directory = Directory::new("restart");
    let origin = Origin::start()?;
    origin.put("/a", FRESH, "one");
    let mut first = gate(origin.address, &directory)?;
    client(&first)?.ask("GET /a", "")?;
    let refusal = gate(origin.address, &directory).err().context("two gates with one directory")?;
    let expected = format!(
        "another gate has the cache in {}: give this one a `dir` of its own, or --takeover to take its place",
        directory.path().display()
    );
    ensure!(format!("{refusal:#}").contains(&expected), "{refusal:#}");
    first.signal(Signal::SIGTERM)?;
    wait_until("it has ended", || Ok(!first.program().is_running()?))?;
    std::fs::write(directory.0.join("unfinished").join("x"), "left behind")?;
    let second = gate(origin.address, &directory)?;
    wait_open(&second)?;
    let reply = client(&second)?.ask("GET /a", "")?;
    ensure!(status(&reply) == "gate; hit" && reply.text() == "one" && origin.asked().len() == 1, "{reply:?}");
    let output = second.command(&["cache", "purge", "http://test/a"])?;
    ensure!(output.status.success(), "{output:?}");
    let reply = client(&second)?.ask("GET /a", "")?;
    ensure!(status(&reply) == "gate; fwd=uri-miss; stored", "{reply:?}");
    Ok(())
}

/// Waits until what is on disk can be read.
pub(super) fn wait_open(gate: &Listening) -> Result<()> {
    wait_until("the cache is open", || Ok(gate.json(&["cache", "status"])?["caches"][0]["open"] == true))?;
    Ok(())
}

#[test]
fn a_request_that_vary_tells_from_the_kept_one_passes_by() -> Result<()> {
    let directory = Directory::new("vary");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    let client = &mut client(&gate)?;
    origin.put("/a", "cache-control: max-age=600\r\nvary: accept-encoding, x-kind\r\n", "plain");
    client.ask("GET /a", "")?;
    ensure!(status(&client.ask("GET /a", "")?) == "gate; hit");
    origin.asked();
    let reply = client.ask("GET /a", "x-kind: b\r\n")?;
    ensure!(status(&reply) == "none" && origin.asked()[0].contains("x-kind: b"), "{reply:?}");
    Ok(())
}
