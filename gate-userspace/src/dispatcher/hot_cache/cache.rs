//! Answers that may be given again: one thread's.
//!
//! **Invariants.** What is given was asked for at the key's present version, and less than its life ago. Memory
//! is bounded: by weight, which counts what an entry takes beside its bytes. Pure: time is an argument.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use gate_common::units::Nanos;
use quick_cache::{Equivalent, Weighter, unsync};

use super::flights::{Flight, FlightKey};
use super::versions::{KeyHash, Version, Versions};

/// Kept answers, by what was asked.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: unsync::Cache<CacheKey, Entry, EntryWeighter, foldhash::fast::RandomState>,
}

/// A [`FlightKey`] that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CacheKey {
    scope: u64,
    request: Rc<[u8]>,
}

impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        FlightKey { scope: self.scope, request: &self.request }.hash(state);
    }
}

impl Equivalent<CacheKey> for FlightKey<'_> {
    #[inline]
    fn equivalent(&self, key: &CacheKey) -> bool {
        self.scope == key.scope && *self.request == *key.request
    }
}

#[derive(Clone, Debug)]
struct Entry {
    key: KeyHash,
    version: Version,
    until: Nanos,
    /// `None` if it is too long to be kept.
    answer: Option<Rc<[u8]>>,
}

impl Entry {
    /// The result of a look-up that has found this entry.
    #[inline(always)]
    fn look_up(&self, versions: &Versions, now: Nanos) -> Lookup {
        let fresh = now < self.until;
        match &self.answer {
            None if fresh => Lookup::TooLong,
            Some(answer) if fresh && versions.holds(self.key, self.version) => {
                Lookup::Hit(Rc::clone(answer), self.key)
            }
            _ if fresh => Lookup::Stale,
            _ => Lookup::Miss,
        }
    }
}

#[derive(Clone, Debug)]
struct EntryWeighter;

impl Weighter<CacheKey, Entry> for EntryWeighter {
    fn weight(&self, key: &CacheKey, entry: &Entry) -> u64 {
        (ENTRY + key.request.len() + entry.answer.as_ref().map_or(0, |answer| answer.len())) as u64
    }
}

/// The result of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The answer, and the key that it is about.
    Hit(Rc<[u8]>, KeyHash),
    /// That its answer is too long to be kept.
    TooLong,
    /// There was an answer, but the key has been written to since.
    Stale,
    /// Nothing.
    Miss,
}

impl Cache {
    /// One that takes at most `memory` bytes.
    pub(crate) fn new(memory: u64) -> Self {
        let items = (memory as usize / (2 * ENTRY)).clamp(1, MOST_ENTRIES);
        let hasher = foldhash::fast::RandomState::default();
        let entries = unsync::Cache::with(items, memory, EntryWeighter, hasher, Default::default());
        Self { entries }
    }

    /// The result of a look-up.
    #[inline(always)]
    pub(crate) fn find(&mut self, flight_key: FlightKey<'_>, versions: &Versions, now: Nanos) -> Lookup {
        let Some(entry) = self.entries.get(&flight_key) else { return Lookup::Miss };
        let found = entry.look_up(versions, now);
        if matches!(found, Lookup::Stale | Lookup::Miss) {
            self.entries.remove(&flight_key);
        }
        found
    }

    /// The result of [`Cache::find`], with the entries and their order of eviction left as they are.
    pub(crate) fn peek(&self, flight_key: FlightKey<'_>, versions: &Versions, now: Nanos) -> Lookup {
        self.entries.peek(&flight_key).map_or(Lookup::Miss, |entry| entry.look_up(versions, now))
    }

    /// Keeps what a flight brought until then; `None` if that was too long.
    pub(crate) fn keep(&mut self, flight: &Flight, answer: Option<&[u8]>, until: Nanos) {
        let FlightKey { scope, request } = flight.flight_key();
        let answer = answer.map(Into::into);
        let entry = Entry { key: flight.key, version: flight.version, until, answer };
        self.entries.insert(CacheKey { scope, request: request.into() }, entry);
    }
}

/// The memory that an entry takes beside its bytes.
const ENTRY: usize = 192;
/// There are far fewer hot keys.
const MOST_ENTRIES: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::flights::{Flights, JoinResult};
    use super::super::versions::Marker;
    use super::*;
    use crate::policy::Tier;

    const MEMORY: u64 = 100_000;
    const UNTIL: Nanos = Nanos::from_secs(3);

    struct Scene {
        versions: Arc<Versions>,
        flights: Arc<Flights>,
        cache: Cache,
    }

    impl Scene {
        fn new() -> Self {
            let versions = Arc::new(Versions::new(1));
            Self { versions, flights: Arc::new(Flights::new(1, 2)), cache: Cache::new(MEMORY) }
        }

        fn keep(&mut self, key: &str, answer: Option<&[u8]>, until: Nanos) {
            let flight_key = FlightKey { scope: 0, request: key.as_bytes() };
            let hash = self.versions.hash(key.as_bytes());
            let version = self.versions.of(hash).unwrap();
            let joined = self.flights.join(flight_key, hash, version, Tier::Standard.into(), 0, 100);
            let JoinResult::Leader(leading) = joined else { panic!() };
            self.cache.keep(leading.flight(), answer, until);
        }

        fn find(&mut self, scope: u64, key: &str, now: Nanos) -> Lookup {
            self.cache.find(FlightKey { scope, request: key.as_bytes() }, &self.versions, now)
        }
    }

    #[test]
    fn an_answer_is_given_until_its_ttl_and_only_to_its_scope() {
        let mut scene = Scene::new();
        scene.keep("a", Some(b"1"), UNTIL);
        scene.keep("long", None, UNTIL);
        let last = Nanos(UNTIL.0 - 1);
        assert_eq!(scene.find(0, "a", last), Lookup::Hit(b"1"[..].into(), scene.versions.hash(b"a")));
        assert_eq!(scene.find(1, "a", last), Lookup::Miss, "someone else asks");
        assert_eq!(scene.find(0, "b", last), Lookup::Miss);
        assert_eq!(scene.find(0, "long", last), Lookup::TooLong);
        assert_eq!(scene.find(0, "a", UNTIL), Lookup::Miss);
        assert_eq!(scene.find(0, "long", UNTIL), Lookup::Miss);
        assert_eq!(scene.find(0, "a", last), Lookup::Miss, "it is forgotten");
    }

    #[test]
    fn a_write_ends_an_answer_and_that_it_is_long_stays_known() {
        let mut scene = Scene::new();
        scene.keep("a", Some(b"1"), UNTIL);
        scene.keep("long", None, UNTIL);
        let marker = Marker::new(Arc::clone(&scene.versions));
        marker.mark_all().over();
        assert_eq!(scene.find(0, "a", Nanos(1)), Lookup::Stale);
        assert_eq!(scene.find(0, "a", Nanos(1)), Lookup::Miss);
        assert_eq!(scene.find(0, "long", Nanos(1)), Lookup::TooLong);
    }

    #[test]
    fn memory_is_bounded_whatever_is_kept() {
        let mut scene = Scene::new();
        for number in 0..2_000 {
            let answer = vec![b'v'; number % 50 * 40];
            scene.keep(&format!("key {number}"), Some(&answer), UNTIL);
            assert!(scene.cache.entries.weight() <= MEMORY);
        }
        assert!(scene.cache.entries.len() > 20);
        scene.keep("larger than all there is", Some(&vec![0; MEMORY as usize]), UNTIL);
        assert_eq!(scene.find(0, "larger than all there is", Nanos(1)), Lookup::Miss);
    }
}
