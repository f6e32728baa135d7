//! The cache on a disk that is full, with a damaged database, and in the hands of two gates.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::http_client::HttpClient;
use gate_tests::privilege;
use gate_tests::proxy::{Listening, PATIENCE};
use gate_tests::wait::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cache::{Directory, FRESH, Origin, gate, status, wait_open};
use super::{OPEN, client};

/// A counter of the gate's cache.
fn count(gate: &Listening, event: &str) -> Result<u64> {
    gate.json(&["cache", "status"])?["caches"][0]["events"][event].as_u64().context("no such counter")
}

fn body(name: &str, n: usize) -> String {
    format!("{name} {n} ").repeat(4_000)
}

#[test]
fn on_a_full_disk_all_is_answered_and_nothing_old_returns() -> Result<()> {
    if !privilege::root("http::cache_faults::on_a_full_disk_all_is_answered_and_nothing_old_returns") {
        return Ok(());
    }
    const MANY: usize = 150;
    let origin = Origin::start()?;
    let service = "cache = { dir = \"/dev/shm/cache\", memory = \"1MiB\", disk = \"64MiB\" }";
    let mut gate =
        Listening::gate_with_small_disk(12 << 20, "tick = \"10ms\"", origin.address, service, OPEN)?;
    wait_open(&gate)?;
    let client = &mut client(&gate)?;
    let expect = |client: &mut HttpClient, line: &str, fields: &str, body: &str| -> Result<()> {
        let reply = client.ask(line, fields)?;
        ensure!(reply.status == 200 && reply.text() == body, "{line}: {:?}", reply.fields);
        Ok(())
    };
    // Too much for memory, so that what was asked for first is on disk alone.
    let others = |client: &mut HttpClient, name: &str| -> Result<()> {
        for n in 0..MANY {
            let path = format!("/{name}-{n}");
            origin.put(&path, FRESH, &body(name, n));
            expect(client, &format!("GET {path}"), "", &body(name, n))?;
        }
        Ok(())
    };
    for path in ["/changed", "/replaced", "/kept"] {
        origin.put(path, FRESH, "old");
        client.ask(&format!("GET {path}"), "")?;
    }
    wait_until("they are on disk", || Ok(count(&gate, "blobs-written")? >= 1))?;
    let dir = format!("/proc/{}/root/dev/shm", gate.program().id());
    let filler = format!("{dir}/filler");
    let mut file = File::create(&filler)?;
    while file.write(&[0; 4_096]).is_ok() {}
    others(client, "full")?;
    wait_until("writes fail", || Ok(count(&gate, "write-failed")? > 0))?;
    origin.put("/changed", FRESH, "new");
    origin.put("/replaced", FRESH, "new");
    client.ask("POST /changed", "")?;
    ensure!(client.ask("GET /replaced", "cache-control: no-cache\r\n")?.text() == "new");
    for _ in 0..2 {
        others(client, "fuller")?;
        for path in ["/changed", "/replaced"] {
            let reply = client.ask(&format!("GET {path}"), "")?;
            ensure!(reply.text() == "new", "{path}: {reply:?}");
        }
    }
    fs::remove_file(&filler)?;
    drop(file);
    let before = count(&gate, "blobs-written")?;
    let mut rounds = 0;
    wait_until("nothing is written again", || {
        rounds += 1;
        others(client, &format!("again-{rounds}"))?;
        Ok(count(&gate, "blobs-written")? > before + 10)
    })?;
    // A database that has failed is of no use until it is opened anew.
    let records = || gate.json(&["cache", "status"])?["caches"][0]["records"].as_u64().context("no count");
    let mut before = records()?;
    wait_until("no record is written again", || {
        rounds += 1;
        origin.put(&format!("/small-{rounds}"), FRESH, "small");
        client.ask(&format!("GET /small-{rounds}"), "")?;
        let now = records()?;
        Ok(now > std::mem::replace(&mut before, now))
    })?;
    for path in ["/changed", "/replaced"] {
        let reply = client.ask(&format!("GET {path}"), "")?;
        ensure!(reply.text() == "new", "{path}: {reply:?}");
    }
    let verified = gate.json(&["cache", "verify"])?;
    ensure!(verified["caches"][0]["damaged"] == 0, "{verified}");
    Ok(())
}

#[test]
fn a_damaged_database_is_set_aside_and_the_cache_begins_anew() -> Result<()> {
    let directory = Directory::new("damaged");
    let origin = Origin::start()?;
    origin.put("/a", FRESH, "one");
    let mut first = gate(origin.address, &directory)?;
    wait_open(&first)?;
    client(&first)?.ask("GET /a", "")?;
    first.signal(Signal::SIGTERM)?;
    wait_until("it has ended", || Ok(!first.program().is_running()?))?;
    let database = directory.path().join("index.redb");
    let damaged = vec![0xa5; fs::read(&database)?.len()];
    fs::write(&database, &damaged)?;
    let second = gate(origin.address, &directory)?;
    wait_open(&second)?;
    ensure!(count(&second, "damaged-index")? == 1);
    ensure!(fs::read(directory.path().join("index.damaged"))? == damaged, "it is not set aside");
    for expected in ["gate; fwd=uri-miss; stored", "gate; hit"] {
        let reply = client(&second)?.ask("GET /a", "")?;
        ensure!(status(&reply) == expected && reply.text() == "one", "{reply:?}");
    }
    Ok(())
}

#[test]
fn a_change_whose_answer_is_lost_ends_what_is_kept() -> Result<()> {
    let directory = Directory::new("lost");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    for method in ["POST", "PUT", "DELETE"] {
        let path = format!("/{method}");
        let ask = |method: &str| client(&gate)?.ask(&format!("{method} {path}"), "");
        origin.put(&path, FRESH, "old");
        ask("GET")?;
        ensure!(status(&ask("GET")?) == "gate; hit");
        // It ends in the middle of the head.
        origin.put_raw(&path, "HTTP/1.1 200 OK\r\nx: connection: close\r\n".to_owned());
        let lost = ask(method)?;
        ensure!(lost.status == 502, "{method}: {lost:?}");
        origin.put(&path, FRESH, "new");
        let reply = ask("GET")?;
        ensure!(reply.text() == "new", "{method}: {reply:?}");
    }
    Ok(())
}

#[test]
fn a_body_beyond_those_that_may_be_fetched_is_passed_on() -> Result<()> {
    let directory = Directory::new("many-bodies");
    let store = FakeStore::start()?;
    let cache = directory.cache(", memory = \"1MiB\", max_object = \"1MiB\"");
    // The long body is under way for as long as the short ones take.
    let service = format!("store_timeout = \"60s\"\n{cache}");
    let gate = Listening::gate_with("tick = \"10ms\"", "http", store.address, &service, OPEN)?;
    wait_open(&gate)?;
    let ask = |client: &mut HttpClient, path: &str, len: usize| -> Result<TcpStream> {
        client.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes())?;
        let (mut stream, _) = store.next()?;
        stream.write_all(format!("HTTP/1.1 200 OK\r\n{FRESH}content-length: {len}\r\n\r\n").as_bytes())?;
        Ok(stream)
    };
    let mut number = 0;
    let mut fetch = || {
        number += 1;
        let mut short = client(&gate)?;
        ask(&mut short, &format!("/{number}"), SHORT)?.write_all(&vec![b'y'; SHORT])?;
        let reply = short.reply(false)?;
        ensure!(reply.body.len() == SHORT, "{:?}", reply.fields);
        Ok(status(&reply).to_owned())
    };
    let mut without_room = 0;
    wait_until("it is always the long one that is without room", || {
        let mut long = client(&gate)?;
        let mut unfinished = ask(&mut long, &format!("/long/{without_room}"), LONG)?;
        // All but its last byte. If gate reads them late, there is none for their last part.
        unfinished.write_all(&vec![b'x'; LONG - 1])?;
        without_room += 1;
        let mut is_short = false;
        wait_until("there is no bound", || {
            is_short = fetch()? == "none";
            Ok(count(&gate, "no-room")? == without_room)
        })?;
        unfinished.write_all(b"x")?;
        ensure!(long.reply(false)?.body.len() == LONG);
        Ok(is_short)
    })?;
    ensure!(fetch()? == "gate; fwd=uri-miss; stored", "what was fetched still counts");
    Ok(())
}

#[test]
fn a_client_that_does_not_read_what_is_kept_is_closed() -> Result<()> {
    let directory = Directory::new("unread");
    let origin = Origin::start()?;
    let service = format!("client_timeout = \"500ms\"\n{}", directory.cache(""));
    let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
    wait_open(&gate)?;
    let long = "long".repeat(3 << 20);
    origin.put("/long", FRESH, &long);
    ensure!(client(&gate)?.ask("GET /long", "")?.text() == long);
    // More than sockets take.
    let mut unread = client(&gate)?;
    unread.send(b"GET /long HTTP/1.1\r\nhost: test\r\n\r\n")?;
    wait_until("it keeps its answer", || Ok(counter(&gate, "slow-reader")? == 1))?;
    let reply = client(&gate)?.ask("GET /long", "")?;
    ensure!(status(&reply) == "gate; hit" && reply.text() == long, "{:?}", reply.fields);
    Ok(())
}

/// A body that turns out to be too long is given from memory first. A client that reads it has as long as it takes.
#[test]
fn a_client_that_reads_what_is_too_long_to_be_kept_gets_all() -> Result<()> {
    let directory = Directory::new("too-long");
    let store = FakeStore::start()?;
    let cache = directory.cache(", memory = \"64MiB\", max_object = \"16MiB\"");
    let service = format!("client_timeout = \"1s\"\nstore_timeout = \"60s\"\n{cache}");
    let gate = Listening::gate_with("tick = \"10ms\"", "http", store.address, &service, OPEN)?;
    wait_open(&gate)?;
    let mut client = gate.connect()?;
    client.write_all(b"GET /long HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")?;
    let (mut stream, _) = store.next()?;
    let head = format!("HTTP/1.1 200 OK\r\n{FRESH}transfer-encoding: chunked\r\n\r\n");
    let answering = std::thread::spawn(move || -> Result<()> {
        stream.write_all(head.as_bytes())?;
        let chunk = [b"10000\r\n", &[b'x'; 0x1_0000][..], b"\r\n"].concat();
        for _ in 0..CHUNKS {
            stream.write_all(&chunk)?;
        }
        Ok(stream.write_all(b"0\r\n\r\n")?)
    });
    let mut read = 0;
    let mut piece = vec![0; 0x1_0000];
    loop {
        let len = client.read(&mut piece)?;
        if len == 0 {
            break;
        }
        read += len;
        std::thread::park_timeout(Duration::from_millis(10));
    }
    answering.join().expect("it does not panic")?;
    ensure!(read > CHUNKS * 0x1_0000, "{read} bytes");
    ensure!(count(&gate, "too-long")? == 1 && counter(&gate, "slow-reader")? == 0);
    Ok(())
}

/// Of 64 KiB each: half as much again as may be kept.
const CHUNKS: usize = 384;
/// Two bodies that are more than 1 MiB together.
const LONG: usize = 1_000_000;
const SHORT: usize = 100_000;

#[test]
fn nothing_is_kept_until_the_directory_is_this_gates() -> Result<()> {
    let directory = Directory::new("not-own");
    fs::create_dir(directory.path())?;
    let lock = File::create(directory.path().join("lock"))?;
    lock.lock()?;
    let origin = Origin::start()?;
    origin.put("/a", FRESH, "one");
    let gate =
        Listening::gate_that_takes_over("tick = \"10ms\"", origin.address, &directory.cache(""), OPEN)?;
    let client = &mut client(&gate)?;
    for _ in 0..2 {
        let reply = client.ask("GET /a", "")?;
        ensure!(status(&reply) == "none" && reply.text() == "one", "{reply:?}");
    }
    ensure!(origin.asked().len() == 2);
    drop(lock);
    wait_open(&gate)?;
    for expected in ["gate; fwd=uri-miss; stored", "gate; hit"] {
        let reply = client.ask("GET /a", "")?;
        ensure!(status(&reply) == expected, "{reply:?}");
    }
    Ok(())
}

/// Asks for what is kept, each time on a new connection, until it is `over`.
fn ask_anew(address: SocketAddr, over: &AtomicBool, answered: &AtomicUsize) -> Result<()> {
    for n in (0..KEPT).cycle() {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let reply = HttpClient::new(stream).ask(&format!("GET /{n}"), "connection: close\r\n")?;
        ensure!(reply.status == 200 && reply.text() == body("kept", n), "{n}: {reply:?}");
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

const KEPT: usize = 40;

/// A process that the test did not start itself, which ends with it.
struct Successor(Pid);

impl Drop for Successor {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

#[test]
fn an_upgrade_takes_the_cache_over_under_load() -> Result<()> {
    let directory = Directory::new("upgrade");
    let origin = Origin::start()?;
    let mut gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    {
        let mut client = client(&gate)?;
        for n in 0..KEPT {
            origin.put(&format!("/{n}"), FRESH, &body("kept", n));
            client.ask(&format!("GET /{n}"), "")?;
        }
        origin.put("/changed", FRESH, "old");
        client.ask("GET /changed", "")?;
    }
    let address = gate.address;
    let over = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    let pid = gate.program().id();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| ask_anew(address, &over, &answered))).collect();
        let upgraded = (|| {
            gate.signal(Signal::SIGUSR1)?;
            let mut successor = None;
            wait_until("there is no new gate", || {
                for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                    let children = fs::read_to_string(task?.path().join("children"))?;
                    successor = successor.or(children.split(' ').next().and_then(|pid| pid.parse().ok()));
                }
                Ok(successor.is_some())
            })?;
            let successor = Successor(Pid::from_raw(successor.context("there is none")?));
            gate.program().wait_for("draining: no new connections", PATIENCE)?;
            wait_until("the old one does not end", || Ok(!gate.program().is_running()?))?;
            let before = answered.load(Ordering::Relaxed);
            wait_until("nobody is served", || Ok(answered.load(Ordering::Relaxed) > before + 50))?;
            anyhow::Ok(successor)
        })();
        over.store(true, Ordering::Relaxed);
        let ended = clients.into_iter().map(|client| client.join().expect("it does not panic"));
        ended.collect::<Result<()>>()?;
        let _successor = upgraded?;
        wait_open(&gate)?;
        origin.asked();
        let mut client = client(&gate)?;
        for n in 0..KEPT {
            let reply = client.ask(&format!("GET /{n}"), "")?;
            ensure!(status(&reply) == "gate; hit" && reply.text() == body("kept", n), "{n}: {reply:?}");
        }
        ensure!(origin.asked().is_empty(), "it was fetched again");
        let verified = gate.json(&["cache", "verify"])?;
        ensure!(verified["caches"][0]["sound"].as_u64() >= Some(KEPT as u64), "{verified}");
        ensure!(verified["caches"][0]["damaged"] == 0 && verified["caches"][0]["missing"] == 0, "{verified}");
        Ok(())
    })
}
