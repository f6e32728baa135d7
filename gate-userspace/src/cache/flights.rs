//! One fetch for all who ask for the same at the same time.
//!
//! The first leads: it fetches, and its outcome is that of all who follow. A leader that is dropped has failed, so that
//! nobody waits for one that is gone. A fetch waits in the queue with its leader's [`Rank`], so nobody follows one that goes after
//! them: the first of them leads another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Bytes;
use tokio::sync::watch;

use crate::policy::rank::Rank;

/// The fetches that are under way, by what is asked.
#[derive(Debug)]
pub(super) struct Flights<T> {
    by_key: Mutex<ByKey<T>>,
    /// The number of the next fetch that nobody joins.
    next: AtomicU64,
}

type ByKey<T> = HashMap<Box<[u8]>, Arc<Flight<T>>>;

/// A fetch that is under way.
#[derive(Debug)]
struct Flight<T> {
    outcome: watch::Sender<Option<Outcome<T>>>,
    /// True if what it brings is outdated: a request that changes has been answered since it began.
    is_outdated: AtomicBool,
}

/// The outcome of a fetch.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    /// An answer that may be kept.
    Stored(Arc<T>, Bytes),
    /// An answer that is one client's.
    NotShared,
    /// None.
    Failed,
}

/// The part of a request in a fetch.
#[derive(Debug)]
pub(crate) enum Joined<T> {
    /// The request has to fetch.
    Leader(Lead<T>),
    /// Another does.
    Follower(watch::Receiver<Option<Outcome<T>>>),
}

/// The duty to fetch. Dropped without an outcome, it has failed.
#[derive(Debug)]
pub(crate) struct Lead<T> {
    flights: Arc<Flights<T>>,
    flight: Arc<Flight<T>>,
    key: Box<[u8]>,
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self { by_key: Mutex::default(), next: AtomicU64::default() }
    }
}

impl<T> Clone for Outcome<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Stored(answer, body) => Self::Stored(Arc::clone(answer), body.clone()),
            Self::NotShared => Self::NotShared,
            Self::Failed => Self::Failed,
        }
    }
}

impl<T> Flights<T> {
    /// Joins the fetch for a key that does not go after this rank, or begins it.
    pub(super) fn join(self: &Arc<Self>, key: &[u8], rank: Rank) -> Joined<T> {
        let of_rank = |rank: Rank| [key, NO_FIELD, &[rank.index() as u8]].concat();
        let mut flights = self.lock();
        for before in rank.not_after() {
            let flight = flights.get(&of_rank(before)[..]);
            if let Some(flight) = flight.filter(|flight| !flight.is_outdated.load(Relaxed)) {
                return Joined::Follower(flight.outcome.subscribe());
            }
        }
        Joined::Leader(self.lead(&mut flights, of_rank(rank).into()))
    }

    /// Begins a fetch for a key that nobody joins. A change of what is under the key outdates it like others.
    pub(super) fn alone(self: &Arc<Self>, key: &[u8]) -> Lead<T> {
        let number = self.next.fetch_add(1, Relaxed).to_be_bytes();
        let key = [key, NO_FIELD, &number].concat();
        self.lead(&mut self.lock(), key.into())
    }

    fn lead(self: &Arc<Self>, flights: &mut ByKey<T>, key: Box<[u8]>) -> Lead<T> {
        let flight =
            Arc::new(Flight { outcome: watch::Sender::new(None), is_outdated: AtomicBool::new(false) });
        flights.insert(key.clone(), Arc::clone(&flight));
        Lead { flights: Arc::clone(self), flight, key }
    }

    /// Has nothing be kept of the fetches under way for keys with this prefix, and nobody join them.
    pub(super) fn outdate(&self, prefix: &[u8]) {
        let flights = self.lock();
        let outdated = flights.iter().filter(|(key, _)| key.starts_with(prefix));
        outdated.for_each(|(_, flight)| flight.is_outdated.store(true, Relaxed));
    }

    fn lock(&self) -> MutexGuard<'_, ByKey<T>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Lead<T> {
    /// True if what it fetches must not be kept.
    pub(crate) fn is_outdated(&self) -> bool {
        self.flight.is_outdated.load(Relaxed)
    }

    /// Gives those who follow an outcome.
    pub(crate) fn complete(self, outcome: Outcome<T>) {
        self.flight.outcome.send_replace(Some(outcome));
    }
}

impl<T> Drop for Lead<T> {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        if flights.get(&self.key).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
            flights.remove(&self.key);
        }
        drop(flights);
        self.flight.outcome.send_if_modified(|outcome| {
            let has_none = outcome.is_none();
            if has_none {
                *outcome = Some(Outcome::Failed);
            }
            has_none
        });
    }
}

/// The end of a key: no field has an empty name. A rank behind it is shorter than a number.
const NO_FIELD: &[u8] = b"\0\0";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Tier;

    const RANK: Rank = Rank { tier: Tier::Standard, waits_behind: false };

    fn lead(joined: Joined<()>) -> Lead<()> {
        match joined {
            Joined::Leader(lead) => lead,
            Joined::Follower(_) => panic!("another leads"),
        }
    }

    fn follow(joined: Joined<()>) -> watch::Receiver<Option<Outcome<()>>> {
        match joined {
            Joined::Follower(outcome) => outcome,
            Joined::Leader(_) => panic!("nobody leads"),
        }
    }

    #[test]
    fn a_leader_that_is_dropped_has_failed_and_another_leads() {
        let flights = Arc::new(Flights::default());
        let first = lead(flights.join(b"a", RANK));
        let outcome = follow(flights.join(b"a", RANK));
        lead(flights.join(b"b", RANK)).complete(Outcome::NotShared);
        assert!(outcome.borrow().is_none());
        drop(first);
        assert!(matches!(*outcome.borrow(), Some(Outcome::Failed)));
        lead(flights.join(b"a", RANK)).complete(Outcome::NotShared);
        assert!(flights.lock().is_empty());
    }

    #[test]
    fn nobody_joins_a_fetch_that_is_made_alone() {
        let flights = Arc::new(Flights::<()>::default());
        let alone = [flights.alone(b"a"), flights.alone(b"a")];
        let shared = lead(flights.join(b"a", RANK));
        flights.outdate(b"a");
        assert!(alone.iter().all(Lead::is_outdated) && shared.is_outdated());
        drop((alone, shared));
        assert!(flights.lock().is_empty());
    }

    #[test]
    fn nobody_follows_a_fetch_that_goes_after_them() {
        let flights = Arc::new(Flights::default());
        let low = lead(flights.join(b"a", Rank::LAST));
        let of_low = follow(flights.join(b"a", Rank::LAST));
        for rank in Rank::ALL.into_iter().rev().skip(1) {
            let high = lead(flights.join(b"a", rank));
            for after in Rank::ALL.into_iter().filter(|&after| after >= rank) {
                assert!(follow(flights.join(b"a", after)).borrow().is_none());
            }
            high.complete(Outcome::NotShared);
            assert!(of_low.borrow().is_none(), "it follows another");
        }
        let high = lead(flights.join(b"a", Tier::Batch.into()));
        flights.outdate(b"a");
        assert!(low.is_outdated() && high.is_outdated());
        drop((low, high));
        assert!(flights.lock().is_empty());
    }

    #[test]
    fn nobody_joins_a_fetch_that_began_before_a_change() {
        let flights = Arc::new(Flights::default());
        let old = lead(flights.join(b"a", RANK));
        flights.outdate(b"a");
        let new = lead(flights.join(b"a", RANK));
        assert!(old.is_outdated() && !new.is_outdated());
        old.complete(Outcome::NotShared);
        assert!(
            follow(flights.join(b"a", RANK)).borrow().is_none(),
            "the old one's end is not the new one's"
        );
    }
}
