//! Ranges: the part of a body that is asked for (RFC 9110, 14.2). Pure.

use std::ops::Range;

/// The part of a body that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slice {
    /// All of it: there is no range, or none that has to be heeded.
    Whole,
    Part(Range<usize>),
    /// None of it.
    Unsatisfiable,
}

impl Slice {
    /// The part that a field selects of a body with `len` bytes. Several ranges are not heeded, which RFC 9110 allows: their
    /// answer could be longer than the whole.
    pub(super) fn of(field: &[u8], len: usize) -> Self {
        let Some(range) = field.strip_prefix(b"bytes=").map(<[u8]>::trim_ascii) else { return Self::Whole };
        let Some(dash) = range.iter().position(|&byte| byte == b'-') else { return Self::Whole };
        let first = range[..dash].trim_ascii();
        let last = range[dash + 1..].trim_ascii();
        let part = match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(len),
            (Some(first), None) if last.is_empty() => first..len,
            (None, Some(suffix)) if first.is_empty() => len.saturating_sub(suffix)..len,
            _ => return Self::Whole,
        };
        match (part.start, part.end) {
            (start, end) if start < end => Self::Part(part),
            // Of nothing, it is all: a 206 cannot name it.
            (0, _) => Self::Whole,
            _ => Self::Unsatisfiable,
        }
    }
}

/// A number, however long; one that is too long for any body is as good as the longest.
fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |number: usize, digit: &u8| number.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
    Some(digits.iter().fold(0, add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_selects_what_is_there() {
        for (field, expected) in [
            ("bytes=0-3", Slice::Part(0..4)),
            ("bytes=2-", Slice::Part(2..10)),
            ("bytes=-3", Slice::Part(7..10)),
            ("bytes=-30", Slice::Part(0..10)),
            ("bytes= 4 - 4 ", Slice::Part(4..5)),
            ("bytes=9-99999999999999999999999999", Slice::Part(9..10)),
            ("bytes=10-", Slice::Unsatisfiable),
            ("bytes=99999999999999999999999999-", Slice::Unsatisfiable),
            ("bytes=-0", Slice::Unsatisfiable),
            ("bytes=3-2", Slice::Whole),
            ("bytes=0-1,3-4", Slice::Whole),
            ("bytes=-", Slice::Whole),
            ("bytes=a-", Slice::Whole),
            ("bytes=1--2", Slice::Whole),
            ("bytes=+1-2", Slice::Whole),
            ("rows=0-3", Slice::Whole),
            ("", Slice::Whole),
        ] {
            assert_eq!(Slice::of(field.as_bytes(), 10), expected, "{field}");
        }
        for (field, expected) in [
            ("bytes=0-", Slice::Whole),
            ("bytes=0-9", Slice::Whole),
            ("bytes=-0", Slice::Whole),
            ("bytes=-3", Slice::Whole),
            ("bytes=1-", Slice::Unsatisfiable),
        ] {
            assert_eq!(Slice::of(field.as_bytes(), 0), expected, "{field}");
        }
    }
}
