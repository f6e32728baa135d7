//! Clients that take connections: unknown ones, one tenant's, idle ones, ones that are gone.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gate_tests::proxy::{Listening, PATIENCE, read_until};
use gate_tests::wait::wait_until;

const UNKNOWN: Ipv4Addr = Ipv4Addr::new(127, 9, 0, 1);
const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
const TENANTS: &str = r#"
[[tenant]]
name = "greedy"
sources = ["127.0.0.5"]
quota = "unlimited"
[[tenant]]
name = "polite"
sources = ["127.0.0.6"]
quota = "unlimited"
"#;

fn is_served(client: &mut TcpStream) -> bool {
    client.write_all(b"PING\r\n").is_ok()
        && read_until(client, b"\r\n").is_ok_and(|said| said == b"+PONG\r\n")
}

/// So many connections from a source, each asked once if anybody answers.
fn open(gate: &Listening, source: Ipv4Addr, count: usize) -> Result<Vec<TcpStream>> {
    (0..count).map(|_| gate.connect_from(source)).collect()
}

/// Waits until it is closed, whatever is said before.
fn until_closed(client: &mut TcpStream) -> Result<Duration> {
    let started = Instant::now();
    loop {
        match client.read(&mut [0; 100]) {
            Ok(0) => return Ok(started.elapsed()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(started.elapsed()),
            Err(error) => bail!("it is not closed: {error}"),
        }
    }
}

#[test]
fn the_unknown_take_no_connection_from_tenants() -> Result<()> {
    let store = Listening::redis()?;
    let service = "max_clients = \"20\"\nmax_unknown_clients = \"4\"";
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, service, TENANTS)?;
    let unknown = open(&gate, UNKNOWN, 40)?;
    let mut polite = open(&gate, POLITE, 10)?;
    for client in &mut polite {
        ensure!(is_served(client), "a tenant's client is turned away");
    }
    // Of the unknown, four are still there, and none for long.
    for mut client in unknown {
        until_closed(&mut client)?;
    }
    Ok(())
}

#[test]
fn an_unknown_client_is_closed_whatever_it_sends() -> Result<()> {
    let store = Listening::redis()?;
    let service = "unknown_timeout = \"1s\"";
    let gate = Listening::gate("resp", store.address, service, TENANTS)?;
    let mut client = gate.connect_from(UNKNOWN)?;
    let deadline = Instant::now() + PATIENCE;
    while client.write_all(b"PING\r\n").is_ok() {
        ensure!(Instant::now() < deadline, "it holds its connection by asking");
        if client.read(&mut [0; 1_000]).unwrap_or(0) == 0 {
            break;
        }
    }
    Ok(())
}

#[test]
fn no_tenant_takes_all_connections_unless_it_may() -> Result<()> {
    let store = Listening::redis()?;
    let service = "max_clients = \"20\"";
    for (tenants, greedy_has) in [
        (TENANTS.to_owned(), 10),
        (TENANTS.replacen("quota", "max_connections = \"unlimited\"\nquota", 1), 20),
    ] {
        let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, service, &tenants)?;
        let mut greedy = open(&gate, GREEDY, 40)?;
        let served = greedy.iter_mut().filter_map(|client| is_served(client).then_some(())).count();
        ensure!(served == greedy_has, "{served} of {greedy_has}");
        let mut polite = gate.connect_from(POLITE)?;
        ensure!(is_served(&mut polite) == (greedy_has < 20));
    }
    Ok(())
}

#[test]
fn idle_clients_are_closed_and_waiting_ones_are_not() -> Result<()> {
    let store = Listening::redis()?;
    let service = "idle_timeout = \"1s\"";
    let gate = Listening::gate("resp", store.address, service, TENANTS)?;
    let mut idle = gate.connect_from(POLITE)?;
    let mut subscriber = gate.connect_from(POLITE)?;
    let mut blocked = gate.connect_from(POLITE)?;
    ensure!(is_served(&mut idle));
    subscriber.write_all(b"SUBSCRIBE c\r\n")?;
    read_until(&mut subscriber, b":1\r\n")?;
    blocked.write_all(b"BLPOP list 0\r\n")?;
    until_closed(&mut idle)?;
    // These have been quiet for as long, and longer.
    let mut again = gate.connect_from(POLITE)?;
    ensure!(is_served(&mut again));
    until_closed(&mut again)?;
    let mut publisher = gate.connect_from(POLITE)?;
    publisher.write_all(b"PUBLISH c hi\r\n")?;
    read_until(&mut publisher, b":1\r\n")?;
    read_until(&mut subscriber, b"hi\r\n")?;
    publisher.write_all(b"RPUSH list x\r\n")?;
    read_until(&mut blocked, b"x\r\n")?;
    Ok(())
}

#[test]
fn idle_clients_stay_unless_configured_otherwise() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", TENANTS)?;
    let mut idle = gate.connect_from(POLITE)?;
    ensure!(is_served(&mut idle));
    idle.set_read_timeout(Some(Duration::from_secs(5)))?;
    ensure!(idle.read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    ensure!(is_served(&mut idle));
    Ok(())
}

/// The timer that the kernel runs for the connection from this end to the other.
///
/// Both with their addresses: other tests have connections between the same ports.
fn timer(local: SocketAddr, remote: SocketAddr) -> Result<u8> {
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let shown = |end: SocketAddr| match end {
        SocketAddr::V4(end) => format!("{:08X}:{:04X}", end.ip().to_bits().swap_bytes(), end.port()),
        SocketAddr::V6(_) => String::new(),
    };
    let ends = [shown(local), shown(remote)];
    let mut lines = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let found = lines.find(|words| words.get(1..3).is_some_and(|words| *words == ends));
    let words = found.context("there is no such connection")?;
    Ok(words.get(5).and_then(|word| word.split_once(':')).context("no timer")?.0.parse()?)
}

#[test]
fn the_kernel_looks_whether_the_other_ends_are_still_there() -> Result<()> {
    const KEEPALIVE: u8 = 2;
    let store = Listening::redis()?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, "", TENANTS)?;
    let mut client = gate.connect_from(POLITE)?;
    ensure!(is_served(&mut client));
    // A connection for this client alone.
    client.write_all(b"CLIENT ID\r\nSUBSCRIBE c\r\n")?;
    read_until(&mut client, b"\r\nc\r\n:1\r\n")?;
    let end = client.local_addr()?;
    wait_until("the client is not looked after", || Ok(timer(gate.address, end)? == KEEPALIVE))?;
    let list = String::from_utf8(store.ask(b"CLIENT LIST\r\nPING\r\n", b"+PONG\r\n")?)?;
    let ours = list.lines().filter(|line| line.contains("sub=1"));
    let ends = ours.filter_map(|line| line.split(" addr=").nth(1)?.split(' ').next()?.parse().ok());
    let ends: Vec<SocketAddr> = ends.collect();
    let [end] = ends[..] else { bail!("{list}") };
    wait_until("the store is not looked after", || Ok(timer(end, store.address)? == KEEPALIVE))
}

/// The kernel enlarges a process' table of descriptors as needed, and a thread of gate that accepts a connection then serves
/// nobody for some milliseconds.
#[test]
fn the_table_of_descriptors_is_large_before_clients_come() -> Result<()> {
    let mut gate = Listening::gate("resp", Listening::redis()?.address, "max_clients = \"700\"", TENANTS)?;
    let process = gate.program().id();
    let room = || -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).context("no FDSize")?;
        Ok(size.trim().parse()?)
    };
    let size = room()?;
    ensure!(size >= 700 + 256, "room for {size} descriptors");
    // More clients may come after a change.
    let more = (size * 2).to_string();
    let set = gate.command(&["set", "service.store.max_clients", &more])?;
    ensure!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    wait_until("there is room for them", || Ok(room()? >= size * 2))
}

#[test]
fn few_descriptors_are_divided_among_tenants_and_stores() -> Result<()> {
    let store = Listening::redis()?;
    let line = "ulimit -n 256; exec \"$0\" \"$@\"";
    let mut gate = Listening::gate_by_shell(line, "resp", store.address, "", TENANTS)?;
    gate.program().wait_for("fewer are served", PATIENCE)?;
    let mut early = gate.connect_from(POLITE)?;
    wait_until("the store is connected", || Ok(is_served(&mut early)))?;
    let mut greedy = open(&gate, GREEDY, 600)?;
    let served = greedy.iter_mut().filter_map(|client| is_served(client).then_some(())).count();
    ensure!((1..=128).contains(&served), "{served} of the greedy are served");
    // What needs another descriptor goes on for others: a dedicated connection, a new client, the admin socket.
    early.write_all(b"WATCH a\r\n")?;
    ensure!(read_until(&mut early, b"\r\n")? == b"+OK\r\n");
    for mut client in open(&gate, POLITE, 3)? {
        ensure!(is_served(&mut client), "a client of another tenant is turned away");
    }
    ensure!(gate.json(&["status"])?["heartbeat_age_ms"].is_u64());
    Ok(())
}

#[test]
fn a_gate_out_of_descriptors_says_so_once_and_goes_on() -> Result<()> {
    let store = Listening::redis()?;
    let mut gate = Listening::gate_with("threads = \"1\"", "resp", store.address, "", TENANTS)?;
    let limit = libc::rlimit { rlim_cur: 60, rlim_max: 60 };
    #[allow(unsafe_code, reason = "nix sets limits of this process only")]
    // SAFETY: a process that this test has started, and a limit that outlives the call.
    let limited = unsafe {
        libc::prlimit(
            gate.program().id().cast_signed(),
            libc::RLIMIT_NOFILE,
            &raw const limit,
            std::ptr::null_mut(),
        )
    };
    ensure!(limited == 0, "{}", std::io::Error::last_os_error());
    let mut early = gate.connect_from(POLITE)?;
    wait_until("the store is connected", || Ok(is_served(&mut early)))?;
    let crowd = open(&gate, POLITE, 100)?;
    gate.program().wait_for("cannot accept clients", PATIENCE)?;
    let again = gate.program().wait_for("cannot accept clients", Duration::from_secs(2));
    ensure!(again.is_err(), "it says so again and again");
    ensure!(is_served(&mut early));
    drop(crowd);
    wait_until("nobody is accepted any more", || {
        let mut client = gate.connect_from(POLITE)?;
        Ok(is_served(&mut client))
    })
}
