//! Stores that keep their address: gate serves there in their place, and leaves no gap when it goes.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::privilege;
use gate_tests::proxy::PATIENT;
use gate_tests::wait::{until_up, wait_until};
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use xtask::lab::process::ChildProcess;

/// A tenant that may not `PING`: gate refuses it, and the store answers.
pub(super) const TENANT: &str = "[[tenant]]\nname = \"all\"\nsources = [\"198.18.0.0/15\", \"fd00::/8\", \"127.0.0.0/8\"]\n\
                      quota = \"unlimited\"\ndeny = [\"PING\"]\n";

pub(super) fn service(name: &str, protocol: &str, listen: &str, more: &str) -> String {
    format!(
        "[[service]]\nname = \"{name}\"\nprotocol = \"{protocol}\"\nlisten = {listen}\nintercept = \"on\"\n\
         {PATIENT}\nshedding.enabled = \"off\"\n{more}\n"
    )
}

/// Redis in the server's namespace, on every address.
pub(super) fn redis(site: &Site, arguments: &[&str]) -> Result<ChildProcess> {
    let mut command = site.net.server.command("redis-server");
    command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]).args(arguments);
    let port = arguments.iter().skip_while(|word| **word != "--port").nth(1).context("no port")?;
    let at: SocketAddr = format!("127.0.0.1:{port}").parse()?;
    up(site, ChildProcess::start("redis-server", command)?, at)
}

fn up(site: &Site, mut server: ChildProcess, at: SocketAddr) -> Result<ChildProcess> {
    until_up(&mut server, "store", || site.net.server.enter(|| Ok(TcpStream::connect(at).is_ok()))?)?;
    Ok(server)
}

/// The one that has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Gate,
    Store,
    /// The connection was made, and reset before an answer.
    Nobody,
}

/// Connects, and has somebody answer within `patience`; `None` if nobody has. An error if there is no connection.
pub(super) fn ping(at: &str, patience: Duration) -> Result<Option<By>> {
    let at: SocketAddr = at.parse()?;
    let mut stream = match TcpStream::connect_timeout(&at, PATIENCE) {
        // It was made, and reset before it was looked at: one that is not made is refused.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Some(By::Nobody)),
        stream => stream.with_context(|| format!("connecting to {at}"))?,
    };
    // Where it was reset already it has none.
    let Ok(peer) = stream.peer_addr() else { return Ok(Some(By::Nobody)) };
    ensure!(peer == at, "another address");
    stream.set_read_timeout(Some(patience))?;
    // So many connections would leave no port if each were remembered.
    setsockopt(&stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
    let mut answer = [0; 200];
    let read = stream.write_all(b"PING\r\n").and_then(|()| stream.read(&mut answer));
    match read {
        Ok(0) => Ok(Some(By::Nobody)),
        Ok(_) if answer.starts_with(b"+PONG") => Ok(Some(By::Store)),
        Ok(_) if answer.starts_with(b"-DENIED") || answer.starts_with(b"-NOPERM") => Ok(Some(By::Gate)),
        Ok(len) => bail!("{}", String::from_utf8_lossy(&answer[..len])),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(_) => Ok(Some(By::Nobody)),
    }
}

pub(super) fn from_client(site: &Site, at: &str) -> Result<Option<By>> {
    site.net.client.enter(|| ping(at, PATIENCE))?
}

pub(super) fn from_server(site: &Site, at: &str) -> Result<Option<By>> {
    site.net.server.enter(|| ping(at, PATIENCE))?
}

/// A gate without XDP, whose program would be verified at each start.
pub(super) fn serving(site: &Site, arguments: &[&str]) -> Result<ChildProcess> {
    let mut gate = site.launch(arguments)?;
    gate.wait_for("running without XDP", PATIENCE)?;
    Ok(gate)
}

pub(super) fn ended(gate: &mut ChildProcess) -> Result<()> {
    // One that was killed has failed.
    wait_until("gate has ended", || Ok(!gate.is_running().unwrap_or(false)))
}

pub(super) fn wait_for(site: &Site, at: &str, by: By) -> Result<()> {
    let brief = Duration::from_millis(100);
    wait_until(&format!("{at} is answered by {by:?}"), || {
        Ok(site.net.client.enter(|| ping(at, brief))?? == Some(by))
    })
}

#[test]
fn clients_reach_gate_at_a_stores_address_its_host_the_store() -> Result<()> {
    if !privilege::root("intercept::clients_reach_gate_at_a_stores_address_its_host_the_store") {
        return Ok(());
    }
    let site = Site::new(&format!(
        "{}{}{}{TENANT}",
        // As Debian starts it: on loopback addresses alone, protected.
        service("redis", "resp", "[\"198.18.0.1:6379\", \"[fd00::1]:6379\"]", "backend = \"127.0.0.1:6379\""),
        service("all", "resp", "\"[::]:6380\"", ""),
        service("local", "resp", "\"0.0.0.0:6381\"", "local = \"on\""),
    ))?;
    let _stores = [
        redis(&site, &["--bind", "127.0.0.1", "-::1", "--port", "6379"])?,
        redis(&site, &["--port", "6380", "--protected-mode", "no"])?,
        redis(&site, &["--port", "6381", "--protected-mode", "no"])?,
    ];
    let mut gate = site.start(&[])?;
    let by_gate = Some(By::Gate);
    let by_store = Some(By::Store);
    for at in ["198.18.0.1:6379", "[fd00::1]:6379", "198.18.0.1:6380", "[fd00::1]:6380", "198.18.0.1:6381"] {
        assert_eq!(from_client(&site, at)?, by_gate, "{at} from a client");
    }
    for (at, by) in [
        ("127.0.0.1:6379", by_store),
        ("[::1]:6380", by_store),
        ("127.0.0.1:6380", by_store),
        ("198.18.0.1:6380", by_store),
        ("[fd00::1]:6380", by_store),
        ("127.0.0.1:6381", by_gate),
        ("198.18.0.1:6381", by_gate),
    ] {
        assert_eq!(from_server(&site, at)?, by, "{at} from the host");
    }
    // gate reaches the stores, and not itself.
    for at in ["198.18.0.1:6379", "[fd00::1]:6380", "198.18.0.1:6381"] {
        let answer = site.net.client.enter(|| -> Result<String> {
            let mut stream = TcpStream::connect(at)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"SET k 1\r\n")?;
            let mut answer = [0; 5];
            stream.read_exact(&mut answer)?;
            Ok(String::from_utf8_lossy(&answer).into_owned())
        })??;
        assert_eq!(answer, "+OK\r\n", "{at}");
    }
    gate.signal(Signal::SIGINT)?;
    ended(&mut gate)?;
    assert_eq!(site.anything_left()?, None);
    assert_eq!(from_client(&site, "198.18.0.1:6380")?, by_store);
    Ok(())
}

#[test]
fn connections_reach_the_store_when_gate_is_killed_or_stopped() -> Result<()> {
    if !privilege::root("intercept::connections_reach_the_store_when_gate_is_killed_or_stopped") {
        return Ok(());
    }
    const STORE: &str = "198.18.0.1:6379";
    let site = Site::new(&format!(
        "[gate]\nxdp = \"off\"\nstale_after = \"2s\"\n{}{}{TENANT}",
        service("redis", "resp", "\"198.18.0.1:6379\"", ""),
        service("strict", "resp", "\"198.18.0.1:6380\"", "on_lost = \"refuse\""),
    ))?;
    let _stores = [
        redis(&site, &["--port", "6379", "--protected-mode", "no"])?,
        redis(&site, &["--port", "6380", "--protected-mode", "no"])?,
    ];
    let mut gate = serving(&site, &[])?;
    assert_eq!(from_client(&site, STORE)?, Some(By::Gate));
    assert_eq!(from_client(&site, "198.18.0.1:6380")?, Some(By::Gate));

    gate.signal(Signal::SIGSTOP)?;
    wait_for(&site, STORE, By::Store)?;
    assert_eq!(from_client(&site, STORE)?, Some(By::Store), "from then on");
    assert!(from_client(&site, "198.18.0.1:6380").is_err(), "it is to be refused");
    gate.signal(Signal::SIGCONT)?;
    wait_for(&site, STORE, By::Gate)?;

    for _ in 0..5 {
        let over = AtomicBool::new(false);
        let connected = AtomicUsize::new(0);
        std::thread::scope(|scope| -> Result<()> {
            let clients = scope.spawn(|| connect_repeatedly(&site, STORE, &over, &connected));
            let _over = Over(&over);
            wait_until("clients connect", || Ok(connected.load(Ordering::Relaxed) > 10))?;
            gate.signal(Signal::SIGKILL)?;
            ended(&mut gate)?;
            assert_eq!(from_client(&site, STORE)?, Some(By::Store), "at once");
            assert!(from_client(&site, "198.18.0.1:6380").is_err(), "it is to be refused");
            gate = serving(&site, &[])?;
            wait_for(&site, STORE, By::Gate)?;
            over.store(true, Ordering::Relaxed);
            clients.join().expect("no panic")?;
            Ok(())
        })?;
    }
    gate.signal(Signal::SIGKILL)?;
    ended(&mut gate)?;
    let detached = site.gate(&["detach"])?;
    ensure!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
    assert_eq!(site.anything_left()?, None);
    assert_eq!(from_client(&site, "198.18.0.1:6380")?, Some(By::Store));
    Ok(())
}

/// Ends the clients, however a test ends.
pub(super) struct Over<'o>(pub(super) &'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connects, asks and leaves, again and again; an error if a connection fails. Says who has answered.
pub(super) fn connect_repeatedly(
    site: &Site,
    at: &str,
    over: &AtomicBool,
    count: &AtomicUsize,
) -> Result<Vec<Option<By>>> {
    site.net.client.enter(|| {
        let mut answered = Vec::new();
        while !over.load(Ordering::Relaxed) {
            answered.push(ping(at, PATIENCE)?);
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(answered)
    })?
}

#[test]
fn no_connection_is_lost_or_passes_gate_by_in_a_takeover() -> Result<()> {
    if !privilege::root("intercept::no_connection_is_lost_or_passes_gate_by_in_a_takeover") {
        return Ok(());
    }
    const STORE: &str = "198.18.0.1:6379";
    let config = |more: &str| {
        format!(
            "[gate]\nxdp = \"off\"\n{}{}{TENANT}",
            more,
            service("redis", "resp", "[\"198.18.0.1:6379\", \"[fd00::1]:6379\"]", "")
        )
    };
    let site = Site::new(&config(""))?;
    let _stores = [
        redis(&site, &["--port", "6379", "--protected-mode", "no"])?,
        redis(&site, &["--port", "6380", "--protected-mode", "no"])?,
    ];
    let mut gate = serving(&site, &[])?;
    let over = AtomicBool::new(false);
    let connected = AtomicUsize::new(0);
    let answered = std::thread::scope(|scope| -> Result<Vec<_>> {
        let clients: Vec<_> = [STORE, "[fd00::1]:6379"]
            .map(|at| scope.spawn(|| connect_repeatedly(&site, at, &over, &connected)))
            .into_iter()
            .collect();
        let _over = Over(&over);
        // The second has another service before this one, whose places differ.
        for more in ["", &service("other", "resp", "\"198.18.0.1:6380\"", ""), ""] {
            site.configure(&config(more))?;
            let next = serving(&site, &["--takeover"])?;
            let mut before = std::mem::replace(&mut gate, next);
            ended(&mut before)?;
            let so_far = connected.load(Ordering::Relaxed);
            wait_until("clients go on", || Ok(connected.load(Ordering::Relaxed) > so_far + 20))?;
        }
        over.store(true, Ordering::Relaxed);
        let answered = clients.into_iter().map(|clients| clients.join().expect("no panic"));
        Ok(answered.collect::<Result<Vec<_>>>()?.concat())
    })?;
    ensure!(answered.len() > 100, "only {} connections", answered.len());
    let others: Vec<_> = answered.iter().filter(|by| **by != Some(By::Gate)).collect();
    ensure!(others.is_empty(), "of {} connections: {others:?}", answered.len());
    Ok(())
}
