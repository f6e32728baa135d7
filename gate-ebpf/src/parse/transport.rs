//! The headers of UDP and TCP.

use gate_common::abi::Exit;

use super::Packet;
use super::frame::{Frame, UDP};

/// What a packet carries: a datagram or a segment.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Where it starts.
    pub(crate) at: u32,
    /// Its bytes.
    pub(crate) len: u32,
    /// The segment's sequence number.
    pub(crate) sequence: u32,
    /// The segment's [`tcp_flags`].
    pub(crate) flags: u8,
}

impl Load {
    /// What there is no telling of.
    pub(crate) const NOTHING: Self = Self { at: 0, len: 0, sequence: 0, flags: 0 };

    /// Reads the transport header.
    ///
    /// # Errors
    ///
    /// [`Exit::Malformed`] if its length contradicts the packet's.
    #[inline(always)]
    pub(crate) fn read(packet: &Packet, frame: &Frame) -> Result<Self, Exit> {
        if frame.transport == UDP { datagram(packet, frame) } else { segment(packet, frame) }
    }

    /// Where it ends.
    #[inline(always)]
    pub(crate) fn end(&self) -> u32 {
        self.at + self.len
    }

    /// Whether a connection is to be opened.
    #[inline(always)]
    pub(crate) fn opens(&self) -> bool {
        self.flags & (tcp_flags::SYN | tcp_flags::ACK | tcp_flags::RST) == tcp_flags::SYN
    }

    /// Whether a segment carries data. A reset may carry the reason for it, which is none.
    #[inline(always)]
    pub(crate) fn carries_data(&self) -> bool {
        self.len != 0 && self.flags & tcp_flags::RST == 0
    }
}

#[inline(always)]
fn datagram(packet: &Packet, frame: &Frame) -> Result<Load, Exit> {
    let header = packet.bytes::<UDP_HEADER>(frame.transport_at).ok_or(Exit::Malformed)?;
    let length = usize::from(u16::from_be(header.get::<u16, 4>()));
    if length < UDP_HEADER || frame.transport_at + length > frame.end {
        return Err(Exit::Malformed);
    }
    let at = frame.transport_at + UDP_HEADER;
    Ok(Load { at: at as u32, len: (length - UDP_HEADER) as u32, sequence: 0, flags: 0 })
}

#[inline(always)]
fn segment(packet: &Packet, frame: &Frame) -> Result<Load, Exit> {
    let header = packet.bytes::<TCP_HEADER>(frame.transport_at).ok_or(Exit::Malformed)?;
    let header_len = usize::from(header.get::<u8, 12>() >> 4) * 4;
    let at = frame.transport_at + header_len;
    if header_len < TCP_HEADER || at > frame.end {
        return Err(Exit::Malformed);
    }
    let (sequence, flags) = (u32::from_be(header.get::<u32, 4>()), header.get::<u8, 13>());
    Ok(Load { at: at as u32, len: (frame.end - at) as u32, sequence, flags })
}

/// Bits of [`Load::flags`].
pub(crate) mod tcp_flags {
    /// The sender has finished.
    pub(crate) const FIN: u8 = 1 << 0;
    /// A connection is to be opened.
    pub(crate) const SYN: u8 = 1 << 1;
    /// The connection is refused or broken.
    pub(crate) const RST: u8 = 1 << 2;
    /// The acknowledgment number counts.
    pub(crate) const ACK: u8 = 1 << 4;
}

/// Bytes of UDP's header.
pub(crate) const UDP_HEADER: usize = 8;
/// Bytes of TCP's header without options.
pub(crate) const TCP_HEADER: usize = 20;
