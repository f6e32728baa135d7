//! The scanner of memcached's lines: a loop that the kernel bounds, of which the verifier sees one step.
//!
//! A step looks at one word of a line, or counts the words in some bytes. What the lines mean is written in [`super::memcached`].

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::cty::{c_long, c_void};
use aya_ebpf::helpers::generated::{bpf_loop, bpf_xdp_load_bytes};
use gate_common::abi::QueryClass;

use super::memcached::FRAME_HEADER;
use super::verb::{Verb, text8};
use super::{Bytes, Packet, swar};
use crate::maps::opaque_value;

/// What became of a scan.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// It stopped before the end: from [`Scan::line`] on nothing was read.
    Unread,
    /// Every line was read.
    Read,
    /// A line or its data has no end.
    Malformed,
}

/// A scan and its sums. Offsets count from the packet's start.
#[repr(C)]
pub(crate) struct Scan {
    /// The next byte.
    at: u32,
    /// Where the payload ends.
    pub(crate) end: u32,
    /// Where the part of it ends that can be read.
    readable: u32,
    /// Where the present line starts.
    pub(crate) line: u32,
    /// The present line's command; [`Verb::NONE`] before it is known.
    verb: Verb,
    /// Words of the present line after the command.
    words: u32,
    /// Bytes of the present word.
    word_len: u32,
    /// [`FIRST_BYTE`] if the byte before the next is a space.
    after_space: u32,
    /// The present word as a number, if it should be one.
    number: u64,
    /// Bytes of the data after the present line.
    data_len: u32,
    /// The present line may not be what memcached needs before it takes data.
    broken: bool,
    /// Nobody waits for an answer to the present line.
    quiet: bool,
    /// Somebody waits for an answer to a line.
    pub(crate) answerable: bool,
    /// The frame header's request id, in network order.
    pub(crate) id: u16,
    /// The first key.
    pub(crate) key: Key,
    /// How many keys all lines name.
    pub(crate) rows: u32,
    /// How many lines, by [`QueryClass`].
    pub(crate) commands: [u32; QueryClass::COUNT],
    /// What became of it.
    pub(crate) status: Status,
    /// Where in the frame the copy starts.
    copy_at: u32,
    /// A copy of the payload of a frame whose linear part does not hold it, and room to read a word at its end.
    copy: [u8; MAX_READ as usize + 8],
}

/// A key that may be sampled.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    /// Where it starts; zero if there is none.
    pub(crate) at: u32,
    /// Its length; zero if it goes on to the next space or end of a line.
    pub(crate) len: u32,
    /// Whether it is written.
    pub(crate) writes: bool,
}

impl Key {
    /// No key.
    pub(crate) const NONE: Self = Self { at: 0, len: 0, writes: false };
}

/// What a step gets: the verifier follows pointers on the stack, where the helper needs them.
struct Step {
    ctx: *mut xdp_md,
    scan: *mut Scan,
}

/// Scans the payload that starts at `payload_at` and ends at `end`, of which the packet shows what lies before `shown`.
#[inline(never)]
pub(crate) fn run(ctx: *mut xdp_md, scan: *mut Scan, payload_at: u32, end: u32, shown: u32) {
    let at = payload_at + FRAME_HEADER;
    let mut readable = shown.min(MAX_READ).min(end);
    let linear = Packet::of(ctx).len() as u32;
    if readable > linear && !copy(ctx, scan, payload_at, readable) {
        readable = linear;
    }
    // SAFETY: this CPU's own scratch; `loop_step` has the signature that the helper calls, and what it gets
    // outlives the call.
    unsafe {
        (*scan).at = at;
        (*scan).end = end;
        (*scan).readable = readable;
        (*scan).line = at;
        (*scan).verb = Verb::NONE;
        (*scan).answerable = false;
        (*scan).key = Key::NONE;
        (*scan).rows = 0;
        (*scan).commands = [0; QueryClass::COUNT];
        (*scan).status = Status::Unread;
        let mut step = Step { ctx, scan };
        bpf_loop(MAX_STEPS, loop_step as *mut c_void, (&raw mut step).cast(), 0);
    }
}

/// Copies the payload from `from` to `to`; whether that worked.
#[inline(always)]
fn copy(ctx: *mut xdp_md, scan: *mut Scan, from: u32, to: u32) -> bool {
    if to <= from {
        return false;
    }
    // A mask and an addition bound the length for the verifier.
    let len = (opaque_value(u64::from(to - from) - 1) & (u64::from(MAX_READ) - 1)) + 1;
    // SAFETY: this CPU's own scratch, which has room for `MAX_READ` bytes.
    unsafe {
        (*scan).copy_at = from;
        bpf_xdp_load_bytes(ctx, from, (&raw mut (*scan).copy).cast(), len as u32) == 0
    }
}

/// The helper's signature; goes on while it returns zero.
unsafe extern "C" fn loop_step(_index: u32, step: *mut c_void) -> c_long {
    // SAFETY: what `run` lent to the helper.
    let (ctx, scan) = unsafe {
        let step = step.cast::<Step>();
        ((*step).ctx, &mut *(*step).scan)
    };
    c_long::from(scan.step(&Packet::of(ctx)).is_none())
}

impl Scan {
    /// Looks at eight bytes at most; `None` when the scan is over.
    #[inline(always)]
    fn step(&mut self, packet: &Packet) -> Option<()> {
        if self.verb == Verb::NONE {
            let word = self.next(packet)?;
            self.start_line(word)?;
        }
        let verb = self.verb;
        if verb.has(Verb::WORDS) {
            let word = self.next(packet)?;
            return self.look_at_word(packet, verb, word);
        }
        for _ in 0..AT_ONCE {
            let word = self.next(packet)?;
            if let Some(end) = self.count_words(word)? {
                return self.end_line(packet, verb, end);
            }
        }
        Some(())
    }

    /// The next eight bytes; zeros follow the last that can be read. `None` if none can.
    #[inline(always)]
    fn next(&self, packet: &Packet) -> Option<u64> {
        let last = self.readable - 8;
        if self.at <= last {
            return self.word(packet, self.at);
        }
        if self.at >= self.readable {
            return None;
        }
        Some(self.word(packet, last)? >> ((8 * (self.at - last)) & 63))
    }

    /// The eight bytes at `at`, from the packet or from the copy.
    #[inline(always)]
    fn word(&self, packet: &Packet, at: u32) -> Option<u64> {
        match packet.word(at) {
            None => {
                // The mask changes nothing; it shows the verifier a bound.
                let place =
                    opaque_value(u64::from(at.wrapping_sub(self.copy_at))) as usize & (MAX_READ as usize - 1);
                // SAFETY: within the copy, which has room for a word at its end.
                Some(Bytes::<8>(unsafe { self.copy.as_ptr().add(place).cast_mut() }).get::<u64, 0>())
            }
            word => word,
        }
    }

    #[inline(always)]
    fn over(&mut self, status: Status) -> Option<()> {
        self.status = status;
        None
    }

    /// The present line has no end among the bytes that can be read.
    #[inline(always)]
    fn endless(&mut self) -> Option<()> {
        if self.readable < self.end { None } else { self.over(Status::Malformed) }
    }

    /// Reads the command, up to its first word.
    #[inline(always)]
    fn start_line(&mut self, word: u64) -> Option<()> {
        if word as u8 == BINARY {
            return self.over(Status::Unread);
        }
        let (verb, len) = Verb::of(word);
        self.at += len;
        self.verb = verb;
        self.words = 0;
        self.word_len = 0;
        self.number = 0;
        self.after_space = FIRST_BYTE;
        self.broken = false;
        // Every command is written in small letters, and no answer is: an answer is never answered.
        self.quiet = !(word as u8).is_ascii_lowercase();
        if verb.has(Verb::SAMPLED) && !verb.has(Verb::WORDS) {
            self.found_key(verb, self.at);
        }
        if self.at < self.end { Some(()) } else { self.endless() }
    }

    #[inline(always)]
    fn found_key(&mut self, verb: Verb, at: u32) {
        if self.key.at == 0 {
            self.key = Key { at, len: 0, writes: verb.has(Verb::WRITES) };
        }
    }

    /// Counts the words that start in these bytes; returns where the line ends, if it does there.
    #[inline(always)]
    fn count_words(&mut self, word: u64) -> Option<Option<u32>> {
        let spaces = swar::equal(word, b' ');
        let starts = !spaces & swar::HIGH & (spaces << 8 | u64::from(self.after_space));
        let ends = swar::equal(word, b'\n');
        if ends == 0 {
            self.words += swar::count(starts);
            self.after_space = (spaces >> 56) as u32;
            self.at += 8;
            if self.at >= self.end {
                self.endless()?;
            }
            return Some(None);
        }
        self.words += swar::count(starts & swar::below_first(ends));
        Some(Some(self.at + swar::before_first(ends)))
    }

    /// Looks at the next word, or as much of it as these bytes hold.
    #[inline(always)]
    fn look_at_word(&mut self, packet: &Packet, verb: Verb, word: u64) -> Option<()> {
        let ends = swar::equal(word, b' ') | swar::equal(word, b'\n') | swar::equal(word, b'\r');
        let len = if ends == 0 { 8 } else { swar::before_first(ends) };
        let (stop, after) = ((word >> ((8 * len) & 63)) as u8, (word >> ((8 * (len + 1)) & 63)) as u8);
        if ends == 0 || (stop == b'\r' && (len == 7 || after != b'\n')) {
            // The word goes on. A carriage return within a line is part of it, but too odd to be sure of.
            let odd = ends != 0 && len < 7;
            let len = if odd { len + 1 } else { len };
            self.broken |= odd;
            self.part_of_word(verb, word, len);
            self.at += len;
            return if self.at < self.end { Some(()) } else { self.endless() };
        }
        self.part_of_word(verb, word, len);
        self.at += len;
        if self.word_len != 0 {
            self.end_word(verb, self.word_len == 1 && word as u8 == b'q');
        }
        match stop {
            b' ' => {
                self.at += 1;
                if self.at < self.end { Some(()) } else { self.endless() }
            }
            b'\r' => self.end_line(packet, verb, self.at + 1),
            _ => self.end_line(packet, verb, self.at),
        }
    }

    /// Takes the first `len` bytes into the present word.
    #[inline(always)]
    fn part_of_word(&mut self, verb: Verb, word: u64, len: u32) {
        if verb.has(Verb::DATA) {
            if verb.is_number(self.words) {
                let negative = self.words == EXPIRY && self.word_len == 0 && len > 1 && word as u8 == b'-';
                let digits = if negative { word ^ u64::from(b'-' ^ b'0') } else { word };
                match swar::decimal(digits, len) {
                    Some(number) if self.word_len + len <= MAX_DIGITS => {
                        self.number = self.number * swar::power_of_ten(len) + u64::from(number);
                    }
                    _ => self.broken = true,
                }
            } else {
                // For memcached a zero byte ends the line.
                let beyond = if len == 8 { 0 } else { u64::MAX << ((8 * len) & 63) };
                self.broken |= swar::any_below(word | beyond, 1);
            }
        }
        self.word_len += len;
    }

    /// Takes the present word, which `at` now follows. `q` alone asks a meta command to be quiet.
    #[inline(always)]
    fn end_word(&mut self, verb: Verb, is_q: bool) {
        let place = self.words;
        self.words += 1;
        if verb.has(Verb::SAMPLED) && place == verb.first_key() {
            self.found_key(verb, self.at - self.word_len);
        }
        self.quiet |= verb.has(Verb::META) && place > 0 && is_q;
        if verb.has(Verb::DATA) {
            self.broken |= match verb.largest(place) {
                Some(largest) => self.number > largest,
                None => place == 0 && self.word_len > MAX_KEY,
            };
            if place == verb.data_len_at() {
                self.data_len = self.number as u32;
            }
        }
        self.number = 0;
        self.word_len = 0;
    }

    /// Sums up the present line, whose `\n` is at `end`, and goes to the next.
    #[inline(always)]
    fn end_line(&mut self, packet: &Packet, verb: Verb, end: u32) -> Option<()> {
        // The payload does not start with the packet, so there are eight bytes before any of it.
        let tail = self.word(packet, end - 8)?;
        let line_len = end - self.line;
        let returned = line_len > 1 && (tail >> 56) as u8 == b'\r';
        if returned && !verb.has(Verb::WORDS) && (tail >> 48) as u8 == b' ' {
            // The carriage return was counted as a word.
            self.words -= 1;
        }
        if verb.has(Verb::NOREPLY) && line_len > NOREPLY_LEN + u32::from(returned) {
            let tail = if returned { self.word(packet, end - 9)? } else { tail };
            self.quiet |= tail == text8(b" noreply");
        }
        let rows = verb.rows(self.words);
        self.rows += rows;
        self.commands[(verb.class(rows) as usize) & (QueryClass::COUNT - 1)] += 1;
        self.answerable |= !self.quiet;
        let data = verb.has(Verb::DATA) && !self.broken && verb.holds(self.words);
        // The data's own end is two bytes.
        self.at = end + 1 + if data { self.data_len + 2 } else { 0 };
        self.line = self.at;
        self.verb = Verb::NONE;
        match self.at {
            at if at < self.end => Some(()),
            at if at == self.end => self.over(Status::Read),
            _ => self.over(Status::Malformed),
        }
    }
}

/// How many times eight bytes a step counts words in: a step costs more than to count in eight bytes.
const AT_ONCE: usize = 4;
/// More steps than any payload within [`MAX_READ`] takes: each step but the first of a line goes on by a
/// byte at least, and each line has one.
const MAX_STEPS: u32 = 2 * MAX_READ;
/// How much of a packet is read at most.
const MAX_READ: u32 = 1 << 14;
/// What [`Scan::after_space`] has of a mask.
const FIRST_BYTE: u32 = 0x80;
/// What memcached's binary protocol starts a request with.
const BINARY: u8 = 0x80;
/// The place of the expiry among a storage command's words: it may be negative.
const EXPIRY: u32 = 2;
/// So many digits always fit 64 bits.
const MAX_DIGITS: u32 = 19;
/// memcached's longest key.
const MAX_KEY: u32 = 250;
/// ` noreply`, space included.
const NOREPLY_LEN: u32 = 8;
