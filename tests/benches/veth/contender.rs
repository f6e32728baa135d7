//! The contenders that stop a flood: each at the server's end of a pair of its own.

use std::any::Any;
use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData, PerCpuHashMap};
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use gate_common::abi::Protocol;
use gate_tests::net::{CLIENT_INTERFACE, Net, SERVER_INTERFACE, SERVER_V4};
use gate_tests::packet::Packet;
use gate_tests::world::{Plan, UDP, World, service, tenant};
use gate_userspace::control::tables::{Placement, Table};
use gate_userspace::kernel::PinDir;
use gate_userspace::kernel::attach::Mode;
use gate_userspace::kernel::interfaces::attach;
use xtask::lab::process::ChildProcess;
use xtask::sh;

use crate::flood::bench_object;
use crate::receiver::Receiver;

/// Each contender knows so many sources, and stops every one. xdp-filter has room for no more.
pub(crate) const SOURCES: u32 = 10_000;
pub(crate) const BARE: &str = "bare drop";
pub(crate) const LEAN: &str = "lean program";
pub(crate) const XDP_FILTER: &str = "xdp-filter";
pub(crate) const NFTABLES: &str = "nftables";

/// One that stops the flood, ready.
pub(crate) struct Contender {
    pub(crate) net: Net,
    pub(crate) receiver: Receiver,
    /// The frames that it is sent, by the name of the line in the table.
    pub(crate) frames: Vec<(&'static str, Vec<u8>)>,
    _means: Means,
}

/// The program or process that stops the flood, for as long as a contender lives.
type Means = Box<dyn Any>;

/// All of them.
pub(crate) fn all() -> Result<Vec<Contender>> {
    Ok(vec![
        Contender::new(&[(BARE, OPAQUE)], bare)?,
        Contender::new(&[(LEAN, OPAQUE)], lean)?,
        Contender::new(&[("gate, not read", OPAQUE), ("gate, memcached get", MEMCACHED)], gate)?,
        Contender::new(&[(XDP_FILTER, OPAQUE)], xdp_filter)?,
        Contender::new(&[(NFTABLES, OPAQUE)], nftables)?,
    ])
}

impl Contender {
    fn new(lines: &[(&'static str, u16)], set_up: fn(&Net) -> Result<Means>) -> Result<Self> {
        let net = Net::open()?;
        let means = set_up(&net)?;
        let receiver = Receiver::start(&net)?;
        let frame = |port| Packet::memcached("198.19.0.0", SERVER_V4, port, 7, GET).bytes();
        let frames = lines.iter().map(|&(name, port)| (name, frame(port))).collect();
        Ok(Self { net, receiver, frames, _means: means })
    }
}

fn bare(net: &Net) -> Result<Means> {
    let mut ebpf = bench_object()?;
    let program: &mut Xdp = ebpf.program_mut("bare_drop").context("no bare_drop")?.try_into()?;
    program.load()?;
    net.server.enter(|| program.attach(SERVER_INTERFACE, XdpMode::Driver))??;
    Ok(Box::new(ebpf))
}

/// Every source is a tenant whose bucket admits nothing.
fn lean(net: &Net) -> Result<Means> {
    let mut ebpf = bench_object()?;
    let mut table = Table::v4();
    for place in 0..SOURCES {
        table.insert(&source(place).octets(), 32, place + 1);
    }
    let mut placement = Placement::new(BLOCKS, &HashSet::new());
    placement.place(table, BLOCKS)?;
    let mut blocks: Array<_, [u32; 256]> = ebpf.map_mut("TABLE").context("no TABLE")?.try_into()?;
    for (number, block) in placement.into_blocks() {
        blocks.set(number, block.0, 0)?;
    }
    let mut buckets: Array<_, [u64; 8]> = ebpf.map_mut("LEAN_BUCKETS").context("no buckets")?.try_into()?;
    let tat = u64::MAX / 2;
    let cost_ns = 1_000_000;
    let burst_ns = 1_000_000_000;
    for tenant in 1..=SOURCES {
        buckets.set(tenant, [tat, cost_ns, burst_ns, 0, 0, 0, 0, 0], 0)?;
    }
    let program: &mut Xdp = ebpf.program_mut("lean").context("no program")?.try_into()?;
    program.load()?;
    net.server.enter(|| program.attach(SERVER_INTERFACE, XdpMode::Driver))??;
    Ok(Box::new(ebpf))
}

/// Every source is a tenant that has spent its quota for the next hour, and its replies.
fn gate(net: &Net) -> Result<Means> {
    let mut world = World::new(SOURCES + 1, BLOCKS)?;
    let pins = PinDir::make(net.pins())?;
    net.server.enter(|| attach(&mut world.loaded, SERVER_INTERFACE, Mode::Native, &pins))??;
    let mut plan = Plan {
        services: vec![
            service(UDP, SERVER_V4, OPAQUE, Protocol::Opaque),
            service(UDP, SERVER_V4, MEMCACHED, Protocol::Memcached),
        ],
        tenants: vec![tenant(); SOURCES as usize],
        sources: (0..SOURCES).map(|place| (source(place).into(), 32, place + 1)).collect(),
        ..Plan::default()
    };
    plan.view.sample_every = 64;
    world.install(&plan);
    for tenant in 1..=SOURCES as usize {
        world.spend(tenant);
        world.spend_replies(tenant);
    }
    Ok(Box::new(world))
}

/// Every source is denied. Only its IPv4 rules are loaded, which makes it faster.
fn xdp_filter(net: &Net) -> Result<Means> {
    // A mount namespace of its own, since the places of its pins are fixed.
    let script = format!(
        "mount -t bpf none {BPF_FS} && xdp-filter load --policy allow --features ipv4 {SERVER_INTERFACE} && \
         xdp-filter ip --mode src {} && echo loaded && exec sleep infinity",
        source(0)
    );
    let mut command = net.server.command("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let mut part = ChildProcess::start("xdp-filter", command)?;
    part.wait_for("loaded", START)?;
    // The others as it put the first: ten thousand calls of it would take a minute.
    let pin = format!("/proc/{}/root{BPF_FS}/xdp-filter/filter_ipv4", part.id());
    let map = Map::PerCpuHashMap(MapData::from_pin(pin)?);
    let mut denied: PerCpuHashMap<_, [u8; 4], u64> = map.try_into()?;
    let rule = denied.get(&source(0).octets(), 0)?.to_vec();
    for place in 1..SOURCES {
        denied.insert(source(place).octets(), rule.clone().try_into()?, 0)?;
    }
    Ok(Box::new(part))
}

/// A rate for each source, so low that nothing passes. Its hook lies behind the driver: generic receive offload, and a
/// peer that does not segment, give the veth the NAPI that the others have with their program.
fn nftables(net: &Net) -> Result<Means> {
    sh::run(net.server.command("ethtool").args(["-K", SERVER_INTERFACE, "gro", "on"]))?;
    sh::run(net.client.command("ethtool").args(["-K", CLIENT_INTERFACE, "tso", "off"]))?;
    let rules = format!(
        "table netdev flood {{
           set sources {{ type ipv4_addr; size 65535; flags dynamic; }}
           chain ingress {{
             type filter hook ingress device {SERVER_INTERFACE} priority 0;
             udp dport {OPAQUE} add @sources {{ ip saddr limit rate over 1/hour burst 1 packets }} drop
           }}
         }}"
    );
    sh::run(net.server.command("nft").arg(rules))?;
    Ok(Box::new(()))
}

fn source(place: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 19, 0, 0)) + place)
}

pub(crate) const BLOCKS: u32 = 1_024;
const OPAQUE: u16 = 9_000;
const MEMCACHED: u16 = 11_211;
/// With all headers 64 bytes, memcached's frame header included.
const GET: &[u8] = b"get abcdefgh\r\n";
const BPF_FS: &str = "/sys/fs/bpf";
const START: Duration = Duration::from_secs(10);
