//! Packets for the program, written by etherparse.

use std::net::IpAddr;

use etherparse::{
    EtherType, Ethernet2Header, IpDscp, IpFragOffset, IpNumber, Ipv4Header, Ipv4Options, Ipv6FlowLabel,
    Ipv6Header, TcpHeader, UdpHeader,
};

/// The client's address on the link.
pub const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
/// The gate's.
pub const GATE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// A packet in the making. Lengths and checksums are right unless something says otherwise.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Destination and source.
    pub macs: [[u8; 6]; 2],
    /// The type and tag of each VLAN, outermost first.
    pub vlans: Vec<(u16, u16)>,
    /// The sender.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// Six bits.
    pub dscp: u8,
    /// The time to live, or hop limit.
    pub hops: u8,
    /// IPv4's flag.
    pub dont_fragment: bool,
    /// IPv4's options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// IPv6's extension headers: their number, and all of them but the first byte.
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// IPv4: more fragments, and the offset in units of 8 bytes.
    pub fragment: (bool, u16),
    /// The content of the IP packet.
    pub inside: Inside,
    /// The ports.
    pub ports: [u16; 2],
    /// The bytes that the transport carries.
    pub payload: Vec<u8>,
    /// Bytes after the IP packet.
    pub padding: usize,
}

/// The transport of a packet.
#[derive(Clone, Debug)]
pub enum Inside {
    /// A datagram; with another length in its header than it has, if given.
    Udp(Option<u16>),
    /// A segment.
    Tcp {
        /// Bits, from FIN upwards.
        flags: u8,
        /// The sequence number.
        sequence: u32,
        /// Options, a multiple of four bytes.
        options: Vec<u8>,
    },
    /// A segment that refuses a connection, with its checksum.
    Reset {
        /// The acknowledged sequence number.
        acknowledgment: u32,
    },
    /// Neither.
    Other(u8),
}

/// TCP's bits.
pub mod tcp {
    /// The sender has finished.
    pub const FIN: u8 = 1;
    /// A connection is to be opened.
    pub const SYN: u8 = 2;
    /// The connection is refused.
    pub const RST: u8 = 4;
    /// Data is to be handed on.
    pub const PSH: u8 = 8;
    /// The acknowledgment counts.
    pub const ACK: u8 = 16;
}

impl Packet {
    /// A datagram from `source` (port 40000) to `destination` on `port`.
    #[must_use]
    pub fn udp(source: &str, destination: &str, port: u16, payload: &[u8]) -> Self {
        Self {
            macs: [GATE_MAC, CLIENT_MAC],
            vlans: Vec::new(),
            source: source.parse().expect("an address"),
            destination: destination.parse().expect("an address"),
            dscp: 0,
            hops: 61,
            dont_fragment: false,
            options: Vec::new(),
            extensions: Vec::new(),
            fragment: (false, 0),
            inside: Inside::Udp(None),
            ports: [40_000, port],
            payload: payload.to_vec(),
            padding: 0,
        }
    }

    /// A datagram that holds memcached's frame header, with this request id, and then `text`.
    #[must_use]
    pub fn memcached(source: &str, destination: &str, port: u16, id: u16, text: &[u8]) -> Self {
        let mut payload = Vec::from(id.to_be_bytes());
        payload.extend([0, 0, 0, 1, 0, 0]);
        payload.extend(text);
        Self::udp(source, destination, port, &payload)
    }

    /// A segment from `source` (port 40000) to `destination` on `port`.
    #[must_use]
    pub fn tcp(source: &str, destination: &str, port: u16, flags: u8, payload: &[u8]) -> Self {
        let inside = Inside::Tcp { flags, sequence: 0x0102_0304, options: Vec::new() };
        Self { inside, ..Self::udp(source, destination, port, payload) }
    }

    /// The packet, changed.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut transport = self.transport();
        let mut bytes = Vec::new();
        self.write_link(&mut bytes);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let protocol = IpNumber(self.protocol());
                let length = transport.len() as u16;
                let mut header =
                    Ipv4Header::new(length, self.hops, protocol, source.octets(), destination.octets())
                        .expect("fits");
                header.dscp = IpDscp::try_new(self.dscp).expect("six bits");
                header.options = Ipv4Options::try_from(self.options.as_slice()).expect("up to 40 bytes");
                header.set_payload_len(transport.len()).expect("fits");
                header.dont_fragment = self.dont_fragment;
                header.more_fragments = self.fragment.0;
                header.fragment_offset = IpFragOffset::try_new(self.fragment.1).expect("13 bits");
                header.header_checksum = header.calc_header_checksum();
                header.write(&mut bytes).expect("into memory");
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut before = Vec::new();
                for (place, (_, rest)) in self.extensions.iter().enumerate() {
                    let next = self.extensions.get(place + 1).map_or(self.protocol(), |next| next.0);
                    before.push(next);
                    before.extend(rest);
                }
                before.append(&mut transport);
                transport = before;
                let header = Ipv6Header {
                    traffic_class: self.dscp << 2,
                    flow_label: Ipv6FlowLabel::ZERO,
                    payload_length: transport.len() as u16,
                    next_header: IpNumber(self.extensions.first().map_or(self.protocol(), |first| first.0)),
                    hop_limit: self.hops,
                    source: source.octets(),
                    destination: destination.octets(),
                };
                header.write(&mut bytes).expect("into memory");
            }
            addresses => panic!("one family: {addresses:?}"),
        }
        bytes.extend(transport);
        bytes.resize(bytes.len() + self.padding, 0);
        bytes
    }

    /// Bytes before the IP header.
    #[must_use]
    pub fn link_len(&self) -> usize {
        14 + 4 * self.vlans.len()
    }

    fn write_link(&self, bytes: &mut Vec<u8>) {
        let inner = if self.source.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let outer = self.vlans.first().map_or(inner, |tag| EtherType(tag.0));
        let [destination, source] = self.macs;
        Ethernet2Header { source, destination, ether_type: outer }.write(bytes).expect("into memory");
        for (place, (_, tag)) in self.vlans.iter().enumerate() {
            let next = self.vlans.get(place + 1).map_or(inner.0, |next| next.0);
            bytes.extend(tag.to_be_bytes());
            bytes.extend(next.to_be_bytes());
        }
    }

    fn protocol(&self) -> u8 {
        match self.inside {
            Inside::Udp(_) => 17,
            Inside::Tcp { .. } | Inside::Reset { .. } => 6,
            Inside::Other(number) => number,
        }
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let [source, destination] = self.ports;
        match &self.inside {
            Inside::Udp(length) => {
                let mut header = UdpHeader {
                    source_port: source,
                    destination_port: destination,
                    length: length.unwrap_or(8 + self.payload.len() as u16),
                    checksum: 0,
                };
                header.checksum = match (self.source, self.destination) {
                    (IpAddr::V4(from), IpAddr::V4(to)) => {
                        header.calc_checksum_ipv4_raw(from.octets(), to.octets(), &self.payload)
                    }
                    (IpAddr::V6(from), IpAddr::V6(to)) => {
                        header.calc_checksum_ipv6_raw(from.octets(), to.octets(), &self.payload)
                    }
                    addresses => panic!("one family: {addresses:?}"),
                }
                .expect("fits");
                header.write(&mut bytes).expect("into memory");
            }
            Inside::Tcp { flags, sequence, options } => {
                let mut header = TcpHeader::new(source, destination, *sequence, 65_535);
                header.fin = flags & tcp::FIN != 0;
                header.syn = flags & tcp::SYN != 0;
                header.rst = flags & tcp::RST != 0;
                header.psh = flags & tcp::PSH != 0;
                header.ack = flags & tcp::ACK != 0;
                header.set_options_raw(options).expect("up to 40 bytes");
                header.write(&mut bytes).expect("into memory");
            }
            Inside::Reset { acknowledgment } => {
                let mut header = TcpHeader::new(source, destination, 0, 0);
                (header.rst, header.ack) = (true, true);
                header.acknowledgment_number = *acknowledgment;
                header.checksum = match (self.source, self.destination) {
                    (IpAddr::V4(from), IpAddr::V4(to)) => {
                        header.calc_checksum_ipv4_raw(from.octets(), to.octets(), &[])
                    }
                    (IpAddr::V6(from), IpAddr::V6(to)) => {
                        header.calc_checksum_ipv6_raw(from.octets(), to.octets(), &[])
                    }
                    addresses => panic!("one family: {addresses:?}"),
                }
                .expect("fits");
                header.write(&mut bytes).expect("into memory");
            }
            Inside::Other(_) => {}
        }
        bytes.extend(&self.payload);
        bytes
    }
}
