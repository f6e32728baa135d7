//! memcached's text protocol as a server speaks it: bytes in, bytes out. Pure.
//!
//! The store shares no code with gate's own codec, so that neither can hide the other's mistakes. Expiry
//! times are relative, whatever their size.

use std::str::FromStr;

use gate_common::units::Nanos;

use super::items::Items;

/// The result of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The command is incomplete.
    More,
    /// The command took so many bytes.
    Done(usize),
    /// So many bytes are no command.
    Skipped(usize),
    /// Nothing more is to be read.
    Quit,
}

/// Runs commands against the items, at one moment, and appends the answers.
pub(super) struct Executor<'a> {
    pub(super) items: &'a mut Items,
    pub(super) now: Nanos,
    pub(super) out: &'a mut Vec<u8>,
}

impl Executor<'_> {
    /// Runs the first command of `input`.
    pub(super) fn step(&mut self, input: &[u8]) -> Step {
        let Some(end) = input.iter().take(MAX_LINE).position(|&byte| byte == b'\n') else {
            if input.len() < MAX_LINE {
                return Step::More;
            }
            self.say("CLIENT_ERROR line too long");
            return Step::Quit;
        };
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        let mut words: Vec<&[u8]> =
            line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
        // Reads are always answered: to them it is a key like any other.
        let reads = words.first().is_some_and(|name| name.starts_with(b"get"));
        let quiet = !reads && words.pop_if(|word| *word == b"noreply").is_some();
        let before = self.out.len();
        let step = match words.split_first() {
            Some((name, words)) => match Storing::named(name) {
                Some(how) => self.store(how, words, input, end + 1),
                None => self.simple(name, words, end + 1),
            },
            None => {
                self.say("ERROR");
                Step::Done(end + 1)
            }
        };
        if quiet && step != Step::Quit {
            self.out.truncate(before);
        }
        step
    }

    /// A command that is one line, which ends at `end`.
    fn simple(&mut self, name: &[u8], words: &[&[u8]], end: usize) -> Step {
        let answer = match name {
            b"get" => self.get(words, false),
            b"gets" => self.get(words, true),
            b"delete" => match key(words) {
                Some(key) if self.items.remove(key, self.now) => "DELETED",
                Some(_) => "NOT_FOUND",
                None => BAD_FORMAT,
            },
            b"incr" => self.add(words, u64::wrapping_add),
            b"decr" => self.add(words, u64::saturating_sub),
            b"touch" => self.touch(words),
            b"flush_all" => {
                self.items.clear();
                "OK"
            }
            b"verbosity" => "OK",
            b"version" => concat!("VERSION gate-", env!("CARGO_PKG_VERSION")),
            b"stats" => {
                self.say(&format!("STAT cmd_get {}", self.items.reads()));
                self.say(&format!("STAT curr_items {}", self.items.len()));
                self.say(&format!("STAT bytes {}", self.items.bytes()));
                "END"
            }
            b"quit" => return Step::Quit,
            _ => "ERROR",
        };
        if !answer.is_empty() {
            self.say(answer);
        }
        Step::Done(end)
    }

    fn get(&mut self, keys: &[&[u8]], with_version: bool) -> &'static str {
        if keys.is_empty() {
            return "ERROR";
        }
        if keys.iter().any(|key| key.len() > MAX_KEY) {
            return BAD_FORMAT;
        }
        for key in keys {
            let Some(item) = self.items.read(key, self.now) else { continue };
            let version = if with_version { format!(" {}", item.version) } else { String::new() };
            let head = format!(" {} {}{version}\r\n", item.flags, item.value.len());
            for part in [b"VALUE ", *key, head.as_bytes(), &item.value, b"\r\n"] {
                self.out.extend_from_slice(part);
            }
        }
        "END"
    }

    /// `incr` and `decr`; says the new number itself.
    fn add(&mut self, words: &[&[u8]], with: fn(u64, u64) -> u64) -> &'static str {
        let (Some(key), Some(by)) = (key(words), number::<u64>(words, 1)) else {
            return "CLIENT_ERROR invalid numeric delta argument";
        };
        let Some(item) = self.items.get(key, self.now) else { return "NOT_FOUND" };
        let Some(old) = parse::<u64>(&item.value) else {
            return "CLIENT_ERROR cannot increment or decrement non-numeric value";
        };
        let flags = item.flags;
        let expires = item.expires;
        let new = with(old, by).to_string();
        self.items.put(key, flags, new.clone().into_bytes(), expires);
        self.say(&new);
        ""
    }

    fn touch(&mut self, words: &[&[u8]]) -> &'static str {
        let (Some(key), Some(expiry)) = (key(words), number(words, 1)) else { return BAD_FORMAT };
        let Some(item) = self.items.get(key, self.now) else { return "NOT_FOUND" };
        let flags = item.flags;
        let value = item.value.clone();
        self.items.put(key, flags, value, self.expires(expiry));
        "TOUCHED"
    }

    /// `key flags exptime bytes [version]`, and the value after the line, at `start`. After an error
    /// it cannot be known where the next command begins.
    fn store(&mut self, how: Storing, words: &[&[u8]], input: &[u8], start: usize) -> Step {
        let version = if how == Storing::Cas { number(words, 4) } else { Some(0) };
        let (Some(key), Some(flags), Some(expiry), Some(bytes), Some(version)) =
            (key(words), number(words, 1), number(words, 2), number::<usize>(words, 3), version)
        else {
            self.say(BAD_FORMAT);
            return Step::Quit;
        };
        if bytes > MAX_VALUE {
            self.say("SERVER_ERROR object too large for cache");
            return Step::Quit;
        }
        let end = start + bytes;
        match input.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => {
                self.say("CLIENT_ERROR bad data chunk");
                return Step::Quit;
            }
            None => return Step::More,
        }
        let expires = self.expires(expiry);
        let answer = self.put(how, key, flags, expires, version, &input[start..end]);
        self.say(answer);
        Step::Done(end + 2)
    }

    fn put(
        &mut self,
        how: Storing,
        key: &[u8],
        flags: u32,
        expires: Nanos,
        version: u64,
        value: &[u8],
    ) -> &'static str {
        let pending = self.items.get(key, self.now);
        let new = match (how, pending) {
            (Storing::Set, _) | (Storing::Add, None) | (Storing::Replace, Some(_)) => {
                (flags, value.to_vec(), expires)
            }
            (Storing::Cas, None) => return "NOT_FOUND",
            (Storing::Cas, Some(pending)) if pending.version != version => return "EXISTS",
            (Storing::Cas, Some(_)) => (flags, value.to_vec(), expires),
            (Storing::Append, Some(pending)) => {
                (pending.flags, [&pending.value, value].concat(), pending.expires)
            }
            (Storing::Prepend, Some(pending)) => {
                (pending.flags, [value, &pending.value].concat(), pending.expires)
            }
            _ => return "NOT_STORED",
        };
        if new.1.len() > MAX_VALUE {
            return "SERVER_ERROR object too large for cache";
        }
        self.items.put(key, new.0, new.1, new.2);
        "STORED"
    }

    fn expires(&self, seconds: i64) -> Nanos {
        match u64::try_from(seconds) {
            Ok(0) => Nanos::MAX,
            Ok(seconds) => self.now.saturating_add(Nanos::from_secs(seconds)),
            Err(_) => Nanos::ZERO,
        }
    }

    fn say(&mut self, line: &str) {
        self.out.extend_from_slice(line.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}

/// The commands that bring a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Storing {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

impl Storing {
    fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"set" => Self::Set,
            b"add" => Self::Add,
            b"replace" => Self::Replace,
            b"append" => Self::Append,
            b"prepend" => Self::Prepend,
            b"cas" => Self::Cas,
            _ => return None,
        })
    }
}

fn key<'a>(words: &[&'a [u8]]) -> Option<&'a [u8]> {
    words.first().copied().filter(|key| key.len() <= MAX_KEY)
}

fn number<T: FromStr>(words: &[&[u8]], place: usize) -> Option<T> {
    parse(words.get(place)?)
}

fn parse<T: FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
/// Holds more than 200 of the longest keys.
const MAX_LINE: usize = 64 << 10;
const MAX_KEY: usize = 250;
pub(super) const MAX_VALUE: usize = 1 << 20;
/// A command that is longer than this, its value included, will never be whole.
pub(super) const MAX_COMMAND: usize = MAX_LINE + MAX_VALUE + 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::*;

    /// Everything that `input` is answered, until it quits, and what is left of it.
    fn converse(items: &mut Items, input: &str) -> (String, usize) {
        let mut out = Vec::new();
        let mut rest = input.as_bytes();
        let mut executor = Executor { items, now: Nanos(1), out: &mut out };
        while let Step::Done(bytes) = executor.step(rest) {
            rest = &rest[bytes..];
        }
        (String::from_utf8(out).unwrap(), rest.len())
    }

    #[test]
    fn commands_are_answered_as_memcached_answers_them() {
        let mut items = Items::new(1 << 20);
        for (request, answered) in [
            ("get a\r\n", "END\r\n"),
            ("set a 7 0 2\r\nhi\r\n", "STORED\r\n"),
            ("get a b\r\n", "VALUE a 7 2\r\nhi\r\nEND\r\n"),
            ("gets a\r\n", "VALUE a 7 2 1\r\nhi\r\nEND\r\n"),
            ("cas a 0 0 1 9\r\nx\r\n", "EXISTS\r\n"),
            ("cas a 7 0 1 1\r\nx\r\n", "STORED\r\n"),
            ("cas z 7 0 1 1\r\nx\r\n", "NOT_FOUND\r\n"),
            ("add a 0 0 1\r\ny\r\n", "NOT_STORED\r\n"),
            ("append a 0 0 1\r\ny\r\nprepend a 0 0 1\r\nw\r\n", "STORED\r\nSTORED\r\n"),
            ("get a\r\n", "VALUE a 7 3\r\nwxy\r\nEND\r\n"),
            ("replace b 0 0 1\r\ny\r\n", "NOT_STORED\r\n"),
            ("add b 0 0 2\r\n41\r\n", "STORED\r\n"),
            ("incr b 1\r\ndecr b 100\r\n", "42\r\n0\r\n"),
            ("incr a 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
            ("incr b x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
            ("set c 0 -1 1\r\nx\r\nget c\r\n", "STORED\r\nEND\r\n"),
            ("touch b 0\r\ntouch q 0\r\n", "TOUCHED\r\nNOT_FOUND\r\n"),
            ("delete b\r\ndelete b\r\n", "DELETED\r\nNOT_FOUND\r\n"),
            ("set d 0 0 1 noreply\r\nx\r\ndelete a noreply\r\nget a d\n", "VALUE d 0 1\r\nx\r\nEND\r\n"),
            ("get noreply\r\n", "END\r\n"),
            ("get\r\n\r\nfrobnicate\r\n", "ERROR\r\nERROR\r\nERROR\r\n"),
            (
                "verbosity 1\r\nflush_all\r\nstats\r\n",
                "OK\r\nOK\r\nSTAT cmd_get 9\r\nSTAT curr_items 0\r\nSTAT bytes 0\r\nEND\r\n",
            ),
        ] {
            assert_eq!(converse(&mut items, request), (answered.to_owned(), 0), "{request:?}");
        }
    }

    #[test]
    fn what_is_not_whole_waits_and_what_is_wrong_ends_it() {
        let mut items = Items::new(1 << 20);
        for (request, answered, left) in [
            ("get a", "", 5),
            ("set a 0 0 5\r\nabc", "", 16),
            ("version\r\nget a", concat!("VERSION gate-", env!("CARGO_PKG_VERSION"), "\r\n"), 5),
            ("quit\r\nget a\r\n", "", 13),
            ("set a 0 0 1\r\nabc\r\n", "CLIENT_ERROR bad data chunk\r\n", 18),
            ("set a 0 0 -1\r\n", "CLIENT_ERROR bad command line format\r\n", 14),
            ("set a 0 0 9999999\r\n", "SERVER_ERROR object too large for cache\r\n", 19),
        ] {
            assert_eq!(converse(&mut items, request), (answered.to_owned(), left), "{request:?}");
        }
        let endless = "x".repeat(MAX_LINE);
        assert_eq!(converse(&mut items, &endless).0, "CLIENT_ERROR line too long\r\n");
    }

    proptest! {
        #[test]
        fn no_input_makes_it_panic(mut input in proptest::collection::vec(any::<u8>(), 0..300), line in "(set|get|cas|incr|touch)( [a-z0-9-]{0,5}){0,6}\r\n") {
            input.splice(0..0, line.bytes());
            let mut items = Items::new(1 << 20);
            let mut out = Vec::new();
            let mut rest = &input[..];
            while let Step::Done(bytes) = (Executor { items: &mut items, now: Nanos(1), out: &mut out }).step(rest) {
                rest = &rest[bytes..];
            }
        }
    }
}
