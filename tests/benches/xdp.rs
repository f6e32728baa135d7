//! The cost of a packet in XDP, by the kernel's own test run, beside a bare `XDP_DROP` and the kernel's trie.
//!
//! Every kind of packet comes from 1,024 sources, in batches, the kinds in turn within every round, so that
//! a machine whose speed drifts slows all of them alike. Figures are lower quartiles of rounds, since whatever else runs
//! only adds to them; quote the differences to the bare drop.
//!
//! Single runs have a floor of their own, and a clock of 10 ns. A packet with a port that the run before did not have
//! means something only there.
//!
//! The programs are attached to interfaces of the run's own, through which nothing goes: the kernel would
//! otherwise wait for all CPUs at the start of every batch, to enter the program into its XDP dispatcher.

use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::maps::Array;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::programs::xdp::XdpMode;
use aya::programs::{TestRun as _, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader, Pod};
use gate_common::abi::{Block, Protocol, ServiceState, TenantState, draw};
use gate_common::token_bucket::Limits;
use gate_tests::net::{CLIENT_INTERFACE, Net, SERVER_INTERFACE};
use gate_tests::packet::Packet;
use gate_tests::world::{Plan, TCP, UDP, World, pin, service, tenant};
use gate_userspace::control::tables::{Placement, Table};
use gate_userspace::kernel::PinDir;
use gate_userspace::kernel::attach::Mode;
use gate_userspace::kernel::interfaces::attach;
use serde_json::json;

const SOURCES: usize = 1_024;
const TENANTS: u32 = 10_000;
/// Runs of each packet in a batch.
const REPEAT: u32 = 100;
const ROUNDS: usize = 15;
const BLOCKS: u32 = 120_000;
const SERVER: &str = "198.18.0.1";
const SERVER_V6: &str = "fd00::1";
/// The sources' network within the tenant's prefix of 48 bits.
const V6_NETWORK: &str = "fd00:0:0:1:2:3:4";
const SINGLE_FLOOR: &str = "bare drop, single runs";
/// Runs of a packet by each of several CPUs at once: long ones, so that they overlap.
const REPEAT_AT_ONCE: u32 = 20_000;
const RUNS_AT_ONCE: usize = 5;
const OPAQUE: u16 = 9_000;
const MEMCACHED: u16 = 11_211;
const ACK_PUSH: u8 = 0x18;
/// The generations of the two plans.
const PASSING: u64 = 1;
const REFUSING: u64 = 2;
/// A read of one key; with the frame header it is as long as the payload of what is not read.
const GET: &[u8] = b"get a-key-of-thirty-four-bytes-in-all\r\n";

fn main() -> Result<()> {
    let mut results = Vec::new();
    let mut programs = None;
    for prefixes in [10, 100_000] {
        eprintln!("{prefixes} prefixes, {TENANTS} tenants ...");
        let measured = measure(prefixes)?;
        programs = Some(measured.instructions);
        let bare = measured.of("bare drop");
        let bare_single = measured.of(SINGLE_FLOOR);
        println!(
            "\n{prefixes} prefixes, {TENANTS} tenants, {SOURCES} sources, lower quartiles of {ROUNDS} rounds"
        );
        println!("{:<34} {:>8} {:>10} {:>12}", "packet", "ns", "of bare", "beyond bare");
        for (name, rounds) in &measured.rounds {
            let ns = quartile(rounds);
            let floor = if name.contains("single") { bare_single } else { bare };
            println!("{name:<34} {ns:>8.1} {:>10.2} {:>12.1}", ns / floor, ns - floor);
            results.push(json!({ "prefixes": prefixes, "packet": name, "ns": ns, "of_bare": ns / floor,
                "beyond_bare": ns - floor }));
        }
        let lookup = (measured.of("gate's table") - bare) / (measured.of("kernel's LPM trie") - bare);
        let parsing = measured.of("memcached get") - measured.of("UDP, not read");
        println!("table lookup, of the LPM trie's: {lookup:.3}");
        println!("parsing, ns per payload byte: {:.2}", parsing / (GET.len() + 8) as f64);
        results.push(json!({ "prefixes": prefixes, "lookup_of_trie": lookup,
            "parsing_ns_per_byte": parsing / (GET.len() + 8) as f64 }));
    }
    if let Some(instructions) = programs {
        println!("\nthe verifier walked {instructions} instructions");
        results.push(json!({ "verified_instructions": instructions }));
    }
    match std::env::var_os("GATE_BENCH_JSON") {
        Some(path) => Ok(std::fs::write(path, serde_json::to_string_pretty(&results)?)?),
        None => Ok(()),
    }
}

struct Measured {
    /// By kind of packet: the mean nanoseconds of each round.
    rounds: Vec<(&'static str, Vec<f64>)>,
    instructions: u32,
}

impl Measured {
    fn of(&self, name: &str) -> f64 {
        self.rounds.iter().find(|(kind, _)| *kind == name).map_or(f64::NAN, |(_, rounds)| quartile(rounds))
    }
}

fn measure(prefixes: usize) -> Result<Measured> {
    let sources: Vec<Ipv4Addr> = (0..SOURCES).map(source).collect();
    let prefixes = prefixes_of(prefixes);
    let mut world = world(&prefixes)?;
    let mut references = ReferencePrograms::load(&prefixes)?;
    let nets = [Net::open()?, Net::open()?];
    let pins = PinDir::make(nets[0].pins())?;
    nets[0].server.enter(|| attach(&mut world.loaded, SERVER_INTERFACE, Mode::Native, &pins))??;
    nets[0].client.enter(|| references.attach("bare_drop", CLIENT_INTERFACE))??;
    nets[1].client.enter(|| references.attach("lookup_trie", CLIENT_INTERFACE))??;
    nets[1].server.enter(|| references.attach("lookup_table", SERVER_INTERFACE))??;
    let packets = |packet: &dyn Fn(&str) -> Packet| -> Vec<Vec<u8>> {
        sources.iter().map(|source| packet(&source.to_string()).bytes()).collect()
    };
    let payload = [b'x'; GET.len() + 8];
    let udp = packets(&|source| Packet::udp(source, SERVER, OPAQUE, &payload));
    let get = packets(&|source| Packet::memcached(source, SERVER, MEMCACHED, 7, GET));
    let v6: Vec<String> = (0..SOURCES).map(|place| format!("{V6_NETWORK}:{place:x}")).collect();
    let packets_v6 =
        |packet: &dyn Fn(&str) -> Packet| v6.iter().map(|source| packet(source).bytes()).collect::<Vec<_>>();
    let kinds: [(&'static str, Vec<Vec<u8>>, u64); 7] = [
        ("not ours", packets(&|source| Packet::udp(source, SERVER, 53, &payload)), PASSING),
        ("UDP, not read", udp.clone(), PASSING),
        ("TCP", packets(&|source| Packet::tcp(source, SERVER, OPAQUE, ACK_PUSH, &payload)), PASSING),
        ("memcached get", get.clone(), PASSING),
        (
            "UDP, not read, IPv6",
            packets_v6(&|source| Packet::udp(source, SERVER_V6, OPAQUE, &payload)),
            PASSING,
        ),
        (
            "memcached get, IPv6",
            packets_v6(&|source| Packet::memcached(source, SERVER_V6, MEMCACHED, 7, GET)),
            PASSING,
        ),
        ("UDP, not read, refused", udp.clone(), REFUSING),
    ];
    let names = ["bare drop", "kernel's LPM trie", "gate's table"];
    let mut rounds: Vec<(&'static str, Vec<f64>)> = names
        .into_iter()
        .chain(kinds.iter().map(|(name, ..)| *name))
        .map(|name| (name, Vec::new()))
        .collect();
    let random = random_ports(&payload);
    let mut single = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let mut shared = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        world.loaded.maps.beat(world.now());
        for (place, program) in ["bare_drop", "lookup_trie", "lookup_table"].into_iter().enumerate() {
            let total = batch(&udp, |packet| references.run(program, packet, REPEAT))?;
            rounds[place].1.push(total);
        }
        for (place, (_, packets, plan)) in kinds.iter().enumerate() {
            world.loaded.maps.publish(*plan);
            let total = batch(packets, |packet| Ok(world.loaded.run(packet, REPEAT)?.mean))?;
            rounds[names.len() + place].1.push(total);
        }
        world.loaded.maps.publish(PASSING);
        single[0].push(batch(&get, |packet| references.run("bare_drop", packet, 1))?);
        for (place, packets) in random.iter().enumerate() {
            single[1 + place].push(batch(packets, |packet| Ok(world.loaded.run(packet, 1)?.mean))?);
        }
        // Of one tenant: its bucket's and its line's owner changes with every packet, its counters' does not.
        shared[0].push(by_cpus(&world, &udp[0], 1)?);
        shared[1].push(by_cpus(&world, &udp[0], 2)?);
        // An answer rewrites the packet, so that only single runs mean anything.
        world.loaded.maps.publish(REFUSING);
        single[3].push(batch(&get, |packet| Ok(world.loaded.run(packet, 1)?.mean))?);
    }
    let [floor, not_ours, ours, answers] = single;
    let [one, two] = shared;
    rounds.push(("one tenant, one CPU", one));
    rounds.push(("one tenant, two CPUs", two));
    rounds.push((SINGLE_FLOOR, floor));
    rounds.push(("not ours, random ports, single", not_ours));
    rounds.push(("UDP, random source ports, single", ours));
    rounds.push(("refused, answered, single runs", answers));
    Ok(Measured { rounds, instructions: world.loaded.verified_instructions()? })
}

/// Packets to random ports where no service listens, and from random ports to one.
fn random_ports(payload: &[u8]) -> [Vec<Vec<u8>>; 2] {
    let mut state = 1_u64;
    let mut port = || {
        state = draw::next(state);
        1_024 + (state >> 32) as u16 % 7_000
    };
    let mut packets = |of: fn(&mut Packet, u16)| {
        (0..SOURCES)
            .map(|place| {
                let mut packet = Packet::udp(&source(place).to_string(), SERVER, OPAQUE, payload);
                of(&mut packet, port());
                packet.bytes()
            })
            .collect::<Vec<_>>()
    };
    [packets(|packet, port| packet.ports[1] = port), packets(|packet, port| packet.ports[0] = port)]
}

/// The mean nanoseconds of one run of a packet while so many CPUs run it at once.
fn by_cpus(world: &World, packet: &[u8], cpus: usize) -> Result<f64> {
    let runner = world.loaded.runner()?;
    let start = Barrier::new(cpus);
    let one = |cpu: usize| -> Result<f64> {
        pin(cpu);
        start.wait();
        let runs = (0..RUNS_AT_ONCE).map(|_| Ok(runner.run(packet, REPEAT_AT_ONCE)?.mean.as_nanos() as f64));
        let runs = runs.collect::<Result<Vec<f64>>>()?;
        Ok(runs.iter().sum::<f64>() / runs.len() as f64)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus).map(|cpu| scope.spawn(move || one(cpu))).collect();
        let mut total = 0.0;
        for thread in threads {
            total += thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(total / cpus as f64)
    })
}

/// The mean nanoseconds of one run, over the middle half of the packets: what interrupts some does not count.
fn batch(packets: &[Vec<u8>], mut run: impl FnMut(&[u8]) -> Result<Duration>) -> Result<f64> {
    let each = packets.iter().map(|packet| Ok(run(packet)?.as_nanos() as f64));
    let mut each = each.collect::<Result<Vec<f64>>>()?;
    each.sort_by(f64::total_cmp);
    let middle = &each[each.len() / 4..each.len() - each.len() / 4];
    Ok(middle.iter().sum::<f64>() / middle.len() as f64)
}

fn quartile(rounds: &[f64]) -> f64 {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 4]
}

/// Spread over 198.18.0.0/15.
fn source(place: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + (place as u32) * 127 % (1 << 17))
}

/// Distinct prefixes with their tenants: the sources' whole range, and then /24s and /28s from it and beyond.
fn prefixes_of(count: usize) -> Vec<(Ipv4Addr, u8, u32)> {
    let mut prefixes = vec![(Ipv4Addr::new(198, 18, 0, 0), 15, 1)];
    let base = u32::from(Ipv4Addr::new(198, 18, 0, 0));
    for place in 0..count as u32 - 1 {
        let tenant = 1 + place % TENANTS;
        // First within the sources' range, so that they are found at every depth; then the space behind it.
        let (network, length) = if place.is_multiple_of(2) {
            (base + (place / 2) * 16, 28)
        } else {
            (base + (1 << 20) + place * 256, 24)
        };
        prefixes.push((Ipv4Addr::from(network), length, tenant));
    }
    prefixes.sort_by_key(|(_, length, _)| *length);
    prefixes
}

/// The program with two plans: by [`PASSING`] everyone passes, by [`REFUSING`] nobody does.
fn world(prefixes: &[(Ipv4Addr, u8, u32)]) -> Result<World> {
    let mut world = World::new(TENANTS + 1, BLOCKS)?;
    let cheap = ServiceState { base_mru: 1_000, ..ServiceState::default() };
    let services = [
        service(UDP, SERVER, OPAQUE, Protocol::Opaque),
        service(TCP, SERVER, OPAQUE, Protocol::Opaque),
        service(UDP, SERVER, MEMCACHED, Protocol::Memcached),
        service(UDP, SERVER_V6, OPAQUE, Protocol::Opaque),
        service(UDP, SERVER_V6, MEMCACHED, Protocol::Memcached),
    ];
    let passing = TenantState {
        quota: Limits::new(1_000_000_000_000, 60_000_000_000),
        reply: Limits::new(1_000_000_000_000, 60_000_000_000),
        ..tenant()
    };
    let refusing = TenantState { reject_until_ns: u64::MAX, ..passing };
    let mut plan = Plan {
        services: services.into_iter().map(|(of, port, service, _)| (of, port, service, cheap)).collect(),
        tenants: vec![passing; TENANTS as usize],
        sources: prefixes
            .iter()
            .map(|&(network, length, tenant)| (network.into(), length, tenant))
            .chain([(SERVER_V6.parse()?, 48, 1)])
            .collect(),
        ..Plan::default()
    };
    plan.view.sample_every = 64;
    world.install(&plan);
    plan.tenants.fill(refusing);
    world.put(&plan);
    Ok(world)
}

/// The programs that gate's is compared with, and their tables.
struct ReferencePrograms(Ebpf);

impl ReferencePrograms {
    fn load(prefixes: &[(Ipv4Addr, u8, u32)]) -> Result<Self> {
        let object = xtask::paths::bench_object();
        let bytes = std::fs::read(&object)
            .with_context(|| format!("{}: run `cargo xtask bench xdp`", object.display()))?;
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("TRIE", 1 << 17)
            .map_max_entries("TABLE", BLOCKS)
            .load(&bytes)?;
        let mut trie: LpmTrie<_, [u8; 4], u32> = ebpf.map_mut("TRIE").context("no TRIE")?.try_into()?;
        let mut table = Table::v4();
        for &(network, length, tenant) in prefixes {
            trie.insert(&Key::new(length.into(), network.octets()), tenant, 0)?;
            table.insert(&network.octets(), length, tenant);
        }
        let mut placement = Placement::new(BLOCKS, &std::collections::HashSet::new());
        placement.place(table, BLOCKS)?;
        let mut blocks: Array<_, PodBlock> = ebpf.map_mut("TABLE").context("no TABLE")?.try_into()?;
        for (number, block) in placement.into_blocks() {
            blocks.set(number, PodBlock(block), 0)?;
        }
        for name in ["bare_drop", "lookup_trie", "lookup_table"] {
            program(&mut ebpf, name)?.load()?;
        }
        Ok(Self(ebpf))
    }

    fn attach(&mut self, name: &str, interface: &str) -> Result<()> {
        program(&mut self.0, name)?.attach(interface, XdpMode::Driver)?;
        Ok(())
    }

    fn run(&mut self, name: &str, packet: &[u8], repeat: u32) -> Result<Duration> {
        let options = TestRunOptions { data_in: Some(packet), repeat, ..TestRunOptions::default() };
        Ok(program(&mut self.0, name)?.test_run(options)?.duration)
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    Ok(ebpf.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?)
}

/// A block as aya takes it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct PodBlock(Block);

#[allow(unsafe_code, reason = "aya takes no other types")]
// SAFETY: an array of integers, without padding.
unsafe impl Pod for PodBlock {}
