//! A unit of traffic, described: one IP packet, or the fragments of one, and what is wrong with it.
//!
//! The encoder is the suite's own: libraries refuse most of what is sent here.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::lane::MEMCACHED;

/// A packet to be sent, as a whole. [`Spec::frames`] gives its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    /// The destination in the Ethernet header.
    pub(crate) mac: [u8; 6],
    /// The type and tag of each VLAN header, outermost first.
    pub(crate) vlans: Vec<(u16, u16)>,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// IPv4's options, a multiple of four bytes.
    pub(crate) options: Vec<u8>,
    /// IPv6's extension headers before a fragment header, or all of them: number, and all but the first byte.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    /// IPv6's extension headers in the part that is fragmented.
    pub(crate) inner: Vec<(u8, Vec<u8>)>,
    /// IPv4's total length or IPv6's payload length.
    pub(crate) length: Length,
    pub(crate) transport: Transport,
    pub(crate) ports: [u16; 2],
    pub(crate) checksum: Checksum,
    pub(crate) payload: Vec<u8>,
    /// The fragments in the order in which they are sent, as ranges of what is fragmented; none for a whole packet.
    pub(crate) fragments: Vec<Fragment>,
    /// The identification of the fragments.
    pub(crate) id: u32,
    /// Bytes in each frame behind the IP packet.
    pub(crate) padding: usize,
    /// Changes of single bytes: which frame, where (modulo its length), and what is added.
    pub(crate) flips: Vec<(usize, usize, u8)>,
}

/// The length in the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Right,
    Fixed(u16),
    /// As long as it is, and this much more or less.
    Off(i16),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// With another length in its header than it has, if given.
    Udp(Option<u16>),
    /// Bits from FIN upwards, and options, a multiple of four bytes.
    Tcp { flags: u8, options: Vec<u8> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    Right,
    Zero,
    Wrong,
}

/// One fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// Where it starts, in units of 8 bytes.
    pub(crate) offset: u16,
    /// How many bytes it has. What goes beyond the packet's end is filled up with zeroes.
    pub(crate) len: usize,
    /// True if its header says that more fragments follow.
    pub(crate) more: bool,
}

impl Spec {
    /// An ordinary datagram.
    pub(crate) fn udp(source: &str, destination: &str, port: u16, payload: &[u8]) -> Self {
        Self {
            mac: GATE_MAC,
            vlans: Vec::new(),
            source: source.parse().expect("an address"),
            destination: destination.parse().expect("an address"),
            options: Vec::new(),
            extensions: Vec::new(),
            inner: Vec::new(),
            length: Length::Right,
            transport: Transport::Udp(None),
            ports: [40_000, port],
            checksum: Checksum::Right,
            payload: payload.to_vec(),
            fragments: Vec::new(),
            id: 1,
            padding: 0,
            flips: Vec::new(),
        }
    }

    /// An ordinary segment.
    pub(crate) fn tcp(source: &str, destination: &str, port: u16, flags: u8, payload: &[u8]) -> Self {
        let transport = Transport::Tcp { flags, options: Vec::new() };
        Self { transport, ..Self::udp(source, destination, port, payload) }
    }

    /// The same, changed.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Cuts it into fragments of this many bytes, a multiple of 8.
    pub(crate) fn cut(&mut self, every: usize) {
        let whole = self.fragmented().len();
        let starts = (0..whole).step_by(every);
        let fragment = |at: usize| Fragment {
            offset: (at / 8) as u16,
            len: every.min(whole - at),
            more: at + every < whole,
        };
        self.fragments = starts.map(fragment).collect();
    }

    /// Cuts it into two fragments, if it is cut at all.
    pub(crate) fn cut_in_two(&mut self) {
        if !self.fragments.is_empty() {
            self.cut((self.fragmented_len() / 2).next_multiple_of(8).max(8));
        }
    }

    /// The frames on the wire.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        let body = self.fragmented();
        let mut frames: Vec<_> = if self.fragments.is_empty() {
            vec![self.frame(&body, None)]
        } else {
            self.fragments.iter().map(|fragment| self.fragment(&body, *fragment)).collect()
        };
        for &(frame, at, add) in &self.flips {
            let which = frame % frames.len();
            let frame = &mut frames[which];
            let at = at % frame.len();
            frame[at] = frame[at].wrapping_add(add);
            self.correct_header(frame);
        }
        frames
    }

    /// How many bytes can be fragmented.
    pub(crate) fn fragmented_len(&self) -> usize {
        self.fragmented().len()
    }

    /// All of it but what the transport carries.
    pub(crate) fn described(&self) -> String {
        let payload = self.payload.len();
        format!("{:?} with {payload} bytes", self.clone().with(|spec| spec.payload.clear()))
    }

    /// Bytes before the IP header.
    pub(crate) fn link_len(&self) -> usize {
        14 + 4 * self.vlans.len()
    }

    /// True if gate may drop it although Linux might deliver it: what is malformed, on purpose or by a changed
    /// byte, a chain that is too long, or a first fragment that does not show all of the headers.
    pub(crate) fn may_be_dropped(&self) -> bool {
        !self.flips.is_empty()
            || matches!(self.transport, Transport::Udp(Some(_)))
            || self.extensions.len() + self.inner.len() > 64
            || self.fragments.iter().any(|part| part.offset == 0 && self.shown(*part) < self.shown_at_least())
    }

    /// How many bytes of a fragment count by its IP header. Linux cuts one that others follow off at a multiple of eight.
    fn shown(&self, part: Fragment) -> usize {
        let extensions: usize = self.extensions.iter().map(|(_, rest)| 1 + rest.len()).sum();
        let before = if self.is_v4() { 20 + self.options.len() } else { extensions + FRAGMENT_HEADER };
        let len = match self.length {
            Length::Right | Length::Fixed(0) => part.len,
            Length::Fixed(len) => usize::from(len).saturating_sub(before),
            Length::Off(by) => part.len.saturating_add_signed(by.into()),
        };
        if part.more { len & !7 } else { len }
    }

    /// How much a first fragment has to show: all headers, that of memcached's datagrams included.
    fn shown_at_least(&self) -> usize {
        let inner: usize = self.inner.iter().map(|(_, rest)| 1 + rest.len()).sum();
        inner
            + match &self.transport {
                Transport::Udp(_) if self.ports[1] == MEMCACHED => 16,
                Transport::Udp(_) => 8,
                Transport::Tcp { options, .. } => 20 + options.len(),
            }
    }

    fn is_v4(&self) -> bool {
        self.source.is_ipv4()
    }

    fn protocol(&self) -> u8 {
        if matches!(self.transport, Transport::Udp(_)) { 17 } else { 6 }
    }

    fn fragment(&self, body: &[u8], fragment: Fragment) -> Vec<u8> {
        let from = usize::from(fragment.offset) * 8;
        let mut part: Vec<u8> = body.iter().skip(from).take(fragment.len).copied().collect();
        part.resize(fragment.len, 0);
        self.frame(&part, Some(fragment))
    }

    /// The inner extension headers and the transport.
    fn fragmented(&self) -> Vec<u8> {
        if self.is_v4() {
            return self.transport();
        }
        let mut bytes = chain(&self.inner, self.protocol());
        bytes.extend(self.transport());
        bytes
    }

    fn frame(&self, body: &[u8], fragment: Option<Fragment>) -> Vec<u8> {
        let mut bytes = [&self.mac[..], &CLIENT_MAC].concat();
        for (kind, tag) in &self.vlans {
            bytes.extend(kind.to_be_bytes());
            bytes.extend(tag.to_be_bytes());
        }
        match (self.source, self.destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                bytes.extend([0x08, 0x00]);
                let header_len = 20 + self.options.len();
                let start = bytes.len();
                bytes.extend([0x40 | (header_len / 4) as u8, 0]);
                bytes.extend(self.said(header_len + body.len()).to_be_bytes());
                bytes.extend((self.id as u16).to_be_bytes());
                let flags = fragment.map_or(0, |part| part.offset | u16::from(part.more) << 13);
                bytes.extend(flags.to_be_bytes());
                bytes.extend([61, self.protocol(), 0, 0]);
                bytes.extend(from.octets());
                bytes.extend(to.octets());
                bytes.extend(&self.options);
                let sum = checksum(&[&bytes[start..]]);
                bytes[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                let mut extensions = self.extensions.clone();
                extensions.extend(fragment.map(|part| fragment_header(part, self.id)));
                let inside = self.inner.first().map_or(self.protocol(), |first| first.0);
                let before = chain(&extensions, inside);
                bytes.extend(self.said(before.len() + body.len()).to_be_bytes());
                bytes.extend([extensions.first().map_or(inside, |first| first.0), 61]);
                bytes.extend(from.octets());
                bytes.extend(to.octets());
                bytes.extend(before);
            }
            addresses => panic!("one family: {addresses:?}"),
        }
        bytes.extend(body);
        bytes.resize(bytes.len() + self.padding, 0);
        bytes
    }

    fn said(&self, len: usize) -> u16 {
        match self.length {
            Length::Right => len as u16,
            Length::Fixed(len) => len,
            Length::Off(by) => (len as u16).wrapping_add_signed(by),
        }
    }

    fn transport(&self) -> Vec<u8> {
        let [from, to] = self.ports;
        let mut bytes = [from.to_be_bytes(), to.to_be_bytes()].concat();
        let at = match &self.transport {
            Transport::Udp(length) => {
                let length = length.unwrap_or(8 + self.payload.len() as u16);
                bytes.extend(length.to_be_bytes());
                bytes.extend([0, 0]);
                6
            }
            Transport::Tcp { flags, options } => {
                bytes.extend([0, 0, 0, 1, 0, 0, 0, 1]);
                bytes.extend([(5 + options.len() as u8 / 4) << 4, *flags, 0xff, 0xff, 0, 0, 0, 0]);
                bytes.extend(options);
                16
            }
        };
        bytes.extend(&self.payload);
        let sum = match self.checksum {
            Checksum::Right => self.transport_checksum(&bytes),
            Checksum::Zero => 0,
            Checksum::Wrong => self.transport_checksum(&bytes) ^ 0x5555,
        };
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Over as many bytes as UDP's header says, as the receiver computes it.
    fn transport_checksum(&self, bytes: &[u8]) -> u16 {
        let len = match self.transport {
            // A jumbogram's length is its packet's.
            Transport::Udp(Some(0)) if !self.is_v4() => bytes.len(),
            Transport::Udp(Some(length)) => usize::from(length).min(bytes.len()),
            _ => bytes.len(),
        };
        let addresses = match (self.source, self.destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
            (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
            addresses => panic!("one family: {addresses:?}"),
        };
        let pseudo = [(len as u32).to_be_bytes(), [0, 0, 0, self.protocol()]].concat();
        match checksum(&[&addresses, &pseudo, &bytes[..len]]) {
            0 => 0xffff,
            sum => sum,
        }
    }

    /// Makes IPv4's header checksum right again, so that a changed header is not dropped for that alone.
    fn correct_header(&self, frame: &mut [u8]) {
        let start = self.link_len();
        if !self.is_v4() || frame.len() <= start {
            return;
        }
        let len = usize::from(frame[start] & 0x0f) * 4;
        if len >= 20 && frame.len() >= start + len {
            frame[start + 10..start + 12].fill(0);
            let sum = checksum(&[&frame[start..start + len]]);
            frame[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// The headers one after the other; `last` follows them.
fn chain(headers: &[(u8, Vec<u8>)], last: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (place, (_, rest)) in headers.iter().enumerate() {
        bytes.push(headers.get(place + 1).map_or(last, |next| next.0));
        bytes.extend(rest);
    }
    bytes
}

fn fragment_header(part: Fragment, id: u32) -> (u8, Vec<u8>) {
    let flags = part.offset << 3 | u16::from(part.more);
    (44, [&[0], &flags.to_be_bytes()[..], &id.to_be_bytes()].concat())
}

/// The Internet checksum. Each part but the last is even.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 =
        words.map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Frames as text, one a line; of long ones the beginning.
pub(crate) fn hex(frames: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for frame in frames {
        write!(text, "\n  {} bytes ", frame.len()).expect("into memory");
        for byte in frame.iter().take(LONGEST_SHOWN) {
            write!(text, "{byte:02x}").expect("into memory");
        }
        text.push_str(if frame.len() > LONGEST_SHOWN { "..." } else { "" });
    }
    text
}

const LONGEST_SHOWN: usize = 256;
/// Bytes of IPv6's fragment header.
const FRAGMENT_HEADER: usize = 8;

/// The interface of either gate and its twin.
pub(crate) const GATE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
/// The client's.
pub(crate) const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
