//! Random pipelines of session commands, to a store and through gate: what is written is where the store itself would have written it.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, read_until};
use gate_tests::rng::Rng;

use super::EVERYONE;

/// Where a test's writes may be: key and database.
type Place = (String, u32);

/// Users that may write keys which begin with their own letter; `default` may write all. What is taken from one is an error of the
/// store's to what changes its session.
const USERS: [(&str, &str, &str); 2] = [("alice", "a", ""), ("bob", "b", "-select")];
const DATABASES: u32 = 4;
const HELLOS: [&str; 9] = [
    "HELLO 3",
    "HELLO 2",
    "HELLO 4",
    "HELLO 3 AUTH alice alice",
    "HELLO 2 AUTH bob bob SETNAME me",
    "HELLO 3 SETNAME me",
    "HELLO 3 AUTH bob wrong",
    "HELLO 3 AUTH alice alice SETNAME",
    "HELLO 3 AUTH alice alice SETNAME \"a b\"",
];
/// Batches in CI, and with `GATE_LONG=1`.
const BATCHES: usize = 60;
const LONG: usize = 3_000;
const CLIENTS: usize = 3;
/// The connections of a store that is full: some of gate's shared ones, and a few for one client.
const FEW: usize = 14;

fn store_with_users() -> Result<Listening> {
    let store = Listening::redis()?;
    for (user, letter, taken) in USERS {
        let rule = format!("ACL SETUSER {user} on >{user} %R~* %W~{letter}:* &* +@all -flushall {taken}\r\n");
        store.ask(rule.as_bytes(), b"+OK\r\n")?;
    }
    Ok(store)
}

/// Faults that happen meanwhile.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    quota: &'static str,
    /// The store closes all connections now and then.
    kills: bool,
    /// The store takes no more connections than it has at first.
    is_full: bool,
}

const TROUBLES: [Trouble; 4] = [
    Trouble { quota: "1500 RU/s", kills: false, is_full: false },
    Trouble { quota: "unlimited", kills: true, is_full: false },
    Trouble { quota: "1500 RU/s", kills: true, is_full: false },
    Trouble { quota: "unlimited", kills: false, is_full: true },
];

/// How many requests had another reply than from the store itself, and how many had none.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    refused: usize,
    lost: usize,
}

/// Requests of one client, and whether it sends them one by one.
struct Batch {
    requests: Vec<String>,
    one_by_one: bool,
}

/// A batch of requests, whose replies do not depend on whether earlier writes were let through.
fn batch(rng: &mut Rng, number: &mut usize) -> Batch {
    let mut in_transaction = false;
    let mut requests = Vec::new();
    for _ in 0..4 + rng.index(16) {
        *number += 1;
        let letter = ["a", "b", "c"][rng.index(3)];
        requests.push(match rng.index(18) {
            0 => format!("SELECT {}", ["0", "1", "2", "3", "3", "99"][rng.index(6)]),
            1 => "AUTH alice alice".to_owned(),
            2 => "AUTH bob bob".to_owned(),
            3 if rng.index(3) == 0 => "AUTH bob wrong".to_owned(),
            4 => HELLOS[rng.index(HELLOS.len())].to_owned(),
            5 if rng.index(2) == 0 => "RESET".to_owned(),
            6 if !in_transaction => "MULTI".to_owned(),
            7 if in_transaction => ["EXEC", "EXEC", "DISCARD"][rng.index(3)].to_owned(),
            8 if !in_transaction => "WATCH watched".to_owned(),
            9 => "ACL WHOAMI".to_owned(),
            10 => "HGETALL none".to_owned(),
            11 => "CLIENT SETNAME me".to_owned(),
            12 => ["CLIENT ID", "CLIENT NO-EVICT on", "CLIENT NO-EVICT off"][rng.index(3)].to_owned(),
            _ => format!("SET {letter}:{number} 1"),
        });
        in_transaction = match requests[requests.len() - 1].as_str() {
            "MULTI" => true,
            "EXEC" | "DISCARD" | "RESET" => false,
            _ => in_transaction,
        };
    }
    Batch { requests, one_by_one: rng.index(2) == 0 }
}

/// A connection to what listens there, by another thread than the one that has started it.
fn connect(server: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The replies to a batch, one for each request, as far as they come.
fn replies(server: SocketAddr, batch: &Batch) -> Result<Vec<String>> {
    let mut stream = connect(server)?;
    let last = "RESET\r\nQUIT\r\n";
    let mut said = Vec::new();
    // A connection that was killed may be reset.
    let _ = if batch.one_by_one {
        batch.requests.iter().try_for_each(|request| {
            // Some of the connections that are closed meanwhile are closed between two.
            thread::park_timeout(Duration::from_micros(300));
            stream.write_all(format!("{request}\r\n").as_bytes())
        })
    } else {
        stream.write_all((batch.requests.join("\r\n") + "\r\n").as_bytes())
    }
    .and_then(|()| stream.write_all(last.as_bytes()));
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

/// The end of a client whose login the store takes, and then fails.
const CLOSED: &str = "-ERR gate takes a login ";

/// The replies that gate may give in place of the store's.
const REFUSALS: [&str; 9] = [
    "-THROTTLED ",
    "-UNAVAILABLE ",
    "-UNCERTAIN ",
    "-OVERLOADED ",
    "-DENIED ",
    "-EXECABORT ",
    CLOSED,
    // A transaction that is refused on a dedicated connection is made of these.
    "-ERR unknown command 'DENIED ",
    "-ERR unknown command 'EXECABORT ",
];
/// Likewise, of a store that takes no more connections.
const FULL: &str = "-ERR max number of clients reached\r\n";

fn is_refusal(reply: &str, trouble: Trouble) -> bool {
    REFUSALS.iter().any(|refusal| reply.starts_with(refusal)) || trouble.is_full && reply == FULL
}

/// True if two replies say the same.
fn is_same(direct: &str, through: &str) -> bool {
    // The number of the connection is another one.
    let is_hello = |reply: &str| reply.contains("\r\nproto\r\n");
    let version = |reply: &str| reply.split("\r\nproto\r\n").nth(1).map(|rest| rest[..2].to_owned());
    // Numbers of clients are others.
    let numberless = |reply: &str| {
        reply
            .lines()
            .map(|line| if line.starts_with(':') { ":" } else { line }.to_owned())
            .collect::<Vec<_>>()
    };
    numberless(direct) == numberless(through)
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
    for trouble in TROUBLES {
        let outcome = try_with(seed, trouble).with_context(|| format!("GATE_SEED={seed}, {trouble:?}"))?;
        println!("{trouble:?}: {outcome:?}");
        ensure!(outcome.refused > 0, "{trouble:?} refuses nothing");
        ensure!(outcome.lost > 0 || !trouble.kills, "{trouble:?} costs nothing");
    }
    Ok(())
}

fn try_with(seed: u64, trouble: Trouble) -> Result<Outcome> {
    let direct = store_with_users()?;
    let behind = store_with_users()?;
    let tenant = format!("{}\nburst = \"30ms\"", EVERYONE.replace("unlimited", trouble.quota));
    let tenant = if trouble.quota == "unlimited" { EVERYONE.to_owned() } else { tenant };
    let gate = Listening::gate("resp", behind.address, "max_dedicated = \"2\"", &tenant)?;
    let addresses = [direct.address, behind.address, gate.address];
    let stop = AtomicBool::new(false);
    let mut rng = Rng::new(seed);
    let mut number = 0;
    let count = if std::env::var_os("GATE_LONG").is_some() { LONG } else { BATCHES };
    let batches: Vec<_> = (0..count).map(|_| batch(&mut rng, &mut number)).collect();
    let mut admin = behind.connect()?;
    let mut set_most = |most: usize| {
        admin.write_all(format!("CONFIG SET maxclients {most}\r\n").as_bytes())?;
        read_until(&mut admin, b"+OK\r\n")
    };
    if trouble.is_full {
        gate.ask(b"PING\r\n", b"+PONG\r\n")?;
        set_most(FEW)?;
    }
    let outcome = thread::scope(|scope| -> Result<Outcome> {
        let killer =
            trouble.kills.then(|| scope.spawn(|| kill_connections(addresses[1], &stop, Rng::new(seed + 1))));
        let compared = batches.chunks(CLIENTS).try_fold(Outcome::default(), |sum, batches| {
            let clients: Vec<_> = batches
                .iter()
                .map(|batch| scope.spawn(move || compare(addresses[0], addresses[2], batch, trouble)))
                .collect();
            clients.into_iter().try_fold(sum, |sum, client| {
                let Outcome { refused, lost } = client.join().expect("it does not panic")?;
                Ok(Outcome { refused: sum.refused + refused, lost: sum.lost + lost })
            })
        });
        stop.store(true, Ordering::Relaxed);
        killer.map_or(Ok(()), |killer| killer.join().expect("it does not panic"))?;
        compared
    })?;
    if trouble.is_full {
        set_most(10_000)?;
    }
    let expected: HashMap<_, _> = places(&direct)?.into_iter().collect();
    for (key, database) in places(&behind)? {
        let direct = expected.get(&key);
        ensure!(direct == Some(&database), "{key} is in database {database}, and should be in {direct:?}");
    }
    Ok(outcome)
}

/// True if a refusal may be the beginning of the end of a connection: a change of its session that did not happen.
fn ends(request: &str, reply: &str, trouble: Trouble) -> bool {
    let is_of_session = !["SET ", "HGETALL ", "ACL "].iter().any(|other| request.starts_with(other));
    is_of_session && is_refusal(reply, trouble)
}

/// Sends a batch to a store and through gate, whose replies must be the store's or refusals. There are as many unless the connection has
/// ended: behind a reply that says so, or since the store has closed its own.
fn compare(direct: SocketAddr, gate: SocketAddr, batch: &Batch, trouble: Trouble) -> Result<Outcome> {
    let directly = replies(direct, batch)?;
    let through = replies(gate, batch)?;
    let requests: Vec<_> = batch.requests.iter().map(String::as_str).chain(["RESET", "QUIT"]).collect();
    let said = || format!("{directly:#?}, through gate {through:#?}\n{requests:#?}");
    ensure!(directly.len() == requests.len(), "the store has left something out: {}", said());
    ensure!(through.len() <= requests.len(), "there are too many: {}", said());
    let lost = requests.len() - through.len();
    let mut answered = requests.iter().zip(&through);
    let is_told = through.last().is_some_and(|last| is_refusal(last, trouble));
    let may_end = trouble.kills || is_told && answered.any(|(request, reply)| ends(request, reply, trouble));
    ensure!(lost == 0 || may_end, "{lost} are missing: {}", said());
    let mut refused = 0;
    for ((request, directly), through) in requests.iter().zip(&directly).zip(&through) {
        if !is_same(directly, through) {
            ensure!(
                is_refusal(through, trouble),
                "{request}: {directly:?}, through gate {through:?}\n{}",
                said()
            );
            refused += 1;
        }
    }
    Ok(Outcome { refused, lost })
}
