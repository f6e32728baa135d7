//! The program against a plain model of it: a million datagrams, no disagreement.

use gate_common::abi::{Reason, draw};
use gate_tests::fixture::{reply, town};
use gate_tests::model;
use gate_tests::packet::Packet;
use gate_tests::privilege;
use gate_tests::world::{PRICES, World};

/// A seeded generator; the program's own will do.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = draw::next(self.0);
        (self.0 >> 33) % bound
    }

    fn pick<'a>(&mut self, from: &[&'a [u8]]) -> &'a [u8] {
        from[self.below(from.len() as u64) as usize]
    }
}

const COMMANDS: [&[u8]; 31] = [
    b"get", b"get", b"get", b"gets", b"gat", b"gats", b"bget", b"set", b"set", b"set", b"add", b"replace",
    b"append", b"prepend", b"cas", b"cas", b"delete", b"incr", b"decr", b"touch", b"mg", b"ms", b"ms", b"md",
    b"ma", b"me", b"mn", b"version", b"GET", b"getx", b"",
];
const WORDS: [&[u8]; 24] = [
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
];
const ENDS: [&[u8]; 8] = [b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b" \r\n", b"\r\r\n", b""];
const DATA: [&[u8]; 5] = [b"x\r\n", b"hello\r\n", b"\r\n", b"get k\r\n", b"123456789\r\n"];

/// A payload: a few lines, mostly as clients write them, sometimes with a byte changed or the end cut off.
fn payload(dice: &mut Dice) -> Vec<u8> {
    let mut text = vec![dice.below(256) as u8, 7, 0, 0, 0, 1, 0, 0];
    for _ in 0..=dice.below(4) {
        text.extend(dice.pick(&COMMANDS));
        if dice.below(3) == 0 {
            // As storage commands want it.
            text.extend(b" k 0 0 ");
            text.extend([b'0' + dice.below(10) as u8]);
        }
        for _ in 0..dice.below(6) {
            text.extend(if dice.below(12) == 0 { &b"  "[..] } else { b" " });
            text.extend(dice.pick(&WORDS));
        }
        text.extend(dice.pick(&ENDS));
        if dice.below(2) == 0 {
            text.extend(dice.pick(&DATA));
        }
    }
    if dice.below(10) == 0 {
        let place = dice.below(text.len() as u64) as usize;
        text[place] = [b' ', b'\n', b'\r', 0, 0x80, b'q', b'0', 0xff][dice.below(8) as usize];
    }
    if dice.below(10) == 0 {
        text.truncate(dice.below(text.len() as u64 + 1) as usize);
    }
    text.truncate(1400);
    text
}

#[test]
fn the_program_and_its_model_agree_on_every_datagram() {
    if !privilege::root("differential::the_program_and_its_model_agree_on_every_datagram") {
        return;
    }
    let datagrams = if std::env::var_os("GATE_LONG").is_some() { 10_000_000 } else { 1_000_000 };
    let mut world = World::new(8, 2048).unwrap();
    let mut plan = town();
    // The first tenant always has enough, the second never, and its replies are not counted out.
    plan.tenants[0].flags |= gate_common::abi::tenant_flags::UNLIMITED;
    plan.tenants[1].reply = gate_common::token_bucket::Limits::UNLIMITED;
    world.install(&plan);
    world.spend(2);
    let runner = world.loaded.runner().unwrap();
    let maps = &world.loaded.maps;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut exits = [0_u64; 3];
    for round in 0..datagrams {
        let payload = payload(&mut dice);
        let rich = dice.below(2) == 0;
        let packet = match (rich, dice.below(2) == 0) {
            (true, true) => Packet::udp("198.18.0.2", "198.18.0.1", 11211, &payload),
            (true, false) => Packet::udp("fd00::2", "fd00::1", 11211, &payload),
            (false, true) => Packet::udp("198.18.2.9", "198.18.0.1", 11211, &payload),
            (false, false) => Packet::udp("fd00:2::9", "fd00::1", 11211, &payload),
        };
        let tenant = if rich { 1 } else { 2 };
        let before = maps.tenant_counters(tenant);
        let bytes = packet.bytes();
        let run = runner.run(&bytes, 1).unwrap();
        let after = maps.tenant_counters(tenant);
        let charged = after.charged_mru - before.charged_mru;
        let refused = after.refused_mru - before.refused_mru;
        let malformed = after.refused[Reason::Malformed.index()] - before.refused[Reason::Malformed.index()];
        let found = (run.action, charged, refused, malformed, run.packet);
        let expected = match (model::memcached(&payload, &PRICES), rich) {
            (None, _) => (1, 0, 0, 1, bytes),
            (Some((price, _)), true) => (2, price, 0, 0, bytes),
            (Some((price, true)), false) => (3, 0, price, 0, reply(&packet)),
            (Some((price, false)), false) => (1, 0, price, 0, bytes),
        };
        assert_eq!(found, expected, "datagram {round}: {:?}", payload.escape_ascii().to_string());
        exits[expected.0 as usize - 1] += 1;
        // The heartbeat must not grow stale on the way.
        if round % 100_000 == 0 {
            maps.beat(world.now());
            world.spend(2);
        }
    }
    assert!(exits.iter().all(|&count| count > datagrams / 50), "{exits:?}");
    assert_eq!(world.counted().cpu.exits.iter().sum::<u64>(), datagrams);
}
