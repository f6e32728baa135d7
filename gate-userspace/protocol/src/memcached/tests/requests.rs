//! Requests: what is one, what is not, and that it does not matter how they arrive.

use proptest::prelude::*;

use crate::memcached::*;
use crate::tests::{Event, cut_everywhere, decode};
use crate::{Access, Class};

const LIMITS: Limits = Limits { line: 600, value: 100, gather: 64 };

type Events = Vec<Event<Request, Fault>>;

fn events(stream: &[u8]) -> Events {
    cut_everywhere(stream, || Decoder::new(LIMITS), |decoder, input| decoder.next(input), Fault::closes)
}

/// The one request that `stream` is, with the limits that hold by default.
fn one(stream: &str) -> Request {
    let mut decoder = Decoder::new(Limits::default());
    match decoder.next(stream.as_bytes()) {
        Step::Request { len, request } if len == stream.len() => request,
        step => panic!("{stream:?} gave {step:?}"),
    }
}

/// The answers to a client, in order: `.` for a request that is forwarded, otherwise gate's own answer.
fn answers(stream: &[u8]) -> String {
    let mut out = Vec::new();
    for event in events(stream) {
        match event {
            Event::Request(..) => out.extend_from_slice(b".\n"),
            Event::Fault(fault, _) => fault.answer(&mut out),
            Event::Body(..) | Event::Skip(_) => {}
        }
    }
    String::from_utf8_lossy(&out).replace("\r\n", "\n")
}

#[test]
fn requests_are_what_they_say() {
    use Access::{Neither, Read, Write, WriteAny};
    use Command as C;
    use Quiet::{Answered, NoReply, Unusual};
    type Row = (&'static str, Command, Class, Access, Quiet, &'static [&'static str]);
    let rows: &[Row] = &[
        ("get a\r\n", C::Get, Class::Get, Read, Answered, &["a"]),
        ("get a\n", C::Get, Class::Get, Read, Answered, &["a"]),
        ("  get   a  bc \r\n", C::Get, Class::Mget, Read, Answered, &["a", "bc"]),
        ("bget a\r\n", C::Get, Class::Get, Read, Answered, &["a"]),
        ("get a\r\r\n", C::Get, Class::Get, Read, Answered, &["a\r"]),
        ("get noreply\r\n", C::Get, Class::Get, Read, Answered, &["noreply"]),
        ("gets a b c\r\n", C::Gets, Class::Mget, Read, Answered, &["a", "b", "c"]),
        ("gat 10 a\r\n", C::Gat, Class::Get, Write, Answered, &["a"]),
        ("gats x a b\r\n", C::Gats, Class::Mget, Write, Answered, &["a", "b"]),
        ("gat 10\r\n", C::Gat, Class::Get, Neither, Answered, &[]),
        ("set a 0 0 5\r\nhello\r\n", C::Set, Class::Set, Write, Answered, &["a"]),
        ("set a 1 -1 2 noreply\r\n\r\n\r\n", C::Set, Class::Set, Write, NoReply, &["a"]),
        ("set a 0 0 0 other\r\n\r\n", C::Set, Class::Set, Write, Answered, &["a"]),
        ("set noreply 0 0 0\r\n\r\n", C::Set, Class::Set, Write, Answered, &["noreply"]),
        ("add a 0 0 1\nx\r\n", C::Add, Class::Set, Write, Answered, &["a"]),
        ("replace a 4294967295 0 1\r\nx\r\n", C::Replace, Class::Set, Write, Answered, &["a"]),
        ("append a 0 0 1\r\n\n\r\n", C::Append, Class::Set, Write, Answered, &["a"]),
        ("prepend a 0 999999999999999999 1\r\n\0\r\n", C::Prepend, Class::Set, Write, Answered, &["a"]),
        ("cas a 0 0 1 7\r\nx\r\n", C::Cas, Class::Set, Write, Answered, &["a"]),
        ("cas a 0 0 1 18446744073709551615 noreply\r\nx\r\n", C::Cas, Class::Set, Write, NoReply, &["a"]),
        ("delete a\r\n", C::Delete, Class::Delete, Write, Answered, &["a"]),
        ("delete noreply\r\n", C::Delete, Class::Delete, Write, Answered, &["noreply"]),
        ("delete a 0 noreply\r\n", C::Delete, Class::Delete, Write, NoReply, &["a"]),
        ("delete a 7\r\n", C::Delete, Class::Delete, Write, Answered, &["a"]),
        ("incr a 1\r\n", C::Incr, Class::Counter, Write, Answered, &["a"]),
        ("decr a noreply\r\n", C::Decr, Class::Counter, Write, NoReply, &["a"]),
        ("touch a 10 noreply\r\n", C::Touch, Class::Touch, Write, NoReply, &["a"]),
        ("mg a\r\n", C::MetaGet, Class::Get, Read, Answered, &["a"]),
        ("mg a v k q O1\r\n", C::MetaGet, Class::Get, Read, Unusual, &["a"]),
        ("mg a N30 v\r\n", C::MetaGet, Class::Get, Write, Answered, &["a"]),
        ("ms a 2 q T0\r\nhi\r\n", C::MetaSet, Class::Set, Write, Unusual, &["a"]),
        ("md a Tq\r\n", C::MetaDelete, Class::Delete, Write, Answered, &["a"]),
        ("ma a q\r\n", C::MetaArithmetic, Class::Counter, Write, Unusual, &["a"]),
        ("me a q\r\n", C::MetaDebug, Class::Read, Read, Answered, &["a"]),
        ("mn\r\n", C::MetaNoop, Class::Connection, Neither, Answered, &[]),
        ("flush_all\r\n", C::FlushAll, Class::Admin, WriteAny, Answered, &[]),
        ("flush_all 10 noreply\r\n", C::FlushAll, Class::Admin, WriteAny, NoReply, &[]),
        ("verbosity noreply\r\n", C::Verbosity, Class::Admin, Neither, NoReply, &[]),
        ("version a b\r\n", C::Version, Class::Connection, Neither, Answered, &[]),
        ("stats\r\n", C::Stats, Class::Admin, Neither, Answered, &[]),
        ("stats items\r\n", C::Stats, Class::Admin, Neither, Answered, &[]),
        ("stats gate\r\n", C::StatsGate, Class::Admin, Neither, Answered, &[]),
        ("lru_crawler enable\r\n", C::LruCrawler, Class::Admin, Neither, Answered, &[]),
        ("slabs reassign 1 2\r\n", C::Slabs, Class::Admin, Neither, Answered, &[]),
        ("quit\r\n", C::Quit, Class::Connection, Neither, Answered, &[]),
    ];
    for (stream, command, class, access, quiet, keys) in rows {
        let request = one(stream);
        let found: Vec<_> = request.keys(stream.as_bytes()).map(|key| str::from_utf8(key).unwrap()).collect();
        let meta = request.meta;
        assert_eq!((request.command, meta.class, meta.access), (*command, *class, *access), "{stream:?}");
        assert_eq!((request.quiet, &found[..]), (*quiet, *keys), "{stream:?}");
        assert_eq!((meta.keys as usize, meta.keyed), (keys.len(), !keys.is_empty()), "{stream:?}");
        assert_eq!((meta.bytes, request.body), (stream.len() as u64, 0), "{stream:?}");
    }
    assert!(one("mg YQ== b\r\n").base64 && !one("mg YQ== v\r\n").base64);
}

#[test]
fn what_memcached_refuses_is_refused_in_its_words() {
    let long = "k".repeat(MAX_KEY + 1);
    let bad = "CLIENT_ERROR bad command line format\n";
    let rows: &[(&str, &str)] = &[
        ("\r\n", "ERROR\n"),
        ("   \r\n", "ERROR\n"),
        ("get\r\n", "ERROR\n"),
        ("GET a\r\n", "ERROR\n"),
        ("gat\r\n", "ERROR\n"),
        ("nonsense\r\nmn\r\n", "ERROR\n.\n"),
        ("\u{80}\r\n", "ERROR\n"),
        ("me\r\n", bad),
        ("mg\r\n", "ERROR\n"),
        ("mx a\r\n", "ERROR\n"),
        ("delete a 0 noreply more\r\n", "ERROR\n"),
        ("incr a\r\n", "ERROR\n"),
        ("verbosity\r\n", "ERROR\n"),
        (&format!("get a {long} b\r\n"), bad),
        (&format!("delete {long}\r\n"), bad),
        (&format!("mg {long} v\r\n"), bad),
        (&format!("get {}\r\n", &long[1..]), ".\n"),
        // Whatever ends it, a value is as long as its line says; the store says what is wrong with it.
        ("set a 0 0 1\r\nxyzmn\r\n", ".\n.\n"),
        ("set a 0 0 1 noreply\r\nxyz\r\nmn\r\n", ".\nERROR\n.\n"),
        ("ms a 1 q\r\nx\n\nmn\r\n", ".\n.\n"),
    ];
    for (stream, expected) in rows {
        assert_eq!(answers(stream.as_bytes()), *expected, "{stream:?}");
    }
}

#[test]
fn the_value_behind_a_refused_storage_line_is_swallowed() {
    let long = "k".repeat(MAX_KEY + 1);
    let bad = "CLIENT_ERROR bad command line format\n";
    let unsupported = "SERVER_ERROR denied reason=unsupported\n";
    let rows = [
        ("cas a 0 0 14", bad),
        ("cas a 0 0 14 noreply", ""),
        ("cas a 0 0 14 x", bad),
        ("cas a 0 0 14 1 noreply more", bad),
        ("set a 0 0 14 noreply more", bad),
        ("set a x 0 14", bad),
        ("set a 4294967296 0 14", bad),
        ("set a -1 0 14", bad),
        ("set a 0 x 14", bad),
        ("set a 0 +1 14 noreply", ""),
        (" set a 0 0 14", bad),
        ("  ms a 14", bad),
        ("ms a 14 =", bad),
        ("ms a 14 q 1", bad),
        ("ms a 14 a b c d e f g h i j k l m n o p q", "CLIENT_ERROR options flags too long\n"),
        // `x\r\ny`, `a b`, DEL, and CR LF in a spelling that memcached takes, too.
        ("ms eA0KeQ== 14 b", unsupported),
        ("ms YSBi 14 b", unsupported),
        ("ms YX9i 14 k b", unsupported),
        ("ms eA-0KeQ== 14 b", unsupported),
        (&format!("set {long} 0 0 14"), bad),
        (&format!("set {long} 0 0 14 noreply"), ""),
        (&format!("ms {long} 14"), bad),
        (&format!("ms {long} 14 b"), bad),
    ];
    for (line, answer) in rows {
        let stream = format!("{line}\r\nmn\r\n set a 0 0\r\nmn\r\n");
        assert_eq!(answers(stream.as_bytes()), format!("{answer}.\n"), "{line:?}");
    }
}

#[test]
fn a_storage_line_without_a_length_ends_the_connection() {
    let lines = [
        "set a 0 0",
        "set",
        "set a 0 0 noreply",
        "set a 0 0 -1",
        "set a 0 0 +1",
        "set a 0 0 1\t",
        "set a 0 0 1\r",
        "set a 0 0 00000000001",
        "set a 0 0 2147483646",
        "set a 0 0 4294967297",
        "set a 0 0 99999999999999999999",
        " add a 0 0 x",
        "ms",
        "ms a",
        "ms a x",
        "ms a S1",
        "ms a +1",
    ];
    for line in lines {
        let stream = format!("{line}\r\nmn\r\n");
        assert_eq!(
            answers(stream.as_bytes()),
            "CLIENT_ERROR bad command line format\n",
            "{line:?}: nothing behind it is read"
        );
    }
}

#[test]
fn a_key_that_decodes_to_blanks_or_control_bytes_is_refused() {
    for name in ["mg", "md", "ma", "me"] {
        for (key, is_refused) in [
            ("eA0KeQ==", true),
            ("AA==", true),
            ("YSBi", true),
            ("fw==", true),
            ("YTpi", false),
            ("/w==", false),
        ] {
            let said = answers(format!("{name} {key} v b\r\n").as_bytes());
            assert_eq!(said != ".\n", is_refused, "{name} {key}: {said}");
            assert_eq!(answers(format!("{name} {key} v\r\n").as_bytes()), ".\n", "as it is written");
        }
    }
}

#[test]
fn what_gate_cannot_forward_says_so() {
    let unsupported = "SERVER_ERROR denied reason=unsupported\n";
    for stream in ["watch\r\n", "shutdown\r\n", "lru_crawler metadump all\r\n", "lru tune 1 noreply\r\n"] {
        assert_eq!(answers(format!("{stream}mn\r\n").as_bytes()), format!("{unsupported}.\n"), "{stream:?}");
    }
}

#[test]
fn what_leaves_no_next_request_ends_the_connection() {
    let endless = [b'g'; 600];
    let rows: &[(&[u8], &str)] = &[
        (b"get a\0b\r\nmn\r\n", "CLIENT_ERROR bad command line format\n"),
        (b"set a 0 0 1\0 noreply\r\nmn\r\n", "CLIENT_ERROR bad command line format\n"),
        (b"GET / HTTP/1.1\r\nmn\r\n", ""),
        (&endless, "CLIENT_ERROR line too long\n"),
    ];
    for (stream, expected) in rows {
        assert_eq!(answers(stream), *expected, "{:?}", String::from_utf8_lossy(stream));
        let mut decoder = Decoder::new(LIMITS);
        let Step::Fault { fault, .. } = decoder.next(stream) else { panic!("no fault") };
        assert!(fault.closes());
        assert_eq!(decoder.next(b"mn\r\n"), Step::Skip { len: 4 }, "nothing is read after the end");
    }
    let fits = format!("get {}\r\n", "a ".repeat(297));
    assert_eq!((fits.len(), &answers(fits.as_bytes())[..]), (600, ".\n"));
}

#[test]
fn the_binary_protocol_is_refused_in_its_own_format() {
    let mut stream = vec![0x80, 0x0b];
    stream.extend_from_slice(&[0; 10]);
    stream.extend_from_slice(b"mine");
    stream.extend_from_slice(&[0; 8]);
    let mut out = Vec::new();
    let [Event::Fault(fault, None)] = &events(&stream)[..] else { panic!("not refused") };
    fault.answer(&mut out);
    assert_eq!(out[..8], [0x81, 0x0b, 0, 0, 0, 0, 0, 0x83]);
    assert_eq!(out[8..12], 34_u32.to_be_bytes());
    assert_eq!(&out[12..16], b"mine");
    assert_eq!(&out[24..], b"gate speaks the text protocol only");
    assert_eq!(answers(b"mn\r\n\x80\r\n"), ".\nERROR\n", "only the first byte chooses a protocol");
}

#[test]
fn a_request_beyond_what_is_gathered_is_streamed() {
    let line = "set a 0 0 100\r\n";
    let stream = format!("{line}{}\r\nmn\r\n", "v".repeat(100));
    let events = events(stream.as_bytes());
    let [Event::Request(request, head), Event::Body(body, true), Event::Request(..)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!((head.clone(), body.clone()), (0..15, 15..117));
    assert_eq!((request.body, request.meta.bytes), (102, 117));
    assert_eq!(request.keys(line.as_bytes()).collect::<Vec<_>>(), [b"a"]);
}

#[test]
fn a_value_beyond_the_limit_is_swallowed() {
    let value = "mn\r\n".repeat(50);
    for (words, answer) in [("", "SERVER_ERROR object too large for cache\n.\n"), (" noreply", ".\n")] {
        let stream = format!("set a 0 0 {}{words}\r\n{value}\r\nmn\r\n", value.len());
        assert_eq!(answers(stream.as_bytes()), answer);
    }
}

#[test]
fn refusals_read_as_documented() {
    use gate_common::abi::Reason;
    use gate_common::units::Nanos;
    let mut out = Vec::new();
    refuse(Refusal::after(Reason::Quota, Nanos(12_000_001)), &mut out);
    assert_eq!(out, b"SERVER_ERROR throttled retry_after_ms=13 reason=quota\r\n");
}

/// Requests, nearly requests, and noise.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        prop::sample::select(vec![
            "get",
            "gets",
            "gat",
            "set",
            "cas",
            "ms",
            "mg",
            "mn",
            "delete",
            "incr",
            "noreply",
            "stats",
            "0",
            "1",
            "5",
            "60",
            "99",
            "101",
            "-1",
            "q",
            "v",
            "b",
            " ",
            "",
            "\0",
            "a",
            "key",
            "touch",
            "flush_all"
        ])
        .prop_map(|word| word.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    let end = prop::sample::select(vec![&b"\r\n"[..], b"\r\n", b"\r\n", b"\n", b"", b"\r"]);
    let line = (prop::collection::vec(word, 1..8), end)
        .prop_map(|(words, end)| [&words.join(&b' ')[..], end].concat());
    let store = (0_usize..110, prop::bool::ANY, any::<u8>()).prop_map(|(len, quiet, fill)| {
        let quiet = if quiet { " noreply" } else { "" };
        [format!("set k 0 0 {len}{quiet}\r\n").as_bytes(), &vec![fill; len], b"\r\n"].concat()
    });
    let noise = prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![4 => line, 3 => store, 1 => noise]
}

proptest! {
    #[test]
    fn a_stream_cut_anywhere_decodes_the_same(
        pieces in prop::collection::vec(pieces(), 0..12),
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream = pieces.concat();
        cuts.sort_by_key(|cut| cut.index(stream.len() + 1));
        let cuts = cuts.iter().map(|cut| cut.index(stream.len() + 1));
        let mut one = Decoder::new(LIMITS);
        let mut other = Decoder::new(LIMITS);
        let whole = decode(&stream, [], |input| one.next(input), Fault::closes);
        let cut = decode(&stream, cuts, |input| other.next(input), Fault::closes);
        prop_assert_eq!(&whole, &cut);
        for event in whole {
            if let Event::Request(request, bytes) = event {
                let keys = request.keys(&stream[bytes]);
                let mut count = 0;
                for key in keys {
                    prop_assert!(!key.is_empty() && key.len() <= MAX_KEY && !key.contains(&b' '));
                    count += 1;
                }
                prop_assert_eq!(request.meta.keys, count);
            }
        }
    }

    #[test]
    fn no_more_is_asked_for_than_the_limits_allow(stream in prop::collection::vec(pieces(), 0..6)) {
        let stream = stream.concat();
        let mut decoder = Decoder::new(LIMITS);
        let mut at = 0;
        loop {
            match decoder.next(&stream[at..]) {
                Step::More { want } => {
                    prop_assert!(want <= LIMITS.gather.max(LIMITS.line as usize));
                    break;
                }
                step => at += step.consumed(),
            }
            if at == stream.len() {
                break;
            }
        }
    }
}

#[test]
fn a_client_that_speaks_tls_is_recognised() {
    let mut decoder = Decoder::new(Limits::default());
    assert_eq!(decoder.next(b"\x16"), Step::More { want: 2 });
    let Step::Fault { fault, .. } = decoder.next(b"\x16\x03\x01\x02") else { panic!("it went on") };
    let mut out = Vec::new();
    fault.answer(&mut out);
    assert_eq!((fault.kind, &out[..]), (FaultKind::Tls, &b"SERVER_ERROR gate does not support TLS\r\n"[..]));
    assert_eq!(decoder.next(b"get a\r\n"), Step::Skip { len: 7 }, "nothing is read after the end");
}
