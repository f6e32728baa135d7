//! Shares of the counters: a bound on what one tenant or one service displaces.
//!
//! A tenant with a quarter of the counters, or a service with half of them, displaces only keys of its own. A counter is its
//! service's, and the tenant's that asks for the key most (Boyer and Moore's majority vote). A group may take more than its
//! share while there is room: it keeps what it has until others need it.

use std::collections::HashMap;

use super::counter::Counter;

/// The counters of each tenant and each service.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    of_tenant: usize,
    of_service: usize,
    groups: HashMap<Group, Holding>,
}

/// Counters that share a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Group {
    Tenant(u32),
    Service(u32),
}

/// The counters of one group.
#[derive(Clone, Debug, Default)]
struct Holding {
    counters: usize,
    /// The smallest ones at the last look, the smallest last: counts and numbers.
    smallest: Vec<(u64, u32)>,
}

impl Shares {
    /// Shares of `capacity` counters.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            of_tenant: (capacity / 4).max(1),
            of_service: (capacity / 2).max(1),
            groups: HashMap::with_capacity(2 * capacity),
        }
    }

    /// Adds a counter of `tenant` and `service`.
    pub(super) fn add(&mut self, tenant: u32, service: u32) {
        for group in [Group::Tenant(tenant), Group::Service(service)] {
            self.groups.entry(group).or_default().counters += 1;
        }
    }

    /// Takes a counter of `tenant` and `service` away.
    pub(super) fn remove(&mut self, tenant: u32, service: u32) {
        for group in [Group::Tenant(tenant), Group::Service(service)] {
            if let Some(holding) = self.groups.get_mut(&group) {
                holding.counters -= 1;
                if holding.counters == 0 {
                    self.groups.remove(&group);
                }
            }
        }
    }

    /// Recounts, after counters were removed or renumbered.
    pub(super) fn rebuild(&mut self, counters: &[Counter]) {
        self.groups.clear();
        counters.iter().for_each(|counter| self.add(counter.tenant, counter.scope));
    }

    /// Drops what is known of counts, after all of them changed.
    pub(super) fn on_decay(&mut self) {
        self.groups.values_mut().for_each(|holding| holding.smallest.clear());
    }

    /// The group within which a new key of `tenant` and `service` has to displace another; `None` if it may displace any.
    pub(super) fn confined_to(&self, tenant: u32, service: u32, counters: usize) -> Option<Group> {
        let groups = [(Group::Tenant(tenant), self.of_tenant), (Group::Service(service), self.of_service)];
        groups.into_iter().find_map(|(group, share)| {
            let counted = self.groups.get(&group)?.counters;
            // A group that holds every counter displaces its own keys in any case.
            (counted >= share && counted < counters).then_some(group)
        })
    }

    /// A counter of the group, among the smallest [`AT_ONCE`] at the last look.
    pub(super) fn smallest_of(&mut self, group: Group, counters: &[Counter]) -> Option<u32> {
        let holding = self.groups.get_mut(&group)?;
        while let Some((count, number)) = holding.smallest.pop() {
            let counter = &counters[number as usize];
            if counter.count == count && group.holds(counter) {
                return Some(number);
            }
        }
        holding.look(group, counters);
        holding.smallest.pop().map(|(_, number)| number)
    }
}

impl Holding {
    #[cold]
    fn look(&mut self, group: Group, counters: &[Counter]) {
        let of_group = counters.iter().enumerate().filter(|(_, counter)| group.holds(counter));
        self.smallest.extend(of_group.map(|(number, counter)| (counter.count, number as u32)));
        if self.smallest.len() > AT_ONCE {
            self.smallest.select_nth_unstable(AT_ONCE);
            self.smallest.truncate(AT_ONCE);
        }
        self.smallest.sort_unstable_by(|a, b| b.cmp(a));
    }
}

impl Group {
    fn holds(self, counter: &Counter) -> bool {
        match self {
            Self::Tenant(tenant) => counter.tenant == tenant,
            Self::Service(service) => counter.scope == service,
        }
    }
}

/// Counters found by one look at all of them, so that a look is rare.
const AT_ONCE: usize = 64;
