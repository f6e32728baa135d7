//! A refusal that the client can read: the packet is rewritten and sent back.
//!
//! The reply is written over the request. A request up to 64 bytes longer keeps the frame's length, and its end stays behind
//! the reply as padding; any other frame grows or shrinks at its front, where drivers leave room. Addresses and ports are swapped, VLAN tags and DSCP stay, IP options are left out, and checksums are computed from the
//! whole reply, since packets of local sockets carry only a part of one.
//!
//! Some packets get no reply, so that gate neither amplifies nor answers in a loop: those with a group or broadcast
//! MAC or IP address as source or destination; with an impossible source (`0.0.0.0/8`, `127.0.0.0/8`, `::/64`, or
//! the destination itself); with source port 0; UDP from ports below 1024, where servers listen, and from the
//! service's own port; and frames with more than two VLAN tags.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::{bpf_xdp_adjust_head, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len};

use crate::parse::buffers::Buffers;
use crate::parse::frame::{self, Frame, TCP, UDP};
use crate::parse::memcached::{FRAME_HEADER, ONE_DATAGRAM};
use crate::parse::transport::{Payload, TCP_HEADER, UDP_HEADER, tcp_flags};
use crate::parse::{Bytes, Packet, Reader as _};

/// The reply to a refused memcached request.
const THROTTLED: [u8; 24] = *b"SERVER_ERROR throttled\r\n";
const DATAGRAM: usize = UDP_HEADER + FRAME_HEADER as usize + THROTTLED.len();

/// The length of the frame of a reply to a datagram.
#[inline(always)]
pub(crate) fn throttled_len(frame: &Frame) -> u32 {
    (frame.link_len + network_len(frame) + DATAGRAM) as u32
}

/// The length of the frame of a reset.
#[inline(always)]
pub(crate) fn reset_len(frame: &Frame) -> u32 {
    (frame.link_len + network_len(frame) + TCP_HEADER + PADDING) as u32
}

/// True if the sender may get a reply at all.
#[inline(always)]
pub(crate) fn may_reply_to_source(ctx: *mut xdp_md, frame: &Frame) -> bool {
    let packet = Buffers(ctx);
    let Some(macs) = packet.bytes::<12>(0) else { return false };
    let group = (macs.get::<u8, 0>() | macs.get::<u8, 6>()) & GROUP != 0;
    let Some(ports) = packet.bytes::<4>(frame.transport_at) else { return false };
    let source_port = ports.get::<u16, 0>();
    let port = ports.get::<u16, 2>();
    if group || frame.link_len > LONGEST_LINK || frame.source == frame.destination || source_port == 0 {
        return false;
    }
    if frame.transport == UDP && (source_port == port || u16::from_be(source_port) < FIRST_CLIENT_PORT) {
        return false;
    }
    if frame.v6 {
        return frame.source[0] != 0 && frame.source[0] as u8 != 0xff && frame.destination[0] as u8 != 0xff;
    }
    let source = (frame.source[1] >> 32) as u8;
    let destination = (frame.destination[1] >> 32) as u8;
    source != 0 && source != 127 && source < 224 && destination < 224
}

/// Turns a datagram into the reply to request `id`; false if the driver leaves no room.
#[inline(never)]
pub(crate) fn throttled(ctx: *mut xdp_md, frame: &Frame, id: u16) -> bool {
    write_throttled(ctx, frame, id).is_some()
}

#[inline(always)]
fn write_throttled(ctx: *mut xdp_md, frame: &Frame, id: u16) -> Option<()> {
    let ports = Buffers(ctx).bytes::<4>(frame.transport_at)?.get::<u32, 0>();
    let packet = turn_round(ctx, frame, throttled_len(frame))?;
    let bytes = packet.bytes::<DATAGRAM>(frame.link_len + network_len(frame))?;
    let length = (DATAGRAM as u16).to_be();
    let sum = pseudo_header(frame, UDP, length)
        + u64::from(ports)
        + u64::from(length)
        + u64::from(id)
        + u64::from(ONE_DATAGRAM)
        + TEXT_SUM;
    // Zero stands for a datagram without a checksum.
    let checksum = match !fold(sum) {
        0 => 0xffff,
        sum => sum,
    };
    bytes.set::<u32, 0>(ports.rotate_left(16));
    bytes.set::<u16, 4>(length);
    bytes.set::<u16, 6>(checksum);
    bytes.set::<u32, 8>(u32::from(id));
    bytes.set::<u32, 12>(u32::from(ONE_DATAGRAM));
    bytes.set::<u64, 16>(TEXT[0]);
    bytes.set::<u64, 24>(TEXT[1]);
    bytes.set::<u64, 32>(TEXT[2]);
    Some(())
}

/// Turns a SYN into the reset that refuses it (RFC 9293, 3.5.2); false if the driver leaves no room.
#[inline(never)]
pub(crate) fn reset(ctx: *mut xdp_md, frame: &Frame, segment: &Payload) -> bool {
    write_reset(ctx, frame, segment).is_some()
}

#[inline(always)]
fn write_reset(ctx: *mut xdp_md, frame: &Frame, segment: &Payload) -> Option<()> {
    let ports = Buffers(ctx).bytes::<4>(frame.transport_at)?.get::<u32, 0>();
    let packet = turn_round(ctx, frame, reset_len(frame))?;
    let bytes = packet.bytes::<{ TCP_HEADER + PADDING }>(frame.link_len + network_len(frame))?;
    let fin = u32::from(segment.flags & tcp_flags::FIN);
    let acknowledged = segment.sequence.wrapping_add(1 + fin).wrapping_add(segment.len).to_be();
    let kind = u16::from_be_bytes([(TCP_HEADER as u8 / 4) << 4, tcp_flags::RST | tcp_flags::ACK]).to_be();
    let sum = pseudo_header(frame, TCP, (TCP_HEADER as u16).to_be())
        + u64::from(ports)
        + u64::from(acknowledged)
        + u64::from(kind);
    bytes.set::<u32, 0>(ports.rotate_left(16));
    bytes.set::<u32, 4>(0);
    bytes.set::<u32, 8>(acknowledged);
    bytes.set::<u32, 12>(u32::from(kind));
    bytes.set::<u16, 16>(!fold(sum));
    bytes.set::<u64, 18>(0);
    Some(())
}

/// Makes the packet `len` bytes long, and writes the headers of a reply up to IP.
#[inline(always)]
fn turn_round(ctx: *mut xdp_md, frame: &Frame, len: u32) -> Option<Packet> {
    let old = Buffers(ctx).bytes::<20>(0)?;
    let to = (old.get::<u32, 0>(), old.get::<u16, 4>());
    let from = (old.get::<u32, 6>(), old.get::<u16, 10>());
    let tags = (old.get::<u32, 12>(), old.get::<u32, 16>());
    let linear = Packet::of(ctx).len();
    // SAFETY: the helpers read the packet's length, and move its ends; pointers into the packet from before are not used after.
    unsafe {
        let outside = bpf_xdp_get_buff_len(ctx) as i32 - linear as i32;
        // A request a little longer than its reply keeps its length.
        let excess = (linear as u32).wrapping_sub(len);
        if outside != 0 || excess > MOST_PADDING {
            if outside > 0 && bpf_xdp_adjust_tail(ctx, -outside) != 0 {
                return None;
            }
            if bpf_xdp_adjust_head(ctx, linear as i32 - len as i32) != 0 {
                return None;
            }
        }
    }
    let packet = Packet::of(ctx);
    let new = packet.bytes::<22>(0)?;
    new.set::<u32, 0>(from.0);
    new.set::<u16, 4>(from.1);
    new.set::<u32, 6>(to.0);
    new.set::<u16, 10>(to.1);
    new.set::<u32, 12>(tags.0);
    new.set::<u32, 16>(tags.1);
    let link_end = packet.bytes::<2>(frame.link_len - 2)?;
    link_end.set::<u16, 0>(if frame.v6 { frame::IPV6 } else { frame::IPV4 });
    let len = if frame.transport == UDP { DATAGRAM } else { TCP_HEADER } as u16;
    if frame.v6 {
        write_v6(packet.bytes::<40>(frame.link_len)?, frame, len);
    } else {
        write_v4(packet.bytes::<20>(frame.link_len)?, frame, len);
    }
    Some(packet)
}

/// Writes the header of a reply with `len` bytes after it.
#[inline(always)]
fn write_v4(header: Bytes<20>, frame: &Frame, len: u16) {
    let start = u32::from_be_bytes([0x45, dscp(frame), 0, 0]).to_be() | u32::from((20 + len).to_be()) << 16;
    let hops = u16::from_be_bytes([HOPS, frame.transport]).to_be();
    let source = (frame.destination[1] >> 32) as u32;
    let destination = (frame.source[1] >> 32) as u32;
    let sum = u64::from(start)
        + u64::from(DONT_FRAGMENT)
        + u64::from(hops)
        + u64::from(source)
        + u64::from(destination);
    header.set::<u32, 0>(start);
    header.set::<u32, 4>(DONT_FRAGMENT);
    header.set::<u16, 8>(hops);
    header.set::<u16, 10>(!fold(sum));
    header.set::<u32, 12>(source);
    header.set::<u32, 16>(destination);
}

/// Writes the header of a reply with `len` bytes after it.
#[inline(always)]
fn write_v6(header: Bytes<40>, frame: &Frame, len: u16) {
    header.set::<u32, 0>((6_u32 << 28 | u32::from(dscp(frame)) << 20).to_be());
    header.set::<u16, 4>(len.to_be());
    header.set::<u16, 6>(u16::from_be_bytes([frame.transport, HOPS]).to_be());
    header.set::<u64, 8>(frame.destination[0]);
    header.set::<u64, 16>(frame.destination[1]);
    header.set::<u64, 24>(frame.source[0]);
    header.set::<u64, 32>(frame.source[1]);
}

/// Bytes of a reply's IP header.
#[inline(always)]
fn network_len(frame: &Frame) -> usize {
    if frame.v6 { 40 } else { 20 }
}

/// The class of service of the request, without its congestion bits.
#[inline(always)]
fn dscp(frame: &Frame) -> u8 {
    frame.class & 0xfc
}

/// The sum of a pseudo header. IPv4's mapped addresses add `ffff` twice, which is zero here.
#[inline(always)]
fn pseudo_header(frame: &Frame, transport: u8, length: u16) -> u64 {
    let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
    halves(frame.source[0])
        + halves(frame.source[1])
        + halves(frame.destination[0])
        + halves(frame.destination[1])
        + u64::from(u16::from(transport).to_be())
        + u64::from(length)
}

/// A sum of words of 16 or 32 bits, as one of 16 with the carries added (RFC 1071).
#[inline(always)]
const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The reply's text as words.
const TEXT: [u64; 3] = {
    let mut words = [0; 3];
    let mut byte = 0;
    while byte < THROTTLED.len() {
        words[byte / 8] |= (THROTTLED[byte] as u64) << (8 * (byte % 8));
        byte += 1;
    }
    words
};
/// The text's checksum before folding.
const TEXT_SUM: u64 = {
    let mut sum = 0;
    let mut byte = 0;
    while byte < THROTTLED.len() {
        sum += (THROTTLED[byte] as u64) << (8 * (byte % 2));
        byte += 1;
    }
    sum
};
/// The most bytes of a request that stay behind its reply, as padding of the frame.
const MOST_PADDING: u32 = 64;
/// Pads a reset over IPv4 to Ethernet's shortest frame: some drivers do not pad.
const PADDING: usize = 6;
/// The hop limit that most systems start with.
const HOPS: u8 = 64;
/// Four bytes of IPv4's header: no identification, "don't fragment".
const DONT_FRAGMENT: u32 = 0x4000_u32.to_be();
/// The bit that marks a group's MAC address.
const GROUP: u8 = 1;
/// Bytes of Ethernet's header with two VLAN tags.
const LONGEST_LINK: usize = 22;
/// Servers listen on lower ports.
const FIRST_CLIENT_PORT: u16 = 1024;
