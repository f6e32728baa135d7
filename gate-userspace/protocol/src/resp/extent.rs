//! Requests whose work depends on how much their keys hold: their kind, the rows that follow from a size, and the
//! questions for it.
//!
//! A read of all of a key, or of a range up to its end, has as many rows as the key has elements there. Only the store
//! knows them, and tells them at once: `HLEN`, `LLEN`, `SCARD`, `ZCARD`, `ZCOUNT` and `ZLEXCOUNT` read no row. Commands
//! that combine keys, or take a key of any type, are asked about by all questions that may fit: a key of another type
//! answers `WRONGTYPE`, and counts for nothing.

use super::command::Command;
use super::request::Request;
use crate::{Class, RowsBy};

/// Commands whose reads are expected to be alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReadKind {
    /// Not a command of this sort.
    #[default]
    None,
    /// All of a hash.
    Hash,
    /// A range of a list that ends somewhere before its end.
    List,
    /// All of a set.
    Set,
    /// A range of a sorted set by ranks.
    Sorted,
    /// A range of a sorted set by scores or letters.
    Scores,
    /// A range of a stream.
    Stream,
    /// Sorting.
    Sort,
    /// Unions and differences of sets.
    SetCombine,
    /// Unions and differences of sorted sets.
    SortedCombine,
    /// Intersections.
    Intersect,
    /// Places around a place.
    Geo,
    /// Walks over keys.
    Walk,
    /// The removal of keys while the store's clients wait.
    Delete,
    /// Any other whose rows the request does not say.
    Other,
}

/// How the rows of a request follow from the size of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Its kind.
    pub kind: ReadKind,
    /// The values in the reply for each element; zero if the reply does not tell how many elements the key has.
    pub values: u8,
    /// The elements that the key has beyond those that the reply shows.
    pub beyond: u32,
    span: Span,
    questions: Questions,
}

/// The elements of a key that a request reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Span {
    /// Elements that nobody can tell.
    #[default]
    Unknown,
    /// All of each of its keys; a value in the reply for each, or so many.
    All(u8),
    /// The elements from one rank to another.
    Ranks { first: i64, last: i64, values: u8 },
}

/// The questions that tell its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Questions {
    /// No question does.
    #[default]
    None,
    /// Each of these about each key.
    Keys(&'static [&'static [u8]]),
    /// One with the bounds of the request; from the upper one down if they are in that order.
    Bounds { name: &'static [u8], is_reversed: bool },
}

impl Request {
    /// How its rows follow from the size of its keys. `bytes` begin where it does.
    #[must_use]
    #[inline]
    pub fn extent(&self, bytes: &[u8]) -> Extent {
        match self.meta.class {
            Class::Range | Class::Collection | Class::Combine | Class::Scan | Class::Delete => {
                self.extent_of_keys(bytes)
            }
            Class::Get
            | Class::Mget
            | Class::Set
            | Class::Mset
            | Class::Counter
            | Class::Touch
            | Class::Read
            | Class::Write
            | Class::Script
            | Class::Transaction
            | Class::Blocking
            | Class::Pubsub
            | Class::Connection
            | Class::Admin
            | Class::Unknown => Extent::default(),
        }
    }

    fn extent_of_keys(&self, bytes: &[u8]) -> Extent {
        let Some(extent) = self.extent_by_command(bytes) else {
            let is_open = self.meta.rows_by != RowsBy::Request;
            let kind = if is_open { ReadKind::Other } else { ReadKind::None };
            return Extent { kind, ..Extent::default() };
        };
        // A request that is streamed does not have all its keys at hand.
        if self.streamed { Extent { kind: extent.kind, ..Extent::default() } } else { extent }
    }

    fn extent_by_command(&self, bytes: &[u8]) -> Option<Extent> {
        let is_open = self.meta.rows_by != RowsBy::Request;
        let whole = |kind, values, questions| Extent {
            kind,
            values,
            span: Span::All(values),
            questions: Questions::Keys(questions),
            ..Extent::default()
        };
        let combined = |kind, questions| Extent { values: 0, ..whole(kind, 1, questions) };
        let unknown = |kind| Extent { kind, ..Extent::default() };
        let extent = match self.command {
            HGETALL => whole(ReadKind::Hash, 2, HASH),
            HKEYS | HVALS => whole(ReadKind::Hash, 1, HASH),
            SMEMBERS => whole(ReadKind::Set, 1, SET),
            SORT | SORT_RO => {
                let extent = whole(ReadKind::Sort, 1, SORTABLE);
                let is_plain = is_open && !self.has_word(bytes, 2, &["GET", "LIMIT"]);
                if is_plain { extent } else { Extent { values: 0, ..extent } }
            }
            SUNION | SDIFF | SUNIONSTORE | SDIFFSTORE => combined(ReadKind::SetCombine, SET),
            ZUNION | ZDIFF | ZUNIONSTORE | ZDIFFSTORE => combined(ReadKind::SortedCombine, SORTED_OR_SET),
            // They go through the smallest.
            SINTER | SINTERCARD | SINTERSTORE | ZINTER | ZINTERCARD | ZINTERSTORE => {
                unknown(ReadKind::Intersect)
            }
            DEL => Extent { questions: Questions::None, ..combined(ReadKind::Delete, &[]) },
            _ if !is_open => return None,
            LRANGE => self.by_ranks(bytes, ReadKind::List, LIST),
            ZRANGE if self.has_word(bytes, 4, &["BYSCORE"]) => {
                self.by_bounds(bytes, b"ZCOUNT", self.is_reversed(bytes))
            }
            ZRANGE if self.has_word(bytes, 4, &["BYLEX"]) => {
                self.by_bounds(bytes, b"ZLEXCOUNT", self.is_reversed(bytes))
            }
            ZRANGE | ZREVRANGE => self.by_ranks(bytes, ReadKind::Sorted, SORTED),
            ZRANGEBYSCORE => self.by_bounds(bytes, b"ZCOUNT", false),
            ZREVRANGEBYSCORE => self.by_bounds(bytes, b"ZCOUNT", true),
            ZRANGEBYLEX => self.by_bounds(bytes, b"ZLEXCOUNT", false),
            ZREVRANGEBYLEX => self.by_bounds(bytes, b"ZLEXCOUNT", true),
            ZRANGESTORE => unknown(ReadKind::Sorted),
            XRANGE | XREVRANGE => unknown(ReadKind::Stream),
            GEOSEARCH | GEOSEARCHSTORE => unknown(ReadKind::Geo),
            _ if self.meta.class == Class::Scan => unknown(ReadKind::Walk),
            _ => return None,
        };
        Some(extent)
    }

    /// A range from one rank to another.
    fn by_ranks(&self, bytes: &[u8], kind: ReadKind, questions: &'static [&'static [u8]]) -> Extent {
        let mut bounds = self.args(bytes).skip(2).map(rank);
        let (Some(Some(first)), Some(Some(last))) = (bounds.next(), bounds.next()) else {
            return Extent { kind, ..Extent::default() };
        };
        let values = if self.has_word(bytes, 4, &["WITHSCORES"]) { 2 } else { 1 };
        let questions = Questions::Keys(questions);
        let span = Span::Ranks { first, last, values };
        // Only what ends somewhere before the end shows how far that is.
        let beyond = u32::try_from(first.saturating_sub(last).saturating_sub(1));
        match beyond {
            Ok(beyond) if first >= 0 && last < 0 => Extent { kind, values, beyond, span, questions },
            Ok(_) | Err(_) => Extent { kind, values: 0, beyond: 0, span, questions },
        }
    }

    /// A range from one score to another, or from one member.
    fn by_bounds(&self, bytes: &[u8], name: &'static [u8], is_reversed: bool) -> Extent {
        let values = if self.has_word(bytes, 4, &["WITHSCORES"]) { 2 } else { 1 };
        Extent {
            kind: ReadKind::Scores,
            values: 0,
            beyond: 0,
            span: Span::All(values),
            questions: Questions::Bounds { name, is_reversed },
        }
    }

    fn is_reversed(&self, bytes: &[u8]) -> bool {
        self.has_word(bytes, 4, &["REV"])
    }

    /// True if one of `words` is among its arguments from number `from` on.
    fn has_word(&self, bytes: &[u8], from: usize, words: &[&str]) -> bool {
        let mut rest = self.args(bytes).skip(from);
        rest.any(|arg| words.iter().any(|word| arg.eq_ignore_ascii_case(word.as_bytes())))
    }

    /// Appends the questions that tell the size of what it reads; returns how many they are. There are none if no question
    /// tells it, or more than `most` would be needed.
    pub fn size_questions(&self, bytes: &[u8], most: usize, out: &mut Vec<u8>) -> usize {
        match self.extent(bytes).questions {
            Questions::None => 0,
            Questions::Bounds { name, is_reversed } => {
                let mut args = self.args(bytes).skip(1);
                let (Some(key), Some(low), Some(high)) = (args.next(), args.next(), args.next()) else {
                    return 0;
                };
                let (low, high) = if is_reversed { (high, low) } else { (low, high) };
                write(&[name, key, low, high], out);
                1
            }
            Questions::Keys(names) => {
                let keys = || self.read_keys(bytes);
                let count = keys().count() * names.len();
                if count > most {
                    return 0;
                }
                keys().for_each(|key| names.iter().for_each(|name| write(&[name, key], out)));
                count
            }
        }
    }

    /// The keys that it reads: all of its keys but the one that it stores into.
    pub fn read_keys<'b>(&self, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        let stores = matches!(self.command, SUNIONSTORE | SDIFFSTORE | ZUNIONSTORE | ZDIFFSTORE);
        self.keys(bytes).skip(usize::from(stores))
    }
}

impl Extent {
    /// The rows that it reads of keys that hold so many elements together; `None` if they do not follow from that.
    #[must_use]
    pub fn rows(&self, elements: u64) -> Option<u32> {
        let (elements, values) = match self.span {
            Span::Unknown => return None,
            Span::All(values) => (elements, values),
            Span::Ranks { first, last, values } => {
                let len = i64::try_from(elements).unwrap_or(i64::MAX);
                let at = |rank: i64| if rank < 0 { rank.saturating_add(len) } else { rank };
                let first = at(first).max(0);
                let last = at(last).min(len - 1);
                (u64::try_from(last.saturating_sub(first).saturating_add(1)).unwrap_or(0), values)
            }
        };
        Some(u32::try_from(elements.saturating_mul(values.into())).unwrap_or(u32::MAX))
    }

    /// True if a size that is known of each of its keys tells its rows.
    #[must_use]
    pub const fn follows_keys(&self) -> bool {
        match self.questions {
            Questions::Keys(_) => true,
            Questions::None => matches!(self.kind, ReadKind::Delete),
            Questions::Bounds { .. } => false,
        }
    }

    /// True if there is a question that tells its size.
    #[must_use]
    pub const fn can_be_asked(&self) -> bool {
        !matches!(self.questions, Questions::None)
    }
}

/// The size that the answer to a question says; `None` if it says none. A key of another type has nothing for the
/// command that was asked about.
#[must_use]
pub fn told_size(answer: &[u8]) -> Option<u64> {
    if let Some(number) = answer.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b"\r\n")) {
        return crate::number::unsigned(number);
    }
    (super::error_code(answer)? == b"WRONGTYPE").then_some(0)
}

/// True if an answer says that the store has no such command. Any other error may be about the words of the request, or about the
/// moment.
#[must_use]
pub fn says_unknown_command(answer: &[u8]) -> bool {
    answer.starts_with(b"-ERR unknown command")
}

/// A rank; `None` for what the store refuses.
fn rank(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Appends a request.
fn write(args: &[&[u8]], out: &mut Vec<u8>) {
    let length = |kind: u8, length: usize, out: &mut Vec<u8>| {
        out.push(kind);
        crate::number::write(length as u64, out);
        out.extend_from_slice(b"\r\n");
    };
    length(b'*', args.len(), out);
    for arg in args {
        length(b'$', arg.len(), out);
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

const HASH: &[&[u8]] = &[b"HLEN"];
const LIST: &[&[u8]] = &[b"LLEN"];
const SET: &[&[u8]] = &[b"SCARD"];
const SORTED: &[&[u8]] = &[b"ZCARD"];
const SORTED_OR_SET: &[&[u8]] = &[b"ZCARD", b"SCARD"];
const SORTABLE: &[&[u8]] = &[b"LLEN", b"SCARD", b"ZCARD"];

const HGETALL: Command = Command::named("hgetall");
const HKEYS: Command = Command::named("hkeys");
const HVALS: Command = Command::named("hvals");
const SMEMBERS: Command = Command::named("smembers");
const SORT: Command = Command::named("sort");
const SORT_RO: Command = Command::named("sort_ro");
const SUNION: Command = Command::named("sunion");
const SDIFF: Command = Command::named("sdiff");
const SINTER: Command = Command::named("sinter");
const SINTERCARD: Command = Command::named("sintercard");
const SUNIONSTORE: Command = Command::named("sunionstore");
const SDIFFSTORE: Command = Command::named("sdiffstore");
const SINTERSTORE: Command = Command::named("sinterstore");
const ZUNION: Command = Command::named("zunion");
const ZDIFF: Command = Command::named("zdiff");
const ZINTER: Command = Command::named("zinter");
const ZINTERCARD: Command = Command::named("zintercard");
const ZUNIONSTORE: Command = Command::named("zunionstore");
const ZDIFFSTORE: Command = Command::named("zdiffstore");
const ZINTERSTORE: Command = Command::named("zinterstore");
const DEL: Command = Command::named("del");
const LRANGE: Command = Command::named("lrange");
const ZRANGE: Command = Command::named("zrange");
const ZREVRANGE: Command = Command::named("zrevrange");
const ZRANGEBYSCORE: Command = Command::named("zrangebyscore");
const ZREVRANGEBYSCORE: Command = Command::named("zrevrangebyscore");
const ZRANGEBYLEX: Command = Command::named("zrangebylex");
const ZREVRANGEBYLEX: Command = Command::named("zrevrangebylex");
const ZRANGESTORE: Command = Command::named("zrangestore");
const XRANGE: Command = Command::named("xrange");
const XREVRANGE: Command = Command::named("xrevrange");
const GEOSEARCH: Command = Command::named("geosearch");
const GEOSEARCHSTORE: Command = Command::named("geosearchstore");
