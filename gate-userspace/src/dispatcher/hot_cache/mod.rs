//! Hot keys: their reads are answered here, or go to the store once for all who ask.
//!
//! ```text
//! read ──► kept answer of the key's version? ─ yes ─► answered
//!   │ no
//!   ▼
//! is the key hot? ─ no ─► to the store, as if there were nothing here
//!   │ yes
//!   ▼
//! a flight of this version? ─ yes ─► follows it ────────────┐
//!   │ no                                                    ▼
//!   └──► leads one: to the store, answer ──► to all who follow; kept for as long as the key lives,
//!                                                 at most 3 s, in each thread that had any
//! ```
//!
//! Every write marks its keys, hot or not, from before it is sent until after its answer ([`versions`]): a marked
//! key's reads go to the store as if there were nothing here. So what clients see through one gate is
//! linearizable; and a client's own requests about a key keep their order ([`key_order`]). What is written past the gate
//! is seen once what was kept has lived its life.
//!
//! - [`hot_set`]: which keys are hot.
//! - [`cache_role`]: the role of a request for the cache.
//! - [`versions`]: whether an answer still holds.
//! - [`cache`]: answers, in each thread. [`flights`]: reads under way, in all threads.
//! - [`key_order`]: one client's requests. [`dedicated_writes`]: writes over a dedicated connection.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use gate_common::abi::Sample;
use gate_common::units::Nanos;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use self::cache::{Cache, Lookup};
pub(crate) use self::cache_role::{CacheDecision, CacheRole, ReadResult};
use self::flights::{Flight, FlightKey, Flights, JoinResult};
pub(crate) use self::followers::{CacheClient, Followers};
use self::hot_set::{HotSet, HotSetPublisher, Sampler};
use self::key_order::ANY_KEY;
use self::versions::{KeyHash, Mark, Marker, Version, Versions};
use super::identity::scopes::Scopes;
use super::metrics::{Event, WorkerMetrics};
use super::request::{Charged, Decoded};
use super::settings::Settings;
use super::tenants::ledger::Ledger;
use super::wire::Cacheable;
use crate::clock;
use crate::policy::rank::Rank;
use crate::protocol::Access;

mod anew;
mod cache;
mod cache_role;
pub(super) mod dedicated_writes;
pub(super) mod flights;
mod followers;
pub(super) mod hot_set;
pub(super) mod key_order;
pub(super) mod versions;

/// The state of hot keys that the threads of one service share.
#[derive(Clone, Debug)]
pub(crate) struct SharedHotCache {
    pub(crate) hot_set_publisher: Arc<HotSetPublisher>,
    pub(crate) samples: SyncSender<Sample>,
    pub(crate) versions: Arc<Versions>,
    flights: Arc<Flights>,
    pub(crate) scopes: Arc<Scopes>,
}

impl SharedHotCache {
    /// Those of each service, for so many threads. Services before the same store share its keys' versions.
    pub(crate) fn of(settings: &[Settings], threads: usize, samples: &SyncSender<Sample>) -> Vec<Self> {
        let groups = groups(settings);
        let mut stores = HashMap::new();
        let of = |group: usize| {
            let versions = || Arc::new(Versions::new(clock::entropy()));
            let versions = Arc::clone(stores.entry(group).or_insert_with(versions));
            Self {
                hot_set_publisher: Arc::new(HotSetPublisher::new(Arc::clone(&versions))),
                samples: samples.clone(),
                versions,
                flights: Arc::new(Flights::new(threads, clock::entropy())),
                scopes: Arc::new(Scopes::new(clock::entropy())),
            }
        };
        groups.into_iter().map(of).collect()
    }
}

/// The number of each service's group: services that share a store are in one, also through a third.
fn groups(settings: &[Settings]) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..settings.len()).collect();
    for (place, one) in settings.iter().enumerate() {
        for (other_place, other) in settings.iter().enumerate().take(place) {
            if one.may_share_a_store(other) {
                let from = groups[place];
                let to = groups[other_place];
                groups.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
            }
        }
    }
    groups
}

/// Followers of flights, by the hash of the key and the rank.
type Following<W, C> = HashMap<(u64, Rank), Followers<W, C>, foldhash::fast::RandomState>;

/// One thread's hot keys of one service.
#[derive(Debug)]
pub(crate) struct HotCache<W: Cacheable, C> {
    thread: usize,
    metrics: Arc<WorkerMetrics>,
    /// True if reads are answered here at all.
    enabled: bool,
    max_answer: usize,
    max_ttl: Nanos,
    sampler: Sampler,
    pending_writes: RefCell<watch::Receiver<Arc<HotSet>>>,
    hot: RefCell<Arc<HotSet>>,
    versions: Arc<Versions>,
    marker: Rc<Marker>,
    cache: RefCell<Cache>,
    flights: Arc<Flights>,
    /// This thread's followers, by the number of what they asked and the rank of their flight; never of two flights.
    following: RefCell<Following<W, C>>,
}

/// The result of a look-up without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachePeek {
    /// A kept answer answers it.
    Hit,
    /// The read of another client answers it.
    Joins,
    /// The store answers it.
    Store,
}

impl<W: Cacheable, C: CacheClient> HotCache<W, C> {
    pub(crate) fn new(
        settings: &Settings,
        shared: SharedHotCache,
        thread: usize,
        metrics: Arc<WorkerMetrics>,
    ) -> Self {
        let SharedHotCache { hot_set_publisher, samples, versions, flights, .. } = shared;
        let config = &settings.backend.hot_keys;
        let pending_writes = hot_set_publisher.listen();
        let hot = Arc::clone(&pending_writes.borrow());
        Self {
            thread,
            metrics,
            enabled: config.cache,
            max_answer: config.max_value,
            max_ttl: config.ttl,
            sampler: Sampler::new(samples),
            hot: RefCell::new(hot),
            pending_writes: RefCell::new(pending_writes),
            marker: Marker::new(Arc::clone(&versions)),
            versions,
            cache: RefCell::new(Cache::new(config.memory)),
            flights,
            following: RefCell::default(),
        }
    }

    /// The messages to this thread; for the first caller.
    pub(crate) fn mailbox(&self) -> Option<UnboundedReceiver<flights::MailboxMessage>> {
        self.flights.mailbox(self.thread)
    }

    /// Marks, for writes on connections of clients' own.
    pub(crate) fn marker(&self) -> Rc<Marker> {
        Rc::clone(&self.marker)
    }

    /// Sends a sample of a request's first key, if it is this one's turn. `service` is its place at the start.
    #[inline]
    pub(crate) fn sample(&self, decoded: Decoded<'_, W, C>, service: usize, ledger: &mut Ledger) {
        let every = ledger.sample_every();
        if W::meta(decoded.request).keyed && self.sampler.is_due(every, || ledger.draw()) {
            let key = W::keys(decoded.request, decoded.bytes).next();
            let tenant = decoded.tenant.0;
            key.into_iter().for_each(|key| self.sampler.send(ledger.number(service), tenant, every, key));
        }
    }

    /// True if a client must wait for the flights that its reads follow: this request names one of their keys, and cannot
    /// join.
    #[inline]
    pub(crate) fn must_wait_for_flight(&self, decoded: Decoded<'_, W, C>) -> bool {
        let Decoded { client, slot, request, bytes, .. } = decoded;
        // The requests of one datagram come at once, and nobody can be kept from sending it.
        let waits = client.key_order().follows()
            && !client.is_datagram()
            && client.key_order().follows_any(self.bits(request, bytes))
            && self
                .joinable_flight(client, request, bytes, Rank::LAST)
                // It would take the client's own way.
                .is_none_or(|key| client.key_order().has_sent(key, slot));
        if waits {
            client.key_order().wait();
        }
        waits
    }

    /// Looks a read up that has been charged, and would go to the store with this rank.
    ///
    /// A hit is right whether or not the key is still hot: its answer was asked for at a version, seen before it was
    /// sent, at which no write was outstanding, and which is the key's at this moment.
    #[inline]
    pub(crate) fn read(
        &self,
        decoded: Decoded<'_, W, C>,
        charged: &Charged,
        rank: impl FnOnce() -> Rank,
        now: Nanos,
    ) -> ReadResult {
        let Decoded { client, slot, request, bytes, .. } = decoded;
        let Some(flight_key) = self.flight_key(client, request, bytes) else { return ReadResult::UNCACHED };
        match self.cache.borrow_mut().find(flight_key, &self.versions, now) {
            Lookup::Hit(answer, key) if client.key_order().is_free(key, slot) => {
                self.metrics.count(Event::CacheHit);
                return ReadResult::Hit(answer);
            }
            Lookup::TooLong => return ReadResult::UNCACHED,
            Lookup::Stale => self.metrics.count(Event::Invalidated),
            Lookup::Hit(..) | Lookup::Miss => {}
        }
        self.fly(decoded, flight_key, charged, rank())
    }

    /// The result of [`HotCache::read`], as far as a client learns of it, with nothing counted and nothing joined; and true
    /// if the request's first key is hot.
    pub(crate) fn peek(&self, decoded: Decoded<'_, W, C>, rank: Rank, now: Nanos) -> (CachePeek, bool) {
        let Decoded { client, slot, request, bytes, .. } = decoded;
        let key = self.key(request, bytes);
        let is_hot = key.is_some_and(|(_, is_hot)| is_hot);
        let Some(flight_key) = self.flight_key(client, request, bytes) else {
            return (CachePeek::Store, is_hot);
        };
        match self.cache.borrow().peek(flight_key, &self.versions, now) {
            Lookup::Hit(_, key) if client.key_order().is_free(key, slot) => return (CachePeek::Hit, is_hot),
            Lookup::TooLong => return (CachePeek::Store, is_hot),
            Lookup::Hit(..) | Lookup::Stale | Lookup::Miss => {}
        }
        let joins = self.joinable_flight(client, request, bytes, rank);
        let joins = joins.is_some_and(|key| !client.key_order().has_sent(key, slot));
        (if joins { CachePeek::Joins } else { CachePeek::Store }, is_hot)
    }

    /// A read that no kept answer answers.
    fn fly(
        &self,
        decoded: Decoded<'_, W, C>,
        flight_key: FlightKey<'_>,
        charged: &Charged,
        rank: Rank,
    ) -> ReadResult {
        let Decoded { client, slot, request, bytes, .. } = decoded;
        let Some((key, is_hot)) = self.key(request, bytes) else { return ReadResult::UNCACHED };
        let uncoalesced = ReadResult::ToStore(CacheDecision::Uncached(Some(key)));
        if !is_hot || client.key_order().has_sent(key, slot) {
            return uncoalesced;
        }
        let Some(version) = self.versions.of(key) else { return uncoalesced };
        let number = self.flights.number(flight_key);
        let following = &mut *self.following.borrow_mut();
        let mut is_full = false;
        for rank in rank.not_after() {
            let Some(under_way) = following.get_mut(&(number, rank)) else { continue };
            if under_way.has_room_for(flight_key, version) {
                self.metrics.count(Event::Coalesced);
                under_way.add(decoded, charged, key);
                return ReadResult::Joined;
            }
            is_full = true;
        }
        if is_full { uncoalesced } else { ReadResult::ToStore(CacheDecision::MayLead(key, version, rank)) }
    }

    /// Begins a flight with a read that has been admitted; `None` if another thread just has, which it then
    /// follows.
    pub(crate) fn lead(
        &self,
        decoded: Decoded<'_, W, C>,
        charged: &Charged,
        (key, version, rank): (KeyHash, Version, Rank),
    ) -> Option<CacheRole> {
        let flight_key = FlightKey { scope: decoded.client.scope(), request: decoded.bytes };
        let part = self.flights.join(flight_key, key, version, rank, self.thread, self.max_answer);
        let (flight, cache_role) = match part {
            JoinResult::Follower(flight) => (flight, None),
            JoinResult::Leader(leading) => {
                (Arc::clone(leading.flight()), Some(CacheRole::LeadFlight(leading)))
            }
        };
        self.metrics.count(if cache_role.is_some() { Event::Flight } else { Event::Coalesced });
        let place = (self.flights.number(flight_key), flight.rank);
        let mut following = Followers { flight, request: *decoded.request, followers: Vec::new() };
        following.add(decoded, charged, key);
        let before = self.following.borrow_mut().insert(place, following);
        debug_assert!(before.is_none(), "followers of two flights");
        cache_role
    }

    /// The role of a request that goes to the store for itself; `key` as in [`CacheDecision::Uncached`].
    #[inline]
    pub(crate) fn cache_role(&self, decoded: Decoded<'_, W, C>, key: Option<KeyHash>) -> CacheRole {
        let Decoded { client, slot, request, bytes, .. } = decoded;
        if self.enabled {
            let bits = match key {
                Some(key) => key.bit(),
                None if self.hot.borrow().is_empty() => ANY_KEY,
                None => self.bits(request, bytes),
            };
            client.key_order().send(bits, slot);
        }
        self.mark(request, bytes).map_or(CacheRole::None, CacheRole::MarkWrite)
    }

    /// The mark of a request, if it may write.
    #[inline]
    pub(crate) fn mark(&self, request: &W::Request, bytes: &[u8]) -> Option<Mark> {
        if let Some(delay) = W::flushes_in(request, bytes) {
            self.marker.mark_all_at(clock::monotonic().saturating_add(delay), clock::monotonic());
        }
        match W::meta(request).access {
            Access::Neither | Access::Read => None,
            Access::Write if W::names_all_keys(request) => Some(self.marker.mark(W::keys(request, bytes))),
            Access::Write | Access::WriteAny => Some(self.marker.mark_all()),
        }
    }

    /// The followers of a complete flight in this thread.
    pub(crate) fn complete_followers(&self, flight: &Arc<Flight>) -> Option<Followers<W, C>> {
        let place = (self.flights.number(flight.flight_key()), flight.rank);
        let mut following = self.following.borrow_mut();
        let here = following.get(&place).is_some_and(|following| Arc::ptr_eq(&following.flight, flight));
        let complete_followers = here.then(|| following.remove(&place)).flatten()?;
        complete_followers.followers.iter().for_each(|reader| reader.client.key_order().complete_followers());
        Some(complete_followers)
    }

    /// Keeps what a flight brought, at most until then; `None` if it was too long, which is worth knowing too.
    pub(crate) fn keep(&self, flight: &Flight, answer: Option<&[u8]>, until: Nanos, now: Nanos) {
        let until = until.min(now.saturating_add(self.max_ttl));
        let is_over = until <= now || !self.versions.holds(flight.key, flight.version);
        if answer.is_none() || !is_over {
            self.cache.borrow_mut().keep(flight, answer, until);
        }
    }

    /// To be called now and then.
    pub(crate) fn housekeeping(&self, now: Nanos, store_timeout: Nanos) {
        self.marker.housekeeping(now, store_timeout);
        let pending_writes = &mut *self.pending_writes.borrow_mut();
        if pending_writes.has_changed().unwrap_or(false) {
            *self.hot.borrow_mut() = Arc::clone(&pending_writes.borrow_and_update());
        }
    }

    /// The flight key of a request, if its reply may be shared and any key is hot.
    #[inline]
    fn flight_key<'q>(&self, client: &C, request: &W::Request, bytes: &'q [u8]) -> Option<FlightKey<'q>> {
        if !self.enabled || self.hot.borrow().is_empty() || !W::is_coalescable(request) {
            return None;
        }
        client.shared_scope().map(|scope| FlightKey { scope, request: bytes })
    }

    /// The key that a read of one key reads, and whether it is hot.
    #[inline]
    fn key(&self, request: &W::Request, bytes: &[u8]) -> Option<(KeyHash, bool)> {
        let key = self.versions.hash(W::keys(request, bytes).next()?);
        Some((key, self.hot.borrow().contains(&key)))
    }

    /// The key of a read of `rank` whose flight it could join.
    fn joinable_flight(&self, client: &C, request: &W::Request, bytes: &[u8], rank: Rank) -> Option<KeyHash> {
        let flight_key = self.flight_key(client, request, bytes)?;
        let (key, _) = self.key(request, bytes).filter(|&(_, is_hot)| is_hot)?;
        let version = self.versions.of(key)?;
        let following = self.following.borrow();
        let number = self.flights.number(flight_key);
        let has_room = |rank| {
            following
                .get(&(number, rank))
                .is_some_and(|under_way| under_way.has_room_for(flight_key, version))
        };
        rank.not_after().any(has_room).then_some(key)
    }

    /// The bits of the keys that a request is about.
    fn bits(&self, request: &W::Request, bytes: &[u8]) -> u128 {
        match W::meta(request).access {
            Access::Neither => 0,
            Access::Read | Access::Write if W::names_all_keys(request) => {
                W::keys(request, bytes).fold(0, |bits, key| bits | self.versions.hash(key).bit())
            }
            Access::Read | Access::Write | Access::WriteAny => ANY_KEY,
        }
    }
}
