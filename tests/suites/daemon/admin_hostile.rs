//! Clients of the admin sockets that ask for too much, or for nothing: a bounded answer, bounded memory, and the tick
//! goes on.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::http::{curl_socket, say};
use gate_tests::proxy::{Listening, PATIENCE};
use gate_tests::wait::wait_until;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// A document of two thousand tenants is longer than what the kernel keeps of it.
const TENANTS: usize = 2_000;
/// How many clients say nothing.
const IDLE: usize = 10_000;
/// The memory that clients may take beside documents: connections and their buffers.
const ROOM: usize = 64 << 20;
/// The longest an honest reader waits beside them.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

fn gate() -> Result<(Listening, Listening)> {
    let tenants: String = (0..TENANTS)
        .map(|n| {
            let source = format!("10.1.{}.{}", n >> 8, n & 255);
            format!("[[tenant]]\nname = \"t{n}\"\nsources = [\"{source}/32\"]\nquota = \"9 RU/s\"\n")
        })
        .collect();
    let store = Listening::embedded("memcached")?;
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, "", &tenants)?;
    Ok((gate, store))
}

/// The generation: one more with each tick.
fn generation(gate: &Listening) -> Result<u64> {
    gate.json(&["status"])?["generation"].as_u64().context("no generation")
}

/// Has `attack` go on for as long as ticks are counted, and returns how much memory it took.
fn during_ticks(gate: &Listening, attack: impl Fn(&AtomicBool) -> Result<()> + Sync) -> Result<usize> {
    let (_, socket) = gate.files()?;
    curl_socket(&socket, "/v1/tenants", &[])?;
    let before = gate.memory()?;
    let (calm, _store) = self::gate()?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| attack(&over));
        let watched = (|| {
            // From the first answer on: how long that takes is no matter of ticks.
            let first = generation(gate)?;
            let first_of_calm = generation(&calm)?;
            let started = Instant::now();
            let mut most = before;
            while started.elapsed() < Duration::from_secs(3) {
                let asked = Instant::now();
                let status = gate.json(&["status"])?;
                ensure!(asked.elapsed() < ANSWERED_WITHIN, "answered after {:?}", asked.elapsed());
                let age = status["heartbeat_age_ms"].as_u64();
                ensure!(age < Some(1_000), "the heartbeat is {age:?} ms old");
                most = most.max(gate.memory()?);
            }
            let ticks = generation(gate)? - first;
            // A gate that nobody attacks ticks beside it: a busy machine makes the ticks of both late.
            let of_calm = generation(&calm)? - first_of_calm;
            ensure!(ticks >= of_calm / 2, "{ticks} ticks, {of_calm} of a calm gate");
            Ok(most - before)
        })();
        over.store(true, Ordering::Relaxed);
        let attacked = attacker.join().map_err(|_| anyhow::anyhow!("the attacker panicked"))?;
        let took = watched?;
        attacked.map(|()| took)
    })
}

#[test]
fn ten_thousand_idle_clients_hold_up_nobody() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    ensure!(hard > IDLE as u64 + 500, "only {hard} files may be open");
    let (gate, _store) = gate()?;
    let (_, socket) = gate.files()?;
    let connected = AtomicUsize::new(0);
    let took = during_ticks(&gate, |over| {
        let mut clients = Vec::new();
        while clients.len() < IDLE && !(over.load(Ordering::Relaxed) && clients.len() >= IDLE) {
            clients.push(UnixStream::connect(&socket)?);
            connected.store(clients.len(), Ordering::Relaxed);
        }
        while !over.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Ok(())
    })?;
    ensure!(connected.into_inner() == IDLE);
    ensure!(took < ROOM, "{took} bytes");
    Ok(())
}

#[test]
fn endless_heads_and_bodies_end_with_a_bounded_answer() -> Result<()> {
    let (gate, _store) = gate()?;
    let (_, socket) = gate.files()?;
    let connect = || -> Result<UnixStream> {
        let stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    };
    let line = "x-more: ".to_owned() + &"y".repeat(1_000) + "\r\n";
    let heads = ["GET /v1/status HTTP/1.1\r\n".to_owned() + &line.repeat(2_000), "G".repeat(1 << 20)];
    let answered = AtomicUsize::new(0);
    let took = during_ticks(&gate, |over| {
        while !over.load(Ordering::Relaxed) {
            for head in &heads {
                let said = say(connect()?, head.as_bytes())?;
                ensure!(said.len() < 1_000 && (said.is_empty() || said.starts_with("HTTP/1.1 4")), "{said}");
                answered.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    })?;
    ensure!(took < ROOM && answered.into_inner() > 2, "{took} bytes");
    // A head or a body that never ends, a byte at a time, is cut off by the clock.
    for start in
        ["GET /v1/status HTTP/1.1\r\nx: ", "POST /v1/set HTTP/1.1\r\nhost: g\r\ncontent-length: 9\r\n\r\n"]
    {
        let mut stream = connect()?;
        stream.write_all(start.as_bytes())?;
        let started = Instant::now();
        wait_until("the gate closes", || Ok(stream.write_all(b"y").is_err()))?;
        ensure!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
    Ok(())
}

#[test]
fn clients_that_never_read_take_bounded_memory_and_end() -> Result<()> {
    let (gate, _store) = gate()?;
    let (_, socket) = gate.files()?;
    let document = curl_socket(&socket, "/v1/tenants", &[])?.body.len();
    ensure!(document > 512 << 10, "{document} bytes fit into the kernel's buffers");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let took = during_ticks(&gate, |over| {
        let mut clients = Vec::new();
        // As many as are answered at once leave no answer to others: one less.
        while !over.load(Ordering::Relaxed) {
            if clients.len() < 15 {
                let mut client = UnixStream::connect(&socket)?;
                client.write_all(b"GET /v1/tenants HTTP/1.1\r\nhost: g\r\n\r\n")?;
                clients.push(client);
                count.fetch_add(1, Ordering::Relaxed);
            } else {
                std::thread::park_timeout(Duration::from_millis(1));
            }
        }
        // Whoever reads none of it is cut off in the middle of it.
        let client = clients.swap_remove(0);
        wait_until("the gate closes", || {
            let mut polled = [PollFd::new(client.as_fd(), PollFlags::empty())];
            poll(&mut polled, PollTimeout::ZERO)?;
            Ok(polled[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP)))
        })?;
        let said = say(client, b"")?;
        ensure!(said.len() < document, "it was all there");
        Ok(())
    })?;
    ensure!(asked.load(Ordering::Relaxed) == 15);
    ensure!(took < ROOM + 16 * 3 * document, "{took} bytes, where a document has {document}");
    Ok(())
}
