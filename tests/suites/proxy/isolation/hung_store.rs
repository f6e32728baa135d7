//! A store that accepts connections and says nothing: how many it is burdened with, and how soon clients are told.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const CLIENTS: usize = 300;
/// Two threads with five shared connections, and 16 that may be made at a time, each.
const MOST: usize = 2 * (5 + 16) + 4;
/// Clients between two looks at the connections: gate stands still for each.
const BETWEEN_LOOKS: usize = 8;

/// The connections of a gate to its store that are established, or about to be, as the kernel sees the end that made them.
///
/// The kernel's table is read in pieces, between which connections come and go: one that has gone meanwhile would be counted
/// with the one that took its place. So gate stands still, and each is counted by its port.
fn connections_of(gate: &Listening, store: SocketAddr) -> Result<usize> {
    let SocketAddr::V4(store) = store else { return Ok(0) };
    let ip = u32::from_ne_bytes(store.ip().octets());
    let remote = format!("{ip:08X}:{:04X}", store.port());
    gate.stall()?;
    let table = std::fs::read_to_string("/proc/net/tcp");
    gate.signal(Signal::SIGCONT)?;
    let table = table?;
    let ports: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            [_, local, to, "01" | "02", ..] if to == remote => Some(local),
            _ => None,
        })
        .collect();
    Ok(ports.len())
}

#[test]
fn logins_dedicated_and_large_requests_do_not_pile_up() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with("threads = \"2\"", "resp", store.address, "", EVERYONE)?;
    let large = [&b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100000\r\n"[..], &[b'v'; 1_000]].concat();
    let asked: [&[u8]; 4] = [b"AUTH wrong\r\n", b"SELECT 1\r\n", b"SUBSCRIBE c\r\n", &large];
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| gate.connect()).collect::<Result<_>>()?;
    store.stall()?;
    let before = connections_of(&gate, store.address)?;
    let mut most = before;
    for some in clients.chunks_mut(BETWEEN_LOOKS) {
        for (client, asked) in some.iter_mut().zip(asked.iter().cycle()) {
            // It may be told before it has sent all.
            let _ = client.write_all(asked);
        }
        most = most.max(connections_of(&gate, store.address)?);
    }
    for some in clients.chunks_mut(BETWEEN_LOOKS) {
        for client in some {
            let mut said = [0; 200];
            let len = client.read(&mut said)?;
            let said = &said[..len];
            ensure!(said.starts_with(b"-") && shown(said).contains("reason=store-down"), "{}", shown(said));
        }
        most = most.max(connections_of(&gate, store.address)?);
    }
    ensure!(most > before, "nobody has asked the store");
    ensure!(most <= MOST, "{most} connections, {before} before");
    // It goes on, and so does everything.
    store.signal(Signal::SIGCONT)?;
    wait_until("nobody is let in any more", || {
        let mut client = gate.connect()?;
        client.write_all(b"SELECT 1\r\n")?;
        Ok(read_until(&mut client, b"\r\n")? == b"+OK\r\n")
    })
}

/// How gate sets up a connection to a store, and which of its steps the store answers how.
struct SetUp {
    protocol: &'static str,
    /// The service's keys for its login.
    service: String,
    /// Answered late, with this.
    late: (&'static [u8], &'static [u8]),
    /// Never answered.
    hangs: &'static [u8],
}

const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// A store that answers a set-up's first step just in time, and its second one never. It says when it is asked the first.
fn slow_then_hung(set_up: &SetUp) -> Result<(SocketAddr, Receiver<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (sender, asked) = channel();
    let late = set_up.late;
    let hangs = set_up.hangs;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || serve(stream, late, hangs, &sender));
        }
    });
    Ok((address, asked))
}

fn serve(mut stream: TcpStream, late: (&[u8], &[u8]), hangs: &[u8], asked: &Sender<()>) {
    let has = |request: &[u8], word: &[u8]| request.windows(word.len()).any(|piece| piece == word);
    let mut piece = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut piece) {
        let request = &piece[..len];
        if has(request, hangs) {
            continue;
        }
        let answer = if has(request, late.0) {
            // The test may have ended.
            let _ = asked.send(());
            std::thread::park_timeout(STORE_TIMEOUT.mul_f32(0.9));
            late.1
        } else {
            b"+PONG\r\n"
        };
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}

fn is_refused_in_one_timeout(set_up: &SetUp) -> Result<()> {
    let (store, asked) = slow_then_hung(set_up)?;
    let service = format!("store_timeout = \"2s\"\nconnections = \"1\"\n{}", set_up.service);
    let gate = Listening::gate_with("threads = \"1\"", set_up.protocol, store, &service, EVERYONE)?;
    // While it is known to be down, clients are refused at once: this one comes while gate connects.
    asked.recv_timeout(PATIENCE)?;
    let began = Instant::now();
    let said = gate.ask(b"get a\r\n", b"reason=store-down\r\n")?;
    let took = began.elapsed();
    ensure!(took < STORE_TIMEOUT.mul_f32(1.5), "{} took {took:?}: {}", set_up.protocol, shown(&said));
    Ok(())
}

#[test]
fn a_store_that_hangs_in_the_set_up_costs_one_timeout() -> Result<()> {
    let password = std::env::temp_dir().join(format!("gate-{}-hung.password", std::process::id()));
    let _removed = Removed(&password);
    std::fs::write(&password, "secret")?;
    is_refused_in_one_timeout(&SetUp {
        protocol: "resp",
        service: String::new(),
        late: (b"GETUSER", b"-ERR unknown command\r\n"),
        hangs: b"INFO",
    })?;
    is_refused_in_one_timeout(&SetUp {
        protocol: "memcached",
        service: format!("store_user = \"gate\"\nstore_password_file = {password:?}"),
        late: (b"version", b"CLIENT_ERROR unauthenticated\r\n"),
        hangs: b"set",
    })
}

/// A file that is removed in the end.
struct Removed<'p>(&'p Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(self.0);
    }
}
