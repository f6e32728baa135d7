//! One dear command of Redis at a time, on keys of a million elements.
//!
//! Redis runs one command at a time, to its end, so that everybody waits for such a one, through gate as without it. What gate owes the
//! others is that none of their requests fails for it.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use anyhow::Result;

use super::hostile::connect;
use super::traffic::resp;
use super::{Behaviour, Group, Hostile, Origin, Store};

/// A command that is asked by one who may, after the store has been filled.
fn row(
    name: &'static str,
    does: &'static str,
    fill: &'static str,
    run: fn(&Hostile<'_>) -> Result<()>,
) -> Behaviour {
    let behaviour = Behaviour::new(Group::Dear, Store::Redis, name, does, run).by(Origin::Privileged);
    Behaviour { fill, may_wait: true, ..behaviour }
}

/// Sends a command and waits for its answer, again and again.
fn one_at_a_time(hostile: &Hostile<'_>, request: &[u8]) -> Result<()> {
    let mut stream = connect(hostile.origin.address(0), hostile.target)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(LOOK_EVERY))?;
    let request = [request, &resp(&["PING"])].concat();
    let mut piece = vec![0; 1 << 20];
    while !hostile.is_over() {
        stream.write_all(&request)?;
        hostile.count(1);
        // What comes last is the answer to the `PING`, unless that is refused.
        let mut last = Vec::new();
        while !last.ends_with(b"+PONG\r\n") && !hostile.is_over() {
            match stream.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(len) => {
                    last.extend_from_slice(&piece[len.saturating_sub(TAIL)..len]);
                    last.drain(..last.len().saturating_sub(TAIL));
                }
                // Its time is over, or not yet.
                Err(_) => {}
            }
        }
        std::thread::park_timeout(PAUSE);
    }
    Ok(())
}

/// The length of the answer to `PING`.
const TAIL: usize = 7;
const LOOK_EVERY: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(50);

const SET: &str = "for i = 1, ARGV[1], 1000 do local t = {} for j = i, i + 999 do t[#t + 1] = 'member-' .. j end \
                   redis.call('SADD', 'dear:set', unpack(t)) end return redis.status_reply('OK')";
const HASH: &str = "for i = 1, ARGV[1], 1000 do local t = {} for j = i, i + 999 do t[#t + 1] = 'field-' .. j t[#t + 1] = j end \
                    redis.call('HSET', 'dear:hash', unpack(t)) end return redis.status_reply('OK')";
const LIST: &str = "for i = 1, ARGV[1], 1000 do local t = {} for j = i, i + 999 do t[#t + 1] = 'element-' .. j end \
                    redis.call('RPUSH', 'dear:list', unpack(t)) end return redis.status_reply('OK')";
const SORTED: &str = "for i = 1, ARGV[1], 1000 do local t = {} for j = i, i + 999 do t[#t + 1] = j t[#t + 1] = 'member-' .. j end \
                      redis.call('ZADD', 'dear:sorted', unpack(t)) end return redis.status_reply('OK')";
const STRING: &str =
    "redis.call('SETBIT', 'dear:string', ARGV[1] * 800 - 1, 1) return redis.status_reply('OK')";
const KEYS: &str = "for i = 1, ARGV[1], 1000 do local t = {} for j = i, i + 999 do t[#t + 1] = 'dear:' .. j t[#t + 1] = 'x' end \
                    redis.call('MSET', unpack(t)) end return redis.status_reply('OK')";

#[rustfmt::skip]
pub(super) fn behaviours() -> Vec<Behaviour> {
    vec![
        row("`SMEMBERS`", "Reads a set.", SET, |hostile| one_at_a_time(hostile, &resp(&["SMEMBERS", "dear:set"]))),
        row("`SRANDMEMBER`", "Draws a million members of a set.", SET, |hostile| {
            one_at_a_time(hostile, &resp(&["SRANDMEMBER", "dear:set", "-1000000"]))
        }),
        row("`SUNIONSTORE`", "Stores the union of a set with itself.", SET, |hostile| {
            one_at_a_time(hostile, &resp(&["SUNIONSTORE", "dear:union", "dear:set", "dear:set"]))
        }),
        row("`COPY`", "Copies a set.", SET, |hostile| {
            one_at_a_time(hostile, &resp(&["COPY", "dear:set", "dear:copy", "REPLACE"]))
        }),
        row("`DEL`", "Deletes a set.", SET, |hostile| one_at_a_time(hostile, &resp(&["DEL", "dear:set"]))),
        row("`HGETALL`", "Reads a hash.", HASH, |hostile| one_at_a_time(hostile, &resp(&["HGETALL", "dear:hash"]))),
        row("`LRANGE`", "Reads a list.", LIST, |hostile| one_at_a_time(hostile, &resp(&["LRANGE", "dear:list", "0", "-1"]))),
        row("`LPOS`", "Looks for an element that a list has not.", LIST, |hostile| {
            one_at_a_time(hostile, &resp(&["LPOS", "dear:list", "none"]))
        }),
        row("`SORT`", "Sorts a list by its letters.", LIST, |hostile| {
            one_at_a_time(hostile, &resp(&["SORT", "dear:list", "ALPHA", "LIMIT", "0", "1"]))
        }),
        row("`ZRANGE`", "Reads a sorted set with its scores.", SORTED, |hostile| {
            one_at_a_time(hostile, &resp(&["ZRANGE", "dear:sorted", "0", "-1", "WITHSCORES"]))
        }),
        row("`ZUNIONSTORE`", "Stores the union of a sorted set with itself.", SORTED, |hostile| {
            one_at_a_time(hostile, &resp(&["ZUNIONSTORE", "dear:union", "2", "dear:sorted", "dear:sorted"]))
        }),
        row("`BITCOUNT`", "Counts the bits of a string with 100 bytes for each element.", STRING, |hostile| {
            one_at_a_time(hostile, &resp(&["BITCOUNT", "dear:string"]))
        }),
        row("`KEYS *`", "Lists as many keys.", KEYS, |hostile| one_at_a_time(hostile, &resp(&["KEYS", "*"]))),
        row("`EXEC`", "Looks 20 times for an element that a list has not, in one transaction.", LIST, |hostile| {
            let look = resp(&["LPOS", "dear:list", "none"]).repeat(20);
            one_at_a_time(hostile, &[resp(&["MULTI"]), look, resp(&["EXEC"])].concat())
        }),
        row("`EVAL`", "Looks 20 times for an element that a list has not, in one script.", LIST, |hostile| {
            let look = "for i = 1, 20 do redis.call('LPOS', 'dear:list', 'none') end return 1";
            one_at_a_time(hostile, &resp(&["EVAL", look, "0"]))
        }),
    ]
}
