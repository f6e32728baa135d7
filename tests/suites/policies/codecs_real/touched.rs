//! Redis: the keys that a request touches, as gate sees them and as Redis names them, for every command that there is.

use std::collections::{BTreeMap, BTreeSet};

use gate_tests::store::Store;
use gate_userspace::protocol::resp::{Decoder, Limits, Step, Touched};
use gate_userspace::sim::rng::Rng;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame as _};

use super::redis::{Reader, array};

/// Requests of each command.
const EACH: u32 = 150;
/// Commands with keys that gate is never sure of: scripts, those for operators, and those between stores.
const NEVER_SURE: [&str; 10] = [
    "eval",
    "eval_ro",
    "evalsha",
    "evalsha_ro",
    "fcall",
    "fcall_ro",
    "migrate",
    "object|help",
    "pfdebug",
    "restore-asking",
];
/// Commands that look up keys beyond those that Redis counts as theirs, or take the last of several destinations.
const MORE_THAN_REDIS: [&str; 4] = ["sort", "sort_ro", "georadius", "georadiusbymember"];
/// Words that mean something somewhere.
const WORDS: [&str; 16] = [
    "STORE", "streams", "GET", "BY", "key:9", "a*", "w_*", "#", "nosort", "0", "1", "-1", "x", "BLOCK",
    "COUNT", "LIMIT",
];

/// A number below `end`.
fn below(rng: &mut Rng, end: u64) -> u64 {
    rng.bits() % end
}

/// The value of `name` in a map that is written as an array.
fn field<'f>(map: &'f OwnedFrame, name: &str) -> Option<&'f OwnedFrame> {
    let OwnedFrame::Array(parts) = map else { return None };
    parts.chunks_exact(2).find(|pair| pair[0].as_str() == Some(name)).map(|pair| &pair[1])
}

fn items(frame: Option<&OwnedFrame>) -> &[OwnedFrame] {
    match frame {
        Some(OwnedFrame::Array(items)) => items,
        _ => &[],
    }
}

/// Appends words for arguments as Redis documents them.
fn fill(arguments: &[OwnedFrame], rng: &mut Rng, words: &mut Vec<String>) {
    for argument in arguments {
        let text = |name| field(argument, name).and_then(|value| value.as_str());
        let has = |flag| items(field(argument, "flags")).iter().any(|name| name.as_str() == Some(flag));
        if has("optional") && below(rng, 2) == 0 {
            continue;
        }
        let times = if has("multiple") { 1 + below(rng, 3) } else { 1 };
        for time in 0..times {
            if let Some(token) = text("token").filter(|_| time == 0 || has("multiple_token")) {
                words.push(token.to_owned());
            }
            let number = || text("name").is_some_and(|name| name == "numkeys");
            match text("type").unwrap_or_default() {
                "key" => words.push(format!("key:{}", below(rng, 5))),
                "integer" if number() => words.push(COUNTED.to_owned()),
                "integer" | "double" | "unix-time" => words.push(below(rng, 4).to_string()),
                "pure-token" => {}
                "oneof" => {
                    let choices = items(field(argument, "arguments"));
                    let chosen = below(rng, choices.len() as u64) as usize;
                    fill(&choices[chosen..=chosen], rng, words);
                }
                "block" => fill(items(field(argument, "arguments")), rng, words),
                _ => words.push(WORDS[below(rng, WORDS.len() as u64) as usize].to_owned()),
            }
        }
    }
}

/// Stands for the number of keys that follow.
const COUNTED: &str = "numkeys";

/// A request of a command: mostly as it is documented.
fn request(name: &str, arguments: &[OwnedFrame], rng: &mut Rng) -> Vec<String> {
    let mut words: Vec<String> = name.split('|').map(str::to_owned).collect();
    let first = words.len();
    fill(arguments, rng, &mut words);
    for at in first..words.len() {
        if words[at] == COUNTED {
            let keys = words[at + 1..].iter().take_while(|word| word.starts_with("key:")).count() as u64;
            words[at] = if below(rng, 4) > 0 { keys } else { below(rng, 5) }.to_string();
        }
    }
    if below(rng, 3) == 0 {
        let at = first + below(rng, (words.len() - first) as u64 + 1) as usize;
        words.insert(at, WORDS[below(rng, WORDS.len() as u64) as usize].to_owned());
    }
    words
}

/// The keys that gate takes a request to touch; `None` if it is not sure.
fn touched(words: &[String]) -> Option<BTreeSet<String>> {
    let bytes = array(words);
    let Step::Request { request, .. } = Decoder::new(Limits::default()).next(&bytes) else {
        // Of a login with options that a Redis may do before it refuses them gate makes no request.
        assert!(words[0].eq_ignore_ascii_case("hello"), "{words:?}");
        return None;
    };
    let mut keys = BTreeSet::new();
    let sure = request.touches_only(&bytes, |touched| {
        if let Touched::Key(key) = touched {
            keys.insert(String::from_utf8_lossy(key).into_owned());
        }
        true
    });
    sure.then_some(keys)
}

#[test]
fn no_command_touches_a_key_that_gate_does_not_see() {
    let store = Store::redis().unwrap();
    let mut reader = Reader::open(&store).unwrap();
    let mut ask = |words: &[String]| decode(&reader.ask(words).unwrap()).unwrap().unwrap().0;
    let docs = ask(&["COMMAND".to_owned(), "DOCS".to_owned()]);
    let mut commands = BTreeMap::new();
    for pair in items(Some(&docs)).chunks_exact(2) {
        let subcommands = items(field(&pair[1], "subcommands"));
        for pair in [pair].into_iter().chain(subcommands.chunks_exact(2)) {
            commands.insert(pair[0].as_str().unwrap(), items(field(&pair[1], "arguments")));
        }
    }
    assert!(commands.len() > 300, "{} commands", commands.len());
    let mut rng = Rng::new(7, 0);
    let mut judged = 0;
    let mut unsure = BTreeSet::new();
    for (name, arguments) in commands {
        let mut has_keys = false;
        let mut is_sure = false;
        for _ in 0..EACH {
            let words = request(name, arguments, &mut rng);
            let asked = ["COMMAND", "GETKEYS"].into_iter().map(str::to_owned);
            let named: BTreeSet<String> = match ask(&asked.chain(words.iter().cloned()).collect::<Vec<_>>()) {
                OwnedFrame::Array(keys) => keys.iter().map(|key| key.as_str().unwrap().to_owned()).collect(),
                OwnedFrame::Error(error) if error.contains("no key arguments") => BTreeSet::new(),
                // It would not run.
                OwnedFrame::Error(_) => continue,
                other => panic!("{words:?}: {other:?}"),
            };
            // Redis counts the channels of a shard as keys, and gate as channels.
            let named = if name.starts_with('s') && name.ends_with("scribe") || name == "spublish" {
                BTreeSet::new()
            } else {
                named
            };
            judged += 1;
            has_keys |= !named.is_empty();
            let Some(seen) = touched(&words) else { continue };
            is_sure = true;
            if MORE_THAN_REDIS.contains(&name) {
                assert!(seen.is_superset(&named), "{words:?}: {named:?}, but gate sees {seen:?}");
            } else {
                assert_eq!(seen, named, "{words:?}");
            }
        }
        if has_keys && !is_sure {
            unsure.insert(name);
        }
    }
    assert!(judged > 20_000, "{judged} judged");
    unsure.retain(|name| !NEVER_SURE.contains(name));
    assert!(unsure.is_empty(), "gate is never sure of {unsure:?}");
}
