//! Ethernet, VLAN tags and IP, up to the header of UDP or TCP.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_get_buff_len;
use gate_common::abi::Exit;

use super::extensions::{self, AUTHENTICATION, WalkState};
use super::{Packet, Reader, tags};
use crate::maps::{self, opaque_value, read_once, write_once};

/// The fields of a packet's headers that lead to its destination port.
#[derive(Clone, Copy)]
pub(crate) struct HeaderPeek {
    /// Bytes before the IP header: 14, or 18 or 22 with VLAN tags.
    link_len: usize,
    /// True for IPv6.
    pub(crate) v6: bool,
    /// Whole packet, or fragment.
    pub(crate) kind: Kind,
    /// UDP or TCP.
    pub(crate) transport: u8,
    /// The offset of the transport header.
    pub(crate) transport_at: usize,
}

/// The part of a datagram or segment that a packet shows.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// All of it.
    Whole,
    /// The first fragment: its beginning.
    FirstFragment,
    /// A later fragment: nothing.
    LaterFragment,
    /// Nothing: there are more extension headers than are followed.
    TooManyHeaders,
}

/// The offsets of a packet's headers, and its addresses.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    /// Bytes before the IP header.
    pub(crate) link_len: usize,
    /// True for IPv6.
    pub(crate) v6: bool,
    /// UDP or TCP.
    pub(crate) transport: u8,
    /// The type of service, or traffic class.
    pub(crate) class: u8,
    /// The offset of the transport header.
    pub(crate) transport_at: usize,
    /// The end of the IP packet or fragment by its header; the frame may be longer (padding).
    pub(crate) end: usize,
    /// The destination port, in network order; set only if headers lie outside the linear part.
    pub(crate) port: u16,
    /// The source, as two words in memory order; IPv4 as `::ffff:a.b.c.d`.
    pub(crate) source: [u64; 2],
    /// The destination, likewise.
    pub(crate) destination: [u64; 2],
}

/// UDP's protocol number.
pub(crate) const UDP: u8 = 17;
/// TCP's protocol number.
pub(crate) const TCP: u8 = 6;

impl HeaderPeek {
    /// Finds the transport header.
    ///
    /// # Errors
    ///
    /// [`Exit::NotIp`], [`Exit::NotTransport`], [`Exit::BadHeader`], [`Exit::TooManyHeaders`]. [`Exit::BadHeader`] as
    /// well if a reader that reads the linear part alone finds more than two VLAN tags.
    #[inline(always)]
    pub(crate) fn parse<R: Reader>(ctx: *mut xdp_md, packet: &R) -> Result<Self, Exit> {
        let mut ether_type = packet.bytes::<14>(0).ok_or(Exit::BadHeader)?.get::<u16, 12>();
        let mut link_len = 14;
        for _ in 0..MAX_VLAN_TAGS {
            if !is_vlan(ether_type) {
                break;
            }
            ether_type = packet.bytes::<4>(link_len).ok_or(Exit::BadHeader)?.get::<u16, 2>();
            link_len += 4;
        }
        if R::WHOLE_FRAME {
            if is_vlan(ether_type) {
                (ether_type, link_len) = tags::skip(ctx, ether_type, link_len)?;
            }
            // The verifier does not follow each number of tags.
            link_len = opaque_value(link_len as u64) as usize;
        } else if is_vlan(ether_type) {
            return Err(Exit::BadHeader);
        }
        match ether_type {
            IPV4 => Self::parse_v4(ctx, packet, link_len),
            IPV6 => Self::parse_v6(ctx, packet, link_len),
            _ => Err(Exit::NotIp),
        }
    }

    #[inline(always)]
    fn parse_v4<R: Reader>(ctx: *mut xdp_md, packet: &R, link_len: usize) -> Result<Self, Exit> {
        let header = packet.bytes::<20>(link_len).ok_or(Exit::BadHeader)?;
        let version = header.get::<u8, 0>();
        let header_len = usize::from(version & 0x0f) * 4;
        if version >> 4 != 4 || header_len < 20 {
            return Err(Exit::BadHeader);
        }
        #[cfg(feature = "trace")]
        crate::trace::source([0, MAPPED | u64::from(header.get::<u32, 12>()) << 32]);
        let transport = header.get::<u8, 9>();
        let kind = match header.get::<u16, 6>() & FRAGMENT_V4 {
            0 => Kind::Whole,
            MORE_FRAGMENTS_V4 => Kind::FirstFragment,
            _ => Kind::LaterFragment,
        };
        let peek = Self { link_len, v6: false, kind, transport, transport_at: link_len + header_len };
        match transport {
            UDP | TCP => Ok(peek),
            AUTHENTICATION if kind == Kind::LaterFragment => Ok(peek),
            AUTHENTICATION => peek.behind_extensions(ctx, u16::from_be(header.get::<u16, 2>()).into()),
            _ => Err(Exit::NotTransport),
        }
    }

    #[inline(always)]
    fn parse_v6<R: Reader>(ctx: *mut xdp_md, packet: &R, link_len: usize) -> Result<Self, Exit> {
        let header = packet.bytes::<40>(link_len).ok_or(Exit::BadHeader)?;
        if header.get::<u8, 0>() >> 4 != 6 {
            return Err(Exit::BadHeader);
        }
        #[cfg(feature = "trace")]
        crate::trace::source([header.get::<u64, 8>(), header.get::<u64, 16>()]);
        let transport = header.get::<u8, 6>();
        let peek = Self { link_len, v6: true, kind: Kind::Whole, transport, transport_at: link_len + 40 };
        if transport == UDP || transport == TCP {
            return Ok(peek);
        }
        match u16::from_be(header.get::<u16, 4>()) {
            0 => peek.behind_extensions(ctx, 0),
            length => peek.behind_extensions(ctx, 40 + usize::from(length)),
        }
    }

    /// Finds the transport header behind extension headers, in an IP packet of `length` bytes; all that the frame holds
    /// if it is zero.
    #[inline(always)]
    fn behind_extensions(self, ctx: *mut xdp_md, length: usize) -> Result<Self, Exit> {
        let scratch = maps::SCRATCH.get_ptr_mut(0).ok_or(Exit::Missing)?;
        let end = if length == 0 { u32::MAX } else { (self.link_len + length) as u32 };
        // SAFETY: this CPU's own scratch.
        let walk = unsafe { &raw mut (*scratch).walk };
        write_once!((*walk).kind, self.kind);
        extensions::follow(ctx, walk, self.transport, self.transport_at as u32, end);
        let kind = match read_once!((*walk).state) {
            WalkState::Transport => read_once!((*walk).kind),
            // The transport header, if any, is in a later fragment.
            WalkState::BadHeader if read_once!((*walk).kind) == Kind::FirstFragment => Kind::FirstFragment,
            WalkState::LaterFragment => Kind::LaterFragment,
            WalkState::GoesOn | WalkState::TooLong => Kind::TooManyHeaders,
            WalkState::NotTransport => return Err(Exit::NotTransport),
            WalkState::BadHeader => return Err(Exit::BadHeader),
        };
        let transport = read_once!((*walk).next);
        let transport_at = read_once!((*walk).at) as usize;
        Ok(Self { kind, transport, transport_at, ..self })
    }

    /// Parses the other fields into scratch, and returns the end of the IP packet.
    ///
    /// # Errors
    ///
    /// [`Exit::BadHeader`].
    #[inline(always)]
    pub(crate) fn parse_into<R: Reader>(
        self,
        ctx: *mut xdp_md,
        packet: &R,
        frame: *mut Frame,
    ) -> Result<usize, Exit> {
        let Self { link_len, v6, kind, transport, transport_at } = self;
        let mut excess = 0;
        let mut end = if v6 {
            let header = packet.bytes::<40>(link_len).ok_or(Exit::BadHeader)?;
            write_once!((*frame).v6, true);
            write_once!((*frame).class, (u16::from_be(header.get::<u16, 0>()) >> 4) as u8);
            write_once!((*frame).source[0], header.get::<u64, 8>());
            write_once!((*frame).source[1], header.get::<u64, 16>());
            write_once!((*frame).destination[0], header.get::<u64, 24>());
            write_once!((*frame).destination[1], header.get::<u64, 32>());
            match header.get::<u16, 4>() {
                0 => 0,
                length => link_len + 40 + usize::from(u16::from_be(length)),
            }
        } else {
            let header = packet.bytes::<20>(link_len).ok_or(Exit::BadHeader)?;
            write_once!((*frame).v6, false);
            write_once!((*frame).class, header.get::<u8, 1>());
            write_once!((*frame).source[0], 0);
            write_once!((*frame).source[1], words_v4(header.get::<u32, 12>())[1]);
            write_once!((*frame).destination[0], 0);
            write_once!((*frame).destination[1], words_v4(header.get::<u32, 16>())[1]);
            let length = usize::from(u16::from_be(header.get::<u16, 2>()));
            if kind == Kind::FirstFragment {
                // Linux cuts a fragment off at a multiple of eight bytes; the rest comes from the next.
                excess = (length - usize::from(header.get::<u8, 0>() & 0x0f) * 4) & 7;
            }
            if length == 0 { 0 } else { link_len + length }
        };
        if end == 0 {
            // A length of zero stands for all that the frame holds.
            // SAFETY: the helper only reads the packet's length.
            end = unsafe { bpf_xdp_get_buff_len(ctx) } as usize;
        }
        if !is_whole(ctx, end) {
            return Err(Exit::BadHeader);
        }
        end -= excess;
        write_once!((*frame).transport, transport);
        write_once!((*frame).link_len, link_len);
        write_once!((*frame).transport_at, transport_at);
        write_once!((*frame).end, end);
        Ok(end)
    }
}

impl Frame {
    /// The bytes of the frame, without padding.
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        self.end as u32
    }
}

/// True if the frame holds as many bytes as the IP header says, in its linear part or outside.
#[inline(always)]
fn is_whole(ctx: *mut xdp_md, end: usize) -> bool {
    // SAFETY: the helper only reads the packet's length.
    end <= Packet::of(ctx).len() || end as u64 <= unsafe { bpf_xdp_get_buff_len(ctx) }
}

/// True if a VLAN tag follows.
#[inline(always)]
pub(crate) fn is_vlan(ether_type: u16) -> bool {
    matches!(ether_type, VLAN | VLAN_SERVICE | VLAN_OLD)
}

/// An IPv4 address as two words in memory order: `::ffff:a.b.c.d`.
#[inline(always)]
pub(crate) fn words_v4(address: u32) -> [u64; 2] {
    [0, MAPPED | u64::from(address) << 32]
}

/// The four bytes of an IPv4 address.
#[inline(always)]
pub(crate) fn bytes_v4([_, second]: [u64; 2]) -> [u8; 4] {
    ((second >> 32) as u32).to_le_bytes()
}

/// An address as bytes, from words in memory order.
#[inline(always)]
pub(crate) fn bytes([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(second) << 64 | u128::from(first)).to_le_bytes()
}

/// A provider's tag around a customer's; [`tags`] follows more.
const MAX_VLAN_TAGS: usize = 2;

/// The type of IPv4 in Ethernet, in network order.
pub(crate) const IPV4: u16 = 0x0800_u16.to_be();
/// The type of IPv6 in Ethernet, in network order.
pub(crate) const IPV6: u16 = 0x86dd_u16.to_be();
const VLAN: u16 = 0x8100_u16.to_be();
const VLAN_SERVICE: u16 = 0x88a8_u16.to_be();
const VLAN_OLD: u16 = 0x9100_u16.to_be();

/// "More fragments" and the offset.
const FRAGMENT_V4: u16 = 0x3fff_u16.to_be();
const MORE_FRAGMENTS_V4: u16 = 0x2000_u16.to_be();
/// The lower half of `::ffff:0:0/96`, in memory order.
const MAPPED: u64 = 0xffff_0000;
