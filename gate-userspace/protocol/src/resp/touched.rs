//! The keys that a request touches, for clients bound to certain keys: exactly those that it names, or they are unknown.
//!
//! Unlike what prices and the hot cache need to know of a request, nothing here may be guessed. A request is told to touch
//! only what it names if its command is one of those whose keys are all among its arguments, all of these are at hand, and
//! they are read as Redis reads them. Scripts, commands about the whole store or about other clients, and commands that are
//! not known are never told so.

use super::args::Args;
use super::command::{Command, KeySpec};
use super::request::Request;
use crate::Class;
use crate::own::OwnKeys;

/// Something that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched<'b> {
    /// A key.
    Key(&'b [u8]),
    /// The prefix of the keys that `SORT` looks up for the elements that it sorts.
    Beginning(&'b [u8]),
    /// A channel that it publishes or subscribes to.
    Channel(&'b [u8]),
    /// A pattern of channels.
    Channels(&'b [u8]),
}

impl Touched<'_> {
    /// True if it is one of `own`, or only names such keys. Channels count as keys, but for those by which Redis itself tells
    /// what becomes of keys.
    #[must_use]
    pub fn is_own(self, own: &OwnKeys) -> bool {
        match self {
            Self::Key(key) | Self::Beginning(key) => own.has(key),
            Self::Channel(channel) => own.has(channel) && !may_be_notice(channel),
            Self::Channels(pattern) => {
                let literal = OwnKeys::literal(pattern);
                own.has(literal) && !may_be_notice(literal)
            }
        }
    }
}

/// True if a channel that begins so may be one by which Redis tells what becomes of keys.
fn may_be_notice(beginning: &[u8]) -> bool {
    NOTICES.iter().any(|notice| beginning.starts_with(notice) || notice.starts_with(beginning))
}

/// Keyspace notifications, and the invalidations of `CLIENT TRACKING`.
const NOTICES: [&[u8]; 3] = [b"__keyspace@", b"__keyevent@", b"__redis__:"];

impl Request {
    /// True if `may` agrees to everything that it can touch; `bytes` begin where it does. False where there may be
    /// more than is named.
    pub fn touches_only<'b>(&self, bytes: &'b [u8], mut may: impl FnMut(Touched<'b>) -> bool) -> bool {
        let spec = self.command.spec();
        if KEYLESS.contains(&self.command) {
            return true;
        }
        let args = self.args(bytes);
        if CHANNELS.contains(&self.command) {
            let touched = |name| {
                if self.command == PSUBSCRIBE { Touched::Channels(name) } else { Touched::Channel(name) }
            };
            // What follows the channel of these is a message.
            let most = if PUBLISHES.contains(&self.command) { 1 } else { usize::MAX };
            let at_hand = !self.streamed || most == 1 && args.left() > 1;
            return at_hand && args.skip(1).take(most).all(|name| may(touched(name)));
        }
        if matches!(spec.class, Class::Script | Class::Admin | Class::Unknown) || spec.keys == KeySpec::None {
            return false;
        }
        let mut named = 0;
        for key in self.keys(bytes) {
            if !may(Touched::Key(key)) {
                return false;
            }
            named += 1;
        }
        if named == 0 || named != self.meta.keys {
            return false;
        }
        match self.command {
            SORT | SORT_RO => !self.streamed && sort(args, may),
            GEORADIUS | GEORADIUSBYMEMBER => !self.streamed && stores(args, may),
            // Its keys are what a real server takes for them, or what its documentation says.
            command => command.is_compared(),
        }
    }
}

/// `SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC | DESC] [ALPHA] [STORE destination]`
fn sort<'b>(args: Args<'b>, mut may: impl FnMut(Touched<'b>) -> bool) -> bool {
    let mut rest = args.skip(2);
    while let Some(word) = rest.next() {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        let agreed = if is("STORE") {
            rest.next().is_some_and(|key| may(Touched::Key(key)))
        } else if is("BY") || is("GET") {
            // Without an asterisk it names no key: `BY nosort`, `GET #`.
            rest.next().is_some_and(|pattern| match pattern.iter().position(|&byte| byte == b'*') {
                Some(at) => may(Touched::Beginning(&pattern[..at])),
                None => true,
            })
        } else if is("LIMIT") {
            rest.next().is_some() && rest.next().is_some()
        } else {
            is("ASC") || is("DESC") || is("ALPHA")
        };
        if !agreed {
            return false;
        }
    }
    true
}

/// `GEORADIUS key longitude latitude radius unit [...] [STORE key] [STOREDIST key]`; a member stands for both coordinates.
fn stores<'b>(args: Args<'b>, mut may: impl FnMut(Touched<'b>) -> bool) -> bool {
    let mut rest = args.skip(5);
    while let Some(word) = rest.next() {
        let stores = word.eq_ignore_ascii_case(b"STORE") || word.eq_ignore_ascii_case(b"STOREDIST");
        if stores && !rest.next().is_some_and(|key| may(Touched::Key(key))) {
            return false;
        }
    }
    true
}

const PSUBSCRIBE: Command = Command::named("psubscribe");
const SORT: Command = Command::named("sort");
const SORT_RO: Command = Command::named("sort_ro");
const GEORADIUS: Command = Command::named("georadius");
const GEORADIUSBYMEMBER: Command = Command::named("georadiusbymember");

/// Commands that touch no key, and no other client. `INFO` names no key; `CLIENT TRACKING` and `MONITOR` may.
const KEYLESS: [Command; 34] = [
    Command::named("asking"),
    Command::named("auth"),
    Command::named("client|getname"),
    Command::named("client|help"),
    Command::named("client|id"),
    Command::named("client|info"),
    Command::named("client|maint_notifications"),
    Command::named("client|no-touch"),
    Command::named("client|reply"),
    Command::named("client|setinfo"),
    Command::named("client|setname"),
    Command::named("command"),
    Command::named("discard"),
    Command::named("echo"),
    Command::named("exec"),
    Command::named("hello"),
    Command::named("info"),
    Command::named("lolwut"),
    Command::named("multi"),
    Command::named("ping"),
    Command::named("punsubscribe"),
    Command::named("quit"),
    Command::named("readonly"),
    Command::named("readwrite"),
    Command::named("reset"),
    Command::named("role"),
    Command::named("select"),
    Command::named("sunsubscribe"),
    Command::named("time"),
    Command::named("unsubscribe"),
    Command::named("unwatch"),
    Command::named("wait"),
    Command::named("waitaof"),
    Command::named("xgroup|help"),
];

/// Commands that name channels.
const CHANNELS: [Command; 5] = [
    Command::named("publish"),
    Command::named("spublish"),
    Command::named("subscribe"),
    Command::named("ssubscribe"),
    PSUBSCRIBE,
];

/// Those of them that name one, and a message.
const PUBLISHES: [Command; 2] = [Command::named("publish"), Command::named("spublish")];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Step;
    use crate::resp::{Decoder, Limits};

    /// The keys that a request touches; `None` if they are unknown.
    fn touched(line: &str) -> Option<Vec<String>> {
        let mut decoder = Decoder::new(Limits::default());
        let input = format!("{line}\r\n");
        let Step::Request { request, len } = decoder.next(input.as_bytes()) else { panic!("{line}") };
        let bytes = decoder.bytes(&request, &input.as_bytes()[..len]);
        let mut all = Vec::new();
        let known = request.touches_only(bytes, |touched| {
            let (mark, text) = match touched {
                Touched::Key(key) => ("", key),
                Touched::Beginning(text) => ("^", text),
                Touched::Channel(text) => ("@", text),
                Touched::Channels(text) => ("~", text),
            };
            all.push(format!("{mark}{}", String::from_utf8_lossy(text)));
            true
        });
        known.then_some(all)
    }

    #[test]
    fn what_a_request_touches_is_what_it_names() {
        for (line, expected) in [
            ("GET a", "a"),
            ("mset a 1 b 2", "a b"),
            ("RENAME a b", "a b"),
            ("COPY a b DB 1 REPLACE", "a b"),
            ("SORT a", "a"),
            ("SORT a BY nosort GET # GET w_* GET h->f LIMIT 0 1 ALPHA DESC STORE d", "a ^w_ d"),
            ("SORT a by W*->f store d store e", "a ^W d e"),
            ("SORT_RO a BY x:*:y", "a ^x:"),
            ("GEORADIUS a 1 2 3 m STORE b STOREDIST c", "a b c"),
            ("GEORADIUSBYMEMBER a STORE 3 m COUNT 1 ANY storedist c", "a c"),
            ("ZUNIONSTORE d 2 a b WEIGHTS 1 2", "d a b"),
            ("XREADGROUP GROUP g c BLOCK 0 STREAMS a b > >", "a b"),
            ("BLMPOP 0 2 a b LEFT", "a b"),
            ("OBJECT ENCODING a", "a"),
            ("MEMORY USAGE a", "a"),
            ("WATCH a b", "a b"),
            ("DUMP a", "a"),
            ("PING", ""),
            ("MULTI", ""),
            ("CLIENT ID", ""),
            ("client info", ""),
            ("SUBSCRIBE a b", "@a @b"),
            ("PSUBSCRIBE a* b", "~a* ~b"),
            ("PUBLISH a b", "@a"),
            ("UNSUBSCRIBE x", ""),
        ] {
            let expected: Vec<&str> = expected.split(' ').filter(|word| !word.is_empty()).collect();
            assert_eq!(touched(line).expect(line), expected, "{line}");
        }
    }

    #[test]
    fn channels_are_own_as_keys_are_but_not_notifications() {
        let own = OwnKeys::new(["web:", "_", "__keyspace@0__:web:"]);
        for (touched, expected) in [
            (Touched::Key(b"__keyspace@0__:x"), true),
            (Touched::Beginning(b"web:w_"), true),
            (Touched::Beginning(b"we"), false),
            (Touched::Channel(b"web:1"), true),
            (Touched::Channel(b"other"), false),
            (Touched::Channel(b"__keyspace@0__:web:1"), false),
            (Touched::Channel(b"__redis__:invalidate"), false),
            (Touched::Channels(b"web:*"), true),
            (Touched::Channels(b"*"), false),
            (Touched::Channels(b"_*"), false),
            (Touched::Channels(b"__key*"), false),
            (Touched::Channels(b"__keyspace@0__:web:*"), false),
            (Touched::Channels(b"_a*"), true),
        ] {
            assert_eq!(touched.is_own(&own), expected, "{touched:?}");
        }
    }

    #[test]
    fn what_may_touch_more_than_it_names_is_not_known() {
        for line in [
            "EVAL x 1 a",
            "EVAL_RO x 1 a",
            "FCALL f 1 a",
            "SCRIPT LOAD x",
            "FUNCTION LIST",
            "KEYS a*",
            "SCAN 0 MATCH a*",
            "RANDOMKEY",
            "DBSIZE",
            "FLUSHALL",
            "FLUSHDB",
            "SWAPDB 0 1",
            "MIGRATE h 1 a 0 1",
            "RESTORE-ASKING a 0 x",
            "DEBUG OBJECT a",
            "PFDEBUG ENCODING a",
            "OBJECT HELP",
            "OBJECT x a",
            "MEMORY DOCTOR",
            "XINFO x a",
            "MONITOR",
            "CLIENT",
            "CLIENT TRACKING on BCAST",
            "CLIENT CACHING yes",
            "CLIENT LIST",
            "CLIENT KILL 1",
            "CLIENT PAUSE 1",
            "CLIENT NO-EVICT on",
            "CONFIG GET a",
            "ACL LOG",
            "SLOWLOG GET",
            "LATENCY HISTORY a",
            "CLUSTER GETKEYSINSLOT 1 1",
            "PUBSUB CHANNELS",
            "PSYNC a 1",
            "JSON.GET a",
            // Newer than what the table is compared with.
            "HEXPIRE a 1 FIELDS 1 f",
            "HGETDEL a FIELDS 1 f",
            "HTTL a FIELDS 1 f",
            "LMPOP 0 LEFT",
            "LMPOP -1 a LEFT",
            "LMPOP x a LEFT",
            "XREAD NEW 1 STREAMS a 0",
            "SORT a STORE",
            "SORT a NEW b",
            "GEORADIUS a 1 2 3 m STORE",
            "GET",
        ] {
            assert_eq!(touched(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_streamed_is_known_if_its_keys_are_at_hand() {
        let long = "x".repeat(100);
        for (words, known) in [
            (&["SET", "a", &long][..], true),
            (&["MSET", "a", "1", "b", &long], true),
            (&["MSET", "a", &long, "b", "1"], false),
            (&["DEL", "a", &long, "b"], false),
            (&["SORT", "a", "STORE", &long], false),
            (&["SORT", "a", &long, "STORE", "b"], false),
            (&["GEORADIUS", "a", "1", "2", "3", "m", &long], false),
            (&["XREAD", "STREAMS", "a", &long], false),
            (&["SUBSCRIBE", "a", &long], false),
            (&["PUBLISH", &long, "a"], false),
            (&["LMPOP", "2", "a", &long, "LEFT"], false),
            (&["EVAL", "x", "1", "a", &long], false),
        ] {
            let mut input = format!("*{}\r\n", words.len());
            words.iter().for_each(|word| input += &format!("${}\r\n{word}\r\n", word.len()));
            let mut decoder = Decoder::new(Limits { gather: 64, ..Limits::default() });
            let Step::Request { request, len } = decoder.next(input.as_bytes()) else { panic!("{words:?}") };
            assert!(request.streamed, "{words:?}");
            let own = |touched| matches!(touched, Touched::Key(b"a" | b"b"));
            assert_eq!(request.touches_only(&input.as_bytes()[..len], own), known, "{words:?}");
        }
    }
}
