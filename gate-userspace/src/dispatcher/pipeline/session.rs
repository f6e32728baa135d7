//! A client in the pipeline: bound to a pool of store connections, and to the service's tenants.

use std::cell::{Cell, Ref, RefCell};
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::clients::client::{Client, ClientParts, CloseCause, ReplySink};
use crate::dispatcher::clients::conversation::ConnectionMode;
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::hot_cache::CacheClient;
use crate::dispatcher::hot_cache::key_order::KeyOrder;
use crate::dispatcher::identity::Login;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::stores::connection::StoreConnection;
use crate::dispatcher::stores::pool::Pool;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::tenants::membership::{Lookup, MemberOf};
use crate::dispatcher::tenants::usage::UsageGuard;
use crate::dispatcher::wire::Wire;

impl<W: Wire> Deref for Session<W> {
    type Target = Client<W>;

    #[inline]
    fn deref(&self) -> &Client<W> {
        &self.client
    }
}

impl<W: Wire> CacheClient for Session<W> {
    #[inline]
    fn key_order(&self) -> &KeyOrder {
        &self.client.order
    }

    #[inline]
    fn is_datagram(&self) -> bool {
        self.client.datagram().is_some()
    }

    #[inline]
    fn scope(&self) -> u64 {
        self.pool.borrow().identity().scope()
    }

    #[inline]
    fn shared_scope(&self) -> Option<u64> {
        self.pool.borrow().identity().shares()
    }
}

impl<W: Wire> Session<W> {
    pub(crate) fn new(sink: ReplySink, source: IpAddr, service: &Service<W>) -> Self {
        let (tenant, shadow) = service.tenant_of_client(source);
        let tenants = service.tenants.borrow();
        let ledger = service.ledger.borrow();
        let source_tenant = match sink {
            ReplySink::Stream(_) | ReplySink::Nowhere => ledger.tenant_of_source(source),
            ReplySink::Datagram(_) => TenantId::UNKNOWN,
        };
        let lookup = lookup_for(&sink);
        let now = ledger.at(clock::monotonic());
        let parts = ClientParts {
            tenant,
            member: tenants.member(tenant, MemberOf { id: None, source }, lookup, (&ledger, now)),
            source_tenant,
            shadow,
            restrictions: tenants.restrictions(tenant, &ledger),
            tenant_parts: tenants.parts(tenant, &ledger),
            decoder: W::decoder(service.settings.max_request()),
            memory: &service.memory,
        };
        Self {
            client: Client::new(sink, source, parts),
            pool: RefCell::new(service.pools.first()),
            connection_index: Cell::new(0),
            slots_epoch: Cell::new(0),
            streaming: RefCell::new(None),
            first_dedicated: RefCell::new(None),
            dedicated_slots: RefCell::new(None),
            dedicated_slot: RefCell::new(None),
            size_question: Cell::default(),
            granted: Cell::new(None),
        }
    }

    /// The shared store connections that its requests may take.
    pub(crate) fn pool(&self) -> Ref<'_, Pool<Service<W>>> {
        Ref::map(self.pool.borrow(), |pool| &**pool)
    }

    /// The shared connection that its requests to a store take.
    #[inline]
    pub(crate) fn store(&self, node: NodeId) -> Rc<StoreConnection<Service<W>>> {
        self.pool.borrow().store(node, self.connection_index.get())
    }

    /// Lets its connections be read that waited for it.
    pub(crate) fn resume_stores(&self) {
        self.pool.borrow().lane(self.connection_index.get()).for_each(|store| store.resume());
    }

    /// Chooses the store connection of its next requests. None of its requests may be outstanding.
    #[inline]
    pub(crate) fn choose_connection(&self, now: Nanos) {
        self.awaits_lane.set(false);
        self.connection_index.set(self.pool.borrow().connection_index(now));
    }

    /// Chooses anew for a request that has waited in the queue, if the store has nothing else of the client: the connection that was
    /// right when it came may be full by now.
    pub(crate) fn choose_connection_again(self: &Rc<Self>, now: Nanos) {
        let pool = self.pool.borrow();
        let mut lane = pool.lane(self.connection_index.get());
        let is_free = !lane.any(|store| store.may_have(|request| Rc::ptr_eq(&request.client, self)));
        if pool.used() == 1 && is_free {
            self.connection_index.set(pool.connection_index(now));
        }
    }

    /// Its next request is slow by kind: it takes the connection for such, so that others do not wait for it. False while
    /// requests of its are on another, since the store receives them in their order.
    pub(crate) fn use_slow_lane(&self, replies: &Replies) -> bool {
        let slow = self.pool.borrow().slow_index();
        let waits =
            self.connection_index.get() != slow && replies.outstanding() > 0 && self.datagram().is_none();
        self.awaits_lane.set(waits);
        if !waits {
            self.connection_index.set(slow);
        }
        !waits
    }

    /// From now on its requests take these.
    pub(crate) fn use_pool(&self, pool: Rc<Pool<Service<W>>>) {
        *self.pool.borrow_mut() = pool;
    }

    /// True if its requests take this pool's connections.
    pub(crate) fn uses_pool(&self, pool: &Rc<Pool<Service<W>>>) -> bool {
        Rc::ptr_eq(&self.pool.borrow(), pool)
    }

    /// From now on this tenant is charged.
    pub(crate) fn set_tenant(&self, tenant: TenantId, service: &Service<W>) {
        self.tenant.set(tenant);
        self.quiet.set(Duration::ZERO);
        if !self.acquire_connection(service) {
            self.respond(&service.refuse_connection(self));
            self.conversation.borrow_mut().closing = true;
        }
        self.refresh_tenant(service);
    }

    /// The tenants are others now: it is whose a client would be that came from its source and logged in as it has.
    pub(crate) fn identify_again(self: &Rc<Self>, service: &Service<W>) {
        let (by_source, _) = service.tenant_of_client(self.source);
        let tenant = {
            let ledger = service.ledger.borrow();
            let user = self.user.borrow();
            self.source_tenant.set(ledger.tenant_of_source(self.source));
            let by_user = user.as_ref().and_then(|login| service.tenants.borrow().of_user(login, &ledger));
            by_user.unwrap_or(by_source)
        };
        if tenant != self.tenant.get() {
            self.tenant.set(tenant);
            self.quiet.set(Duration::ZERO);
            if !self.acquire_connection(service) {
                self.close_with(&service.refuse_connection(self));
                service.mark_pending_write(self);
                if self.conversation.borrow().next_mode == ConnectionMode::Dedicated {
                    self.end(CloseCause::ClientLeft);
                }
            }
        }
        self.refresh_tenant(service);
    }

    /// Takes over the present restrictions and parts of its tenant, and which member of it the client is.
    pub(crate) fn refresh_tenant(&self, service: &Service<W>) {
        let tenants = service.tenants.borrow();
        let ledger = service.ledger.borrow();
        let now = ledger.at(clock::monotonic());
        let lookup = lookup_for(&self.sink);
        let member = {
            let user = self.user.borrow();
            let client = MemberOf { id: user.as_deref().map(Login::user), source: self.source };
            tenants.member(self.tenant.get(), client, lookup, (&ledger, now))
        };
        *self.member.borrow_mut() = member;
        *self.restrictions.borrow_mut() = tenants.restrictions(self.tenant.get(), &ledger);
        *self.parts.borrow_mut() = tenants.parts(self.tenant.get(), &ledger);
    }

    /// Has a bucket of its own, if it is a member of its tenant and there was no room for one.
    pub(crate) fn seek_member(&self, service: &Service<W>) {
        if self.member.borrow().is_none() && service.tenants.borrow().has_members(self.tenant.get()) {
            self.refresh_tenant(service);
        }
    }

    /// Takes a connection of those that there may be, and of those that its tenant may have; false if there is none.
    pub(crate) fn acquire_connection(&self, service: &Service<W>) -> bool {
        drop((self.share.take(), self.slot.take()));
        let tenant = self.tenant.get();
        self.memory_share.charge_to(tenant);
        *self.dedicated_slots.borrow_mut() = None;
        let usage = service.tenants.borrow().usage(tenant, &service.ledger.borrow());
        let most = service.most_slots(usage.as_deref());
        let slot = service.slots.take(tenant, most);
        let is_full = slot.is_none();
        *self.slot.borrow_mut() = slot;
        let has_limits = usage.is_some();
        let share = usage.and_then(UsageGuard::of_connection);
        let is_beyond = has_limits && share.is_none();
        *self.share.borrow_mut() = share;
        // Where rules are only tried, what would be refused is counted.
        !(is_full || is_beyond) || (self.shadow && !service.refuses(self, tenant, Reason::Limit))
    }
}

/// A client that is only asked about makes no member.
fn lookup_for(sink: &ReplySink) -> Lookup {
    match sink {
        ReplySink::Stream(_) | ReplySink::Datagram(_) => Lookup::Charge,
        ReplySink::Nowhere => Lookup::Ask,
    }
}
