//! Units of traffic at random: most are nearly right, in all the ways in which a packet can be odd.

use std::net::IpAddr;

use gate_tests::net::{SERVER_V4, SERVER_V6};
use gate_tests::rng::Rng;

use super::lane::{ANYWHERE, MEMCACHED, OPAQUE};
use super::spec::{Checksum, Fragment, GATE_MAC, Length, Spec, Transport};

/// The senders of generated packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A tenant within its quota.
    Tenant,
    /// A tenant that has spent its quota.
    Spent,
    /// No rule names it.
    Unknown,
}

impl Sender {
    /// Its addresses.
    pub(crate) const fn addresses(self) -> [&'static str; 2] {
        match self {
            Self::Tenant => ["198.18.5.5", "fd00::5:5"],
            Self::Spent => ["198.18.6.6", "fd00::6:6"],
            Self::Unknown => ["198.18.7.7", "fd00::7:7"],
        }
    }

    /// The owner of this address.
    pub(crate) fn of(address: IpAddr) -> Self {
        let has = |sender: &Self| sender.addresses().iter().any(|own| own.parse() == Ok(address));
        [Self::Tenant, Self::Spent].into_iter().find(has).unwrap_or(Self::Unknown)
    }
}

/// The unit of this number.
pub(crate) fn unit(rng: &mut Rng, sender: Sender, number: u32) -> Spec {
    let family = rng.index(2);
    let source = sender.addresses()[family];
    let mut spec = match rng.below(3) {
        0 => segment(rng, sender, source, family),
        _ => datagram(rng, source, family),
    };
    spec.ports[0] = 1_024 + (number % 60_000) as u16;
    spec.id = number;
    link(rng, &mut spec);
    if spec.source.is_ipv4() {
        if rng.once_in(4) {
            spec.options = options(rng);
        }
    } else {
        extensions(rng, &mut spec);
    }
    if rng.once_in(6) {
        length(rng, &mut spec);
    }
    // A tenant's commands have to be whole in the first fragment: [`super::rows`] has such, and some that are not.
    if rng.once_in(4) && !(sender == Sender::Tenant && spec.ports[1] == MEMCACHED) {
        fragments(rng, &mut spec);
    }
    if rng.once_in(8) {
        let flips = rng.pick(&[1, 1, 1, 2, 3]);
        let at = |rng: &mut Rng| {
            let headers = spec.link_len() + rng.pick(&[28, 48, 64]);
            (rng.index(4), rng.index(headers), rng.pick(&[1, 2, 4, 8, 16, 32, 64, 128, 255]))
        };
        spec.flips = (0..flips).map(|_| at(rng)).collect();
    }
    while spec.frames().iter().any(|frame| frame.len() > LONGEST) {
        spec.payload.truncate(spec.payload.len() / 2);
        spec.extensions.truncate(64);
        spec.fragments.clear();
    }
    spec
}

fn datagram(rng: &mut Rng, source: &str, family: usize) -> Spec {
    let (destination, port) = destination(rng, family, &[OPAQUE, OPAQUE, MEMCACHED, ANYWHERE]);
    let payload = if port == MEMCACHED {
        [&[0, 7, 0, 0, 0, 1, 0, 0], commands(rng).as_slice()].concat()
    } else {
        let len = rng.pick(&[0, 1, 8, 20, 20, 40, 100, 300, 1_200, 4_000, 8_000]);
        rng.bytes(len)
    };
    let mut spec = Spec::udp(source, destination, port, &payload);
    if rng.once_in(10) {
        let real = 8 + payload.len() as u16;
        spec.transport = Transport::Udp(Some(rng.pick(&[0, 7, 8, 9, real - 1, real + 1, real / 2, 65_535])));
    }
    spec.checksum = rng.mostly(8, Checksum::Right, &[Checksum::Zero, Checksum::Zero, Checksum::Wrong]);
    spec
}

fn segment(rng: &mut Rng, sender: Sender, source: &str, family: usize) -> Spec {
    let (destination, port) = destination(rng, family, &[OPAQUE, ANYWHERE]);
    let (flags, len) = if sender == Sender::Unknown || rng.once_in(4) {
        // SYN, with ECE and CWR, with PSH, with URG, with FIN.
        (rng.pick(&[0x02, 0x02, 0xc2, 0x0a, 0x22, 0x03]), rng.pick(&[0, 0, 0, 10]))
    } else {
        (rng.pick(&[0x10, 0x10, 0x18, 0x18, 0x11, 0x38, 0x00]), rng.pick(&[1, 5, 20, 100, 1_200, 4_000]))
    };
    let mut spec = Spec::tcp(source, destination, port, flags, &rng.bytes(len));
    let options = rng.pick(&[0, 0, 1, 3, 5, 10]);
    spec.transport = Transport::Tcp { flags, options: vec![1; 4 * options] };
    spec
}

fn commands(rng: &mut Rng) -> Vec<u8> {
    let key = b"abcdefgh".repeat(1 + rng.index(8));
    let get = [b"get ", &key[..], b"\r\n"].concat();
    get.repeat(rng.pick(&[1, 1, 1, 2, 12]))
}

fn destination(rng: &mut Rng, family: usize, ports: &[u16]) -> (&'static str, u16) {
    let port = rng.pick(ports);
    let own = [SERVER_V4, SERVER_V6][family];
    if port != ANYWHERE {
        return (own, port);
    }
    // Groups and everyone: a socket at any address receives those as well.
    let others: &[&str] = if family == 0 {
        &["198.19.255.255", "255.255.255.255", "224.0.0.1", "127.0.0.1"]
    } else {
        &["ff02::1", "ff01::1", "::1", "::ffff:198.18.0.1"]
    };
    (rng.mostly(4, own, others), port)
}

fn link(rng: &mut Rng, spec: &mut Spec) {
    let multicast = match spec.destination {
        IpAddr::V4(_) => [0x01, 0x00, 0x5e, 0, 0, 1],
        IpAddr::V6(_) => [0x33, 0x33, 0, 0, 0, 1],
    };
    spec.mac = rng.mostly(16, GATE_MAC, &[[0xff; 6], multicast, [0x02, 0, 0, 0, 0, 9]]);
    let tags = rng.mostly(5, 0, &[1, 1, 1, 2, 2, 3, 4, 8]);
    // A tag of network 0 only gives a priority: whoever gets it takes it off and goes on.
    let tag = |rng: &mut Rng| {
        let network = rng.mostly(8, 0, &[1, 5, 4_095]);
        (rng.pick(&[0x8100, 0x8100, 0x88a8, 0x9100]), network | rng.pick(&[0, 0x2000, 0x1000]))
    };
    spec.vlans = (0..tags).map(|_| tag(rng)).collect();
    spec.padding = rng.mostly(6, 0, &[1, 4, 18, 46]);
}

/// IPv4's options, padded with their end.
fn options(rng: &mut Rng) -> Vec<u8> {
    let mut options = Vec::new();
    for _ in 0..rng.pick(&[1, 1, 2, 3]) {
        options.extend::<&[u8]>(rng.pick(&[
            &[1][..],
            &[1, 1, 1],
            // Record route, timestamp, router alert, security, stream, loose and strict source routes, unknown.
            &[7, 7, 4, 0, 0, 0, 0],
            &[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[148, 4, 0, 0],
            &[130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[136, 4, 0, 1],
            &[131, 7, 4, 198, 18, 0, 1],
            &[137, 7, 4, 198, 18, 0, 1],
            &[0x5e, 4, 0, 0],
            &[7, 2],
            &[0],
        ]));
    }
    options.resize(options.len().min(40).next_multiple_of(4), 0);
    options
}

fn extensions(rng: &mut Rng, spec: &mut Spec) {
    if rng.once_in(2) {
        return;
    }
    let count = rng.pick(&[0, 1, 1, 1, 1, 2, 2, 3, 5, 7, 8, 9, 10, 16, 33, 62, 63, 64, 65, 66, 100]);
    if rng.once_in(3) {
        spec.extensions.push((HOP_BY_HOP, option_header(rng)));
    }
    for _ in 0..count {
        // Mostly what Linux goes on from: a long chain with anything else in it ends there.
        let rest = [HOP_BY_HOP, ROUTING, FRAGMENT, FRAGMENT, AUTHENTICATION, MOBILITY, HIP, SHIM6, 59, 50];
        let kind = rng.mostly(4 + 2 * count, DESTINATION, &[&rest[..], &[ROUTING; 10]].concat());
        let header = (kind, extension(rng, kind));
        if rng.once_in(6) { spec.inner.push(header) } else { spec.extensions.push(header) }
    }
}

fn extension(rng: &mut Rng, kind: u8) -> Vec<u8> {
    match kind {
        // Of a packet that is whole, as a rule.
        FRAGMENT => {
            let flags = rng.mostly(4, [0, 0], &[[0, 1], [0, 8], [0, 6], [0xff, 0xf8]]);
            [&[0], &flags[..], &[1, 2, 3, 4]].concat()
        }
        // Its length counts words of four bytes, and not the first two.
        AUTHENTICATION => [vec![4], vec![0; 4 * 6 - 2]].concat(),
        // Type, segments left, and what the type has.
        ROUTING => {
            let kind = rng.pick(&[0, 0, 2, 3, 4, 253]);
            let left = rng.mostly(6, 0, &[1, 2]);
            [&[0, kind, left][..], &[0; 4]].concat()
        }
        _ => option_header(rng),
    }
}

/// A header of options: padding, or what a receiver has to skip.
fn option_header(rng: &mut Rng) -> Vec<u8> {
    match rng.below(8) {
        0 => [&[1][..], &[0x1e, 12], &[0; 12]].concat(),
        1 => [&[3][..], &[0x1e, 28], &[0; 28]].concat(),
        2 => vec![0, 5, 2, 0, 0, 1, 0],
        // A jumbogram's length, which only a long packet may have.
        3 => vec![0, 0xc2, 4, 0, 0, 0, 100],
        4 => vec![0; 7],
        _ => vec![0, 1, 4, 0, 0, 0, 0],
    }
}

fn length(rng: &mut Rng, spec: &mut Spec) {
    spec.length = match rng.below(3) {
        0 => Length::Fixed(rng.pick(&[0, 0, 0, 0, 1, 8, 20, 40, 65_535])),
        _ => Length::Off(rng.pick(&[-100, -9, -8, -1, 1, 8, 18, 46])),
    };
    // Then what counts is the frame's length, where the first header is one of hop-by-hop options.
    if spec.length == Length::Fixed(0)
        && !spec.source.is_ipv4()
        && spec.extensions.first().is_none_or(|first| first.0 != HOP_BY_HOP)
        && !rng.once_in(4)
    {
        spec.extensions.insert(0, (HOP_BY_HOP, option_header(rng)));
    }
}

/// Cuts it up: mostly so that it can be put together again.
fn fragments(rng: &mut Rng, spec: &mut Spec) {
    let whole = spec.fragmented_len();
    let least = 8 * (whole / 8 / 24 + 1);
    spec.cut(rng.pick(&[8, 8, 16, 24, 64, 512, 1_024]).max(least));
    let count = spec.fragments.len();
    match rng.below(8) {
        0 => spec.fragments.reverse(),
        1 => spec.fragments.rotate_left(1),
        2 => {
            let a = rng.index(count);
            let b = rng.index(count);
            spec.fragments.swap(a, b);
        }
        // Twice the same, one that overlaps another, one that is missing.
        3 => {
            let again = spec.fragments[rng.index(count)];
            spec.fragments.insert(rng.index(count + 1), again);
        }
        4 => {
            let Fragment { offset, len, more } = spec.fragments[rng.index(count)];
            let len = rng.pick(&[len, len + 8, len.saturating_sub(8)]);
            let offset = rng.pick(&[offset, offset + 1, offset.saturating_sub(1)]);
            spec.fragments.insert(rng.index(count + 1), Fragment { offset, len, more });
        }
        5 => _ = spec.fragments.remove(rng.index(count)),
        _ => {}
    }
}

/// Bytes of a frame that the interface takes.
const LONGEST: usize = 9_000;
pub(crate) const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
pub(crate) const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const SHIM6: u8 = 140;
