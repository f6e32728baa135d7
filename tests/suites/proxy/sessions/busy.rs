//! One command that goes through a large key, or frees one, of one tenant: the others wait, and are answered.

use std::cell::Cell;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::EVERYONE;

/// Commands that go through what a key holds, each of another kind. Their keys are filled when the test is long.
const WALKS: [&str; 13] = [
    "LPOS list none",
    "LRANGE list 0 -1",
    "LREM list 0 none",
    "SMEMBERS set",
    "SINTERSTORE to set set",
    "SORT set BY nosort",
    "HGETALL hash",
    "ZUNION 2 sorted sorted",
    "ZRANGEBYSCORE sorted -inf +inf",
    "BITCOUNT string",
    "KEYS *",
    "EVAL \"for i = 1, 3e6 do redis.call('get', 'none') end\" 0",
    "MEMORY USAGE set SAMPLES 0",
];
/// Commands that free what a key holds, likewise. `a` is another key.
const FREES: [&str; 14] = [
    "SET set x",
    "MSET sorted x b x",
    "SETEX list 100 x",
    "EXPIRE set -1",
    "PEXPIREAT hash 1",
    "RENAME a set",
    "COPY a set REPLACE",
    "SUNIONSTORE set none",
    "ZRANGESTORE sorted none 0 1",
    "LTRIM list 1 0",
    "ZREMRANGEBYSCORE sorted -inf +inf",
    "XADD stream MAXLEN 0 * f v",
    "DEL hash",
    "FLUSHALL",
];
/// The store does nothing for longer than `store_timeout` while it has a command, as one does that is busy with it.
const SILENCE: Duration = Duration::from_millis(130);
const SERVICE: &str = "store_timeout = \"100ms\"\nslow_timeout = \"20s\"";

fn fill(store: &Listening, count: u32) -> Result<()> {
    for first in (0..count).step_by(PART) {
        let last = count.min(first + PART as u32);
        let script = format!(
            "EVAL \"for i = {first} + 1, {last} do redis.call('rpush', 'list', i) redis.call('sadd', 'set', i) \
             redis.call('hset', 'hash', i, i) redis.call('zadd', 'sorted', i, i) \
             redis.call('xadd', 'stream', '*', 'f', i) end redis.call('setrange', 'string', 100 * {last}, 'x') return 7\" 0\r\n"
        );
        store.ask(script.as_bytes(), b":7\r\n")?;
    }
    Ok(())
}

/// So many elements are made at once.
const PART: usize = 50_000;

fn is_long() -> bool {
    std::env::var_os("GATE_LONG").is_some()
}

/// One client asks for each command, and others for something short behind it. `prepare` fills the store's keys first.
fn others_are_answered(commands: &[&str], prepare: impl Fn(&Listening) -> Result<()>) -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with("threads = \"2\"", "resp", store.address, SERVICE, EVERYONE)?;
    for command in commands {
        prepare(&store)?;
        let mut others = (0..4).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
        let mut client = gate.connect()?;
        // The store is filled past gate, which may have missed an answer meanwhile.
        for client in others.iter_mut().chain([&mut client]) {
            wait_until("it is not served", || {
                client.write_all(b"PING\r\n")?;
                Ok(read_until(client, b"\r\n")? == b"+PONG\r\n")
            })?;
        }
        if !is_long() {
            store.stall()?;
        }
        client.write_all(format!("{command}\r\nECHO the-end\r\n").as_bytes())?;
        for (number, other) in others.iter_mut().enumerate() {
            // One of them needs a connection of its own, and one a new identity.
            let request = ["INCR n\r\n", "GET b\r\n", "SELECT 3\r\n", "WATCH b\r\n"][number];
            other.write_all(request.as_bytes())?;
        }
        if !is_long() {
            let stalled = Instant::now();
            wait_until("time passes", || Ok(stalled.elapsed() > SILENCE))?;
            store.signal(Signal::SIGCONT)?;
        }
        for (number, other) in others.iter_mut().enumerate() {
            let said = String::from_utf8(read_until(other, b"\r\n")?)?;
            ensure!(!said.starts_with('-'), "{number} behind {command}: {said}");
        }
        let said = read_until(&mut client, b"the-end\r\n")?;
        ensure!(!said.starts_with(b"-"), "{command}: {}", String::from_utf8_lossy(&said));
    }
    Ok(())
}

#[test]
fn a_walk_over_a_large_key_costs_no_other_its_answer() -> Result<()> {
    let is_filled = Cell::new(false);
    others_are_answered(&WALKS, |store| {
        if !is_filled.replace(true) {
            fill(store, if is_long() { 1_000_000 } else { 10 })?;
        }
        Ok(())
    })
}

#[test]
fn the_freeing_of_a_large_key_costs_no_other_its_answer() -> Result<()> {
    others_are_answered(&FREES, |store| {
        store.ask(b"FLUSHALL ASYNC\r\nSET a x\r\nSET b x\r\nDEL n\r\n", b"+OK\r\n+OK\r\n+OK\r\n:0\r\n")?;
        fill(store, if is_long() { 1_000_000 } else { 10 })
    })
}
