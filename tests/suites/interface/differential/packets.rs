//! Packets as clients send them, as attackers might, and as broken wires deliver them.

use gate_tests::packet::{Inside, Packet, tcp};
use gate_tests::rng::Rng;

/// Sources of IPv4 and of IPv6: of tenants, next to a tenant's prefix, unknown.
const SOURCES: [&[&str]; 2] = [
    &[
        "198.18.0.2",
        "198.18.2.9",
        "198.18.2.255",
        "198.18.4.0",
        "198.18.5.77",
        "198.18.6.1",
        "198.18.0.3",
        "198.19.0.9",
        "0.0.0.0",
        "127.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
    ],
    &[
        "fd00::2",
        "fd00:2::9",
        "fd00:2::ffff",
        "fd00:4::1",
        "fd00:5:8000::1",
        "fd00::3",
        "2001::1",
        "::",
        "::1",
        "ff02::1",
        "::ffff:198.18.0.2",
        "fd00::1",
    ],
];
/// How many of them are tenants'.
const TENANTS: usize = 5;
/// Services of the plans.
const SERVICES: [&[(bool, &str, u16)]; 2] = [
    &[
        (true, "198.18.0.1", 11211),
        (true, "198.18.0.1", 11211),
        (true, "198.18.0.1", 11211),
        (true, "198.18.0.1", 11212),
        (true, "198.18.0.1", 9999),
        (true, "198.18.0.8", 7000),
        (false, "198.18.0.1", 11211),
        (false, "198.18.0.1", 11211),
        (false, "198.18.0.1", 11212),
        (false, "198.18.0.1", 6379),
        (false, "198.18.77.7", 6380),
        (false, "198.18.77.7", 9999),
    ],
    &[
        (true, "fd00::1", 11211),
        (true, "fd00::1", 11211),
        (true, "fd00::77", 9999),
        (true, "::ffff:198.18.0.1", 11211),
        (false, "fd00::1", 11211),
        (false, "fd00::1", 11212),
        (false, "fd00::1", 6380),
        (false, "fd00::77", 9999),
    ],
];
/// Destinations without a service, and groups.
const ELSEWHERE: [&[&str]; 2] =
    [&["198.18.0.1", "198.18.0.2", "198.18.0.9", "224.0.0.251"], &["fd00::1", "fd00::77", "ff02::1"]];
const PORTS: [u16; 8] = [11211, 11212, 6379, 6380, 9999, 7000, 7001, 40_000];
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// A packet of at least 14 bytes, the fewest that the kernel takes.
pub(crate) fn packet(rng: &mut Rng) -> Vec<u8> {
    let packet = whole(rng);
    let network_at = packet.link_len();
    let mut bytes = packet.bytes();
    if rng.once_in(40) {
        // No length: what the frame holds counts.
        let length = if packet.source.is_ipv4() { 2 } else { 4 };
        bytes[network_at + length..network_at + length + 2].fill(0);
    }
    if rng.once_in(6) {
        distort(rng, &mut bytes);
    }
    bytes
}

fn whole(rng: &mut Rng) -> Packet {
    let family = usize::from(rng.once_in(3));
    let (tenants, others) = SOURCES[family].split_at(TENANTS);
    let source = if rng.once_in(4) { rng.pick(others) } else { rng.pick(tenants) };
    let (udp, destination, port) = if rng.once_in(8) {
        (rng.once_in(2), rng.pick(ELSEWHERE[family]), rng.pick(&PORTS))
    } else {
        rng.pick(SERVICES[family])
    };
    let mut packet = if udp {
        let payload = if rng.once_in(20) { some_bytes(rng) } else { commands(rng) };
        Packet::udp(source, destination, port, &payload)
    } else {
        segment(rng, source, destination, port)
    };
    packet.ports[0] = rng.mostly(8, 40_000, &[0, 1, 53, 1023, 1024, 65_535, port]);
    packet.dscp = rng.mostly(8, 0, &[10, 46, 63]);
    packet.vlans = (0..rng.mostly(4, 0, &[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 65, 66, 67]))
        .map(|_| (rng.pick(&TAGS), rng.below(1 << 16) as u16))
        .collect();
    packet.padding = rng.mostly(8, 0, &[1, 4, 18, 46]);
    if rng.once_in(40) {
        packet.macs[rng.below(2) as usize] = rng.pick(&[[0xff; 6], [0x33, 0x33, 0, 0, 0, 1]]);
    }
    if let Inside::Udp(length) = &mut packet.inside
        && rng.once_in(16)
    {
        let real = 8 + packet.payload.len() as u16;
        *length = Some(rng.pick(&[0, 7, 8, 9, 16, real - 1, real + 1, real + 8, 3_000, 65_535]));
    }
    if rng.once_in(60) {
        packet.inside = Inside::Other(rng.pick(&[1, 2, 47, 58, 132]));
    }
    if family == 0 {
        packet.options = vec![1; 4 * rng.mostly(6, 0, &[1, 2, 10])];
        let kinds = [(true, 0), (true, 0), (true, 0), (true, 3), (false, 1), (false, 8191)];
        packet.fragment = rng.mostly(12, (false, 0), &kinds);
    } else if rng.once_in(3) {
        let count = rng.pick(&[1, 1, 1, 1, 1, 1, 2, 2, 3, 3, 8, 9, 63, 64, 65]);
        packet.extensions = if count < 60 {
            (0..count).map(|_| extension(rng)).collect()
        } else {
            vec![(60, vec![0; 7]); count]
        };
    }
    if rng.once_in(6)
        && let Inside::Udp(length @ None) = &mut packet.inside
        && (packet.fragment == (true, 0)
            || packet.extensions.iter().any(|(kind, rest)| (*kind, rest[2]) == (44, 1)))
    {
        // A fragment of a longer datagram.
        *length = Some(8 + packet.payload.len() as u16 + rng.pick(&[1, 8, 100, 1_400]));
    }
    packet
}

/// An extension header: its number, and all but its first byte.
fn extension(rng: &mut Rng) -> (u8, Vec<u8>) {
    let kind = rng.pick(&[0, 43, 44, 51, 60, 60, 135, 139, 140]);
    match kind {
        // Reserved, offset and flags, identification. Mostly of a packet that is whole.
        44 => {
            let flags = rng.mostly(4, [0, 0], &[[0, 1], [0, 1], [0, 8], [0xff, 0xf8], [0, 6]]);
            (44, [&[0], &flags[..], &[1, 2, 3, 4]].concat())
        }
        // Its length counts words of four bytes, and not the first two.
        51 => (51, [vec![4], vec![0; 4 * 6 - 2]].concat()),
        _ => {
            let length = rng.pick(&[0, 0, 0, 1, 2]);
            (kind, [vec![length], vec![0; 8 * (usize::from(length) + 1) - 2]].concat())
        }
    }
}

fn segment(rng: &mut Rng, source: &str, destination: &str, port: u16) -> Packet {
    let flags = rng.pick(&[
        tcp::SYN,
        tcp::SYN,
        tcp::SYN | tcp::FIN,
        tcp::SYN | tcp::ACK,
        tcp::ACK,
        tcp::ACK,
        tcp::ACK | tcp::PSH,
        tcp::ACK | tcp::PSH,
        tcp::FIN | tcp::ACK,
        tcp::RST,
        tcp::RST | tcp::ACK,
        tcp::SYN | tcp::RST,
        0,
        0x3f,
    ]);
    let payload = match rng.below(3) {
        0 => Vec::new(),
        1 => {
            // Segments begin and end anywhere.
            let text = commands(rng);
            let text = text.get(8..).unwrap_or(&text);
            let from = if rng.once_in(4) { rng.index(text.len() + 1) } else { 0 };
            let left = text.len() - from;
            let len = if rng.once_in(2) { rng.index(left + 1) } else { left };
            text[from..][..len].to_vec()
        }
        _ => some_bytes(rng),
    };
    let options = vec![1; 4 * rng.mostly(3, 0, &[1, 3, 10])];
    let sequence = rng.mostly(4, 0x0102_0304, &[0, u32::MAX, u32::MAX - 5]);
    Packet::tcp(source, destination, port, flags, &payload)
        .with(|packet| packet.inside = Inside::Tcp { flags, sequence, options })
}

fn some_bytes(rng: &mut Rng) -> Vec<u8> {
    let count = rng.pick(&[0, 1, 7, 8, 9, 40, 1000]);
    rng.bytes(count)
}

/// Cut off anywhere, longer than it says, or with bytes changed where the headers are.
fn distort(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let end = bytes.len() as u64;
    match rng.below(4) {
        0 => bytes.truncate(14 + rng.below(end - 13) as usize),
        // Near the headers' ends.
        1 => bytes.truncate(end.min(14 + rng.below(100)) as usize),
        2 => {
            for _ in 0..=rng.below(2) {
                let place = rng.below(end.min(90)) as usize;
                bytes[place] = rng.below(256) as u8;
            }
        }
        _ => {
            let place = rng.below(end.min(90)) as usize;
            bytes[place] ^= 1 << rng.below(8);
        }
    }
}

/// A payload: a few lines, mostly as clients write them, sometimes with a byte changed or the end cut off.
fn commands(rng: &mut Rng) -> Vec<u8> {
    let mut text = vec![rng.below(256) as u8, 7, 0, 0, 0, 1, 0, 0];
    for _ in 0..=rng.below(4) {
        text.extend(rng.pick(&COMMANDS));
        if rng.below(3) == 0 {
            // As storage commands want it.
            text.extend(b" k 0 0 ");
            text.extend([b'0' + rng.below(10) as u8]);
        }
        for _ in 0..rng.below(6) {
            text.extend(if rng.below(12) == 0 { &b"  "[..] } else { b" " });
            text.extend(rng.pick(&WORDS));
        }
        text.extend(rng.pick(&ENDS));
        if rng.below(2) == 0 {
            text.extend(rng.pick(&DATA));
        }
    }
    if rng.below(10) == 0 {
        let place = rng.index(text.len());
        text[place] = [b' ', b'\n', b'\r', 0, 0x80, b'q', b'0', 0xff][rng.below(8) as usize];
    }
    if rng.below(10) == 0 {
        text.truncate(rng.index(text.len() + 1));
    }
    text.truncate(1400);
    text
}

const COMMANDS: [&[u8]; 32] = [
    b"get", b"get", b"get", b"gets", b"gat", b"gats", b"bget", b"set", b"set", b"set", b"add", b"replace",
    b"append", b"prepend", b"cas", b"cas", b"delete", b"incr", b"decr", b"touch", b"mg", b"ms", b"ms", b"md",
    b"ma", b"me", b"mn", b"version", b"GET", b"getx", b"\x80", b"",
];
const WORDS: [&[u8]; 26] = [
    b"k",
    b"key",
    b"seven77",
    b"eight888",
    b"nine99999",
    b"a_key_of_more_than_sixteen_bytes",
    b"0",
    b"1",
    b"2",
    b"5",
    b"9",
    b"-1",
    b"-",
    b"4294967295",
    b"4294967296",
    b"2147483647",
    b"2147483648",
    b"noreply",
    b"q",
    b"T0",
    b"v",
    b"\0",
    b"a\rb",
    b"\r",
    b"000000000005",
    b"{x",
];
const ENDS: [&[u8]; 8] = [b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b" \r\n", b"\r\r\n", b""];
const DATA: [&[u8]; 5] = [b"x\r\n", b"hello\r\n", b"\r\n", b"get k\r\n", b"123456789\r\n"];
