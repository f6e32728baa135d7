//! The connections to the store that clients of one identity share.

use std::rc::Rc;

use super::health::Health;
use super::store::Store;
use super::wire::Wire;

/// Some connections to the store, over which many clients' requests go.
#[derive(Debug)]
pub(super) struct Pool<W: Wire> {
    stores: Vec<Rc<Store<W>>>,
}

impl<W: Wire> Pool<W> {
    /// A pool of so many connections, at least one.
    pub(super) fn new(connections: usize) -> Self {
        Self { stores: (0..connections.max(1)).map(|_| Rc::new(Store::new(Health::new()))).collect() }
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
