//! Who takes a thread's connections of one service: so many are for clients that some tenant is charged for, a few
//! more for clients from unknown sources, and no tenant has all of the former.
//!
//! **Problem.** A connection costs whoever opens it nothing. **Rule.** Unknown clients count for themselves, so they
//! take no room from tenants. A tenant without a `max_connections` of its own may have half of what all may, where
//! there are others.
//!
//! **Invariants.** A client has at most one slot, and gives it back when it drops it. One that becomes another
//! tenant's takes a new one.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use foldhash::fast::RandomState;

use crate::dispatcher::tenants::ledger::TenantId;

/// One thread's slots of one service.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// By tenant, nobody included: how many are taken.
    taken: RefCell<HashMap<TenantId, Rc<Cell<usize>>, RandomState>>,
    /// Those that tenants have taken.
    known: Rc<Cell<usize>>,
}

/// One client's.
#[derive(Debug)]
pub(crate) struct Slot {
    of_tenant: Rc<Cell<usize>>,
    /// All tenants', unless it is nobody's.
    of_all: Option<Rc<Cell<usize>>>,
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

impl Slots {
    /// A slot for one more client of a tenant's; `None` if there is none.
    pub(crate) fn take(&self, tenant: TenantId, most: MostSlots) -> Option<Slot> {
        let is_known = tenant != TenantId::NOBODY;
        let limit = if is_known { most.tenant } else { most.unknown };
        if is_known && self.known.get() >= most.known {
            return None;
        }
        let mut taken = self.taken.borrow_mut();
        if taken.len() >= MANY && !taken.contains_key(&tenant) {
            taken.retain(|_, count| count.get() > 0);
        }
        let of_tenant = taken.entry(tenant).or_default();
        (of_tenant.get() < limit).then(|| Slot::new(of_tenant, is_known.then_some(&self.known)))
    }

    #[cfg(test)]
    fn taken_by(&self, tenant: TenantId) -> usize {
        self.taken.borrow().get(&tenant).map_or(0, |count| count.get())
    }
}

impl Slot {
    fn new(of_tenant: &Rc<Cell<usize>>, of_all: Option<&Rc<Cell<usize>>>) -> Self {
        let this = Self { of_tenant: Rc::clone(of_tenant), of_all: of_all.cloned() };
        this.counts().for_each(|count| count.set(count.get() + 1));
        this
    }

    fn counts(&self) -> impl Iterator<Item = &Cell<usize>> {
        std::iter::once(&*self.of_tenant).chain(self.of_all.as_deref())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.counts().for_each(|count| count.set(count.get() - 1));
    }
}

/// Tenants that are remembered though they have no client.
const MANY: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: MostSlots = MostSlots { unknown: 2, known: 4, tenant: 3 };

    #[test]
    fn the_unknown_take_nothing_from_tenants_and_no_tenant_takes_all() {
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
        assert!((0..3).all(|tenant| slots.taken_by(TenantId(tenant)) == 0) && slots.known.get() == 0);
    }
}
