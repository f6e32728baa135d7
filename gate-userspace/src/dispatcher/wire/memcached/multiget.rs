//! A connection to memcached: consecutive single-key gets become one multiget and are split again.
//!
//! **Merging.** `get a`, `get b` of two clients are written as `get a b`. The store answers with the values that it has, in
//! the order of the keys, and one `END`. A value belongs to the first waiting get whose key it bears; the gets before that one
//! were misses.
//!
//! **Silence.** A request without an answer would leave no trace in a shared connection, and an error in its place would be
//! taken for another's answer. So `noreply` is removed before a request is written, and its answer is not forwarded. The
//! answers of a quiet meta command (flag `q`) cannot be told beforehand: it is followed by `mn`, and the client gets the
//! answers before `MN`.

use std::collections::VecDeque;

use memchr::memchr;

use super::super::buffer::Buffer;
use super::super::{Answer, Link, MalformedReply};
use crate::protocol::memcached::{
    AnswerLine, Answers, Command, Expect, LONGEST_LINE, Part, Quiet, Request, Status,
};

/// A connection on which gets are merged.
#[derive(Debug)]
pub(crate) struct Multiget {
    /// The multiget at the end of the output that lacks its end of line.
    open: Option<Open>,
    /// The keys of merged gets that are not answered: two bytes of length, then the key.
    pub(super) keys: Buffer,
    /// The number of gets of each multiget that are not answered.
    pub(super) groups: VecDeque<u32>,
    answers: Answers,
    /// A line that was read, and not yet taken: its value is for a later get than the first.
    pending: Option<Part>,
    /// Bytes of a merged get's value that are still to come.
    value_left: u64,
    /// The last get of a multiget has its value; `END` is still to come.
    has_value: bool,
    /// Of a request that was sent as several: how many are answered, and whether one of them with an error.
    split: (u16, bool),
}

impl Default for Multiget {
    fn default() -> Self {
        let open = None;
        let keys = Buffer::default();
        let groups = VecDeque::new();
        // Values are passed on as they come, the short ones with their line.
        let answers = Answers::new(SHORT_VALUE);
        Self {
            open,
            keys,
            groups,
            answers,
            pending: None,
            value_left: 0,
            has_value: false,
            split: (0, false),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Open {
    command: Command,
    len: usize,
}

/// The shape of a reply, known before it comes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// A part of a multiget's.
    Merged,
    /// One of this shape.
    Single(Expect),
    /// One of this shape, which the client did not want.
    Discarded(Expect),
    /// So many of this shape, of which the client gets one.
    Split(u16),
    /// Values, behind which the client gets no end: more follow over another connection.
    WithoutEnd,
    /// Nothing or something, and then `MN`, which the client did not ask for.
    UntilNoop,
}

impl Link for Multiget {
    type Request = Request;
    type Expect = Expected;
    /// False: a merged get is known by its key and its place in a multiget.
    const REPEATS: bool = false;

    #[inline]
    fn encode(&mut self, request: &Request, bytes: &[u8], out: &mut Buffer) -> Expected {
        if matches!(request.command, Command::Get | Command::Gets) && request.meta.keys == 1 && request.ends {
            // All of its keys.
            self.merge(request.command, request.keys(bytes).rest(), out);
            return Expected::Merged;
        }
        self.seal(out);
        match request.command {
            // As merged ones are written: memcached may close a connection for a long line that begins otherwise.
            Command::Get | Command::Gets => {
                out.push(request.command.name().as_bytes());
                out.push(b" ");
                out.push(request.keys(bytes).rest());
                out.push(b"\r\n");
                return if request.ends { Expected::Single(request.expect()) } else { Expected::WithoutEnd };
            }
            Command::Gat | Command::Gats if bytes.len() > LONGEST_LINE => {
                return Expected::Split(push_split(request, bytes, out));
            }
            _ => {}
        }
        match request.quiet {
            Quiet::Answered => {
                out.push(bytes);
                Expected::Single(request.expect())
            }
            Quiet::NoReply => {
                push_without_noreply(bytes, out);
                Expected::Discarded(request.expect())
            }
            Quiet::Unusual => {
                out.push(bytes);
                if request.body == 0 {
                    out.push(NOOP);
                }
                Expected::UntilNoop
            }
        }
    }

    fn tail(awaited: &Expected) -> &'static [u8] {
        match awaited {
            Expected::UntilNoop => NOOP,
            Expected::Merged | Expected::Single(_) | Expected::Discarded(_) | Expected::Split(_) => b"",
            Expected::WithoutEnd => b"",
        }
    }

    #[inline]
    fn seal(&mut self, out: &mut Buffer) {
        if self.open.take().is_some() {
            out.push(b"\r\n");
        }
    }

    #[inline]
    fn scan(&mut self, awaited: &Expected, input: &[u8]) -> Result<Answer, MalformedReply> {
        let expect = match *awaited {
            Expected::Merged | Expected::Split(_) | Expected::WithoutEnd => Expect::Values,
            Expected::Single(expect) | Expected::Discarded(expect) => expect,
            Expected::UntilNoop => Expect::Meta,
        };
        let part = match self.pending.take() {
            Some(part) => part,
            None => {
                self.answers.next(expect, input).map_err(|garbage| MalformedReply(garbage.to_string()))?
            }
        };
        if let Part::Line { line: AnswerLine { status: Status::AnswersLost, .. }, .. } = part {
            return Err(MalformedReply("that it has lost answers".to_owned()));
        }
        let (len, last) = match part {
            Part::More { .. } => return Ok(Answer::MORE),
            Part::Line { len, line, last } => match awaited {
                Expected::Merged => return self.merged(input, len, &line, last),
                Expected::UntilNoop if line.status == Status::MetaNoop => {
                    return Ok(Answer { give: 0, add: b"", len, last: true });
                }
                _ => (len, last),
            },
            Part::Body { len, last } => {
                if matches!(awaited, Expected::Merged) {
                    self.value_left -= len as u64;
                    return Ok(self.merged_value(len));
                }
                (len, last)
            }
        };
        if let Expected::Split(count) = *awaited {
            let is_end = matches!(part, Part::Line { line: AnswerLine { status: Status::End, .. }, .. });
            return Ok(self.part_of_split(count, len, last, is_end));
        }
        let gives = match awaited {
            Expected::Discarded(_) => false,
            // An error in place of the end is none for the keys of other connections.
            Expected::WithoutEnd => !last,
            Expected::Merged | Expected::Single(_) | Expected::Split(_) | Expected::UntilNoop => true,
        };
        let give = if gives { len } else { 0 };
        Ok(Answer { give, add: b"", len, last: last && !matches!(awaited, Expected::UntilNoop) })
    }
}

impl Multiget {
    #[inline]
    fn merge(&mut self, command: Command, key: &[u8], out: &mut Buffer) {
        match &mut self.open {
            Some(open) if open.command == command && open.len + key.len() < LONGEST_MERGED => {
                open.len += 1 + key.len();
                *self.groups.back_mut().expect("an open multiget is a group") += 1;
            }
            _ => {
                self.seal(out);
                out.push(command.name().as_bytes());
                self.open = Some(Open { command, len: command.name().len() + 1 + key.len() });
                self.groups.push_back(1);
            }
        }
        out.push(b" ");
        out.push(key);
        self.keys.push(&(key.len() as u16).to_ne_bytes());
        self.keys.push(key);
    }

    /// `len` bytes of an answer to one of `count`: the client gets all values, and one end or the first error.
    fn part_of_split(&mut self, count: u16, len: usize, last: bool, is_end: bool) -> Answer {
        let (answered, has_failed) = self.split;
        let whole = last && answered + 1 == count;
        let gives = !has_failed && (!last || !is_end || whole);
        self.split = match (last, whole) {
            (_, true) => (0, false),
            (true, false) => (answered + 1, has_failed || !is_end),
            (false, _) => self.split,
        };
        Answer { give: if gives { len } else { 0 }, add: b"", len, last: whole }
    }

    /// The key of the first merged get that is not answered.
    #[inline]
    fn key(&self) -> &[u8] {
        match self.keys.bytes() {
            [a, b, rest @ ..] => &rest[..usize::from(u16::from_ne_bytes([*a, *b]))],
            _ => unreachable!("every merged get has its key here"),
        }
    }

    /// The first merged get is answered.
    #[inline]
    fn next_merged(&mut self) {
        self.keys.consume(2 + self.key().len());
        let group = self.groups.front_mut().expect("every merged get is in a group");
        *group -= 1;
        if *group == 0 {
            self.groups.pop_front();
        }
    }

    /// A line of a multiget's answer.
    #[inline]
    fn merged(
        &mut self,
        input: &[u8],
        len: usize,
        line: &AnswerLine,
        last: bool,
    ) -> Result<Answer, MalformedReply> {
        let last_get = self.groups.front() == Some(&1);
        if line.status == Status::Value {
            if !self.has_value && line.key(input) == self.key() {
                self.value_left = line.body;
                return Ok(self.merged_value(len));
            }
            if last_get {
                return Err(MalformedReply("a value that no one asked for".to_owned()));
            }
            // A miss: the value is for one of the next.
            self.pending = Some(Part::Line { len, line: *line, last });
            self.next_merged();
            return Ok(Answer { give: 0, add: END, len: 0, last: true });
        }
        // The end of the multiget, or an error in its place, which is then every get's answer.
        let is_end = line.status == Status::End;
        if !is_end && self.has_value {
            return Err(MalformedReply("an error in the middle of an answer".to_owned()));
        }
        if !last_get {
            self.pending = Some(Part::Line { len, line: *line, last });
        }
        self.has_value = false;
        self.next_merged();
        let (give, add): (_, &[u8]) = if is_end { (0, END) } else { (len, b"") };
        Ok(Answer { give, add, len: if last_get { len } else { 0 }, last: true })
    }

    /// `len` bytes of a value, or of its line.
    #[inline]
    fn merged_value(&mut self, len: usize) -> Answer {
        let part = Answer { give: len, add: b"", len, last: false };
        if self.value_left > 0 {
            return part;
        }
        if self.groups.front() == Some(&1) {
            self.has_value = true;
            return part;
        }
        self.next_merged();
        Answer { add: END, last: true, ..part }
    }
}

/// Appends a long `gat` as several that are not; returns how many.
fn push_split(request: &Request, bytes: &[u8], out: &mut Buffer) -> u16 {
    let time = bytes.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).nth(1).unwrap_or_default();
    let mut count = 0;
    let mut len = LONGEST_LINE;
    for key in request.keys(bytes) {
        if len + 1 + key.len() + 2 > LONGEST_LINE {
            if count > 0 {
                out.push(b"\r\n");
            }
            let name = request.command.name().as_bytes();
            [name, b" ", time].iter().for_each(|word| out.push(word));
            (count, len) = (count + 1, name.len() + 1 + time.len());
        }
        out.push(b" ");
        out.push(key);
        len += 1 + key.len();
    }
    out.push(b"\r\n");
    count
}

/// Appends a request without its last word, which is `noreply`.
fn push_without_noreply(bytes: &[u8], out: &mut Buffer) {
    let end = memchr(b'\n', bytes).unwrap_or(bytes.len());
    let (line, body) = bytes.split_at(end);
    let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_end();
    out.push(line.strip_suffix(b" noreply").unwrap_or(line));
    out.push(b"\r");
    out.push(body);
}

const NOOP: &[u8] = b"mn\r\n";
pub(super) const END: &[u8] = b"END\r\n";
/// memcached reads longer lines in a slower way.
const LONGEST_MERGED: usize = 1_900;
/// A value that is waited for, rather than passed on in pieces.
pub(super) const SHORT_VALUE: usize = 16 << 10;
