//! gate's maps, typed and in memory.

use std::collections::HashMap;
use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::MapData;
use gate_common::abi::{
    self, ABI_VERSION, Block, Clock, Control, CounterLine, Cpu, Name, Ports, RareCounters, Service,
    ServiceState, Tenant, TenantLine, TenantState, TopKey, View, maps, touched_words,
};
use gate_common::token_bucket::{Limits, Rate};
use gate_common::units::Nanos;

use super::arrays::{array, data_of, data_of_pin, require_pins};
use super::cleared::Cleared;
use super::error::{Error, Result};
use super::mapped::{Mapped, Words};
use super::owner::{self, ControlHead, Ownership};
use super::pinned_head::PinnedHead;
use super::sizes::Sizes;

/// Where the chain of services of one port starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// True for TCP, false for UDP.
    pub tcp: bool,
    /// The port.
    pub port: u16,
    /// The slot of the first service.
    pub slot: u32,
}

/// Every map of gate but the ring buffer.
#[derive(Debug)]
pub struct Maps {
    /// See [`Control`].
    pub control: Mapped<Control>,
    /// See [`Ports`].
    pub ports: Mapped<Ports>,
    /// See [`Block`].
    pub tables: Mapped<Block>,
    /// See [`Service`].
    pub services: Mapped<Service>,
    /// See [`TenantLine`].
    pub tenant_lines: Mapped<TenantLine>,
    /// See [`Tenant`].
    pub tenants: Mapped<Tenant>,
    /// See [`CounterLine`]; index `row * tenants + tenant`.
    pub counters: Mapped<CounterLine>,
    /// See [`RareCounters`]; index `row * tenants + tenant`.
    pub rare_counters: Mapped<RareCounters>,
    /// Which of `counters` were touched, a bit each; see [`touched_words`].
    pub touched: Mapped<u64>,
    /// See [`Cpu`]; the last element has what older maps counted.
    pub cpus: Mapped<Cpu>,
    /// See [`TopKey`].
    pub top_keys: Mapped<TopKey>,
    /// The counters of tenants before this process cleared them.
    pub cleared: Cleared,
}

impl Maps {
    /// Maps those of a loaded object.
    pub(super) fn of(object: &aya::Ebpf) -> Result<Self> {
        Self::open(true, |name| data_of(object, name))
    }

    /// Maps those pinned in `directory`, after comparing their shapes, to be read or to be written.
    ///
    /// # Errors
    ///
    /// [`Error::NoPins`] if gate has not pinned its maps there, [`Error::NotWhole`] if some are gone,
    /// [`Error::Shape`] if a map is not what this version expects, [`Error::AbiVersion`] if another version made
    /// them.
    pub fn pinned(directory: &Path, writable: bool) -> Result<Self> {
        let found = PinnedHead::open(directory, false)?.abi_version();
        if found != ABI_VERSION {
            return Err(Error::AbiVersion { directory: directory.to_owned(), found, expected: ABI_VERSION });
        }
        require_pins(directory, &maps::ALL)?;
        let this = Self::open(writable, |name| data_of_pin(directory, name))?;
        let not_whole = |map| Err(Error::NotWhole { directory: directory.to_owned(), map });
        let control = this.control.load(0);
        let tenants = this.tenants.len();
        let words = touched_words(tenants as u32) as usize;
        if control.tenants as usize != tenants {
            not_whole(maps::TENANTS)
        } else if this.tenant_lines.len() != tenants {
            not_whole(maps::TENANT_LINES)
        } else if !this.counters.len().is_multiple_of(tenants) || this.rows() <= this.cpu_rows() {
            not_whole(maps::COUNTERS)
        } else if !this.rare_counters.len().is_multiple_of(tenants) || this.rare_counters.len() < tenants {
            not_whole(maps::RARE_COUNTERS)
        } else if this.touched.len() != this.rows() * words {
            not_whole(maps::TOUCHED)
        } else {
            Ok(this)
        }
    }

    /// Maps of these sizes that no kernel knows of, owned by this process: what the daemon judges by where
    /// there is no XDP.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] if there is no memory.
    pub fn private(sizes: &Sizes) -> Result<(Self, Ownership)> {
        fn array<T: Words>(sizes: &Sizes, name: &str) -> Result<Mapped<T>> {
            let entries = sizes.entries(name).unwrap_or(0) as usize;
            Mapped::private(entries).map_err(|source| Error::map(name, source))
        }
        let this = Self {
            control: array(sizes, maps::CONTROL)?,
            ports: array(sizes, maps::PORTS)?,
            tables: array(sizes, maps::TABLES)?,
            services: array(sizes, maps::SERVICES)?,
            tenant_lines: array(sizes, maps::TENANT_LINES)?,
            tenants: array(sizes, maps::TENANTS)?,
            counters: array(sizes, maps::COUNTERS)?,
            rare_counters: array(sizes, maps::RARE_COUNTERS)?,
            touched: array(sizes, maps::TOUCHED)?,
            cpus: array(sizes, maps::CPUS)?,
            top_keys: array(sizes, maps::TOP_KEYS)?,
            cleared: Cleared::default(),
        };
        this.set_cpu_rows(sizes.cpu_rows);
        this.init(Clock::default());
        let (ownership, _) = owner::take(&this)?;
        Ok((this, ownership))
    }

    /// Maps of [`Sizes::SMALL`], as [`Maps::private`] makes them.
    #[cfg(test)]
    pub(crate) fn small() -> Self {
        Self::private(&Sizes::SMALL).expect("there is memory").0
    }

    fn open(writable: bool, map: impl Fn(&str) -> Result<MapData>) -> Result<Self> {
        Ok(Self {
            control: array(maps::CONTROL, writable, &map)?,
            ports: array(maps::PORTS, writable, &map)?,
            tables: array(maps::TABLES, writable, &map)?,
            services: array(maps::SERVICES, writable, &map)?,
            tenant_lines: array(maps::TENANT_LINES, writable, &map)?,
            tenants: array(maps::TENANTS, writable, &map)?,
            counters: array(maps::COUNTERS, writable, &map)?,
            rare_counters: array(maps::RARE_COUNTERS, writable, &map)?,
            touched: array(maps::TOUCHED, writable, &map)?,
            cpus: array(maps::CPUS, writable, &map)?,
            top_keys: array(maps::TOP_KEYS, writable, &map)?,
            cleared: Cleared::default(),
        })
    }

    /// Makes new maps ready: who reads them, and what time it is.
    pub fn init(&self, clock: Clock) {
        self.control.store_at(0, offset_of!(Control, clock), &clock);
        let tenants = self.tenants.len() as u64;
        self.control.store_at(0, offset_of!(Control, tenants), &tenants);
        let word = u64::from(ABI_VERSION) | (self.cpus.len() as u64) << 32;
        self.control.word(0, offset_of!(Control, abi_version)).store(word, Ordering::Release);
    }

    /// How large they are, but for the ring buffer, whose size is left at zero.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes {
            cpus: self.cpus.len() as u32 - 1,
            cpu_rows: self.cpu_rows() as u32,
            thread_rows: (self.rows() - self.cpu_rows()) as u32 - 1,
            tenants: self.tenants.len() as u32,
            services: self.services.len() as u32,
            blocks: self.tables.len() as u32,
            samples: 0,
        }
    }

    /// How jiffies become gate's clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.control.load_at(0, offset_of!(Control, clock))
    }

    /// The generation in force.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.control.word(0, offset_of!(Control, generation)).load(Ordering::Acquire)
    }

    /// Puts a generation in force, after all that belongs to it was written.
    pub fn publish(&self, generation: u64) {
        self.control.word(0, offset_of!(Control, generation)).store(generation, Ordering::Release);
    }

    /// Stamps the heartbeat.
    pub fn beat(&self, now: Nanos) {
        self.control.word(0, offset_of!(Control, heartbeat_ns)).store(now.0, Ordering::Release);
    }

    /// The last heartbeat.
    #[must_use]
    pub fn heartbeat(&self) -> Nanos {
        Nanos(self.control.word(0, offset_of!(Control, heartbeat_ns)).load(Ordering::Acquire))
    }

    /// The view in force.
    #[must_use]
    pub fn view(&self) -> View {
        self.control.load_at(0, view_offset(self.generation()))
    }

    /// Writes the view of a generation.
    pub fn write_view(&self, generation: u64, view: &View) {
        self.control.store_at(0, view_offset(generation), view);
    }

    /// Writes where each port's chain of services starts, for views with this [`View::ports_shift`]; what was
    /// there for others stays, and what was there for these goes.
    pub fn write_ports(&self, shift: u32, ports: &[Port]) {
        let half = u64::from(Ports::MAX_SLOT << shift);
        for word in self.ports.words(0) {
            let present = word.load(Ordering::Relaxed);
            if present & (half << 32 | half) != 0 {
                word.store(present & !(half << 32 | half), Ordering::Relaxed);
            }
        }
        for &Port { tcp, port, slot } in ports {
            let table = if tcp { offset_of!(Ports, tcp) } else { offset_of!(Ports, udp) };
            let offset = table + Ports::place(port) * size_of::<u32>();
            let entry = u64::from(slot & Ports::MAX_SLOT) << shift << (8 * (offset % 8));
            // Only the owner writes here.
            let word = self.ports.word(0, offset - offset % 8);
            word.store(word.load(Ordering::Relaxed) | entry, Ordering::Relaxed);
        }
    }

    /// Writes a tenant's state for a generation.
    pub fn write_tenant_state(&self, tenant: usize, generation: u64, state: &TenantState) {
        let bank = abi::bank_of(generation);
        self.tenants.store_at(tenant, offset_of!(Tenant, banks) + bank * size_of::<TenantState>(), state);
        let Limits { rate, burst_ns, max_debt_ns } = state.quota;
        let at = |field: usize| field + bank * size_of::<u64>();
        self.tenant_lines.store_at(tenant, at(offset_of!(TenantLine, rate)), &rate);
        self.tenant_lines.store_at(tenant, at(offset_of!(TenantLine, burst_ns)), &burst_ns);
        self.tenant_lines.store_at(tenant, at(offset_of!(TenantLine, max_debt_ns)), &max_debt_ns);
        // Both banks' flags are in one word, which only the owner writes.
        let word = self.tenant_lines.word(tenant, offset_of!(TenantLine, flags));
        let shift = 32 * bank;
        let others = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        word.store(others | u64::from(state.line_flags()) << shift, Ordering::Relaxed);
    }

    /// The tenants that are charged with a tenant, in the generation in force. None of a number that there is no room for.
    #[must_use]
    pub fn parents(&self, tenant: u32) -> [u32; 2] {
        if tenant as usize >= self.tenants.len() {
            return [0; 2];
        }
        let bank = offset_of!(Tenant, banks) + abi::bank_of(self.generation()) * size_of::<TenantState>();
        let state: TenantState = self.tenants.load_at(tenant as usize, bank);
        state.parents
    }

    /// The rate of a tenant's quota in force.
    #[must_use]
    pub fn quota_rate(&self, tenant: u32) -> Rate {
        let bank = offset_of!(Tenant, banks) + abi::bank_of(self.generation()) * size_of::<TenantState>();
        let state: TenantState = self.tenants.load_at(tenant as usize, bank);
        state.quota.rate
    }

    /// A tenant's name; empty of nobody, and of a number that there is no room for.
    #[must_use]
    pub fn tenant_name(&self, tenant: u32) -> String {
        if tenant == 0 || tenant as usize >= self.tenants.len() {
            return String::new();
        }
        let name: Name = self.tenants.load_at(tenant as usize, offset_of!(Tenant, name));
        name.as_str().to_owned()
    }

    /// The word of a tenant's quota.
    #[must_use]
    #[inline]
    pub fn quota_tat(&self, tenant: usize) -> &AtomicU64 {
        self.tenant_lines.word(tenant, offset_of!(TenantLine, quota_tat))
    }

    /// Writes a service's state for a generation.
    pub fn write_service_state(&self, slot: usize, generation: u64, state: &ServiceState) {
        let bank = offset_of!(Service, banks) + abi::bank_of(generation) * size_of::<ServiceState>();
        self.services.store_at(slot, bank, state);
    }

    /// The ids of the tenants, by name.
    #[must_use]
    pub fn tenant_ids(&self) -> HashMap<String, u32> {
        let named = |id: u32| {
            let name: Name = self.tenants.load_at(id as usize, offset_of!(Tenant, name));
            Some((name.as_str().to_owned(), id)).filter(|(name, _)| !name.is_empty())
        };
        (1..self.tenants.len() as u32).filter_map(named).collect()
    }
}

impl ControlHead for Maps {
    fn head(&self, offset: usize) -> &AtomicU64 {
        self.control.word(0, offset)
    }
}

const fn view_offset(generation: u64) -> usize {
    offset_of!(Control, views) + abi::bank_of(generation) * size_of::<View>()
}
