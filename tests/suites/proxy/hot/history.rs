//! Histories of a few hot keys that clients of one gate see, while others write to them in every way there is.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use gate_common::abi::draw;
use gate_tests::fake_store::counter;
use gate_tests::linearizable::{self, Did, Operation};
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};

use super::{EAGER, EVERYONE};

const KEYS: usize = 3;
const CLIENTS: u64 = 8;
/// Of which this one has a connection to the store of its own, where that is possible.
const DEDICATED: u64 = 0;

/// How a protocol says it.
trait Dialect: Sync {
    /// Asks for a key's value by the `way`th way there is, and reads it.
    fn read(&self, client: &mut TcpStream, key: usize, way: u64) -> Result<Option<u64>>;
    /// Writes by the `way`th way there is; says what it did, or nothing if nobody answered.
    fn write(&self, client: &mut TcpStream, key: usize, value: u64, way: u64) -> Result<(Did, bool)>;
    /// The first request of a client that needs a dedicated connection.
    fn part(&self, client: &mut TcpStream) -> Result<()>;
}

struct Memcached;

impl Dialect for Memcached {
    fn read(&self, client: &mut TcpStream, key: usize, way: u64) -> Result<Option<u64>> {
        if way.is_multiple_of(2) {
            let said = ask(client, &format!("mg k{key} v\r\n"), "\r\n")?;
            return match said.strip_prefix("VA 10\r\n") {
                None if said == "EN\r\n" => Ok(None),
                None => bail!(said),
                Some("") => Ok(Some(rest(client, "\r\n")?.trim_end().parse()?)),
                Some(value) => Ok(Some(value.trim_end().parse()?)),
            };
        }
        let said = ask(client, &format!("get k{key}\r\n"), "END\r\n")?;
        said.lines().nth(1).map(|value| value.parse().context(said.clone())).transpose()
    }

    fn write(&self, client: &mut TcpStream, key: usize, value: u64, way: u64) -> Result<(Did, bool)> {
        let value = format!("{value:010}");
        let did = Did::Write(value.parse()?);
        let expected = match way % 8 {
            0 => {
                let said = ask(client, &format!("delete k{key}\r\n"), "\r\n")?;
                return Ok((Did::Delete(Some(said == "DELETED\r\n")), true));
            }
            1 => {
                client.write_all(format!("delete k{key} noreply\r\n").as_bytes())?;
                return Ok((Did::Delete(None), false));
            }
            2 => {
                client.write_all(format!("set k{key} 0 0 10 noreply\r\n{value}\r\n").as_bytes())?;
                return Ok((did, false));
            }
            3 => {
                // Quiet: nothing comes if all is well.
                client.write_all(format!("ms k{key} 10 q\r\n{value}\r\n").as_bytes())?;
                return Ok((did, false));
            }
            4 => (format!("ms k{key} 10\r\n{value}\r\n"), "HD\r\n"),
            // The key in other letters.
            5 => (format!("ms {} 10 b\r\n{value}\r\n", ["azA=", "azE=", "azI="][key]), "HD\r\n"),
            _ => (format!("set k{key} 0 0 10\r\n{value}\r\n"), "STORED\r\n"),
        };
        let said = ask(client, &expected.0, "\r\n")?;
        ensure!(said == expected.1, "{said}");
        Ok((did, true))
    }

    fn part(&self, _: &mut TcpStream) -> Result<()> {
        Ok(())
    }
}

struct Redis;

impl Dialect for Redis {
    fn read(&self, client: &mut TcpStream, key: usize, way: u64) -> Result<Option<u64>> {
        let (asked, missing) = match way % 4 {
            0 => (format!("GETRANGE k{key} 0 -1\r\n"), "$0\r\n\r\n"),
            _ => (format!("GET k{key}\r\n"), "$-1\r\n"),
        };
        let said = ask(client, &asked, "\r\n")?;
        match &*said {
            _ if said == missing => Ok(None),
            "$0\r\n" => rest(client, "\r\n").map(|_| None),
            "$10\r\n" => Ok(Some(rest(client, "\r\n")?.trim_end().parse()?)),
            _ => {
                let value = said.strip_prefix("$10\r\n").with_context(|| said.clone())?;
                Ok(Some(value.trim_end().parse()?))
            }
        }
    }

    fn write(&self, client: &mut TcpStream, key: usize, value: u64, way: u64) -> Result<(Did, bool)> {
        let value = format!("{value:010}");
        let did = Did::Write(value.parse()?);
        let (asked, expected) = match way % 8 {
            0 => {
                let said = ask(client, &format!("DEL k{key}\r\n"), "\r\n")?;
                return Ok((Did::Delete(Some(said == ":1\r\n")), true));
            }
            1 => (format!("EVAL \"redis.call('SET', 'k{key}', ARGV[1])\" 0 {value}\r\n"), "$-1\r\n"),
            2 => (format!("MSET other x k{key} {value}\r\n"), "+OK\r\n"),
            3 => (format!("SETRANGE k{key} 0 {value}\r\n"), ":10\r\n"),
            // For whoever is not yet, a connection of one's own.
            4 | 5 => {
                let asked = format!("MULTI\r\nSET k{key} {value}\r\nEXEC\r\n");
                let said = ask(client, &asked, "*1\r\n+OK\r\n")?;
                ensure!(said == "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n", "{said}");
                return Ok((did, true));
            }
            _ => (format!("SET k{key} {value}\r\n"), "+OK\r\n"),
        };
        let said = ask(client, &asked, "\r\n")?;
        ensure!(said == expected, "{asked}: {said}");
        Ok((did, true))
    }

    fn part(&self, client: &mut TcpStream) -> Result<()> {
        ask(client, "SELECT 0\r\n", "+OK\r\n").map(|_| ())
    }
}

fn connect(gate: SocketAddr) -> Result<TcpStream> {
    let client = TcpStream::connect(gate)?;
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(PATIENCE))?;
    Ok(client)
}

fn ask(client: &mut TcpStream, asked: &str, end: &str) -> Result<String> {
    client.write_all(asked.as_bytes())?;
    rest(client, end)
}

fn rest(client: &mut TcpStream, end: &str) -> Result<String> {
    Ok(String::from_utf8(read_until(client, end.as_bytes())?)?)
}

/// One client's share of the operations, each with its key.
fn take_part(
    dialect: &dyn Dialect,
    gate: SocketAddr,
    number: u64,
    share: u64,
    seed: u64,
    next_value: &AtomicU64,
    began: Instant,
) -> Result<Vec<(usize, Operation)>> {
    let now = || began.elapsed().as_nanos() as u64;
    let mut client = connect(gate)?;
    if number == DEDICATED {
        dialect.part(&mut client)?;
    }
    let mut random = seed ^ (number + 1) << 32;
    let mut history = Vec::new();
    // Nobody has answered this one yet.
    let mut unanswered: Option<usize> = None;
    for done in 0..share {
        random = draw::next(random);
        // Every so often a client without a connection of its own takes another one's place.
        if done % 1_000 == 999 && number != DEDICATED && unanswered.is_none() {
            client = connect(gate)?;
        }
        let key = unanswered.map_or((random >> 20) as usize % KEYS, |at: usize| {
            let (key, _): (usize, Operation) = history[at];
            key
        });
        let called = now();
        let writes = unanswered.is_none() && random >> 40 & 15 == 0;
        let (did, answered) = if writes {
            let way = if number == DEDICATED { random >> 50 } else { shared_way(random >> 50) };
            dialect.write(&mut client, key, next_value.fetch_add(1, Ordering::Relaxed), way)?
        } else {
            (Did::Read(dialect.read(&mut client, key, random >> 34)?), true)
        };
        let returned = if answered { now() } else { u64::MAX };
        // What comes later on the same connection is answered later.
        if let Some(at) = unanswered.take() {
            history[at].1.returned = returned;
        }
        unanswered = (!answered).then_some(history.len());
        history.push((key, Operation { called, returned, did }));
    }
    Ok(history)
}

/// Ways that do not need a connection of one's own: with one, a client has no part in hot keys any more.
const fn shared_way(way: u64) -> u64 {
    if matches!(way % 8, 4 | 5) { 7 } else { way }
}

fn linearizable(dialect: &dyn Dialect, protocol: &str, store: &Listening, seed: u64) -> Result<Listening> {
    let service = "hot_keys = { threshold = \"1\" }\nconnections = \"2\"\nshedding.enabled = \"off\"";
    let gate = Listening::gate_with(EAGER, protocol, store.address, service, EVERYONE)?;
    let operations: u64 = 100_000;
    let next_value = AtomicU64::new(1);
    let began = Instant::now();
    let histories: Vec<_> = std::thread::scope(|scope| {
        let part = |number| {
            let gate = gate.address;
            let next_value = &next_value;
            let share = operations / CLIENTS;
            scope.spawn(move || take_part(dialect, gate, number, share, seed, next_value, began))
        };
        let parts: Vec<_> = (0..CLIENTS).map(part).collect();
        parts.into_iter().map(|part| part.join().expect("it does not panic")).collect::<Result<_>>()
    })?;
    for key in 0..KEYS {
        let of_key = |&&(of, _): &&(usize, Operation)| of == key;
        let own: Vec<Operation> =
            histories.iter().flatten().filter(of_key).map(|&(_, operation)| operation).collect();
        ensure!(own.len() as u64 > operations / KEYS as u64 / 2);
        if let Err(wrong) = linearizable::check(&own) {
            let mut near: Vec<_> = own
                .iter()
                .filter(|other| other.returned >= wrong.called.saturating_sub(3_000_000))
                .filter(|other| other.called <= wrong.returned)
                .collect();
            near.sort_by_key(|operation| operation.called);
            let near = format!("{near:#?}");
            bail!("seed {seed}, key {key}: nothing explains {wrong:?} among {}", shown(near.as_bytes()));
        }
    }
    Ok(gate)
}

#[test]
fn every_key_of_memcached_has_a_linearizable_history() -> Result<()> {
    for seed in [1, 2, 3] {
        let store = Listening::memcached()?;
        check_sharing(&linearizable(&Memcached, "memcached", &store, seed)?)?;
    }
    Ok(())
}

#[test]
fn every_key_of_redis_has_a_linearizable_history() -> Result<()> {
    for seed in [4, 5, 6] {
        let store = Listening::redis()?;
        check_sharing(&linearizable(&Redis, "resp", &store, seed)?)?;
    }
    Ok(())
}

/// Fails unless many reads were answered from the cache and by others' flights: a history of reads that all went to the store
/// says nothing of either.
fn check_sharing(gate: &Listening) -> Result<()> {
    for name in ["cache-hits", "coalesced", "flights", "invalidated"] {
        let count = counter(gate, name)?;
        println!("{name}: {count}");
        ensure!(count > 100, "{name}: {count}");
    }
    Ok(())
}
