//! The price of a datagram of memcached's text protocol, or of a segment where that is priced by its lines.
//!
//! memcached runs every command in a datagram, so every command is priced. The rules below are those of
//! memcached 1.5 to 1.6.45 (`memcached.c`, `proto_text.c`, `proto_parser.c`). Where they read a datagram differently, or gate
//! cannot read it to its end, it is malformed: a value must never be run as commands, nor wait for another client's datagram.
//!
//! - A frame header of 8 bytes comes first. memcached ignores a request of several datagrams, and one
//!   without a payload: malformed.
//! - A line ends with `\n`; one `\r` before it does not count. Only spaces separate words. memcached
//!   never runs a last line without an end: malformed.
//! - Data follows a storage command whose line holds the words that the command needs, numbers of digits alone and within
//!   their ranges, and flags that begin with letters. Some memcached takes the data behind another line for commands: malformed.
//!   So is data that ends beyond the datagram: memcached would read the next datagram, of any sender, as the rest.
//! - A line that begins with a space, which some memcached skips, is malformed.
//! - A request of the binary protocol is malformed: its body may go beyond the datagram as well.
//! - Each word of an unknown command is priced as a row.
//! - Data may lie in later fragments. Other bytes that cannot be read are malformed, unless the daemon reads the whole
//!   datagram: that of a proxied service, in fragments.
//!
//! A segment is read as if it began with a line: what it begins with may be the rest of one. A last line without an end
//! counts as a line, and data may end in a later segment. Behind a line that would make a datagram malformed, each line of a
//! segment is priced as a command. Bytes that cannot be read cost the most that so many bytes can:
//! [`ServiceState::upper_bound`].

use aya_ebpf::bindings::xdp_md;
use gate_common::abi::{Exit, QueryClass, ServiceState};

use super::buffers::Buffers;
use super::frame::{Frame, UDP};
use super::scan::{self, CommandScan, Key, ScanStatus};
use super::transport::{Payload, UDP_HEADER};
use super::verb::text4;
use super::{Packet, Reader as _, swar};
use crate::maps::{opaque_const, opaque_value, read_once, write_once};

/// The commands of a datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Commands {
    /// Not parsed: the service speaks another protocol, or the datagram is malformed.
    NotParsed,
    /// A `get` of one key, and nothing else.
    SingleGet,
    /// Any others, in a [`CommandScan`].
    Scanned,
}

/// Parses the commands of a datagram or a segment in `frame`; all but a datagram's single `get` into `scan`.
///
/// # Errors
///
/// [`Exit::Malformed`].
#[inline(always)]
pub(crate) fn parse(
    ctx: *mut xdp_md,
    frame: &Frame,
    payload: &Payload,
    scan: *mut CommandScan,
) -> Result<Commands, Exit> {
    let shown = frame.end as u32;
    let is_segment = frame.transport != UDP;
    let mut at = payload.at;
    let mut end = payload.end();
    if is_segment {
        // The bytes before a segment's payload are those of TCP's header.
        at -= FRAME_HEADER;
        end = payload.at + payload.max_len();
    } else {
        let headers = Buffers(ctx).bytes::<16>(at as usize - UDP_HEADER).ok_or(Exit::Malformed)?;
        let id_and_port = u32::from(headers.get::<u16, 8>()) | u32::from(headers.get::<u16, 0>()) << 16;
        let datagrams = headers.get::<u16, 12>();
        write_once!((*scan).id_and_port, id_and_port);
        if payload.len <= FRAME_HEADER || at + FRAME_HEADER > shown || datagrams != ONE_DATAGRAM {
            return Err(Exit::Malformed);
        }
        if end <= shown && is_single_get(&Packet::of(ctx), at, end).is_some() {
            return Ok(Commands::SingleGet);
        }
    }
    write_once!((*scan).is_segment, is_segment);
    scan::run(ctx, scan, at, end, shown);
    // SAFETY: this CPU's own scratch.
    let status = unsafe { (*scan).status };
    if status == ScanStatus::Malformed { Err(Exit::Malformed) } else { Ok(Commands::Scanned) }
}

/// `Some` if a payload in the linear part is `get`, one key and `\r\n`, as nearly every client sends it. The scanner reads
/// the same; it also reads anything else.
#[inline(always)]
fn is_single_get(packet: &Packet, at: u32, end: u32) -> Option<()> {
    let line = at + FRAME_HEADER;
    let key_len = end.wrapping_sub(line + AROUND_KEY);
    if key_len.wrapping_sub(1) >= LONGEST_KEY {
        return None;
    }
    let verb = packet.bytes::<4>(line as usize)?.get::<u32, 0>();
    let line_end = packet.bytes::<2>(end as usize - 2)?.get::<u16, 0>();
    if verb != text4(b"get ") || line_end != u16::from_le_bytes(*b"\r\n") {
        return None;
    }
    // The last word ends with the key. That of a short key starts before it.
    let mut at = line + 4;
    let last = end - 10;
    let mut before = 0;
    if key_len < 8 {
        before = 64 - 8 * key_len;
    }
    for _ in 0..opaque_const::<{ LONGEST_KEY / 8 }>() {
        if at >= last {
            break;
        }
        if swar::any_below(packet.word(at)?, FIRST_OF_KEY) {
            return None;
        }
        // The verifier does not follow each length of a key.
        at = opaque_value(u64::from(at + 8)) as u32;
    }
    let word = packet.word(last)? >> (before & 63);
    let filler = !(u64::MAX >> (before & 63));
    if swar::any_below(word | filler, FIRST_OF_KEY) { None } else { Some(()) }
}

/// The key of a single `get` in this payload.
#[inline(always)]
pub(crate) fn key_of_single_get(payload: &Payload) -> Key {
    Key { at: payload.at + FRAME_HEADER + 4, len: 0, writes: false }
}

/// The price of a single `get` in a payload of `len` bytes, as [`CommandScan::price`] computes it.
#[inline(always)]
pub(crate) fn price_of_single_get(prices: *const ServiceState, len: u32) -> u32 {
    let base = u64::from(read_once!((*prices).base_mru)) + u64::from(read_once!((*prices).row_mru));
    let latency = u64::from(read_once!((*prices).latency_mru[QueryClass::Get as usize]));
    let bytes = (u64::from(len) * u64::from(read_once!((*prices).kib_mru)) + 1023) >> 10;
    let exact = base + latency + bytes;
    if exact > u32::MAX.into() { u32::MAX } else { exact as u32 }
}

impl CommandScan {
    /// The number of bytes that could not be read.
    #[inline(always)]
    pub(crate) fn unread(&self) -> u32 {
        if self.status == ScanStatus::Unread { self.end - self.line } else { 0 }
    }

    /// The price of the commands in a payload of `len` bytes, in thousandths of a request unit. Saturates.
    ///
    /// Not inlined: it would cost the caller's stack 120 bytes, and functions that call each other have 512 together.
    #[inline(never)]
    pub(crate) fn price(&self, prices: *const ServiceState, len: u32) -> u32 {
        let mut commands = 0;
        let mut latency = 0;
        for class in 0..QueryClass::COUNT {
            commands += self.commands[class];
            latency += u64::from(self.commands[class]) * u64::from(read_once!((*prices).latency_mru[class]));
        }
        let latency = if latency > u32::MAX.into() { u32::MAX } else { latency as u32 };
        let prices = ServiceState {
            base_mru: read_once!((*prices).base_mru),
            row_mru: read_once!((*prices).row_mru),
            kib_mru: read_once!((*prices).kib_mru),
            latency_mru: [read_once!((*prices).latency_mru[QueryClass::Unread as usize]); QueryClass::COUNT],
            ..ServiceState::default()
        };
        let read = prices.price(commands, self.rows, len);
        read.saturating_add(latency).saturating_add(prices.upper_bound(self.unread()))
    }
}

/// Bytes of memcached's frame header: request id, sequence number, number of datagrams, reserved.
pub(crate) const FRAME_HEADER: u32 = 8;
/// Bytes of a single `get` beside its key.
const AROUND_KEY: u32 = 6;
/// memcached's longest key, rounded up to words.
const LONGEST_KEY: u32 = 256;
/// Lower bytes are spaces and control characters.
const FIRST_OF_KEY: u8 = b' ' + 1;
/// The only number of datagrams that memcached accepts, in network order.
pub(crate) const ONE_DATAGRAM: u16 = 1_u16.to_be();
