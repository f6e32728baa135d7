//! A property of every codec: a stream cut anywhere decodes the same.

use std::fmt::Debug;
use std::ops::Range;

use super::{Class, Step};

#[test]
fn classes_are_in_order_and_have_distinct_names() {
    for (place, class) in Class::ALL.into_iter().enumerate() {
        assert_eq!(class.index(), place, "{}", class.name());
        assert_eq!(Class::ALL.iter().filter(|other| other.name() == class.name()).count(), 1);
    }
}

/// A decoder's event, without how the stream arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event<R, F> {
    /// A request and its bytes, or those of its head.
    Request(R, Range<usize>),
    /// Where a body lies, and whether all of it is there.
    Body(Range<usize>, bool),
    /// The bytes that were skipped.
    Skip(Range<usize>),
    /// A fault and its bytes; `None` if it closes the connection.
    Fault(F, Option<Range<usize>>),
}

/// Feeds `stream` in pieces that end at `cuts`, ascending, and at its end.
///
/// Checks that every step keeps to its input, and that one which asks for more cannot do with less.
pub(super) fn decode<R, F>(
    stream: &[u8],
    cuts: impl IntoIterator<Item = usize>,
    mut next: impl FnMut(&[u8]) -> Step<R, F>,
    closes: impl Fn(&F) -> bool,
) -> Vec<Event<R, F>>
where
    R: Debug + PartialEq,
    F: Debug + PartialEq,
{
    let mut events = Vec::new();
    let mut at = 0;
    let mut wanted = 0;
    for end in cuts.into_iter().chain([stream.len()]) {
        loop {
            let input = &stream[at..end];
            let step = next(input);
            let len = step.consumed();
            assert!(len <= input.len(), "{step:?} takes more than {} bytes", input.len());
            assert!(
                len == 0 || input.len() >= wanted,
                "{step:?} came with less than the {wanted} bytes wanted"
            );
            let range = at..at + len;
            at += len;
            wanted = 0;
            match step {
                Step::More { want } => {
                    assert!(want > input.len(), "{want} bytes wanted of {}", input.len());
                    wanted = want;
                    break;
                }
                Step::Request { request, .. } => events.push(Event::Request(request, range)),
                Step::Body { last, .. } => match events.last_mut() {
                    Some(Event::Body(before, done @ false)) if before.end == range.start => {
                        before.end = range.end;
                        *done = last;
                    }
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
            if len == 0 {
                assert!(!matches!(events.last(), Some(Event::Skip(_))), "an empty skip");
            }
        }
    }
    events
}

/// Checks that `stream` decodes the same whole, byte by byte, and in two pieces cut at every place.
pub(super) fn cut_everywhere<R, F, D>(
    stream: &[u8],
    decoder: impl Fn() -> D,
    next: impl Fn(&mut D, &[u8]) -> Step<R, F>,
    closes: impl Fn(&F) -> bool + Copy,
) -> Vec<Event<R, F>>
where
    R: Debug + PartialEq,
    F: Debug + PartialEq,
{
    let decode_cut = |cuts: &mut dyn Iterator<Item = usize>| {
        let mut decoder = decoder();
        decode(stream, cuts, |input| next(&mut decoder, input), closes)
    };
    let whole = decode_cut(&mut std::iter::empty());
    assert_eq!(whole, decode_cut(&mut (0..stream.len())), "byte by byte");
    for cut in 0..stream.len() {
        assert_eq!(whole, decode_cut(&mut std::iter::once(cut)), "cut at {cut}");
    }
    whole
}
