//! Rows of counters: exact sums of many tenants on many CPUs, within the memory that was announced.
//!
//! This machine has few CPUs. Others are faked: the CPU that runs the program is given the rows of all of them in turn.

use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use gate_common::abi::{
    CounterLine, Cpu, Protocol, RareCounters, Reason, TenantCounters, TenantState, tenant_flags,
};
use gate_common::token_bucket::{Limits, Rate};
use gate_tests::packet::Packet;
use gate_tests::privilege;
use gate_tests::world::{Plan, UDP, World, pin, service, tenant};
use gate_userspace::config::Config;
use gate_userspace::control::demand::{Demand, Since};
use gate_userspace::control::sizes::{counter_bytes, sizes};
use gate_userspace::kernel::{Cpus, Maps, Rows, Sizes};

const TENANTS: u32 = 10_000;
const PORT: u16 = 9_000;
/// The sizes of the elements of the maps that hold counters.
const MAPS: [usize; 4] =
    [size_of::<CounterLine>(), size_of::<RareCounters>(), size_of::<u64>(), size_of::<Cpu>()];
/// Admits a request from a full bucket, which then takes hours to pay for it.
const ONE_REQUEST: Limits = Limits { rate: Rate::per_sec(1), burst_ns: 1, max_debt_ns: 1 << 62 };

fn source(tenant: u32) -> String {
    format!("10.0.{}.{}", tenant >> 8, tenant & 255)
}

fn packet(tenant: u32) -> Vec<u8> {
    Packet::udp(&source(tenant), "198.18.0.1", PORT, b"x").bytes()
}

/// Tenants of three kinds: one passes, one is over its quota, one is refused by hand.
fn state(id: u32) -> TenantState {
    match id % 3 {
        0 => TenantState { quota: Limits::new(1_000_000_000, 1_000_000_000), ..tenant() },
        1 => TenantState { quota: ONE_REQUEST, flags: 0, ..tenant() },
        _ => TenantState { flags: tenant_flags::PENALTY, ..tenant() },
    }
}

fn plan(tenants: u32) -> Plan {
    Plan {
        services: vec![service(UDP, "198.18.0.1", PORT, Protocol::Opaque)],
        tenants: (1..=tenants).map(state).collect(),
        sources: (1..=tenants).map(|id| (source(id).parse().unwrap(), 32, id)).collect(),
        ..Plan::default()
    }
}

fn room(cpus: &Cpus, tenants: u32, thread_rows: u32) -> Sizes {
    let cpu_rows = cpus.rows();
    let cpus = cpus.numbers();
    Sizes { cpus, cpu_rows, thread_rows, tenants, services: 4, blocks: 2_048, samples: 4_096 }
}

/// As large as a gate with this many tenants makes its maps.
fn sizes_of_gate(cpus: &Cpus) -> Sizes {
    let mut text =
        "[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"198.18.0.1:9000\"\n".to_owned();
    for id in 1..=TENANTS {
        let source = source(id);
        write!(text, "[[tenant]]\nname = \"t{id}\"\nsources = [\"{source}\"]\nquota = \"9 RU/s\"\n").unwrap();
    }
    sizes(&Config::parse("gate.toml", &text).unwrap(), cpus, 2).unwrap()
}

/// The memory that the kernel charges for this process' maps whose elements have one of these sizes.
fn charged_by_kernel(value_sizes: &[usize]) -> u64 {
    let infos = fs::read_dir("/proc/self/fdinfo").unwrap();
    let texts: Vec<String> = infos.filter_map(|info| fs::read_to_string(info.unwrap().path()).ok()).collect();
    let field = |text: &str, name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    let mut seen = std::collections::HashSet::new();
    let maps = texts.iter().filter(|text| field(text, "map_type:") == Some(2));
    let maps = maps.filter(|text| value_sizes.contains(&(field(text, "value_size:").unwrap() as usize)));
    maps.filter(|text| seen.insert(field(text, "map_id:"))).map(|text| field(text, "memlock:").unwrap()).sum()
}

#[test]
fn ten_thousand_tenants_on_64_cpus_are_counted_exactly() {
    if !privilege::root("counters::ten_thousand_tenants_on_64_cpus_are_counted_exactly") {
        return;
    }
    const CPUS: u64 = 64;
    let cpus = Cpus::parse("0-63", "0-63").unwrap();
    let room = sizes_of_gate(&cpus);
    let announced = counter_bytes(&room);
    let before = charged_by_kernel(&MAPS);
    let mut world = World::with_sizes(&Sizes { blocks: 2_048, ..room }).unwrap();
    world.install(&plan(TENANTS));
    let maps = &world.loaded.maps;
    // Lines of tenants have the same size as lines of counters, but are no counters.
    let lines = (u64::from(room.tenants) * 64).next_multiple_of(4_096);
    let charged = charged_by_kernel(&MAPS) - before - lines;
    assert!(charged <= announced, "{charged} bytes charged, {announced} announced");
    assert!(announced <= 160 << 20, "{announced} bytes");

    assert_eq!(maps.give_rows(cpus.online()), Rows::Given);
    let rows: Vec<usize> = (0..CPUS as usize).map(|cpu| maps.row_of(cpu)).collect();
    assert_eq!(rows.iter().collect::<std::collections::HashSet<_>>().len(), CPUS as usize);
    let mut demand = Demand::new(maps);
    pin(0);
    let packets: Vec<Vec<u8>> = (1..=TENANTS).map(packet).collect();
    let runner = world.loaded.runner().unwrap();
    for row in rows {
        maps.set_row(0, row);
        packets.iter().for_each(|packet| drop(runner.run(packet, 1).unwrap()));
    }
    assert_eq!(demand.read(maps), CPUS as usize * TENANTS as usize);
    for id in 1..=TENANTS {
        let counted = maps.tenant_counters(id as usize);
        let (passed, refused) = match id % 3 {
            0 => (CPUS, None),
            1 => (1, Some(Reason::Quota)),
            _ => (0, Some(Reason::Penalty)),
        };
        assert_eq!((counted.passed, counted.refused_in_all()), (passed, CPUS - passed), "{id}: {counted:?}");
        assert!(refused.is_none_or(|reason| counted.refused[reason.index()] == CPUS - passed), "{counted:?}");
        let charged_mru = counted.charged_mru;
        let offered_mru = charged_mru + counted.refused_mru;
        assert_eq!(demand.since(id), Since { offered_mru, charged_mru, asked_mru: 0 }, "{id}");
    }
    // What was touched is read once more, and then nothing.
    assert_eq!(demand.read(maps), CPUS as usize * TENANTS as usize);
    assert!((1..=TENANTS).all(|id| demand.since(id) == Since::default()));
    assert_eq!(demand.read(maps), 0);
}

/// The counters of one row, for the only tenant.
fn passed_in(maps: &Maps, row: usize) -> u64 {
    maps.counters.load(maps.row(row).line + 3).passed
}

#[test]
fn cpus_with_holes_in_their_numbers_count_in_rows_of_their_own() {
    if !privilege::root("counters::cpus_with_holes_in_their_numbers_count_in_rows_of_their_own") {
        return;
    }
    // CPUs 0 and 7 of eight possible ones: a row for each, and two more; then two threads'.
    let cpus = Cpus::parse("0-7", "0,7").unwrap();
    let mut world = World::with_sizes(&room(&cpus, 8, 2)).unwrap();
    world.install(&plan(3));
    let maps = &world.loaded.maps;
    let runner = world.loaded.runner().unwrap();
    let send = |times: u32| (0..times).for_each(|_| drop(runner.run(&packet(3), 1).unwrap()));
    pin(0);
    assert_eq!(maps.rows(), 1 + 4 + 2);
    // Nobody has a row yet, and then another CPU alone.
    (0..8).for_each(|cpu| maps.set_row(cpu, 0));
    send(5);
    assert_eq!(maps.give_rows(&[7]), Rows::Given);
    send(5);
    assert_eq!((passed_in(maps, 0), maps.row_of(7)), (10, 1));
    // This one comes online: what it counted stays, and from now on it counts in a row of its own.
    assert_eq!(maps.give_rows(&[0, 7]), Rows::Given);
    send(7);
    let row = maps.row_of(0);
    assert_eq!((row, passed_in(maps, row), passed_in(maps, 0)), (2, 7, 10));
    // As if it were the last of all.
    maps.set_row(0, 0);
    assert_eq!(maps.give_rows(&[7, 1, 2, 0]), Rows::Given);
    assert_eq!([7, 1, 2, 0].map(|cpu| maps.row_of(cpu)), [1, 2, 3, 4]);
    send(9);
    assert_eq!((0..maps.rows()).map(|row| passed_in(maps, row)).collect::<Vec<_>>(), [10, 0, 7, 0, 9, 0, 0]);
    assert_eq!(maps.tenant_counters(3).passed, 26);
}

#[test]
fn ticks_miss_no_count_while_rows_are_given_and_taken() {
    if !privilege::root("counters::ticks_miss_no_count_while_rows_are_given_and_taken") {
        return;
    }
    const SENT: u64 = 60_000;
    let cpus = Cpus::of_machine().unwrap();
    let mut world = World::with_sizes(&room(&cpus, 8, 0)).unwrap();
    world.install(&plan(3));
    let maps = &world.loaded.maps;
    let mut demand = Demand::new(maps);
    let mut seen = [0_u64; 4];
    let over = AtomicBool::new(false);
    let runner = world.loaded.runner().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(0);
            let packets = [1, 2, 3].map(packet);
            for packet in packets.iter().cycle().take(SENT as usize) {
                runner.run(packet, 1).unwrap();
            }
            over.store(true, Ordering::Release);
        });
        let mut rows = (0..=maps.cpu_rows()).cycle();
        while !over.load(Ordering::Acquire) {
            maps.set_row(0, rows.next().unwrap());
            demand.read(maps);
            (0..4).for_each(|id| seen[id as usize] += demand.since(id).offered_mru);
        }
        for _ in 0..2 {
            demand.read(maps);
            (0..4).for_each(|id| seen[id as usize] += demand.since(id).offered_mru);
        }
    });
    for (id, &seen) in seen.iter().enumerate().skip(1) {
        let counted: TenantCounters = maps.tenant_counters(id);
        assert_eq!(counted.passed + counted.refused_in_all(), SENT / 3, "{id}: {counted:?}");
        assert_eq!(seen, counted.charged_mru + counted.refused_mru, "{id}: {counted:?}");
    }
}
