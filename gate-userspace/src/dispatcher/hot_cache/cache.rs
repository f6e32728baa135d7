//! Answers that may be given again: one thread's.
//!
//! **Invariants.** What is given was asked for at the key's present version, and less than its life ago. Memory
//! is bounded: by weight, which counts what an entry takes beside its bytes. Pure: time is an argument.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use gate_common::units::Nanos;
use quick_cache::{Equivalent, Weighter, unsync};

use super::flights::{Flight, Question};
use super::versions::{KeyHash, Version, Versions};

/// Kept answers, by what was asked.
#[derive(Debug)]
pub(in crate::dispatcher) struct Cache {
    entries: unsync::Cache<Asked, Entry, Weigh, foldhash::fast::RandomState>,
}

/// A [`Question`] that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    scope: u64,
    request: Rc<[u8]>,
}

impl Hash for Asked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Question { scope: self.scope, request: &self.request }.hash(state);
    }
}

impl Equivalent<Asked> for Question<'_> {
    #[inline]
    fn equivalent(&self, asked: &Asked) -> bool {
        self.scope == asked.scope && *self.request == *asked.request
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

#[derive(Clone, Debug)]
struct Weigh;

impl Weighter<Asked, Entry> for Weigh {
    fn weight(&self, asked: &Asked, entry: &Entry) -> u64 {
        (ENTRY + asked.request.len() + entry.answer.as_ref().map_or(0, |answer| answer.len())) as u64
    }
}

/// What is known of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dispatcher) enum Found {
    /// The answer, and the key that it is about.
    Answer(Rc<[u8]>, KeyHash),
    /// That its answer is too long to be kept.
    TooLong,
    /// There was an answer, but the key has been written to since.
    Outdated,
    /// Nothing.
    Nothing,
}

impl Cache {
    /// One that takes at most `memory` bytes.
    pub(in crate::dispatcher) fn new(memory: u64) -> Self {
        let items = (memory as usize / (2 * ENTRY)).clamp(1, MOST_ENTRIES);
        let hasher = foldhash::fast::RandomState::default();
        let entries = unsync::Cache::with(items, memory, Weigh, hasher, Default::default());
        Self { entries }
    }

    /// What is known of a question.
    #[inline(always)]
    pub(in crate::dispatcher) fn find(
        &mut self,
        question: Question<'_>,
        versions: &Versions,
        now: Nanos,
    ) -> Found {
        let Some(entry) = self.entries.get(&question) else { return Found::Nothing };
        let fresh = now < entry.until;
        match &entry.answer {
            None if fresh => return Found::TooLong,
            Some(answer) if fresh && versions.holds(entry.key, entry.version) => {
                return Found::Answer(Rc::clone(answer), entry.key);
            }
            _ => {}
        }
        self.entries.remove(&question);
        if fresh { Found::Outdated } else { Found::Nothing }
    }

    /// Keeps what a flight brought until then; `None` if that was too long.
    pub(in crate::dispatcher) fn keep(&mut self, flight: &Flight, answer: Option<&[u8]>, until: Nanos) {
        let Question { scope, request } = flight.question();
        let answer = answer.map(Into::into);
        let entry = Entry { key: flight.key, version: flight.version, until, answer };
        self.entries.insert(Asked { scope, request: request.into() }, entry);
    }
}

/// What an entry takes beside its bytes.
const ENTRY: usize = 192;
/// There are far fewer hot keys.
const MOST_ENTRIES: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::flights::{Flights, Part};
    use super::super::versions::Marker;
    use super::*;

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
            let question = Question { scope: 0, request: key.as_bytes() };
            let hash = self.versions.hash(key.as_bytes());
            let version = self.versions.of(hash).unwrap();
            let Part::Leads(leading) = self.flights.join(question, hash, version, 0, 100) else { panic!() };
            self.cache.keep(leading.flight(), answer, until);
        }

        fn find(&mut self, scope: u64, key: &str, now: Nanos) -> Found {
            self.cache.find(Question { scope, request: key.as_bytes() }, &self.versions, now)
        }
    }

    #[test]
    fn an_answer_is_given_until_its_life_is_over_and_to_nobody_else() {
        let mut scene = Scene::new();
        scene.keep("a", Some(b"1"), UNTIL);
        scene.keep("long", None, UNTIL);
        let last = Nanos(UNTIL.0 - 1);
        assert_eq!(scene.find(0, "a", last), Found::Answer(b"1"[..].into(), scene.versions.hash(b"a")));
        assert_eq!(scene.find(1, "a", last), Found::Nothing, "someone else asks");
        assert_eq!(scene.find(0, "b", last), Found::Nothing);
        assert_eq!(scene.find(0, "long", last), Found::TooLong);
        assert_eq!(scene.find(0, "a", UNTIL), Found::Nothing);
        assert_eq!(scene.find(0, "long", UNTIL), Found::Nothing);
        assert_eq!(scene.find(0, "a", last), Found::Nothing, "it is forgotten");
    }

    #[test]
    fn a_write_ends_an_answer_and_that_it_is_long_stays_known() {
        let mut scene = Scene::new();
        scene.keep("a", Some(b"1"), UNTIL);
        scene.keep("long", None, UNTIL);
        let marker = Marker::new(Arc::clone(&scene.versions));
        marker.mark_all().over();
        assert_eq!(scene.find(0, "a", Nanos(1)), Found::Outdated);
        assert_eq!(scene.find(0, "a", Nanos(1)), Found::Nothing);
        assert_eq!(scene.find(0, "long", Nanos(1)), Found::TooLong);
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
        assert_eq!(scene.find(0, "larger than all there is", Nanos(1)), Found::Nothing);
    }
}
