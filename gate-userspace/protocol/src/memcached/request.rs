//! Requests out of a stream.

use memchr::memchr;

use super::LONGEST_LINE;
use super::command::{Command, Expect, Quiet};
use super::fault::{Fault, FaultKind};
use super::line::{self, Line, Rejected};
use crate::{RequestMeta, RowsBy, TLS};

/// The decoder's result. See [`crate::Step`].
pub type Step = crate::Step<Request, Fault>;

/// How much is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest line, its end included, in bytes. A `get` of many keys is the longest there is.
    pub line: u32,
    /// The longest value, in bytes. A longer one is swallowed and answered as memcached would; but
    /// memcached also forgets what a `set` would have replaced, so this should be no less than the store's
    /// own limit.
    pub value: u64,
    /// The longest request that is given whole, in bytes; a longer one is streamed.
    pub gather: usize,
}

impl Default for Limits {
    /// 256 KiB (5,000 keys of 50 bytes), 1 GiB (the most that memcached can be set to), 16 KiB (its read buffer).
    fn default() -> Self {
        Self { line: 256 << 10, value: 1 << 30, gather: 16 << 10 }
    }
}

/// A request that can be forwarded as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The command.
    pub command: Command,
    /// The properties that the pipeline uses. Rows are keys.
    pub meta: RequestMeta,
    /// The answers that it gets.
    pub quiet: Quiet,
    /// True if its key is in base64: the same key has other spellings too, so it is no identity.
    pub base64: bool,
    /// True if it reads one key, and what that holds is all that its answer depends on. Such an `mg` is a read only of an
    /// item that is not stale: the first one of a stale item wins the right to make it anew, and is told so.
    pub pure: bool,
    /// Bytes of it that follow in [`Step::Body`]; 0 if it is whole.
    pub body: u64,
    /// False if the end of its answer is not the client's: it is a part of a request, and more follows.
    pub ends: bool,
    keys_at: u32,
    keys_end: u32,
}

impl Request {
    /// The shape of its answer, where it has one.
    #[must_use]
    pub const fn expect(&self) -> Expect {
        self.command.expect()
    }

    /// Its keys as they are written; `bytes` begin where it does.
    #[must_use]
    pub fn keys<'b>(&self, bytes: &'b [u8]) -> Keys<'b> {
        Keys::new(bytes.get(self.keys_at as usize..self.keys_end as usize).unwrap_or_default())
    }

    /// The same as a part of a request, behind whose answer more follows.
    #[must_use]
    pub const fn without_end(self) -> Self {
        Self { ends: false, ..self }
    }

    fn new(line: &Line, len: usize) -> Self {
        let Line { command, access, quiet, keys_at, keys_end, keys, base64, pure, body } = *line;
        let meta = RequestMeta {
            class: command.class(keys),
            access,
            keyed: keys > 0,
            keys,
            rows: keys.max(1),
            rows_by: RowsBy::Request,
            bytes: len as u64 + body.unwrap_or(0),
        };
        Self { command, meta, quiet, base64, pure, body: body.unwrap_or(0), ends: true, keys_at, keys_end }
    }
}

/// A request's keys, in their order.
#[derive(Clone, Debug)]
pub struct Keys<'b> {
    /// Keys with blanks between them.
    rest: &'b [u8],
}

impl<'b> Keys<'b> {
    /// The words of `text`, which begins with one.
    pub(super) const fn new(text: &'b [u8]) -> Self {
        Self { rest: text }
    }

    /// The words that have not been read.
    pub const fn rest(&self) -> &'b [u8] {
        self.rest
    }
}

impl<'b> Iterator for Keys<'b> {
    type Item = &'b [u8];

    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = memchr(b' ', self.rest).unwrap_or(self.rest.len());
        let (key, rest) = self.rest.split_at(end);
        let blanks = rest.iter().take_while(|&&byte| byte == b' ').count();
        self.rest = &rest[blanks..];
        Some(key)
    }
}

/// Requests out of one client's stream, or out of one datagram.
#[derive(Clone, Debug)]
pub struct Decoder {
    limits: Limits,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing has come yet: the first bytes tell the text protocol from the binary one, and from TLS.
    Fresh,
    /// Within a line, of which so many bytes are known to hold no end.
    Line { searched: usize },
    /// Within a request that is given whole, once so many bytes are there.
    Gather { len: usize, request: Request },
    /// So many bytes of a request are to be passed on.
    Body { left: u64 },
    /// So many bytes of a value at fault are to be swallowed.
    Swallow { left: u64 },
    /// A fault has ended the connection.
    Closed,
}

impl Decoder {
    /// One that expects a client's first byte.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self { limits, state: State::Fresh }
    }

    /// The step at the start of `input`, the bytes that no earlier step has taken.
    #[inline]
    pub fn next(&mut self, input: &[u8]) -> Step {
        match self.state {
            State::Line { searched } => self.line(input, searched),
            State::Gather { len, .. } if input.len() < len => Step::More { want: len },
            State::Gather { len, request } => {
                self.state = BETWEEN;
                Step::Request { len, request }
            }
            State::Fresh => self.first(input),
            _ if input.is_empty() => Step::More { want: 1 },
            State::Body { left } => {
                let len = reach(left, input);
                let left = left - len as u64;
                self.state = if left > 0 { State::Body { left } } else { BETWEEN };
                Step::Body { len, last: left == 0 }
            }
            State::Swallow { left } => {
                let len = reach(left, input);
                let left = left - len as u64;
                self.state = if left > 0 { State::Swallow { left } } else { BETWEEN };
                Step::Skip { len }
            }
            State::Closed => Step::Skip { len: input.len() },
        }
    }

    fn first(&mut self, input: &[u8]) -> Step {
        const MAGIC: u8 = 0x80;
        const HEADER: usize = 24;
        match *input {
            [] => Step::More { want: 1 },
            [MAGIC, opcode, ref rest @ ..] if input.len() >= HEADER => {
                let mut opaque = [0; 4];
                opaque.copy_from_slice(&rest[10..14]);
                self.fault(input.len(), Fault::answered(FaultKind::Binary { opcode, opaque }))
            }
            [MAGIC, ..] => Step::More { want: HEADER },
            [first] if first == TLS[0] => Step::More { want: TLS.len() },
            _ if input.starts_with(&TLS) => self.fault(input.len(), Fault::answered(FaultKind::Tls)),
            _ => {
                self.state = BETWEEN;
                self.line(input, 0)
            }
        }
    }

    #[inline]
    fn line(&mut self, input: &[u8], searched: usize) -> Step {
        let limit = self.limits.line as usize;
        let within = &input[..input.len().min(limit)];
        let Some(newline) = memchr(b'\n', &within[searched..]) else {
            if input.len() >= limit {
                return self.fault(input.len(), Fault::answered(FaultKind::EndlessLine));
            }
            self.state = State::Line { searched: input.len() };
            return Step::More { want: input.len() + 1 };
        };
        let newline = searched + newline;
        // As memcached, which leaves a carriage return alone that has nothing before it.
        let end = if newline > 1 && input[newline - 1] == b'\r' { newline - 1 } else { newline };
        let len = newline + 1;
        match line::parse(&input[..end]) {
            Ok(line) => self.parsed(input, len, &line),
            Err(Rejected { fault, body }) => {
                let step = self.fault(len, fault);
                if body > 0 {
                    self.state = State::Swallow { left: body };
                }
                step
            }
        }
    }

    #[inline]
    fn parsed(&mut self, input: &[u8], len: usize, line: &Line) -> Step {
        self.state = BETWEEN;
        if len > LONGEST_LINE && !line.may_be_long() {
            self.state = line.body.map_or(BETWEEN, |left| State::Swallow { left });
            let quiet = line.quiet == Quiet::NoReply;
            return Step::Fault { len, fault: Fault { kind: FaultKind::LongLine, quiet } };
        }
        let mut request = Request::new(line, len);
        let Some(body) = line.body else {
            return Step::Request { len, request };
        };
        if body - line::VALUE_END > self.limits.value {
            self.state = State::Swallow { left: body };
            let quiet = line.quiet == Quiet::NoReply;
            return Step::Fault { len, fault: Fault { kind: FaultKind::TooLarge, quiet } };
        }
        if request.meta.bytes > self.limits.gather as u64 {
            self.state = State::Body { left: body };
            return Step::Request { len, request };
        }
        request.body = 0;
        let whole = len + body as usize;
        if input.len() < whole {
            self.state = State::Gather { len: whole, request };
            return Step::More { want: whole };
        }
        Step::Request { len: whole, request }
    }

    fn fault(&mut self, len: usize, fault: Fault) -> Step {
        self.state = if fault.closes() { State::Closed } else { BETWEEN };
        Step::Fault { len, fault }
    }
}

/// Between two requests.
const BETWEEN: State = State::Line { searched: 0 };

/// How much of `left` bytes `input` holds.
fn reach(left: u64, input: &[u8]) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(input.len())
}
