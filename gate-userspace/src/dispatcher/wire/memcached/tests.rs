use proptest::prelude::*;

use super::super::buffer::Buffer;
use super::super::{Answer, Link as _};
use super::multiget::SHORT_VALUE;
use super::*;
use crate::protocol::memcached::LONGEST_LINE;

/// The answers of a store with these keys to the bytes `written`.
fn answers(written: &[u8], has: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut said = Vec::new();
    for line in written.split_inclusive(|&byte| byte == b'\n') {
        let words: Vec<&[u8]> = line.strip_suffix(b"\r\n").unwrap().split(|&byte| byte == b' ').collect();
        match words[0] {
            b"get" => {
                for key in &words[1..] {
                    if let Some(value) = has(key) {
                        said.extend(
                            [b"VALUE ", *key, b" 0 ", value.len().to_string().as_bytes(), b"\r\n"].concat(),
                        );
                        said.extend([&value, &b"\r\n"[..]].concat());
                    }
                }
                said.extend_from_slice(END);
            }
            b"mn" => said.extend_from_slice(b"MN\r\n"),
            b"mg" if has(words[1]).is_some() => said.extend_from_slice(b"HD\r\n"),
            b"mg" => {}
            _ => said.extend_from_slice(b"DELETED\r\n"),
        }
    }
    said
}

proptest! {
    #[test]
    fn every_get_is_answered_as_a_single_one_however_it_is_cut(
        requests in proptest::collection::vec((0_u8..8, 0_u8..6), 1..60),
        stored in proptest::collection::btree_map(0_u8..6, 0_usize..40, 0..6),
        cuts in proptest::collection::vec(1_usize..50, 1..200),
        flushes: u64,
    ) {
        let has = |key: &[u8]| stored.get(&(key[1] - b'0')).map(|&len| vec![b'V'; len * SHORT_VALUE / 30]);
        let mut link = Multiget::default();
        let mut out = Buffer::default();
        let mut written = Vec::new();
        let mut decoder = Decoder::new(Limits::default());
        let mut awaited = Vec::new();
        let mut expected = Vec::new();
        for (number, (kind, key)) in requests.iter().enumerate() {
            let (line, answer) = match kind {
                0 => (format!("delete k{key} noreply\r\n"), Vec::new()),
                1 => (format!("mg k{key} q\r\n"), answers(format!("mg k{key}\r\n").as_bytes(), has)),
                2 => {
                    let line = format!("get k{key} k{}\r\n", (key + 1) % 6);
                    (line.clone(), answers(line.as_bytes(), has))
                }
                _ => (format!("get k{key}\r\n"), answers(format!("get k{key}\r\n").as_bytes(), has)),
            };
            let Step::Request { request, .. } = decoder.next(line.as_bytes()) else { panic!("{line}") };
            awaited.push(link.encode(&request, line.as_bytes(), &mut out));
            expected.push(answer);
            if flushes >> (number % 64) & 1 == 1 {
                link.seal(&mut out);
                written.extend_from_slice(out.bytes());
                out.clear();
            }
        }
        link.seal(&mut out);
        written.extend_from_slice(out.bytes());

        let stream = answers(&written, has);
        let mut given = vec![Vec::new(); requests.len()];
        let mut at = 0;
        let mut input = Vec::new();
        let mut first = 0;
        for cut in cuts.iter().cycle().map(|cut| cut * cut) {
            let end = (at + cut).min(stream.len());
            input.extend_from_slice(&stream[at..end]);
            at = end;
            while first < awaited.len() {
                let answer = link.scan(&awaited[first], &input).unwrap();
                if answer == Answer::MORE {
                    break;
                }
                given[first].extend_from_slice(&input[..answer.give]);
                given[first].extend_from_slice(answer.add);
                input.drain(..answer.len);
                first += usize::from(answer.last);
            }
            if at == stream.len() {
                break;
            }
        }
        prop_assert_eq!(first, awaited.len(), "all are answered");
        prop_assert!(input.is_empty() && link.keys.is_empty() && link.groups.is_empty());
        prop_assert_eq!(given, expected);
    }
}

#[test]
fn a_keys_ttl_is_what_the_store_says_rounded_down() {
    let value = b"VALUE k 0 1\r\n1\r\nEND\r\n";
    for (answer, said, ttl) in [
        (&value[..], "ME k exp=42 la=0 cas=1 fetch=no cls=1 size=64\r\n", Ttl::AtMost(Nanos::from_secs(41))),
        // memcached before 1.6.24.
        (value, "ME k exp=-42 la=0 cas=1 fetch=no cls=1 size=64\r\n", Ttl::AtMost(Nanos::from_secs(41))),
        (value, "ME k exp=1 la=0\r\n", Ttl::AtMost(Nanos::ZERO)),
        (value, "ME k exp=0 la=0\r\n", Ttl::AtMost(Nanos::ZERO)),
        (value, "ME k exp=-1 la=0\r\n", Ttl::AtMost(Nanos::from_secs(1))),
        (b"VA 1\r\n1\r\n", "ME exp=7 exp=42 la=0\r\n", Ttl::AtMost(Nanos::from_secs(41))),
        // It has gone since.
        (value, "EN\r\n", Ttl::AtMost(Nanos::ZERO)),
        (b"HD\r\n", "EN\r\n", Ttl::AtMost(Nanos::ZERO)),
        (END, "EN\r\n", Ttl::Unbounded),
        (b"EN\r\n", "EN\r\n", Ttl::Unbounded),
        // Older than meta commands.
        (value, "ERROR\r\n", Ttl::Unbounded),
    ] {
        assert_eq!(Memcached::ttl(answer, said.as_bytes()), ttl, "{said}");
    }
}

#[test]
fn only_plain_reads_of_one_key_in_one_spelling_are_shared() {
    let request = |line: &str| {
        let Step::Request { request, .. } = Decoder::new(Limits::default()).next(line.as_bytes()) else {
            panic!("{line}")
        };
        request
    };
    for (line, shared, named) in [
        ("get k\r\n", true, true),
        ("gets k\r\n", true, true),
        ("get k l\r\n", false, true),
        ("gat 9 k\r\n", false, true),
        ("gat 9\r\n", false, false),
        ("gats 9 k\r\n", false, true),
        ("mg k\r\n", true, true),
        ("mg k v\r\n", true, true),
        ("mg k s v f c k\r\n", true, true),
        ("me k\r\n", false, true),
        ("mg aw== v b\r\n", false, false),
        // Per request, by time, by access, quiet, a change, not known, not plain.
        ("mg k v Oabc\r\n", false, true),
        ("mg k t\r\n", false, true),
        ("mg k v h\r\n", false, true),
        ("mg k l v\r\n", false, true),
        ("mg k v q\r\n", false, true),
        ("mg k v T30\r\n", false, true),
        ("mg k v N30\r\n", false, true),
        ("mg k v R30\r\n", false, true),
        ("mg k v E9\r\n", false, true),
        ("mg k vv\r\n", false, true),
        ("md k\r\n", false, true),
        ("ma k v\r\n", false, true),
        ("md aw== b\r\n", false, false),
        ("delete k\r\n", false, true),
    ] {
        let request = request(line);
        assert_eq!(
            (Memcached::is_coalescable(&request), Memcached::names_all_keys(&request)),
            (shared, named),
            "{line}"
        );
    }
    let (query, bytes) = Memcached::query_ttl(&request("get k\r\n"), b"get k\r\n").unwrap();
    assert_eq!((query.command, &bytes[..]), (Command::MetaDebug, &b"me k\r\n"[..]));
}

#[test]
fn stale_items_are_not_kept_and_one_client_renews_them() {
    for (answer, kept, for_one) in [
        ("VALUE k 0 1\r\n1\r\nEND\r\n", true, false),
        ("VALUE W 0 1\r\n1\r\nEND\r\n", true, false),
        ("END\r\n", true, false),
        ("EN\r\n", true, false),
        ("HD\r\n", true, false),
        ("HD kW s1\r\n", true, false),
        ("VA 1 c7 f0\r\n1\r\n", true, false),
        ("VA 3\r\n W \r\n", true, false),
        ("VA 1 c7 X W\r\n1\r\n", false, true),
        ("HD W\r\n", false, true),
        ("VA 1 Z X\r\n1\r\n", false, false),
        ("VA 1 Z\r\n1\r\n", false, false),
        ("SERVER_ERROR out of memory\r\n", false, false),
        ("CLIENT_ERROR bad\r\n", false, false),
    ] {
        let is =
            (Memcached::is_cacheable(answer.as_bytes()), Memcached::is_for_one_client(answer.as_bytes()));
        assert_eq!(is, (kept, for_one), "{answer}");
    }
}

#[test]
fn consecutive_gets_are_one_line_of_bounded_length() {
    let mut link = Multiget::default();
    let mut out = Buffer::default();
    let mut decoder = Decoder::new(Limits::default());
    let mut ask = |line: &str| {
        let Step::Request { request, .. } = decoder.next(line.as_bytes()) else { panic!("{line}") };
        link.encode(&request, line.as_bytes(), &mut out);
    };
    ["get a\r\n", "get b\r\n", "gets b\r\n", "delete a\r\n", "get c\r\n"].into_iter().for_each(&mut ask);
    (0..100).for_each(|number| ask(&format!("get {}{number}\r\n", "k".repeat(60))));
    link.seal(&mut out);
    let written = String::from_utf8(out.bytes().to_vec()).unwrap();
    assert!(written.starts_with("get a b\r\ngets b\r\ndelete a\r\nget c kk"), "{written}");
    assert!(written.lines().all(|line| line.len() <= LONGEST_LINE + 1));
    assert_eq!(written.lines().count(), 3 + 4);
}
