//! A service's clients: how many there may be, what is counted of them, and which of them are closed.

use std::net::IpAddr;
use std::rc::{Rc, Weak};

use gate_common::abi::Reason;

use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::slots::MostSlots;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::stores::pool_identity::PoolIdentity;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::tenants::usage::Usage;
use crate::dispatcher::wire::Wire;
use crate::protocol::Refusal;

impl<W: Wire> Service<W> {
    /// The tenant of a source, and whether its refusals are only counted.
    pub(crate) fn tenant_of_client(&self, source: IpAddr) -> (TenantId, bool) {
        let mut ledger = self.ledger.borrow_mut();
        ledger.refresh();
        (ledger.tenant_of(source, self.settings.service), ledger.is_shadowed(source))
    }

    /// The store no longer accepts the user of a pool: so its clients read, and are closed. False if they have not
    /// said who they are, since then it is not theirs to mend.
    pub(crate) fn close_pool_clients(&self, refused: &Rc<PoolIdentity>, why: &[u8]) -> bool {
        let Some(login) = refused.identity().login else { return false };
        self.metrics.count(Event::PoolRefused);
        let user = String::from_utf8_lossy(login.user()).into_owned();
        tracing::warn!(service = self.settings.name, user, "the store no longer accepts a user");
        let Some(pool) = self.pools.remove(refused) else { return true };
        pool.stop();
        for client in self.clients.borrow().iter().filter_map(Weak::upgrade) {
            if client.uses_pool(&pool) {
                client.close_with(why);
                self.mark_pending_write(&client);
            }
        }
        let now = clock::monotonic();
        pool.stores().iter().for_each(|store| store.disconnect(self, why, now));
        self.flush_pending();
        true
    }

    /// True if there are as many clients as there may be. This holds in shadow mode too.
    pub(crate) fn is_full(&self) -> bool {
        let limits = self.limits.get();
        let connected = self.service_metrics.clients();
        let pending = self.pending_headers.count() as u64;
        connected + pending >= (limits.max_clients + limits.max_unknown_clients) as u64
    }

    /// The number of connections that there may be for clients of a tenant.
    pub(crate) fn most_slots(&self, usage: Option<&Usage>) -> MostSlots {
        MostSlots::of(&self.limits.get(), usage, self.tenants.borrow().are_several())
    }

    /// Counts a client that is one too many. Returns the reply to it.
    pub(crate) fn refuse_connection(&self, client: &Session<W>) -> Vec<u8> {
        self.metrics.count(Event::TurnedAway);
        self.admission.count_refusal(client.tenant.get(), Reason::Limit);
        let mut answer = Vec::new();
        W::refuse(Refusal::of(Reason::Limit), &mut answer);
        answer
    }

    /// Adds a client.
    pub(crate) fn register(&self, client: &Rc<Session<W>>) {
        self.metrics.count(Event::Accepted);
        self.clients.borrow_mut().push(Rc::downgrade(client));
    }

    /// Removes a client.
    pub(crate) fn unregister(&self, ended: CloseCause) {
        self.metrics.count(match ended {
            CloseCause::ClientLeft => Event::Left,
            CloseCause::SlowReader => Event::SlowReader,
            CloseCause::SlowWriter => Event::SlowWriter,
            CloseCause::StoreFailed => Event::Cut,
            CloseCause::Idle => Event::Idle,
        });
    }

    /// Notes that a client has left: its requests leave the queue soon.
    pub(crate) fn note_leaver(&self, client: &Session<W>) {
        let (waiting, _) = client.queued.get();
        self.has_leavers.set(self.has_leavers.get() || waiting > 0);
    }

    /// Closes the connections of clients that have nothing under way, and from now on those of others as soon as they have their
    /// replies: a client that reads the end of its connection right behind a reply has not asked again.
    pub(crate) fn close_idle_clients(&self) {
        self.closes_idle.set(true);
        let clients = self.clients.borrow();
        clients.iter().filter_map(Weak::upgrade).for_each(|client| client.end_if_idle());
    }
}

impl<W: Wire> Session<W> {
    /// Closes the connection if nothing is under way on it. A request that has come and not been read is under way.
    pub(crate) fn end_if_idle(&self) {
        if !self.is_gone() && self.is_idle() && !self.socket().has_unread() {
            // At once: what comes from now on is not answered.
            self.socket().close();
            self.end(CloseCause::ClientLeft);
        }
    }
}
