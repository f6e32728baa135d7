//! Many losses of the daemon and many takeovers under many connections: none fails to be made, and each is answered by who is in charge.
//!
//! `GATE_LONG=1` has a hundred of each, and stops gate for 30 s; how soon connections reached the store is printed.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::privilege;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use xtask::sh;

use super::intercept::{By, Over, TENANT, ended, from_client, ping, redis, service, serving, wait_for};

const STORE: &str = "198.18.0.1:6379";
const CLIENTS: u32 = 4;
/// Connections of each client, a second.
const RATE: u32 = 50;

/// How long an answer may take: gate stands still for 30 s at most.
const ANSWER: Duration = Duration::from_secs(60);

/// One connection: from when until when, and who has answered.
type Connection = (Instant, Instant, By);

/// Connects at a fixed rate until it is over. An error if a connection is not made, or its answer is nobody's.
fn connect_at_rate(site: &Site, over: &AtomicBool, count: &AtomicUsize) -> Result<Vec<Connection>> {
    site.net.client.enter(|| {
        let mut connections = Vec::new();
        let mut due = Instant::now();
        while !over.load(Ordering::Relaxed) {
            due += Duration::from_secs(1) / RATE;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let begun = Instant::now();
            let by = ping(STORE, ANSWER)?.context("no answer")?;
            connections.push((begun, Instant::now(), by));
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(connections)
    })?
}

/// How many there are of each kind.
fn outages() -> usize {
    if std::env::var_os("GATE_LONG").is_some() { 100 } else { 10 }
}

#[test]
fn no_kill_fails_a_connection_or_falsifies_an_answer() -> Result<()> {
    if !privilege::root("intercept_outages::no_kill_fails_a_connection_or_falsifies_an_answer") {
        return Ok(());
    }
    let kills = outages();
    let site = Site::new(&format!(
        "[gate]\nxdp = \"off\"\nstale_after = \"10s\"\n{}{TENANT}",
        service("redis", "resp", "\"198.18.0.1:6379\"", "")
    ))?;
    let _store = redis(&site, &["--port", "6379", "--protected-mode", "no"])?;
    let mut gate = serving(&site, &[])?;
    // When it was killed, when it had ended, when the next one began to start, and when that served.
    let mut lost: Vec<[Instant; 4]> = Vec::new();
    let mut first_answers = Vec::new();
    let over = AtomicBool::new(false);
    let connections = std::thread::scope(|scope| -> Result<Vec<Connection>> {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| connect_at_rate(&site, &over, &AtomicUsize::new(0))))
            .collect();
        let _over = Over(&over);
        for _ in 0..kills {
            wait_for(&site, STORE, By::Gate)?;
            let killed = Instant::now();
            gate.signal(Signal::SIGKILL)?;
            ended(&mut gate)?;
            let gone = Instant::now();
            assert_eq!(from_client(&site, STORE)?, Some(By::Store), "at once");
            first_answers.push(gone.elapsed());
            let starts = Instant::now();
            gate = serving(&site, &[])?;
            lost.push([killed, gone, starts, Instant::now()]);
        }
        wait_for(&site, STORE, By::Gate)?;
        over.store(true, Ordering::Relaxed);
        let all = clients.into_iter().map(|clients| clients.join().expect("no panic"));
        Ok(all.collect::<Result<Vec<_>>>()?.concat())
    })?;
    first_answers.sort();
    println!(
        "{} connections, {kills} kills; {} reset, {} answered by the store; the first after a kill took {:?} at the median, {:?} at most",
        connections.len(),
        connections.iter().filter(|(.., by)| *by == By::Nobody).count(),
        connections.iter().filter(|(.., by)| *by == By::Store).count(),
        first_answers[first_answers.len() / 2],
        first_answers.last().context("no kill")?
    );
    for (begun, done, by) in connections {
        let during = |from: usize, to: usize| lost.iter().any(|lost| begun <= lost[to] && done >= lost[from]);
        let expected = match by {
            By::Gate => !lost.iter().any(|[_, gone, starts, _]| begun >= *gone && done <= *starts),
            By::Store => during(0, 3),
            // Cut off with the gate that had it.
            By::Nobody => during(0, 1),
        };
        ensure!(expected, "{by:?} has answered from {begun:?} to {done:?}: {lost:?}");
    }
    Ok(())
}

/// The client whose handshakes are held open: its acknowledgements are dropped before the server's kernel sees them.
const SLOW_CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 77);
const HELD: usize = 20;

/// Handshakes that the clients take for complete, and the server does not. Each client has asked.
fn held_handshakes(site: &Site) -> Result<Vec<TcpStream>> {
    nft(site, &format!("add rule ip held input ip saddr {SLOW_CLIENT} tcp flags & (syn|ack) == ack drop"))?;
    site.net.client.enter(|| {
        let hold = || -> Result<TcpStream> {
            let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(SLOW_CLIENT, 0)))?;
            connect(socket.as_raw_fd(), &SockaddrIn::from(STORE.parse::<SocketAddrV4>()?))?;
            let mut stream = TcpStream::from(socket);
            stream.write_all(b"PING\r\n")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        (0..HELD).map(|_| hold()).collect()
    })?
}

fn nft(site: &Site, rule: &str) -> Result<()> {
    sh::run(site.net.server.command("nft").arg(rule))
}

#[test]
fn no_takeover_fails_a_connection_or_resets_a_handshake() -> Result<()> {
    if !privilege::root("intercept_outages::no_takeover_fails_a_connection_or_resets_a_handshake") {
        return Ok(());
    }
    let site = Site::new(&format!(
        "[gate]\nxdp = \"off\"\nstale_after = \"10s\"\n{}{TENANT}",
        service("redis", "resp", "\"198.18.0.1:6379\"", "")
    ))?;
    site.net.add_client_address(SLOW_CLIENT.into())?;
    nft(&site, "add table ip held")?;
    nft(&site, "add chain ip held input { type filter hook prerouting priority raw; }")?;
    let _store = redis(&site, &["--port", "6379", "--protected-mode", "no"])?;
    let mut gate = serving(&site, &[])?;
    let over = AtomicBool::new(false);
    let count = AtomicUsize::new(0);
    let connections = std::thread::scope(|scope| -> Result<Vec<Connection>> {
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(|| connect_at_rate(&site, &over, &count))).collect();
        let _over = Over(&over);
        for takeover in 0..outages() {
            let held = held_handshakes(&site)?;
            let next = serving(&site, &["--takeover"])?;
            let mut before = std::mem::replace(&mut gate, next);
            ended(&mut before)?;
            nft(&site, "flush chain ip held input")?;
            for mut client in held {
                let mut answer = [0; 7];
                client.read_exact(&mut answer).with_context(|| {
                    format!("a handshake was held over takeover {takeover}, and its client got no answer")
                })?;
                ensure!(answer.starts_with(b"-DENIED") || answer.starts_with(b"-NOPERM"), "{answer:?}");
            }
            let so_far = count.load(Ordering::Relaxed);
            wait_until("clients go on", || Ok(count.load(Ordering::Relaxed) > so_far + 20))?;
        }
        over.store(true, Ordering::Relaxed);
        let all = clients.into_iter().map(|clients| clients.join().expect("no panic"));
        Ok(all.collect::<Result<Vec<_>>>()?.concat())
    })?;
    println!("{} connections, {} takeovers, {HELD} handshakes held over each", connections.len(), outages());
    let others: Vec<_> = connections.iter().filter(|(.., by)| *by != By::Gate).collect();
    ensure!(others.is_empty(), "of {} connections: {others:?}", connections.len());
    Ok(())
}

#[test]
fn while_gate_stands_still_connections_reach_the_store() -> Result<()> {
    if !privilege::root("intercept_outages::while_gate_stands_still_connections_reach_the_store") {
        return Ok(());
    }
    const STALE_AFTER: Duration = Duration::from_secs(1);
    // Longer than it takes until a sign of life is stale.
    let stopped_for =
        if std::env::var_os("GATE_LONG").is_some() { 30 * STALE_AFTER } else { 3 * STALE_AFTER };
    let site = Site::new(&format!(
        "[gate]\nxdp = \"off\"\nstale_after = \"1s\"\n{}{TENANT}",
        service("redis", "resp", "\"198.18.0.1:6379\"", "")
    ))?;
    let _store = redis(&site, &["--port", "6379", "--protected-mode", "no"])?;
    let gate = serving(&site, &[])?;
    let over = AtomicBool::new(false);
    let count = AtomicUsize::new(0);
    let mut by_store = 0;
    let (stopped, continued, back, connections) = std::thread::scope(|scope| -> Result<_> {
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(|| connect_at_rate(&site, &over, &count))).collect();
        let _over = Over(&over);
        wait_until("clients connect", || Ok(count.load(Ordering::Relaxed) > 20))?;
        gate.signal(Signal::SIGSTOP)?;
        let stopped = Instant::now();
        // The other clients soon wait for an answer of gate's.
        wait_for(&site, STORE, By::Store)?;
        println!("the first connection reached the store {:?} after the stop", stopped.elapsed());
        while stopped.elapsed() < stopped_for {
            assert_eq!(from_client(&site, STORE)?, Some(By::Store), "{:?} after the stop", stopped.elapsed());
            by_store += 1;
        }
        let continued = Instant::now();
        gate.signal(Signal::SIGCONT)?;
        wait_for(&site, STORE, By::Gate)?;
        let back = Instant::now();
        let so_far = count.load(Ordering::Relaxed);
        wait_until("clients go on", || Ok(count.load(Ordering::Relaxed) > so_far + 20))?;
        over.store(true, Ordering::Relaxed);
        let all = clients.into_iter().map(|clients| clients.join().expect("no panic"));
        Ok((stopped, continued, back, all.collect::<Result<Vec<_>>>()?.concat()))
    })?;
    println!("{} connections, {by_store} more while gate stood still", connections.len());
    // Each of the clients that waits at gate is answered when it goes on, and the rest by the store.
    for (begun, done, by) in connections {
        let expected = match by {
            By::Gate => begun < stopped + STALE_AFTER + SLACK || done > continued,
            By::Store => done > stopped && begun < back,
            By::Nobody => false,
        };
        ensure!(
            expected,
            "{by:?} has answered {:?} after the stop, and {:?}",
            begun - stopped,
            done - stopped
        );
    }
    ensure!(by_store > 0, "none has reached the store");
    Ok(())
}

/// A sign of life may be shown just before the stop is known here.
const SLACK: Duration = Duration::from_millis(200);
