//! Replies out of the store's stream: where each ends, without a tree of what it holds.
//!
//! However deep a reply nests, all there is to know is how many values are still to come: a value takes one
//! away, an array of n adds n. So a reply needs a few words of memory, and no depth is too deep. RESP3's streamed
//! types, which Redis has never sent, are garbage.

use memchr::memchr;

use super::length::{self, Length};

/// The next part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Nothing yet. To be called again when there are at least `want` bytes, which is more than there
    /// are now; more may then be wanted.
    More {
        /// Bytes of input.
        want: usize,
    },
    /// A reply, or the beginning of one that is streamed.
    Reply {
        /// Bytes of input that it takes.
        len: usize,
        /// The kind of reply.
        kind: Kind,
        /// True if the reply ends with it.
        last: bool,
    },
    /// More of the last reply, to be passed on as it is.
    Body {
        /// Bytes of input that it takes.
        len: usize,
        /// True if the reply ends with it.
        last: bool,
    },
}

impl Part {
    /// Bytes of input that it takes.
    #[must_use]
    pub const fn consumed(&self) -> usize {
        match self {
            Self::More { .. } => 0,
            Self::Reply { len, .. } | Self::Body { len, .. } => *len,
        }
    }
}

/// The kinds of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `+`
    Simple,
    /// `-` or `!`: see [`error_code`].
    Error,
    /// `:`
    Integer,
    /// `$`
    Bulk,
    /// `_`, or a bulk string or an array of length -1.
    Null,
    /// `#`
    Boolean,
    /// `,`
    Double,
    /// `(`
    BigNumber,
    /// `=`
    Verbatim,
    /// `*`
    Array,
    /// `~`
    Set,
    /// `%`
    Map,
    /// `|`, and what it is an attribute of.
    Attribute,
    /// `>`: not in answer to any request.
    Push,
}

/// The store's bytes are no reply. The connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    /// No type begins with this byte.
    #[error("a reply that begins with byte {0:#04x}")]
    Type(u8),
    /// A length that is none.
    #[error("a reply of no certain length")]
    Length,
    /// A string that goes on after its length.
    #[error("a reply's string that does not end where it says")]
    BulkEnd,
}

/// The first word of a reply that is an error, such as `ERR`, `MOVED`, `LOADING`. `reply` is the whole of it,
/// or as much as has come.
#[must_use]
pub fn error_code(reply: &[u8]) -> Option<&[u8]> {
    let text = match reply.split_first()? {
        (b'-', text) => text,
        (b'!', text) => &text[memchr(b'\n', text)? + 1..],
        _ => return None,
    };
    text.split(|byte| matches!(byte, b' ' | b'\r')).next()
}

/// The rows that a reply shows by its beginning: the values of an array, a set or a map, or an integer, which says how many
/// a command has stored or counted. Zero if it shows none.
#[must_use]
#[inline]
pub fn rows(reply: &[u8]) -> u32 {
    let each = match reply.first() {
        Some(b'*' | b'~' | b':') => 1,
        Some(b'%') => 2,
        _ => return 0,
    };
    let Length::Is(count, _) = length::read(reply, 1) else { return 0 };
    u32::try_from(count.max(0).saturating_mul(each)).unwrap_or(u32::MAX)
}

/// Replies out of one connection to the store.
#[derive(Clone, Debug)]
pub struct Replies {
    gather: usize,
    /// Bytes that have been read and not given.
    at: usize,
    /// Values to come before the reply ends.
    left: u64,
    value: Value,
    /// The kind of reply, once it has begun; and whether its start has been given.
    kind: Option<Kind>,
    given: bool,
}

/// The kinds of an array's values, as the array comes in pieces.
#[derive(Clone, Debug)]
pub struct Elements {
    replies: Replies,
    /// Received, and too short to decode.
    rest: Vec<u8>,
    /// The place of the next value; `None` before the array's head.
    next: Option<usize>,
}

/// Where in a value the reading stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// Before it.
    Ahead,
    /// Within a line.
    Line,
    /// So many bytes of a string and its end are to come.
    Bulk(u64),
}

const BULK_END: &[u8] = b"\r\n";

/// The reply that `input` begins with, if that is a string and all there: what most replies are.
#[inline]
fn whole_bulk(input: &[u8]) -> Option<Part> {
    let (b'$', Length::Is(len, start)) = (*input.first()?, length::read(input, 1)) else { return None };
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    let is_whole = input.get(end..)?.starts_with(BULK_END);
    is_whole.then(|| Part::Reply { len: end + BULK_END.len(), kind: Kind::Bulk, last: true })
}

impl Replies {
    /// Replies of up to `gather` bytes are given whole; of a longer one, what has come.
    #[must_use]
    pub const fn new(gather: usize) -> Self {
        Self { gather, at: 0, left: 1, value: Value::Ahead, kind: None, given: false }
    }

    /// The part at the start of `input`, the bytes that no earlier part has taken.
    ///
    /// # Errors
    /// If it cannot be part of a reply.
    #[inline]
    pub fn next(&mut self, input: &[u8]) -> Result<Part, Garbage> {
        if self.at == 0
            && !self.given
            && let Some(part) = whole_bulk(input)
        {
            return Ok(part);
        }
        while self.left > 0 || self.value != Value::Ahead {
            if !self.advance(input)? {
                if self.at == 0 || (self.at < self.gather && !self.given) {
                    return Ok(Part::More { want: input.len() + 1 });
                }
                return Ok(self.give(false));
            }
        }
        Ok(self.give(true))
    }

    /// The bytes that have been read.
    #[inline]
    fn give(&mut self, last: bool) -> Part {
        let len = self.at;
        let given = self.given;
        let kind = self.kind.unwrap_or(Kind::Simple);
        self.at = 0;
        self.given = true;
        if last {
            *self = Self::new(self.gather);
        }
        if given { Part::Body { len, last } } else { Part::Reply { len, kind, last } }
    }

    /// Reads on; false if `input` ends first.
    #[inline]
    fn advance(&mut self, input: &[u8]) -> Result<bool, Garbage> {
        match self.value {
            Value::Ahead => self.begin(input),
            Value::Line => Ok(self.line(input)),
            Value::Bulk(left) => self.bulk(input, left),
        }
    }

    #[inline]
    fn begin(&mut self, input: &[u8]) -> Result<bool, Garbage> {
        let Some(&byte) = input.get(self.at) else { return Ok(false) };
        let (kind, values) = match byte {
            b'+' => return Ok(self.begin_line(Kind::Simple)),
            b'-' => return Ok(self.begin_line(Kind::Error)),
            b':' => return Ok(self.begin_line(Kind::Integer)),
            b'_' => return Ok(self.begin_line(Kind::Null)),
            b'#' => return Ok(self.begin_line(Kind::Boolean)),
            b',' => return Ok(self.begin_line(Kind::Double)),
            b'(' => return Ok(self.begin_line(Kind::BigNumber)),
            b'$' => (Kind::Bulk, 0),
            b'!' => (Kind::Error, 0),
            b'=' => (Kind::Verbatim, 0),
            b'*' => (Kind::Array, 1),
            b'~' => (Kind::Set, 1),
            b'>' => (Kind::Push, 1),
            b'%' => (Kind::Map, 2),
            b'|' => (Kind::Attribute, 2),
            _ => return Err(Garbage::Type(byte)),
        };
        let (len, next) = match length::read(input, self.at + 1) {
            Length::Incomplete => return Ok(false),
            Length::Is(len, next) => (len, next),
            Length::Bad => return Err(Garbage::Length),
        };
        self.at = next;
        let null = len == -1 && matches!(kind, Kind::Bulk | Kind::Array);
        let len = if null { 0 } else { u64::try_from(len).map_err(|_| Garbage::Length)? };
        self.kind.get_or_insert(if null { Kind::Null } else { kind });
        // An attribute is not the value that it belongs to.
        let taken = u64::from(kind != Kind::Attribute);
        let added = len.checked_mul(values).ok_or(Garbage::Length)?;
        self.left = (self.left - taken).checked_add(added).ok_or(Garbage::Length)?;
        if values == 0 && !null {
            self.value = Value::Bulk(len + BULK_END.len() as u64);
        }
        Ok(true)
    }

    #[inline]
    fn begin_line(&mut self, kind: Kind) -> bool {
        self.kind.get_or_insert(kind);
        self.left -= 1;
        self.value = Value::Line;
        self.at += 1;
        true
    }

    /// Up to a carriage return and a newline.
    #[inline]
    fn line(&mut self, input: &[u8]) -> bool {
        while let Some(newline) = memchr(b'\n', &input[self.at..]) {
            let newline = self.at + newline;
            self.at = newline + 1;
            if newline > 0 && input[newline - 1] == b'\r' {
                self.value = Value::Ahead;
                return true;
            }
        }
        // A carriage return is kept back, to be seen with what follows it.
        self.at = input.len() - usize::from(input.len() > self.at && input.ends_with(b"\r"));
        false
    }

    /// A string and its end.
    #[inline]
    fn bulk(&mut self, input: &[u8], left: u64) -> Result<bool, Garbage> {
        let data = left - BULK_END.len() as u64;
        let len = usize::try_from(data).unwrap_or(usize::MAX).min(input.len() - self.at);
        self.at += len;
        self.value = Value::Bulk(left - len as u64);
        if (len as u64) < data {
            return Ok(false);
        }
        let Some(end) = input.get(self.at..self.at + BULK_END.len()) else { return Ok(false) };
        if end != BULK_END {
            return Err(Garbage::BulkEnd);
        }
        self.at += BULK_END.len();
        self.value = Value::Ahead;
        Ok(true)
    }
}

impl Elements {
    /// Those of the reply that is read next.
    #[must_use]
    pub const fn new() -> Self {
        Self { replies: Replies::new(0), rest: Vec::new(), next: None }
    }

    /// Calls `each` with the place and the kind of each value that begins in a piece of the reply. The first piece has the whole
    /// head. A reply that is no array has no values.
    ///
    /// # Errors
    /// If it cannot be part of a reply.
    pub fn read(&mut self, piece: &[u8], mut each: impl FnMut(usize, Kind)) -> Result<(), Garbage> {
        self.rest.extend_from_slice(piece);
        if self.next.is_none() {
            self.next = Some(0);
            let head = memchr(b'\n', &self.rest).map_or(self.rest.len(), |newline| newline + 1);
            self.rest.drain(..head);
        }
        let mut at = 0;
        loop {
            let part = self.replies.next(&self.rest[at..])?;
            at += part.consumed();
            match part {
                Part::More { .. } => break,
                Part::Reply { kind, .. } => {
                    let next = self.next.get_or_insert(0);
                    each(*next, kind);
                    *next += 1;
                }
                Part::Body { .. } => {}
            }
        }
        self.rest.drain(..at);
        Ok(())
    }
}

impl Default for Elements {
    fn default() -> Self {
        Self::new()
    }
}
