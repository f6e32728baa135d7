//! The scanner of memcached's lines: a loop that the kernel bounds (`bpf_loop`), of which the verifier checks one step.
//!
//! A step scans one word of a line, or counts the words in some bytes. [`super::memcached`] documents the lines' meaning.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::cty::{c_long, c_void};
use aya_ebpf::helpers::generated::{bpf_loop, bpf_xdp_load_bytes};
use gate_common::abi::QueryClass;

use super::memcached::FRAME_HEADER;
use super::verb::{Verb, text8};
use super::{Bytes, Packet, swar};
use crate::maps::{opaque_value, write_once};

/// The state of a scan.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanStatus {
    /// The scan stopped before the end: it read nothing from [`CommandScan::line`] on.
    Unread,
    /// The scan read every line.
    Read,
    /// Of a datagram: a line or its data has no end, or not every memcached reads it alike.
    Malformed,
}

/// A scan and its sums. Offsets count from the packet's start.
#[repr(C)]
pub(crate) struct CommandScan {
    /// The next byte.
    at: u32,
    /// The end of the payload.
    pub(crate) end: u32,
    /// The end of its readable part.
    readable: u32,
    /// The start of the present line.
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
    /// Bytes of the data after the present line, its end included.
    skip: u32,
    /// The same for lines since the first broken one: none in a segment, more than a datagram holds.
    broken_skip: u32,
    /// Not zero if not every memcached reads this or an earlier line alike.
    broken: u64,
    /// True if the present line asks for no reply.
    quiet: bool,
    /// True if any line asks for a reply.
    pub(crate) wants_reply: bool,
    /// True if the payload is a segment's, whose last line and data may go on in the next segment.
    pub(crate) is_segment: bool,
    /// The frame header's request id and, above it, the client's port, both in network order.
    pub(crate) id_and_port: u32,
    /// The first key. Without one, only its offset is set.
    pub(crate) key: Key,
    /// The number of keys in all lines.
    pub(crate) rows: u32,
    /// The number of lines, by [`QueryClass`].
    pub(crate) commands: [u32; QueryClass::COUNT],
    /// The state of the scan.
    pub(crate) status: ScanStatus,
    /// The offset in the frame at which the copy starts.
    copy_at: u32,
    /// A copy of a payload outside the frame's linear part, with padding for a read of a word at its end.
    copy: [u8; MAX_READ as usize + 8],
}

/// A key that may be sampled.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    /// The offset of its first byte; zero if there is no key.
    pub(crate) at: u32,
    /// The length; zero if the key extends to the next space or end of a line.
    pub(crate) len: u32,
    /// True if the command writes it.
    pub(crate) writes: bool,
}

impl Key {
    /// No key.
    pub(crate) const NONE: Self = Self { at: 0, len: 0, writes: false };
}

/// The argument of a step. It lies on the stack, where the verifier tracks pointers.
struct Step {
    ctx: *mut xdp_md,
    scan: *mut CommandScan,
}

/// Scans the payload from `payload_at` to `end`; the packet holds the bytes before `shown`.
#[inline(never)]
pub(crate) fn run(ctx: *mut xdp_md, scan: *mut CommandScan, payload_at: u32, end: u32, shown: u32) {
    let at = payload_at + FRAME_HEADER;
    let mut readable = shown.min(MAX_READ).min(end);
    let linear = Packet::of(ctx).len() as u32;
    if readable > linear && !copy(ctx, scan, payload_at, readable) {
        readable = linear;
    }
    // One by one: the compiler would call `memset` for all of them.
    write_once!((*scan).wants_reply, false);
    write_once!((*scan).key.at, 0);
    write_once!((*scan).rows, 0);
    for class in 0..QueryClass::COUNT {
        write_once!((*scan).commands[class], 0);
    }
    // SAFETY: this CPU's own scratch; `loop_step` has the signature that the helper calls, and its argument
    // outlives the call.
    unsafe {
        (*scan).at = at;
        (*scan).end = end;
        (*scan).readable = readable;
        (*scan).line = at;
        (*scan).verb = Verb::NONE;
        (*scan).broken = 0;
        (*scan).broken_skip = if (*scan).is_segment { 0 } else { BEYOND };
        (*scan).status = ScanStatus::Unread;
        let mut step = Step { ctx, scan };
        bpf_loop(MAX_STEPS, loop_step as *mut c_void, (&raw mut step).cast(), 0);
    }
}

/// Copies the payload from `from` to `to`; false if the frame does not hold it.
#[inline(always)]
fn copy(ctx: *mut xdp_md, scan: *mut CommandScan, from: u32, to: u32) -> bool {
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

/// One step, with the signature that `bpf_loop` calls; a result of zero continues the loop.
unsafe extern "C" fn loop_step(_index: u32, step: *mut c_void) -> c_long {
    // SAFETY: the argument that `run` passed to the helper.
    let (ctx, scan) = unsafe {
        let step = step.cast::<Step>();
        ((*step).ctx, &mut *(*step).scan)
    };
    c_long::from(scan.step(&Packet::of(ctx)).is_none())
}

impl CommandScan {
    /// Scans up to eight bytes of words, or counts words in up to four times eight; `None` ends the scan.
    #[inline(always)]
    fn step(&mut self, packet: &Packet) -> Option<()> {
        if self.verb == Verb::NONE {
            let word = self.next(packet)?;
            self.start_line(word)?;
        }
        let verb = self.verb;
        if verb.has(Verb::WORDS) {
            let word = self.next(packet)?;
            return self.scan_word(packet, verb, word);
        }
        for _ in 0..AT_ONCE {
            let word = self.next(packet)?;
            if let Some(end) = self.count_words(word)? {
                return self.end_line(packet, verb, end);
            }
        }
        Some(())
    }

    /// The next eight bytes, with zeros after the last readable one; `None` if there is none.
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
                // The mask does not change the index; it shows the verifier a bound.
                let index =
                    opaque_value(u64::from(at.wrapping_sub(self.copy_at))) as usize & (MAX_READ as usize - 1);
                // SAFETY: within the copy, which has room for a word at its end.
                Some(Bytes::<8>(unsafe { self.copy.as_ptr().add(index).cast_mut() }).get::<u64, 0>())
            }
            word => word,
        }
    }

    #[inline(always)]
    fn finish(&mut self, status: ScanStatus) -> Option<()> {
        self.status = status;
        None
    }

    /// Ends the scan in a line without an end among the readable bytes.
    #[inline(always)]
    fn endless(&mut self) -> Option<()> {
        if self.readable < self.end {
            return None;
        }
        if self.is_segment {
            // The beginning of a word counts as one.
            self.count_command(self.words + u32::from(self.word_len != 0));
        }
        self.finish_cut()
    }

    /// Ends the scan where the payload ends within a line or its data.
    #[inline(always)]
    fn finish_cut(&mut self) -> Option<()> {
        self.finish(if self.is_segment { ScanStatus::Read } else { ScanStatus::Malformed })
    }

    /// Adds the present command, with so many words, to the sums.
    #[inline(always)]
    fn count_command(&mut self, words: u32) {
        let rows = self.verb.rows(words);
        self.rows += rows;
        self.commands[(self.verb.class(rows) as usize) & (QueryClass::COUNT - 1)] += 1;
    }

    /// Parses the command, up to its first word.
    #[inline(always)]
    fn start_line(&mut self, word: u64) -> Option<()> {
        let (verb, len) = Verb::of(word);
        // Without branches, each of which doubles what the verifier walks; so below.
        self.broken |= (swar::equal(word, BINARY) | swar::equal(word, b' ')) & 0xff;
        self.skip = 0;
        self.at += len;
        self.verb = verb;
        self.words = 0;
        self.word_len = 0;
        self.number = 0;
        self.after_space = FIRST_BYTE;
        // Commands begin with a lower-case letter and replies with an upper-case one: a reply gets no reply.
        self.quiet = !(word as u8).is_ascii_lowercase();
        if verb.has(Verb::SAMPLED) && !verb.has(Verb::WORDS) {
            self.record_key(verb, self.at);
        }
        if self.at < self.end { Some(()) } else { self.endless() }
    }

    #[inline(always)]
    fn record_key(&mut self, verb: Verb, at: u32) {
        if self.key.at == 0 {
            self.key = Key { at, len: 0, writes: verb.has(Verb::WRITES) };
        }
    }

    /// Counts the words that start in these bytes; returns the end of the line if it lies in them.
    #[inline(always)]
    fn count_words(&mut self, word: u64) -> Option<Option<u32>> {
        let spaces = swar::equal(word, b' ');
        let starts = !spaces & swar::HIGH & (spaces << 8 | u64::from(self.after_space));
        let ends = swar::equal(word, b'\n');
        if ends == 0 {
            self.after_space = (spaces >> 56) as u32;
            self.at += 8;
            if self.at >= self.end {
                // Zeros after the last byte start no word.
                self.words += swar::count(starts & u64::MAX >> ((8 * (self.at - self.end)) & 63));
                return self.endless().map(|()| None);
            }
            self.words += swar::count(starts);
            return Some(None);
        }
        self.words += swar::count(starts & swar::below_first(ends));
        Some(Some(self.at + swar::before_first(ends)))
    }

    /// Scans the next word, or the part of it in these bytes.
    #[inline(always)]
    fn scan_word(&mut self, packet: &Packet, verb: Verb, word: u64) -> Option<()> {
        let ends = swar::equal(word, b' ') | swar::equal(word, b'\n') | swar::equal(word, b'\r');
        let len = if ends == 0 { 8 } else { swar::before_first(ends) };
        let stop = (word >> ((8 * len) & 63)) as u8;
        let after = (word >> ((8 * (len + 1)) & 63)) as u8;
        if ends == 0 || (stop == b'\r' && (len == 7 || after != b'\n')) {
            // The word continues. A carriage return within a line is part of its word; a storage line is broken by it.
            let odd = ends != 0 && len < 7;
            let len = if odd { len + 1 } else { len };
            self.broken |= u64::from(odd) & verb.bit(Verb::DATA);
            self.scan_word_bytes(verb, word, len);
            self.at += len;
            return if self.at < self.end { Some(()) } else { self.endless() };
        }
        self.scan_word_bytes(verb, word, len);
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

    /// Adds the first `len` bytes to the present word.
    #[inline(always)]
    fn scan_word_bytes(&mut self, verb: Verb, word: u64, len: u32) {
        if verb.has(Verb::DATA) {
            if verb.is_number(self.words) {
                let negative = self.words == EXPIRY && self.word_len == 0 && len > 1 && word as u8 == b'-';
                let digits = if negative { word ^ u64::from(b'-' ^ b'0') } else { word };
                match swar::decimal(digits, len) {
                    Some(number) if self.word_len + len <= MAX_DIGITS => {
                        self.number = self.number * swar::power_of_ten(len) + u64::from(number);
                    }
                    _ => self.broken = 1,
                }
            } else {
                // For memcached before 1.6.40 a zero byte ends the line.
                let beyond = if len == 8 { 0 } else { u64::MAX << ((8 * len) & 63) };
                self.broken |= swar::below(word | beyond, 1);
                // Later ones do not read the data behind a flag that does not begin with a letter.
                let begins_flag = verb.bit(Verb::META) & is_below(1, self.words) & is_below(self.word_len, 1);
                let letter = (word as u8 | 0x20).wrapping_sub(b'a');
                self.broken |= begins_flag & is_below(0, len) & is_below(25, letter.into());
            }
        }
        self.word_len += len;
    }

    /// Evaluates the present word, which ends at `at`. The word `q` makes a meta command quiet.
    #[inline(always)]
    fn end_word(&mut self, verb: Verb, is_q: bool) {
        let index = self.words;
        self.words += 1;
        if verb.has(Verb::SAMPLED) && index == verb.first_key() {
            self.record_key(verb, self.at - self.word_len);
        }
        self.quiet |= verb.has(Verb::META) && index > 0 && is_q;
        if verb.has(Verb::DATA) {
            self.broken |= match verb.largest(index) {
                Some(largest) => u64::from(self.number > largest) | is_below(MAX_NUMBER, self.word_len),
                None => u64::from(index == 0 && self.word_len > MAX_KEY),
            };
            if index == verb.data_len_at() {
                // Two bytes end the data.
                self.skip = self.number as u32 + 2;
            }
        }
        self.number = 0;
        self.word_len = 0;
    }

    /// Adds the present line, whose `\n` is at `end`, to the sums, and moves to the next line.
    #[inline(always)]
    fn end_line(&mut self, packet: &Packet, verb: Verb, end: u32) -> Option<()> {
        // Headers precede the payload, so eight bytes precede its first.
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
        self.count_command(self.words);
        self.wants_reply |= !self.quiet;
        let least = verb.least_words();
        let most = least + verb.optional_words();
        self.broken |= verb.bit(Verb::DATA) & (is_below(self.words, least) | is_below(most, self.words));
        self.at = end + 1 + if self.broken == 0 { self.skip } else { self.broken_skip };
        self.line = self.at;
        self.verb = Verb::NONE;
        match self.at {
            at if at < self.end => Some(()),
            at if at == self.end => self.finish(ScanStatus::Read),
            _ => self.finish_cut(),
        }
    }
}

/// One if `number` is below `bound`, else zero, without a branch.
#[inline(always)]
fn is_below(number: u32, bound: u32) -> u64 {
    opaque_value(u64::from(number).wrapping_sub(u64::from(bound))) >> 63
}

/// More bytes than any datagram has.
const BEYOND: u32 = 1 << 30;
/// Words of eight bytes in which one step counts: the step itself costs more than one of them.
const AT_ONCE: usize = 4;
/// More steps than any payload within [`MAX_READ`] takes: each step but the first of a line advances by at
/// least a byte, and each line has a byte.
const MAX_STEPS: u32 = 2 * MAX_READ;
/// The most bytes of a packet that are read.
const MAX_READ: u32 = 1 << 14;
/// The bit of a mask that [`CommandScan::after_space`] holds.
const FIRST_BYTE: u32 = 0x80;
/// The first byte of a request in memcached's binary protocol.
const BINARY: u8 = 0x80;
/// The index of the expiry among a storage command's words. It may be negative.
const EXPIRY: u32 = 2;
/// The most digits that always fit 64 bits.
const MAX_DIGITS: u32 = 19;
/// The most bytes of a number of 32 bits, its sign included; memcached since 1.6.40 takes no longer ones.
const MAX_NUMBER: u32 = 11;
/// memcached's longest key.
const MAX_KEY: u32 = 250;
/// ` noreply`, space included.
const NOREPLY_LEN: u32 = 8;
