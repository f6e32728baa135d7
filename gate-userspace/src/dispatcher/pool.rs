//! The connections to the store that clients of one identity share.
//!
//! Clients that are the same user, on the same database, in the same protocol version share a pool. What the store
//! answers one of them it would have answered any other. A pool that no client uses is closed after a while; one
//! whose user the store no longer accepts is closed at once, and its clients with it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use gate_common::units::Nanos;
use tokio::task::AbortHandle;

use super::health::Health;
use super::identity::{Identity, Login};
use super::service::Service;
use super::store::Store;
use super::wire::Wire;

/// Some connections to the store, over which many clients' requests go.
#[derive(Debug)]
pub(super) struct Pool<W: Wire> {
    id: PoolId,
    /// Who its clients are, by the password that was accepted last.
    identity: RefCell<Identity>,
    may_cache: Cell<bool>,
    stores: Vec<Rc<Store<W>>>,
    tasks: RefCell<Vec<AbortHandle>>,
    unused_since: Cell<Option<Nanos>>,
}

/// One of a thread's pools for a service. No number is used again: what is kept of a pool by its number can
/// never become another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PoolId(pub(super) u32);

impl<W: Wire> Pool<W> {
    /// A pool of so many connections, at least one.
    fn new(id: PoolId, identity: Identity, connections: usize) -> Rc<Self> {
        let stores = (0..connections.max(1)).map(|_| Rc::new(Store::new(Health::new()))).collect();
        Rc::new(Self {
            id,
            identity: RefCell::new(Identity { name: None, ..identity }),
            may_cache: Cell::new(!W::HAS_USERS),
            stores,
            tasks: RefCell::default(),
            unused_since: Cell::new(None),
        })
    }

    /// Connects, and keeps connected.
    pub(super) fn start(self: &Rc<Self>, service: &Rc<Service<W>>) {
        for store in &self.stores {
            let keeping = Rc::clone(store).keep(Rc::downgrade(self), Rc::clone(service));
            self.tasks.borrow_mut().push(tokio::task::spawn_local(keeping).abort_handle());
        }
    }

    /// Gives up its connections.
    pub(super) fn stop(&self) {
        self.tasks.borrow_mut().drain(..).for_each(|task| task.abort());
    }

    /// Which one it is.
    pub(super) fn id(&self) -> PoolId {
        self.id
    }

    /// Who its clients are.
    pub(super) fn identity(&self) -> Identity {
        self.identity.borrow().clone()
    }

    /// Whether its clients may be given what the store has answered another of them: they may read
    /// everything, as far as is known.
    pub(super) fn may_cache(&self) -> bool {
        self.may_cache.get()
    }

    /// Whether its clients may read everything has become known.
    pub(super) fn set_may_cache(&self, may_cache: bool) {
        self.may_cache.set(may_cache);
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

impl<W: Wire> Drop for Pool<W> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One thread's pools for a service.
#[derive(Debug)]
pub(super) struct Pools<W: Wire> {
    /// The first is for clients that have not said who they are, and is never closed.
    all: RefCell<Vec<Rc<Pool<W>>>>,
    next: Cell<u32>,
    most: usize,
    connections: usize,
}

impl<W: Wire> Pools<W> {
    /// At most so many pools of so many connections.
    pub(super) fn new(most: usize, connections: usize) -> Self {
        let first = Pool::new(PoolId(0), Identity::default(), connections);
        Self { all: RefCell::new(vec![first]), next: Cell::new(1), most, connections }
    }

    /// The one for clients that have not said who they are.
    pub(super) fn first(&self) -> Rc<Pool<W>> {
        Rc::clone(&self.all.borrow()[0])
    }

    /// The one for `identity`, if it is there.
    pub(super) fn find(&self, identity: &Identity) -> Option<Rc<Pool<W>>> {
        self.all.borrow().iter().find(|pool| pool.identity.borrow().shares_with(identity)).cloned()
    }

    /// Whether the store has accepted this very password before, for a pool that is still there.
    pub(super) fn has_proof_of(&self, identity: &Identity) -> bool {
        let Some(pool) = self.find(identity) else { return false };
        let (held, said) = (&pool.identity.borrow().login, &identity.login);
        held.as_deref().map(Login::password) == said.as_deref().map(Login::password)
    }

    /// The one for `identity`, which the store has accepted; a new one if there is none, and `None` if there are as
    /// many as there may be.
    pub(super) fn open(&self, identity: &Identity, service: &Rc<Service<W>>) -> Option<Rc<Pool<W>>> {
        if let Some(pool) = self.find(identity) {
            return Some(pool);
        }
        let pool = self.add(identity)?;
        pool.start(service);
        Some(pool)
    }

    /// One more, if need be instead of one that no client uses.
    fn add(&self, identity: &Identity) -> Option<Rc<Pool<W>>> {
        let mut all = self.all.borrow_mut();
        if all.len() >= self.most {
            let unused = all.iter().skip(1).position(|pool| Rc::strong_count(pool) == 1)?;
            all.remove(unused + 1);
        }
        let pool = Pool::new(PoolId(self.next.get()), identity.clone(), self.connections);
        self.next.set(self.next.get().checked_add(1)?);
        all.push(Rc::clone(&pool));
        Some(pool)
    }

    /// The store has accepted a password: from now on its user's pools connect with it.
    pub(super) fn accepted(&self, login: &Rc<Login>) {
        for pool in self.all.borrow().iter() {
            let held = &mut pool.identity.borrow_mut().login;
            if held.as_ref().is_some_and(|held| held.user() == login.user()) {
                *held = Some(Rc::clone(login));
            }
        }
    }

    /// Takes one out.
    pub(super) fn remove(&self, pool: &Rc<Pool<W>>) {
        self.all.borrow_mut().retain(|other| !Rc::ptr_eq(other, pool));
    }

    /// Looks for answers that take too long, and for pools that no client uses.
    pub(super) fn check(&self, now: Nanos, timeout: Nanos) {
        let mut all = self.all.borrow_mut();
        all.iter().flat_map(|pool| pool.stores()).for_each(|store| store.check(now, timeout));
        all.retain(|pool| {
            if pool.id == PoolId(0) || Rc::strong_count(pool) > 1 {
                pool.unused_since.set(None);
                return true;
            }
            let since = pool.unused_since.get().unwrap_or(now);
            pool.unused_since.set(Some(since));
            now.saturating_sub(since) < KEPT_UNUSED
        });
    }
}

/// Clients that come and go would have to wait for new connections each time.
const KEPT_UNUSED: Nanos = Nanos::from_secs(60);

#[cfg(test)]
mod tests {
    use super::super::resp::Resp;
    use super::*;

    fn database(database: u32) -> Identity {
        Identity { database, ..Identity::default() }
    }

    #[test]
    fn a_pool_without_clients_is_closed_after_a_minute_and_the_first_never() {
        let pools = Pools::<Resp>::new(10, 1);
        let used = pools.add(&database(1)).unwrap();
        drop(pools.add(&database(2)));
        let check = |second| pools.check(Nanos::from_secs(second), Nanos::from_secs(1));
        check(100);
        check(159);
        assert!(pools.find(&database(2)).is_some());
        check(160);
        assert!(pools.find(&database(2)).is_none());
        assert!(pools.find(&database(1)).is_some() && pools.find(&database(0)).is_some());
        // From when its last client has gone.
        drop(used);
        check(200);
        drop(pools.find(&database(1)));
        check(259);
        assert!(pools.find(&database(1)).is_some());
        check(260);
        assert!(pools.find(&database(1)).is_none() && pools.find(&database(0)).is_some());
    }

    #[test]
    fn one_that_no_client_uses_makes_room_and_no_number_is_used_again() {
        let pools = Pools::<Resp>::new(3, 1);
        let first = pools.add(&database(1)).unwrap();
        let second = pools.add(&database(2)).unwrap();
        assert!(pools.add(&database(3)).is_none(), "both are used");
        drop(first);
        let third = pools.add(&database(3)).unwrap();
        assert!(pools.find(&database(1)).is_none());
        assert_eq!([second.id(), third.id()], [PoolId(2), PoolId(3)]);
    }
}
