//! Section by section into a [`Config`]. Every default and range is here.
//!
//! Whatever is wrong is reported and replaced by a placeholder that can cause no further fault, so
//! that the reading goes on. Placeholders never leave this module: one fault, and there is no
//! configuration.

use std::collections::HashMap;
use std::net::SocketAddr;

use gate_common::token_bucket::Limits;
use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};

use super::buckets::{BURST_RANGE, DEBT_RANGE, bucket, default_tcp_quota, tcp};
use super::frames::{Frame, dearer_frames_fit, never_admits};
use super::intercept::is_proxied;
use super::names::Names;
use super::parsers::{SWITCH, address, number, one_of, overlap, time};
use super::raw::Section;
use super::units::{self, Wrong};
use super::values::{Action, Protocol, TcpPrice, TenantIndex, TenantMetrics, Transports, XdpMode};
use super::{
    Config, Service, Tenant, backend, envoy, fleet, gate, identity, intercept, limits, members, own_keys,
    parsers, parts, price, request_limits, shedding, syn,
};
use gate_policy::Tier;

/// The document.
pub(super) fn config(mut root: Section<'_>) -> Config {
    let gate = gate::gate(root.section("gate"));
    let mut service_sections = root.sections("service");
    let mut tenant_sections = root.sections("tenant");
    for key in ["service", "tenant"] {
        if !root.has(key) {
            root.fault(key, format!("is missing; write at least one [[{key}]]"));
        }
    }
    let limits = limits::rules(&mut root);
    let envoy = envoy::envoy(&mut root);
    let fleet = fleet::fleet(&mut root);
    root.finish();

    let service_names = Names::read(&mut service_sections, MAX_SERVICES, parsers::name);
    let names = Names::read(&mut tenant_sections, MAX_TENANTS, members::tenant_name);
    let mut addresses = Vec::new();
    let mut taken = Taken::default();
    let read = service_sections.iter_mut().zip(service_names.list);
    let services: Vec<_> =
        read.map(|(section, name)| service(section, name, &names, &mut addresses)).collect();
    cache_dirs_differ(&mut service_sections, &services);
    let dearest = services.iter().map(Frame::of).max().unwrap_or_default();
    let row = services.iter().map(|service| service.price.of_row()).min().unwrap_or_default();
    let types = services.iter().filter_map(|service| Some(&service.backend.as_ref()?.query_types));
    let types: Vec<_> = types.collect();
    let read = tenant_sections.iter_mut().zip(&names.list);
    let mut tenants: Vec<_> = read
        .map(|(section, name)| {
            let limits = request_limits::read(section, &types);
            Tenant { limits, ..tenant(section, name, (dearest, row), &names, &mut taken) }
        })
        .collect();
    everyone_is_reached(&tenant_sections, &tenants, &services);
    dearer_frames_fit(&tenant_sections, &tenants, dearest);
    metrics_fit(&tenant_sections, &tenants, gate.metrics_tenants);
    parts::fit(&tenant_sections, &tenants, &service_sections, &services);
    members::fit(&tenant_sections, &tenants, &service_sections, &services);
    own_keys::fit(&tenant_sections, &mut tenants, &services);
    parts::inherit(&mut tenants);
    parts::leave_room(&tenant_sections, &mut tenants);
    if gate.xdp == XdpMode::Off {
        let guarded = service_sections.iter().filter(|section| !is_proxied(section));
        guarded.for_each(|section| section.fault("backend", OFF_LEAVES_BARE.to_owned()));
    }
    service_sections.into_iter().chain(tenant_sections).for_each(Section::finish);
    Config { gate, services, tenants, limits, envoy, fleet }
}

fn service(
    section: &mut Section<'_>,
    name: String,
    tenants: &Names,
    addresses: &mut Vec<TakenAddress>,
) -> Service {
    let protocol = section.need("protocol", "\"memcached\"", one_of(&PROTOCOLS)).unwrap_or(Protocol::Opaque);
    if protocol == Protocol::Http && !is_proxied(section) {
        let message = "is read only by a proxy: write backend as well, or protocol = \"opaque\"";
        section.fault("protocol", message.to_owned());
    }
    let transports = transports(section, protocol);
    let listen = listen(section, transports, addresses);
    let probe = shedding::probe(section, protocol);
    let backend = backend::read(section, protocol, &listen);
    let store = backend.as_ref().map(|backend| &backend.address).filter(|_| section.has("backend"));
    let intercept = intercept::read(section, transports, &listen, store);
    if let Some(process) = backend.as_ref().and_then(|backend| backend.process.as_ref()) {
        blobs(section, process.blobs, addresses);
    }
    if transports.udp && backend.as_ref().is_some_and(|backend| backend.tls.is_some()) {
        section.fault("tls", "means nothing over UDP; write transports = [\"tcp\"]".to_owned());
    }
    Service {
        name,
        protocol,
        backend,
        intercept,
        listen,
        transports,
        default: default(section, tenants),
        unknown_syn: section.get("unknown_syn", one_of(&ACTIONS)).unwrap_or(Action::Pass),
        unknown_syn_rate: syn::of_unknown(section),
        price: price::read(section),
        hot_key_limit: hot_key_limit(section, protocol, transports),
        tcp_price: tcp_price(section, protocol, transports),
        shedding: shedding::shedding(section, probe),
        probe,
    }
}

/// Reports services that would share a directory.
fn cache_dirs_differ(sections: &mut [Section<'_>], services: &[Service]) {
    let dir = |service: &Service| Some(service.backend.as_ref()?.cache.as_ref()?.dir.clone());
    for (place, service) in services.iter().enumerate() {
        let Some(own) = dir(service) else { continue };
        let mut earlier = services[..place].iter();
        if let Some(other) = earlier.rfind(|other| dir(other).as_ref() == Some(&own)) {
            let message =
                format!("is in the directory of service {:?}; each needs one of its own", other.name);
            sections[place].fault("cache", message);
        }
    }
}

fn default(section: &mut Section<'_>, tenants: &Names) -> Option<TenantIndex> {
    let name = section.get("default", members::tenant_name)?;
    tenants.find(&name).map_err(|wrong| section.fault("default", wrong)).ok()
}

/// As many as of a tenth of a second may come at once.
fn hot_key_limit(section: &mut Section<'_>, protocol: Protocol, transports: Transports) -> Option<Limits> {
    let per_sec = section.get("hot_key_limit", units::key_rate)?;
    let wrong = if is_proxied(section) {
        "means nothing with a backend: there hot_keys says what becomes of hot keys"
    } else if protocol != Protocol::Memcached || !transports.udp {
        "only memcached over UDP shows its keys; remove it"
    } else {
        return Some(Limits { max_debt_ns: 0, ..Limits::new(per_sec, NANOS_PER_SEC / 10) });
    };
    section.fault("hot_key_limit", wrong.to_owned());
    None
}

fn tcp_price(section: &mut Section<'_>, protocol: Protocol, transports: Transports) -> TcpPrice {
    let by = section.get("tcp_price", one_of(&TCP_PRICES)).unwrap_or(TcpPrice::Bytes);
    if by == TcpPrice::Lines && is_proxied(section) {
        section.fault("tcp_price", "means nothing with a backend: gate reads each request".to_owned());
    } else if by == TcpPrice::Lines && (protocol != Protocol::Memcached || !transports.tcp) {
        section.fault("tcp_price", "only memcached over TCP has lines; write \"bytes\"".to_owned());
    }
    by
}

fn transports(section: &mut Section<'_>, protocol: Protocol) -> Transports {
    let listed = section.list("transports", one_of(&TRANSPORTS));
    if !section.has("transports") {
        let has_udp = !matches!(protocol, Protocol::Resp | Protocol::Http);
        return Transports { udp: has_udp && !is_proxied(section), tcp: true };
    }
    let udp = listed.iter().find(|item| item.value == Transport::Udp);
    match (udp, protocol) {
        (Some(udp), Protocol::Resp) => udp.fault("RESP has no UDP transport; write [\"tcp\"]"),
        (Some(udp), Protocol::Http) => udp.fault("gate speaks HTTP over TCP only; write [\"tcp\"]"),
        (Some(_), Protocol::Memcached | Protocol::Opaque) | (None, _) => {}
    }
    let lists = |wanted| listed.iter().any(|item| item.value == wanted);
    Transports { udp: lists(Transport::Udp), tcp: lists(Transport::Tcp) }
}

/// Takes the address at which a processor fetches originals: no service's, nor another processor's.
fn blobs(section: &Section<'_>, address: SocketAddr, taken: &mut Vec<TakenAddress>) {
    let clash = taken.iter().find(|theirs| theirs.transports.tcp && overlap(address, theirs.address));
    if let Some(theirs) = clash {
        let message = format!("blobs ({address}) overlaps {}, on line {}", theirs.address, theirs.line);
        section.fault("process", message);
    }
    let transports = Transports { udp: false, tcp: true };
    taken.push(TakenAddress { address, transports, line: section.line("process") });
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
    let keys = own_keys::read(section);
    let members::Reached { sources, ids, members } = members::read(section, name, &mut taken.reached);
    let tcp_quota = section.get("tcp_quota", |text| units::byte_rate(text, 1 << 10, 512 << 30));
    // The interface would hold all members together to one of them.
    let quota_of_all = if members.is_some() { None } else { quota };
    let tcp_quota =
        tcp_quota.map_or_else(|| default_tcp_quota(quota_of_all, burst), |per_sec| tcp(Some(per_sec), burst));
    Tenant {
        name: name.to_owned(),
        sources,
        quota: limits(quota),
        tcp_quota,
        syn_rate: syn::of_tenant(section, quota_of_all, row),
        candidate,
        multiplier: section.get("multiplier", units::multiplier).unwrap_or_default(),
        refuse: section.get("refuse", one_of(&SWITCH)).unwrap_or(false),
        reply_budget: section.get("reply_budget", reply_budget).unwrap_or(1 << 20),
        tier: section.get("tier", one_of(&Tier::ALL.map(|tier| (tier.name(), tier)))).unwrap_or_default(),
        cache: section.get("cache", one_of(&SWITCH)).unwrap_or(true),
        metrics: section.get("metrics", one_of(&METRICS)).unwrap_or(TenantMetrics::Auto),
        max_connections: section.get("max_connections", max_connections),
        max_outstanding: section.get("max_outstanding", number(1, 1_000_000)),
        charge: charge(section, name, tenants),
        part: parts::part(section, name, tenants, keys.are_own(), &mut taken.prefixes),
        users: identity::users(section, &mut taken.users),
        ids,
        members,
        deny: identity::deny(section),
        keys,
        limits: Vec::new(),
    }
}

/// The lines of what no two tenants may share.
#[derive(Default)]
struct Taken {
    reached: members::Taken,
    users: HashMap<String, usize>,
    prefixes: HashMap<(TenantIndex, String), usize>,
}

fn charge(section: &mut Section<'_>, name: &str, tenants: &Names) -> Vec<TenantIndex> {
    let mut charged = Vec::new();
    for item in section.list("charge", members::tenant_name) {
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

/// Reports tenants that nothing would ever be charged to.
fn everyone_is_reached(sections: &[Section<'_>], tenants: &[Tenant], services: &[Service]) {
    let mut reached = vec![false; tenants.len()];
    let charged = tenants.iter().flat_map(|tenant| &tenant.charge);
    for index in services.iter().filter_map(|service| service.default.as_ref()).chain(charged) {
        reached[index.0] = true;
    }
    let logins =
        services.iter().any(|service| service.protocol == Protocol::Resp && service.backend.is_some());
    let is_header = |service: &Service| {
        let http = service.backend.as_ref().and_then(|backend| backend.http.as_ref());
        http.is_some_and(|http| http.tenant_header.is_some())
    };
    let has_header = services.iter().any(is_header);
    for ((section, tenant), reached) in sections.iter().zip(tenants).zip(reached) {
        let by_user = members::are_by_id(tenant);
        if section.has("ids") && !has_header && !(by_user && logins) {
            let or_user = if by_user { ", or one with \"resp\" a backend" } else { "" };
            let message = format!(
                "means something only if a service with protocol = \"http\" has tenant_header{or_user}: no request names it"
            );
            section.fault("ids", message);
        }
        if section.has("users") && !logins {
            let message = "means something only if a service with protocol = \"resp\" has a backend: gate sees no other \
                           logins";
            section.fault("users", message.to_owned());
        }
        if !reached
            && !section.has("sources")
            && !section.has("users")
            && !section.has("ids")
            && !section.has("part_of")
        {
            let message = "is missing, and no service or tenant names this one: nothing would be charged \
                           to it; e.g. sources = [\"198.18.1.0/24\"]";
            section.fault("sources", message.to_owned());
        }
    }
}

/// Reports tenants whose metrics have no room.
fn metrics_fit(sections: &[Section<'_>], tenants: &[Tenant], most: usize) {
    let named = sections.iter().zip(tenants).filter(|(_, tenant)| tenant.metrics == TenantMetrics::On);
    for (section, _) in named.skip(most) {
        section.fault("metrics", format!("is one too many: metrics_tenants in [gate] allows {most}"));
    }
}

/// A number of connections, or as many as there are.
fn max_connections(text: &str) -> Result<u64, Wrong> {
    if text == "unlimited" {
        return Ok(u64::MAX);
    }
    number(1, 1_000_000)(text).map_err(|wrong| format!("{wrong}, or unlimited"))
}

fn reply_budget(text: &str) -> Result<u64, Wrong> {
    units::byte_rate(text, 0, 1 << 30)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

const METRICS: [(&str, TenantMetrics); 2] = [("auto", TenantMetrics::Auto), ("on", TenantMetrics::On)];
const ACTIONS: [(&str, Action); 2] = [("pass", Action::Pass), ("drop", Action::Drop)];

const PROTOCOLS: [(&str, Protocol); 4] = [
    ("memcached", Protocol::Memcached),
    ("resp", Protocol::Resp),
    ("http", Protocol::Http),
    ("opaque", Protocol::Opaque),
];
const TCP_PRICES: [(&str, TcpPrice); 2] = [("bytes", TcpPrice::Bytes), ("lines", TcpPrice::Lines)];
const TRANSPORTS: [(&str, Transport); 2] = [("udp", Transport::Udp), ("tcp", Transport::Tcp)];

const OFF_LEAVES_BARE: &str = "is missing, and xdp = \"off\" leaves a service without one unprotected; e.g. backend = \"127.0.0.1:11212\"";

const MAX_SERVICES: usize = 64;
const MAX_TENANTS: usize = 10_000;
/// A request charges its tenant and so many more.
const MAX_CHARGED: usize = 2;
