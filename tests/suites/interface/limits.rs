//! The program's limits: room for samples, room for a reply, the linear part of a packet.

use gate_common::abi::{Event, Exit, Reason, tenant_flags};
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::fixture::{fixture_plan, reply};
use gate_tests::flood::Sink;
use gate_tests::net::SERVER_INTERFACE;
use gate_tests::packet::{Packet, tcp};
use gate_tests::privilege;
use gate_tests::world::{Plan, World};
use gate_userspace::kernel::Maps;

/// A world with a changed plan, or a return from the test where there is no root.
macro_rules! world {
    ($test:literal, $change:expr) => {
        match privilege::root(concat!("limits::", $test)) {
            true => {
                let mut world = World::new(8, 2048).unwrap();
                let mut plan = fixture_plan();
                ($change)(&mut plan);
                world.install(&plan);
                world
            }
            false => return,
        }
    };
}

#[test]
fn samples_beyond_the_ring_are_counted_and_change_no_verdict() {
    let every = |plan: &mut Plan| {
        plan.view.sample_every = 1;
        plan.tenants[0].flags |= tenant_flags::UNLIMITED;
    };
    let mut world = world!("samples_beyond_the_ring_are_counted_and_change_no_verdict", every);
    const REQUESTS: u32 = 1_000;
    let get = Packet::memcached("198.18.0.2", "198.18.0.1", 11211, 7, b"get key\r\n").bytes();
    world.loaded.run(&get, REQUESTS).unwrap();
    let counted = world.counted();
    let events = |event: Event| counted.cpu.events[event.index()];
    let sampled = events(Event::Sampled);
    let lost = events(Event::SampleLost);
    // The world's ring has 64 KiB, and a sample takes 304 bytes of it.
    assert_eq!((sampled, sampled + lost), (65_536 / 304, REQUESTS.into()));
    let passed = (counted.cpu.exits[Exit::Passed.index()], counted.tenants[1].passed);
    assert_eq!(passed, (REQUESTS.into(), REQUESTS.into()));
    let drained =
        world.loaded.samples.drain_requests(usize::MAX, |sample| assert_eq!(&sample.key[..3], b"key"));
    assert_eq!(drained as u64, sampled);
    // With room again, nothing more is lost.
    world.loaded.run(&get, 10).unwrap();
    let events = world.counted().cpu.events;
    assert_eq!(events[Event::Sampled.index()..=Event::SampleLost.index()], [sampled + 10, lost]);
}

#[test]
fn refusals_take_at_most_half_of_the_ring_of_samples() {
    let every = |plan: &mut Plan| {
        plan.view.sample_every = 1;
        plan.tenants[0].flags |= tenant_flags::UNLIMITED;
    };
    let mut world = world!("refusals_take_at_most_half_of_the_ring_of_samples", every);
    world.spend(2);
    const REQUESTS: u32 = 2_000;
    let ask = |source: &str| Packet::memcached(source, "198.18.0.1", 11211, 7, b"get key\r\n");
    // From a port that nobody answers.
    let refused = ask("198.18.2.9").with(|packet| packet.ports[0] = 1).bytes();
    world.loaded.run(&refused, REQUESTS).unwrap();
    let passed = ask("198.18.0.2").bytes();
    world.loaded.run(&passed, 50).unwrap();
    let counted = world.counted().cpu.events;
    let events = |event: Event| counted[event.index()];
    let sampled = events(Event::RefusalSampled);
    // Each takes 48 of 64 KiB.
    assert_eq!((sampled, sampled + events(Event::RefusalSampleLost)), (32_768 / 48 + 1, REQUESTS.into()));
    assert_eq!((events(Event::Sampled), events(Event::SampleLost)), (50, 0));
    let mut reasons = Vec::new();
    world
        .loaded
        .samples
        .drain_requests(usize::MAX, |sample| reasons.push((sample.head.tenant, sample.head.reason())));
    assert!(reasons[..sampled as usize].iter().all(|&of| of == (2, Some(Reason::Quota))), "{reasons:?}");
    assert_eq!(reasons[sampled as usize..], [(1, None); 50]);
}

#[test]
fn a_reply_that_has_no_room_is_dropped_and_counted() {
    let world = world!("a_reply_that_has_no_room_is_dropped_and_counted", |_: &mut _| ());
    world.spend(2);
    let runner = world.loaded.runner().unwrap();
    let ask = |text: &[u8]| Packet::memcached("198.18.2.9", "198.18.0.1", 11211, 7, text);
    // Of 256 bytes the kernel keeps 40 for itself.
    for (what, packet, used, replied) in [
        ("all the room there is", ask(b"get key\r\n"), 0, true),
        ("just enough to grow by 15 bytes", ask(b"get key\r\n"), 200, true),
        ("one word too few", ask(b"get key\r\n"), 204, false),
        ("none at all", ask(b"get key\r\n"), 216, false),
        ("none, and none is needed", ask(&[b"get ", &[b'k'; 18][..], b"\r\n"].concat()), 216, true),
    ] {
        let before = world.counted();
        let bytes = packet.bytes();
        let run = runner.run_with_headroom_used(&bytes, used).unwrap();
        let after = world.counted();
        let no_room = Event::NoRoom.index();
        let counted = (
            after.cpu.events[no_room] - before.cpu.events[no_room],
            after.tenants[2].replied - before.tenants[2].replied,
            after.tenants[2].refused[Reason::Quota.index()]
                - before.tenants[2].refused[Reason::Quota.index()],
        );
        assert_eq!(counted, (u64::from(!replied), u64::from(replied), 1), "{what}");
        let expected = if replied { (3, reply(&packet)) } else { (1, bytes) };
        assert_eq!((run.action, run.packet), expected, "{what}");
    }
}

/// Frames of more than a page lie in several buffers, of which the program sees the first: what it cannot read
/// costs the most that so many bytes can, over real sockets as well.
#[test]
fn a_jumbo_request_is_never_free() {
    if !privilege::root("limits::a_jumbo_request_is_never_free") {
        return;
    }
    let config = r#"
        [[service]]
        name = "cache"
        protocol = "memcached"
        listen = "198.18.0.1:11211"
        price = { base = "0.5 RU", row = "0.5 RU", kib = "1 RU" }
        [[tenant]]
        name = "within"
        sources = ["198.18.1.1"]
        quota = "100000 RU/s"
        burst = "1s"
        [[tenant]]
        name = "over"
        sources = ["198.18.1.2"]
        quota = "1 RU/s"
        burst = "20s"
    "#;
    let site = Site::new(config).unwrap();
    for (namespace, interface) in [(&site.net.server, SERVER_INTERFACE), (&site.net.client, "client0")] {
        let mut ip = namespace.command("ip");
        assert!(ip.args(["link", "set", interface, "mtu", "9000"]).status().unwrap().success());
    }
    let gate = site.start(&[]).unwrap();
    assert_eq!(site.json(&["status"]).unwrap()["mode"], "native");
    let maps = Maps::pinned(site.pins(), false).unwrap();
    let sink = Sink::start(&site.net, "198.18.0.1:11211".parse().unwrap()).unwrap();
    let send = |source: &str, payload: &[u8]| {
        let source = source.parse().unwrap();
        site.net.add_client_address(source).unwrap();
        let socket = site.net.client.enter(|| std::net::UdpSocket::bind((source, 0))).unwrap().unwrap();
        socket.send_to(payload, "198.18.0.1:11211").unwrap();
    };
    // A get of one row, then one of 2,000 rows that ends beyond the first buffer.
    let line = [&b"get"[..], &b" key".repeat(2_000), b"\r\n"].concat();
    let payload = [&b"\0\x07\0\0\0\x01\0\0get k\r\n"[..], &line].concat();
    let event = |event: Event| maps.cpu_counters().events[event.index()];

    send("198.18.1.1", &payload);
    wait_for(|| sink.received() == 1);
    let bytes = (payload.len() as u64 * 1_000).div_ceil(1_024);
    let expected = 2 * 500 + 2_001 * 500 + bytes;
    let within = maps.tenant_counters(1);
    assert_eq!((within.passed, within.charged_mru, event(Event::UpperBound)), (1, expected, 0));

    // The refusal is written into the first buffer, and the others are cut off.
    send("198.18.1.2", &payload);
    wait_for(|| maps.tenant_counters(2).refused_in_all() == 1);
    let over = maps.tenant_counters(2);
    assert_eq!((over.refused_mru, over.replied), (expected, 1));
    assert_eq!((event(Event::NoRoom), event(Event::UpperBound), sink.received()), (0, 0, 1));
    gate.end().unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
}

#[test]
fn a_jumbo_segment_is_charged_by_all_its_bytes() {
    let world = world!("a_jumbo_segment_is_charged_by_all_its_bytes", |_: &mut _| ());
    let payload = vec![b'x'; 8_900];
    let run = |source: &str, port: u16| {
        let packet = Packet::tcp(source, "198.18.0.1", port, tcp::ACK, &payload).bytes();
        world.loaded.run(&packet, 1).unwrap().action
    };
    assert_eq!(run("198.18.0.2", 11211), 2);
    assert_eq!(world.counted().tenants[1].charged_mru, 1_000_000 + 8_900);
    // The second line of a proxied service takes bytes.
    assert_eq!(run("198.18.0.2", 11212), 2);
    let counters = world.counted().tenants[1];
    assert_eq!((counters.passed, counters.segments), (0, 2));
    assert_eq!(counters.charged_mru, 1_000_000 + 8_900);
}

/// Looks until it holds.
fn wait_for(mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "not within {PATIENCE:?}");
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
}
