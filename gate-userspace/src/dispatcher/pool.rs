//! The connections to the store that clients of one identity share.

use std::cell::Cell;
use std::rc::Rc;

use super::health::Health;
use super::store::Store;
use super::wire::Wire;

/// Some connections to the store, over which many clients' requests go.
#[derive(Debug)]
pub(super) struct Pool<W: Wire> {
    id: PoolId,
    may_cache: Cell<bool>,
    stores: Vec<Rc<Store<W>>>,
}

/// One of a thread's pools for a service. No number is used again: what is kept of a pool by its number can
/// never become another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PoolId(pub(super) u32);

impl<W: Wire> Pool<W> {
    /// A pool of so many connections, at least one.
    pub(super) fn new(id: PoolId, connections: usize) -> Self {
        let stores = (0..connections.max(1)).map(|_| Rc::new(Store::new(Health::new()))).collect();
        Self { id, may_cache: Cell::new(true), stores }
    }

    /// Which one it is.
    #[allow(dead_code, reason = "what is cached by pool asks for it")]
    pub(super) fn id(&self) -> PoolId {
        self.id
    }

    /// Whether its clients may be given what the store has answered another of them: they may read
    /// everything.
    #[allow(dead_code, reason = "what is cached by pool asks for it")]
    pub(super) fn may_cache(&self) -> bool {
        self.may_cache.get()
    }

    /// All of them.
    pub(super) fn stores(&self) -> &[Rc<Store<W>>] {
        &self.stores
    }

    /// The one for clients on a lane.
    #[inline]
    pub(super) fn store(&self, lane: usize) -> Rc<Store<W>> {
        Rc::clone(&self.stores[lane % self.stores.len()])
    }
}
