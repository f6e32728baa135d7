//! The owner, the attachment and the exits of all packets.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use gate_common::abi::{Event, Exit, MeasuredShare, Protocol, Shed, bank_of, service_flags, view_flags};
use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::Override;
use super::fleet::FleetOwner;
use super::interception::Interception;
use super::price::{Learned, Price};
use super::store::Store;
use super::tenants;
use crate::clock;
use crate::control::board::Report;
use crate::control::in_passing::is_measurable;
use crate::kernel::attach::mode_name;
use crate::kernel::attach::{interface_name, is_elsewhere};
use crate::kernel::{Maps, owner};
use crate::policy::Tier;
use crate::protocol::price_class::PriceClass;

/// The document of `gate status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The daemon's process id; none if it is gone.
    pub daemon: Option<u32>,
    /// The names of the interfaces that are there, with a comma between two; of another network namespace their indices.
    /// Nothing if there is none.
    pub interface: Option<String>,
    /// How it is attached; if there are several ways, all of them, with a comma between two.
    pub mode: Cow<'static, str>,
    /// Every interface that it was attached to.
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    /// The names of the interfaces that have vanished, or where the program is no longer; only the daemon itself knows.
    #[serde(default)]
    pub vanished: Vec<String>,
    /// The layout of the maps.
    pub abi_version: u32,
    /// How many owners the maps have had.
    pub epoch: u64,
    /// The plan in force.
    pub generation: u64,
    /// The age of the daemon's heartbeat.
    pub heartbeat_age_ms: u64,
    /// True if that is too long.
    pub stale: bool,
    /// True in shadow mode: refusals are only counted.
    pub shadow: bool,
    /// The behaviour while it is stale.
    pub on_stale: Cow<'static, str>,
    /// The share of sources for which refusals happen.
    pub enforced_percent: f64,
    /// One request in so many gives a key sample.
    pub sample_every: u32,
    /// How fine the kernel's clock is.
    pub clock_tick_ns: u64,
    /// How many there are.
    pub tenants: u32,
    /// The services.
    pub services: Vec<Service>,
    /// Packets, by how they left.
    pub exits: BTreeMap<Cow<'static, str>, u64>,
    /// The counters of events.
    pub events: BTreeMap<Cow<'static, str>, u64>,
    /// The overrides; only the daemon itself knows.
    #[serde(default)]
    pub overrides: Vec<Override>,
    /// The places where it listens, the addresses of its services aside; only the daemon itself knows.
    #[serde(default)]
    pub listens: Vec<ListensAt>,
    /// The keys whose values in the configuration count from the next start only; only the daemon itself knows.
    #[serde(default)]
    pub later: Vec<String>,
    /// The owners of limits that are shared with other gates; only the daemon itself knows.
    #[serde(default)]
    pub fleet: Vec<FleetOwner>,
    /// The stores' addresses at which gate gets the connections; nothing if there are none.
    #[serde(default)]
    pub interception: Option<Interception>,
    /// The lines of the log that were lost since the daemon's start; only the daemon itself knows.
    #[serde(default)]
    pub log_lines_lost: u64,
}

/// A place where the daemon listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListensAt {
    /// The key of the configuration that says it: `admin`, `admin_read`, `admin_http` or `envoy`.
    pub key: Cow<'static, str>,
    /// A path, or an address and a port.
    pub address: String,
}

/// An interface that the program was attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interface {
    /// Its index.
    pub index: u32,
    /// Nothing if it has vanished, or the program is no longer there; of another network namespace its index.
    pub name: Option<String>,
    /// How the program was attached.
    pub mode: Cow<'static, str>,
    /// False where charged datagrams to proxied services are not marked: the driver has no metadata, or the program that
    /// marks could not be attached. Nothing if they are marked nowhere.
    #[serde(default)]
    pub marks: Option<bool>,
}

/// A protected address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// Its transport.
    pub transport: Cow<'static, str>,
    /// How it is read.
    pub protocol: Cow<'static, str>,
    /// The price of a request there.
    #[serde(default)]
    pub price: Price,
    /// The rung of each tier that is shed: `x2` to `x64`, a factor on prices, or `refused`.
    #[serde(default)]
    pub shed: BTreeMap<Cow<'static, str>, String>,
    /// One of so many requests is noted, so that its answer is measured in passing: 0 while none is. Nothing where that cannot
    /// be: over TCP, of other protocols, of proxied services.
    #[serde(default)]
    pub measured_every: Option<u32>,
    /// The store and the clients, if the service is proxied; only the daemon knows.
    #[serde(default)]
    pub store: Option<Store>,
}

impl Status {
    /// Reads it from the maps.
    #[must_use]
    pub fn read(maps: &Maps) -> Self {
        let control = maps.control.load(0);
        let view = maps.view();
        let age = age(maps);
        let counters = maps.cpu_counters();
        let interfaces = Interface::read(maps);
        let interface = present(&interfaces);
        let modes: BTreeSet<&str> = interfaces.iter().map(|interface| &*interface.mode).collect();
        let mode = listed(modes.into_iter().collect());
        let services = view.first_service..view.first_service + view.services;
        Self {
            daemon: owner::alive(maps),
            interface,
            mode: mode.map_or("none".into(), Cow::Owned),
            interfaces,
            vanished: Vec::new(),
            abi_version: control.abi_version,
            epoch: control.epoch,
            generation: control.generation,
            heartbeat_age_ms: age.0 / 1_000_000,
            stale: is_stale(maps),
            shadow: view.flags & view_flags::SHADOW != 0,
            on_stale: if view.flags & view_flags::STALE_PASS != 0 { "pass" } else { "bucket" }.into(),
            enforced_percent: f64::from(view.enforce) / 655.36,
            sample_every: view.sample_every,
            clock_tick_ns: control.clock.tick_ns,
            tenants: (1..=view.last_tenant).filter(|&id| tenants::exists(maps, id)).count() as u32,
            services: services.map(|slot| Service::read(maps, slot)).collect(),
            exits: Exit::ALL.iter().map(|exit| (exit.name().into(), counters.exits[exit.index()])).collect(),
            events: Event::ALL
                .iter()
                .map(|event| (event.name().into(), counters.events[event.index()]))
                .collect(),
            overrides: Vec::new(),
            listens: Vec::new(),
            later: Vec::new(),
            fleet: Vec::new(),
            interception: None,
            log_lines_lost: 0,
        }
    }

    /// The status where no gate runs, and interception alone was left behind.
    #[must_use]
    pub fn of_interception(interception: Interception) -> Self {
        Self {
            daemon: None,
            interface: None,
            mode: "none".into(),
            interfaces: Vec::new(),
            vanished: Vec::new(),
            abi_version: gate_common::abi::ABI_VERSION,
            epoch: 0,
            generation: 0,
            heartbeat_age_ms: interception.heartbeat_age_ms.unwrap_or_default(),
            stale: true,
            shadow: false,
            on_stale: "bucket".into(),
            enforced_percent: 0.0,
            sample_every: 0,
            clock_tick_ns: 0,
            tenants: 0,
            services: Vec::new(),
            exits: BTreeMap::new(),
            events: BTreeMap::new(),
            overrides: Vec::new(),
            listens: Vec::new(),
            later: Vec::new(),
            fleet: Vec::new(),
            interception: Some(interception),
            log_lines_lost: 0,
        }
    }
}

impl Status {
    /// Adds the learned coefficients, which only the daemon knows.
    #[must_use]
    pub fn with(mut self, report: &Report) -> Self {
        for service in &mut self.services {
            let same = report.services.iter().find(|same| same.name == service.name);
            service.price.learned = same.and_then(|same| same.prices.learned.as_ref()).map(Learned::of);
        }
        self
    }

    /// Takes interfaces for vanished: the maps name them, and the program is no longer there.
    #[must_use]
    pub fn without(mut self, is_detached: impl Fn(&Interface) -> bool) -> Self {
        self.interfaces
            .iter_mut()
            .filter(|interface| is_detached(interface))
            .for_each(|interface| interface.name = None);
        self.interface = present(&self.interfaces);
        self
    }

    /// Adds the stores of proxied services, by the services' names.
    #[must_use]
    pub fn with_stores(mut self, stores: &HashMap<&str, Store>) -> Self {
        for service in &mut self.services {
            service.store = stores.get(service.name.as_str()).cloned();
        }
        self
    }

    /// Adds what only the daemon knows.
    pub fn add_from_daemon(&mut self, daemon: &Self) {
        self.overrides.clone_from(&daemon.overrides);
        self.vanished.clone_from(&daemon.vanished);
        self.listens.clone_from(&daemon.listens);
        self.later.clone_from(&daemon.later);
        self.fleet.clone_from(&daemon.fleet);
        self.log_lines_lost = daemon.log_lines_lost;
        for service in &mut self.services {
            let same = daemon.services.iter().find(|same| same.name == service.name);
            service.price.learned = same.and_then(|same| same.price.learned);
            service.store = same.and_then(|same| same.store.clone());
        }
    }
}

/// The names of interfaces that are there, with a comma between two.
fn present(interfaces: &[Interface]) -> Option<String> {
    listed(interfaces.iter().filter_map(|interface| interface.name.as_deref()).collect())
}

fn listed(names: Vec<&str>) -> Option<String> {
    Some(names.join(", ")).filter(|names| !names.is_empty())
}

/// True while the daemon's heartbeat is stale.
#[must_use]
pub fn is_stale(maps: &Maps) -> bool {
    age(maps).0 > maps.view().stale_after_ns
}

/// How long ago the last heartbeat is.
pub(super) fn age(maps: &Maps) -> Nanos {
    maps.clock().at_monotonic(clock::monotonic()).saturating_sub(maps.heartbeat())
}

impl Interface {
    fn read(maps: &Maps) -> Vec<Self> {
        let elsewhere = is_elsewhere(maps);
        let name = |index| match elsewhere {
            true => Some(format!("interface {index} of another network namespace")),
            false => interface_name(index),
        };
        let marks = |index| (maps.charged_mark() != 0).then(|| maps.mark_at(index).is_some());
        let read = |(index, mode)| Self {
            index,
            name: name(index),
            mode: mode_name(mode).into(),
            marks: marks(index),
        };
        maps.attached().map(read).collect()
    }
}

impl Service {
    fn read(maps: &Maps, slot: u32) -> Self {
        let service = maps.services.load(slot as usize);
        let state = service.banks[bank_of(maps.generation())];
        let (protocol, classes) = match service.protocol {
            protocol if protocol == Protocol::Memcached as u8 => ("memcached", &PriceClass::OF_MEMCACHED),
            protocol if protocol == Protocol::Resp as u8 => ("resp", &PriceClass::OF_REDIS),
            protocol if protocol == Protocol::Http as u8 => ("http", &PriceClass::OF_HTTP),
            _ => ("opaque", &PriceClass::OF_MEMCACHED),
        };
        let shed = state.shed;
        let address = std::net::Ipv6Addr::from(service.address).to_canonical();
        let address = if service.flags & service_flags::ANY_ADDRESS != 0 {
            format!("*:{}", service.port)
        } else {
            std::net::SocketAddr::new(address, service.port).to_string()
        };
        Self {
            name: service.name.as_str().to_owned(),
            address,
            transport: if service.transport == 17 { "udp" } else { "tcp" }.into(),
            protocol: protocol.into(),
            price: Price::of_state(&state, classes),
            shed: Tier::ALL.iter().filter_map(|&tier| Some((tier.name().into(), met(shed, tier)?))).collect(),
            measured_every: is_measurable(&service)
                .then(|| MeasuredShare(service.measured).rate().map_or(0, |rate| 1 << rate)),
            store: None,
        }
    }
}

/// The rung of a tier, if it is shed.
fn met(shed: Shed, tier: Tier) -> Option<String> {
    match shed.rung(tier as u8) {
        0 => None,
        rung if rung >= Shed::REFUSED => Some("refused".to_owned()),
        rung => Some(format!("x{}", Shed::price(rung, 1))),
    }
}
