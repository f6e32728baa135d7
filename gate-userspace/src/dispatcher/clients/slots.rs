//! Slots for the connections of one service, and for its datagrams, in all threads. Of connections most are for clients of tenants, a few more for clients
//! from unknown sources, and no tenant has all of the former.
//!
//! **Problem.** A connection costs its client nothing. **Rule.** Unknown clients count for themselves, so they take no
//! room from tenants. A tenant without a `max_connections` of its own may have half of what all may, if there are other
//! tenants.
//!
//! **Invariants.** A client has at most one slot, and gives it back when it drops it. One that becomes another
//! tenant's takes a new one. The lock is held for a look-up, when a client comes or becomes another tenant's.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;

use crate::dispatcher::settings::Limits;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::tenants::usage::Usage;

/// The slots of one service.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// How many are taken, by tenant.
    taken: TenantCounts,
    /// Those that tenants have taken.
    known: Arc<AtomicUsize>,
}

/// The slots of one service that one tenant's clients may take: they need no look-up.
#[derive(Clone, Debug)]
pub(crate) struct TenantSlots {
    taken: Arc<AtomicUsize>,
    /// All tenants', unless it is nobody's.
    of_all: Option<Arc<AtomicUsize>>,
}

/// Counts by tenant, nobody included, that all threads share.
#[derive(Debug, Default)]
pub(super) struct TenantCounts(Mutex<HashMap<TenantId, Arc<AtomicUsize>, RandomState>>);

/// One client's.
#[derive(Debug)]
pub(crate) struct Slot {
    of_tenant: Arc<AtomicUsize>,
    /// All tenants', unless it is nobody's.
    of_all: Option<Arc<AtomicUsize>>,
}

/// How many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MostSlots {
    /// For clients that nobody is charged for.
    pub(crate) unknown: usize,
    /// For all tenants' clients.
    pub(crate) known: usize,
    /// For one tenant's.
    pub(crate) tenant: usize,
}

impl MostSlots {
    /// Those of a service for a tenant with this `usage`, which may be one of several.
    pub(crate) fn of(limits: &Limits, usage: Option<&Usage>, are_several: bool) -> Self {
        let may_have_all = usage.is_some_and(Usage::has_own_limit) || !are_several;
        let tenant = if may_have_all { limits.max_clients } else { limits.tenant_clients };
        Self { unknown: limits.max_unknown_clients, known: limits.max_clients, tenant }
    }
}

impl Slots {
    /// A slot for one more client of a tenant's; `None` if there is none.
    pub(crate) fn take(&self, tenant: TenantId, most: MostSlots) -> Option<Slot> {
        self.of_tenant(tenant).take(most)
    }

    /// Those that a tenant's clients may take.
    pub(crate) fn of_tenant(&self, tenant: TenantId) -> TenantSlots {
        let of_all = (tenant != TenantId::UNKNOWN).then(|| Arc::clone(&self.known));
        TenantSlots { taken: self.taken.of(tenant), of_all }
    }

    #[cfg(test)]
    fn taken_by(&self, tenant: TenantId) -> usize {
        self.taken.of(tenant).load(Ordering::Relaxed)
    }
}

impl TenantSlots {
    /// A slot for one more client; `None` if there is none.
    pub(crate) fn take(&self, most: MostSlots) -> Option<Slot> {
        let Self { taken: of_tenant, of_all } = self.clone();
        let limit = if of_all.is_some() { most.tenant } else { most.unknown };
        if !take(&of_tenant, limit) {
            return None;
        }
        if of_all.as_deref().is_some_and(|all| !take(all, most.known)) {
            of_tenant.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Slot { of_tenant, of_all })
    }
}

/// Slots for the datagrams of one service that may be under way, in all threads; as one thread has them.
#[derive(Debug)]
pub(crate) struct DatagramSlots {
    taken: Arc<AtomicUsize>,
    limit: usize,
}

/// One datagram's; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct DatagramSlot(Rc<DatagramSlots>);

impl DatagramSlots {
    /// So many, with those that are `taken`.
    pub(crate) fn new(taken: Arc<AtomicUsize>, limit: usize) -> Self {
        Self { taken, limit }
    }

    /// The number of all.
    #[inline]
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// A slot for one more datagram; `None` if there is none.
    #[inline]
    pub(crate) fn take(self: &Rc<Self>) -> Option<DatagramSlot> {
        take(&self.taken, self.limit).then(|| DatagramSlot(Rc::clone(self)))
    }
}

impl Drop for DatagramSlot {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TenantCounts {
    /// A tenant's. The lock is held for the look-up.
    pub(super) fn of(&self, tenant: TenantId) -> Arc<AtomicUsize> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MANY && !counts.contains_key(&tenant) {
            // Whoever has counted something, or is about to, refers to its count.
            counts.retain(|_, count| Arc::strong_count(count) > 1);
        }
        Arc::clone(counts.entry(tenant).or_default())
    }
}

/// One more, unless that would be more than `limit`.
fn take(count: &AtomicUsize, limit: usize) -> bool {
    let below = |count| (count < limit).then_some(count + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).is_ok()
}

impl Drop for Slot {
    fn drop(&mut self) {
        for count in std::iter::once(&*self.of_tenant).chain(self.of_all.as_deref()) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Tenants that are remembered though they have no client.
const MANY: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: MostSlots = MostSlots { unknown: 2, known: 4, tenant: 3 };

    #[test]
    fn one_thread_may_take_all_slots_for_datagrams() {
        let taken = Arc::<AtomicUsize>::default();
        let [one, other] = [(); 2].map(|()| Rc::new(DatagramSlots::new(Arc::clone(&taken), 3)));
        let mut all: Vec<_> = (0..3).map(|_| one.take().unwrap()).collect();
        assert!(one.take().is_none() && other.take().is_none());
        all.pop();
        let of_other = other.take();
        assert!(of_other.is_some() && one.take().is_none());
        drop((all, of_other));
        assert_eq!(taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn unknown_sources_take_no_tenants_slots_nor_one_tenant_all() {
        let slots = Slots::default();
        let take = |tenant: u32| slots.take(TenantId(tenant), MOST);
        let unknown = [take(0), take(0)];
        assert!(unknown.iter().all(Option::is_some) && take(0).is_none());
        let mut greedy = vec![take(1), take(1), take(1)];
        assert!(greedy.iter().all(Option::is_some) && take(1).is_none());
        let other = take(2);
        assert!(other.is_some() && take(2).is_none(), "there are four for tenants");
        greedy.pop();
        assert!(take(2).is_some() && slots.taken_by(TenantId(2)) == 1, "a slot that is dropped is free");
        drop((unknown, greedy, other));
        assert!(
            (0..3).all(|tenant| slots.taken_by(TenantId(tenant)) == 0)
                && slots.known.load(Ordering::Relaxed) == 0
        );
    }
}
