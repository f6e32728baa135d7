//! Redis: commands that the table calls bounded do what their own words say and no more, whatever their keys hold.

use std::collections::HashSet;

use gate_tests::store::Store;
use gate_userspace::protocol::resp::{Command, Decoder, Limits, Request, Step};
use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame as _};

use super::commands::{Described, describe, tree};
use super::redis::{Reader, array};

/// Bounded by the elements that they name or count, of which Redis says "for each" or "returned".
const BY_REQUEST: [&str; 20] = [
    "blmpop",
    "blpop",
    "brpop",
    "bzmpop",
    "geoadd",
    "geopos",
    "getrange",
    "lmpop",
    "lrange",
    "msetnx",
    "pfcount",
    "ssubscribe",
    "subscribe",
    "substr",
    "xrange",
    "xread",
    "xreadgroup",
    "xrevrange",
    "zmpop",
    "zrevrange",
];
/// They write whole keys, where there was none, or leave what was there to another thread.
const REPLACE_NOTHING: [&str; 3] = ["msetnx", "setnx", "unlink"];
/// Keys of each type, with so many elements.
const ELEMENTS: usize = 2_000;
const SIZES: [(&str, &str); 6] = [
    ("string", "STRLEN"),
    ("list", "LLEN"),
    ("set", "SCARD"),
    ("hash", "HLEN"),
    ("sorted", "ZCARD"),
    ("stream", "XLEN"),
];

fn all_commands(reader: &mut Reader) -> Vec<Described> {
    let mut described = Vec::new();
    let OwnedFrame::Array(commands) = tree(reader, "COMMAND") else { panic!("no commands") };
    commands.iter().for_each(|frame| describe(frame, &mut described));
    described
}

fn read(words: &[String]) -> Request {
    match Decoder::new(Limits::default()).next(&array(words)) {
        Step::Request { request, .. } => request,
        step => panic!("{words:?}: {step:?}"),
    }
}

/// The complexity that Redis' own documentation states.
fn complexity(reader: &mut Reader, name: &str) -> String {
    fn find(frame: &OwnedFrame) -> Option<String> {
        let OwnedFrame::Array(parts) = frame else { return None };
        let of_this = parts.iter().position(|part| part.as_str() == Some("complexity"));
        let of_this = of_this.and_then(|at| parts.get(at + 1)?.as_str().map(str::to_owned));
        of_this.or_else(|| parts.iter().find_map(find))
    }
    find(&tree(reader, &format!("COMMAND DOCS {name}"))).unwrap_or_default()
}

#[test]
fn a_bounded_command_is_what_redis_calls_fast() {
    let store = Store::redis().unwrap();
    let mut reader = Reader::open(&store).unwrap();
    let mut bounded = 0;
    for command in all_commands(&mut reader) {
        let name = &command.name[..];
        let words: Vec<_> = name.split('|').map(str::to_owned).collect();
        // A subcommand that has no row of its own counts as its parent.
        if !read(&words).command.is_bounded() {
            continue;
        }
        bounded += 1;
        let complexity = complexity(&mut reader, name);
        let is_fast = command.flags.contains("fast")
            || complexity.starts_with("O(1)")
            || complexity.starts_with("O(log(N))")
            || BY_REQUEST.contains(&name)
            // A command with subcommands says nothing of all of them at once; the end of a pause, that those who waited go on.
            || ["object", "client|unpause"].contains(&name);
        assert!(is_fast, "{name}: {complexity}");
        // The store says of a key whether it is overwritten or removed as a whole.
        let replaces = command.key_flags.iter().any(|flag| ["OW", "RM"].contains(&&flag[..]));
        assert!(!replaces || REPLACE_NOTHING.contains(&name), "{name} replaces keys");
    }
    assert!(bounded > 100, "{bounded} commands");
    assert!(!Command::UNKNOWN.is_bounded());
    let newer: HashSet<_> = Command::all().filter(|command| !command.is_compared()).collect();
    let keyed = newer.iter().filter(|command| command.name().starts_with('h'));
    assert!(keyed.into_iter().all(|command| !command.is_bounded()), "nothing has compared them");
}

fn fill(reader: &mut Reader) {
    let script = "redis.call('flushall') redis.call('setrange', 'string', ARGV[1] - 1, 'x') for i = 1, ARGV[1] do \
                  redis.call('rpush', 'list', 'e' .. i) redis.call('sadd', 'set', 'e' .. i) \
                  redis.call('hset', 'hash', 'e' .. i, i) redis.call('zadd', 'sorted', i, 'e' .. i) \
                  redis.call('xadd', 'stream', i .. '-1', 'f', i) end";
    reader.ask(&["EVAL", script, "0", &ELEMENTS.to_string()]).unwrap();
}

/// The first key that has lost more than a few of its elements.
fn shrunk(reader: &mut Reader) -> Option<&'static str> {
    let shrunk = SIZES.iter().find(|(key, size)| {
        let OwnedFrame::Integer(left) = tree(reader, &format!("{size} {key}")) else { return true };
        left < ELEMENTS as i64 - 500
    });
    shrunk.map(|(key, _)| *key)
}

#[test]
fn a_bounded_command_leaves_large_keys_large() {
    let store = Store::redis().unwrap();
    let mut reader = Reader::open(&store).unwrap();
    let mut tried = 0;
    let mut freeing = HashSet::new();
    for command in all_commands(&mut reader) {
        let name = &command.name[..];
        if command.first != 1 || command.not_keys {
            continue;
        }
        fill(&mut reader);
        for ((key, _), filler) in SIZES.iter().flat_map(|size| ["1", "0", "-1"].map(|filler| (size, filler)))
        {
            let count = command.arity.unsigned_abs() as usize;
            let is_key = |at: i64| {
                let last = if command.last < 0 { count as i64 + command.last } else { command.last };
                (command.first..=last).contains(&at) && (at - command.first) % command.step == 0
            };
            let words = (1..count as i64).map(|at| if is_key(at) { key } else { filler }.to_string());
            let words: Vec<String> = [name.to_owned()].into_iter().chain(words).collect();
            let is_bounded = read(&words).command.is_bounded();
            reader.ask(&words).unwrap();
            tried += 1;
            if let Some(key) = shrunk(&mut reader) {
                assert!(!is_bounded || name == "unlink", "{words:?} freed the {key}");
                freeing.insert(name.to_owned());
                fill(&mut reader);
            }
        }
    }
    assert!(tried > 1_000, "{tried} requests");
    // The judge sees what it should.
    for name in
        ["set", "getset", "getdel", "setex", "mset", "expire", "pexpireat", "del", "ltrim", "zinterstore"]
    {
        assert!(freeing.contains(name), "{name} frees nothing: {freeing:?}");
    }
}
