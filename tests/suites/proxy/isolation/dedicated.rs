//! Clients with dedicated connections pass the same admission as others, and give their connections back.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gate_tests::fake_store::counter;
use gate_tests::proxy::{Listening, PATIENCE, check, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const UNKNOWN: Ipv4Addr = Ipv4Addr::new(127, 9, 0, 1);
const CRITICAL: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
const BEST_EFFORT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
const TENANTS: &str = r#"
[[tenant]]
name = "critical"
sources = ["127.0.0.5"]
tier = "critical"
quota = "unlimited"
[[tenant]]
name = "best-effort"
sources = ["127.0.0.6"]
tier = "best-effort"
quota = "unlimited"
"#;
const ONE_PERMIT: &str = "parallelism = \"1\"\nadmission = \"off\"\ncodel = { law = \"off\" }";

fn gate(store: &Listening, service: &str, tenants: &str) -> Result<Listening> {
    Listening::gate_with("threads = \"1\"", "resp", store.address, service, tenants)
}

/// A client whose connection keeps state for it.
fn watching(gate: &Listening, source: Ipv4Addr) -> Result<TcpStream> {
    let mut client = gate.connect_from(source)?;
    check(&mut client, "WATCH unused\r\n", "+OK\r\n")?;
    Ok(client)
}

/// Keeps the store busy for so long, with a permit.
fn occupy(client: &mut TcpStream, time: Duration) -> Result<()> {
    let script = format!(
        "EVAL \"local t = redis.call('TIME'); local e = t[1] * 1000 + t[2] / 1000 + {}; \
         repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > e; return 7\" 0\r\n",
        time.as_millis()
    );
    Ok(client.write_all(script.as_bytes())?)
}

fn store_connections(store: &Listening) -> Result<usize> {
    let info = store.ask(b"INFO clients\r\nECHO end\r\n", b"end\r\n")?;
    let info = String::from_utf8_lossy(&info).into_owned();
    let line = info.lines().find_map(|line| line.strip_prefix("connected_clients:"));
    line.and_then(|count| count.trim().parse().ok()).with_context(|| info.clone())
}

#[test]
fn no_connection_is_opened_for_unknown_sources() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, "", TENANTS)?;
    for request in ["MULTI\r\n", "UNWATCH\r\n", "SUBSCRIBE a\r\n", "BLPOP a 0\r\n"] {
        let mut client = gate.connect_from(UNKNOWN)?;
        client.write_all(request.as_bytes())?;
        let reply = read_until(&mut client, b"\r\n")?;
        ensure!(shown(&reply).contains("reason=unknown-source"), "{request:?}: {}", shown(&reply));
    }
    ensure!(counter(&gate, "dedicated-connection")? == 0);
    Ok(())
}

#[test]
fn a_tenant_over_its_quota_is_refused_at_multi() -> Result<()> {
    let store = Listening::redis()?;
    let tenants =
        "[[tenant]]\nname = \"poor\"\nsources = [\"127.0.0.0/8\"]\nquota = \"10 RU/s\"\nburst = \"1s\"";
    let gate = gate(&store, "", tenants)?;
    let mut client = gate.connect()?;
    client.write_all(&[&b"GET a\r\n".repeat(30)[..], b"MULTI\r\nSET a 1\r\nEXEC\r\n"].concat())?;
    let replies =
        read_until(&mut client, b"-EXECABORT Transaction discarded because of previous errors.\r\n")?;
    let replies = String::from_utf8(replies)?;
    let last: Vec<_> = replies.lines().rev().take(3).collect();
    ensure!(last[1..].iter().all(|line| line.contains("reason=quota")), "{replies}");
    ensure!(counter(&gate, "dedicated-connection")? == 0);
    let reply = store.ask(b"EXISTS a\r\n", b"\r\n")?;
    ensure!(reply == b":0\r\n", "{}", shown(&reply));
    Ok(())
}

/// gate's shared connections and the kept ones, and those that ask here.
const MOST: usize = 10;

#[test]
fn connections_without_state_are_given_back() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, "", TENANTS)?;
    let mut clients = Vec::new();
    for request in [
        ("MULTI\r\nINCR n\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n"),
        ("WATCH n\r\nMULTI\r\nDISCARD\r\n", "+OK\r\n+OK\r\n+OK\r\n"),
        ("WATCH n\r\nUNWATCH\r\n", "+OK\r\n+OK\r\n"),
        ("RPUSH l 1\r\nBLPOP l 0\r\nLLEN l\r\n", ":1\r\n*2\r\n$1\r\nl\r\n$1\r\n1\r\n:0\r\n"),
        ("MULTI\r\nGET\r\nEXEC\r\nGET n\r\n", ""),
    ]
    .into_iter()
    .cycle()
    .take(30)
    {
        let mut client = gate.connect_from(CRITICAL)?;
        let (asked, reply) = request;
        if reply.is_empty() {
            client.write_all(asked.as_bytes())?;
            let found = read_until(&mut client, b"$1\r\n0\r\n")?;
            ensure!(shown(&found).contains("EXECABORT"), "{}", shown(&found));
        } else {
            check(&mut client, &format!("SET n 0\r\n{asked}"), &format!("+OK\r\n{reply}"))?;
        }
        clients.push(client);
        // One stays ready.
        wait_until("a connection is not given back", || Ok(store_connections(&store)? <= MOST))
            .with_context(|| format!("{asked:?}"))?;
    }
    // Requests of all kinds in one go keep their order.
    let asked = "SET a 1\r\nMULTI\r\nINCR a\r\nEXEC\r\nGET a\r\nWATCH a\r\nGET a\r\nUNWATCH\r\nINCR a\r\n\
                 SELECT 1\r\nGET a\r\nMULTI\r\nSET a x\r\nEXEC\r\nGET a\r\nSELECT 0\r\nGET a\r\n";
    let replies = "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:2\r\n$1\r\n2\r\n+OK\r\n$1\r\n2\r\n+OK\r\n:3\r\n\
                   +OK\r\n$-1\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n$1\r\nx\r\n+OK\r\n$1\r\n3\r\n";
    for client in &mut clients {
        check(client, asked, replies)?;
        check(client, "SELECT 1\r\nDEL a\r\nSELECT 0\r\n", "+OK\r\n:1\r\n+OK\r\n")?;
    }
    Ok(())
}

#[test]
fn a_watched_key_stays_watched() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, "", TENANTS)?;
    let mut client = gate.connect_from(CRITICAL)?;
    let mut other = gate.connect_from(BEST_EFFORT)?;
    check(&mut client, "MULTI\r\nEXEC\r\nWATCH a\r\nGET a\r\n", "+OK\r\n*0\r\n+OK\r\n$-1\r\n")?;
    // Another's transaction has another connection.
    check(&mut other, "MULTI\r\nSET a 1\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n")?;
    check(&mut client, "MULTI\r\nSET a 2\r\nEXEC\r\nGET a\r\n", "+OK\r\n+QUEUED\r\n*-1\r\n$1\r\n1\r\n")
}

#[test]
fn requests_there_wait_for_a_permit_by_tier() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, ONE_PERMIT, TENANTS)?;
    let mut busy = gate.connect_from(CRITICAL)?;
    let mut critical = gate.connect_from(CRITICAL)?;
    let mut best_effort = watching(&gate, BEST_EFFORT)?;
    occupy(&mut busy, Duration::from_millis(300))?;
    best_effort.write_all(b"INCR n\r\n")?;
    critical.write_all(b"INCR n\r\n")?;
    ensure!(read_until(&mut busy, b"\r\n")? == b":7\r\n");
    let reply = read_until(&mut critical, b"\r\n")?;
    ensure!(reply == b":1\r\n", "best-effort was first: {}", shown(&reply));
    ensure!(read_until(&mut best_effort, b"\r\n")? == b":2\r\n");
    // All permits have been released.
    check(&mut critical, "MULTI\r\nINCR n\r\nEXEC\r\nGET n\r\n", "+OK\r\n+QUEUED\r\n*1\r\n:3\r\n$1\r\n3\r\n")
}

#[test]
fn a_late_request_is_refused_and_a_late_exec_is_not() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, &format!("{ONE_PERMIT}\ndeadline = \"50ms\""), TENANTS)?;
    let mut busy = gate.connect_from(CRITICAL)?;
    let mut late = watching(&gate, CRITICAL)?;
    let mut transaction = watching(&gate, CRITICAL)?;
    check(&mut transaction, "MULTI\r\nINCR n\r\n", "+OK\r\n+QUEUED\r\n")?;
    occupy(&mut busy, Duration::from_millis(400))?;
    late.write_all(b"INCR n\r\n")?;
    transaction.write_all(b"EXEC\r\n")?;
    let reply = read_until(&mut late, b"\r\n")?;
    ensure!(shown(&reply).contains("reason=deadline"), "{}", shown(&reply));
    check(&mut transaction, "GET n\r\n", "*1\r\n:1\r\n$1\r\n1\r\n")?;
    // A connection on which gate has replied goes on.
    check(&mut late, "GET n\r\n", "$1\r\n1\r\n")
}

#[test]
fn blocked_clients_hold_no_permit() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, &format!("{ONE_PERMIT}\nstore_timeout = \"200ms\""), TENANTS)?;
    let mut blocked = gate.connect_from(CRITICAL)?;
    let mut subscriber = gate.connect_from(CRITICAL)?;
    blocked.write_all(b"BLPOP l 0\r\n")?;
    subscriber.write_all(b"SUBSCRIBE c\r\n")?;
    read_until(&mut subscriber, b":1\r\n")?;
    let mut other = gate.connect_from(BEST_EFFORT)?;
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        check(&mut other, "GET a\r\n", "$-1\r\n")?;
    }
    // Nor do they wait too long for the store.
    check(&mut other, "RPUSH l 1\r\nPUBLISH c hello\r\n", ":1\r\n:1\r\n")?;
    read_until(&mut blocked, b"$1\r\n1\r\n")?;
    read_until(&mut subscriber, b"hello\r\n")?;
    Ok(())
}

#[test]
fn a_client_that_does_not_read_holds_no_permit() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, ONE_PERMIT, TENANTS)?;
    let mut deaf = watching(&gate, BEST_EFFORT)?;
    let value = "v".repeat(1 << 20);
    deaf.write_all(format!("*3\r\n$3\r\nSET\r\n$1\r\nv\r\n${}\r\n{value}\r\n", value.len()).as_bytes())?;
    read_until(&mut deaf, b"+OK\r\n")?;
    deaf.write_all(&b"GET v\r\n".repeat(30))?;
    wait_until("it is not answered", || Ok(deaf.peek(&mut [0])? == 1))?;
    let mut polite = gate.connect_from(CRITICAL)?;
    (0..20).try_for_each(|_| check(&mut polite, "GET a\r\n", "$-1\r\n"))
}

#[test]
fn their_requests_count_as_outstanding() -> Result<()> {
    let store = Listening::redis()?;
    let tenants = TENANTS.replacen("quota", "max_outstanding = \"1\"\nquota", 1);
    let gate = gate(&store, "", &tenants)?;
    let mut busy = gate.connect_from(CRITICAL)?;
    let mut client = watching(&gate, CRITICAL)?;
    occupy(&mut busy, Duration::from_millis(300))?;
    // The script has come to the store when this has waited behind it.
    check(&mut gate.connect_from(BEST_EFFORT)?, "GET a\r\n", "$-1\r\n")?;
    read_until(&mut busy, b":7\r\n")?;
    occupy(&mut busy, Duration::from_millis(300))?;
    client.write_all(b"GET a\r\n")?;
    let reply = read_until(&mut client, b"\r\n")?;
    ensure!(shown(&reply).contains("reason=limit"), "{}", shown(&reply));
    read_until(&mut busy, b":7\r\n")?;
    wait_until("its request is still outstanding", || {
        client.write_all(b"GET a\r\n")?;
        Ok(read_until(&mut client, b"\r\n")? == b"$-1\r\n")
    })
}

#[test]
fn a_tenant_has_no_more_of_them_than_it_may() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, "max_dedicated = \"2\"", TENANTS)?;
    let subscribe = |source| -> Result<(TcpStream, Vec<u8>)> {
        let mut client = gate.connect_from(source)?;
        client.write_all(b"SUBSCRIBE c\r\n")?;
        let mut reply = vec![0; 100];
        let len = client.read(&mut reply)?;
        reply.truncate(len);
        Ok((client, reply))
    };
    let held = [subscribe(CRITICAL)?, subscribe(CRITICAL)?];
    ensure!(held.iter().all(|(_, reply)| reply.starts_with(b"*3\r\n")));
    let (mut refused, reply) = subscribe(CRITICAL)?;
    ensure!(shown(&reply).contains("reason=limit"), "{}", shown(&reply));
    // It goes on over shared connections, and so do other tenants over their own.
    check(&mut refused, "GET a\r\n", "$-1\r\n")?;
    ensure!(subscribe(BEST_EFFORT)?.1.starts_with(b"*3\r\n"));
    held[0].0.shutdown(std::net::Shutdown::Both)?;
    wait_until("its connection is not free", || Ok(subscribe(CRITICAL)?.1.starts_with(b"*3\r\n")))
}

#[test]
fn a_store_that_lacks_a_reply_there_is_detected() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, "store_timeout = \"300ms\"", TENANTS)?;
    let mut client = watching(&gate, CRITICAL)?;
    store.stall()?;
    client.write_all(b"GET a\r\n")?;
    let reply = read_until(&mut client, b"\r\n")?;
    ensure!(reply == b"-UNCERTAIN reason=store-down\r\n", "{}", shown(&reply));
    ensure!(client.read(&mut [0])? == 0, "it is not closed");
    store.signal(Signal::SIGCONT)
}

#[test]
fn a_body_there_must_go_on() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, "client_timeout = \"500ms\"", TENANTS)?;
    let mut client = watching(&gate, CRITICAL)?;
    client.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1000000\r\n")?;
    client.set_read_timeout(Some(Duration::from_millis(100)))?;
    let deadline = Instant::now() + PATIENCE;
    while client.write_all(b"a").is_ok() {
        ensure!(Instant::now() < deadline, "it still holds its connection");
        match client.read(&mut [0]) {
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => bail!("it read {other:?}"),
        }
    }
    Ok(())
}

#[test]
fn no_later_write_overtakes_a_first_blocking_request() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate(&store, "", TENANTS)?;
    let mut writer = gate.connect_from(CRITICAL)?;
    // One connection has been given back when the client is served over a shared one.
    check(&mut writer, "MULTI\r\nEXEC\r\nPING\r\n", "+OK\r\n*0\r\n+PONG\r\n")?;
    for round in 0..20 {
        let mut blocked = gate.connect_from(CRITICAL)?;
        check(&mut blocked, "PING\r\n", "+PONG\r\n")?;
        store.rests()?;
        blocked.write_all(b"BLPOP l 0\r\n")?;
        check(&mut writer, "RPUSH l 1\r\nLLEN l\r\n", ":1\r\n:0\r\n")
            .with_context(|| format!("round {round}"))?;
        read_until(&mut blocked, b"$1\r\n1\r\n")?;
        check(&mut blocked, "PING\r\n", "+PONG\r\n")?;
    }
    Ok(())
}

#[test]
fn an_unknown_command_keeps_no_connection_of_the_store() -> Result<()> {
    const CLIENTS: usize = 30;
    let store = Listening::redis()?;
    let gate = gate(&store, "", TENANTS)?;
    let mut clients: Vec<TcpStream> =
        (0..CLIENTS).map(|_| gate.connect_from(CRITICAL)).collect::<Result<_>>()?;
    clients.iter_mut().try_for_each(|client| check(client, "GET a\r\n", "$-1\r\n"))?;
    let before = store_connections(&store)?;
    for request in ["FOO bar\r\n", "CLIENT INFO\r\n", "CLIENT FOO\r\n", "CLIENT NO-EVICT on\r\n"] {
        for client in &mut clients {
            client.write_all(format!("{request}GET a\r\n").as_bytes())?;
            read_until(client, b"\r\n$-1\r\n")?;
        }
        wait_until("the store has a connection for each client", || {
            Ok(store_connections(&store)? <= before + 3)
        })?;
    }
    Ok(())
}
