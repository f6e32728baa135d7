//! Originals that are processed, before origins and processors whose answers the tests write.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::http_client::{HttpClient, Reply};
use gate_tests::http_server::{HttpServer, target, whole};
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::cache::{Directory, wait_open};
use super::{OPEN, client};

mod hostile;
mod https;
mod thrice;

/// A gate, an origin and a processor.
struct Site {
    gate: Listening,
    origin: HttpServer,
    processor: HttpServer,
    blobs: SocketAddr,
}

/// The answer of the processor to a spec and what it has fetched.
type Work = dyn Fn(&str, &str) -> Option<Vec<u8>> + Send + Sync;

/// The answers of an origin by target; others are 404.
type Answers = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

impl Site {
    /// `more` are further keys of `process`, `tenants` whole sections.
    fn new(
        directory: &Directory,
        answers: &Answers,
        more: &str,
        tenants: &str,
        work: Box<Work>,
    ) -> Result<Self> {
        let answers = Arc::clone(answers);
        let origin = HttpServer::start(move |head| Some(answer(&answers, head)))?;
        Self::with_origin(directory, origin, more, tenants, work)
    }

    fn with_origin(
        directory: &Directory,
        origin: HttpServer,
        more: &str,
        tenants: &str,
        work: Box<Work>,
    ) -> Result<Self> {
        let blobs = address();
        let processor = HttpServer::start(move |head| {
            let (spec, name) = target(head).trim_start_matches('/').split_once('/')?;
            let original = fetch(blobs, name).ok()?;
            work(spec, &original.text())
        })?;
        let process = process(processor.address, blobs, &[origin.address], more);
        let service =
            format!("{}\n{process}", directory.cache(", memory = \"4MiB\", max_object = \"64KiB\""));
        let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, tenants)?;
        wait_open(&gate)?;
        Ok(Self { gate, origin, processor, blobs })
    }

    /// Asks for a spec of a path of the origin.
    fn ask(&self, spec: &str, path: &str) -> Result<Reply> {
        client(&self.gate)?.ask(&self.line(spec, path), "")
    }

    /// The line of such a request.
    fn line(&self, spec: &str, path: &str) -> String {
        format!("GET /img/{spec}/http%3A%2F%2F{}{}", self.origin.address, path.replace('/', "%2F"))
    }

    fn event(&self, name: &str) -> Result<u64> {
        self.gate.json(&["cache", "status"])?["caches"][0]["events"][name].as_u64().context("no such event")
    }

    fn asked(&self) -> (usize, usize) {
        (self.origin.asked().len(), self.processor.asked().len())
    }
}

/// The key `process` of a service.
pub(super) fn process(
    processor: SocketAddr,
    blobs: SocketAddr,
    origins: &[SocketAddr],
    more: &str,
) -> String {
    let origins: Vec<_> = origins.iter().map(|origin| format!("\"http://{origin}\"")).collect();
    format!(
        "process = {{ path = \"/img/{{spec}}/{{url}}\", by = \"http://{processor}/{{spec}}/{{blob}}\", \
         blobs = \"{blobs}\", origins = [{}]{more} }}",
        origins.join(", ")
    )
}

/// The answer of the listener for originals to a name.
fn fetch(blobs: SocketAddr, name: &str) -> Result<Reply> {
    let stream = TcpStream::connect(blobs)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    HttpClient::new(stream).ask(&format!("GET /{name}"), "")
}

/// The answer for a target: what the test wrote, or a 304 if the request names its tag.
fn answer(answers: &Answers, head: &str) -> Vec<u8> {
    let all = answers.lock().unwrap();
    let found = all.iter().rev().find(|(path, _)| path == target(head));
    let Some((_, bytes)) = found else { return whole(404, "", b"") };
    let text = String::from_utf8_lossy(bytes).into_owned();
    let tag = text.lines().find_map(|line| line.strip_prefix("etag: "));
    let known = head.lines().find_map(|line| line.strip_prefix("if-none-match: "));
    match tag.filter(|tag| known == Some(*tag)) {
        Some(tag) => format!("HTTP/1.1 304 Same\r\netag: {tag}\r\n\r\n").into_bytes(),
        None => bytes.clone(),
    }
}

fn put(answers: &Answers, path: &str, fields: &str, body: &str) {
    answers.lock().unwrap().push((path.to_owned(), whole(200, fields, body.as_bytes())));
}

const FRESH: &str = "cache-control: max-age=600\r\ncontent-type: image/x\r\n";

/// Writes the spec before the original.
fn prefix(spec: &str, original: &str) -> Option<Vec<u8>> {
    Some(whole(
        200,
        "content-type: image/y\r\nset-cookie: own=1\r\n",
        format!("{spec}:{original}").as_bytes(),
    ))
}

#[test]
fn an_original_is_downloaded_once_for_all_its_specs() -> Result<()> {
    let directory = Directory::new("processed-once");
    let answers = Answers::default();
    for path in ["/a", "/b"] {
        put(&answers, path, FRESH, "same");
    }
    let mut site = Site::new(&directory, &answers, "", OPEN, Box::new(prefix))?;
    for (spec, path, counts) in [
        ("w1", "/a", (1, 1)),
        ("w1", "/a", (0, 0)),
        ("w2", "/a", (0, 1)),
        // Other URL, same bytes: a download, and nothing to process.
        ("w1", "/b", (1, 0)),
        ("w2", "/b", (0, 0)),
    ] {
        let reply = site.ask(spec, path)?;
        ensure!((reply.status, reply.text()) == (200, format!("{spec}:same")), "{spec} {path}: {reply:?}");
        ensure!(
            reply.field("content-type") == Some("image/y") && reply.field("set-cookie").is_none(),
            "{reply:?}"
        );
        ensure!(reply.field("cache-control") == Some("max-age=600"), "{reply:?}");
        ensure!(site.asked() == counts, "{spec} {path}");
    }
    let tag = site.ask("w1", "/a")?.field("etag").context("no tag")?.to_owned();
    let same = client(&site.gate)?.ask(&site.line("w1", "/b"), &format!("if-none-match: {tag}\r\n"))?;
    let part = client(&site.gate)?.ask(&site.line("w1", "/b"), "range: bytes=0-1\r\n")?;
    ensure!((same.status, part.status, part.text().as_str()) == (304, 206, "w1"), "{same:?} {part:?}");
    // The rest of the service is as it was.
    put(&answers, "/plain", FRESH, "plain");
    ensure!(client(&site.gate)?.ask("GET /plain", "")?.text() == "plain");
    let written = || Ok(site.event("blobs-written")? == 4);
    wait_until("all is written", written)?;
    // After a restart nothing is fetched or processed again.
    site.gate.signal(Signal::SIGTERM)?;
    wait_until("it has ended", || Ok(!site.gate.program().is_running()?))?;
    let _ = site.asked();
    let process = process(site.processor.address, site.blobs, &[site.origin.address], "");
    let service = format!("{}\n{process}", directory.cache(""));
    site.gate = Listening::gate_with("tick = \"10ms\"", "http", site.origin.address, &service, OPEN)?;
    wait_open(&site.gate)?;
    for (spec, path) in [("w1", "/a"), ("w2", "/b")] {
        let reply = site.ask(spec, path)?;
        ensure!(
            reply.text() == format!("{spec}:same") && reply.field("cache-status") == Some("gate; hit"),
            "{reply:?}"
        );
    }
    ensure!(site.asked() == (0, 0));
    ensure!(site.gate.json(&["cache", "verify"])?["caches"][0]["sound"] == 4);
    Ok(())
}

#[test]
fn a_304_and_equal_bytes_process_nothing() -> Result<()> {
    let directory = Directory::new("processed-stale");
    let answers = Answers::default();
    let site = Site::new(&directory, &answers, "", OPEN, Box::new(prefix))?;
    for (fields, body, expected, counts) in [
        ("etag: \"1\"\r\n", "one", "w:one", (1, 1)),
        // 304.
        ("etag: \"1\"\r\n", "one", "w:one", (1, 0)),
        // Equal bytes by another name.
        ("etag: \"2\"\r\n", "one", "w:one", (1, 0)),
        ("etag: \"3\"\r\n", "two", "w:two", (1, 1)),
        // Bytes that were there before.
        ("etag: \"4\"\r\n", "one", "w:one", (1, 0)),
    ] {
        put(&answers, "/a", fields, body);
        let reply = site.ask("w", "/a")?;
        ensure!(reply.text() == expected, "{fields}: {reply:?}");
        ensure!(site.asked() == counts, "{fields} {body}");
    }
    ensure!(site.event("revalidated")? == 1 && site.event("unchanged")? == 1);
    Ok(())
}

#[test]
fn a_refusal_of_a_content_is_kept_and_a_failure_is_not() -> Result<()> {
    let directory = Directory::new("processed-errors");
    let answers = Answers::default();
    for path in ["/bad", "/good"] {
        put(&answers, path, FRESH, path);
    }
    let fails = Arc::new(Mutex::new(503));
    let status = Arc::clone(&fails);
    let work = move |spec: &str, original: &str| match original {
        "/bad" => Some(whole(*status.lock().unwrap(), "", b"secrets of the processor")),
        _ => prefix(spec, original),
    };
    let site = Site::new(&directory, &answers, "", OPEN, Box::new(work))?;
    for (status, expected, processed) in
        [(503, 502, 1), (503, 502, 1), (429, 502, 1), (415, 415, 1), (415, 415, 0)]
    {
        *fails.lock().unwrap() = status;
        let reply = site.ask("w", "/bad")?;
        ensure!(reply.status == expected && !reply.text().contains("secrets"), "{status}: {reply:?}");
        ensure!(site.asked().1 == processed, "{status}");
    }
    // Another spec may do.
    *fails.lock().unwrap() = 200;
    ensure!(site.ask("x", "/bad")?.status == 200 && site.ask("w", "/good")?.status == 200);
    ensure!((site.event("content-refused")?, site.event("process-failed")?) == (1, 3));
    Ok(())
}

#[test]
fn a_refusal_of_a_content_is_over_after_its_time() -> Result<()> {
    let directory = Directory::new("processed-error-ttl");
    let answers = Answers::default();
    put(&answers, "/bad", FRESH, "bad");
    let work = |_: &str, _: &str| Some(whole(415, "", b""));
    let site = Site::new(&directory, &answers, ", error_ttl = \"0ms\"", OPEN, Box::new(work))?;
    for _ in 0..2 {
        ensure!(site.ask("w", "/bad")?.status == 415 && site.asked().1 == 1);
    }
    Ok(())
}

#[test]
fn many_who_want_the_same_have_it_made_once() -> Result<()> {
    let directory = Directory::new("processed-flight");
    let answers = Answers::default();
    put(&answers, "/a", FRESH, "a");
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let work = move |spec: &str, original: &str| {
        wait.lock().unwrap().recv_timeout(PATIENCE).ok()?;
        prefix(spec, original)
    };
    let site = Site::new(&directory, &answers, "", OPEN, Box::new(work))?;
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut one = client(&site.gate)?;
        one.send(format!("{} HTTP/1.1\r\nhost: test\r\n\r\n", site.line("w", "/a")).as_bytes())?;
        clients.push(one);
    }
    wait_until("it is being made", || Ok(site.processor.asked().len() == 1))?;
    wait_until("all have been read", || {
        Ok(site.gate.json(&["queues"])?.to_string().contains("\"requests\":20") || site.gate.rests().is_ok())
    })?;
    go.send(())?;
    for one in &mut clients {
        ensure!(one.reply(false)?.text() == "w:a");
    }
    ensure!((site.origin.asked().len(), site.event("processed")?) == (1, 1));
    Ok(())
}

#[test]
fn a_tenant_without_cache_shares_nothing() -> Result<()> {
    let directory = Directory::new("processed-off");
    let answers = Answers::default();
    put(&answers, "/a", FRESH, "a");
    let tenants = OPEN.replace("quota", "cache = \"off\"\nquota");
    let site = Site::new(&directory, &answers, "", &tenants, Box::new(prefix))?;
    for _ in 0..2 {
        ensure!(site.ask("w", "/a")?.text() == "w:a" && site.asked() == (1, 1));
    }
    ensure!(site.event("stored")? == 0 && site.event("blobs-written")? == 0);
    Ok(())
}

#[test]
fn a_purge_removes_what_was_processed() -> Result<()> {
    let directory = Directory::new("processed-purge");
    let answers = Answers::default();
    put(&answers, "/a", FRESH, "a");
    let site = Site::new(&directory, &answers, "", OPEN, Box::new(prefix))?;
    let original = format!("http://{}/a", site.origin.address);
    let asked = format!("http://test{}", site.line("w", "/a").trim_start_matches("GET "));
    for url in [&original, &asked] {
        ensure!(site.ask("w", "/a")?.text() == "w:a" && site.asked() == (1, 1), "{url}");
        ensure!(site.ask("w", "/a")?.text() == "w:a" && site.asked() == (0, 0), "{url}");
        site.gate.json(&["cache", "purge", url])?;
    }
    ensure!(site.ask("w", "/a")?.text() == "w:a" && site.asked() == (1, 1));
    Ok(())
}

#[test]
fn a_hit_never_waits_for_a_processing() -> Result<()> {
    let directory = Directory::new("processed-busy");
    let answers = Answers::default();
    for path in ["/kept", "/1", "/2", "/3", "/4", "/5", "/6"] {
        put(&answers, path, FRESH, path);
    }
    let work = |spec: &str, original: &str| if original == "/kept" { prefix(spec, original) } else { None };
    let more = ", concurrency = \"2\", queue = \"2\", timeout = \"20s\", objective = \"20s\"";
    let site = Site::new(&directory, &answers, more, OPEN, Box::new(work))?;
    ensure!(site.ask("w", "/kept")?.text() == "w:/kept");
    let mut waiting = Vec::new();
    let mut refused = 0;
    for path in ["/1", "/2", "/3", "/4"] {
        let mut one = client(&site.gate)?;
        one.send(format!("{} HTTP/1.1\r\nhost: test\r\n\r\n", site.line("w", path)).as_bytes())?;
        waiting.push(one);
    }
    wait_until("both are busy", || Ok(site.event("fetched")? == 5 && site.gate.rests().is_ok()))?;
    for path in ["/5", "/6"] {
        let reply = site.ask("w", path)?;
        ensure!((reply.status, reply.reason()) == (503, "queue-full"), "{reply:?}");
        ensure!(reply.field("retry-after").is_some(), "{reply:?}");
        refused += 1;
    }
    let mut one = client(&site.gate)?;
    one.stream().set_read_timeout(Some(Duration::from_secs(10)))?;
    for _ in 0..200 {
        let reply = one.ask(&site.line("w", "/kept"), "")?;
        ensure!(reply.field("cache-status") == Some("gate; hit"), "{reply:?}");
    }
    ensure!(site.event("process-refused")? == refused);
    Ok(())
}
