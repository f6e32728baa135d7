//! Answers out of the store's stream.

use memchr::memchr;

use super::command::Expect;
use crate::number;

/// The next part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Nothing yet. To be called again when there are at least `want` bytes, which is more than there
    /// are now; more may then be wanted.
    More {
        /// Bytes of input.
        want: usize,
    },
    /// A line, with its value if there is one that fits.
    Line {
        /// Bytes of input that it takes.
        len: usize,
        /// The line.
        line: AnswerLine,
        /// True if the answer ends with it.
        last: bool,
    },
    /// More of the last line's value, to be passed on as it is.
    Body {
        /// Bytes of input that it takes.
        len: usize,
        /// True if the answer ends with it.
        last: bool,
    },
}

impl Part {
    /// Bytes of input that it takes.
    #[must_use]
    pub const fn consumed(&self) -> usize {
        match self {
            Self::More { .. } => 0,
            Self::Line { len, .. } | Self::Body { len, .. } => *len,
        }
    }
}

/// A line of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLine {
    /// How it begins.
    pub status: Status,
    /// Bytes of its value and the end of that, which follow in [`Part::Body`]; 0 if it has none, or it is whole.
    pub body: u64,
    /// The length of its value, in bytes, without the end; 0 if it has none.
    pub value: u64,
    key_at: u16,
    key_end: u16,
}

impl AnswerLine {
    /// The key of a `VALUE`, as it is written; `bytes` begin where the line does. Empty for others.
    #[must_use]
    pub fn key<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        bytes.get(usize::from(self.key_at)..usize::from(self.key_end)).unwrap_or_default()
    }
}

/// How a line begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// `VALUE`
    Value,
    /// `END`
    End,
    /// `STORED`
    Stored,
    /// `NOT_STORED`
    NotStored,
    /// `EXISTS`
    Exists,
    /// `NOT_FOUND`
    NotFound,
    /// `DELETED`
    Deleted,
    /// `TOUCHED`
    Touched,
    /// `OK`
    Ok,
    /// A number, the answer to `incr` and `decr`.
    Number,
    /// `HD`: done, or found and no value was asked for.
    MetaDone,
    /// `VA`: a value.
    MetaValue,
    /// `EN`: not found by a get.
    MetaMiss,
    /// `NF`: not found.
    MetaNotFound,
    /// `NS`: not stored.
    MetaNotStored,
    /// `EX`: changed since.
    MetaExists,
    /// `ME`: about an item.
    MetaDebug,
    /// `MN`: the answer to `mn`, and the end of what quiet commands before it had to say.
    MetaNoop,
    /// `STAT`, `ITEM`, `PREFIX`: one of several.
    Stat,
    /// `ERROR` or `CLIENT_ERROR`.
    ClientError,
    /// `SERVER_ERROR`
    ServerError,
    /// memcached ran out of memory during a get, and threw away answers to earlier requests that it had
    /// not sent yet: whatever this connection says next belongs to no one knows which request.
    AnswersLost,
    /// Any other.
    Other,
}

impl Status {
    /// True if the request failed.
    #[must_use]
    pub const fn is_error(self) -> bool {
        matches!(self, Self::ClientError | Self::ServerError | Self::AnswersLost)
    }
}

/// The store's bytes are no answer to the request. The connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    /// A line without end.
    #[error("no end within the first {MAX_LINE} bytes of an answer's line")]
    EndlessLine,
    /// A line that does not belong there.
    #[error("an answer's line that does not fit its request")]
    Unexpected,
    /// A value's length is not a number.
    #[error("a value of no certain length")]
    BadLength,
    /// A value goes on after its length.
    #[error("a value that does not end where it says")]
    BadEnd,
}

/// The longest line of an answer, its end included, in bytes. memcached's own are under 2 KiB.
const MAX_LINE: usize = 8 << 10;

const VALUE_END: &[u8] = b"\r\n";

/// Answers out of one connection to the store.
#[derive(Clone, Debug)]
pub struct Answers {
    gather: usize,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Within a line, of which so many bytes are known to hold no end.
    Line { searched: usize },
    /// A line whose value is given with it, once so many bytes are there.
    Gather { len: usize, line: AnswerLine, last: bool },
    /// So many bytes of a value are to come.
    Body { left: u64, last: bool },
}

impl Answers {
    /// Of a line and its value together, no more than `gather` bytes are given whole; a longer value is
    /// streamed.
    #[must_use]
    pub const fn new(gather: usize) -> Self {
        Self { gather, state: BETWEEN }
    }

    /// The next part of the answer to a request that expects `expect`.
    ///
    /// A quiet meta command may have no answer: after it, what comes up to [`Status::MetaNoop`] is
    /// to be read as [`Expect::Meta`], answer by answer.
    ///
    /// # Errors
    /// If `input` cannot be part of such an answer.
    #[inline]
    pub fn next(&mut self, expect: Expect, input: &[u8]) -> Result<Part, Garbage> {
        match self.state {
            State::Line { searched } => self.line(expect, input, searched),
            State::Gather { len, .. } if input.len() < len => Ok(Part::More { want: len }),
            State::Gather { len, line, last } => self.gathered(input, len, line, last),
            State::Body { .. } if input.is_empty() => Ok(Part::More { want: 1 }),
            State::Body { left, last } => self.body(input, left, last),
        }
    }

    #[inline]
    fn line(&mut self, expect: Expect, input: &[u8], searched: usize) -> Result<Part, Garbage> {
        let within = &input[..input.len().min(MAX_LINE)];
        let Some(newline) = memchr(b'\n', &within[searched..]) else {
            if input.len() >= MAX_LINE {
                return Err(Garbage::EndlessLine);
            }
            self.state = State::Line { searched: input.len() };
            return Ok(Part::More { want: input.len() + 1 });
        };
        self.state = BETWEEN;
        let newline = searched + newline;
        let len = newline + 1;
        let text = &input[..newline];
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let (mut line, last) = read(expect, text)?;
        if line.body == 0 {
            return Ok(Part::Line { len, line, last });
        }
        let whole = len as u64 + line.body;
        if whole > self.gather as u64 {
            self.state = State::Body { left: line.body, last };
            return Ok(Part::Line { len, line, last: false });
        }
        line.body = 0;
        let whole = whole as usize;
        if input.len() < whole {
            self.state = State::Gather { len: whole, line, last };
            return Ok(Part::More { want: whole });
        }
        self.gathered(input, whole, line, last)
    }

    #[inline]
    fn gathered(&mut self, input: &[u8], len: usize, line: AnswerLine, last: bool) -> Result<Part, Garbage> {
        self.state = BETWEEN;
        if !input[..len].ends_with(VALUE_END) {
            return Err(Garbage::BadEnd);
        }
        Ok(Part::Line { len, line, last })
    }

    fn body(&mut self, input: &[u8], left: u64, last: bool) -> Result<Part, Garbage> {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        let after = left - len as u64;
        // How much of the value's end was to come before these bytes, and is to come after them.
        let [before, end] = [left, after].map(|left| left.min(VALUE_END.len() as u64) as usize);
        let expected = &VALUE_END[VALUE_END.len() - before..VALUE_END.len() - end];
        if !input[..len].ends_with(expected) {
            return Err(Garbage::BadEnd);
        }
        self.state = if after > 0 { State::Body { left: after, last } } else { BETWEEN };
        Ok(Part::Body { len, last: last && after == 0 })
    }
}

/// Between two lines.
const BETWEEN: State = State::Line { searched: 0 };

/// A line, and whether the answer ends with it and its value.
#[inline]
fn read(expect: Expect, text: &[u8]) -> Result<(AnswerLine, bool), Garbage> {
    let status = status(text);
    let line = AnswerLine { status, body: 0, value: 0, key_at: 0, key_end: 0 };
    match expect {
        Expect::Values if status == Status::Value => Ok((value(text)?, false)),
        Expect::Values if status == Status::End || status.is_error() => Ok((line, true)),
        Expect::Meta if status == Status::MetaValue => Ok((meta_value(text)?, true)),
        Expect::Meta if is_meta(status) || status.is_error() => Ok((line, true)),
        Expect::Stats => Ok((line, status != Status::Stat)),
        Expect::Line if status != Status::Value && status != Status::MetaValue => Ok((line, true)),
        _ => Err(Garbage::Unexpected),
    }
}

/// `VALUE <key> <flags> <bytes>[ <cas>]`
#[inline]
fn value(text: &[u8]) -> Result<AnswerLine, Garbage> {
    const KEY_AT: usize = "VALUE ".len();
    let bad = Garbage::BadLength;
    let rest = text.get(KEY_AT..).ok_or(bad)?;
    let key = memchr(b' ', rest).ok_or(bad)?;
    let rest = &rest[key + 1..];
    let flags = rest.iter().position(|&byte| byte == b' ').ok_or(bad)?;
    let value = length(&rest[flags + 1..])?;
    let key_at = KEY_AT as u16;
    let key_end = (KEY_AT + key) as u16;
    Ok(AnswerLine { status: Status::Value, body: value + 2, value, key_at, key_end })
}

/// `VA <bytes>[ <flag>]*`
fn meta_value(text: &[u8]) -> Result<AnswerLine, Garbage> {
    let value = length(text.get("VA ".len()..).ok_or(Garbage::BadLength)?)?;
    Ok(AnswerLine { status: Status::MetaValue, body: value + 2, value, key_at: 0, key_end: 0 })
}

/// The number that `text` begins with.
fn length(text: &[u8]) -> Result<u64, Garbage> {
    let end = text.iter().position(|&byte| matches!(byte, b' ' | b'\r')).unwrap_or(text.len());
    let length = number::unsigned(&text[..end]).ok_or(Garbage::BadLength)?;
    if length > u64::from(u32::MAX) { Err(Garbage::BadLength) } else { Ok(length) }
}

fn is_meta(status: Status) -> bool {
    use Status as S;
    matches!(
        status,
        S::MetaDone
            | S::MetaMiss
            | S::MetaNotFound
            | S::MetaNotStored
            | S::MetaExists
            | S::MetaDebug
            | S::MetaNoop
            // What memcached before 1.6.10 said for `HD`.
            | S::Ok
    )
}

#[inline]
fn status(text: &[u8]) -> Status {
    if text.starts_with(b"VALUE ") { Status::Value } else { other_status(text) }
}

fn other_status(text: &[u8]) -> Status {
    let word = &text[..memchr(b' ', text).unwrap_or(text.len())];
    match word {
        b"VALUE" => Status::Value,
        b"END" => Status::End,
        b"STORED" => Status::Stored,
        b"HD" => Status::MetaDone,
        b"VA" => Status::MetaValue,
        b"EN" => Status::MetaMiss,
        b"NF" => Status::MetaNotFound,
        b"NS" => Status::MetaNotStored,
        b"EX" => Status::MetaExists,
        b"ME" => Status::MetaDebug,
        b"MN" => Status::MetaNoop,
        b"STAT" | b"ITEM" | b"PREFIX" => Status::Stat,
        b"NOT_STORED" => Status::NotStored,
        b"EXISTS" => Status::Exists,
        b"NOT_FOUND" => Status::NotFound,
        b"DELETED" => Status::Deleted,
        b"TOUCHED" => Status::Touched,
        b"OK" => Status::Ok,
        b"ERROR" | b"CLIENT_ERROR" => Status::ClientError,
        b"SERVER_ERROR" if text == b"SERVER_ERROR out of memory writing get response" => Status::AnswersLost,
        b"SERVER_ERROR" => Status::ServerError,
        [b'0'..=b'9', ..] => Status::Number,
        _ => Status::Other,
    }
}
