//! Replies: where each ends, and that it does not matter how they arrive.

use std::ops::Range;

use proptest::prelude::*;

use crate::resp::*;

const GATHER: usize = 24;

/// Replies, each with what it is and where it lies, and how many bytes are left over.
type Found = (Vec<(Kind, Range<usize>)>, usize);

/// The replies in `stream`, which arrives in pieces that end at `cuts`.
fn decode(stream: &[u8], cuts: impl IntoIterator<Item = usize>) -> Result<Found, Garbage> {
    let mut replies = Replies::new(GATHER);
    let mut found: Vec<(Kind, Range<usize>)> = Vec::new();
    let mut at = 0;
    let mut held = 0;
    for end in cuts.into_iter().chain([stream.len()]) {
        loop {
            let input = &stream[at..end];
            let part = replies.next(input)?;
            let len = part.consumed();
            assert!(len <= input.len());
            at += len;
            match part {
                Part::More { want } => {
                    assert!(want > input.len());
                    held = held.max(input.len());
                    break;
                }
                Part::Reply { kind, .. } => found.push((kind, at - len..at)),
                Part::Body { .. } => found.last_mut().unwrap().1.end = at,
            }
        }
    }
    // A length that is not at its end is at most 21 bytes.
    assert!(held <= GATHER + 21, "{held} bytes held");
    Ok((found, stream.len() - at))
}

/// The same, cut everywhere.
fn replies(stream: &[u8]) -> Result<Found, Garbage> {
    let whole = decode(stream, []);
    assert_eq!(whole, decode(stream, 0..stream.len()), "byte by byte");
    for cut in 0..stream.len() {
        assert_eq!(whole, decode(stream, [cut]), "cut at {cut}");
    }
    whole
}

#[test]
fn every_type_ends_where_it_says() {
    let nested = format!("{}:1\r\n", "*1\r\n".repeat(2_000));
    let long = format!("-ERR {}\r\n", "x".repeat(100));
    for (reply, kind) in [
        ("+OK\r\n", Kind::Simple),
        ("+\r\n", Kind::Simple),
        ("+a\rb\nc\r\n", Kind::Simple),
        ("-ERR no\r\n", Kind::Error),
        (&long, Kind::Error),
        (":-1\r\n", Kind::Integer),
        ("$0\r\n\r\n", Kind::Bulk),
        ("$5\r\n\r\n\r\n+\r\n", Kind::Bulk),
        ("$30\r\n012345678901234567890123456789\r\n", Kind::Bulk),
        ("$-1\r\n", Kind::Null),
        ("*-1\r\n", Kind::Null),
        ("_\r\n", Kind::Null),
        ("#t\r\n", Kind::Boolean),
        (",-inf\r\n", Kind::Double),
        ("(3492890328409238509324850943850943825024385\r\n", Kind::BigNumber),
        ("!4\r\nE no\r\n", Kind::Error),
        ("=7\r\ntxt:abc\r\n", Kind::Verbatim),
        ("*0\r\n", Kind::Array),
        ("*3\r\n:1\r\n*2\r\n$1\r\na\r\n*-1\r\n_\r\n", Kind::Array),
        ("~2\r\n+a\r\n+b\r\n", Kind::Set),
        ("%0\r\n", Kind::Map),
        ("%2\r\n+a\r\n*1\r\n:1\r\n+b\r\n%1\r\n:1\r\n:2\r\n", Kind::Map),
        ("|1\r\n+ttl\r\n:3\r\n$1\r\na\r\n", Kind::Attribute),
        ("*2\r\n|1\r\n+ttl\r\n:3\r\n:1\r\n:2\r\n", Kind::Array),
        (">3\r\n+message\r\n$1\r\nc\r\n$2\r\nhi\r\n", Kind::Push),
        (&nested, Kind::Array),
    ] {
        let stream = format!("{reply}:7\r\n+");
        let expected = vec![(kind, 0..reply.len()), (Kind::Integer, reply.len()..reply.len() + 4)];
        let found =
            if reply.len() < 200 { replies(stream.as_bytes()) } else { decode(stream.as_bytes(), [50]) };
        assert_eq!(found, Ok((expected, 1)), "{reply:?}");
    }
}

#[test]
fn garbage_is_distinguished_from_replies() {
    for (stream, garbage) in [
        ("hello\r\n", Garbage::Type(b'h')),
        ("\r\n", Garbage::Type(b'\r')),
        ("*1\r\n.\r\n", Garbage::Type(b'.')),
        ("$-2\r\n", Garbage::Length),
        ("$x\r\n", Garbage::Length),
        ("*?\r\n", Garbage::Length),
        ("$?\r\n", Garbage::Length),
        ("%-1\r\n", Garbage::Length),
        (">-1\r\n", Garbage::Length),
        ("%9223372036854775807\r\n%9223372036854775807\r\n", Garbage::Length),
        ("$1\r\nab\r\n", Garbage::BulkEnd),
        ("$1\r\na\rb\n", Garbage::BulkEnd),
    ] {
        assert_eq!(replies(stream.as_bytes()), Err(garbage), "{stream:?}");
    }
}

#[test]
fn an_error_is_known_by_its_first_word() {
    for (reply, code) in [
        ("-ERR no\r\n", Some("ERR")),
        ("-LOADING\r\n", Some("LOADING")),
        ("-MOVED 1 127.0.0.1:1\r\n", Some("MOVED")),
        ("!10\r\nSYNTAX bad\r\n", Some("SYNTAX")),
        ("!10\r\n", Some("")),
        ("!10", None),
        ("+OK\r\n", None),
        ("", None),
    ] {
        let found = error_code(reply.as_bytes()).map(|code| str::from_utf8(code).unwrap());
        assert_eq!(found, code, "{reply:?}");
    }
}

/// A reply as a server of that version of RESP sends it.
fn reply(version: u8) -> impl Strategy<Value = Vec<u8>> {
    let bulk = prop::collection::vec(any::<u8>(), 0..60)
        .prop_map(|data| [format!("${}\r\n", data.len()).as_bytes(), &data, b"\r\n"].concat());
    let line = prop_oneof![
        "[ -~]{0,12}".prop_map(|text| format!("+{text}\r\n")),
        "[A-Z]{1,6} [ -~]{0,12}".prop_map(|text| format!("-{text}\r\n")),
        any::<i64>().prop_map(|number| format!(":{number}\r\n")),
    ];
    let special = if version == 2 {
        prop::sample::select(vec!["$-1\r\n", "*-1\r\n"]).prop_map(str::to_owned).boxed()
    } else {
        prop_oneof![
            "[a-z]{0,9}".prop_map(|text| format!("={}\r\ntxt:{text}\r\n", text.len() + 4)),
            "[A-Z]{1,9}".prop_map(|text| format!("!{}\r\n{text}\r\n", text.len())),
            prop::sample::select(vec![
                "_\r\n",
                "#t\r\n",
                "#f\r\n",
                ",1.5\r\n",
                ",inf\r\n",
                "(123456789012345678901\r\n"
            ])
            .prop_map(str::to_owned),
        ]
        .boxed()
    };
    let leaf =
        prop_oneof![bulk, line.prop_map(String::into_bytes), special.prop_map(String::into_bytes)].boxed();
    // The other decoder takes no aggregate for a set's member or a map's key.
    leaf.clone().prop_recursive(4, 32, 5, move |inner| {
        let array = prop::collection::vec(inner.clone(), 0..5).prop_map(|values| aggregate(b'*', &values));
        if version == 2 {
            return array.boxed();
        }
        let set = prop::collection::vec(leaf.clone(), 0..5).prop_map(|values| aggregate(b'~', &values));
        let pair = (leaf.clone(), inner).prop_map(|(key, value)| [key, value].concat());
        let map = prop::collection::vec(pair, 0..4).prop_map(|pairs| aggregate(b'%', &pairs));
        prop_oneof![array, set, map].boxed()
    })
}

fn aggregate(kind: u8, values: &[Vec<u8>]) -> Vec<u8> {
    [&[kind][..], values.len().to_string().as_bytes(), b"\r\n", &values.concat()].concat()
}

/// How many bytes another decoder takes for a reply; `None` if there is none, or not all of it.
fn oracle(version: u8, stream: &[u8]) -> Option<usize> {
    use redis_protocol::{resp2, resp3};
    if version == 2 {
        resp2::decode::decode_range(stream).ok().flatten().map(|(_, len)| len)
    } else {
        resp3::decode::complete::decode_range(stream).ok().flatten().map(|(_, len)| len)
    }
}

proptest! {
    #[test]
    fn replies_end_where_another_decoder_has_them_end(
        (version, sent) in (2_u8..=3).prop_flat_map(|version| (Just(version), prop::collection::vec(reply(version), 0..5))),
        cut in any::<prop::sample::Index>(),
    ) {
        let stream = sent.concat();
        let (found, left) = decode(&stream, []).unwrap();
        prop_assert_eq!(left, 0);
        prop_assert_eq!(found.iter().map(|(_, range)| range.len()).collect::<Vec<_>>(),
            sent.iter().map(Vec::len).collect::<Vec<_>>());
        for (_, range) in &found {
            prop_assert_eq!(oracle(version, &stream[range.start..]), Some(range.len()));
        }
        prop_assert_eq!(&decode(&stream, [cut.index(stream.len() + 1)]).unwrap().0, &found);
        prop_assert_eq!(&decode(&stream, 0..stream.len()).unwrap().0, &found);
    }

    #[test]
    fn any_bytes_are_replies_or_garbage_however_they_arrive(
        mut stream in prop::collection::vec(reply(3), 1..4).prop_map(|replies| replies.concat()),
        at in any::<prop::sample::Index>(),
        byte in prop_oneof![any::<u8>(), prop::sample::select(b"0123456789-*$%|>:\r\n".to_vec())],
        cut in any::<prop::sample::Index>(),
    ) {
        let at = at.index(stream.len());
        stream[at] = byte;
        let whole = decode(&stream, []);
        prop_assert_eq!(&whole, &decode(&stream, [cut.index(stream.len() + 1)]));
        prop_assert_eq!(&whole, &decode(&stream, 0..stream.len()));
    }
}

#[test]
fn the_beginning_of_a_reply_shows_its_rows() {
    for (reply, shown) in [
        ("*3\r\n:1\r\n:2", 3),
        ("*100000\r\n$", 100_000),
        ("~2\r\n", 2),
        ("%2\r\n", 4),
        (":200000\r\n", 200_000),
        (":-2\r\n", 0),
        ("*-1\r\n", 0),
        ("*0\r\n", 0),
        ("$5\r\nhello\r\n", 0),
        ("+OK\r\n", 0),
        ("-ERR *5\r\n", 0),
        (":9223372036854775807\r\n", u32::MAX),
        ("*", 0),
        ("*12", 0),
        ("", 0),
    ] {
        assert_eq!(rows(reply.as_bytes()), shown, "{reply}");
    }
}

#[test]
fn an_arrays_values_are_told_apart_wherever_it_is_cut() {
    let array = b"*5\r\n+OK\r\n*2\r\n$3\r\n-a\n\r\n*1\r\n:1\r\n-WRONGPASS no\r\n%1\r\n+a\r\n-b\r\n$-1\r\n";
    let kinds = [Kind::Simple, Kind::Array, Kind::Error, Kind::Map, Kind::Null];
    // The head comes in one piece.
    for cut in 4..array.len() {
        let mut elements = Elements::new();
        let mut found = Vec::new();
        for piece in [&array[..cut], &array[cut..]] {
            elements.read(piece, |place, kind| found.push((place, kind))).unwrap();
        }
        assert!(found.iter().copied().eq(kinds.into_iter().enumerate()), "{cut}: {found:?}");
    }
    for other in ["*0\r\n", "*-1\r\n", "-EXECABORT no\r\n", "_\r\n"] {
        Elements::new().read(other.as_bytes(), |place, kind| panic!("{other}: {place} {kind:?}")).unwrap();
    }
}
