//! The service's periodic work: timeouts, ticks, changed tenants and limits, and the clients' memory budget.

use std::cmp::Reverse;
use std::rc::Weak;
use std::sync::Arc;
use std::time::Duration;

use gate_common::units::Nanos;

use super::service::Service;
use crate::dispatcher::wire::Wire;

impl<W: Wire> Service<W> {
    /// The work of every 10 ms.
    pub(crate) fn housekeeping(&self, now: Nanos) {
        let timeout = self.settings.store_timeout();
        self.pools.check(now, timeout, self.limits.get().slow_timeout);
        self.hot.housekeeping(now, timeout);
        self.expire(now);
        self.dispatch(now);
        self.admission.return_permits();
        self.flush_pending();
    }

    /// The work of every tick.
    pub(crate) fn tick(&self, now: Nanos) {
        self.admission.tick(self.is_first, now);
        self.refresh_limits();
        *self.types.borrow_mut() = self.settings.types.borrow().clone();
        self.refresh_tenants();
        self.own.borrow_mut().clone_from(&self.settings.own.borrow());
    }

    /// Takes over what has changed about tenants. A client may be another's from now on, or nobody's.
    fn refresh_tenants(&self) {
        let tenants = self.settings.tenants.borrow().clone();
        if Arc::ptr_eq(&tenants, &self.tenants.borrow()) {
            return;
        }
        *self.tenants.borrow_mut() = tenants;
        for client in
            self.clients.borrow().iter().filter_map(Weak::upgrade).filter(|client| !client.is_gone())
        {
            client.identify_again(self);
        }
        self.flush_pending();
    }

    /// Takes over limits that have changed.
    fn refresh_limits(&self) {
        let limits = *self.settings.limits.borrow();
        let before = self.limits.replace(limits);
        self.admission.set_limits(&limits, &before);
    }

    /// Looks after clients that nothing has happened to for `interval`: gives back memory, and ends those that
    /// are stuck.
    pub(crate) fn release(&self, interval: Duration) {
        let limits = self.limits.get();
        self.clients.borrow_mut().retain(|client| {
            let client = client.upgrade();
            client.inspect(|client| client.check_timeout(interval, &limits)).is_some()
        });
        self.senders.borrow_mut().release();
    }

    /// Closes clients if all hold more than they may.
    pub(crate) fn close_clients_over_budget(&self) {
        let limit = self.limits.get().client_memory;
        if self.memory.bytes() <= limit {
            return;
        }
        let mut clients: Vec<_> = self.clients.borrow().iter().filter_map(Weak::upgrade).collect();
        clients.iter().for_each(|client| client.release());
        // What those hold that are closed already is as good as free.
        let closing: usize =
            clients.iter().filter(|client| client.is_gone()).map(|client| client.memory_share.bytes()).sum();
        let mut left = self.memory.bytes() - closing;
        clients.retain(|client| !client.is_gone() && client.memory_share.bytes() > 0);
        // Who holds little is not to blame.
        clients.sort_unstable_by_key(|client| {
            let bytes = client.memory_share.bytes();
            Reverse((bytes > LITTLE, client.stuck_for(), bytes))
        });
        let enough = limit - limit / 8;
        let mut closed = 0_usize;
        for client in clients {
            if left <= enough {
                break;
            }
            left -= client.memory_share.bytes();
            client.close_stuck();
            closed += 1;
        }
        if closed > 0 {
            let service = &self.settings.name;
            tracing::warn!(service, closed, "clients held more than client_memory, and some are closed");
        }
    }
}

/// What a client may hold before those that hold more are closed.
const LITTLE: usize = 256 << 10;
