//! Requests to Redis.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::hostile::give_way;
use super::traffic::{Ends, Reads, Traffic, resp};
use super::{Behaviour, Group, Hostile, Origin, Store};

fn row(name: &'static str, does: &'static str, run: fn(&Hostile<'_>) -> Result<()>) -> Behaviour {
    Behaviour::new(Group::Redis, Store::Redis, name, does, run)
}

/// Stores the data that behaviours ask for: 100,000 keys, and one of each type that is large.
pub(super) fn fill(store: SocketAddr) -> Result<()> {
    run_script(store, FILL, "")
}

/// Runs a script that answers `OK`.
pub(super) fn run_script(store: SocketAddr, script: &str, argument: &str) -> Result<()> {
    let mut stream = TcpStream::connect(store)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(&resp(&["EVAL", script, "0", argument]))?;
    let mut said = [0; 5];
    stream.read_exact(&mut said)?;
    ensure!(&said == b"+OK\r\n", "{:?}", String::from_utf8_lossy(&said));
    Ok(())
}

const FILL: &str = "
    for i = 1, 100000 do
        redis.call('SET', 'hostile:' .. i, 'x')
        redis.call('RPUSH', 'hostile:list', 'element-' .. i)
        redis.call('HSET', 'hostile:hash', 'field-' .. i, i)
        redis.call('SADD', 'hostile:set', 'member-' .. i)
    end
    redis.call('SETRANGE', 'hostile:large', 1048575, 'x')
    redis.call('SETRANGE', 'hostile:huge', 8388607, 'x')
    return redis.status_reply('OK')";

/// A script that runs for so many milliseconds.
fn busy_script(millis: u32) -> String {
    format!(
        "local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end \
         local e = now() + {millis} repeat until now() > e return 1"
    )
}

fn mget(keys: u64) -> Vec<u8> {
    let keys: Vec<_> = (0..keys).map(|number| format!("hostile:{number}")).collect();
    let words: Vec<&str> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    resp(&words)
}

/// Runs one beside the other, each in a thread.
fn at_once(
    hostile: &Hostile<'_>,
    one: impl Fn(&Hostile<'_>) -> Result<()> + Sync,
    other: impl Fn(&Hostile<'_>) -> Result<()>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let one = scope.spawn(|| {
            give_way();
            one(hostile)
        });
        other(hostile)?;
        one.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })
}

pub(super) fn behaviours() -> Vec<Behaviour> {
    let mut behaviours = ordinary();
    behaviours.extend(expensive());
    behaviours.extend(dedicated());
    behaviours.extend(administration());
    behaviours
}

/// Requests that are cheap one by one.
#[rustfmt::skip]
fn ordinary() -> Vec<Behaviour> {
    vec![
        row("a hot key in Redis", "Reads one key 20,000 times a second over 50 connections.", |hostile| {
            hostile.send(&Traffic::new(50, 2_000).batch(10), |_| resp(&["GET", "hostile:hot"]))
        }),
        row("a hot key that is written", "Increments one key 20,000 times a second over 50 connections.", |hostile| {
            hostile.send(&Traffic::new(50, 2_000).batch(10), |_| resp(&["INCR", "hostile:hot"]))
        }),
        row("cache-busting keys in Redis", "Reads a new key each time, 20,000 times a second.", |hostile| {
            hostile.send(&Traffic::new(50, 2_000).batch(10), |number| resp(&["GET", &format!("hostile:new:{number}")]))
        }),
        row("a pipeline of refusals in Redis", "Sends 50,000 requests a second in pipelines of 500 and reads the answers.", |hostile| {
            hostile.send(&Traffic::new(4, 100).batch(500), |_| resp(&["GET", "hostile:none"]))
        }),
        row("pipelines that are not read", "Sends pipelines of 10,000 requests on 10 connections and reads nothing.", |hostile| {
            hostile.send(&Traffic::new(10, 20).batch(10_000).reads(Reads::Nothing), |_| resp(&["GET", "hostile:none"]))
        }),
        row("requests to Redis as fast as they go", "Sends pipelines of 100 requests on 8 connections, as fast as it may.", |hostile| {
            hostile.send(&Traffic::new(8, 20_000).batch(100), |_| resp(&["GET", "hostile:none"]))
        }),
        row("wrong passwords", "Tries 2,000 passwords a second over 20 connections.", |hostile| {
            hostile.send(&Traffic::new(20, 2_000), |number| resp(&["AUTH", "hostile", &format!("guess-{number}")]))
        }),
        row("wrong passwords of the unknown", "An unknown source tries 1,000 passwords a second, each on a new connection.", |hostile| {
            hostile.send(&Traffic::new(100, 1_000).ends(Ends::Answered), |number| {
                resp(&["AUTH", "hostile", &format!("guess-{number}")])
            })
        }).by(Origin::Unknown),
        row("malformed requests", "Sends what is no request over 1,000 connections a second.", |hostile| {
            hostile.send(&Traffic::new(100, 1_000).ends(Ends::Answered), |number| {
                [&b"*1000000000\r\n"[..], b"*1\r\n$-5\r\n", b"*2\r\n:1\r\n", b"\x16\x03\x01\x02\x00", b"*1\r\n$4\r\nPINGxx"]
                    [number as usize % 5].to_vec()
            })
        }),
        row("databases and names", "Sends `SELECT`, `HELLO 3`, `CLIENT SETNAME` and `RESET` 5,000 times a second.", |hostile| {
            hostile.send(&Traffic::new(50, 500).batch(10), |number| match number % 4 {
                0 => resp(&["SELECT", &(number % 16).to_string()]),
                1 => resp(&["HELLO", "3"]),
                2 => resp(&["CLIENT", "SETNAME", "hostile"]),
                _ => resp(&["RESET"]),
            })
        }),
        row("the polite tenant's keys in Redis", "Overwrites and deletes the polite tenant's keys 1,000 times a second.", |hostile| {
            hostile.send(&Traffic::new(5, 1_000), |number| {
                let key = format!("polite:{}", number % 16);
                if number % 2 == 0 { resp(&["SET", &key, "another"]) } else { resp(&["DEL", &key]) }
            })
        }),
    ]
}

/// Requests that keep Redis busy, one by one.
#[rustfmt::skip]
fn expensive() -> Vec<Behaviour> {
    vec![
        row("`KEYS`", "Lists all 100,000 keys 50 times a second.", |hostile| {
            hostile.send(&Traffic::new(5, 50), |_| resp(&["KEYS", "*"]))
        }),
        row("`SCAN` with a huge count", "Walks over all keys, 10,000 at a time, 100 times a second.", |hostile| {
            hostile.send(&Traffic::new(5, 100), |_| resp(&["SCAN", "0", "COUNT", "10000"]))
        }),
        row("huge ranges", "Reads a list of 100,000 elements 50 times a second.", |hostile| {
            hostile.send(&Traffic::new(5, 50), |_| resp(&["LRANGE", "hostile:list", "0", "-1"]))
        }),
        row("huge hashes and sets", "Reads a hash and a set of 100,000 members 50 times a second.", |hostile| {
            hostile.send(&Traffic::new(5, 50), |number| {
                if number % 2 == 0 { resp(&["HGETALL", "hostile:hash"]) } else { resp(&["SMEMBERS", "hostile:set"]) }
            })
        }),
        row("sorting", "Sorts a list of 100,000 elements 50 times a second.", |hostile| {
            hostile.send(&Traffic::new(5, 50), |_| resp(&["SORT", "hostile:list", "ALPHA", "LIMIT", "0", "1"]))
        }),
        row("a pipeline of sorting", "Sends 5,000 `SORT` of a list of 100 elements in pipelines of 500.", |hostile| {
            let elements: Vec<_> = (0..100).map(|number| (number * 7 % 100).to_string()).collect();
            let words: Vec<&str> = ["RPUSH", "hostile:short"].into_iter().chain(elements.iter().map(String::as_str)).collect();
            hostile.send(&Traffic::new(1, 10).batch(500).first(resp(&words)), |_| resp(&["SORT", "hostile:short"]))
        }),
        row("unions of large sets", "Stores the union of two sets of 100,000 members 20 times a second.", |hostile| {
            hostile.send(&Traffic::new(5, 20), |_| resp(&["SUNIONSTORE", "hostile:union", "hostile:set", "hostile:set"]))
        }),
        row("huge `MGET`", "Reads 10,000 keys in one request, 50 times a second.", |hostile| {
            let request = mget(10_000);
            hostile.send(&Traffic::new(5, 50), |_| request.clone())
        }),
        row("`MGET` within its burst", "Reads 200 keys in one request, 500 times a second.", |hostile| {
            let request = mget(200);
            hostile.send(&Traffic::new(5, 500), |_| request.clone())
        }),
        row("huge values", "Writes 8 MB 10 times a second.", |hostile| {
            let value = vec![b'v'; 8_000_000];
            let request = resp(&[&b"SET"[..], b"hostile:new", &value]);
            hostile.send(&Traffic::new(5, 10), |_| request.clone())
        }),
        row("values of a megabyte", "Writes 1,000,000 bytes 100 times a second.", |hostile| {
            let value = vec![b'v'; 1_000_000];
            let request = resp(&[&b"SET"[..], b"hostile:new", &value]);
            hostile.send(&Traffic::new(5, 100), |_| request.clone())
        }),
        row("reads of huge values", "Reads 8 MiB 20 times a second over 5 connections.", |hostile| {
            hostile.send(&Traffic::new(5, 20), |_| resp(&["GET", "hostile:huge"]))
        }),
        row("removal of large keys", "Copies a set of 100,000 members and deletes the copy 10 times a second.", |hostile| {
            hostile.send(&Traffic::new(1, 10).batch(2), |number| {
                if number % 2 == 0 { resp(&["COPY", "hostile:set", "hostile:copy"]) } else { resp(&["DEL", "hostile:copy"]) }
            })
        }),
        row("scripts", "Runs scripts of 50 ms, 10 times a second.", |hostile| {
            let request = resp(&["EVAL", &busy_script(50), "0"]);
            hostile.send(&Traffic::new(2, 10), |_| request.clone())
        }),
        row("scripts by one who may", "A tenant to whom nothing is denied runs scripts of 50 ms, 10 times a second.", |hostile| {
            let request = resp(&["EVAL", &busy_script(50), "0"]);
            hostile.send(&Traffic::new(2, 10), |_| request.clone())
        }).by(Origin::Privileged),
    ]
}

/// Requests that take a dedicated connection to the store.
#[rustfmt::skip]
fn dedicated() -> Vec<Behaviour> {
    vec![
        row("transactions", "Runs 200 transactions of 100 commands a second over 20 connections.", |hostile| {
            let commands: Vec<u8> = (0..100).flat_map(|number| resp(&["INCR", &format!("hostile:count:{number}")])).collect();
            let request = [resp(&["MULTI"]), commands, resp(&["EXEC"])].concat();
            hostile.send(&Traffic::new(20, 200), |_| request.clone())
        }),
        row("transactions without end", "Begins a transaction on 500 connections and goes on adding to it.", |hostile| {
            hostile.send(&Traffic::new(500, 5_000).first(resp(&["MULTI"])), |_| resp(&["SET", "hostile:queued", "value"]))
        }),
        row("requests on connections of its own", "Sends `UNWATCH`, then reads 20,000 times a second over 50 connections.", |hostile| {
            hostile.send(&Traffic::new(50, 2_000).batch(10).first(resp(&["UNWATCH"])), |_| resp(&["GET", "hostile:none"]))
        }),
        row("watched keys", "Watches 16 keys of the polite tenant on 300 connections.", |hostile| {
            let keys: Vec<_> = (0..16).map(|number| format!("polite:{number}")).collect();
            let words: Vec<&str> = ["WATCH"].into_iter().chain(keys.iter().map(String::as_str)).collect();
            hostile.send(&Traffic::held(300, resp(&words)), |_| Vec::new())
        }),
        row("blocked clients", "Waits with `BLPOP` on 500 connections.", |hostile| {
            hostile.send(&Traffic::held(500, resp(&["BLPOP", "hostile:nothing", "0"])), |_| Vec::new())
        }),
        row("waits for replicas", "Sends `WAIT 1 100` on 50 connections, again and again.", |hostile| {
            hostile.send(&Traffic::new(50, 500), |_| resp(&["WAIT", "1", "100"]))
        }),
        row("subscribers that do not read", "Publishes 16 KB 500 times a second to 20 subscribers that do not read.", |hostile| {
            at_once(hostile, |hostile| {
                hostile.send(&Traffic::held(20, resp(&["SUBSCRIBE", "news"])).reads(Reads::Nothing), |_| Vec::new())
            }, |hostile| {
                let request = resp(&["PUBLISH", "news", &"n".repeat(16_000)]);
                hostile.send(&Traffic::new(1, 500), |_| request.clone())
            })
        }),
        row("many patterns", "Subscribes 200 connections to 50 patterns each, and publishes 1,000 times a second.", |hostile| {
            at_once(hostile, |hostile| {
                let patterns: Vec<_> = (0..50).map(|number| format!("*{number}")).collect();
                let words: Vec<&str> = ["PSUBSCRIBE"].into_iter().chain(patterns.iter().map(String::as_str)).collect();
                hostile.send(&Traffic::held(200, resp(&words)), |_| Vec::new())
            }, |hostile| {
                hostile.send(&Traffic::new(1, 1_000), |number| resp(&["PUBLISH", &format!("news{}", number % 50), "x"]))
            })
        }),
        row("RESP3 pushes that are not read", "Has every written key told to 20 clients that do not read, and writes 1,000 a second.", |hostile| {
            at_once(hostile, |hostile| {
                let first = [resp(&["HELLO", "3"]), resp(&["CLIENT", "TRACKING", "ON", "BCAST"])].concat();
                hostile.send(&Traffic::held(20, first).reads(Reads::Nothing), |_| Vec::new())
            }, |hostile| {
                hostile.send(&Traffic::new(2, 100).batch(10), |number| resp(&["SET", &format!("hostile:pushed:{number}"), "x"]))
            })
        }),
        row("requests without answers", "Sends `CLIENT REPLY OFF`, then writes 20,000 times a second over 10 connections.", |hostile| {
            let first = resp(&["CLIENT", "REPLY", "OFF"]);
            hostile.send(&Traffic::new(10, 2_000).batch(10).first(first), |_| resp(&["SET", "hostile:quiet", "x"]))
        }),
    ]
}

/// Requests that are the operator's.
#[rustfmt::skip]
fn administration() -> Vec<Behaviour> {
    vec![
        row("`FLUSHALL`", "Empties the store 20 times a second.", |hostile| {
            hostile.send(&Traffic::new(1, 20), |_| resp(&["FLUSHALL"]))
        }),
        row("`FLUSHALL` in a script", "Empties the store from a script 20 times a second.", |hostile| {
            hostile.send(&Traffic::new(1, 20), |_| resp(&["EVAL", "return redis.call('FLUSHALL')", "0"]))
        }),
        row("`FLUSHALL` in a transaction", "Empties the store in a transaction 20 times a second.", |hostile| {
            let request = [resp(&["MULTI"]), resp(&["FLUSHALL"]), resp(&["EXEC"])].concat();
            hostile.send(&Traffic::new(1, 20), |_| request.clone())
        }),
        row("`CONFIG SET`", "Sets a password, a memory limit and a client limit.", |hostile| {
            hostile.send(&Traffic::new(2, 20), |number| match number % 3 {
                0 => resp(&["CONFIG", "SET", "maxclients", "1"]),
                1 => resp(&["CONFIG", "SET", "maxmemory", "1"]),
                _ => resp(&["CONFIG", "SET", "requirepass", "secret"]),
            })
        }),
        row("`CLIENT PAUSE` and `CLIENT KILL`", "Pauses and disconnects all clients 20 times a second.", |hostile| {
            hostile.send(&Traffic::new(2, 20), |number| {
                if number % 2 == 0 { resp(&["CLIENT", "PAUSE", "100"]) } else { resp(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "NO"]) }
            })
        }),
        row("`SHUTDOWN`", "Shuts the store down.", |hostile| {
            hostile.send(&Traffic::new(1, 10), |_| resp(&["SHUTDOWN", "NOSAVE"]))
        }),
        row("`MONITOR` that is not read", "Sends `MONITOR` on 10 connections and reads nothing.", |hostile| {
            hostile.send(&Traffic::held(10, resp(&["MONITOR"])).reads(Reads::Nothing), |_| Vec::new())
        }),
        row("`MONITOR` by one who may", "A tenant to whom nothing is denied sends `MONITOR` on 10 connections and reads nothing.", |hostile| {
            hostile.send(&Traffic::held(10, resp(&["MONITOR"])).reads(Reads::Nothing), |_| Vec::new())
        }).by(Origin::Privileged),
        row("`KEYS` by one who may", "A tenant to whom nothing is denied lists all 100,000 keys 50 times a second.", |hostile| {
            hostile.send(&Traffic::new(5, 50), |_| resp(&["KEYS", "*"]))
        }).by(Origin::Privileged),
    ]
}
