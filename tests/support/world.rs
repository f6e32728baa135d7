//! The program in the kernel, with maps that a test fills as it likes.

use std::collections::HashSet;
use std::mem::offset_of;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use gate_common::abi::{
    Clock, Control, Cpu, LOCAL_ADDRESS, PROTECTED_ADDRESS, Ports, Protocol, Service, ServiceState, Shed,
    Tenant, TenantCounters, TenantLine, TenantState, View, service_flags,
};
use gate_common::token_bucket::Limits;
use gate_common::units::{Fraction, Multiplier, Nanos};
use gate_userspace::clock;
use gate_userspace::control::tables::{Placement, Table};
use gate_userspace::kernel::{Cpus, Error, Loaded, Port, Sizes, jiffies};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// The contents of the maps.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Flags and numbers; the roots of the tables are filled in.
    pub view: View,
    /// Services; the slot of each is its place plus one.
    pub services: Vec<(u8, u16, Service, ServiceState)>,
    /// Tenants; the id of each is its place plus one.
    pub tenants: Vec<TenantState>,
    /// Tenants by source prefix.
    pub sources: Vec<(IpAddr, u8, u32)>,
    /// Addresses that services listen at; unspecified, if they listen at any.
    pub protected: Vec<IpAddr>,
    /// True if these are the namespace's own.
    pub local: bool,
}

/// UDP's number.
pub const UDP: u8 = 17;
/// TCP's number.
pub const TCP: u8 = 6;

/// Prices that tell apart what was counted: a digit of the price for each kind.
pub const PRICES: ServiceState = ServiceState {
    base_mru: 1_000_000,
    row_mru: 10_000,
    kib_mru: 1_024,
    shed: Shed(0),
    latency_mru: [1, 2, 3, 4, 5, 6, 7, 9],
    stamp: 0,
};

/// A tenant with a quota that no single test spends.
#[must_use]
pub fn tenant() -> TenantState {
    TenantState {
        quota: Limits::new(1_000_000_000, 1_000_000_000),
        tcp: Limits::new(1_000_000_000, 1_000_000_000),
        reply: Limits::new(1_000_000, 1_000_000_000),
        multiplier: Multiplier::ONE.0,
        flags: gate_common::abi::tenant_flags::MAY_REPLY,
        ..TenantState::default()
    }
}

/// A service at an address; any address, if none is given.
#[must_use]
pub fn service(
    transport: u8,
    address: &str,
    port: u16,
    protocol: Protocol,
) -> (u8, u16, Service, ServiceState) {
    let address: Option<IpAddr> = (!address.is_empty()).then(|| address.parse().expect("an address"));
    let service = Service {
        address: address.map_or([0; 16], mapped),
        protocol: protocol as u8,
        flags: if address.is_none() { service_flags::ANY_ADDRESS } else { 0 },
        id: 7,
        ..Service::default()
    };
    (transport, port, service, PRICES)
}

/// An address as the maps hold it.
#[must_use]
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

impl Default for Plan {
    fn default() -> Self {
        let second = 1_000_000_000;
        let view = View { stale_after_ns: 3600 * second, enforce: Fraction::ONE.steps(), ..View::default() };
        Self {
            view,
            services: Vec::new(),
            tenants: Vec::new(),
            sources: Vec::new(),
            protected: Vec::new(),
            local: false,
        }
    }
}

fn sizes(tenants: u32, blocks: u32) -> Result<Sizes, Error> {
    let cpus = Cpus::of_machine()?;
    let cpu_rows = cpus.rows();
    let cpus = cpus.numbers();
    Ok(Sizes { cpus, cpu_rows, thread_rows: 0, tenants, services: 64, blocks, samples: 1 << 16 })
}

/// Keeps this thread on one CPU.
///
/// # Panics
///
/// If there is no such CPU.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu).expect("a CPU's number");
    sched_setaffinity(Pid::from_raw(0), &set).expect("a CPU that is there");
}

/// The program, loaded.
#[derive(Debug)]
pub struct World {
    /// The object in the kernel.
    pub loaded: Loaded,
    clock: Clock,
    generation: u64,
}

/// Everything that was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// By all CPUs.
    pub cpu: Cpu,
    /// By tenant; nobody first.
    pub tenants: Vec<TenantCounters>,
}

impl World {
    /// Loads the program with maps for this many tenants, nobody included.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn new(tenants: u32, blocks: u32) -> Result<Self, Error> {
        Self::of(Loaded::new(&sizes(tenants, blocks)?, None)?)
    }

    /// As [`World::new`], with a program that tries no compare-and-swap more than `attempts` times.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn with_attempts(tenants: u32, blocks: u32, attempts: NonZeroU32) -> Result<Self, Error> {
        Self::of(Loaded::with_attempts(&sizes(tenants, blocks)?, attempts)?)
    }

    /// As [`World::new`], with the variant of the program that says each step of every packet.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn tracing(tenants: u32, blocks: u32) -> Result<Self, Error> {
        let all = "::/0".parse().expect("a prefix");
        Self::of(Loaded::tracing(&sizes(tenants, blocks)?, None, all)?)
    }

    /// As [`World::new`], with maps of these sizes.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn with_sizes(sizes: &Sizes) -> Result<Self, Error> {
        Self::of(Loaded::new(sizes, None)?)
    }

    fn of(mut loaded: Loaded) -> Result<Self, Error> {
        let clock = jiffies::measure(&mut loaded)?;
        loaded.maps.give_rows(Cpus::of_machine()?.online());
        Ok(Self { loaded, clock, generation: 0 })
    }

    /// gate's clock.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.clock.at_monotonic(clock::monotonic())
    }

    /// Puts a plan in force, stamps the heartbeat, and forgets what was counted and spent.
    ///
    /// # Panics
    ///
    /// If the maps have no room for it.
    pub fn install(&mut self, plan: &Plan) {
        self.reset();
        self.put(plan);
    }

    /// Puts a plan in force and stamps the heartbeat.
    ///
    /// # Panics
    ///
    /// If the maps have no room for it.
    pub fn put(&mut self, plan: &Plan) {
        let maps = &self.loaded.maps;
        maps.init(self.clock);
        self.generation += 1;
        let mut chains = std::collections::HashMap::new();
        for (place, (transport, port, service, state)) in plan.services.iter().enumerate().rev() {
            let slot = place as u32 + 1;
            let next = chains.insert((*transport, *port), slot).unwrap_or(0);
            maps.services.store(slot as usize, &Service { next, banks: [*state; 2], ..*service });
        }
        let mut sources = [Table::v4(), Table::bytes()];
        let mut prefixes = plan.sources.clone();
        prefixes.sort_by_key(|(_, length, _)| *length);
        for (address, length, tenant) in prefixes {
            match address {
                IpAddr::V4(address) => sources[0].insert(&address.octets(), length, tenant),
                IpAddr::V6(address) => sources[1].insert(&address.octets(), length, tenant),
            }
        }
        let mut protected = [Table::bytes(), Table::bytes()];
        let value = if plan.local { LOCAL_ADDRESS } else { PROTECTED_ADDRESS };
        for address in &plan.protected {
            let bits = |all: u8| if address.is_unspecified() { 0 } else { all };
            match address {
                IpAddr::V4(address) => protected[0].insert(&address.octets(), bits(32), value),
                IpAddr::V6(address) => protected[1].insert(&address.octets(), bits(128), value),
            }
        }
        let capacity = maps.tables.len() as u32;
        let mut placement = Placement::new(capacity, &HashSet::new());
        let mut place = |table| placement.place(table, capacity).expect("room for the tables");
        let [sources_v4, sources_v6] = sources.map(&mut place);
        let [protected_v4, protected_v6] = protected.map(&mut place);
        let view = View {
            ports_shift: if self.generation.is_multiple_of(2) { 0 } else { Ports::UPPER },
            sources_v4,
            sources_v6,
            protected_v4,
            protected_v6,
            ..plan.view
        };
        for (number, block) in placement.into_blocks() {
            maps.tables.store(number as usize, &block);
        }
        for (place, state) in plan.tenants.iter().enumerate() {
            maps.write_tenant_state(place + 1, self.generation, state);
        }
        let first =
            |(&(transport, port), &slot): (&(u8, u16), &u32)| Port { tcp: transport == TCP, port, slot };
        maps.write_ports(view.ports_shift, &chains.iter().map(first).collect::<Vec<_>>());
        maps.write_view(self.generation, &view);
        maps.publish(self.generation);
        maps.beat(self.now());
    }

    /// Resets counters and the words of buckets; the plan stays in force.
    pub fn reset_counters(&mut self) {
        let maps = &self.loaded.maps;
        self.clear_counters();
        for tenant in 0..maps.tenants.len() {
            self.set_buckets(tenant, [0; 5]);
        }
        self.loaded.samples.drain(usize::MAX, |_| ());
    }

    /// Resets counters and tenants.
    pub fn reset(&mut self) {
        let maps = &self.loaded.maps;
        self.clear_counters();
        for place in 0..maps.tenants.len() {
            maps.tenants.store(place, &Tenant::default());
            maps.tenant_lines.store(place, &TenantLine::default());
        }
        self.loaded.samples.drain(usize::MAX, |_| ());
    }

    /// Forgets what was counted; CPUs keep their rows.
    fn clear_counters(&self) {
        let maps = &self.loaded.maps;
        (0..maps.tenants.len()).for_each(|tenant| maps.clear_tenant_counters(tenant));
        for place in 0..maps.cpus.len() {
            let Cpu { first_line, first_touched, first_rare, .. } = maps.cpus.load(place);
            maps.cpus.store(place, &Cpu { first_line, first_touched, first_rare, ..Cpu::EMPTY });
        }
    }

    /// The counters' changes since the last call.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let maps = &self.loaded.maps;
        // The generator's state is no counter.
        let cpu = Cpu { draw: 0, until_sample: 0, ..maps.cpu_counters() };
        Counted { cpu, tenants: (0..maps.tenants.len()).map(|tenant| maps.tenant_counters(tenant)).collect() }
    }

    /// Lets a tenant have spent its quota for the next hour.
    pub fn spend(&self, tenant: usize) {
        self.add_debt(tenant, Nanos::from_secs(3_600));
    }

    /// Puts a tenant's quota into so much debt.
    pub fn add_debt(&self, tenant: usize, debt: Nanos) {
        let until = self.now().0 + debt.0;
        self.loaded.maps.quota_tat(tenant).store(until, Ordering::Relaxed);
    }

    /// The words of a tenant's buckets: quota, TCP, replies, candidate, SYNs.
    #[must_use]
    pub fn buckets(&self, tenant: usize) -> [u64; 5] {
        let Tenant { tcp_tat, reply_tat, candidate_tat, syn_tat, .. } = self.loaded.maps.tenants.load(tenant);
        let quota_tat = self.loaded.maps.quota_tat(tenant).load(Ordering::Relaxed);
        [quota_tat, tcp_tat, reply_tat, candidate_tat, syn_tat]
    }

    /// Writes those words.
    pub fn set_buckets(&self, tenant: usize, words: [u64; 5]) {
        let [quota_tat, tcp_tat, reply_tat, candidate_tat, syn_tat] = words;
        let maps = &self.loaded.maps;
        maps.quota_tat(tenant).store(quota_tat, Ordering::Relaxed);
        maps.tenants.store_at(tenant, offset_of!(Tenant, tcp_tat), &tcp_tat);
        maps.tenants.store_at(tenant, offset_of!(Tenant, syn_tat), &syn_tat);
        maps.tenants.store_at(tenant, offset_of!(Tenant, reply_tat), &reply_tat);
        maps.tenants.store_at(tenant, offset_of!(Tenant, candidate_tat), &candidate_tat);
    }

    /// Puts a tenant's bucket for TCP towards proxied services into so much debt.
    pub fn add_tcp_debt(&self, tenant: usize, debt: Nanos) {
        let until = self.now().0 + debt.0;
        self.loaded.maps.tenants.store_at(tenant, offset_of!(Tenant, tcp_tat), &until);
    }

    /// Lets a tenant have made all connection attempts that it may make in the next hour.
    pub fn spend_syns(&self, tenant: usize) {
        let until = self.now().0 + 3_600_000_000_000;
        self.loaded.maps.tenants.store_at(tenant, offset_of!(Tenant, syn_tat), &until);
    }

    /// Lets a tenant have spent its budget for replies for the next hour.
    pub fn spend_replies(&self, tenant: usize) {
        let until = self.now().0 + 3_600_000_000_000;
        self.loaded.maps.tenants.store_at(tenant, offset_of!(Tenant, reply_tat), &until);
    }

    /// The generation in force.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Writes a word of the control element, at its offset.
    pub fn set_control(&self, offset: usize, value: u64) {
        self.loaded.maps.control.store_at(0, offset, &value);
    }

    /// Lets the heartbeat be this old.
    pub fn age_heartbeat(&self, age: Nanos) {
        self.set_control(offset_of!(Control, heartbeat_ns), self.now().0 - age.0);
    }
}
