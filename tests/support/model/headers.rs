//! A packet's headers, read one after another.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gate_common::abi::Exit;

use crate::packet::{Inside, Packet, tcp};

/// The headers before the transport's.
#[derive(Debug)]
pub(super) struct Headers {
    vlans: Vec<(u16, u16)>,
    class: u8,
    pub(super) v6: bool,
    pub(super) source: [u8; 16],
    pub(super) destination: [u8; 16],
    pub(super) kind: Kind,
    pub(super) transport: u8,
    pub(super) transport_at: usize,
    /// Where the IP packet ends, as its header says.
    pub(super) end: usize,
}

/// The transport, as far as a packet shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Whole,
    FirstFragment,
    LaterFragment,
    TooManyHeaders,
}

/// The bytes that the transport carries.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) flags: u8,
    sequence: u32,
}

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
/// Hop-by-hop, routing, fragment, authentication, destination, mobility, HIP, shim6.
const EXTENSIONS: [u8; 8] = [0, 43, FRAGMENT, AUTHENTICATION, 60, 135, 139, 140];
/// A longer chain is not followed.
const MOST_EXTENSIONS: usize = 64;
/// Nor are headers that end later.
const MOST_HEADER_BYTES: usize = 1 << 14;
/// Two, and those that are followed after them.
const MOST_TAGS: usize = 2 + 64;

pub(super) fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn part(packet: &[u8], at: usize, len: usize) -> Result<&[u8], Exit> {
    packet.get(at..at + len).ok_or(Exit::BadHeader)
}

impl Headers {
    pub(super) fn read(packet: &[u8]) -> Result<Self, Exit> {
        let mut vlans = Vec::new();
        let mut ether_type = be16(part(packet, 12, 2)?);
        while [0x8100, 0x88a8, 0x9100].contains(&ether_type) {
            if vlans.len() == MOST_TAGS {
                return Err(Exit::TooManyHeaders);
            }
            let tag = part(packet, 14 + 4 * vlans.len(), 4)?;
            vlans.push((ether_type, be16(tag)));
            ether_type = be16(&tag[2..]);
        }
        match ether_type {
            0x0800 => Self::v4(packet, vlans),
            0x86dd => Self::v6(packet, vlans),
            _ => Err(Exit::NotIp),
        }
    }

    fn v4(packet: &[u8], vlans: Vec<(u16, u16)>) -> Result<Self, Exit> {
        let link_len = 14 + 4 * vlans.len();
        let header = part(packet, link_len, 20)?;
        let words = usize::from(header[0] & 15);
        if header[0] >> 4 != 4 || words < 5 {
            return Err(Exit::BadHeader);
        }
        if ![UDP, TCP, AUTHENTICATION].contains(&header[9]) {
            return Err(Exit::NotTransport);
        }
        let kind = match be16(&header[6..]) & 0x3fff {
            0 => Kind::Whole,
            0x2000 => Kind::FirstFragment,
            _ => Kind::LaterFragment,
        };
        let mapped =
            |at: usize| Ipv4Addr::from_octets(header[at..at + 4].try_into().unwrap()).to_ipv6_mapped();
        let length = usize::from(be16(&header[2..]));
        let mut headers = Self {
            vlans,
            class: header[1],
            v6: false,
            source: mapped(12).octets(),
            destination: mapped(16).octets(),
            kind,
            transport: header[9],
            transport_at: link_len + 4 * words,
            end: if length == 0 { packet.len() } else { link_len + length },
        };
        if headers.transport == AUTHENTICATION && kind != Kind::LaterFragment {
            headers.follow_extensions(packet)?;
        }
        if headers.kind == Kind::FirstFragment && headers.end <= packet.len() {
            // A fragment holds multiples of eight bytes; Linux cuts off the rest.
            headers.end -= length.wrapping_sub(4 * words) % 8;
        }
        Ok(headers)
    }

    fn v6(packet: &[u8], vlans: Vec<(u16, u16)>) -> Result<Self, Exit> {
        let link_len = 14 + 4 * vlans.len();
        let header = part(packet, link_len, 40)?;
        if header[0] >> 4 != 6 {
            return Err(Exit::BadHeader);
        }
        let mut headers = Self {
            vlans,
            class: (be16(header) >> 4) as u8,
            v6: true,
            source: header[8..24].try_into().unwrap(),
            destination: header[24..40].try_into().unwrap(),
            kind: Kind::Whole,
            transport: header[6],
            transport_at: link_len + 40,
            end: match usize::from(be16(&header[4..])) {
                0 => packet.len(),
                length => link_len + 40 + length,
            },
        };
        headers.follow_extensions(packet)?;
        Ok(headers)
    }

    fn follow_extensions(&mut self, packet: &[u8]) -> Result<(), Exit> {
        for _ in 0..=MOST_EXTENSIONS {
            if [UDP, TCP].contains(&self.transport) {
                return Ok(());
            }
            if !EXTENSIONS.contains(&self.transport) {
                return Err(Exit::NotTransport);
            }
            let shown = &packet[..self.end.min(packet.len())];
            let Some(header) = shown.get(self.transport_at..self.transport_at + 4) else {
                // The rest may be in a later fragment.
                return if self.kind == Kind::FirstFragment { Ok(()) } else { Err(Exit::BadHeader) };
            };
            let this = std::mem::replace(&mut self.transport, header[0]);
            let fragment = be16(&header[2..]) & 0xfff9;
            if this == FRAGMENT && fragment == 1 {
                self.kind = Kind::FirstFragment;
            } else if this == FRAGMENT && fragment != 0 {
                let may_be_ours = [UDP, TCP].contains(&header[0]) || EXTENSIONS.contains(&header[0]);
                self.kind = Kind::LaterFragment;
                return if may_be_ours { Ok(()) } else { Err(Exit::NotTransport) };
            }
            self.transport_at += match this {
                FRAGMENT => 8,
                AUTHENTICATION => 4 * (usize::from(header[1]) + 2),
                _ => 8 * (usize::from(header[1]) + 1),
            };
            if self.transport_at > MOST_HEADER_BYTES {
                break;
            }
        }
        // There is no telling what it is.
        self.kind = Kind::TooManyHeaders;
        Ok(())
    }

    /// That the frame holds the packet.
    pub(super) fn fits(&self, packet: &[u8]) -> Result<(), Exit> {
        if self.end <= packet.len() { Ok(()) } else { Err(Exit::BadHeader) }
    }

    /// `None` if the transport header contradicts the packet.
    pub(super) fn payload(&self, packet: &[u8]) -> Option<Payload> {
        if self.transport == UDP {
            let header = packet.get(self.transport_at..self.transport_at + 8)?;
            let mut length = usize::from(be16(&header[4..]));
            let whole = self.kind == Kind::Whole;
            if length == 0 && self.v6 && whole {
                length = self.end - self.transport_at;
            }
            let shown = if whole { length } else { 8 };
            let fits = length >= 8 && self.transport_at + shown <= self.end;
            fits.then(|| Payload { at: self.transport_at + 8, len: length - 8, flags: 0, sequence: 0 })
        } else {
            let header = packet.get(self.transport_at..self.transport_at + 20)?;
            let length = 4 * usize::from(header[12] >> 4);
            let at = self.transport_at + length;
            let sequence = u32::from_be_bytes(header[4..8].try_into().unwrap());
            let fits = length >= 20 && at <= self.end;
            fits.then(|| Payload { at, len: self.end - at, flags: header[13], sequence })
        }
    }

    pub(super) fn addresses(&self) -> [IpAddr; 2] {
        [self.source, self.destination].map(|address| match Ipv6Addr::from_octets(address) {
            address if self.v6 => address.into(),
            address => address.to_ipv4_mapped().expect("mapped when it was read").into(),
        })
    }

    /// True if a reply can harm no third party: no group, no server's port, no source that cannot be.
    pub(super) fn may_be_answered(&self, packet: &[u8]) -> bool {
        let [source_port, port] = self.ports(packet);
        let groups = (packet[0] | packet[6]) & 1 != 0;
        let udp = self.transport == UDP;
        if groups || self.vlans.len() > 2 || self.source == self.destination || source_port == 0 {
            return false;
        }
        if udp && (source_port == port || source_port < 1024) {
            return false;
        }
        match self.addresses() {
            [IpAddr::V4(source), IpAddr::V4(destination)] => {
                let first = source.octets()[0];
                !matches!(first, 0 | 127 | 224..) && destination.octets()[0] < 224
            }
            [IpAddr::V6(source), IpAddr::V6(destination)] => {
                source.octets()[..8] != [0; 8] && !source.is_multicast() && !destination.is_multicast()
            }
            addresses => panic!("one family: {addresses:?}"),
        }
    }

    fn ports(&self, packet: &[u8]) -> [u16; 2] {
        let ports = &packet[self.transport_at..];
        [be16(ports), be16(&ports[2..])]
    }

    /// The packet that an answer is written from.
    pub(super) fn rebuilt(&self, packet: &[u8], payload: &Payload) -> Packet {
        let [source, destination] = self.addresses();
        let inside = if self.transport == UDP {
            Inside::Udp(None)
        } else {
            Inside::Tcp { flags: payload.flags, sequence: payload.sequence, options: Vec::new() }
        };
        Packet {
            macs: [packet[..6].try_into().unwrap(), packet[6..12].try_into().unwrap()],
            vlans: self.vlans.clone(),
            source,
            destination,
            dscp: self.class >> 2,
            inside,
            ports: self.ports(packet),
            ..Packet::udp(
                "198.18.0.2",
                "198.18.0.1",
                0,
                &packet[payload.at..self.end.min(payload.at + payload.len)],
            )
        }
    }
}

impl Payload {
    pub(super) fn opens(&self) -> bool {
        self.flags & (tcp::SYN | tcp::ACK | tcp::RST) == tcp::SYN
    }

    /// A reset's payload is no data.
    pub(super) fn carries_data(&self, headers: &Headers) -> bool {
        let some = self.len != 0 || headers.kind == Kind::FirstFragment;
        some && self.flags & tcp::RST == 0
    }
}
