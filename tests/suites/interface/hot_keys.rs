//! Hot keys of one tenant while another floods.

use gate_common::abi::tenant_flags;
use gate_common::units::Nanos;
use gate_tests::fixture::fixture_plan;
use gate_tests::packet::Packet;
use gate_tests::privilege;
use gate_tests::world::World;
use gate_userspace::control::hot_keys::{HotKeys, published};

/// Keys that the flood asks for, each as often as the polite tenant asks for one of its own.
const KEYS: u32 = 1_000;
/// A rate, of which a key's weight is a hundredfold: two samples a tick make a key hot within a few ticks.
const HOT_PER_SEC: u64 = 1;

/// Runs a flood of `flooder` over [`KEYS`] keys beside a polite tenant with five; returns the hot keys of both.
fn hot_keys_during_flood(flooder: &str) -> (usize, usize) {
    let mut world = World::new(8, 2048).unwrap();
    let mut plan = fixture_plan();
    plan.view.sample_every = 1;
    plan.tenants[3].flags |= tenant_flags::UNLIMITED;
    world.install(&plan);
    world.loaded.maps.beat(world.now());
    // The second tenant has spent its quota.
    world.spend(2);
    let mut hot_keys = HotKeys::new(Nanos::from_millis(100), 1).unwrap();
    hot_keys.follow((0..8).map(|service| (service.to_string(), HOT_PER_SEC))).unwrap();
    let get = |source: &str, key: &str| {
        Packet::memcached(source, "198.18.0.1", 11211, 7, format!("get {key}\r\n").as_bytes()).bytes()
    };
    let polite: Vec<_> = (0..5).map(|key| get("198.18.0.2", &format!("polite{key}"))).collect();
    let flood: Vec<_> = (0..KEYS).map(|key| get(flooder, &format!("flood{key}"))).collect();
    for _ in 0..20 {
        for (nth, packet) in flood.iter().enumerate() {
            let runner = world.loaded.runner().unwrap();
            runner.run(packet, 1).unwrap();
            runner.run(packet, 1).unwrap();
            if nth % 100 == 0 {
                runner.run(&polite[nth / 100 % polite.len()], 1).unwrap();
                world.loaded.samples.drain_requests(usize::MAX, |sample| hot_keys.count(sample));
            }
        }
        world.loaded.samples.drain_requests(usize::MAX, |sample| hot_keys.count(sample));
        hot_keys.tick(&world.loaded.maps);
    }
    let of = |prefix: &str| hot_keys.hot().filter(|(_, key)| key.starts_with(prefix.as_bytes())).count();
    let shown = published(&world.loaded.maps);
    assert_eq!(shown.iter().filter(|key| key.key.starts_with(b"polite")).count(), 5);
    (of("polite"), of("flood"))
}

#[test]
fn a_refused_flood_over_a_thousand_keys_heats_none() {
    if privilege::root("hot_keys::a_refused_flood_over_a_thousand_keys_heats_none") {
        assert_eq!(hot_keys_during_flood("198.18.2.9"), (5, 0));
    }
}

#[test]
fn an_admitted_flood_leaves_the_other_tenants_hot_keys() {
    if privilege::root("hot_keys::an_admitted_flood_leaves_the_other_tenants_hot_keys") {
        let (polite, flood) = hot_keys_during_flood("198.18.4.9");
        assert_eq!(polite, 5);
        assert!(flood > 200, "{flood}");
    }
}
