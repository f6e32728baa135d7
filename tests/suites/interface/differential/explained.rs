//! Explanations of guarded services against the program: requests that are explained out of the maps, and then sent.

use std::net::IpAddr;

use gate_common::abi::{Exit, KeyBuckets, Protocol, Reason, TenantCounters, service_flags};
use gate_common::token_bucket::Limits;
use gate_common::units::Nanos;
use gate_tests::packet::{Packet, tcp};
use gate_tests::privilege;
use gate_tests::rng::Rng;
use gate_tests::world::{TCP, UDP, World, pin};
use gate_userspace::admin::explain::guarded::explain;
use gate_userspace::explanation::{Asker, Explanation, Question, Verdict};

use super::{SEED, plans, set_time};

/// Requests, over as many plans as make them many states.
const PLANS: u64 = 500;
const REQUESTS: usize = 20;

/// The guarded services of [`plans`]: slot, transport, address, port, and true for Redis.
const SERVICES: [(usize, u8, &str, u16, bool); 6] = [
    (1, UDP, "198.18.0.1", 11211, false),
    (2, TCP, "198.18.0.1", 11211, false),
    (3, UDP, "fd00::1", 11211, false),
    (4, TCP, "fd00::1", 11211, false),
    (8, TCP, "198.18.0.1", 6379, true),
    (10, UDP, "198.18.77.7", 9999, false),
];
const SOURCES: [[&str; 6]; 2] = [
    ["198.18.0.2", "198.18.2.9", "198.18.4.7", "198.18.5.77", "198.18.6.1", "198.19.0.9"],
    ["fd00::2", "fd00:2::9", "fd00:4::1", "fd00:5:8000::1", "fd00::9:3", "fd77::1"],
];
const COMMANDS: [&str; 16] = [
    "get k",
    "get hot",
    "gets a b c",
    "gat 10 k",
    "gat 10 a b",
    "set k 0 0 100",
    "ms k 10",
    "delete k",
    "incr k 1",
    "touch k 1",
    "mg k v",
    "md k",
    "ma k",
    "me k",
    "version",
    "frobnicate a b",
];

/// Storage lines that are malformed in a datagram. What of a segment is data behind them nobody can tell.
const MALFORMED: [&str; 4] = ["set k +5 0 100", "set k 0 0 +100", "ms k 10 +N", "set k 4294967296 0 100"];

#[test]
fn the_program_does_with_a_packet_what_was_explained() {
    if !privilege::root("differential::the_program_does_with_a_packet_what_was_explained") {
        return;
    }
    pin(0);
    let mut world = World::new(plans::TENANTS + 2, 2048).unwrap();
    let mut seen = std::collections::BTreeMap::new();
    for seed in SEED..SEED + PLANS {
        one_plan(&mut world, seed, &mut seen).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
    println!("{seen:?}");
    for wanted in [
        "Passed ",
        "quota",
        "rejected-until",
        "penalty",
        "too-large",
        "unknown-source",
        "hot-key",
        "malformed",
    ] {
        let met: usize = seen.iter().filter(|(key, _)| key.contains(wanted)).map(|(_, count)| count).sum();
        assert!(met >= 20, "{wanted} in {seen:?}");
    }
}

fn one_plan(
    world: &mut World,
    seed: u64,
    seen: &mut std::collections::BTreeMap<String, usize>,
) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let now_ns = 100_000_000_000_000;
    let mut plan = plans::plan(&mut rng, now_ns);
    for (_, _, service, _) in &mut plan.services {
        service.flags |= rng.mostly(2, 0, &[service_flags::LIMITS_KEYS]);
    }
    for (place, tenant) in plan.tenants.iter_mut().enumerate() {
        // No configuration charges a tenant twice.
        let [first, second] =
            tenant.parents.map(|parent| if parent == place as u32 + 1 { 0 } else { parent });
        tenant.parents = [first, if second == first { 0 } else { second }];
    }
    world.install(&plan);
    let mut model = super::model(world, &mut rng, plan, now_ns, 0);
    for _ in 0..REQUESTS {
        let now_ns = model.now_ns + rng.pick(&[0, 1_000, 4_000_000, 250_000_000]);
        set_time(world, &mut model, now_ns, !rng.once_in(10));
        limit_hot_key(world, &mut rng, now_ns);
        let (slot, transport, address, port, is_resp) = rng.pick(&SERVICES);
        let source = rng.pick(&SOURCES[usize::from(address.contains(':'))]);
        let line = match transport == UDP && rng.once_in(8) {
            true => rng.pick(&MALFORMED),
            false => rng.pick(&COMMANDS),
        };
        let words: Vec<_> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let source_address: IpAddr = source.parse().expect("an address");
        let question = Question { client: Asker::Source(source_address), user: None, words };
        let before = state(world);
        let explained =
            explain(&world.loaded.maps, slot, transport == UDP, is_resp, &question, Nanos(now_ns))?;
        if state(world) != before {
            return Err(format!("{line} is explained with effect: {explained:?}"));
        }
        let service = world.loaded.maps.services.load(slot);
        let payload = payload(&question, transport, service.protocol, is_resp);
        let packet = if transport == UDP {
            Packet::udp(source, address, port, &payload)
        } else {
            Packet::tcp(source, address, port, tcp::ACK | tcp::PSH, &payload)
        };
        let refused = counted(world);
        let exits = world.loaded.maps.cpus.load(0).exits;
        world
            .loaded
            .runner()
            .map_err(|error| error.to_string())?
            .run(&packet.bytes(), 1)
            .map_err(|error| error.to_string())?;
        let after = world.loaded.maps.cpus.load(0).exits;
        let exit = Exit::ALL.into_iter().find(|exit| after[exit.index()] != exits[exit.index()]);
        let exit = exit.ok_or("no exit")?;
        if exit == Exit::Missing {
            // A tenant that no daemon would name.
            continue;
        }
        let now = counted(world);
        let reason = Reason::ALL.into_iter().find(|reason| now[reason.index()] != refused[reason.index()]);
        check(exit, reason, &explained)
            .map_err(|fault| format!("{line} from {source} to {address}:{port} at {now_ns}: {exit:?}, {reason:?}, {fault}: {explained:?}"))?;
        *seen.entry(format!("{exit:?} {}", reason.map_or("", Reason::name))).or_default() += 1;
    }
    Ok(())
}

fn check(exit: Exit, reason: Option<Reason>, explained: &Explanation) -> Result<(), &'static str> {
    let by_chance = explained.refused_by_chance.is_some_and(|chance| chance < 1.0);
    if by_chance && reason == Some(Reason::RejectionRate) {
        return Ok(());
    }
    let passes = matches!(exit, Exit::Passed | Exit::Shadowed | Exit::StalePassed | Exit::UnknownPassed);
    if passes != (explained.verdict == Verdict::Passes) {
        return Err("the verdict is another");
    }
    let said = match exit {
        Exit::Shadowed => explained.shadowed.first().map(String::as_str),
        _ => explained.reason.as_deref(),
    };
    if said != reason.map(Reason::name) {
        return Err("the reason is another");
    }
    if exit == Exit::RefusedReplied && explained.verdict != Verdict::Refused {
        return Err("it is answered");
    }
    let bucket_missing = matches!(reason, Some(Reason::Quota | Reason::HotKey)) && explained.bucket.is_none();
    if bucket_missing && exit != Exit::Shadowed { Err("no bucket is named") } else { Ok(()) }
}

/// Gives the key `hot` of every service a bucket in some state.
fn limit_hot_key(world: &World, rng: &mut Rng, now_ns: u64) {
    let maps = &world.loaded.maps;
    let mut buckets: KeyBuckets = KeyBuckets {
        hashes: [0; 32],
        tats: [0; 32],
        rates: [Limits::UNLIMITED.rate; 32],
        bursts_ns: [0; 32],
    };
    let hash = KeyBuckets::hash(7, b"hot");
    let place = KeyBuckets::first_place(hash) + 3;
    let limits = Limits::new(1_000_000, 1_000_000);
    buckets.hashes[place] = hash;
    buckets.rates[place] = limits.rate;
    buckets.bursts_ns[place] = limits.burst_ns;
    buckets.tats[place] = rng.pick(&[0, now_ns, now_ns + 500_000, now_ns + 2_000_000]);
    for (field, words) in [
        (std::mem::offset_of!(KeyBuckets, hashes), &buckets.hashes),
        (std::mem::offset_of!(KeyBuckets, tats), &buckets.tats),
        (std::mem::offset_of!(KeyBuckets, bursts_ns), &buckets.bursts_ns),
    ] {
        for (number, word) in words.iter().enumerate() {
            maps.tables.store_at(KeyBuckets::BLOCK as usize, field + number * 8, word);
        }
    }
    let at = std::mem::offset_of!(KeyBuckets, rates) + place * 8;
    maps.tables.store_at(KeyBuckets::BLOCK as usize, at, &buckets.rates[place]);
}

fn payload(question: &Question, transport: u8, protocol: u8, is_resp: bool) -> Vec<u8> {
    if protocol == Protocol::Opaque as u8 {
        return question.words.join(&b' ');
    }
    let mut payload = if transport == UDP { vec![0, 7, 0, 0, 0, 1, 0, 0] } else { Vec::new() };
    payload.extend(gate_userspace::explanation::encode(&question.words, is_resp).expect("a request"));
    let length_at = match &*question.words[0] {
        b"set" => 4,
        b"ms" => 2,
        _ => return payload,
    };
    if !is_resp {
        let length: usize = std::str::from_utf8(&question.words[length_at]).unwrap().parse().unwrap();
        payload.extend(vec![b'x'; length]);
        payload.extend_from_slice(b"\r\n");
    }
    payload
}

/// Refusals by reason, shadowed ones included, of all tenants.
fn counted(world: &World) -> [u64; Reason::COUNT] {
    let mut all = TenantCounters::default();
    let maps = &world.loaded.maps;
    (0..maps.tenants.len()).for_each(|tenant| all.add(&maps.tenant_counters(tenant)));
    std::array::from_fn(|reason| all.refused[reason] + all.shadowed[reason])
}

/// Words of buckets, and counters.
fn state(world: &World) -> (Vec<[u64; 5]>, Vec<TenantCounters>, gate_common::abi::Cpu) {
    let maps = &world.loaded.maps;
    let tenants = 0..maps.tenants.len();
    let words = tenants.clone().map(|tenant| world.buckets(tenant)).collect();
    (words, tenants.map(|tenant| maps.tenant_counters(tenant)).collect(), maps.cpus.load(0))
}
