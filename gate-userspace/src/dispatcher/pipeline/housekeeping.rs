//! The service's periodic work: timeouts, ticks, changed tenants and limits, and the clients' memory budget.

use std::cmp::Reverse;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use gate_common::units::Nanos;

use super::service::{Service, Session};
use crate::dispatcher::clients::memory_budget::MemoryLimits;
use crate::dispatcher::wire::Wire;

impl<W: Wire> Service<W> {
    /// The work of every 10 ms.
    pub(crate) fn housekeeping(&self, now: Nanos) {
        let timeout = self.settings.store_timeout();
        let states = &self.service_metrics.stores;
        self.pools.check(now, |node| (self.settings.silence_limits(node), &*states[node.index()]));
        self.hot.housekeeping(now, timeout);
        self.expire(now);
        self.memory.poll();
        self.release_held();
        self.dispatch(now);
        self.admission.return_permits();
        self.flush_pending();
    }

    /// The work of every tick.
    pub(crate) fn tick(&self, now: Nanos) {
        self.admission.tick(self.is_first, now);
        let change = self.follower.last();
        self.refresh_limits();
        *self.types.borrow_mut() = self.settings.types.borrow().clone();
        self.refresh_tenants();
        self.memory.set_limits(MemoryLimits::of(&self.limits.get(), self.tenants.borrow().are_several()));
        self.local_addrs.borrow_mut().clone_from(&self.settings.local_addrs.borrow());
        self.follower.has_taken_over(change);
    }

    /// Takes over what has changed about tenants. A client may be another's from now on, or nobody's.
    fn refresh_tenants(&self) {
        let tenants = self.settings.tenants.borrow().clone();
        if Arc::ptr_eq(&tenants, &self.tenants.borrow()) {
            return;
        }
        self.admission.set_tenants(&tenants);
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
    /// are stuck. Those that share a bucket, since there was no room for one of their own, may have one by now.
    pub(crate) fn release(&self, interval: Duration) {
        let limits = self.limits.get();
        self.clients.borrow_mut().retain(|client| {
            let client = client.upgrade();
            let looked_after = client.inspect(|client| {
                client.check_timeout(interval, &limits);
                client.seek_member(self);
            });
            looked_after.is_some()
        });
        self.senders.borrow_mut().release();
        self.memory.release();
    }

    /// Closes clients if all hold more than they may, and those of a tenant that holds more than its share.
    pub(crate) fn close_clients_over_budget(&self) {
        // Where other threads hold more, there is nothing to do here.
        if !self.memory.is_exceeded() || self.memory.tenant_excesses().is_empty() && self.memory.excess() == 0
        {
            return;
        }
        let mut clients: Vec<_> = self.clients.borrow().iter().filter_map(Weak::upgrade).collect();
        clients.iter().for_each(|client| client.release());
        // Who holds little is not to blame.
        clients.sort_unstable_by_key(|client| {
            let bytes = client.memory_share.bytes();
            Reverse((bytes > LITTLE, client.stuck_for(), bytes))
        });
        let mut closed = 0;
        for (tenant, excess) in self.memory.tenant_excesses() {
            let of_tenant = clients.iter().filter(|client| client.tenant.get() == tenant);
            closed += close_for(excess, of_tenant);
        }
        closed += close_for(self.memory.excess(), clients.iter());
        if closed > 0 {
            let service = &self.settings.name;
            tracing::warn!(
                service,
                closed,
                "clients held more than client_memory or tenant_memory allows, and some are closed"
            );
        }
    }
}

/// Closes so many of `clients`, the first first, that so many bytes are freed. Returns how many.
fn close_for<'c, W: Wire>(bytes: usize, clients: impl Iterator<Item = &'c Rc<Session<W>>> + Clone) -> usize {
    // What those hold that are closed already is as good as free.
    let gone = clients.clone().filter(|client| client.is_gone());
    let mut left = bytes.saturating_sub(gone.map(|client| client.memory_share.bytes()).sum());
    let mut closed = 0;
    for client in clients.filter(|client| !client.is_gone() && client.memory_share.bytes() > 0) {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(client.memory_share.bytes());
        client.close_stuck();
        closed += 1;
    }
    closed
}

/// The bytes that a client may hold before those that hold more are closed.
const LITTLE: usize = 256 << 10;
