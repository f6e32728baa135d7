//! Answers: where each ends, whom its values belong to, and that it does not matter how they arrive.

use std::ops::Range;

use proptest::prelude::*;

use crate::memcached::*;

const GATHER: usize = 40;

/// A part of an answer as it lies in the stream, bodies in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Line(AnswerLine, Range<usize>),
    Body(Range<usize>),
    /// The answer ends.
    End,
}

/// The answers in `stream`, which arrives in pieces that end at `cuts`; what is left over at its end.
fn decode(
    stream: &[u8],
    expects: &[Expect],
    cuts: impl IntoIterator<Item = usize>,
) -> Result<(Vec<Event>, usize), Garbage> {
    let mut answers = Answers::new(GATHER);
    let mut events = Vec::new();
    let mut at = 0;
    let mut wanted = 0;
    let mut answered = 0;
    for end in cuts.into_iter().chain([stream.len()]) {
        while let Some(&expect) = expects.get(answered) {
            let input = &stream[at..end];
            let part = answers.next(expect, input)?;
            let len = part.consumed();
            assert!(len <= input.len());
            assert!(len == 0 || input.len() >= wanted, "{part:?} came with less than {wanted} bytes");
            wanted = 0;
            let range = at..at + len;
            at += len;
            let last = match part {
                Part::More { want } => {
                    assert!(want > input.len());
                    wanted = want;
                    break;
                }
                Part::Line { line, last, .. } => {
                    events.push(Event::Line(line, range));
                    last
                }
                Part::Body { last, .. } => {
                    match events.last_mut() {
                        Some(Event::Body(before)) => before.end = range.end,
                        _ => events.push(Event::Body(range)),
                    }
                    last
                }
            };
            if last {
                answered += 1;
                events.push(Event::End);
            }
        }
    }
    Ok((events, stream.len() - at))
}

/// The same, cut everywhere.
fn events(stream: &str, expects: &[Expect]) -> Result<(Vec<Event>, usize), Garbage> {
    let stream = stream.as_bytes();
    let whole = decode(stream, expects, []);
    assert_eq!(whole, decode(stream, expects, 0..stream.len()), "byte by byte");
    for cut in 0..stream.len() {
        assert_eq!(whole, decode(stream, expects, [cut]), "cut at {cut}");
    }
    whole
}

#[test]
fn an_answer_ends_where_its_request_says() {
    use Expect::{Line, Meta, Stats, Values};
    use Status as S;
    let rows: &[(Expect, &str, &[Status])] = &[
        (Line, "STORED\r\n", &[S::Stored]),
        (Line, "NOT_STORED\r\n", &[S::NotStored]),
        (Line, "EXISTS\r\n", &[S::Exists]),
        (Line, "NOT_FOUND\r\n", &[S::NotFound]),
        (Line, "DELETED\n", &[S::Deleted]),
        (Line, "TOUCHED\r\n", &[S::Touched]),
        (Line, "OK\r\n", &[S::Ok]),
        (Line, "18446744073709551615\r\n", &[S::Number]),
        (Line, "VERSION 1.6.18\r\n", &[S::Other]),
        (Line, "MN\r\n", &[S::MetaNoop]),
        (Line, "CLIENT_ERROR bad data chunk\r\n", &[S::ClientError]),
        (Line, "ERROR\r\n", &[S::ClientError]),
        (Line, "SERVER_ERROR object too large for cache\r\n", &[S::ServerError]),
        (Values, "END\r\n", &[S::End]),
        (Values, "VALUE a 0 2\r\nhi\r\nEND\r\n", &[S::Value, S::End]),
        (Values, "VALUE a 0 7 99\r\nEND\r\nhi\r\nEND\r\n", &[S::Value, S::End]),
        (Values, "VALUE a 0 0\r\n\r\nVALUE b 0 1\r\nx\r\nEND\r\n", &[S::Value, S::Value, S::End]),
        (Values, "VALUE a 0 1\r\nx\r\nSERVER_ERROR out of memory\r\n", &[S::Value, S::ServerError]),
        (Values, "SERVER_ERROR out of memory writing get response\r\n", &[S::AnswersLost]),
        (Values, "CLIENT_ERROR bad command line format\r\n", &[S::ClientError]),
        (Meta, "HD\r\n", &[S::MetaDone]),
        (Meta, "HD kfoo O1\r\n", &[S::MetaDone]),
        (Meta, "VA 2 f0\r\nhi\r\n", &[S::MetaValue]),
        (Meta, "VA 2\r\nhi\r\n", &[S::MetaValue]),
        (Meta, "EN\r\n", &[S::MetaMiss]),
        (Meta, "NF O9\r\n", &[S::MetaNotFound]),
        (Meta, "NS\r\n", &[S::MetaNotStored]),
        (Meta, "EX\r\n", &[S::MetaExists]),
        (Meta, "ME a exp=-1 la=0 cas=1 fetch=no cls=1 size=63\r\n", &[S::MetaDebug]),
        (Meta, "MN\r\n", &[S::MetaNoop]),
        (Meta, "CLIENT_ERROR invalid flag\r\n", &[S::ClientError]),
        (Stats, "STAT pid 1\r\nSTAT uptime 2\r\nEND\r\n", &[S::Stat, S::Stat, S::End]),
        (Stats, "ITEM a [1 b; 0 s]\r\nEND\r\n", &[S::Stat, S::End]),
        (Stats, "PREFIX a get 1\r\nEND\r\n", &[S::Stat, S::End]),
        (Stats, "END\r\n", &[S::End]),
        (Stats, "RESET\r\n", &[S::Other]),
        (Stats, "ERROR\r\n", &[S::ClientError]),
    ];
    for (expect, answer, statuses) in rows {
        let stream = format!("{answer}HD\r\n");
        let (events, left) = events(&stream, &[*expect]).unwrap();
        assert_eq!(left, 4, "{answer:?}");
        let lines = events.iter().filter_map(|event| match event {
            Event::Line(line, _) => Some(line.status),
            _ => None,
        });
        assert_eq!(&lines.collect::<Vec<_>>(), statuses, "{answer:?}");
        assert_eq!(events.iter().filter(|event| **event == Event::End).count(), 1, "{answer:?}");
    }
}

#[test]
fn a_small_value_comes_whole_and_a_large_one_streams() {
    let large = "v".repeat(GATHER);
    let stream = format!("VALUE a 0 2\r\nhi\r\nVALUE bc 0 40\r\n{large}\r\nEND\r\nVA 40\r\n{large}\r\n");
    let (events, left) = events(&stream, &[Expect::Values, Expect::Meta]).unwrap();
    let shapes: Vec<_> = events
        .iter()
        .map(|event| match event {
            Event::Line(line, range) => {
                let key = str::from_utf8(line.key(&stream.as_bytes()[range.clone()])).unwrap();
                (key, line.value, line.body, range.len())
            }
            Event::Body(range) => ("body", 0, 0, range.len()),
            Event::End => ("end", 0, 0, 0),
        })
        .collect();
    let expected = [
        ("a", 2, 0, 17),
        ("bc", 40, 42, 15),
        ("body", 0, 0, 42),
        ("", 0, 0, 5),
        ("end", 0, 0, 0),
        ("", 40, 42, 7),
        ("body", 0, 0, 42),
        ("end", 0, 0, 0),
    ];
    assert_eq!((&shapes[..], left), (&expected[..], 0));
}

#[test]
fn garbage_is_distinguished_from_answers() {
    use Expect::{Line, Meta, Stats, Values};
    let large = "v".repeat(GATHER);
    let rows: &[(Expect, String, Garbage)] = &[
        (Values, "STORED\r\n".into(), Garbage::Unexpected),
        (Values, "\r\n".into(), Garbage::Unexpected),
        (Values, "HD\r\n".into(), Garbage::Unexpected),
        (Line, "VALUE a 0 1\r\n".into(), Garbage::Unexpected),
        (Line, "VA 1\r\n".into(), Garbage::Unexpected),
        (Meta, "END\r\n".into(), Garbage::Unexpected),
        (Meta, "hello\r\n".into(), Garbage::Unexpected),
        (Meta, "VA\r\n".into(), Garbage::BadLength),
        (Meta, "VA -1\r\n".into(), Garbage::BadLength),
        (Values, "VALUE\r\n".into(), Garbage::BadLength),
        (Values, "VALUE a 0\r\n".into(), Garbage::BadLength),
        (Values, "VALUE a 0 x\r\n".into(), Garbage::BadLength),
        (Values, "VALUE a 0 4294967296\r\n".into(), Garbage::BadLength),
        (Values, "VALUE a 0 1\r\nxyz".into(), Garbage::BadEnd),
        (Values, format!("VALUE a 0 40\r\n{large}xx"), Garbage::BadEnd),
        (Values, format!("VALUE a 0 40\r\n{large}\rx"), Garbage::BadEnd),
        (Stats, "S".repeat(8 << 10), Garbage::EndlessLine),
    ];
    for (expect, stream, garbage) in rows {
        let cuts = if stream.len() > 1_000 { 0..1 } else { 0..stream.len() };
        assert_eq!(decode(stream.as_bytes(), &[*expect], []), Err(*garbage), "{stream:?}");
        for cut in cuts {
            assert_eq!(
                decode(stream.as_bytes(), &[*expect], [cut]),
                Err(*garbage),
                "{stream:?} cut at {cut}"
            );
        }
    }
}

/// The hits, by place, in the answer of a store that holds `stored`, split by requested key.
fn hits(requested: &[&str], stored: &[&str]) -> Vec<u32> {
    let mut merge = Merge::default();
    requested.iter().for_each(|key| merge.push(key.as_bytes()));
    let mut request = Vec::new();
    merge.finish(&mut request);
    assert_eq!(merge.keys(), 0);
    let Step::Request { request: read, len } = Decoder::new(Limits::default()).next(&request) else {
        panic!("no request")
    };
    assert_eq!((len, read.command, read.meta.keys as usize), (request.len(), Command::Get, requested.len()));

    let answer: String = requested
        .iter()
        .filter(|key| stored.contains(key))
        .map(|key| format!("VALUE {key} 0 {}\r\n{key}\r\n", key.len()))
        .collect();
    let mut split = Split::default();
    let mut hits = Vec::new();
    let stream = answer + "END\r\n";
    let keys = &request[b"get ".len()..request.len() - 2];
    for event in decode(stream.as_bytes(), &[Expect::Values], []).unwrap().0 {
        match event {
            Event::Line(line, range) if line.status == Status::Value => {
                hits.push(split.place(keys, line.key(&stream.as_bytes()[range])).unwrap());
            }
            _ => {}
        }
    }
    hits
}

#[test]
fn each_value_goes_to_the_one_who_asked() {
    assert_eq!(hits(&["a", "b", "c"], &["a", "c"]), [0, 2]);
    assert_eq!(hits(&["a", "a", "b", "a"], &["a"]), [0, 1, 3], "each asked, each gets one");
    assert_eq!(hits(&["ab", "a", "abc"], &["a", "abc"]), [1, 2]);
    assert_eq!(hits(&["a"], &[]), [0; 0]);
}

#[test]
fn a_value_that_was_not_requested_fits_nowhere() {
    let mut split = Split::default();
    assert_eq!(split.place(b"a b c", b"b"), Some(1));
    assert_eq!(split.place(b"a b c", b"a"), None, "out of order");
    assert_eq!(split.place(b"a b c", b"c"), None, "nothing is trusted after that");
}

#[test]
fn a_merge_of_nothing_is_nothing() {
    let mut out = Vec::new();
    Merge::default().finish(&mut out);
    assert!(out.is_empty());
}

proptest! {
    #[test]
    fn merged_gets_are_split_as_each_alone_would_be_answered(
        requested in prop::collection::vec("[a-c]{1,2}", 1..12),
        stored in prop::collection::hash_set("[a-c]{1,2}", 0..6),
    ) {
        let requested: Vec<&str> = requested.iter().map(String::as_str).collect();
        let stored: Vec<&str> = stored.iter().map(String::as_str).collect();
        let expected: Vec<u32> = (0..).zip(&requested).filter(|(_, key)| stored.contains(key)).map(|(n, _)| n).collect();
        prop_assert_eq!(hits(&requested, &stored), expected);
    }

    #[test]
    fn any_bytes_are_answers_or_garbage_however_they_arrive(
        words in prop::collection::vec(prop_oneof![
            prop::sample::select(vec![
                "VALUE a 0 3\r\n", "abc\r\n", "END\r\n", "VA 3\r\n", "HD\r\n", "STAT a b\r\n", "VALUE b 0 50 9\r\n",
                "STORED\r\n", "\r", "\n", "MN\r\n", "VALUE ", "ERROR\r\n", "7\r\n"
            ]).prop_map(|word| word.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..60),
        ], 0..12),
        expects in prop::collection::vec(prop::sample::select(vec![
            Expect::Line, Expect::Values, Expect::Meta, Expect::Stats
        ]), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let stream = words.concat();
        let whole = decode(&stream, &expects, []);
        prop_assert_eq!(&whole, &decode(&stream, &expects, [cut.index(stream.len() + 1)]));
        prop_assert_eq!(&whole, &decode(&stream, &expects, 0..stream.len()));
    }
}
