//! The connections of a pool are made: to each store, and to the nodes of a cluster as they are found.

use std::rc::Rc;

use super::Pool;
use crate::dispatcher::stores::events::StoreEvents;

impl<E: StoreEvents> Pool<E> {
    /// Connects, and keeps connected.
    pub(crate) fn start(self: &Rc<Self>, events: &Rc<E>) {
        let Some(cluster) = &events.settings().cluster else {
            return self.run(0, events);
        };
        let mut used = cluster.used();
        self.use_first(*used.borrow_and_update(), events);
        let this = Rc::downgrade(self);
        let events = Rc::clone(events);
        let following = async move {
            while used.changed().await.is_ok() {
                let Some(this) = this.upgrade() else { return };
                this.use_first(*used.borrow_and_update(), &events);
            }
        };
        self.tasks.borrow_mut().push(tokio::task::spawn_local(following).abort_handle());
    }

    /// There are so many nodes of a cluster now.
    fn use_first(&self, count: usize, events: &Rc<E>) {
        let before = self.used.replace(count);
        self.run(before, events);
    }

    /// Runs the connections to all stores that are in use but so many.
    fn run(&self, before: usize, events: &Rc<E>) {
        for store in &self.stores[before * self.lanes..self.used.get() * self.lanes] {
            let running = Rc::clone(store).run(Rc::downgrade(&self.identity), Rc::clone(events));
            self.tasks.borrow_mut().push(tokio::task::spawn_local(running).abort_handle());
        }
    }
}
