//! The tick: reads what XDP counted, decides, writes the idle bank, flips the generation.
//!
//! **Invariants.** What is in force is never written: states, of tenants and of services, go to the idle bank, tables to free blocks,
//! services to the idle half of their slots. Buckets are never written, except for those of a tenant
//! that no configuration in force knew, and by compare-and-swap where a part of a limit has another rate. A daemon that no longer owns the maps writes nothing.

mod in_force;
mod rates;

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gate_common::abi::{
    Name, OtherBucket, Ports, Service, ServiceState, Tenant, TenantLine, TenantState, View, bank_of,
};
use gate_common::units::Nanos;

use self::in_force::{rate_in_force, replaced};
use self::rates::{Change, Part};
use super::board::{LearnedReport, PriceReport, Report, ServiceReport};
use super::decide::{Learning, Memory, Rules, ServiceSnapshot, Snapshot, TenantSnapshot, decide};
use super::demand::{Demand, Since};
use super::layout::Layout;
use super::shared_limits::SharedLimits;
use super::transitions::in_words;
use crate::fleet::gate::shared::SharedBook;
use crate::kernel::Maps;
use crate::kernel::owner::Ownership;
use crate::policy::Tier;
use crate::policy::cost_model::Measure;
use crate::policy::deep_debt::DeepDebt;
use crate::policy::pricing::{ByClass, Pricing};
use crate::policy::range::OutOfRange;
use crate::policy::shedding::{Shedding, Transition, Treatment};

/// Another daemon owns the maps now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another gate has taken over the maps")]
pub struct Lost;

/// Why a configuration cannot be put in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another daemon owns the maps now.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// A parameter that the configuration should not have let through.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

/// Keeps what is in the maps in step with what is decided.
#[derive(Debug)]
pub struct Ticker {
    maps: Arc<Maps>,
    ownership: Ownership,
    rules: Rules,
    view: View,
    /// By tenant in use: its id, its state before any decision.
    tenants: Vec<ActiveTenant>,
    demand: Demand,
    snapshots: Vec<TenantSnapshot>,
    states: Vec<TenantState>,
    /// By service, in the order of the configuration.
    service_names: Vec<Name>,
    memory: Memory,
    /// By slot in use: which service it is of, and its state before any decision.
    slots: Vec<(usize, ServiceState)>,
    /// The contents of each bank, but for stamps; `None` where they are not known.
    written: [Written; 2],
    /// The tenants that are charged with others than before, and at which of their places, until that is in force.
    replaced: Vec<(u32, [bool; 2])>,
    /// The limits that tenants share with other gates, if they do.
    shared: Option<SharedLimits>,
    /// By tenant in use: the rate in force of its quota.
    rates: Vec<Part>,
    /// Ticks until what the last configuration alone used is cleared.
    sweep_in: Option<u8>,
    last: Option<Nanos>,
    /// The changes of the last tick in what is shed, by service.
    transitions: Vec<(usize, Transition)>,
}

/// The contents of a bank.
#[derive(Debug, Default)]
struct Written {
    tenants: Vec<Option<TenantState>>,
    services: Vec<Option<ServiceState>>,
}

#[derive(Clone, Copy, Debug)]
struct ActiveTenant {
    id: u32,
    has_members: bool,
    base: TenantState,
}

impl Ticker {
    /// Starts with a configuration's first layout.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn new(maps: Arc<Maps>, ownership: Ownership, layout: Layout, rules: Rules) -> Result<Self, Error> {
        let mut this = Self {
            demand: Demand::new(&maps),
            maps,
            ownership,
            rules: Rules::default(),
            view: View::default(),
            tenants: Vec::new(),
            snapshots: Vec::new(),
            states: Vec::new(),
            service_names: Vec::new(),
            memory: Memory::default(),
            slots: Vec::new(),
            written: Default::default(),
            replaced: Vec::new(),
            shared: None,
            rates: Vec::new(),
            sweep_in: None,
            last: None,
            transitions: Vec::new(),
        };
        let in_force: Vec<_> =
            layout.tenants.iter().map(|tenant| rate_in_force(&this.maps, tenant)).collect();
        this.install(layout, rules)?;
        this.rates = in_force;
        Ok(this)
    }

    /// Writes a new configuration where nothing is in force; the next tick publishes it. A service that sheds
    /// by the same rules as before goes on with what it sheds, and one whose prices learn by the same rules with what
    /// they have learned.
    ///
    /// # Errors
    ///
    /// [`Error`]; then nothing has changed.
    pub fn install(&mut self, layout: Layout, rules: Rules) -> Result<(), Error> {
        self.owned()?;
        let service_names = service_names(&layout);
        let shedding = self.shedding(&service_names, &rules)?;
        let pricing = self.pricing(&service_names, &rules)?;
        self.memory = Memory { shedding, pricing, debts: self.debts(&layout) };
        self.service_names = service_names;
        self.slots = layout.services.iter().map(|service| (service.id as usize, service.banks[0])).collect();
        let maps = &self.maps;
        for (number, block) in &layout.blocks {
            maps.tables.store(*number as usize, block);
        }
        // A service at the same address as before is where connections were found before.
        let view = maps.view();
        let before: Vec<Service> = (view.first_service..view.first_service + view.services)
            .map(|slot| maps.services.load(slot as usize))
            .collect();
        for (slot, service) in (layout.view.first_service..).zip(&layout.services) {
            let place = |service: &Service| (service.address, service.port, service.transport);
            let same = before.iter().find(|before| place(before) == place(service));
            let connection_seen_ns = same.map_or(0, |same| same.connection_seen_ns);
            let measured = same.map_or(0, |same| same.measured);
            maps.services.store(slot as usize, &Service { connection_seen_ns, measured, ..*service });
        }
        self.replaced = replaced(maps, &layout);
        for tenant in &layout.tenants {
            let id = tenant.id as usize;
            if tenant.fresh {
                maps.tenants.store(id, &Tenant::default());
                maps.tenant_lines.store(id, &TenantLine::default());
                maps.clear_tenant_counters(id);
                self.demand.forget(tenant.id);
            }
            maps.tenants.store_at(id, offset_of!(Tenant, name), &tenant.name);
        }
        maps.write_ports(layout.view.ports_shift, &layout.ports);
        self.view = layout.view;
        self.rules = rules;
        self.sweep_in = Some(2);
        let before: HashMap<u32, Part> =
            self.tenants.iter().map(|tenant| tenant.id).zip(self.rates.drain(..)).collect();
        let rate = |tenant: &super::layout::Tenant| {
            let before = before.get(&tenant.id).filter(|_| !tenant.fresh);
            before.copied().unwrap_or(Part::whole(tenant.state.quota.rate))
        };
        self.rates = layout.tenants.iter().map(rate).collect();
        let active = |tenant: &super::layout::Tenant| {
            let &super::layout::Tenant { id, has_members, state: base, .. } = tenant;
            ActiveTenant { id, has_members, base }
        };
        self.tenants = layout.tenants.iter().map(active).collect();
        let snapshot = |tenant: &ActiveTenant| TenantSnapshot {
            has_members: tenant.has_members,
            ..TenantSnapshot::default()
        };
        self.snapshots = self.tenants.iter().map(snapshot).collect();
        self.states = self.tenants.iter().map(|tenant| tenant.base).collect();
        let unknown =
            || Written { tenants: vec![None; self.tenants.len()], services: vec![None; self.slots.len()] };
        self.written = [unknown(), unknown()];
        self.share(self.shared.as_ref().map(|shared| shared.book().clone()));
        Ok(())
    }

    /// Shares the limits of tenants with other gates from now on, by this book, or no longer.
    pub fn share(&mut self, book: Option<SharedBook>) {
        let tenants = || -> Vec<_> {
            let named =
                |tenant: &ActiveTenant| (tenant.id, self.maps.tenant_name(tenant.id), tenant.base.parents);
            self.tenants.iter().map(named).collect()
        };
        self.shared = book.map(|book| SharedLimits::new(book, &self.maps, &tenants()));
        if self.shared.is_none() {
            self.snapshots.iter_mut().for_each(|snapshot| snapshot.grant = None);
        }
    }

    /// One tick at `now`, on gate's clock, with what is known of the services: returns the generation that it
    /// put in force.
    ///
    /// # Errors
    ///
    /// [`Lost`].
    pub fn tick(&mut self, now: Nanos, services: &[ServiceSnapshot]) -> Result<u64, Lost> {
        self.owned()?;
        self.observe();
        if let Some(shared) = &mut self.shared {
            shared.exchange(&self.maps, &self.demand, now, &mut self.snapshots);
        }
        let interval = now.saturating_sub(self.last.replace(now).unwrap_or(now));
        for (state, tenant) in self.states.iter_mut().zip(&self.tenants) {
            *state = tenant.base;
        }
        let snapshot = Snapshot { now, interval, tenants: &self.snapshots, services };
        self.transitions = decide(&self.rules, &snapshot, &mut self.memory, &mut self.states);
        let generation = self.maps.generation().wrapping_add(1);
        self.change_rates(now, Change::Slower);
        self.apply(generation);
        self.change_rates(now, Change::Faster);
        self.disown();
        if let Some(left) = self.sweep_in.take() {
            match left.checked_sub(1) {
                Some(left) => self.sweep_in = Some(left),
                None => self.sweep(),
            }
        }
        Ok(generation)
    }

    /// True if XDP may still judge by anything but the present configuration.
    #[must_use]
    pub fn stabilising(&self) -> bool {
        self.sweep_in.is_some()
    }

    /// True while a service sheds anything.
    #[must_use]
    pub fn is_overloaded(&self, service: usize) -> bool {
        self.memory.is_overloaded(service)
    }

    /// The expected time of a service's classes of requests, in thousandths of a reference read, if its prices
    /// learn.
    #[must_use]
    pub fn expected(&self, service: usize) -> Option<&ByClass<u32>> {
        self.memory.pricing(service).map(Pricing::expected)
    }

    /// The measure for a service's requests once they are answered, if that is charged and can be known.
    #[must_use]
    pub fn measure(&self, service: usize) -> Option<Measure> {
        let settles = self.rules.learning.get(service)?.as_ref()?.settles;
        self.memory.pricing(service).filter(|_| settles)?.measure()
    }

    /// Adds to what was observed of the services what is done about it.
    #[must_use]
    pub fn report(&self, generation: u64, mut services: Vec<ServiceReport>) -> Report {
        for (place, service) in services.iter_mut().enumerate() {
            let shedding = self.memory.shedding.get(place).and_then(Option::as_ref);
            service.phase = match service.shares_cut {
                true => Some("sharing"),
                false => shedding.map(|shedding| shedding.phase().name()),
            };
            let shed = self.memory.shed(place);
            let is_had = |tier: &Tier| self.is_had(place, *tier);
            service.rungs = Tier::ALL.map(|tier| if is_had(&tier) { shed.rung(tier as u8) } else { 0 });
            service.treated_for = Tier::ALL.map(|tier| shedding.filter(|_| is_had(&tier))?.treated_for(tier));
            if let Some((_, base)) = self.slots.iter().find(|(of, _)| *of == place) {
                let ServiceState { base_mru, row_mru, kib_mru, latency_mru, .. } =
                    self.memory.state(place, *base);
                let learned = self.memory.pricing(place).map(|pricing| LearnedReport {
                    of_latency_mru: pricing.of_latency().0,
                    reference_ns: pricing.reference().map(|reference| reference.0),
                });
                service.prices = PriceReport { base_mru, row_mru, kib_mru, latency_mru, learned };
            }
        }
        Report { generation, services, ..Report::default() }
    }

    /// Logs what the last tick has changed about what is shed; `observed` is what was seen of each service.
    pub fn log_transitions(&self, observed: impl FnOnce() -> Vec<ServiceReport>) {
        if self.transitions.is_empty() {
            return;
        }
        let observed = observed();
        for (place, change) in
            self.transitions.iter().filter(|(place, change)| self.is_had(*place, change.tier))
        {
            let service = self.service_names.get(*place).map_or("?", Name::as_str);
            let words = in_words(service, change, observed.get(*place));
            match (change.from, change.to) {
                (_, Treatment::Refused) => tracing::warn!("{words}"),
                // The way between the two is many steps.
                (Treatment::Dearer(_), Treatment::Dearer(_)) => tracing::debug!("{words}"),
                (_, Treatment::Normal | Treatment::Dearer(_)) => tracing::info!("{words}"),
            }
        }
    }

    /// True if requests to a service may have a tier: nobody notices what is done about another.
    fn is_had(&self, service: usize, tier: Tier) -> bool {
        self.rules.tiers.get(service).is_none_or(|tiers| tiers[tier.index()])
    }

    /// The shedding of each service under new rules: as before where they are the same, else none.
    fn shedding(&self, names: &[Name], rules: &Rules) -> Result<Vec<Option<Shedding>>, OutOfRange> {
        let of = |(name, settings): (&Name, &Option<_>)| {
            let Some(settings) = settings else { return Ok(None) };
            let before = self.service_names.iter().position(|before| before == name);
            let before = before.and_then(|place| self.memory.shedding.get(place)?.clone());
            match before.filter(|before| before.settings() == settings) {
                Some(before) => Ok(Some(before)),
                None => Shedding::new(*settings).map(Some),
            }
        };
        names.iter().zip(&rules.shedding).map(of).collect()
    }

    /// The learned prices of each service under new rules: as before where they are the same, else none.
    fn pricing(&self, names: &[Name], rules: &Rules) -> Result<Vec<Option<Pricing>>, OutOfRange> {
        let of = |(name, learning): (&Name, &Option<_>)| {
            let Some(Learning { pricing: settings, .. }) = learning else { return Ok(None) };
            let before = self.service_names.iter().position(|before| before == name);
            let before = before.and_then(|place| self.memory.pricing(place));
            match before.filter(|before| before.settings() == settings) {
                Some(before) => Ok(Some(before.clone())),
                None => Pricing::new(*settings).map(Some),
            }
        };
        names.iter().zip(&rules.learning).map(of).collect()
    }

    /// The debt of each tenant of a layout, from its debt before.
    fn debts(&self, layout: &Layout) -> Vec<DeepDebt> {
        let before: HashMap<_, _> =
            self.tenants.iter().map(|tenant| tenant.id).zip(&self.memory.debts).collect();
        let known = |tenant: &super::layout::Tenant| before.get(&tenant.id).filter(|_| !tenant.fresh);
        layout.tenants.iter().map(|tenant| known(tenant).copied().copied().unwrap_or_default()).collect()
    }

    fn owned(&self) -> Result<(), Lost> {
        if self.ownership.holds(&*self.maps) { Ok(()) } else { Err(Lost) }
    }

    fn observe(&mut self) {
        self.demand.read(&self.maps);
        for (snapshot, tenant) in self.snapshots.iter_mut().zip(&self.tenants) {
            let Since { offered_mru, asked_mru, .. } = self.demand.since(tenant.id);
            let quota_tat = self.maps.quota_tat(tenant.id as usize).load(Ordering::Relaxed);
            *snapshot = TenantSnapshot { quota_tat, offered_mru, asked_mru, ..*snapshot };
        }
    }

    /// Writes what differs into the bank of `generation`, and puts that in force.
    fn apply(&mut self, generation: u64) {
        let bank = &mut self.written[bank_of(generation)];
        let slots = self.slots.iter().zip(self.view.first_service..);
        for ((&(service, base), slot), written) in slots.zip(&mut bank.services) {
            let state = self.memory.state(service, base);
            if written.as_ref() != Some(&state) {
                *written = Some(state);
                let stamped = ServiceState { stamp: generation, ..state };
                self.maps.write_service_state(slot as usize, generation, &stamped);
            }
        }
        for ((state, tenant), written) in self.states.iter().zip(&self.tenants).zip(&mut bank.tenants) {
            if written.as_ref() != Some(state) {
                *written = Some(*state);
                let stamped = TenantState { stamp: generation, ..*state };
                self.maps.write_tenant_state(tenant.id as usize, generation, &stamped);
            }
        }
        self.maps.write_view(generation, &View { stamp: generation, ..self.view });
        self.maps.publish(generation);
    }

    /// Changes the buckets of tenants whose part of a limit has another rate from this tick on.
    fn change_rates(&mut self, now: Nanos, change: Change) {
        let tenants = self.tenants.iter().zip(&self.snapshots).zip(&self.states).zip(&mut self.rates);
        let changes = tenants.map(|(((tenant, snapshot), state), from)| {
            let to = Part { rate: state.quota.rate, is_part: snapshot.grant.is_some() };
            (tenant.id, (from, to))
        });
        Part::change(&self.maps, now, change, changes);
    }

    /// Notes what was counted at places that others have from now on.
    fn disown(&mut self) {
        for (id, places) in self.replaced.drain(..) {
            let counted = self.maps.tenant_counters(id as usize).quota_refused;
            for place in (0..2).filter(|&place| places[place]) {
                let offset = offset_of!(Tenant, refused_before) + place * size_of::<u64>();
                let bucket = [OtherBucket::FirstParent, OtherBucket::SecondParent][place];
                self.maps.tenants.store_at(id as usize, offset, &counted[bucket.index()]);
            }
        }
    }

    /// Clears what only the last configuration used.
    fn sweep(&self) {
        self.maps.write_ports(self.view.ports_shift ^ Ports::UPPER, &[]);
        let in_use: HashSet<usize> = self.tenants.iter().map(|tenant| tenant.id as usize).collect();
        for id in (1..self.maps.tenants.len()).filter(|id| !in_use.contains(id)) {
            self.maps.tenants.store_at(id, offset_of!(Tenant, name), &Name::EMPTY);
        }
    }
}

/// The services' names, in the order of the configuration.
fn service_names(layout: &Layout) -> Vec<Name> {
    let mut names = Vec::new();
    for service in &layout.services {
        let place = service.id as usize;
        names.resize(names.len().max(place + 1), Name::EMPTY);
        names[place] = service.name;
    }
    names
}

#[cfg(test)]
mod tests;
