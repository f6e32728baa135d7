//! RESP as a server speaks it, as much as `redis-cli` and `redis-benchmark -t get,set` need: bytes in, bytes out.
//! Pure.
//!
//! Requests are read by gate's own decoder, which the suites hold against Redis itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use gate_common::units::Nanos;

use super::command::{MAX_COMMAND, MAX_VALUE, Step};
use super::items::Items;
use gate_protocol::resp::{Decoder, Limits, Version};

/// One client's.
#[derive(Debug)]
pub(super) struct Session {
    decoder: Decoder,
    version: Version,
    times: Arc<BTreeMap<String, Nanos>>,
    /// The name of the command that was run last, in lower case.
    pub(super) last_command: Vec<u8>,
}

impl Session {
    /// Commands that it does not know are answered with `OK` if they have a time.
    pub(super) fn new(times: Arc<BTreeMap<String, Nanos>>) -> Self {
        let limits = Limits { gather: MAX_COMMAND as u32, bulk: MAX_VALUE as u64, ..Limits::default() };
        Self { decoder: Decoder::new(limits), version: Version::Two, times, last_command: Vec::new() }
    }

    /// Runs the first command of `input` against the items, at one moment, and appends its answer.
    pub(super) fn step(&mut self, input: &[u8], items: &mut Items, now: Nanos, out: &mut Vec<u8>) -> Step {
        match self.decoder.next(input) {
            gate_protocol::Step::More { .. } => Step::More,
            gate_protocol::Step::Skip { len } => Step::Skipped(len),
            gate_protocol::Step::Request { request, .. } if request.streamed => {
                out.extend_from_slice(b"-ERR the request is too long\r\n");
                Step::Quit
            }
            gate_protocol::Step::Request { len, request } => {
                let args: Vec<&[u8]> = request.args(self.decoder.bytes(&request, &input[..len])).collect();
                self.last_command.clear();
                self.last_command.extend(args.first().copied().unwrap_or_default().to_ascii_lowercase());
                let times = &self.times;
                let mut command = Command { items, now, version: &mut self.version, times, out };
                if command.run(&args) { Step::Done(len) } else { Step::Quit }
            }
            gate_protocol::Step::Fault { fault, .. } => {
                fault.answer(out);
                Step::Quit
            }
            // Nothing is begun that is streamed.
            gate_protocol::Step::Body { .. } => Step::Quit,
        }
    }
}

/// One command, and what it works on.
struct Command<'a> {
    items: &'a mut Items,
    now: Nanos,
    version: &'a mut Version,
    times: &'a BTreeMap<String, Nanos>,
    out: &'a mut Vec<u8>,
}

impl Command<'_> {
    /// Answers it; false if that ends the connection.
    fn run(&mut self, args: &[&[u8]]) -> bool {
        let Some((name, args)) = args.split_first() else { return true };
        let name = name.to_ascii_lowercase();
        match (&name[..], args) {
            (b"get", [key]) => self.get(key),
            (b"mget", [_, ..]) => {
                self.length('*', args.len());
                args.iter().for_each(|key| self.get(key));
            }
            (b"set", [key, value, options @ ..]) => self.set(key, value, options),
            (b"del" | b"unlink", [_, ..]) => {
                let removed = args.iter().filter(|key| self.items.remove(key, self.now)).count();
                self.integer(removed as i64);
            }
            (b"exists", [_, ..]) => {
                let found = args.iter().filter(|key| self.items.get(key, self.now).is_some()).count();
                self.integer(found as i64);
            }
            (b"pttl", [key]) => self.ttl_ms(key),
            (b"ping", []) => self.line("+PONG"),
            (b"ping" | b"echo", [text]) => self.bulk(text),
            (b"flushall" | b"flushdb", _) => {
                self.items.clear();
                self.line("+OK");
            }
            (b"dbsize", []) => self.integer(self.items.len() as i64),
            (b"select", [b"0"]) | (b"client", [_, ..]) => self.line("+OK"),
            (b"select", [_]) => self.line("-ERR DB index is out of range"),
            (b"auth", [_, ..]) => self.line("-ERR AUTH <password> called without any password configured"),
            (b"reset", []) => {
                *self.version = Version::Two;
                self.line("+RESET");
            }
            (b"hello", _) => self.hello(args),
            (b"info", _) => self.info(),
            (b"command", [what]) if what.eq_ignore_ascii_case(b"count") => self.integer(0),
            (b"command", _) => self.length('*', 0),
            (b"config", [get, what]) if get.eq_ignore_ascii_case(b"get") => self.config(what),
            (b"quit", _) => {
                self.line("+OK");
                return false;
            }
            (name, _) => self.refuse(name),
        }
        true
    }

    fn get(&mut self, key: &[u8]) {
        match self.items.read(key, self.now) {
            Some(item) => bulk(&item.value, self.out),
            None => self.nothing(),
        }
    }

    /// `SET key value [EX seconds | PX milliseconds] [NX | XX]`.
    fn set(&mut self, key: &[u8], value: &[u8], mut options: &[&[u8]]) {
        let mut expires = Nanos::MAX;
        let mut only_if = None;
        while let [option, rest @ ..] = options {
            let option = option.to_ascii_lowercase();
            let number = || rest.first().and_then(|word| std::str::from_utf8(word).ok()?.parse::<u64>().ok());
            match (&option[..], number()) {
                (b"nx", _) => (only_if, options) = (Some(false), rest),
                (b"xx", _) => (only_if, options) = (Some(true), rest),
                (b"ex" | b"px", Some(count @ 1..)) => {
                    let each: u64 = if option == b"ex" { 1_000_000_000 } else { 1_000_000 };
                    expires = self.now.saturating_add(Nanos(count.saturating_mul(each)));
                    options = &rest[1..];
                }
                _ => return self.line("-ERR syntax error"),
            }
        }
        let is_there = self.items.get(key, self.now).is_some();
        if only_if.is_some_and(|wanted| wanted != is_there) {
            return self.nothing();
        }
        self.items.put(key, 0, value.to_vec(), expires);
        self.line("+OK");
    }

    /// Milliseconds that a key has left, -1 for one that never goes, -2 for none.
    fn ttl_ms(&mut self, key: &[u8]) {
        let left = match self.items.get(key, self.now) {
            None => -2,
            Some(item) if item.expires == Nanos::MAX => -1,
            Some(item) => (item.expires.saturating_sub(self.now).0 / 1_000_000) as i64,
        };
        self.integer(left);
    }

    fn hello(&mut self, args: &[&[u8]]) {
        match args {
            [] => {}
            [b"2"] => *self.version = Version::Two,
            [b"3"] => *self.version = Version::Three,
            [b"2" | b"3", ..] => return self.line("-ERR there are no users"),
            _ => return self.line("-NOPROTO unsupported protocol version"),
        }
        let is_three = *self.version == Version::Three;
        if is_three {
            self.length('%', 3)
        } else {
            self.length('*', 6)
        }
        for (name, text) in [("server", "gate"), ("version", env!("CARGO_PKG_VERSION"))] {
            self.bulk(name.as_bytes());
            self.bulk(text.as_bytes());
        }
        self.bulk(b"proto");
        self.integer(if is_three { 3 } else { 2 });
    }

    fn info(&mut self) {
        let text = format!(
            "# Server\r\nredis_version:7.0.0\r\ngate_version:{}\r\nredis_mode:standalone\r\n\
             # Memory\r\nused_memory:{}\r\n# Cluster\r\ncluster_enabled:0\r\n# Keyspace\r\ndb0:keys={}\r\n",
            env!("CARGO_PKG_VERSION"),
            self.items.bytes(),
            self.items.len()
        );
        self.bulk(text.as_bytes());
    }

    /// The question that `redis-benchmark` asks before it begins.
    fn config(&mut self, what: &[u8]) {
        let value: &[u8] = match what {
            b"save" => b"",
            b"appendonly" => b"no",
            _ => return self.length('*', 0),
        };
        self.length('*', 2);
        self.bulk(what);
        self.bulk(value);
    }

    fn refuse(&mut self, name: &[u8]) {
        let known = COMMANDS.contains(&name);
        let name = String::from_utf8_lossy(name).replace(['\r', '\n'], " ");
        if !known && self.times.contains_key(&name) {
            return self.line("+OK");
        }
        self.line(&if known {
            format!("-ERR wrong number of arguments for '{name}' command")
        } else {
            format!("-ERR unknown command '{name}'")
        });
    }

    fn nothing(&mut self) {
        self.line(if *self.version == Version::Three { "_" } else { "$-1" });
    }

    fn bulk(&mut self, bytes: &[u8]) {
        bulk(bytes, self.out);
    }

    fn integer(&mut self, number: i64) {
        self.line(&format!(":{number}"));
    }

    fn length(&mut self, kind: char, length: usize) {
        self.line(&format!("{kind}{length}"));
    }

    fn line(&mut self, line: &str) {
        self.out.extend_from_slice(line.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}

fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Those that take so many arguments and no others.
const COMMANDS: [&[u8]; 14] = [
    b"get", b"mget", b"set", b"del", b"unlink", b"exists", b"pttl", b"ping", b"echo", b"dbsize", b"select",
    b"client", b"auth", b"reset",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::*;

    /// Everything that `input` is answered, until it ends, and what is left of it.
    fn converse(session: &mut Session, items: &mut Items, now: Nanos, input: &[u8]) -> (String, usize) {
        let mut out = Vec::new();
        let mut rest = input;
        while let Step::Done(bytes) | Step::Skipped(bytes) = session.step(rest, items, now, &mut out) {
            rest = &rest[bytes..];
        }
        (String::from_utf8(out).unwrap(), rest.len())
    }

    #[test]
    fn commands_are_answered_as_redis_answers_them() {
        let mut session = Session::new(Arc::default());
        let mut items = Items::new(1 << 20);
        for (request, answered) in [
            ("PING\r\n\r\nping hello\r\nECHO x\r\n", "+PONG\r\n$5\r\nhello\r\n$1\r\nx\r\n"),
            ("GET a\r\n*2\r\n$3\r\nget\r\n$1\r\na\r\n", "$-1\r\n$-1\r\n"),
            ("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$4\r\n1\r\n2\r\nGET a\r\n", "+OK\r\n$4\r\n1\r\n2\r\n"),
            ("SET a x NX\r\nSET b x XX\r\nSET b y NX\r\nSET a z XX\r\n", "$-1\r\n$-1\r\n+OK\r\n+OK\r\n"),
            ("MGET a none b\r\n", "*3\r\n$1\r\nz\r\n$-1\r\n$1\r\ny\r\n"),
            ("EXISTS a a none\r\nDEL a none\r\nDEL a\r\nDBSIZE\r\n", ":2\r\n:1\r\n:0\r\n:1\r\n"),
            ("PTTL none\r\nPTTL b\r\nSET b y PX 1500\r\nPTTL b\r\n", ":-2\r\n:-1\r\n+OK\r\n:1500\r\n"),
            ("SET b y EX 2\r\nPTTL b\r\n", "+OK\r\n:2000\r\n"),
            ("SET b y EX\r\nSET b y EX 0\r\nSET b y KEEPTTL\r\n", &"-ERR syntax error\r\n".repeat(3)),
            (
                "GET\r\nSET a\r\n",
                "-ERR wrong number of arguments for 'get' command\r\n-ERR wrong number of arguments for 'set' command\r\n",
            ),
            ("ACL GETUSER default\r\n", "-ERR unknown command 'acl'\r\n"),
            (
                "HELLO 4\r\nHELLO 3 AUTH a b\r\n",
                "-NOPROTO unsupported protocol version\r\n-ERR there are no users\r\n",
            ),
            ("SELECT 0\r\nSELECT 1\r\n", "+OK\r\n-ERR DB index is out of range\r\n"),
            ("CONFIG GET save\r\nCONFIG GET maxmemory\r\n", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n*0\r\n"),
            ("COMMAND DOCS\r\nCOMMAND COUNT\r\n", "*0\r\n:0\r\n"),
            ("FLUSHALL\r\nGET b\r\n", "+OK\r\n$-1\r\n"),
        ] {
            let reply = converse(&mut session, &mut items, Nanos(1), request.as_bytes());
            assert_eq!(reply, (answered.to_owned(), 0), "{request:?}");
        }
    }

    #[test]
    fn a_missing_key_is_null_in_the_clients_version() {
        let mut session = Session::new(Arc::default());
        let mut items = Items::new(1 << 20);
        let mut ask = |request: &str| converse(&mut session, &mut items, Nanos(1), request.as_bytes()).0;
        let version = env!("CARGO_PKG_VERSION");
        let len = version.len();
        let hello = |kind: &str, proto: u8| {
            format!(
                "{kind}\r\n$6\r\nserver\r\n$4\r\ngate\r\n$7\r\nversion\r\n${len}\r\n{version}\r\n$5\r\nproto\r\n:{proto}\r\n"
            )
        };
        assert_eq!(ask("HELLO\r\nGET a\r\n"), hello("*6", 2) + "$-1\r\n");
        assert_eq!(ask("HELLO 3\r\nGET a\r\n"), hello("%3", 3) + "_\r\n");
        assert_eq!(ask("RESET\r\nGET a\r\n"), "+RESET\r\n$-1\r\n");
    }

    #[test]
    fn a_value_expires_when_it_should() {
        let mut session = Session::new(Arc::default());
        let mut items = Items::new(1 << 20);
        let mut ask = |ms, request: &str| {
            converse(&mut session, &mut items, Nanos::from_millis(ms), request.as_bytes()).0
        };
        assert_eq!(ask(0, "SET a x PX 10\r\n"), "+OK\r\n");
        assert_eq!(
            (ask(9, "GET a\r\n"), ask(10, "GET a\r\n")),
            ("$1\r\nx\r\n".to_owned(), "$-1\r\n".to_owned())
        );
    }

    #[test]
    fn what_is_not_whole_waits_and_what_is_wrong_ends_it() {
        let mut items = Items::new(1 << 20);
        let long = format!("*2\r\n$3\r\nGET\r\n${}\r\n", MAX_VALUE + 1);
        for (request, answered, left) in [
            ("*2\r\n$3\r\nGET\r\n$1\r\n", "", 17),
            ("PING", "", 4),
            ("QUIT\r\nPING\r\n", "+OK\r\n", 12),
            ("*x\r\nPING\r\n", "-ERR Protocol error: invalid multibulk length\r\n", 10),
            (&long, "-ERR Protocol error: invalid bulk length\r\n", long.len()),
        ] {
            let reply = converse(&mut Session::new(Arc::default()), &mut items, Nanos(1), request.as_bytes());
            assert_eq!(reply, (answered.to_owned(), left), "{request:?}");
        }
        // Each argument is short enough, and all together are not.
        let argument = format!("${MAX_VALUE}\r\n{}\r\n", "v".repeat(MAX_VALUE));
        let request = format!("*3\r\n$4\r\nMGET\r\n{}", argument.repeat(2));
        let reply = converse(&mut Session::new(Arc::default()), &mut items, Nanos(1), request.as_bytes()).0;
        assert_eq!(reply, "-ERR the request is too long\r\n");
    }

    proptest! {
        #[test]
        fn no_input_makes_it_panic(
            mut input in proptest::collection::vec(any::<u8>(), 0..300),
            line in "(SET|GET|HELLO|CONFIG|PTTL)( [a-z0-9-]{0,5}){0,6}\r\n",
        ) {
            input.splice(0..0, line.bytes());
            let mut session = Session::new(Arc::default());
            let mut items = Items::new(1 << 20);
            let mut out = Vec::new();
            let mut rest = &input[..];
            while let Step::Done(bytes) | Step::Skipped(bytes) =
                session.step(rest, &mut items, Nanos(1), &mut out)
            {
                rest = &rest[bytes..];
            }
        }
    }
}
