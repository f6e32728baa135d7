//! Requests out of a stream.

use memchr::memchr;

use super::args::{Args, Keys, Run};
use super::command::{Command, State};
use super::fault::{Fault, FaultKind};
use super::inline::Rewritten;
use super::length::{self, Length};
use super::shape::{self, Shape};
use crate::{RequestMeta, TLS, number};

/// The decoder's result. See [`crate::Step`].
pub type Step = crate::Step<Request, Fault>;

/// How much is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest inline request, its end included, in bytes.
    pub inline: u32,
    /// The most arguments of a request.
    pub args: u32,
    /// The longest argument, in bytes.
    pub bulk: u64,
    /// The longest request that is given whole, in bytes; a longer one is streamed. Inline requests are
    /// always given whole.
    pub gather: u32,
}

impl Default for Limits {
    /// 64 KiB, 2^31 - 1, 512 MiB, as Redis from 7.0; 16 KiB, which is what it reads at once. Arguments beyond what is gathered
    /// take no memory here.
    fn default() -> Self {
        Self { inline: 64 << 10, args: i32::MAX as u32, bulk: 512 << 20, gather: 16 << 10 }
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The command.
    pub command: Command,
    /// The properties that the pipeline uses. Rows are keys, fields, or what bounds, `COUNT` and `LIMIT` say; 100 where
    /// only the store knows; 10,000 at most.
    pub meta: RequestMeta,
    /// The state of the store's connection that it needs or changes.
    pub state: State,
    /// How many arguments it has, its name included.
    pub args: u32,
    /// True if it came inline: its bytes are [`Decoder::bytes`], not what it takes of the input.
    pub inline: bool,
    /// True if the rest of it follows in [`Step::Body`].
    pub streamed: bool,
    /// True if it reads one key, and what that holds is all that its answer depends on.
    pub pure: bool,
    /// Where its first argument begins, and how many are at hand.
    first: u8,
    seen: u32,
    runs: [Run; 2],
}

impl Request {
    /// Its arguments, the name first; of one that is streamed, those in its head. `bytes` begin where it
    /// does.
    #[must_use]
    pub fn args<'b>(&self, bytes: &'b [u8]) -> Args<'b> {
        Args::new(bytes, self.first.into(), self.seen)
    }

    /// Appends the same request by another name; of one that is streamed, its head.
    pub fn write_as(&self, name: &[u8], bytes: &[u8], out: &mut Vec<u8>) {
        self.write_with(0, name, bytes, out);
    }

    /// Appends the same request with another argument at a place, which it has, the name at 0; of one that is streamed, its head.
    pub fn write_with(&self, place: usize, arg: &[u8], bytes: &[u8], out: &mut Vec<u8>) {
        let mut args = self.args(bytes);
        (0..place).for_each(|_| _ = args.next());
        out.extend_from_slice(&bytes[..args.at()]);
        args.next();
        out.push(b'$');
        number::write(arg.len() as u64, out);
        for piece in [&b"\r\n"[..], arg, b"\r\n", &bytes[args.at()..]] {
            out.extend_from_slice(piece);
        }
    }

    /// Its keys; of one that is streamed, those in its head. `bytes` begin where it does.
    #[must_use]
    pub fn keys<'b>(&self, bytes: &'b [u8]) -> Keys<'b> {
        Keys::new(bytes, self.runs)
    }
}

/// Requests out of one client's stream.
#[derive(Clone, Debug)]
pub struct Decoder {
    limits: Limits,
    state: Progress,
    rewritten: Rewritten,
    familiar: Familiar,
}

/// How the last request began, its name included, and what that meant: most are followed by more of their kind.
#[derive(Clone, Copy, Debug, Default)]
struct Familiar {
    bytes: [u8; Self::LONGEST],
    scan: Option<Scan>,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    /// Between two requests.
    Between,
    /// Within an inline request, of which so many bytes are known to hold no end.
    Inline { searched: usize },
    /// Within an array, of which nothing has been given yet.
    Head(Scan),
    /// Within a request that is streamed: so many bytes of an argument and its end are to come, then so many
    /// arguments.
    Body { bytes: u64, args: u32 },
    /// A fault has ended the connection.
    Closed,
}

/// How far an array has been read.
#[derive(Clone, Copy, Debug)]
struct Scan {
    /// Bytes of its length and of the arguments that have been read.
    at: usize,
    /// Where its first argument begins.
    first: u8,
    args: u32,
    /// How many arguments have been read.
    seen: u32,
    command: Command,
    /// The number of its first key, and the keys that have been read.
    key: u32,
    keys: Run,
    /// How many keys there will have been.
    expected: u32,
}

impl Decoder {
    /// One that expects a client's first byte.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let (rewritten, familiar) = Default::default();
        Self { limits, state: Progress::Between, rewritten, familiar }
    }

    /// The bytes of the request that was given last: what it took of the input, or, if it came inline, what it
    /// has been rewritten to.
    #[must_use]
    pub fn bytes<'b>(&'b self, request: &Request, taken: &'b [u8]) -> &'b [u8] {
        if request.inline { self.rewritten.bytes() } else { taken }
    }

    /// The step at the start of `input`, the bytes that no earlier step has taken.
    #[inline]
    pub fn next(&mut self, input: &[u8]) -> Step {
        let Some(&byte) = input.first() else { return Step::More { want: 1 } };
        match self.state {
            Progress::Between if byte == b'*' => self.array(input),
            Progress::Between if input == &TLS[..1] => Step::More { want: TLS.len() },
            Progress::Between if input.starts_with(&TLS) => self.fault(input.len(), FaultKind::Tls),
            Progress::Between => self.inline(input, 0),
            Progress::Head(scan) => self.head(input, &scan),
            Progress::Inline { searched } => self.inline(input, searched),
            Progress::Body { bytes, args } => self.body(input, bytes, args),
            Progress::Closed => Step::Skip { len: input.len() },
        }
    }

    /// `*<args>`, then the arguments.
    #[inline]
    fn array(&mut self, input: &[u8]) -> Step {
        if let Some(scan) = self.familiar.scan_of(input) {
            return self.head(input, &scan);
        }
        match length::read(input, 1) {
            Length::Incomplete => Step::More { want: input.len() + 1 },
            Length::Is(args, at) if args <= 0 => Step::Skip { len: at },
            Length::Is(args, at) if args <= i64::from(self.limits.args) => {
                let args = args as u32;
                let first = at as u8;
                let command = Command::UNKNOWN;
                self.head(
                    input,
                    &Scan { at, first, args, seen: 0, command, key: 0, keys: Run::default(), expected: 0 },
                )
            }
            Length::Is(..) | Length::Bad => self.fault(input.len(), FaultKind::ArrayLength),
        }
    }

    /// The arguments, until all are there, or more than are gathered.
    #[inline]
    fn head(&mut self, input: &[u8], begun: &Scan) -> Step {
        // A copy of its own stays in registers.
        let mut scan = *begun;
        while scan.seen < scan.args {
            let (start, len) = match self.bulk(input, scan.at) {
                Ok(Some(bulk)) => bulk,
                Ok(None) => {
                    self.state = Progress::Head(scan);
                    return Step::More { want: input.len() + 1 };
                }
                Err(fault) => return self.fault(input.len(), fault),
            };
            let end = start as u64 + len + BULK_END.len() as u64;
            if end > u64::from(self.limits.gather) {
                self.state = Progress::Body { bytes: end - start as u64, args: scan.args - scan.seen - 1 };
                return self.give(input, start, end, &scan);
            }
            let end = end as usize;
            if input.len() < end {
                self.state = Progress::Head(scan);
                return Step::More { want: end };
            }
            let (arg, bulk_end) = input[start..end].split_at(len as usize);
            if bulk_end != BULK_END {
                return self.fault(input.len(), FaultKind::BulkEnd);
            }
            if let Err(fault) = scan.arg(arg) {
                return self.fault(input.len(), fault);
            }
            scan.at = end;
            if scan.seen == 1 {
                self.familiar.remember(input, &scan);
            }
        }
        self.state = Progress::Between;
        self.give(input, scan.at, scan.at as u64, &scan)
    }

    /// A request, or its head, of `len` bytes; `bytes` are known of in all.
    #[inline(always)]
    fn give(&mut self, input: &[u8], len: usize, bytes: u64, scan: &Scan) -> Step {
        let request = scan.request(&input[..len], bytes);
        if request.login_may_half_happen(&input[..len]) {
            return self.fault(input.len(), FaultKind::Login);
        }
        Step::Request { len, request }
    }

    /// Where the argument that begins at `at` has its data, and how much; `None` if that has not come.
    #[inline]
    fn bulk(&self, input: &[u8], at: usize) -> Result<Option<(usize, u64)>, FaultKind> {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&byte) => return Err(FaultKind::NotBulk(byte)),
        }
        match length::read(input, at + 1) {
            Length::Incomplete => Ok(None),
            Length::Is(len, start) => match u64::try_from(len) {
                Ok(len) if len <= self.limits.bulk => Ok(Some((start, len))),
                _ => Err(FaultKind::BulkLength),
            },
            Length::Bad => Err(FaultKind::BulkLength),
        }
    }

    /// As much of a body as has come. What is at fault is not told before what precedes it is given.
    fn body(&mut self, input: &[u8], mut bytes: u64, mut args: u32) -> Step {
        let mut at = 0;
        let fault = loop {
            // All but the argument's end, which is looked at whole.
            let data = bytes.saturating_sub(BULK_END.len() as u64);
            let len = usize::try_from(data).unwrap_or(usize::MAX).min(input.len() - at);
            (at, bytes) = (at + len, bytes - len as u64);
            if bytes == BULK_END.len() as u64 {
                match input.get(at..at + BULK_END.len()) {
                    None => break None,
                    Some(BULK_END) => (at, bytes) = (at + BULK_END.len(), 0),
                    Some(_) => break Some(FaultKind::BulkEnd),
                }
            }
            if bytes > 0 || args == 0 {
                break None;
            }
            match self.bulk(input, at) {
                Ok(Some((start, len))) => (at, bytes, args) = (start, len + BULK_END.len() as u64, args - 1),
                Ok(None) => break None,
                Err(fault) => break Some(fault),
            }
        };
        let last = bytes == 0 && args == 0;
        self.state = if last { Progress::Between } else { Progress::Body { bytes, args } };
        match fault {
            _ if at > 0 => Step::Body { len: at, last },
            Some(fault) => self.fault(input.len(), fault),
            None => Step::More { want: input.len() + 1 },
        }
    }

    #[inline(never)]
    fn inline(&mut self, input: &[u8], searched: usize) -> Step {
        let limit = self.limits.inline as usize;
        let within = &input[..input.len().min(limit)];
        let Some(newline) = memchr(b'\n', &within[searched..]) else {
            if input.len() >= limit {
                return self.fault(input.len(), FaultKind::EndlessLine);
            }
            self.state = Progress::Inline { searched: input.len() };
            return Step::More { want: input.len() + 1 };
        };
        self.state = Progress::Between;
        let newline = searched + newline;
        let line = &input[..newline];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let len = newline + 1;
        match self.rewritten.rewrite(line) {
            Ok(0) => Step::Skip { len },
            Ok(args) => {
                let bytes = self.rewritten.bytes();
                match Scan::whole(bytes, args) {
                    Ok(scan) => {
                        let request = Request { inline: true, ..scan.request(bytes, bytes.len() as u64) };
                        if request.login_may_half_happen(bytes) {
                            return self.fault(input.len(), FaultKind::Login);
                        }
                        Step::Request { len, request }
                    }
                    Err(fault) => self.fault(input.len(), fault),
                }
            }
            Err(fault) => self.fault(input.len(), fault),
        }
    }

    #[cold]
    fn fault(&mut self, len: usize, kind: FaultKind) -> Step {
        self.state = Progress::Closed;
        Step::Fault { len, fault: Fault { kind } }
    }
}

const BULK_END: &[u8] = b"\r\n";

impl Familiar {
    /// `*9\r\n$9\r\n`, a name of nine bytes, and its end.
    const LONGEST: usize = 19;

    /// The properties of a request that begins as the last one did.
    #[inline]
    fn scan_of(&self, input: &[u8]) -> Option<Scan> {
        self.scan.filter(|scan| input.starts_with(&self.bytes[..scan.at]))
    }

    #[inline]
    fn remember(&mut self, input: &[u8], scan: &Scan) {
        if let Some(bytes) = self.bytes.get_mut(..scan.at) {
            bytes.copy_from_slice(&input[..scan.at]);
            self.scan = Some(*scan);
        }
    }
}

impl Scan {
    /// Of `bytes` that are known to be an array of `args` bulk strings.
    fn whole(bytes: &[u8], args: u32) -> Result<Self, FaultKind> {
        let Length::Is(_, at) = length::read(bytes, 1) else { return Err(FaultKind::ArrayLength) };
        let first = at as u8;
        let command = Command::UNKNOWN;
        let keys = Run::default();
        let mut scan = Self { at, first, args, seen: 0, command, key: 0, keys, expected: 0 };
        let mut rest = Args::new(bytes, at, args);
        while let Some(arg) = rest.next() {
            scan.arg(arg)?;
            scan.at = rest.at();
        }
        Ok(scan)
    }

    /// Notes the next argument, which begins at `at`.
    #[inline]
    fn arg(&mut self, arg: &[u8]) -> Result<(), FaultKind> {
        match self.seen {
            0 => {
                self.command = Command::find(arg);
                if self.command == Command::UNKNOWN && is_http(arg) {
                    return Err(FaultKind::Http);
                }
                self.look_for_keys();
            }
            1 if self.command.spec().parent => {
                self.command = self.command.sub(arg);
                self.look_for_keys();
            }
            _ => {}
        }
        if self.seen >= self.key && self.keys.count < self.expected {
            if self.keys.count == 0 {
                self.keys.at = self.at as u32;
            }
            let place = self.seen - self.key;
            let step = u32::from(self.keys.step);
            self.keys.count += u32::from(step == 1 || place.is_multiple_of(step));
        }
        self.seen += 1;
        Ok(())
    }

    #[inline]
    fn look_for_keys(&mut self) {
        (self.key, self.expected, self.keys.step) =
            shape::fixed_keys(self.command.spec().keys, self.args).unwrap_or_default();
    }

    /// The properties of the request; `bytes` is its length as far as it is known.
    #[inline(always)]
    fn request(&self, head: &[u8], bytes: u64) -> Request {
        let Self { first, args, seen, command, keys, expected, .. } = *self;
        let at_hand = Args::new(head, first.into(), seen);
        let Shape { access, state, keys, rows, rows_by, runs } =
            shape::read(command, &at_hand, args, expected, keys);
        let class = command.spec().class;
        let keyed = keys > 0;
        let meta = RequestMeta { class, access, keyed, keys, rows, rows_by, bytes };
        let streamed = seen < args;
        let pure = command.spec().pure && keys == 1 && !streamed;
        Request { command, meta, state, args, inline: false, streamed, pure, first, seen, runs }
    }
}

/// True if Redis takes this for the beginning of an HTTP request.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}
