//! Commands that change a client's session (user, database, protocol version) happen as the store says, or nothing behind them does.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::rng::Rng;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const POOR: &str =
    "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"200 RU/s\"\nburst = \"20ms\"";

fn ask(client: &mut TcpStream, request: &str) -> Result<String> {
    client.write_all(request.as_bytes())?;
    Ok(String::from_utf8(read_until(client, b"\r\n")?)?)
}

/// Everything up to the end of the connection.
fn rest(client: &mut TcpStream) -> Result<String> {
    let mut said = Vec::new();
    client.read_to_end(&mut said)?;
    Ok(String::from_utf8(said)?)
}

fn add_user(store: &Listening, user: &str, password: &str) -> Result<()> {
    store.ask(format!("ACL SETUSER {user} reset on >{password} ~* &* +@all\r\n").as_bytes(), b"+OK\r\n")?;
    Ok(())
}

/// How often the store has refused a login.
fn failed_logins(store: &Listening) -> Result<u64> {
    let said = String::from_utf8(store.ask(b"INFO commandstats\r\nECHO end\r\n", b"end\r\n")?)?;
    let logins = said.lines().find(|line| line.starts_with("cmdstat_auth:"));
    Ok(logins
        .and_then(|logins| logins.split_once("failed_calls="))
        .map_or("0", |(_, failed)| failed)
        .parse()?)
}

#[test]
fn session_commands_are_not_refused_for_quota() -> Result<()> {
    let store = Listening::redis()?;
    add_user(&store, "alice", "a-secret")?;
    let gate = Listening::gate("resp", store.address, "", POOR)?;
    let mut refused = 0;
    for round in 0..60 {
        gate.connect()?.write_all(&b"PING\r\n".repeat(8))?;
        let mut client = gate.connect()?;
        let command = ["SELECT 7", "AUTH alice a-secret", "RESET", "CLIENT SETNAME me"][round % 4];
        let said = ask(&mut client, &format!("{command}\r\n"))?;
        ensure!(said == "+OK\r\n" || said == "+RESET\r\n", "{command}: {said}");
        if command == "SELECT 7" {
            let said = ask(&mut client, &format!("SET k{round} 1\r\n"))?;
            refused += usize::from(said.contains("reason=quota"));
        }
    }
    ensure!(refused > 0, "nothing was refused: the quota is not spent");
    let said = store.ask(b"DBSIZE\r\n", b"\r\n")?;
    ensure!(said == b":0\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn what_is_behind_a_refused_session_command_is_refused() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "store_timeout = \"300ms\"", EVERYONE)?;
    for command in ["SELECT 7", "HELLO 3", "AUTH alice a-secret", "RESET"] {
        let mut client = gate.connect()?;
        ensure!(ask(&mut client, "GET a\r\n")? == "$-1\r\n");
        store.stall()?;
        client.write_all(format!("{command}\r\nSET a 1\r\nMULTI\r\nSET b 1\r\nEXEC\r\n").as_bytes())?;
        let said = rest(&mut client)?;
        store.signal(Signal::SIGCONT)?;
        let lines: Vec<&str> = said.lines().collect();
        let is_refusal =
            |line: &&str| line.starts_with("-UNAVAILABLE ") && line.ends_with(" reason=store-down");
        ensure!(lines.len() == 5 && lines.iter().all(is_refusal), "{command}: {said}");
        wait_until("it is not served again", || Ok(ask(&mut gate.connect()?, "GET a\r\n")? == "$-1\r\n"))?;
    }
    let said = store.ask(b"DBSIZE\r\n", b"\r\n")?;
    ensure!(said == b":0\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn a_transaction_behind_a_refused_watch_does_not_run() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate(
        "resp",
        store.address,
        "",
        &POOR.replace("200 RU/s", "10 RU/s").replace("20ms", "1s"),
    )?;
    let mut client = gate.connect()?;
    client.write_all((["PING\r\n"; 30].concat() + "WATCH a\r\n").as_bytes())?;
    let mut said = String::new();
    while said.lines().count() < 31 {
        said += &String::from_utf8(read_until(&mut client, b"\r\n")?)?;
    }
    let said = format!("{}\r\n", said.lines().nth(30).unwrap_or_default());
    ensure!(said.starts_with("-THROTTLED "), "{said}");
    let refused_at = Instant::now();
    wait_until("the bucket is full again", || Ok(refused_at.elapsed() > Duration::from_millis(1_500)))?;
    let transaction = "GET a\r\nMULTI\r\nSET a 1\r\nEXEC\r\nECHO end\r\n";
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    let echoed = "$3\r\nend\r\n";
    client.write_all(transaction.as_bytes())?;
    let refused = String::from_utf8(read_until(&mut client, echoed.as_bytes())?)?;
    ensure!(refused == format!("$-1\r\n{said}{said}{aborted}{echoed}"), "{refused}");
    // It was this one alone.
    wait_until("no transaction runs", || {
        client.write_all(transaction.as_bytes())?;
        let said = read_until(&mut client, echoed.as_bytes())?;
        Ok(said.ends_with(b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n$3\r\nend\r\n"))
    })
}

#[test]
fn only_the_clients_own_credentials_decide_its_login() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    for database in ["0", "9"] {
        add_user(&store, "alice", "old")?;
        let mut client = gate.connect()?;
        ensure!(ask(&mut client, "AUTH alice old\r\n")? == "+OK\r\n");
        ensure!(ask(&mut client, &format!("SELECT {database}\r\n"))? == "+OK\r\n");
        ensure!(ask(&mut client, "SET k 1\r\n")? == "+OK\r\n");
        store.ask(b"ACL SETUSER alice resetpass >new\r\n", b"+OK\r\n")?;
        let said = ask(&mut client, "AUTH alice new\r\n")?;
        ensure!(said == "+OK\r\n", "database {database}: {said}");
        client.write_all(b"ACL WHOAMI\r\nGET k\r\n")?;
        let said = String::from_utf8(read_until(&mut client, b"\r\n1\r\n")?)?;
        ensure!(said == "$5\r\nalice\r\n$1\r\n1\r\n", "database {database}: {said}");
    }
    for before in ["PING", "SELECT 9", "HELLO 3", "CLIENT SETNAME n"] {
        let mut client = gate.connect()?;
        client.write_all(format!("{before}\r\nECHO behind\r\n").as_bytes())?;
        read_until(&mut client, b"behind\r\n")?;
        store.ask(b"CONFIG SET requirepass m\r\n", b"+OK\r\n")?;
        let said = ask(&mut client, "AUTH m\r\n")?;
        ensure!(said == "+OK\r\n", "behind {before}: {said}");
        store.ask(b"AUTH m\r\nCONFIG SET requirepass \"\"\r\n", b"+OK\r\n+OK\r\n")?;
    }
    Ok(())
}

#[test]
fn a_failed_login_is_one_failed_login_at_the_store() -> Result<()> {
    let store = Listening::redis()?;
    add_user(&store, "alice", "a-secret")?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, "", EVERYONE)?;
    let mut shared = gate.connect()?;
    let mut dedicated = gate.connect()?;
    ensure!(ask(&mut dedicated, "WATCH a\r\n")? == "+OK\r\n");
    // So that connections are kept for the next one.
    ensure!(ask(&mut shared, "AUTH alice a-secret\r\n")? == "+OK\r\n");
    for client in [&mut shared, &mut dedicated] {
        let before = failed_logins(&store)?;
        let said = ask(client, "AUTH alice wrong\r\n")?;
        ensure!(said.starts_with("-WRONGPASS"), "{said}");
        // The store has seen all that gate asks when it has answered this.
        ask(client, "PING\r\n")?;
        let asked = failed_logins(&store)? - before;
        ensure!(asked == 1, "{asked} logins for one");
    }
    Ok(())
}

#[test]
fn a_full_store_says_so_to_clients_that_need_a_connection() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, "", EVERYONE)?;
    let mut admin = store.connect()?;
    ensure!(ask(&mut gate.connect()?, "PING\r\n")? == "+PONG\r\n");
    ensure!(ask(&mut admin, "CONFIG SET maxclients 12\r\n")? == "+OK\r\n");
    let full = "-ERR max number of clients reached\r\n";
    let mut held = Vec::new();
    for request in ["WATCH a", "MULTI", "SUBSCRIBE c", "BLPOP l 1", "SELECT 3"] {
        // One that is let in holds what one of gate's own questions has left.
        loop {
            let mut client = gate.connect()?;
            let said = ask(&mut client, &format!("{request}\r\n"))?;
            if said == full {
                break;
            }
            ensure!(!said.starts_with('-') && held.len() < 40, "{request}: {said}");
            held.push(client);
        }
    }
    let said = ask(&mut gate.connect()?, "GET a\r\n")?;
    ensure!(said == "$-1\r\n", "{said}");
    Ok(())
}

#[test]
fn a_lost_connection_refuses_no_read_and_ends_no_client() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let mut admin = store.connect()?;
    let mut clients = (0..8).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    for client in &mut clients {
        ensure!(ask(client, "GET a\r\n")? == "$-1\r\n");
    }
    thread::park_timeout(Duration::from_millis(60));
    for round in 0..24_u64 {
        admin.write_all(b"CLIENT KILL TYPE normal SKIPME yes\r\n")?;
        read_until(&mut admin, b"\r\n")?;
        thread::park_timeout(Duration::from_millis([0, 1, 5, 30][round as usize % 4]));
        for client in &mut clients {
            let said = ask(client, "GET a\r\n")?;
            ensure!(said == "$-1\r\n", "round {round}: {said}");
        }
        // A connection that is closed at once, again and again, is another matter.
        thread::park_timeout(Duration::from_millis(60));
    }
    Ok(())
}

#[test]
fn a_slow_command_costs_no_other_client_its_answer() -> Result<()> {
    let store = Listening::redis()?;
    let service = "store_timeout = \"300ms\"\nslow_timeout = \"10s\"";
    let gate = Listening::gate_with("threads = \"2\"", "resp", store.address, service, EVERYONE)?;
    let script = "EVAL \"local t = redis.call('TIME'); local e = t[1] * 1000 + t[2] / 1000 + 1200; \
                  repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > e; return 7\" 0\r\n";
    let mut others = (0..8).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    for (slow, end) in [(script.to_owned(), ":7\r\n"), (format!("MULTI\r\n{script}EXEC\r\n"), "*1\r\n:7\r\n")]
    {
        let mut client = gate.connect()?;
        client.write_all(slow.as_bytes())?;
        wait_until("the store is not busy", || {
            let mut direct = store.connect()?;
            direct.set_read_timeout(Some(Duration::from_millis(20)))?;
            direct.write_all(b"PING\r\n")?;
            Ok(direct.read(&mut [0; 7]).is_err())
        })?;
        for (number, other) in others.iter_mut().enumerate() {
            // One of them needs a connection of its own, and one a new identity.
            let request = ["INCR n\r\n", "GET a\r\n", "SELECT 3\r\n", "WATCH a\r\n"][number % 4];
            other.write_all(request.as_bytes())?;
        }
        for (number, other) in others.iter_mut().enumerate() {
            let said = String::from_utf8(read_until(other, b"\r\n")?)?;
            ensure!(!said.starts_with('-'), "{number} behind {slow:?}: {said}");
        }
        read_until(&mut client, end.as_bytes())?;
    }
    Ok(())
}

/// Where a test's writes may be: key and database.
type Place = (String, u32);

/// Users that may write keys which begin with their own letter; `default` may write all.
const USERS: [(&str, &str); 2] = [("alice", "a"), ("bob", "b")];
const DATABASES: u32 = 4;
/// Batches in CI, and with `GATE_LONG=1`.
const BATCHES: usize = 60;
const LONG: usize = 3_000;
const CLIENTS: usize = 3;

fn store_with_users() -> Result<Listening> {
    let store = Listening::redis()?;
    for (user, letter) in USERS {
        let rule = format!("ACL SETUSER {user} on >{user} %R~* %W~{letter}:* &* +@all -flushall\r\n");
        store.ask(rule.as_bytes(), b"+OK\r\n")?;
    }
    Ok(store)
}

/// A batch of requests, whose replies do not depend on whether earlier writes were let through.
fn batch(rng: &mut Rng, number: &mut usize) -> Vec<String> {
    let mut in_transaction = false;
    let mut requests = Vec::new();
    for _ in 0..4 + rng.index(16) {
        *number += 1;
        let letter = ["a", "b", "c"][rng.index(3)];
        requests.push(match rng.index(14) {
            0 => format!("SELECT {}", rng.index(DATABASES as usize)),
            1 => "AUTH alice alice".to_owned(),
            2 => "AUTH bob bob".to_owned(),
            3 if rng.index(3) == 0 => "AUTH bob wrong".to_owned(),
            4 => ["HELLO 3", "HELLO 2"][rng.index(2)].to_owned(),
            5 if rng.index(2) == 0 => "RESET".to_owned(),
            6 if !in_transaction => "MULTI".to_owned(),
            7 if in_transaction => ["EXEC", "EXEC", "DISCARD"][rng.index(3)].to_owned(),
            8 if !in_transaction => "WATCH watched".to_owned(),
            9 => "ACL WHOAMI".to_owned(),
            10 => "HGETALL none".to_owned(),
            _ => format!("SET {letter}:{number} 1"),
        });
        in_transaction = match requests[requests.len() - 1].as_str() {
            "MULTI" => true,
            "EXEC" | "DISCARD" | "RESET" => false,
            _ => in_transaction,
        };
    }
    requests
}

/// A connection to what listens there, by another thread than the one that has started it.
fn connect(server: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The replies to a batch, one for each request, as far as they come.
fn replies(server: SocketAddr, requests: &[String]) -> Result<Vec<String>> {
    let mut stream = connect(server)?;
    stream.write_all((requests.join("\r\n") + "\r\nRESET\r\nQUIT\r\n").as_bytes())?;
    let mut said = Vec::new();
    // A connection that was killed may be reset.
    let _ = stream.read_to_end(&mut said);
    Ok(split(&String::from_utf8_lossy(&said)))
}

/// The replies in what a server has said. Those of this test are lines, strings, and arrays and hashes of these.
fn split(said: &str) -> Vec<String> {
    let mut lines = said.split_inclusive("\r\n");
    let mut replies = Vec::new();
    while let Some(reply) = value(&mut lines) {
        replies.push(reply);
    }
    replies
}

fn value<'s>(lines: &mut impl Iterator<Item = &'s str>) -> Option<String> {
    let line = lines.next().filter(|line| line.ends_with("\r\n"))?;
    let count = line[1..].trim_end().parse::<usize>().unwrap_or(0);
    let values = match &line[..1] {
        "$" if line != "$-1\r\n" => return Some(line.to_owned() + lines.next()?),
        "*" => count,
        "%" => 2 * count,
        _ => 0,
    };
    (0..values).try_fold(line.to_owned(), |reply, _| Some(reply + &value(lines)?))
}

/// All keys that a store has.
fn places(store: &Listening) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    for database in 0..DATABASES {
        let asked = format!("SELECT {database}\r\nKEYS *\r\nECHO the-end\r\n");
        let said = String::from_utf8(store.ask(asked.as_bytes(), b"the-end\r\n")?)?;
        let keys = said.lines().filter(|line| line[1..].starts_with(':'));
        places.extend(keys.map(|key| (key.to_owned(), database)));
    }
    Ok(places)
}

/// True if gate may answer this where the store itself answers `direct`.
fn is_allowed(direct: &str, through: &str) -> bool {
    let refusals = ["-THROTTLED ", "-UNAVAILABLE ", "-UNCERTAIN ", "-OVERLOADED ", "-DENIED ", "-EXECABORT "];
    // A transaction that is refused on a dedicated connection is made of these.
    let instead = ["-ERR unknown command 'DENIED ", "-ERR unknown command 'EXECABORT "];
    // The number of the connection is another one.
    let is_hello = |reply: &str| reply.contains("\r\nproto\r\n");
    let version = |reply: &str| reply.split("\r\nproto\r\n").nth(1).map(|rest| rest[..2].to_owned());
    direct == through
        || refusals.iter().chain(&instead).any(|refusal| through.starts_with(refusal))
        || is_hello(direct) && is_hello(through) && version(direct) == version(through)
}

/// Has a store close all its connections, now and then, until told to stop.
fn kill_connections(store: SocketAddr, stop: &AtomicBool, mut rng: Rng) -> Result<()> {
    let mut admin = connect(store)?;
    while !stop.load(Ordering::Relaxed) {
        admin.write_all(b"CLIENT KILL TYPE normal SKIPME yes\r\n")?;
        read_until(&mut admin, b"\r\n")?;
        thread::park_timeout(Duration::from_millis(5 + rng.index(60) as u64));
    }
    Ok(())
}

#[test]
fn nothing_runs_in_a_session_that_the_store_would_not_have() -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
    let seed = std::env::var("GATE_SEED").map_or(Ok(now), |seed| seed.parse())?;
    println!("GATE_SEED={seed}");
    for (quota, kills) in [("1500 RU/s", false), ("unlimited", true), ("1500 RU/s", true)] {
        runs_where_the_store_would_have(seed, quota, kills)
            .with_context(|| format!("GATE_SEED={seed}, {quota}"))?;
    }
    Ok(())
}

fn runs_where_the_store_would_have(seed: u64, quota: &str, kills: bool) -> Result<()> {
    let direct = store_with_users()?;
    let behind = store_with_users()?;
    let tenant = format!("{}\nburst = \"30ms\"", EVERYONE.replace("unlimited", quota));
    let tenant = if quota == "unlimited" { EVERYONE.to_owned() } else { tenant };
    let gate = Listening::gate("resp", behind.address, "max_dedicated = \"2\"", &tenant)?;
    let addresses = [direct.address, behind.address, gate.address];
    let stop = AtomicBool::new(false);
    let mut rng = Rng::new(seed);
    let mut number = 0;
    let count = if std::env::var_os("GATE_LONG").is_some() { LONG } else { BATCHES };
    let batches: Vec<_> = (0..count).map(|_| batch(&mut rng, &mut number)).collect();
    thread::scope(|scope| -> Result<()> {
        let killer = kills.then(|| scope.spawn(|| kill_connections(addresses[1], &stop, Rng::new(seed + 1))));
        let compared = batches.chunks(CLIENTS).try_for_each(|batches| {
            let clients: Vec<_> = batches
                .iter()
                .map(|batch| scope.spawn(|| compare(addresses[0], addresses[2], batch)))
                .collect();
            clients.into_iter().try_for_each(|client| client.join().expect("it does not panic"))
        });
        stop.store(true, Ordering::Relaxed);
        killer.map_or(Ok(()), |killer| killer.join().expect("it does not panic"))?;
        compared
    })?;
    let expected: HashMap<_, _> = places(&direct)?.into_iter().collect();
    for (key, database) in places(&behind)? {
        let direct = expected.get(&key);
        ensure!(direct == Some(&database), "{key} is in database {database}, and should be in {direct:?}");
    }
    Ok(())
}

/// Sends a batch to a store and through gate, whose replies must be the store's, or refusals, or too few.
fn compare(direct: SocketAddr, gate: SocketAddr, batch: &[String]) -> Result<()> {
    let directly = replies(direct, batch)?;
    let through = replies(gate, batch)?;
    for ((request, directly), through) in batch.iter().zip(&directly).zip(&through) {
        ensure!(
            is_allowed(directly, through),
            "{request}: {directly:?}, through gate {through:?}\n{batch:#?}"
        );
    }
    Ok(())
}
