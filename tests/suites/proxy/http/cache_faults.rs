//! The cache on a disk that is full, and in the hands of two gates.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
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
    for path in ["/changed", "/replaced"] {
        let reply = client.ask(&format!("GET {path}"), "")?;
        ensure!(reply.text() == "new", "{path}: {reply:?}");
    }
    let verified = gate.json(&["cache", "verify"])?;
    ensure!(verified["caches"][0]["damaged"] == 0, "{verified}");
    Ok(())
}

/// Asks for what is kept, each time on a new connection, until it is `over`.
fn ask_anew(address: SocketAddr, over: &AtomicBool, answered: &AtomicUsize) -> Result<()> {
    for n in (0..KEPT).cycle() {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let stream = std::net::TcpStream::connect(address)?;
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
