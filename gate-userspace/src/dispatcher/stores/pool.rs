//! The connections to the store that clients of one identity share.
//!
//! Clients that are the same user, on the same database, in the same protocol version share a pool. What the store
//! answers one of them it would have answered any other. A pool that no client uses is closed after a while; one
//! whose user the store no longer accepts is closed at once, and its clients with it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use gate_common::units::Nanos;
use tokio::task::AbortHandle;

use super::connection::StoreConnection;
use super::events::StoreEvents;
use super::health::Health;
use super::pool_identity::PoolIdentity;
use crate::clock;
use crate::dispatcher::identity::scopes::{Scope, Scopes};
use crate::dispatcher::identity::{Identity, Login};
use crate::dispatcher::metrics::store_state::StoreState;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::store_silence::SilenceLimits;
use crate::dispatcher::wire::{SessionState, Wire};

mod start;

/// Some connections to the store, over which many clients' requests go.
#[derive(Debug)]
pub(crate) struct Pool<E: StoreEvents> {
    identity: Rc<PoolIdentity>,
    /// The connections to the first store, then those to the next.
    stores: Vec<Rc<StoreConnection<E>>>,
    /// The number of connections to each store.
    lanes: usize,
    /// The number of stores, the first, that there are or have been.
    used: Cell<usize>,
    tasks: RefCell<Vec<AbortHandle>>,
    unused_since: Cell<Option<Nanos>>,
}

impl<E: StoreEvents> Pool<E> {
    /// A pool for so many stores, of so many connections to each, at least one.
    fn new(scope: Scope, identity: Identity, size: PoolSize) -> Rc<Self> {
        let PoolSize { stores, connections, are_nodes } = size;
        let lanes = connections.max(1);
        let connection = move |node| Rc::new(StoreConnection::new(node, Health::new(), are_nodes));
        let of_store = |node| (0..lanes).map(move |_| connection(node));
        let stores = NodeId::all(stores).flat_map(of_store).collect();
        Rc::new(Self {
            identity: Rc::new(PoolIdentity {
                scope: RefCell::new(scope),
                identity: RefCell::new(Identity { name: None, ..identity }),
                may_cache: Cell::new(!<E::Wire as Wire>::Session::HAS_USERS),
                may_unlink: Cell::new(false),
            }),
            stores,
            lanes,
            // Those of a cluster are found.
            used: Cell::new(if are_nodes { 0 } else { size.stores }),
            tasks: RefCell::default(),
            unused_since: Cell::new(None),
        })
    }

    /// Gives up its connections.
    pub(crate) fn stop(&self) {
        self.tasks.borrow_mut().drain(..).for_each(|task| task.abort());
    }

    /// The identity of its clients, and their scope.
    #[inline]
    pub(crate) fn identity(&self) -> &Rc<PoolIdentity> {
        &self.identity
    }

    /// All of them that are in use.
    pub(crate) fn stores(&self) -> &[Rc<StoreConnection<E>>] {
        &self.stores[..self.used.get() * self.lanes]
    }

    /// The number of stores that there are or have been.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.used.get()
    }

    /// The lane for a client that has nothing on its way: the first with room, so that as much as possible goes out
    /// in one write. Not the last, if there are several: that is for what is slow by kind. A lane is as full as the fullest of
    /// its connections to stores that are up.
    #[inline]
    pub(crate) fn connection_index(&self, now: Nanos) -> usize {
        let fast = self.slow_index().max(1);
        match (0..fast)
            .position(|index| self.lane(index).all(|store| store.has_room(now) || store.is_down(now)))
        {
            Some(connection_index) => connection_index,
            None => (0..fast)
                .min_by_key(|&index| self.lane(index).map(|store| store.load(now)).max())
                .unwrap_or(0),
        }
    }

    /// The connections of a lane, one to each store.
    #[inline]
    pub(crate) fn lane(&self, connection_index: usize) -> impl Iterator<Item = &Rc<StoreConnection<E>>> {
        self.stores().get(connection_index..).unwrap_or_default().iter().step_by(self.lanes)
    }

    /// True if none of its connections takes requests now.
    fn is_down(&self, now: Nanos) -> bool {
        self.stores().iter().all(|store| store.accepts(now).is_err())
    }

    /// The lane for what is slow by kind.
    #[inline]
    pub(crate) fn slow_index(&self) -> usize {
        self.lanes - 1
    }

    /// The connection to a store for clients on a lane.
    #[inline]
    pub(crate) fn store(&self, node: NodeId, connection_index: usize) -> Rc<StoreConnection<E>> {
        Rc::clone(&self.stores[node.index() * self.lanes + connection_index])
    }
}

impl<E: StoreEvents> Drop for Pool<E> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One thread's pools for a service.
#[derive(Debug)]
pub(crate) struct Pools<E: StoreEvents> {
    /// The first is for clients that have not said who they are, and is never closed.
    all: RefCell<Vec<Rc<Pool<E>>>>,
    /// Those that no new client gets: of clients that the store let in without a password, and would not any more, and those that
    /// were cut off when a client logged in.
    former: RefCell<Vec<Rc<Pool<E>>>>,
    closed: Cell<u64>,
    scopes: Arc<Scopes>,
    most: usize,
    size: PoolSize,
}

/// The connections of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolSize {
    /// The stores that there may be.
    pub(crate) stores: usize,
    /// The connections to each.
    pub(crate) connections: usize,
    /// True if they are nodes of a cluster, of which there are as many as it says.
    pub(crate) are_nodes: bool,
}

impl<E: StoreEvents> Pools<E> {
    /// At most so many pools of this size.
    pub(crate) fn new(most: usize, size: PoolSize, scopes: Arc<Scopes>) -> Self {
        let first = Pool::new(Scopes::first(), Identity::default(), size);
        let all = RefCell::new(vec![first]);
        let former = RefCell::default();
        let closed = Cell::new(scopes.closed());
        Self { all, former, closed, scopes, most, size }
    }

    /// The one for clients that have not said who they are.
    pub(crate) fn first(&self) -> Rc<Pool<E>> {
        Rc::clone(&self.all.borrow()[0])
    }

    /// The one for `identity`, if it is there.
    pub(crate) fn find(&self, identity: &Identity) -> Option<Rc<Pool<E>>> {
        self.all.borrow().iter().find(|pool| pool.identity.identity.borrow().shares_with(identity)).cloned()
    }

    /// True if the store has accepted this very password before, for a pool that is still there.
    pub(crate) fn has_verified(&self, identity: &Identity) -> bool {
        let Some(pool) = self.find(identity) else { return false };
        let known = &pool.identity.identity.borrow().login;
        let given = &identity.login;
        known.as_deref().map(Login::password) == given.as_deref().map(Login::password)
    }

    /// The one for `identity`, which the store has accepted; a new one if there is none, and `None` if there are as
    /// many as there may be.
    pub(crate) fn open(&self, identity: &Identity, events: &Rc<E>) -> Option<Rc<Pool<E>>> {
        if let Some(pool) = self.find(identity) {
            // The store has cut off its user, who may have been removed, and accepts it again: who has just logged in need
            // not wait for the end of a pause.
            let is_cut_off = identity.login.is_some() && pool.is_down(clock::monotonic());
            if !is_cut_off || self.former.borrow().len() >= self.most {
                return Some(pool);
            }
            self.all.borrow_mut().retain(|other| !Rc::ptr_eq(other, &pool));
            self.former.borrow_mut().push(pool);
        }
        let pool = self.add(identity)?;
        pool.start(events);
        Some(pool)
    }

    /// One more, if need be instead of one that no client uses.
    fn add(&self, identity: &Identity) -> Option<Rc<Pool<E>>> {
        let mut all = self.all.borrow_mut();
        if all.len() >= self.most {
            let unused = all.iter().skip(1).position(|pool| Rc::strong_count(pool) == 1)?;
            all.remove(unused + 1);
        }
        let pool = Pool::new(self.scopes.of(identity), identity.clone(), self.size);
        all.iter().for_each(|other| pool.identity.learn_from(&other.identity));
        all.push(Rc::clone(&pool));
        Some(pool)
    }

    /// The store has accepted a password: from now on its user's pools connect with it. If it is another, they share
    /// nothing any more with those that know the old one.
    pub(crate) fn accepted(&self, login: &Rc<Login>) {
        for pool in self.all.borrow().iter() {
            let identity = &mut *pool.identity.identity.borrow_mut();
            let Some(known) = identity.login.as_mut().filter(|known| known.user() == login.user()) else {
                continue;
            };
            let is_other = known.password() != login.password();
            *known = Rc::clone(login);
            if is_other {
                *pool.identity.scope.borrow_mut() = self.scopes.of(identity);
            }
        }
    }

    /// Takes one out whose user the store refuses. Whoever comes by its name shares nothing with it.
    pub(crate) fn remove(&self, refused: &Rc<PoolIdentity>) -> Option<Rc<Pool<E>>> {
        self.scopes.retire(&refused.scope.borrow());
        let mut all = self.all.borrow_mut();
        let place = all.iter().position(|pool| Rc::ptr_eq(&pool.identity, refused))?;
        Some(all.remove(place))
    }

    /// The scopes of the clients' identities, of all threads.
    pub(crate) fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    /// Clients that come from now on share nothing with those that the store let in without a password, if it does so no
    /// more. True if that is new.
    pub(crate) fn follow_access(&self, events: &Rc<E>) -> bool {
        let closed = self.scopes.closed();
        if self.closed.replace(closed) == closed {
            return false;
        }
        let first = {
            let mut all = self.all.borrow_mut();
            let has_no_name = |pool: &mut Rc<Pool<E>>| pool.identity.identity.borrow().login.is_none();
            let former: Vec<_> = all.extract_if(.., has_no_name).collect();
            former.iter().for_each(|pool| self.scopes.retire(&pool.identity.scope.borrow()));
            self.former.borrow_mut().extend(former);
            let scope = self.scopes.of(&Identity::default());
            all.insert(0, Pool::new(scope, Identity::default(), self.size));
            Rc::clone(&all[0])
        };
        first.start(events);
        true
    }

    /// Looks for answers that take too long, and for pools that no client uses. Of each store it asks how long it may be silent, and for
    /// the state that all threads share.
    pub(crate) fn check<'s>(&self, now: Nanos, of: impl Fn(NodeId) -> (SilenceLimits, &'s StoreState)) {
        let check = |store: &Rc<StoreConnection<E>>| store.check(now, of(store.node()));
        let mut former = self.former.borrow_mut();
        former.retain(|pool| Rc::strong_count(pool) > 1);
        former.iter().flat_map(|pool| pool.stores()).for_each(check);
        let mut all = self.all.borrow_mut();
        all.iter().flat_map(|pool| pool.stores()).for_each(check);
        let first = Rc::as_ptr(&all[0]);
        all.retain(|pool| {
            if Rc::as_ptr(pool) == first || Rc::strong_count(pool) > 1 {
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
    use super::super::error::StoreError;
    use super::super::events::{Failure, ReplyPart, ReplyProgress, ReplyTiming};
    use super::*;
    use crate::dispatcher::settings::Settings;
    use crate::dispatcher::wire::resp::Resp;

    /// The owner of pools that are never started.
    #[derive(Debug)]
    enum Unstarted {}

    impl StoreEvents for Unstarted {
        type Wire = Resp;
        type InFlight = ();
        type Observations = ();
        type HandedOver = ();

        fn settings(&self) -> &Settings {
            match *self {}
        }

        fn scratch(&self) -> &RefCell<Box<[u8]>> {
            match *self {}
        }

        fn reply_part(&self, (): &mut (), _: ReplyPart<'_>) {}

        fn reply_end(&self, (): &mut (), (): &mut (), _: ReplyTiming) -> Option<()> {
            match *self {}
        }

        fn hand_over(&self, (): &mut (), (): ()) {}

        fn read_end(&self, (): &mut (), _: Nanos) {}

        fn failed(&self, (): (), _: ReplyProgress, _: Failure<'_>) {}

        fn redirected(&self, (): (), _: &[u8], _: Option<&[u8]>, _: ReplyProgress) {}

        fn note_cluster_error(&self, _: &[u8]) {}

        fn is_held_up(&self, (): &(), _: bool) -> bool {
            match *self {}
        }

        fn is_same_client(&self, (): &(), (): &()) -> bool {
            match *self {}
        }

        fn is_earlier(&self, (): &(), (): &()) -> bool {
            match *self {}
        }

        fn paused(&self, (): &mut ()) {}

        fn dispatch(&self) {}

        fn flush(&self) {}

        fn connected(&self, _: NodeId) {}

        fn disconnected(&self, _: NodeId) {}

        fn left(&self, _: NodeId) {}

        fn connection_lost(&self, _: &StoreError) {}

        fn store_down(&self, _: NodeId, _: &StoreError, _: Nanos) {}

        fn store_back(&self, _: NodeId) -> impl Future<Output = ()> {
            std::future::pending()
        }

        fn user_refused(&self, _: &Rc<PoolIdentity>, _: &[u8]) -> bool {
            match *self {}
        }

        fn set_in_cluster(&self, _: bool) {}

        fn is_in_cluster(&self) -> bool {
            match *self {}
        }
    }

    fn scopes() -> Arc<Scopes> {
        Arc::new(Scopes::new(1))
    }

    fn pools(most: usize, scopes: &Arc<Scopes>) -> Pools<Unstarted> {
        Pools::new(most, PoolSize { stores: 1, connections: 1, are_nodes: false }, Arc::clone(scopes))
    }

    fn database(database: u32) -> Identity {
        Identity { database, ..Identity::default() }
    }

    #[test]
    fn a_pool_without_clients_closes_in_a_minute_but_the_first() {
        let pools = pools(10, &scopes());
        let used = pools.add(&database(1)).unwrap();
        drop(pools.add(&database(2)));
        let limits = SilenceLimits {
            timeout: Nanos::from_secs(1),
            slow: Nanos::from_secs(1),
            paused_until: Nanos::ZERO,
        };
        let state = StoreState::default();
        let check = |second| pools.check(Nanos::from_secs(second), |_| (limits, &state));
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
    fn one_that_no_client_uses_makes_room() {
        let pools = pools(3, &scopes());
        let first = pools.add(&database(1)).unwrap();
        let _second = pools.add(&database(2)).unwrap();
        assert!(pools.add(&database(3)).is_none(), "both are used");
        drop(first);
        assert!(pools.add(&database(3)).is_some());
        assert!(pools.find(&database(1)).is_none());
    }

    #[test]
    fn pools_share_until_one_has_another_password_or_is_refused() {
        let scopes = scopes();
        let one = pools(9, &scopes);
        let other = pools(9, &scopes);
        let [old, new] = ["old", "new"].map(|password| Identity::of("alice", password));
        let here = one.add(&old).unwrap();
        let there = other.add(&old).unwrap();
        assert_eq!(here.identity().scope(), there.identity().scope());
        one.accepted(old.login.as_ref().unwrap());
        assert_eq!(here.identity().scope(), there.identity().scope(), "it is the same password");
        one.accepted(new.login.as_ref().unwrap());
        assert_ne!(here.identity().scope(), there.identity().scope());
        other.accepted(new.login.as_ref().unwrap());
        assert_eq!(here.identity().scope(), there.identity().scope());
        one.remove(here.identity());
        assert_ne!(one.add(&new).unwrap().identity().scope(), there.identity().scope());
        let unauthenticated = [&one, &other].map(|pools| pools.first().identity().scope());
        assert_eq!(unauthenticated, [0; 2]);
    }
}
