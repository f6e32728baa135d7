//! The headers of UDP and TCP.

use super::Reader;
use super::frame::{HeaderPeek, Kind, UDP};
use crate::maps::write_once;

/// The payload of a datagram or a segment.
#[derive(Clone, Copy)]
pub(crate) struct Payload {
    /// The offset of its first byte.
    pub(crate) at: u32,
    /// The number of bytes. A datagram's first fragment: of the whole datagram; a segment's: of the fragment.
    pub(crate) len: u32,
    /// The segment's sequence number. Not set for a datagram, like the flags.
    pub(crate) sequence: u32,
    /// The segment's [`tcp_flags`].
    pub(crate) flags: u8,
    /// The part of it that the packet holds.
    pub(crate) extent: Extent,
}

/// The part of a payload that a packet holds.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Extent {
    /// All of it.
    Whole,
    /// The beginning.
    FirstFragment,
    /// None: it does not follow its protocol.
    Malformed,
}

impl Payload {
    /// Parses the transport header of an IP packet that ends at `end` into scratch.
    #[inline(always)]
    pub(crate) fn parse_into<R: Reader>(
        packet: &R,
        peek: &HeaderPeek,
        end: usize,
        payload: *mut Self,
    ) -> Option<()> {
        let read = if peek.transport == UDP {
            parse_udp(packet, peek, end, payload)
        } else {
            parse_tcp(packet, peek.transport_at, end, payload)
        };
        let extent = match (read, peek.kind) {
            (None, _) => Extent::Malformed,
            (_, Kind::Whole) => Extent::Whole,
            _ => Extent::FirstFragment,
        };
        write_once!((*payload).extent, extent);
        read
    }

    /// True if it does not follow its protocol.
    #[inline(always)]
    pub(crate) fn is_malformed(&self) -> bool {
        self.extent == Extent::Malformed
    }

    /// True if later fragments hold a part of it.
    #[inline(always)]
    pub(crate) fn is_first_fragment(&self) -> bool {
        self.extent == Extent::FirstFragment
    }

    /// The most bytes that the segment may have.
    #[inline(always)]
    pub(crate) fn max_len(&self) -> u32 {
        if self.is_first_fragment() { MAX_SEGMENT } else { self.len }
    }

    /// The offset of its end.
    #[inline(always)]
    pub(crate) fn end(&self) -> u32 {
        self.at + self.len
    }

    /// True for a SYN that opens a connection.
    #[inline(always)]
    pub(crate) fn is_connection_attempt(&self) -> bool {
        self.flags & (tcp_flags::SYN | tcp_flags::ACK | tcp_flags::RST) == tcp_flags::SYN
    }

    /// True if a segment carries data. A reset may carry a text, which no application reads.
    #[inline(always)]
    pub(crate) fn carries_data(&self) -> bool {
        self.max_len() != 0 && self.flags & tcp_flags::RST == 0
    }
}

#[inline(always)]
fn parse_udp<R: Reader>(packet: &R, peek: &HeaderPeek, end: usize, payload: *mut Payload) -> Option<()> {
    let at = peek.transport_at;
    let mut length = usize::from(u16::from_be(packet.bytes::<UDP_HEADER>(at)?.get::<u16, 4>()));
    if length < UDP_HEADER {
        // Over IPv6, a length of zero stands for the rest of the packet (RFC 2675).
        if length != 0 || !peek.v6 || peek.kind != Kind::Whole || at + UDP_HEADER > end {
            return None;
        }
        length = end - at;
    }
    if at + length > end && (peek.kind == Kind::Whole || at + UDP_HEADER > end) {
        return None;
    }
    write_once!((*payload).at, (at + UDP_HEADER) as u32);
    write_once!((*payload).len, (length - UDP_HEADER) as u32);
    Some(())
}

#[inline(always)]
fn parse_tcp<R: Reader>(packet: &R, at: usize, end: usize, payload: *mut Payload) -> Option<()> {
    let header = packet.bytes::<TCP_HEADER>(at)?;
    let header_len = usize::from(header.get::<u8, 12>() >> 4) * 4;
    let data = at + header_len;
    if header_len < TCP_HEADER || data > end {
        return None;
    }
    write_once!((*payload).at, data as u32);
    write_once!((*payload).len, (end - data) as u32);
    write_once!((*payload).sequence, u32::from_be(header.get::<u32, 4>()));
    write_once!((*payload).flags, header.get::<u8, 13>());
    Some(())
}

/// Bits of [`Payload::flags`].
pub(crate) mod tcp_flags {
    /// The sender has finished.
    pub(crate) const FIN: u8 = 1 << 0;
    /// The sender opens a connection.
    pub(crate) const SYN: u8 = 1 << 1;
    /// The connection is refused or broken.
    pub(crate) const RST: u8 = 1 << 2;
    /// The acknowledgment number is valid.
    pub(crate) const ACK: u8 = 1 << 4;
}

/// No segment carries more data.
const MAX_SEGMENT: u32 = u16::MAX as u32;
/// Bytes of UDP's header.
pub(crate) const UDP_HEADER: usize = 8;
/// Bytes of TCP's header without options.
pub(crate) const TCP_HEADER: usize = 20;
