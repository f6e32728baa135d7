//! The tick: reads what XDP counted, decides, writes the idle bank, flips the generation.
//!
//! **Invariants.** What is in force is never written: states go to the idle bank, tables to free blocks,
//! services to the idle half of their slots. Buckets are never written, except for those of a tenant
//! that no configuration in force knew. A daemon that no longer owns the maps writes nothing.

use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gate_common::abi::{Name, PortFilter, Tenant, TenantCounters, TenantState, View, bank_of};
use gate_common::units::Nanos;

use super::decide::{Rules, Snapshot, TenantSnapshot, decide};
use super::layout::{Layout, Occupied, blocks_in_force};
use crate::kernel::Maps;
use crate::kernel::owner::Ownership;

/// Another daemon owns the maps now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another gate has taken over the maps")]
pub struct Lost;

/// Keeps what is in the maps in step with what is decided.
#[derive(Debug)]
pub struct Ticker {
    maps: Arc<Maps>,
    ownership: Ownership,
    rules: Rules,
    view: View,
    ports: Box<PortFilter>,
    /// By tenant in use: its id, its state before any decision, what was charged and refused so far.
    tenants: Vec<Held>,
    snapshots: Vec<TenantSnapshot>,
    states: Vec<TenantState>,
    /// What each bank holds, but for stamps; `None` where that is not known.
    written: [Vec<Option<TenantState>>; 2],
    /// Ticks until what the last configuration alone used is cleared.
    sweep_in: Option<u8>,
    last: Option<Nanos>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    id: u32,
    base: TenantState,
    offered_mru: u64,
}

impl Ticker {
    /// Starts with a configuration's first layout.
    ///
    /// # Errors
    ///
    /// [`Lost`].
    pub fn new(maps: Arc<Maps>, ownership: Ownership, layout: Layout, rules: Rules) -> Result<Self, Lost> {
        let empty = || Box::new(PortFilter { udp: [0; 1024], tcp: [0; 1024] });
        let mut this = Self {
            maps,
            ownership,
            rules,
            view: View::default(),
            ports: empty(),
            tenants: Vec::new(),
            snapshots: Vec::new(),
            states: Vec::new(),
            written: [Vec::new(), Vec::new()],
            sweep_in: None,
            last: None,
        };
        // What the ports of a configuration in force are is not known here, but in the maps.
        this.ports = Box::new(this.maps.ports.load(0));
        this.install(layout, rules)?;
        Ok(this)
    }

    /// Writes a new configuration where nothing is in force; the next tick publishes it.
    ///
    /// # Errors
    ///
    /// [`Lost`].
    pub fn install(&mut self, layout: Layout, rules: Rules) -> Result<(), Lost> {
        self.owned()?;
        let maps = &self.maps;
        for (number, block) in &layout.blocks {
            maps.tables.store(*number as usize, block);
        }
        for (slot, service) in (layout.view.first_service..).zip(&layout.services) {
            maps.services.store(slot as usize, service);
        }
        for tenant in &layout.tenants {
            let id = tenant.id as usize;
            if tenant.fresh {
                maps.tenants.store(id, &Tenant::default());
                for cpu in 0..maps.cpus.len() {
                    maps.counters.store(cpu * maps.tenants.len() + id, &TenantCounters::default());
                }
            }
            maps.tenants.store_at(id, offset_of!(Tenant, name), &tenant.name);
        }
        // Until the old configuration is out of force for sure, either one's ports are looked at.
        maps.ports.store(0, &union(&self.ports, &layout.ports));
        self.ports = layout.ports;
        self.view = layout.view;
        self.rules = rules;
        self.sweep_in = Some(2);
        self.tenants = layout
            .tenants
            .iter()
            .map(|tenant| Held { id: tenant.id, base: tenant.state, offered_mru: offered(maps, tenant.id) })
            .collect();
        self.snapshots = vec![TenantSnapshot::default(); self.tenants.len()];
        self.states = self.tenants.iter().map(|tenant| tenant.base).collect();
        self.written = [vec![None; self.tenants.len()], vec![None; self.tenants.len()]];
        Ok(())
    }

    /// One tick at `now`, on gate's clock: returns the generation that it put in force.
    ///
    /// # Errors
    ///
    /// [`Lost`].
    pub fn tick(&mut self, now: Nanos) -> Result<u64, Lost> {
        self.owned()?;
        self.observe();
        let interval = now.saturating_sub(self.last.replace(now).unwrap_or(now));
        for (state, tenant) in self.states.iter_mut().zip(&self.tenants) {
            *state = tenant.base;
        }
        decide(&self.rules, &Snapshot { now, interval, tenants: &self.snapshots }, &mut self.states);
        let generation = self.maps.generation().wrapping_add(1);
        self.apply(generation);
        if let Some(left) = self.sweep_in.take() {
            match left.checked_sub(1) {
                Some(left) => self.sweep_in = Some(left),
                None => self.sweep(),
            }
        }
        Ok(generation)
    }

    /// Whether XDP may still judge by anything but the present configuration.
    #[must_use]
    pub fn settling(&self) -> bool {
        self.sweep_in.is_some()
    }

    fn owned(&self) -> Result<(), Lost> {
        if self.ownership.holds(&self.maps) { Ok(()) } else { Err(Lost) }
    }

    fn observe(&mut self) {
        for (snapshot, tenant) in self.snapshots.iter_mut().zip(&mut self.tenants) {
            let word = self.maps.tenants.word(tenant.id as usize, offset_of!(Tenant, quota_tat));
            let offered_mru = offered(&self.maps, tenant.id);
            *snapshot = TenantSnapshot {
                quota_tat: word.load(Ordering::Relaxed),
                offered_mru: offered_mru.wrapping_sub(tenant.offered_mru),
            };
            tenant.offered_mru = offered_mru;
        }
    }

    /// Writes what differs into the bank of `generation`, and puts that in force.
    fn apply(&mut self, generation: u64) {
        let written = &mut self.written[bank_of(generation)];
        for ((state, tenant), written) in self.states.iter().zip(&self.tenants).zip(written) {
            if written.as_ref() != Some(state) {
                *written = Some(*state);
                let stamped = TenantState { stamp: generation, ..*state };
                self.maps.write_tenant_state(tenant.id as usize, generation, &stamped);
            }
        }
        self.maps.write_view(generation, &View { stamp: generation, ..self.view });
        self.maps.publish(generation);
    }

    /// Clears what only the last configuration used.
    fn sweep(&self) {
        self.maps.ports.store(0, &self.ports);
        let in_use: std::collections::HashSet<usize> =
            self.tenants.iter().map(|tenant| tenant.id as usize).collect();
        for id in (1..self.maps.tenants.len()).filter(|id| !in_use.contains(id)) {
            self.maps.tenants.store_at(id, offset_of!(Tenant, name), &Name::EMPTY);
        }
    }
}

/// What is in use in the maps, and how much there is.
#[must_use]
pub fn occupied(maps: &Maps) -> Occupied {
    let sizes = maps.sizes();
    let view = maps.view();
    let named = |id: u32| {
        let name: Name = maps.tenants.load_at(id as usize, offset_of!(Tenant, name));
        Some((name.as_str().to_owned(), id)).filter(|(name, _)| !name.is_empty())
    };
    Occupied {
        tenant_capacity: sizes.tenants,
        service_capacity: sizes.services,
        block_capacity: sizes.blocks,
        tenants: (1..sizes.tenants).filter_map(named).collect::<HashMap<_, _>>(),
        first_service: view.first_service,
        blocks: blocks_in_force(&view, sizes.blocks, &|number| maps.tables.load(number as usize)),
    }
}

/// What a tenant was charged and refused so far, in thousandths of a request unit.
fn offered(maps: &Maps, tenant: u32) -> u64 {
    let counter = |cpu: usize, offset| {
        let element = cpu * maps.tenants.len() + tenant as usize;
        maps.counters.word(element, offset).load(Ordering::Relaxed)
    };
    (0..maps.cpus.len()).fold(0, |sum, cpu| {
        let charged = counter(cpu, offset_of!(TenantCounters, charged_mru));
        let refused = counter(cpu, offset_of!(TenantCounters, refused_mru));
        sum.wrapping_add(charged).wrapping_add(refused)
    })
}

fn union(a: &PortFilter, b: &PortFilter) -> PortFilter {
    let join = |a: &[u64; 1024], b: &[u64; 1024]| std::array::from_fn(|word| a[word] | b[word]);
    PortFilter { udp: join(&a.udp, &b.udp), tcp: join(&a.tcp, &b.tcp) }
}
