//! Properties of the codecs for any bytes. Shared by the fuzz targets and the ordinary tests.
//!
//! The last bytes of the data say where the stream before them is cut.

use std::fmt::Debug;
use std::ops::Range;

use gate_common::units::Nanos;
use gate_protocol::memcached::udp::{self, Reassembly, Received};
use gate_protocol::{Step, memcached, resp};

/// Requests to memcached.
pub(crate) fn memcached_requests(data: &[u8]) {
    use memcached::{Decoder, Limits};
    const LIMITS: Limits = Limits { line: 600, value: 300, gather: 200 };
    let (stream, cuts) = split(data);
    let decode = |cuts: &[usize]| {
        let mut decoder = Decoder::new(LIMITS);
        steps(stream, cuts, 600, |input| decoder.next(input), |fault| fault.closes())
    };
    for event in same(stream, &cuts, decode) {
        match event {
            Event::Request(request, range) => {
                let keys: Vec<_> = request.keys(&stream[range.clone()]).collect();
                assert_eq!(keys.len(), request.meta.keys as usize);
                assert!(keys.iter().all(|key| (1..=memcached::MAX_KEY).contains(&key.len())));
                let mut seen = 0;
                let known = request.touches_only(&stream[range], |key| {
                    seen += usize::from((1..=memcached::MAX_KEY).contains(&key.len()));
                    true
                });
                assert!(!known || seen == keys.len(), "{request:?}");
            }
            Event::Fault(fault, _) => fault.answer(&mut Vec::new()),
            Event::Body(..) | Event::Skip(_) => {}
        }
    }
    datagrams(stream, &cuts);
}

/// Datagrams: the pieces of the stream.
fn datagrams(stream: &[u8], cuts: &[usize]) {
    let mut reassembly =
        Reassembly::new(udp::Limits { waiting: 2, datagrams: 4, bytes: 100, patience: Nanos(9) });
    let mut start = 0;
    for &end in cuts {
        let datagram = &stream[start..end];
        if let Received::Whole { bytes, .. } = reassembly.receive(start % 2, datagram, Nanos(end as u64)) {
            assert!(bytes.len() <= 100.max(datagram.len()));
        }
        start = end;
    }
}

/// Answers of memcached.
pub(crate) fn memcached_answers(data: &[u8]) {
    use memcached::{Answers, Expect, Part};
    let (stream, cuts) = split(data);
    let expects = [Expect::Line, Expect::Values, Expect::Meta, Expect::Stats];
    let first = stream.len() % expects.len();
    let decode = |cuts: &[usize]| {
        let mut answers = Answers::new(200);
        let mut answered = first;
        parts(stream, cuts, 8 << 10, |input| {
            let part = answers
                .next(expects[answered % expects.len()], input)
                .map_err(|garbage| format!("{garbage:?}"))?;
            let (begins, last) = match part {
                Part::More { want } => return Ok(Taken::More(want)),
                Part::Line { line, last, .. } => (Some(format!("{line:?}")), last),
                Part::Body { last, .. } => (None, last),
            };
            answered += usize::from(last);
            Ok(Taken::Part { len: part.consumed(), begins, last })
        })
    };
    same(stream, &cuts, decode);
}

/// Requests to Redis.
pub(crate) fn resp_requests(data: &[u8]) {
    use resp::{Decoder, Limits};
    const LIMITS: Limits = Limits { inline: 300, args: 100, bulk: 1_000, gather: 200 };
    let (stream, cuts) = split(data);
    let decode = |cuts: &[usize]| {
        let mut decoder = Decoder::new(LIMITS);
        // An inline request's bytes are the decoder's own until the next one.
        let next = |input: &[u8]| {
            let step = decoder.next(input);
            if let Step::Request { len, request } = step {
                check_request(&request, decoder.bytes(&request, &input[..len]));
            }
            step
        };
        steps(stream, cuts, 300, next, |_| true)
    };
    for event in same(stream, &cuts, decode) {
        if let Event::Fault(fault, _) = event {
            fault.answer(&mut Vec::new());
        }
    }
}

fn check_request(request: &resp::Request, bytes: &[u8]) {
    let args = request.args(bytes).count();
    let keys = request.keys(bytes).count();
    assert!(args <= request.args as usize && keys <= request.meta.keys as usize, "{request:?}");
    assert!(request.meta.rows > 0);
    let mut seen = 0;
    let known = request.touches_only(bytes, |_| {
        seen += 1;
        true
    });
    assert!(!known || seen >= keys, "{request:?}");
    if !request.streamed {
        assert_eq!((args, keys), (request.args as usize, request.meta.keys as usize), "{request:?}");
        assert_eq!(bytes.len() as u64, request.meta.bytes);
    }
}

/// Headers of the PROXY protocol.
pub(crate) fn proxy_header(data: &[u8]) {
    use gate_protocol::proxy_header::{MAX_REST, PREAMBLE, Preamble, SIGNATURE};
    let (stream, _) = split(data);
    let Some(beginning) = stream.first_chunk::<PREAMBLE>() else { return };
    let Ok(preamble) = Preamble::read(beginning) else { return };
    assert!(stream.starts_with(&SIGNATURE) && preamble.rest <= MAX_REST);
    let rest = &stream[PREAMBLE..];
    let whole = preamble.source(&rest[..preamble.rest.min(rest.len())]);
    // What follows the header says nothing of it.
    assert_eq!(
        preamble.source(rest).filter(|_| rest.len() >= preamble.rest),
        whole.filter(|_| rest.len() >= preamble.rest)
    );
    assert!(preamble.source(&[]).is_none());
}

/// Replies of Redis.
pub(crate) fn resp_replies(data: &[u8]) {
    use resp::{Part, Replies};
    let (stream, cuts) = split(data);
    let decode = |cuts: &[usize]| {
        let mut replies = Replies::new(200);
        // A length that is not at its end is at most 21 bytes.
        parts(stream, cuts, 200 + 21, |input| {
            let part = replies.next(input).map_err(|garbage| format!("{garbage:?}"))?;
            let _ = resp::error_code(&input[..part.consumed()]);
            Ok(match part {
                Part::More { want } => Taken::More(want),
                Part::Reply { len, kind, last } => {
                    Taken::Part { len, begins: Some(format!("{kind:?}")), last }
                }
                Part::Body { len, last } => Taken::Part { len, begins: None, last },
            })
        })
    };
    same(stream, &cuts, decode);
}

/// The stream, and where it is cut: ascending places that the last bytes of `data` name.
fn split(data: &[u8]) -> (&[u8], Vec<usize>) {
    let Some((&count, rest)) = data.split_last() else { return (data, Vec::new()) };
    let (stream, places) = rest.split_at(rest.len() - rest.len().min(usize::from(count) % 8));
    let mut cuts: Vec<usize> = places.iter().map(|&place| usize::from(place) * stream.len() / 255).collect();
    cuts.sort_unstable();
    (stream, cuts)
}

/// The contents of a stream, which must be the same whole, cut, and byte by byte.
fn same<E: Debug + PartialEq>(stream: &[u8], cuts: &[usize], decode: impl Fn(&[usize]) -> Vec<E>) -> Vec<E> {
    let whole = decode(&[]);
    assert_eq!(whole, decode(cuts), "cut at {cuts:?}");
    assert_eq!(whole, decode(&(0..stream.len()).collect::<Vec<_>>()), "byte by byte");
    whole
}

#[derive(Debug, PartialEq)]
enum Event<R, F> {
    Request(R, Range<usize>),
    Body(Range<usize>, bool),
    Skip(Range<usize>),
    /// Its bytes; `None` if it ends the connection.
    Fault(F, Option<Range<usize>>),
}

/// The steps of a request decoder through `stream`. The caller never has to hold more than `held` bytes and the length
/// of an argument.
fn steps<R: Debug, F: Debug>(
    stream: &[u8],
    cuts: &[usize],
    held: usize,
    mut next: impl FnMut(&[u8]) -> Step<R, F>,
    closes: impl Fn(&F) -> bool,
) -> Vec<Event<R, F>> {
    let mut events = Vec::new();
    let mut at = 0;
    let mut wanted = 0;
    for end in cuts.iter().copied().chain([stream.len()]) {
        loop {
            let step = next(&stream[at..end]);
            let len = step.consumed();
            assert!(len <= end - at && (len == 0 || end - at >= wanted), "{step:?}");
            let range = at..at + len;
            at += len;
            wanted = 0;
            match step {
                Step::More { want } => {
                    assert!(want > end - at && end - at <= held + 23, "{} bytes held", end - at);
                    wanted = want;
                    break;
                }
                Step::Request { request, .. } => events.push(Event::Request(request, range)),
                Step::Body { last, .. } => match events.last_mut() {
                    Some(Event::Body(before, done @ false)) => (before.end, *done) = (range.end, last),
                    _ => events.push(Event::Body(range, last)),
                },
                Step::Skip { .. } => match events.last_mut() {
                    Some(Event::Skip(before)) => before.end = range.end,
                    _ => events.push(Event::Skip(range)),
                },
                Step::Fault { fault, .. } if closes(&fault) => {
                    events.push(Event::Fault(fault, None));
                    return events;
                }
                Step::Fault { fault, .. } => events.push(Event::Fault(fault, Some(range))),
            }
        }
    }
    events
}

/// A part of an answer.
enum Taken {
    More(usize),
    Part { len: usize, begins: Option<String>, last: bool },
}

/// The parts that an answer decoder finds in `stream`: the beginning of each, its place, and true if an answer ends
/// there. The caller never has to hold more than `held` bytes.
fn parts(
    stream: &[u8],
    cuts: &[usize],
    held: usize,
    mut next: impl FnMut(&[u8]) -> Result<Taken, String>,
) -> Vec<(String, Range<usize>, bool)> {
    let mut found: Vec<(String, Range<usize>, bool)> = Vec::new();
    let mut at = 0;
    let mut wanted = 0;
    for end in cuts.iter().copied().chain([stream.len()]) {
        loop {
            let input = &stream[at..end];
            match next(input) {
                Err(garbage) => {
                    // How much of the last answer came before it is seen depends on the cuts.
                    found.retain(|(_, _, last)| *last);
                    found.push((garbage, 0..0, true));
                    return found;
                }
                Ok(Taken::More(want)) => {
                    assert!(want > input.len() && input.len() <= held, "{} bytes held", input.len());
                    wanted = want;
                    break;
                }
                Ok(Taken::Part { len, begins, last }) => {
                    assert!(0 < len && len <= input.len() && input.len() >= wanted);
                    (at, wanted) = (at + len, 0);
                    match (begins, found.last_mut()) {
                        (Some(begins), _) => found.push((begins, at - len..at, last)),
                        (None, Some((_, range, ended))) => (range.end, *ended) = (at, last),
                        (None, None) => panic!("a body of nothing"),
                    }
                }
            }
        }
    }
    // Likewise of an answer that has not ended.
    found.retain(|(_, _, last)| *last);
    found
}
