//! Section by section into a [`Config`]. Every default and range is here.
//!
//! Whatever is wrong is reported and replaced by a placeholder that can cause no further fault, so
//! that the reading goes on. Placeholders never leave this module: one fault, and there is no
//! configuration.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Component, Path, PathBuf};

use gate_common::abi::{Name, TcpAction};
use gate_common::token_bucket::{Limits, Rate};
use gate_common::units::{Fraction, MilliRu, Multiplier, Nanos};
use ipnet::IpNet;

use super::backend::SWITCH;
use super::fault::did_you_mean;
use super::price::FRAME_BYTES;
use super::raw::Section;
use super::units::{self, Wrong};
use super::{
    Action, AdminSocket, Algorithm, Config, Fragments, Gate, Mode, OnStale, Protocol, Service, Tenant,
    TenantIndex, Transports, XdpMode,
};
use super::{backend, identity, own_keys, parts, price, shedding, syn};
use crate::policy::Tier;

/// The document.
pub(super) fn config(mut root: Section<'_>) -> Config {
    let gate = gate(root.section("gate"));
    let mut service_sections = root.sections("service");
    let mut tenant_sections = root.sections("tenant");
    for key in ["service", "tenant"] {
        if !root.has(key) {
            root.fault(key, format!("is missing; write at least one [[{key}]]"));
        }
    }
    root.finish();

    let service_names = Names::read(&mut service_sections, MAX_SERVICES);
    let names = Names::read(&mut tenant_sections, MAX_TENANTS);
    let (mut addresses, mut taken) = (Vec::new(), Taken::default());
    let read = service_sections.iter_mut().zip(service_names.list);
    let services: Vec<_> =
        read.map(|(section, name)| service(section, name, &names, &mut addresses)).collect();
    let dearest = services.iter().map(Frame::of).max().unwrap_or_default();
    let row = services.iter().map(|service| service.price.of_row()).min().unwrap_or_default();
    let read = tenant_sections.iter_mut().zip(&names.list);
    let mut tenants: Vec<_> =
        read.map(|(section, name)| tenant(section, name, (dearest, row), &names, &mut taken)).collect();
    everyone_is_reached(&tenant_sections, &tenants, &services);
    dearer_frames_fit(&tenant_sections, &tenants, dearest);
    parts::fit(&tenant_sections, &tenants, &service_sections, &services);
    own_keys::fit(&tenant_sections, &mut tenants, &services);
    parts::inherit(&mut tenants);
    parts::leave_room(&tenant_sections, &mut tenants);
    if gate.xdp == XdpMode::Off {
        let guarded = service_sections.iter().filter(|section| !section.has("backend"));
        guarded.for_each(|section| section.fault("backend", OFF_LEAVES_BARE.to_owned()));
    }
    service_sections.into_iter().chain(tenant_sections).for_each(Section::finish);
    Config { gate, services, tenants }
}

fn gate(mut section: Section<'_>) -> Gate {
    let s = &mut section;
    let gate = Gate {
        interface: s.get("interface", str::parse),
        xdp: s.get("xdp", one_of(&XDP_MODES)).unwrap_or(XdpMode::Auto),
        mode: s.get("mode", one_of(&MODES)).unwrap_or(Mode::Enforce),
        enforce: s.get("enforce", units::percentage).unwrap_or(Fraction::ONE),
        tick: s.get("tick", time(TICK_RANGE)).unwrap_or(Nanos::from_millis(100)),
        algorithm: s.get("algorithm", one_of(&ALGORITHMS)).unwrap_or(Algorithm::TokenBucket),
        on_stale: s.get("on_stale", one_of(&ON_STALE)).unwrap_or(OnStale::Bucket),
        stale_after: s.get("stale_after", time(STALE_RANGE)).unwrap_or(Nanos::from_secs(1)),
        sample: s.get("sample", one_in).unwrap_or(DEFAULT_SAMPLE),
        tcp_in_debt: s.get("tcp_in_debt", one_of(&TCP_ACTIONS)).unwrap_or(TcpAction::None),
        deep_debt: s.get("deep_debt", time(DEEP_RANGE)).unwrap_or(Nanos::from_secs(10)),
        fragments: s.get("fragments", one_of(&FRAGMENTS)).unwrap_or(Fragments::Judge),
        charged_mark: s.get("charged_mark", mark_bit).unwrap_or(DEFAULT_MARK),
        prefix_memory: s.get("prefix_memory", map_memory).unwrap_or(64 << 20),
        counter_memory: s.get("counter_memory", map_memory).unwrap_or(1 << 30),
        pin_dir: s.get("pin_dir", absolute_path).unwrap_or_else(|| PathBuf::from("/sys/fs/bpf/gate")),
        admin: s.get("admin", admin).unwrap_or(AdminSocket::Default),
        drain: s.get("drain", time(DRAIN_RANGE)).unwrap_or(Nanos::from_secs(30)),
        threads: s.get("threads", backend::number(1, 256)).and_then(|n| NonZeroUsize::new(n as usize)),
    };
    if section.is_sound() && gate.stale_after.0 < 2 * gate.tick.0 {
        let key = if section.has("stale_after") { "stale_after" } else { "tick" };
        let (stale_after, two_ticks) = (gate.stale_after, Nanos(2 * gate.tick.0));
        section.fault(key, format!("stale_after ({stale_after}) must be at least two ticks ({two_ticks})"));
    }
    section.finish();
    gate
}

fn service(
    section: &mut Section<'_>,
    name: String,
    tenants: &Names,
    addresses: &mut Vec<TakenAddress>,
) -> Service {
    let protocol = section.need("protocol", "\"memcached\"", one_of(&PROTOCOLS)).unwrap_or(Protocol::Opaque);
    let transports = transports(section, protocol);
    let listen = listen(section, transports, addresses);
    let probe = shedding::probe(section, protocol);
    Service {
        name,
        protocol,
        backend: backend::read(section, protocol, &listen),
        listen,
        transports,
        default: default(section, tenants),
        unknown_syn: section.get("unknown_syn", one_of(&ACTIONS)).unwrap_or(Action::Pass),
        unknown_syn_limits: syn::of_unknown(section),
        price: price::read(section),
        shedding: shedding::shedding(section, probe),
        probe,
    }
}

fn default(section: &mut Section<'_>, tenants: &Names) -> Option<TenantIndex> {
    let name = section.get("default", name)?;
    tenants.find(&name).map_err(|wrong| section.fault("default", wrong)).ok()
}

fn transports(section: &mut Section<'_>, protocol: Protocol) -> Transports {
    let listed = section.list("transports", one_of(&TRANSPORTS));
    if !section.has("transports") {
        return Transports { udp: protocol != Protocol::Resp && !section.has("backend"), tcp: true };
    }
    let udp = listed.iter().find(|item| item.value == Transport::Udp);
    if let Some(udp) = udp.filter(|_| protocol == Protocol::Resp) {
        udp.fault("RESP has no UDP transport; write [\"tcp\"]");
    }
    let lists = |wanted| listed.iter().any(|item| item.value == wanted);
    Transports { udp: lists(Transport::Udp), tcp: lists(Transport::Tcp) }
}

/// The addresses of a service. No two services may share one on one transport, nor may one name it
/// twice.
fn listen(
    section: &mut Section<'_>,
    transports: Transports,
    taken: &mut Vec<TakenAddress>,
) -> Vec<SocketAddr> {
    let others = taken.len();
    let mut addresses = Vec::new();
    for item in section.need_list("listen", "\"198.18.0.1:11211\"", address) {
        let clash = taken.iter().enumerate().find(|(i, theirs)| {
            let shared =
                (transports.udp && theirs.transports.udp) || (transports.tcp && theirs.transports.tcp);
            (shared || *i >= others) && overlap(item.value, theirs.address)
        });
        if let Some((_, theirs)) = clash {
            item.fault(format!("overlaps {}, on line {}", theirs.address, theirs.line));
        }
        taken.push(TakenAddress { address: item.value, transports, line: item.line() });
        addresses.push(item.value);
    }
    addresses
}

struct TakenAddress {
    address: SocketAddr,
    transports: Transports,
    line: usize,
}

pub(super) fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && (any || a.ip() == b.ip())
}

fn tenant(
    section: &mut Section<'_>,
    name: &str,
    (dearest, row): (Frame, MilliRu),
    tenants: &Names,
    taken: &mut Taken,
) -> Tenant {
    let quota = section.need("quota", "\"5000 RU/s\"", units::ru_rate).unwrap_or_default();
    let burst = section.get("burst", time(BURST_RANGE)).unwrap_or(Nanos::from_millis(100));
    let max_debt = section.get("max_debt", time(DEBT_RANGE)).unwrap_or(Nanos(2 * burst.0));
    let limits = |quota| bucket(quota, burst, max_debt);
    let candidate = section.get("candidate", units::ru_rate).map(limits);
    for (key, limits) in [("quota", Some(limits(quota))), ("candidate", candidate)] {
        let limits = limits.filter(|_| section.is_sound());
        if let Some(message) = limits.and_then(|limits| never_admits(&limits, dearest)) {
            section.fault(key, message);
        }
    }
    let own_prefixes = own_keys::read(section);
    let tcp_quota = section.get("tcp_quota", |text| units::byte_rate(text, 1 << 10, 512 << 30));
    let tcp_limits = tcp_quota.map_or_else(|| tcp_beside(quota, burst), |per_sec| tcp(Some(per_sec), burst));
    Tenant {
        name: name.to_owned(),
        sources: sources(section, &mut taken.sources),
        limits: limits(quota),
        tcp_limits,
        syn_limits: syn::of_tenant(section, quota, row),
        candidate,
        multiplier: section.get("multiplier", units::multiplier).unwrap_or_default(),
        refuse: section.get("refuse", one_of(&SWITCH)).unwrap_or(false),
        reply_budget: section.get("reply_budget", reply_budget).unwrap_or(1 << 20),
        tier: section.get("tier", one_of(&Tier::ALL.map(|tier| (tier.name(), tier)))).unwrap_or_default(),
        cache: section.get("cache", one_of(&SWITCH)).unwrap_or(true),
        max_connections: section.get("max_connections", max_connections),
        max_outstanding: section.get("max_outstanding", backend::number(1, 1_000_000)),
        charge: charge(section, name, tenants),
        part: parts::part(section, name, tenants, own_prefixes.is_some(), &mut taken.prefixes),
        users: identity::users(section, &mut taken.users),
        deny: identity::deny(section),
        own_prefixes,
    }
}

/// The lines of what no two tenants may share.
#[derive(Default)]
struct Taken {
    sources: HashMap<IpNet, usize>,
    users: HashMap<String, usize>,
    prefixes: HashMap<(TenantIndex, String), usize>,
}

fn bucket(per_sec: Option<u64>, burst: Nanos, max_debt: Nanos) -> Limits {
    match per_sec {
        Some(per_sec) => Limits { rate: Rate::per_sec(per_sec), burst_ns: burst.0, max_debt_ns: max_debt.0 },
        None => Limits::UNLIMITED,
    }
}

/// The coarse bucket where nothing is said: four times the quota, at one KiB to the request unit.
pub(super) fn tcp_beside(quota: Option<u64>, burst: Nanos) -> Limits {
    tcp(quota.map(|milli_ru| milli_ru.saturating_mul(4 * 1024) / 1_000), burst)
}

/// A bucket of bytes that any segment fits into.
fn tcp(per_sec: Option<u64>, burst: Nanos) -> Limits {
    let rate = per_sec.map_or(Rate::UNLIMITED, Rate::per_sec);
    let segment = Nanos(rate.time_for(MAX_SEGMENT_BYTES));
    bucket(per_sec, burst, Nanos(2 * burst.0).max(segment))
}

/// The highest price of a request for one row that fills an Ethernet frame.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    price: MilliRu,
    /// True if learning may raise the price above the configured one.
    learned: bool,
}

impl Frame {
    fn of(service: &Service) -> Self {
        Self { price: service.price.of_frame(), learned: service.price.learn.is_some() }
    }

    const fn scaled(self, factor: Multiplier) -> Self {
        Self { price: self.price.scaled(factor), ..self }
    }
}

/// Why a bucket would refuse a full frame for good, if it would: no TCP connection survives that.
fn never_admits(limits: &Limits, frame: Frame) -> Option<String> {
    let takes = Nanos(limits.rate.time_for(frame.price.0));
    if takes.0 <= limits.burst_ns.saturating_add(limits.max_debt_ns) {
        return None;
    }
    let (burst, max_debt) = (Nanos(limits.burst_ns), Nanos(limits.max_debt_ns));
    Some(format!(
        "would refuse a full frame of {FRAME_BYTES} bytes for good: at {}{} it takes {takes} at this rate, \
         and burst ({burst}) and max_debt ({max_debt}) together allow less; raise one of the three",
        frame.price,
        if frame.learned { ", which prices may come to learn," } else { "" },
    ))
}

/// Reports multipliers at which a bucket that is charged would refuse a full frame for good.
fn dearer_frames_fit(sections: &[Section<'_>], tenants: &[Tenant], frame: Frame) {
    let mut parts: HashMap<usize, Vec<&Tenant>> = HashMap::new();
    for tenant in tenants {
        tenant.part.iter().for_each(|part| parts.entry(part.whole.0).or_default().push(tenant));
    }
    let all = sections.iter().zip(tenants).enumerate();
    for (place, (section, tenant)) in all.filter(|(_, (_, tenant))| tenant.multiplier > Multiplier::ONE) {
        let dearer = [tenant].into_iter().chain(parts.get(&place).into_iter().flatten().copied());
        let charged = dearer.flat_map(|dearer| {
            [dearer].into_iter().chain(dearer.charge.iter().map(|index| &tenants[index.0]))
        });
        let fits = |charged: &Tenant, factor| never_admits(&charged.limits, frame.scaled(factor)).is_none();
        // Without a multiplier the quota would be at fault.
        let too_small = |charged: &&Tenant| {
            section.is_sound() && !fits(charged, tenant.multiplier) && fits(charged, Multiplier::ONE)
        };
        let Some(charged) = charged.into_iter().find(too_small) else { continue };
        let most = (1..64).rev().find(|&factor| fits(charged, Multiplier::from_int(factor))).unwrap_or(1);
        section.fault(
            "multiplier",
            format!(
                "would refuse a full frame of {FRAME_BYTES} bytes for good: {} is more than burst and max_debt of {} \
                 together allow; up to \"{most}\" fits, and refuse = \"on\" refuses everything",
                frame.scaled(tenant.multiplier).price,
                charged.name,
            ),
        );
    }
}

/// The sources of a tenant. One may lie within another's, the longest that matches wins; no two may be
/// the same. `taken` holds the line of each.
fn sources(section: &mut Section<'_>, taken: &mut HashMap<IpNet, usize>) -> Vec<IpNet> {
    let mut sources = Vec::new();
    for item in section.list("sources", prefix) {
        if let Some(line) = taken.insert(item.value, item.line()) {
            item.fault(format!("is taken, on line {line}"));
        }
        sources.push(item.value);
    }
    sources
}

fn charge(section: &mut Section<'_>, name: &str, tenants: &Names) -> Vec<TenantIndex> {
    let mut charged = Vec::new();
    for item in section.list("charge", self::name) {
        let Ok(other) = tenants.find(&item.value).map_err(|wrong| item.fault(wrong)) else { continue };
        if tenants.list[other.0] == name {
            item.fault("is charged anyway: it is the tenant itself");
        } else if charged.contains(&other) {
            item.fault("is named twice");
        } else if charged.len() == MAX_CHARGED {
            item.fault("is one too many: a request charges its tenant and at most two more");
        } else {
            charged.push(other);
        }
    }
    charged
}

/// The names of the `[[service]]`s or the `[[tenant]]`s.
pub(super) struct Names {
    list: Vec<String>,
    index: HashMap<String, TenantIndex>,
}

impl Names {
    /// Reads them all, so that any section may refer to any other; `max` is how many there may be.
    fn read(sections: &mut [Section<'_>], max: usize) -> Self {
        let mut names = Self { list: Vec::new(), index: HashMap::new() };
        let mut lines: HashMap<String, usize> = HashMap::new();
        for (i, section) in sections.iter_mut().enumerate() {
            if i == max {
                section.fault("name", format!("is one too many: there may be {max}"));
            }
            let name = section.need("name", "\"polite\"", name).unwrap_or_default();
            if let Some(line) = lines.get(&name) {
                section.fault("name", format!("is taken, on line {line}"));
            } else if !name.is_empty() {
                lines.insert(name.clone(), section.line("name"));
                names.index.insert(name.clone(), TenantIndex(i));
            }
            names.list.push(name);
        }
        names
    }

    pub(super) fn find(&self, name: &str) -> Result<TenantIndex, Wrong> {
        self.index.get(name).copied().ok_or_else(|| {
            match did_you_mean(name, self.index.keys().map(String::as_str)) {
                Some(near) => format!("no tenant has this name; did you mean \"{near}\"?"),
                None => format!("no tenant has this name; add a [[tenant]] with name = {name:?}"),
            }
        })
    }
}

/// Reports tenants that nothing would ever be charged to.
fn everyone_is_reached(sections: &[Section<'_>], tenants: &[Tenant], services: &[Service]) {
    let mut reached = vec![false; tenants.len()];
    let charged = tenants.iter().flat_map(|tenant| &tenant.charge);
    for index in services.iter().filter_map(|service| service.default.as_ref()).chain(charged) {
        reached[index.0] = true;
    }
    let logins =
        services.iter().any(|service| service.protocol == Protocol::Resp && service.backend.is_some());
    for (section, reached) in sections.iter().zip(reached) {
        if section.has("users") && !logins {
            let message = "means something only if a service with protocol = \"resp\" has a backend: gate sees no other \
                           logins";
            section.fault("users", message.to_owned());
        }
        if !reached && !section.has("sources") && !section.has("users") && !section.has("part_of") {
            let message = "is missing, and no service or tenant names this one: nothing would be charged \
                           to it; e.g. sources = [\"198.18.1.0/24\"]";
            section.fault("sources", message.to_owned());
        }
    }
}

pub(super) fn one_of<T: Copy>(choices: &[(&'static str, T)]) -> impl Fn(&str) -> Result<T, Wrong> {
    move |text| {
        let choice = choices.iter().find(|(name, _)| *name == text);
        choice.map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
            let (last, others) = names.split_last().expect("a choice has alternatives");
            format!("must be {} or {last}", others.join(", "))
        })
    }
}

pub(super) fn time((min, max): (Nanos, Nanos)) -> impl Fn(&str) -> Result<Nanos, Wrong> {
    move |text| units::duration(text, min, max)
}

fn map_memory(text: &str) -> Result<u64, Wrong> {
    units::size(text, 1 << 20, 16 << 30)
}

/// A number of connections, or as many as there are.
fn max_connections(text: &str) -> Result<u64, Wrong> {
    if text == "unlimited" {
        return Ok(u64::MAX);
    }
    backend::number(1, 1_000_000)(text).map_err(|wrong| format!("{wrong}, or unlimited"))
}

fn reply_budget(text: &str) -> Result<u64, Wrong> {
    units::byte_rate(text, 0, 1 << 30)
}

/// One bit of 32, in hexadecimal, or none.
fn mark_bit(text: &str) -> Result<u32, Wrong> {
    let bit = text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    if text == "off" {
        return Ok(0);
    }
    bit.filter(|bit| bit.is_power_of_two()).ok_or_else(|| {
        "must be \"off\" or one bit from \"0x1\" to \"0x80000000\", e.g. \"0x1000\"".to_owned()
    })
}

fn one_in(text: &str) -> Result<NonZeroU32, Wrong> {
    let part = text.strip_prefix("1/").and_then(|n| n.parse::<NonZeroU32>().ok());
    part.filter(|n| n.get() <= 65_536)
        .ok_or_else(|| "must be from \"1/1\" to \"1/65536\", e.g. \"1/64\"".to_owned())
}

pub(super) fn name(text: &str) -> Result<String, Wrong> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if (1..=Name::MAX).contains(&text.len()) && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err(format!("must be 1 to {} letters, digits, '-', '_' or '.'", Name::MAX))
}

pub(super) fn absolute_path(text: &str) -> Result<PathBuf, Wrong> {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if path.is_absolute() && plain && path.file_name().is_some() && !text.contains('\0') {
        return Ok(path.to_owned());
    }
    Err("must be an absolute path without \"..\", e.g. \"/sys/fs/bpf/gate\"".to_owned())
}

fn admin(text: &str) -> Result<AdminSocket, Wrong> {
    match text {
        "off" => Ok(AdminSocket::Off),
        _ => absolute_path(text).map(AdminSocket::At).map_err(|_| {
            "must be \"off\" or an absolute path without \"..\", e.g. \"/run/gate/gate.sock\"".to_owned()
        }),
    }
}

pub(super) fn address(text: &str) -> Result<SocketAddr, Wrong> {
    let wrong = || "must be an address and a port, e.g. \"198.18.0.1:11211\" or \"[::]:11211\"".to_owned();
    let address: SocketAddr = text.parse().map_err(|_| wrong())?;
    if address.port() == 0 {
        return Err("must have a port from 1 to 65535".to_owned());
    }
    unmapped(address.ip())?;
    Ok(address)
}

pub(super) fn prefix(text: &str) -> Result<IpNet, Wrong> {
    let bare = || text.parse::<IpAddr>().map(IpNet::from);
    let prefix: IpNet = text.parse().or_else(|_| bare()).map_err(|_| {
        "must be an address or a prefix, e.g. \"198.18.1.0/24\" or \"fd00:1::/64\"".to_owned()
    })?;
    if prefix.trunc() != prefix {
        return Err(format!("has bits beyond its length; the prefix is \"{}\"", prefix.trunc()));
    }
    unmapped(prefix.addr())?;
    Ok(prefix)
}

/// Refuses an IPv4 address in the form that sockets give it in IPv6: no packet carries it.
fn unmapped(ip: IpAddr) -> Result<(), Wrong> {
    match ip.to_canonical() {
        canonical if canonical != ip => Err(format!("must be written as IPv4: {canonical}")),
        _ => Ok(()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

const FRAGMENTS: [(&str, Fragments); 3] =
    [("judge", Fragments::Judge), ("pass", Fragments::Pass), ("drop", Fragments::Drop)];
const ACTIONS: [(&str, Action); 2] = [("pass", Action::Pass), ("drop", Action::Drop)];
const TCP_ACTIONS: [(&str, TcpAction); 4] = [
    ("off", TcpAction::None),
    ("reset-syn", TcpAction::ResetSyn),
    ("drop-syn", TcpAction::DropSyn),
    ("drop-data", TcpAction::DropData),
];
const ALGORITHMS: [(&str, Algorithm); 2] =
    [("token-bucket", Algorithm::TokenBucket), ("rejection-rate", Algorithm::RejectionRate)];
const MODES: [(&str, Mode); 2] = [("enforce", Mode::Enforce), ("shadow", Mode::Shadow)];
const ON_STALE: [(&str, OnStale); 2] = [("bucket", OnStale::Bucket), ("pass", OnStale::Pass)];
const PROTOCOLS: [(&str, Protocol); 3] =
    [("memcached", Protocol::Memcached), ("resp", Protocol::Resp), ("opaque", Protocol::Opaque)];
const TRANSPORTS: [(&str, Transport); 2] = [("udp", Transport::Udp), ("tcp", Transport::Tcp)];
const XDP_MODES: [(&str, XdpMode); 4] = [
    ("auto", XdpMode::Auto),
    ("native", XdpMode::Native),
    ("generic", XdpMode::Generic),
    ("off", XdpMode::Off),
];

const OFF_LEAVES_BARE: &str = "is missing, and xdp = \"off\" leaves a service without one unprotected; e.g. backend = \"127.0.0.1:11212\"";

const TICK_RANGE: (Nanos, Nanos) = (Nanos::from_millis(10), Nanos::from_secs(10));
const DRAIN_RANGE: (Nanos, Nanos) = (Nanos::ZERO, Nanos::from_secs(24 * 3_600));
const DEEP_RANGE: (Nanos, Nanos) = (Nanos::from_secs(1), Nanos::from_secs(3_600));
const STALE_RANGE: (Nanos, Nanos) = (Nanos::from_millis(100), Nanos::from_secs(60));
/// The kernel's clock ticks every 4 ms: a smaller burst would be spent before the next tick.
const BURST_RANGE: (Nanos, Nanos) = (Nanos::from_millis(4), Nanos::from_secs(3_600));
const DEBT_RANGE: (Nanos, Nanos) = (Nanos::ZERO, Nanos::from_secs(7_200));
/// A bit that neither Kubernetes, Cilium, Calico nor Tailscale use.
const DEFAULT_MARK: u32 = 0x1000;
/// Enough for hot keys to stand out, few enough to cost nothing.
const DEFAULT_SAMPLE: NonZeroU32 = NonZeroU32::new(64).expect("not zero");
const MAX_SERVICES: usize = 64;
const MAX_TENANTS: usize = 10_000;
/// A request charges its tenant and so many more.
const MAX_CHARGED: usize = 2;
/// The largest segment that a network interface hands over, receive offload included.
const MAX_SEGMENT_BYTES: u32 = 1 << 16;
