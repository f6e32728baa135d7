//! Redis: what the table says of its commands.

use std::collections::HashSet;

use gate_tests::store::Store;
use gate_userspace::protocol::Access;
use gate_userspace::protocol::resp::{COMPARED_WITH, Command, Decoder, Limits, Request, State, Step};
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame as _};

use super::redis::{Reader, array, text};

/// The reply to `line` as a tree, by another decoder.
pub(super) fn tree(reader: &mut Reader, line: &str) -> OwnedFrame {
    let reply = reader.ask(&line.split(' ').collect::<Vec<_>>()).unwrap();
    decode(&reply).unwrap().unwrap().0
}

/// The codec's reading of one command, with these words.
fn read(words: &[impl AsRef<[u8]>]) -> (Request, Vec<String>) {
    let stream = array(words);
    let Step::Request { request, .. } = Decoder::new(Limits::default()).next(&stream) else {
        panic!("no request")
    };
    let keys = request.keys(&stream).map(text).collect();
    (request, keys)
}

/// A command as Redis itself describes it.
pub(super) struct Described {
    pub(super) name: String,
    /// How many words it has, its name included; at least so many if it is below zero.
    pub(super) arity: i64,
    pub(super) flags: HashSet<String>,
    categories: HashSet<String>,
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) step: i64,
    /// Everything that is said of its keys.
    pub(super) key_flags: HashSet<String>,
    /// True if its keys are channels.
    pub(super) not_keys: bool,
}

fn words(frame: &OwnedFrame) -> HashSet<String> {
    let OwnedFrame::Array(words) = frame else { panic!("not words: {frame:?}") };
    words.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// All words in a tree.
fn all_words(frame: &OwnedFrame, to: &mut HashSet<String>) {
    match frame {
        OwnedFrame::Array(parts) => parts.iter().for_each(|part| all_words(part, to)),
        other => to.extend(other.as_str().map(str::to_owned)),
    }
}

pub(super) fn describe(frame: &OwnedFrame, to: &mut Vec<Described>) {
    let OwnedFrame::Array(parts) = frame else { panic!("not a command: {frame:?}") };
    let number =
        |at: usize| if let OwnedFrame::Integer(number) = parts[at] { number } else { panic!("no number") };
    let name = parts[0].as_str().unwrap().to_owned();
    let mut key_flags = HashSet::new();
    all_words(&parts[8], &mut key_flags);
    to.push(Described {
        name,
        arity: number(1),
        flags: words(&parts[2]),
        categories: words(&parts[6]),
        first: number(3),
        last: number(4),
        step: number(5),
        not_keys: key_flags.contains("not_key"),
        key_flags,
    });
    if let OwnedFrame::Array(subcommands) = &parts[9] {
        subcommands.iter().for_each(|frame| describe(frame, to));
    }
}

#[test]
fn the_table_says_what_redis_says_of_its_commands() {
    let store = Store::redis().unwrap();
    let mut described = Vec::new();
    let mut reader = Reader::open(&store).unwrap();
    let info = tree(&mut reader, "INFO server");
    let version = format!("redis_version:{COMPARED_WITH}.");
    assert!(info.as_str().is_some_and(|info| info.contains(&version)), "this is no {version}");
    let OwnedFrame::Array(commands) = tree(&mut reader, "COMMAND") else { panic!("no commands") };
    commands.iter().for_each(|frame| describe(frame, &mut described));
    let mut unseen: HashSet<&str> = Command::all().map(Command::name).collect();
    for command in &described {
        let name = &command.name[..];
        // Arguments that are numbers, so that the second says how many keys there are.
        let arguments = (1..=12).map(|number| number.to_string());
        let line: Vec<String> = name.split('|').map(str::to_owned).chain(arguments).collect();
        let (request, keys) = read(&line);
        let known = request.command.name();
        assert!(
            known == name || name.strip_prefix(known).is_some_and(|sub| sub.starts_with('|')),
            "{name}: {known}"
        );
        unseen.remove(known);
        check_access(command, request.meta.access);
        check_state(command, &request);
        if command.first > 0
            && !command.not_keys
            && !["migrate", "zunionstore", "zinterstore", "zdiffstore"].contains(&name)
        {
            let last = if command.last < 0 { line.len() as i64 + command.last } else { command.last };
            let places = (command.first..=last).step_by(command.step as usize);
            let expected: Vec<&str> = places.map(|place| &line[place as usize][..]).collect();
            assert_eq!(keys, expected, "{name}");
        }
    }
    assert!(described.len() > 300, "{} commands", described.len());
    let uncompared: HashSet<&str> =
        Command::all().filter(|command| !command.is_compared()).map(Command::name).collect();
    assert_eq!(unseen, uncompared, "Redis does not know these; the table says that it does not know those");
}

fn check_access(command: &Described, access: Access) {
    let name = &command.name[..];
    // Read unless an option names a key to store into, which the other test has.
    const MAY_STORE: [&str; 3] = ["sort", "georadius", "georadiusbymember"];
    // Redis calls these neither reads nor writes.
    const ANYTHING: [&str; 17] = [
        "acl|deluser",
        "acl|load",
        "acl|setuser",
        "eval",
        "evalsha",
        "fcall",
        "exec",
        "debug",
        "failover",
        "replicaof",
        "slaveof",
        "psync",
        "sync",
        "module",
        "module|load",
        "module|loadex",
        "module|unload",
    ];
    let parents = ["client", "function", "module", "xgroup", "module|help"];
    if MAY_STORE.contains(&name) {
        assert_eq!(access, Access::Read, "{name}");
    } else if command.flags.contains("write") {
        assert!(access.writes(), "{name}: {access:?}");
    } else if ANYTHING.contains(&name) {
        assert_eq!(access, Access::WriteAny, "{name}");
    } else if command.flags.contains("readonly") {
        assert!(matches!(access, Access::Read | Access::Neither), "{name}: {access:?}");
        assert!(
            access == Access::Read || !command.categories.contains("@read") || command.first == 0,
            "{name}"
        );
    } else if !parents.contains(&name) {
        assert_eq!(access, Access::Neither, "{name}");
    }
}

fn check_state(command: &Described, request: &Request) {
    let name = &command.name[..];
    let has = |category: &str| command.categories.contains(category);
    // What concerns a connection and says nothing of it.
    const STATELESS: [&str; 4] = ["ping", "echo", "command", "client|help"];
    let of_any =
        name.starts_with("command|") || ["client|kill", "client|list", "client|unblock"].contains(&name);
    let expected = match () {
        () if STATELESS.contains(&name) || of_any => Some(State::Shared),
        () if ["client|pause", "client|unpause"].contains(&name) => Some(State::Pause),
        () if ["xread", "xreadgroup"].contains(&name) => Some(State::Shared),
        () if has("@blocking") => Some(State::Blocking),
        () if has("@transaction") => Some(State::Transaction),
        () if command.flags.contains("pubsub") && command.flags.contains("noscript") => Some(State::Pubsub),
        () => None,
    };
    if let Some(expected) = expected {
        assert_eq!(request.state, expected, "{name}");
    } else if has("@connection") {
        assert_ne!(request.state, State::Shared, "{name}");
    }
}

#[test]
fn keys_are_those_that_redis_finds() {
    let store = Store::redis().unwrap();
    let mut reader = Reader::open(&store).unwrap();
    for line in [
        "GET a",
        "SET a 1 EX 10",
        "MGET a b c",
        "MSET a 1 b 2",
        "MSETNX a 1 b 2",
        "DEL a b",
        "RENAME a b",
        "BLPOP a b 0",
        "BLMOVE a b LEFT RIGHT 0",
        "BITOP AND d a b",
        "PFMERGE d a b",
        "SINTERSTORE d a b",
        "OBJECT ENCODING a",
        "MEMORY USAGE a",
        "XINFO STREAM a",
        "XGROUP CREATE a g $",
        "EVAL script 2 a b c",
        "EVALSHA sha 1 a c",
        "EVAL_RO script 2 a b c",
        "FCALL f 1 a b",
        "ZUNIONSTORE d 2 a b WEIGHTS 1 2",
        "ZDIFFSTORE d 1 a",
        "ZINTER 2 a b WITHSCORES",
        "ZINTERCARD 2 a b LIMIT 1",
        "SINTERCARD 2 a b",
        "LMPOP 2 a b LEFT",
        "BLMPOP 0 2 a b LEFT",
        "ZMPOP 1 a MIN",
        "BZMPOP 0 1 a MIN",
        "XREAD COUNT 2 BLOCK 0 STREAMS a b 0 0",
        "XREADGROUP GROUP STREAMS c NOACK STREAMS a >",
        "GEOSEARCHSTORE d a FROMMEMBER m BYRADIUS 1 m",
        "ZRANGESTORE d a 0 1",
        "SORT_RO a BY x",
        "LCS a b",
        "COPY a b",
        "WATCH a b",
    ] {
        let reply = tree(&mut reader, &format!("COMMAND GETKEYS {line}"));
        let OwnedFrame::Array(found) = reply else { panic!("{line}: {reply:?}") };
        let found: Vec<&str> = found.iter().map(|key| key.as_str().unwrap()).collect();
        assert_eq!(read(&line.split(' ').collect::<Vec<_>>()).1, found, "{line}");
    }
}
