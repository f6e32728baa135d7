//! A configuration as elements of the maps.
//!
//! Names keep their tenant ids from one configuration to the next, and so their buckets and counters.
//! Everything else is written where nothing is in force ([`Occupied`]) and published by the roots in the
//! new [`View`], so that a packet is judged by one configuration or the other.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use gate_common::abi::{
    Block, Name, Ports, Protocol, QueryClass, Service, ServiceState, Shed, TenantState, View, service_flags,
    tenant_flags, view_flags,
};
use gate_common::token_bucket::{Limits, Rate};
use gate_common::units::Nanos;

use super::addresses::{TCP, UDP, chains, endpoints, protected_tables, source_tables};
use super::occupied::Occupied;
use super::parents;
use super::tables::{FIRST_FREE, Full, Placement};
use crate::config::{self, Config};
use crate::kernel::Port;

/// A configuration, laid out.
#[derive(Debug)]
pub struct Layout {
    /// The tenants in use by id: their names, and their state before any decision.
    pub tenants: Vec<Tenant>,
    /// The services, in slots from [`View::first_service`] on.
    pub services: Vec<Service>,
    /// The blocks of all tables.
    pub blocks: Vec<(u32, Block)>,
    /// The view that packets are judged by.
    pub view: View,
    /// Where each port's chain of services starts.
    pub ports: Vec<Port>,
}

/// A tenant's place in the maps.
#[derive(Clone, Copy, Debug)]
pub struct Tenant {
    /// Its id.
    pub id: u32,
    /// Its name.
    pub name: Name,
    /// True if no configuration in force knew it: its bucket and counters begin anew.
    pub fresh: bool,
    /// True if each of its members has a bucket of its own, and its own bucket is that of those without one.
    pub has_members: bool,
    /// Its state before any decision.
    pub state: TenantState,
}

/// A configuration that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Too many tenants.
    #[error(
        "{needed} tenants, but the running gate has room for {capacity}; a gate that is started anew makes more"
    )]
    Tenants {
        /// How many there would be.
        needed: u32,
        /// How many there can be.
        capacity: u32,
    },
    /// Too many services.
    #[error(
        "{needed} services (one for each address and transport), but the running gate has room for {capacity}; a gate that is started anew makes more"
    )]
    Services {
        /// How many there would be.
        needed: u32,
        /// How many there can be.
        capacity: u32,
    },
    /// Too many services on one port.
    #[error("more than {} services share port {port}", Service::MAX_CHAIN)]
    Chain {
        /// The port.
        port: u16,
    },
    /// Too many prefixes.
    #[error(transparent)]
    Tables(#[from] Full),
}

impl Layout {
    /// Lays a configuration out beside what is in force.
    ///
    /// # Errors
    ///
    /// [`Misfit`] if there is no room; then nothing has changed.
    pub fn build(config: &Config, occupied: &Occupied) -> Result<Self, Misfit> {
        let ids = tenant_ids(config, occupied)?;
        let half = (occupied.service_capacity.saturating_sub(1).min(Ports::MAX_SLOT)) / 2;
        let needed = endpoints(config).count() as u32;
        if needed > half {
            return Err(Misfit::Services { needed, capacity: half });
        }
        check_chains(config)?;
        let first_service = if occupied.first_service == 1 { 1 + half } else { 1 };
        let (mut ports, mut next) = chains(config, UDP, first_service);
        let (tcp, tcp_next) = chains(config, TCP, first_service);
        ports.extend(tcp);
        next.extend(tcp_next);
        let [v4, v6] = source_tables(config, &ids);
        let [protected_v4, protected_v6] = protected_tables(config, &occupied.local);
        let capacity = occupied.block_capacity;
        let mut placement = Placement::new(capacity, &occupied.blocks);
        let view = View {
            ports_shift: if first_service == 1 { 0 } else { Ports::UPPER },
            sources_v4: placement.place(v4, capacity)?,
            sources_v6: placement.place(v6, capacity)?,
            protected_v4: placement.place(protected_v4, capacity)?,
            protected_v6: placement.place(protected_v6, capacity)?,
            first_service,
            services: needed,
            last_tenant: ids.iter().copied().max().unwrap_or(0),
            ..view(config, occupied.syn_cookies)
        };
        let defaults: HashSet<usize> =
            config.services.iter().filter_map(|service| Some(service.default?.get())).collect();
        let tenants = config.tenants.iter().zip(&ids).enumerate().map(|(place, (tenant, &id))| Tenant {
            id,
            name: Name::new(&tenant.name).unwrap_or(Name::EMPTY),
            fresh: !occupied.tenants.contains_key(&tenant.name),
            has_members: tenant.members.is_some(),
            state: tenant_state(
                tenant,
                charged(config, tenant, id, &ids, occupied),
                defaults.contains(&place),
            ),
        });
        Ok(Self {
            tenants: tenants.collect(),
            services: services(config, &ids, first_service, &next),
            blocks: placement.into_blocks(),
            view,
            ports,
        })
    }
}

/// The ids of the tenants: those that they have, else the lowest that are free.
fn tenant_ids(config: &Config, occupied: &Occupied) -> Result<Vec<u32>, Misfit> {
    let in_use: HashSet<u32> = occupied.tenants.values().chain(&occupied.reserved).copied().collect();
    let mut free = (1..occupied.tenant_capacity).filter(|id| !in_use.contains(id));
    let fresh = config.tenants.iter().filter(|tenant| !occupied.tenants.contains_key(&tenant.name)).count();
    let misfit = Misfit::Tenants {
        needed: (fresh + in_use.len()) as u32,
        capacity: occupied.tenant_capacity.saturating_sub(1),
    };
    let id = |tenant: &config::Tenant| occupied.tenants.get(&tenant.name).copied().or_else(|| free.next());
    config.tenants.iter().map(id).collect::<Option<_>>().ok_or(misfit)
}

fn check_chains(config: &Config) -> Result<(), Misfit> {
    let mut chains: HashMap<(u8, u16), usize> = HashMap::new();
    for (_, transport, address) in endpoints(config) {
        let length = chains.entry((transport, address.port())).or_default();
        *length += 1;
        if *length > Service::MAX_CHAIN {
            return Err(Misfit::Chain { port: address.port() });
        }
    }
    Ok(())
}

fn services(config: &Config, ids: &[u32], first: u32, next: &HashMap<u32, u32>) -> Vec<Service> {
    let mut first_slots = vec![0; config.services.len()];
    for (slot, (id, ..)) in (first..).zip(endpoints(config)) {
        if first_slots[id] == 0 {
            first_slots[id] = slot;
        }
    }
    let element = |(slot, (id, transport, address)): (u32, (usize, u8, SocketAddr))| {
        let service = &config.services[id];
        let any = if address.ip().is_unspecified() { service_flags::ANY_ADDRESS } else { 0 };
        let syn =
            if service.unknown_syn == config::Action::Drop { service_flags::DROP_UNKNOWN_SYN } else { 0 };
        let proxied = if service.backend.is_some() { service_flags::PROXIED } else { 0 };
        let by_lines = service.tcp_price == config::TcpPrice::Lines && transport == TCP;
        let by_lines = if by_lines { service_flags::PRICED_BY_LINES } else { 0 };
        let limits_keys = service.hot_key_limit.is_some() && transport == UDP;
        let limits_keys = if limits_keys { service_flags::LIMITS_KEYS } else { 0 };
        let state = ServiceState {
            base_mru: service.price.base.0,
            row_mru: service.price.row.0,
            kib_mru: service.price.kib.0,
            shed: Shed::default(),
            latency_mru: [0; QueryClass::COUNT],
            stamp: 0,
        };
        Service {
            address: match address.ip() {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            },
            next: next.get(&slot).copied().unwrap_or(0),
            default_tenant: service.default.map_or(0, |tenant| ids[tenant.get()]),
            id: id as u32,
            protocol: match service.protocol {
                config::Protocol::Opaque => Protocol::Opaque,
                config::Protocol::Memcached => Protocol::Memcached,
                config::Protocol::Resp => Protocol::Resp,
                config::Protocol::Http => Protocol::Http,
            } as u8,
            flags: any | syn | proxied | by_lines | limits_keys,
            banks: [state; 2],
            name: Name::new(&service.name).unwrap_or(Name::EMPTY),
            port: address.port(),
            transport,
            unknown_syn: service.unknown_syn_rate,
            unknown_syn_slot: first_slots[id],
            ..Service::default()
        }
    };
    (first..).zip(endpoints(config)).map(element).collect()
}

/// Those that are charged with a tenant that has this id.
fn charged(config: &Config, tenant: &config::Tenant, id: u32, ids: &[u32], occupied: &Occupied) -> [u32; 2] {
    let is_known = |name: &str| occupied.tenants.contains_key(name);
    let before = occupied.charged.get(&id).filter(|_| is_known(&tenant.name)).copied().unwrap_or_default();
    let charged: Vec<_> = tenant.charge.iter().map(|of| ids[of.get()]).collect();
    // An id that another tenant has now is not the same.
    let is_another = |id: u32| {
        tenant.charge.iter().any(|of| ids[of.get()] == id && !is_known(&config.tenants[of.get()].name))
    };
    parents::places(&charged, before.map(|id| if is_another(id) { u32::MAX } else { id }))
}

/// A tenant's state before any decision.
///
/// Whoever is charged for sources that no rule names gets no replies: those sources may be forged.
fn tenant_state(tenant: &config::Tenant, parents: [u32; 2], is_default: bool) -> TenantState {
    let flag = |on: bool, flag: u32| if on { flag } else { 0 };
    let flags = flag(tenant.reply_budget > 0 && !is_default, tenant_flags::MAY_REPLY)
        | flag(tenant.candidate.is_some(), tenant_flags::CANDIDATE)
        | flag(tenant.quota.rate == Rate::UNLIMITED, tenant_flags::UNLIMITED)
        | flag(!tenant.cache, tenant_flags::NO_CACHE)
        | flag(tenant.refuse, tenant_flags::PENALTY);
    TenantState {
        quota: tenant.quota,
        tcp: tenant.tcp_quota,
        syn: tenant.syn_rate,
        reply: Limits::new(tenant.reply_budget, REPLY_BURST.0),
        candidate: tenant.candidate.unwrap_or_default(),
        multiplier: tenant.multiplier.0,
        parents,
        flags,
        tier: tenant.tier as u8,
        ..TenantState::default()
    }
}

/// The view that packets are judged by, without the roots of the tables.
fn view(config: &Config, syn_cookies: bool) -> View {
    let flag = |on: bool, flag: u32| if on { flag } else { 0 };
    View {
        stale_after_ns: config.gate.stale_after.0,
        flags: flag(config.gate.mode == config::Mode::Shadow, view_flags::SHADOW)
            | flag(config.gate.on_stale == config::OnStale::Pass, view_flags::STALE_PASS)
            | flag(config.gate.algorithm == config::Algorithm::RejectionRate, view_flags::CONNECTIONS_ONLY)
            | flag(syn_cookies, view_flags::SYN_COOKIES)
            | match config.gate.fragments {
                config::Fragments::Judge => 0,
                config::Fragments::Pass => view_flags::PASS_FRAGMENTS,
                config::Fragments::Drop => view_flags::DROP_FRAGMENTS,
            },
        enforce: config.gate.enforce.steps(),
        sample_every: config.gate.sample.get(),
        ..View::default()
    }
}

/// Blocks that are set apart for the roots of the tables of IPv4 sources.
pub const ROOT_BLOCKS: u32 = FIRST_FREE;

/// Bursts of replies, so that a second's replies exceed the budget by a tenth at most.
const REPLY_BURST: Nanos = Nanos::from_millis(100);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use gate_common::abi::{find, find_v4};

    use super::*;
    use crate::control::capacity::{Needs, capacities};
    use crate::control::occupied::blocks_in_force;

    const TWO: &str = r#"
        [[service]]
        name = "cache"
        protocol = "memcached"
        listen = ["198.18.0.1:11211", "[fd00::1]:11211"]
        transports = ["udp", "tcp"]
        default = "other"
        [[service]]
        name = "any"
        protocol = "memcached"
        listen = "198.18.0.2:11211"
        transports = ["udp"]
        [[tenant]]
        name = "polite"
        sources = ["198.18.1.0/24", "fd00:1::/64"]
        quota = "5000 RU/s"
        [[tenant]]
        name = "other"
        quota = "100 RU/s"
        charge = ["polite"]
    "#;

    fn config(text: &str) -> Config {
        Config::parse("test.toml", text).unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn occupied() -> Occupied {
        capacities(&Needs { tenants: 3, services: 5, blocks: 100 }, 10_000)
    }

    /// The result of a packet's look-ups: the tenant by source, and the chain of services on a port.
    fn lookup(layout: &Layout, source: IpAddr, transport: u8, port: u16) -> (u32, Vec<String>) {
        let blocks: HashMap<u32, Block> = layout.blocks.iter().copied().collect();
        let entry = |number: u32, byte: u8| blocks.get(&number).map(|block| block.0[usize::from(byte)]);
        let tenant = match source {
            IpAddr::V4(address) => find_v4(layout.view.sources_v4, address.octets(), entry),
            IpAddr::V6(address) => find(layout.view.sources_v6, &address.octets(), entry),
        };
        let first = layout.ports.iter().find(|of| (of.port, of.tcp) == (port, transport == TCP));
        let mut slot = first.map_or(0, |of| of.slot);
        let mut chain = Vec::new();
        while slot != 0 {
            let service = &layout.services[(slot - layout.view.first_service) as usize];
            assert_eq!((service.port, service.transport), (port, transport));
            let address = Ipv6Addr::from(service.address);
            chain.push(format!("{} {address}", service.name.as_str()));
            slot = service.next;
        }
        (tenant, chain)
    }

    #[test]
    fn a_packet_finds_its_tenant_and_its_services() {
        let layout = Layout::build(&config(TWO), &occupied()).expect("it fits");
        let v4 = |d| IpAddr::V4(Ipv4Addr::new(198, 18, 1, d));
        let chain = ["cache ::ffff:198.18.0.1", "cache fd00::1", "any ::ffff:198.18.0.2"];
        assert_eq!(lookup(&layout, v4(7), UDP, 11211), (1, chain.map(str::to_owned).to_vec()));
        assert_eq!(
            lookup(&layout, v4(7), TCP, 11211),
            (1, chain[..2].iter().map(|&s| s.to_owned()).collect())
        );
        assert_eq!(lookup(&layout, "fd00:1::9".parse().unwrap(), UDP, 1).0, 1);
        assert_eq!(lookup(&layout, "198.18.2.1".parse().unwrap(), TCP, 11212), (0, vec![]));
        assert_eq!(layout.services[0].default_tenant, 2);
        assert_eq!(layout.tenants[1].state.parents, [1, 0]);
        let may_reply = |place: usize| layout.tenants[place].state.flags & tenant_flags::MAY_REPLY != 0;
        assert!(may_reply(0) && !may_reply(1), "only tenants that are nobody's default are answered");
    }

    #[test]
    fn a_tenant_keeps_its_id_and_nothing_in_force_is_touched() {
        let first = Layout::build(&config(TWO), &occupied()).expect("it fits");
        let blocks: HashMap<u32, Block> = first.blocks.iter().copied().collect();
        let in_force = blocks_in_force(&first.view, 10_000, &|number| blocks[&number]);
        assert_eq!(in_force, blocks.keys().copied().collect());
        let second =
            TWO.replace("name = \"polite\"", "name = \"newcomer\"").replace("\"polite\"", "\"newcomer\"");
        let occupied = Occupied {
            tenants: [("polite".to_owned(), 1), ("other".to_owned(), 2)].into(),
            first_service: first.view.first_service,
            blocks: in_force.clone(),
            ..occupied()
        };
        let next = Layout::build(&config(&second), &occupied).expect("it fits");
        let tenants: Vec<_> =
            next.tenants.iter().map(|t| (t.id, t.name.as_str().to_owned(), t.fresh)).collect();
        assert_eq!(tenants, [(3, "newcomer".to_owned(), true), (2, "other".to_owned(), false)]);
        assert!(next.blocks.iter().all(|(number, _)| !in_force.contains(number)));
        let slots =
            |layout: &Layout| layout.view.first_service..layout.view.first_service + layout.view.services;
        assert!(slots(&first).all(|slot| !slots(&next).contains(&slot)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let config = config(TWO);
        let few = |change: fn(&mut Occupied)| {
            let mut occupied = occupied();
            change(&mut occupied);
            Layout::build(&config, &occupied).map(|_| ()).unwrap_err()
        };
        assert_eq!(few(|o| o.tenant_capacity = 2), Misfit::Tenants { needed: 2, capacity: 1 });
        assert_eq!(few(|o| o.service_capacity = 9), Misfit::Services { needed: 5, capacity: 4 });
        let capacity = FIRST_FREE + 3;
        assert_eq!(few(|o| o.block_capacity = FIRST_FREE + 3), Misfit::Tables(Full { capacity }));
    }
}
