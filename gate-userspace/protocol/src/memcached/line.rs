//! A command line: what it asks, and whether memcached would agree.

use std::ops::Range;

use memchr::memchr;

use super::MAX_KEY;
use super::base64::decode;
use super::command::{Command, Quiet};
use super::fault::{Fault, FaultKind};
use crate::{Access, number};

/// A line that can be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) command: Command,
    pub(super) access: Access,
    pub(super) quiet: Quiet,
    /// From the first key to the end of the last: keys with blanks between them.
    pub(super) keys_at: u32,
    pub(super) keys_end: u32,
    pub(super) keys: u32,
    /// True if the key is in base64.
    pub(super) base64: bool,
    /// See [`super::Request::pure`].
    pub(super) pure: bool,
    /// Bytes after the line: a value and its end of line.
    pub(super) body: Option<u64>,
}

/// A line that is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rejected {
    pub(super) fault: Fault,
    /// Bytes after the line that belong to it, as in [`Line::body`]; 0 if it announces no value.
    pub(super) body: u64,
}

impl Rejected {
    /// A storage line whose value has no length that every version reads the same.
    const NO_LENGTH: Self = Self { fault: Fault::answered(FaultKind::NoLength), body: 0 };
}

impl From<Fault> for Rejected {
    fn from(fault: Fault) -> Self {
        Self { fault, body: 0 }
    }
}

/// Bytes that end a value.
pub(super) const VALUE_END: u64 = 2;

/// The longest value that memcached reads the length of.
const MAX_VALUE: u64 = i32::MAX as u64 - VALUE_END;

/// Digits of a length. memcached from 1.6.40 reads no more than 11.
const MAX_LENGTH_DIGITS: usize = 10;

/// Where the first key of a long `gat` begins at the latest.
const MAX_TOUCH_HEAD: u32 = 128;

/// Words of a meta command, itself included.
const MAX_META_WORDS: usize = 19;

/// The words of a line: what is between blanks.
struct Words<'l> {
    line: &'l [u8],
    at: usize,
}

impl Words<'_> {
    /// The next word, if one belongs here.
    fn next_if(&mut self, belongs: bool) -> Option<Range<usize>> {
        if belongs { self.next() } else { None }
    }
}

impl Iterator for Words<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        let mut at = self.at;
        while self.line.get(at) == Some(&b' ') {
            at += 1;
        }
        let start = at;
        while self.line.get(at).is_some_and(|&byte| byte != b' ') {
            at += 1;
        }
        self.at = at;
        (start < at).then_some(start..at)
    }
}

/// Reads a line, without its end.
pub(super) fn parse(line: &[u8]) -> Result<Line, Rejected> {
    if memchr(0, line).is_some() {
        return Err(Fault::answered(FaultKind::Nul).into());
    }
    let mut words = Words { line, at: 0 };
    let name = words.next().ok_or(UNKNOWN)?;
    let command = match &line[name] {
        b"get" | b"bget" => gets(words, Command::Get),
        b"set" => return store(words, Command::Set),
        b"gets" => gets(words, Command::Gets),
        b"mg" => meta(words, Command::MetaGet),
        b"ms" => return meta_set(words),
        b"md" => meta(words, Command::MetaDelete),
        b"ma" => meta(words, Command::MetaArithmetic),
        b"mn" => Ok(Line::plain(Command::MetaNoop)),
        b"me" => meta(words, Command::MetaDebug),
        b"delete" => keyed(words, Command::Delete, 2, 4),
        b"incr" => keyed(words, Command::Incr, 3, 4),
        b"decr" => keyed(words, Command::Decr, 3, 4),
        b"touch" => keyed(words, Command::Touch, 3, 4),
        b"gat" => gets(words, Command::Gat),
        b"gats" => gets(words, Command::Gats),
        b"add" => return store(words, Command::Add),
        b"replace" => return store(words, Command::Replace),
        b"append" => return store(words, Command::Append),
        b"prepend" => return store(words, Command::Prepend),
        b"cas" => return store(words, Command::Cas),
        _ => administer(line),
    };
    command.map_err(Rejected::from)
}

impl Line {
    /// One without keys and value.
    const fn plain(command: Command) -> Self {
        let access = Access::Neither;
        let quiet = Quiet::Answered;
        let base64 = false;
        let pure = false;
        let body = None;
        Self { command, access, quiet, keys_at: 0, keys_end: 0, keys: 0, base64, pure, body }
    }

    /// True if memcached reads it however long it is, or in several parts: only its keys are long.
    pub(super) const fn may_be_long(&self) -> bool {
        match self.command {
            Command::Get | Command::Gets => true,
            Command::Gat | Command::Gats => self.keys > 0 && self.keys_at <= MAX_TOUCH_HEAD,
            _ => false,
        }
    }

    /// One with one key.
    fn of_key(command: Command, access: Access, quiet: Quiet, key: &Range<usize>) -> Self {
        let keys_at = key.start as u32;
        let keys_end = key.end as u32;
        Self { access, quiet, keys_at, keys_end, keys: 1, ..Self::plain(command) }
    }
}

/// `get <key>*`, `gat <time> <key>*`.
fn gets(mut words: Words<'_>, command: Command) -> Result<Line, Fault> {
    let touches = matches!(command, Command::Gat | Command::Gats);
    if touches {
        words.next().ok_or(UNKNOWN)?;
    }
    let mut first = words.line.len();
    let mut end = 0;
    let mut keys = 0;
    for key in words {
        if key.len() > MAX_KEY {
            return Err(Fault::answered(FaultKind::BadFormat));
        }
        first = first.min(key.start);
        end = key.end;
        keys += 1;
    }
    if keys == 0 {
        // `gat <time>` has words enough for memcached, which finds nothing.
        return if touches { Ok(Line::plain(command)) } else { Err(UNKNOWN) };
    }
    let access = if touches { Access::Write } else { Access::Read };
    let keys_at = first as u32;
    let keys_end = end as u32;
    let pure = keys == 1 && !touches;
    Ok(Line { access, keys_at, keys_end, keys, pure, ..Line::plain(command) })
}

/// `set <key> <flags> <time> <bytes> [noreply]`, with a `<cas>` before the last word for `cas`.
fn store(mut words: Words<'_>, command: Command) -> Result<Line, Rejected> {
    let line = words.line;
    let mut next = || words.next().ok_or(Rejected::NO_LENGTH);
    let key = next()?;
    let flags = next()?;
    let time = next()?;
    let bytes = next()?;
    let body = body(&line[bytes.clone()])?;
    let cas = words.next_if(command == Command::Cas);
    // memcached lets this be any word, and ignores it unless it is `noreply`.
    let extra = words.next();
    let is_last = words.next().is_none();
    let last = extra.or(cas.clone()).unwrap_or(bytes);
    let quiet = is_last && is_no_reply(&line[last]);
    let is_number = |word: Range<usize>| number::unsigned(&line[word]).is_some();
    let is_sound = is_at_start(line)
        && key.len() <= MAX_KEY
        && number::unsigned(&line[flags]).is_some_and(|flags| flags <= u64::from(u32::MAX))
        && is_time(&line[time])
        && (command != Command::Cas || cas.is_some_and(is_number))
        && is_last;
    if !is_sound {
        return Err(Rejected { fault: Fault { kind: FaultKind::BadFormat, quiet }, body });
    }
    let quiet = if quiet { Quiet::NoReply } else { Quiet::Answered };
    Ok(Line { body: Some(body), ..Line::of_key(command, Access::Write, quiet, &key) })
}

/// `delete <key>`, `incr <key> <by>`, `touch <key> <time>`, and `noreply` where it is the last of `most` words.
fn keyed(mut words: Words<'_>, command: Command, least: usize, most: usize) -> Result<Line, Fault> {
    let line = words.line;
    let key = words.next().ok_or(UNKNOWN)?;
    let mut count = 2;
    let mut last = 0..0;
    for word in words.by_ref().take(most) {
        count += 1;
        last = word;
    }
    if !(least..=most).contains(&count) {
        return Err(UNKNOWN);
    }
    let no_reply = is_no_reply(&line[last]);
    if key.len() > MAX_KEY {
        return Err(Fault { kind: FaultKind::BadFormat, quiet: no_reply });
    }
    let quiet = if no_reply { Quiet::NoReply } else { Quiet::Answered };
    Ok(Line::of_key(command, Access::Write, quiet, &key))
}

/// `mg <key> <flag>*` and others of its form.
fn meta(mut words: Words<'_>, command: Command) -> Result<Line, Fault> {
    let key = words.next().ok_or(match command {
        Command::MetaDebug => Fault::answered(FaultKind::BadFormat),
        _ => UNKNOWN,
    })?;
    if key.len() > MAX_KEY {
        return Err(Fault::answered(FaultKind::BadFormat));
    }
    let access = match command {
        Command::MetaGet | Command::MetaDebug => Access::Read,
        _ => Access::Write,
    };
    let line = words.line;
    let parsed = flags(Line::of_key(command, access, Quiet::Answered, &key), words).0;
    if parsed.base64 && !is_key_for_all(&line[key]) {
        return Err(UNSUPPORTED);
    }
    Ok(parsed)
}

/// `ms <key> <bytes> <flag>*`. A flag of its own form that is wrong is the store's to refuse: it takes the value.
fn meta_set(mut words: Words<'_>) -> Result<Line, Rejected> {
    let line = words.line;
    let key = words.next().ok_or(Rejected::NO_LENGTH)?;
    let bytes = words.next().ok_or(Rejected::NO_LENGTH)?;
    let body = body(&line[bytes])?;
    let are_flags = Words { ..words }.all(|flag| line[flag.start].is_ascii_alphabetic());
    let (parsed, count) = flags(Line::of_key(Command::MetaSet, Access::Write, Quiet::Answered, &key), words);
    let kind = if !is_at_start(line) || key.len() > MAX_KEY || !are_flags {
        FaultKind::BadFormat
    } else if count > MAX_META_WORDS - 3 {
        FaultKind::TooManyFlags
    } else if parsed.base64 && !is_key_for_all(&line[key]) {
        FaultKind::Unsupported
    } else {
        return Ok(Line { body: Some(body), ..parsed });
    };
    Err(Rejected { fault: Fault::answered(kind), body })
}

/// The bytes of a value and its end, by the word that says its length.
fn body(bytes: &[u8]) -> Result<u64, Rejected> {
    number::unsigned(bytes)
        .filter(|&value| value <= MAX_VALUE && bytes.len() <= MAX_LENGTH_DIGITS)
        .map(|value| value + VALUE_END)
        .ok_or(Rejected::NO_LENGTH)
}

/// False for a line that begins with blanks: memcached from 1.6.40 takes it for no storage line.
fn is_at_start(line: &[u8]) -> bool {
    line.first() != Some(&b' ')
}

/// True if a key in base64 may be used where a connection is shared: memcached writes what it decodes to into answers, where
/// a line's end would begin another client's answer.
fn is_key_for_all(key: &[u8]) -> bool {
    // The store refuses keys that cannot be decoded.
    decode(key, &mut [0; MAX_KEY]).is_none_or(|key| key.iter().all(|&byte| byte > b' ' && byte != DEL))
}

/// Notes a meta command's flags, and counts them.
fn flags(mut line: Line, words: Words<'_>) -> (Line, usize) {
    let text = words.line;
    let mut count = 0;
    line.pure = line.command == Command::MetaGet;
    for flag in words {
        count += 1;
        // The rest depend on when it is asked or by whom, change something, name the key in another way, or are new.
        line.pure &= matches!(&text[flag.clone()], b"c" | b"f" | b"k" | b"s" | b"v");
        match text[flag.start] {
            b'q' if line.command != Command::MetaDebug => line.quiet = Quiet::Unusual,
            b'b' => line.base64 = true,
            // A new time to live, an item made where there is none, the right to make it anew.
            b'T' | b'N' | b'R' => line.access = Access::Write,
            _ => {}
        }
    }
    (line, count)
}

/// Commands for operators, and what is not known.
fn administer(line: &[u8]) -> Result<Line, Fault> {
    // The first words, the last word, and how many there are.
    let words = || Words { line, at: 0 }.map(|word| &line[word]);
    let mut first = words();
    let count = words().count();
    let name = first.next().unwrap_or_default();
    let second = first.next().unwrap_or_default();
    let last = words().last().unwrap_or_default();
    let quiet = if is_no_reply(last) { Quiet::NoReply } else { Quiet::Answered };
    let admin = |command: Command, least: usize, most: usize| {
        // Whether these obey `noreply` depends on the store's version and on the rest of the line.
        let sure = matches!(command, Command::FlushAll | Command::Verbosity) || quiet == Quiet::Answered;
        let (true, true) = ((least..=most).contains(&count), sure) else {
            return Err(if sure { UNKNOWN } else { UNSUPPORTED });
        };
        Ok(Line { quiet, ..Line::plain(command) })
    };
    const ANY: usize = usize::MAX;
    match name {
        b"version" => Ok(Line::plain(Command::Version)),
        b"quit" => Ok(Line::plain(Command::Quit)),
        b"stats" if second == b"gate" => Ok(Line::plain(Command::StatsGate)),
        b"stats" => Ok(Line::plain(Command::Stats)),
        b"flush_all" => {
            let line = admin(Command::FlushAll, 1, 3)?;
            Ok(Line { access: Access::WriteAny, ..line })
        }
        b"verbosity" => admin(Command::Verbosity, 2, 3),
        b"cache_memlimit" => admin(Command::CacheMemlimit, 2, 3),
        b"lru" => admin(Command::Lru, 2, ANY),
        b"lru_crawler" if matches!(second, b"metadump" | b"mgdump") => Err(UNSUPPORTED),
        b"lru_crawler" => Ok(Line::plain(Command::LruCrawler)),
        b"slabs" => admin(Command::Slabs, 1, ANY),
        b"extstore" => admin(Command::Extstore, 2, ANY),
        b"refresh_certs" => admin(Command::RefreshCerts, 1, ANY),
        b"watch" | b"shutdown" => Err(UNSUPPORTED),
        _ if last.starts_with(b"HTTP/") => Err(Fault::answered(FaultKind::Http)),
        _ => Err(UNKNOWN),
    }
}

const DEL: u8 = 0x7f;

fn is_no_reply(word: &[u8]) -> bool {
    word == b"noreply"
}

/// True if memcached takes `word` for a time, of which it keeps the lower 32 bits.
fn is_time(word: &[u8]) -> bool {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
}

const UNKNOWN: Fault = Fault::answered(FaultKind::Unknown);
const UNSUPPORTED: Fault = Fault::answered(FaultKind::Unsupported);
