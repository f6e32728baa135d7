//! Ethernet, VLAN tags, IP: up to where UDP or TCP begins.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_get_buff_len;
use gate_common::abi::Exit;

use super::Packet;
use super::extensions::{self, Outcome};
use crate::maps::{self, peek, poke};

/// Just enough of a packet's headers to tell whether it is any of gate's business.
#[derive(Clone, Copy)]
pub(crate) struct Glance {
    /// Bytes before the IP header: 14, or 18 or 22 with VLAN tags.
    link_len: usize,
    /// Whether it is IPv6.
    v6: bool,
    /// Whether it is a fragment, or hides its ports behind too many extension headers.
    pub(crate) fragment: bool,
    /// UDP or TCP.
    pub(crate) transport: u8,
    /// Where the transport header starts.
    pub(crate) transport_at: usize,
}

/// Where a packet's parts lie, and who sent it to whom.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    /// Bytes before the IP header.
    pub(crate) link_len: usize,
    /// Whether it is IPv6.
    pub(crate) v6: bool,
    /// UDP or TCP.
    pub(crate) transport: u8,
    /// The type of service, or traffic class.
    pub(crate) class: u8,
    /// Where the transport header starts.
    pub(crate) transport_at: usize,
    /// Where the IP packet ends, as its header says: the frame may be longer (padding), or cut off.
    pub(crate) end: usize,
    /// The source, as two words in the order of its bytes in memory; IPv4 as `::ffff:a.b.c.d`.
    pub(crate) source: [u64; 2],
    /// The destination, likewise.
    pub(crate) destination: [u64; 2],
}

/// UDP's protocol number.
pub(crate) const UDP: u8 = 17;
/// TCP's protocol number.
pub(crate) const TCP: u8 = 6;

impl Glance {
    /// Finds the transport header.
    ///
    /// # Errors
    ///
    /// [`Exit::NotIp`], [`Exit::NotTransport`], [`Exit::BadHeader`].
    #[inline(always)]
    pub(crate) fn at(ctx: *mut xdp_md, packet: &Packet) -> Result<Self, Exit> {
        let mut ether_type = packet.bytes::<14>(0).ok_or(Exit::BadHeader)?.get::<u16, 12>();
        let mut link_len = 14;
        for _ in 0..MAX_VLAN_TAGS {
            if !matches!(ether_type, VLAN | VLAN_SERVICE | VLAN_OLD) {
                break;
            }
            ether_type = packet.bytes::<4>(link_len).ok_or(Exit::BadHeader)?.get::<u16, 2>();
            link_len += 4;
        }
        match ether_type {
            IPV4 => Self::at_v4(packet, link_len),
            IPV6 => Self::at_v6(ctx, packet, link_len),
            _ => Err(Exit::NotIp),
        }
    }

    #[inline(always)]
    fn at_v4(packet: &Packet, link_len: usize) -> Result<Self, Exit> {
        let header = packet.bytes::<20>(link_len).ok_or(Exit::BadHeader)?;
        let version = header.get::<u8, 0>();
        let header_len = usize::from(version & 0x0f) * 4;
        if version >> 4 != 4 || header_len < 20 {
            return Err(Exit::BadHeader);
        }
        let transport = header.get::<u8, 9>();
        if transport != UDP && transport != TCP {
            return Err(Exit::NotTransport);
        }
        let fragment = header.get::<u16, 6>() & FRAGMENT_V4 != 0;
        Ok(Self { link_len, v6: false, fragment, transport, transport_at: link_len + header_len })
    }

    #[inline(always)]
    fn at_v6(ctx: *mut xdp_md, packet: &Packet, link_len: usize) -> Result<Self, Exit> {
        let header = packet.bytes::<40>(link_len).ok_or(Exit::BadHeader)?;
        if header.get::<u8, 0>() >> 4 != 6 {
            return Err(Exit::BadHeader);
        }
        let transport = header.get::<u8, 6>();
        let transport_at = link_len + 40;
        if transport == UDP || transport == TCP {
            return Ok(Self { link_len, v6: true, fragment: false, transport, transport_at });
        }
        let case = maps::SCRATCH.get_ptr_mut(0).ok_or(Exit::Missing)?;
        // SAFETY: this CPU's own scratch.
        let walk = unsafe { &raw mut (*case).walk };
        extensions::follow(ctx, walk, transport, transport_at as u32);
        let fragment = match peek!((*walk).outcome) {
            Outcome::Transport => false,
            Outcome::Fragment | Outcome::GoesOn => true,
            Outcome::NotTransport => return Err(Exit::NotTransport),
            Outcome::BadHeader => return Err(Exit::BadHeader),
        };
        let (transport, transport_at) = (peek!((*walk).next), peek!((*walk).at) as usize);
        Ok(Self { link_len, v6: true, fragment, transport, transport_at })
    }

    /// Reads the rest, to scratch; returns where the IP packet ends.
    ///
    /// # Errors
    ///
    /// [`Exit::BadHeader`].
    #[inline(always)]
    pub(crate) fn file(self, ctx: *mut xdp_md, packet: &Packet, frame: *mut Frame) -> Result<usize, Exit> {
        let Self { link_len, v6, transport, transport_at, .. } = self;
        let end = if v6 {
            let header = packet.bytes::<40>(link_len).ok_or(Exit::BadHeader)?;
            poke!((*frame).v6, true);
            poke!((*frame).class, (u16::from_be(header.get::<u16, 0>()) >> 4) as u8);
            poke!((*frame).source[0], header.get::<u64, 8>());
            poke!((*frame).source[1], header.get::<u64, 16>());
            poke!((*frame).destination[0], header.get::<u64, 24>());
            poke!((*frame).destination[1], header.get::<u64, 32>());
            link_len + 40 + usize::from(u16::from_be(header.get::<u16, 4>()))
        } else {
            let header = packet.bytes::<20>(link_len).ok_or(Exit::BadHeader)?;
            poke!((*frame).v6, false);
            poke!((*frame).class, header.get::<u8, 1>());
            poke!((*frame).source[0], 0);
            poke!((*frame).source[1], MAPPED | u64::from(header.get::<u32, 12>()) << 32);
            poke!((*frame).destination[0], 0);
            poke!((*frame).destination[1], MAPPED | u64::from(header.get::<u32, 16>()) << 32);
            link_len + usize::from(u16::from_be(header.get::<u16, 2>()))
        };
        let whole = transport_at <= end && is_whole(ctx, packet, end);
        if !whole {
            return Err(Exit::BadHeader);
        }
        poke!((*frame).transport, transport);
        poke!((*frame).link_len, link_len);
        poke!((*frame).transport_at, transport_at);
        poke!((*frame).end, end);
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

/// Whether the packet is as long as its IP header says. Parts of it may lie outside its linear part.
#[inline(always)]
fn is_whole(ctx: *mut xdp_md, packet: &Packet, end: usize) -> bool {
    // SAFETY: the helper only reads the packet's length.
    end <= packet.len() || end as u64 <= unsafe { bpf_xdp_get_buff_len(ctx) }
}

/// The four bytes of an IPv4 address.
#[inline(always)]
pub(crate) fn bytes_v4([_, second]: [u64; 2]) -> [u8; 4] {
    ((second >> 32) as u32).to_le_bytes()
}

/// An address as bytes, from words in the order of memory.
#[inline(always)]
pub(crate) fn bytes([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(second) << 64 | u128::from(first)).to_le_bytes()
}

/// Two, as with a provider's tag around a customer's.
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
/// `::ffff:0:0/96`, the lower half, in the order of memory.
const MAPPED: u64 = 0xffff_0000;
