//! Requests: what is one, what is not, and that it does not matter how they arrive.

use proptest::prelude::*;

use crate::resp::*;
use crate::tests::{Event, cut_everywhere, decode};
use crate::{Access, Class, RowsBy};

const LIMITS: Limits = Limits { inline: 40, args: 8, bulk: 100, gather: 64 };

/// `words` as an array of bulk strings.
fn array(words: &[&str]) -> Vec<u8> {
    let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{bulks}", words.len()).into_bytes()
}

fn events(stream: &[u8]) -> Vec<Event<Request, Fault>> {
    cut_everywhere(stream, || Decoder::new(LIMITS), |decoder, input| decoder.next(input), |_| true)
}

/// The request that `line` is, its words between blanks, and its keys.
fn one(line: &str) -> (Request, Vec<String>) {
    let stream = array(&line.split(' ').collect::<Vec<_>>());
    let mut decoder = Decoder::new(Limits::default());
    let Step::Request { len, request } = decoder.next(&stream) else { panic!("{line} is no request") };
    assert_eq!((len, request.meta.bytes as usize, request.streamed), (stream.len(), len, false), "{line}");
    let words = request.args(&stream).map(|arg| String::from_utf8(arg.to_vec()).unwrap());
    assert_eq!(words.collect::<Vec<_>>().join(" "), line);
    let keys: Vec<_> = request.keys(&stream).map(|key| String::from_utf8(key.to_vec()).unwrap()).collect();
    assert_eq!(keys.len(), request.meta.keys as usize, "{line}");
    (request, keys)
}

#[test]
fn keys_are_where_each_command_has_them() {
    for (line, expected) in [
        ("GET a", "a"),
        ("get a", "a"),
        ("GET", ""),
        ("SET a 1 EX 10", "a"),
        ("MGET a b c", "a b c"),
        ("MSET a 1 b 2", "a b"),
        ("DEL a b", "a b"),
        ("RENAME a b", "a b"),
        ("BLPOP a b 0", "a b"),
        ("BITOP AND d a b", "d a b"),
        ("OBJECT ENCODING a", "a"),
        ("OBJECT HELP", ""),
        ("OBJECT", ""),
        ("MEMORY USAGE a SAMPLES 5", "a"),
        ("XINFO STREAM a", "a"),
        ("XGROUP CREATE a g $", "a"),
        ("EVAL script 2 a b c", "a b"),
        ("EVAL script 0 c", ""),
        ("EVAL script x a", ""),
        ("EVAL script 9 a", "a"),
        ("EVAL script -1 a", ""),
        ("EVAL", ""),
        ("FCALL f 1 a b", "a"),
        ("ZUNIONSTORE d 2 a b WEIGHTS 1 2", "d a b"),
        ("ZUNIONSTORE d", ""),
        ("ZINTER 2 a b WITHSCORES", "a b"),
        ("SINTERCARD 2 a b LIMIT 1", "a b"),
        ("LMPOP 2 a b LEFT", "a b"),
        ("BZMPOP 0 1 a MIN", "a"),
        ("XREAD COUNT 2 BLOCK 0 STREAMS a b 0 0", "a b"),
        ("XREAD count 2 streams a 0", "a"),
        ("XREAD COUNT STREAMS a 0", ""),
        ("XREADGROUP GROUP STREAMS c NOACK STREAMS a >", "a"),
        ("SORT a STORE b", "a"),
        ("GEOSEARCHSTORE d a FROMMEMBER m BYRADIUS 1 m", "d a"),
        ("SUBSCRIBE a b", ""),
        ("SPUBLISH a b", ""),
        ("AUTH user secret", ""),
        ("NONSENSE a", ""),
    ] {
        let (request, keys) = one(line);
        assert_eq!(keys.join(" "), expected, "{line}");
        assert_eq!(request.meta.keyed, !keys.is_empty(), "{line}");
    }
}

#[test]
fn commands_are_known_by_what_they_do() {
    use Access::{Neither, Read, Write, WriteAny};
    use State as S;
    let rows: &[(&str, &str, Class, Access, State)] = &[
        ("GET a", "get", Class::Get, Read, S::Shared),
        ("SET a 1", "set", Class::Set, Write, S::Shared),
        ("EVAL s 0", "eval", Class::Script, WriteAny, S::Shared),
        ("EVAL_RO s 0", "eval_ro", Class::Script, Read, S::Shared),
        ("FLUSHALL", "flushall", Class::Admin, WriteAny, S::Shared),
        ("SORT a BY x", "sort", Class::Combine, Read, S::Shared),
        ("SORT a store b", "sort", Class::Combine, WriteAny, S::Shared),
        ("GEORADIUS a 1 2 3 m STOREDIST b", "georadius", Class::Combine, WriteAny, S::Shared),
        ("XREAD STREAMS a 0", "xread", Class::Read, Read, S::Shared),
        ("XREAD BLOCK 0 STREAMS a 0", "xread", Class::Read, Read, S::Blocking),
        ("XREADGROUP GROUP g c LATER 1 BLOCK 0 STREAMS a >", "xreadgroup", Class::Write, Write, S::Blocking),
        ("BLPOP a 0", "blpop", Class::Blocking, Write, S::Blocking),
        ("CLIENT setname x", "client|setname", Class::Connection, Neither, S::Name),
        ("CLIENT KILL x", "client|kill", Class::Admin, Neither, S::Shared),
        ("CLIENT NEW", "client", Class::Connection, Neither, S::Own),
        ("MULTI", "multi", Class::Transaction, Neither, S::Transaction),
        ("EXEC", "exec", Class::Transaction, WriteAny, S::Transaction),
        ("SELECT 1", "select", Class::Connection, Neither, S::Select),
        ("HELLO 3", "hello", Class::Connection, Neither, S::Hello),
        ("SUBSCRIBE a", "subscribe", Class::Pubsub, Neither, S::Pubsub),
        ("JSON.SET a b", "unknown", Class::Unknown, WriteAny, S::Own),
    ];
    for &(line, name, class, access, state) in rows {
        let request = one(line).0;
        assert_eq!(request.command.name(), name, "{line}");
        assert_eq!(
            (request.meta.class, request.meta.access, request.state),
            (class, access, state),
            "{line}"
        );
    }
}

#[test]
fn rows_are_what_the_arguments_say() {
    for (line, rows) in [
        ("GET a", 1),
        ("PING", 1),
        ("MGET a b c", 3),
        ("MSET a 1 b 2", 2),
        ("HMGET a f g h", 3),
        ("HSET a f 1 g 2", 2),
        ("HSET a f 1 g", 2),
        ("ZADD a 1 m 2 n", 2),
        ("XACK a g 1-1 1-2", 2),
        ("LRANGE a 0 9", 10),
        ("LRANGE a -10 -1", 10),
        ("LRANGE a 9 0", 1),
        ("LRANGE a 0 -1", 100),
        ("LRANGE a x 1", 100),
        ("LRANGE a", 100),
        ("LRANGE a 0 999999999999999999", 10_000),
        ("LRANGE a 0 18446744073709551616", 100),
        ("ZRANGE a 0 9", 10),
        ("ZRANGE a 0 9 BYSCORE", 100),
        ("ZRANGE a 0 9 BYSCORE LIMIT 5 7", 7),
        ("ZRANGEBYSCORE a 0 9 LIMIT 0 3", 3),
        ("ZRANGEBYSCORE a 0 9 LIMIT 0 -1", 100),
        ("ZRANGEBYSCORE a 0 9 LIMIT 0 3 LIMIT 0 -1", 100),
        ("ZRANGEBYSCORE a 0 9 LIMIT 0 3 LIMIT 0 7", 7),
        ("ZRANGEBYSCORE a 0 9", 100),
        ("SPOP a", 1),
        ("SPOP a 5", 5),
        ("SRANDMEMBER a -5", 5),
        ("SCAN 0", 10),
        ("SCAN 0 MATCH x COUNT 1000", 1_000),
        ("SCAN 0 COUNT 10 COUNT 5000", 5_000),
        ("SCAN 0 MATCH count COUNT 20", 20),
        ("HSCAN a 0 count 7", 7),
        ("XRANGE a - + COUNT 4", 4),
        ("XREAD COUNT 4 STREAMS a 0", 4),
        ("HGETALL a", 100),
        ("KEYS *", 100),
        ("EVAL s 3 a b c", 3),
    ] {
        assert_eq!(one(line).0.meta.rows, rows, "{line}");
    }
}

#[test]
fn open_ranges_differ_from_those_that_state_their_rows() {
    use RowsBy::{OtherRequests, Reply, ReplyInPart, Request};
    for (line, rows_by) in [
        ("GET a", Request),
        ("MGET a b c", Request),
        ("HMGET a f g h", Request),
        ("LRANGE a 0 9", Request),
        ("LRANGE a 0 -1", Reply),
        ("LRANGE a 0 9999", Request),
        // Bounds that are not believed.
        ("LRANGE a 0 10000", Reply),
        ("ZRANGE a 0 9 BYSCORE", Reply),
        ("ZRANGE a 0 9 BYSCORE LIMIT 5 7", Request),
        ("ZRANGEBYSCORE a 0 9 LIMIT 0 -1", Reply),
        ("ZRANGESTORE d a 0 -1", Reply),
        ("XRANGE a - +", Reply),
        ("XRANGE a - + COUNT 4", Request),
        ("HGETALL a", Reply),
        ("SMEMBERS a", Reply),
        ("DUMP a", Reply),
        ("SCAN 0", Request),
        ("SCAN 0 COUNT 100000", ReplyInPart),
        ("KEYS *", ReplyInPart),
        ("SUNIONSTORE d a b", ReplyInPart),
        ("ZUNIONSTORE d 2 a b", ReplyInPart),
        ("SINTERCARD 2 a b", ReplyInPart),
        ("SORT a", ReplyInPart),
        ("XREAD STREAMS a 0", ReplyInPart),
        // Its answer counts bytes.
        ("BITOP NOT d a", Request),
        ("EVAL s 3 a b c", Request),
        ("EXEC", OtherRequests),
    ] {
        assert_eq!(one(line).0.meta.rows_by, rows_by, "{line}");
    }
}

#[test]
fn inline_requests_become_arrays() {
    let mut decoder = Decoder::new(Limits::default());
    let stream = b"  SET a \"x y\"\r\n\r\n";
    let Step::Request { len, request } = decoder.next(stream) else { panic!("no request") };
    assert_eq!((len, request.inline, request.command.name()), (15, true, "set"));
    let bytes = decoder.bytes(&request, &stream[..len]);
    assert_eq!(bytes, array(&["SET", "a", "x y"]));
    assert_eq!(request.meta.bytes as usize, bytes.len());
    assert_eq!(request.keys(bytes).collect::<Vec<_>>(), [b"a"]);
    assert_eq!(decoder.next(&stream[len..]), Step::Skip { len: 2 }, "an empty line is nothing");
}

#[test]
fn arrays_of_nothing_are_nothing() {
    let stream = [&b"*0\r\n*-1\r\n*-9\r\n"[..], &array(&["PING"])].concat();
    let [Event::Skip(skipped), Event::Request(..)] = &events(&stream)[..] else { panic!("not skipped") };
    assert_eq!(*skipped, 0..14);
}

#[test]
fn what_is_no_request_gets_the_answer_of_redis_and_the_end() {
    let long = "a".repeat(41);
    for (stream, answer) in [
        ("*x\r\n", "invalid multibulk length"),
        ("*1x\r\n", "invalid multibulk length"),
        ("*\r\n", "invalid multibulk length"),
        ("*+1\r\n", "invalid multibulk length"),
        ("*9\r\n", "invalid multibulk length"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$x\r\n", "invalid bulk length"),
        ("*1\r\n$101\r\n", "invalid bulk length"),
        ("*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        ("*1\r\n:1\r\n", "expected '$', got ':'"),
        ("*1\r\n\r\n", "expected '$', got ' '"),
        ("*1\r\n$4\r\nPINGGG\r\n", "bulk string goes on after its length"),
        ("*2\r\n$3\r\nGET\r\nb\r\n", "expected '$', got 'b'"),
        ("get \"a\r\n", "unbalanced quotes in request"),
        ("get \0a\r\n", "NUL in inline request"),
        (&long, "too big inline request"),
    ] {
        let answer = format!("-ERR Protocol error: {answer}\r\n");
        let stream = [stream.as_bytes(), b"PING\r\n"].concat();
        let events = events(&stream);
        let Some(Event::Fault(fault, None)) = events.last() else { panic!("{stream:?} gave {events:?}") };
        let mut out = Vec::new();
        fault.answer(&mut out);
        assert_eq!(String::from_utf8_lossy(&out), answer, "{}", String::from_utf8_lossy(&stream));
    }
    for stream in [&b"POST / HTTP/1.1\r\n"[..], b"Host: x\r\n", &array(&["post", "x"])] {
        let mut decoder = Decoder::new(LIMITS);
        let step = decoder.next(stream);
        let Step::Fault { fault: fault @ Fault { kind: FaultKind::Http }, .. } = step else {
            panic!("{step:?}")
        };
        let mut out = Vec::new();
        fault.answer(&mut out);
        assert!(out.is_empty(), "no answer for a browser to run");
        assert_eq!(decoder.next(b"PING\r\n"), Step::Skip { len: 6 }, "nothing is read after the end");
    }
}

#[test]
fn a_client_that_speaks_tls_is_recognised() {
    let mut decoder = Decoder::new(LIMITS);
    assert_eq!(decoder.next(b"\x16"), Step::More { want: 2 });
    let Step::Fault { fault, .. } = decoder.next(b"\x16\x03\x01\x02") else { panic!("it went on") };
    let mut out = Vec::new();
    fault.answer(&mut out);
    assert_eq!((fault.kind, &out[..]), (FaultKind::Tls, &b"-ERR gate does not support TLS\r\n"[..]));
    assert_eq!(decoder.next(b"PING\r\n"), Step::Skip { len: 6 }, "nothing is read after the end");
}

#[test]
fn a_long_value_streams_behind_its_head() {
    let value = "v".repeat(90);
    let stream = [array(&["SET", "a", &value, "EX", "10"]), array(&["PING"])].concat();
    let events = events(&stream);
    let [Event::Request(request, head), Event::Body(body, true), Event::Request(..)] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(&stream[head.clone()], b"*5\r\n$3\r\nSET\r\n$1\r\na\r\n$90\r\n");
    assert_eq!(body.end, stream.len() - array(&["PING"]).len());
    assert!(request.streamed);
    assert_eq!(request.meta.bytes as usize, head.len() + 92, "what follows the value is not known yet");
    assert_eq!((request.meta.access, request.meta.keys, request.args), (Access::Write, 1, 5));
    assert_eq!(request.keys(&stream).collect::<Vec<_>>(), [b"a"]);
    assert_eq!(request.args(&stream).count(), 2);
}

#[test]
fn a_head_without_all_its_keys_may_write_to_any() {
    let value = "v".repeat(90);
    let rows: &[(&[&str], Access, State, u32)] = &[
        (&["MSET", "a", &value], Access::Write, State::Shared, 1),
        (&["MSET", "a", &value, "b", "1"], Access::WriteAny, State::Shared, 2),
        (&["MGET", "a", &value], Access::Read, State::Shared, 2),
        (&["DEL", &value, "b"], Access::WriteAny, State::Shared, 2),
        (&["SORT", "a", &value], Access::WriteAny, State::Shared, 1),
        (&["XREADGROUP", &value], Access::WriteAny, State::Blocking, 0),
        (&["ZUNIONSTORE", "d", "1", &value], Access::WriteAny, State::Shared, 2),
        (&["ZUNIONSTORE", &value, "1", "a"], Access::WriteAny, State::Shared, 0),
        (&["CLIENT", &value], Access::WriteAny, State::Own, 0),
        (&[&value], Access::WriteAny, State::Own, 0),
    ];
    for (words, access, state, keys) in rows {
        let stream = array(words);
        let events = events(&stream);
        let [Event::Request(request, head), Event::Body(_, true)] = &events[..] else { panic!("{events:?}") };
        let found = (request.meta.access, request.state, request.meta.keys);
        assert_eq!(found, (*access, *state, *keys), "{words:?}");
        assert!(request.keys(&stream[head.clone()]).count() < words.len());
    }
}

#[test]
fn what_is_wrong_within_a_body_ends_it() {
    let value = "v".repeat(90);
    for rest in ["$x\r\n", ":1\r\n", "$101\r\n", "$1\r\naX\r\n"] {
        let stream = format!("*3\r\n$3\r\nSET\r\n$90\r\n{value}\r\n{rest}");
        let events = events(stream.as_bytes());
        assert!(
            matches!(
                events[..],
                [Event::Request(..), Event::Fault(_, None)]
                    | [Event::Request(..), Event::Body(_, false), Event::Fault(_, None)]
            ),
            "{events:?}"
        );
    }
}

/// Requests, nearly requests, and noise.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        prop::sample::select(vec![
            "GET",
            "SET",
            "MSET",
            "DEL",
            "XREAD",
            "STREAMS",
            "BLOCK",
            "COUNT",
            "EVAL",
            "SORT",
            "STORE",
            "ZUNIONSTORE",
            "client",
            "object",
            "0",
            "1",
            "2",
            "-1",
            "a",
            "",
            "LRANGE",
            "LIMIT",
            "zrange",
        ])
        .prop_map(str::to_owned),
        "[a-z]{0,90}",
    ];
    let request = prop::collection::vec(word.clone(), 0..8)
        .prop_map(|words| array(&words.iter().map(String::as_str).collect::<Vec<_>>()));
    let line = (prop::collection::vec(word, 0..4), prop::sample::select(vec!["\r\n", "\n", "", "\""]))
        .prop_map(|(words, end)| (words.join(" ") + end).into_bytes());
    let mangled =
        (request.clone(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut bytes, at, byte)| {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        });
    prop_oneof![5 => request, 2 => line, 1 => mangled, 1 => prop::collection::vec(any::<u8>(), 0..20)]
}

/// Alike at the beginning: in number, in length, in name.
const FAMILIAR: [&str; 13] = [
    "GET a",
    "get b",
    "GEX a",
    "GETX a",
    "DEL a",
    "DEL a b",
    "GET a b",
    "SET a b",
    "CLIENT ID",
    "CLIENT LIST",
    "OBJECT HELP",
    "INCRBYFLOAT a 1",
    "PING",
];

proptest! {
    #[test]
    fn a_stream_cut_anywhere_decodes_the_same(
        pieces in prop::collection::vec(pieces(), 0..8),
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream = pieces.concat();
        cuts.sort_by_key(|cut| cut.index(stream.len() + 1));
        let cuts = cuts.iter().map(|cut| cut.index(stream.len() + 1));
        let mut one = Decoder::new(LIMITS);
        let mut other = Decoder::new(LIMITS);
        let whole = decode(&stream, [], |input| one.next(input), |_| true);
        let cut = decode(&stream, cuts, |input| other.next(input), |_| true);
        prop_assert_eq!(&whole, &cut);
        for event in whole {
            if let Event::Request(request, bytes) = event && !request.inline {
                let args = request.args(&stream[bytes.clone()]).count();
                let keys = request.keys(&stream[bytes]).count();
                prop_assert!(args <= request.args as usize && keys <= request.meta.keys as usize);
                prop_assert!(request.streamed || (args, keys) == (request.args as usize, request.meta.keys as usize));
            }
        }
    }

    #[test]
    fn a_used_decoder_reads_requests_as_a_new_one_does(
        which in prop::collection::vec(0..FAMILIAR.len(), 0..40),
    ) {
        let mut seasoned = Decoder::new(LIMITS);
        for line in which.into_iter().map(|which| FAMILIAR[which]) {
            let stream = array(&line.split(' ').collect::<Vec<_>>());
            prop_assert_eq!(seasoned.next(&stream), Decoder::new(LIMITS).next(&stream), "{}", line);
        }
    }

    #[test]
    fn no_more_is_held_than_the_limits_allow(pieces in prop::collection::vec(pieces(), 0..6)) {
        let stream = pieces.concat();
        let mut decoder = Decoder::new(LIMITS);
        let mut at = 0;
        let mut held = 0;
        for end in 0..=stream.len() {
            loop {
                let step = decoder.next(&stream[at..end]);
                at += step.consumed();
                if matches!(step, Step::More { .. }) {
                    break;
                }
                if at == end {
                    break;
                }
            }
            held = held.max(end - at);
        }
        // An argument's length is at most 23 bytes.
        prop_assert!(held <= LIMITS.gather as usize + 23, "{} bytes held", held);
    }
}
