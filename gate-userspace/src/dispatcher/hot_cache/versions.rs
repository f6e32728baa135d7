//! Versions of keys: they tell if an answer that was read still holds.
//!
//! **Problem.** An answer may be given again only while no write to its key was sent since it was asked for.
//! **How.** Each word has a version in its upper half and the writes outstanding in its lower half. A write
//! marks the words of its keys before it is sent and unmarks them after its answer; both raise the version.
//! A read notes the version, if nothing is outstanding, before it is sent; its answer holds for as long as
//! the version is the same. Keys share words by a seeded hash: a collision costs a read, never a
//! wrong answer. One more word stands for all keys: what could touch any of them marks that one.
//!
//! **A write that gets no answer** may yet be done by the store: its mark stays for the store's timeout.
//! A [`Mark`] that is dropped without a word counts as such, so none is forgotten.
//!
//! **Invariants.** A word never has fewer writes outstanding than there are. Every outstanding write is a
//! request in memory, so the lower half cannot overflow; the version would have to be raised 2^32 times within
//! an answer's life to come around.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hasher as _};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use gate_common::units::Nanos;

/// The versions of a store's keys, for all threads and all services before that store.
#[derive(Debug)]
pub(crate) struct Versions {
    hasher: FixedState,
    words: Box<[AtomicU64]>,
    all: AtomicU64,
}

/// The hash of a key, the same in all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyHash(u64);

impl KeyHash {
    /// One bit of 128, for filters.
    #[inline]
    pub(crate) const fn bit(self) -> u128 {
        1 << (self.0 >> 57)
    }
}

/// A key's version at a moment when nothing was outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    word: u64,
    all: u64,
}

impl Versions {
    /// Nothing written yet. The seed keeps clients from choosing keys that collide.
    pub(crate) fn new(seed: u64) -> Self {
        let words = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        Self { hasher: FixedState::with_seed(seed), words, all: AtomicU64::new(0) }
    }

    /// A key's hash.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        KeyHash(hasher.finish())
    }

    /// The version of a key; `None` while it may be being written.
    #[inline]
    pub(crate) fn of(&self, key: KeyHash) -> Option<Version> {
        let version = self.load(key);
        ((version.word | version.all) as u32 == 0).then_some(version)
    }

    /// True if `version` is still the key's, so that no write to it was sent since.
    #[inline]
    pub(crate) fn holds(&self, key: KeyHash, version: Version) -> bool {
        self.load(key) == version
    }

    #[inline]
    fn load(&self, key: KeyHash) -> Version {
        let word = self.words[key.0 as usize % WORDS].load(Ordering::SeqCst);
        Version { word, all: self.all.load(Ordering::SeqCst) }
    }

    /// From now on no answer holds, until [`Versions::resume`]: keys are written to that nobody here knows of.
    pub(crate) fn suspend(&self) {
        self.change(&MarkedSlots::All, MARK);
    }

    /// Answers hold again, those that come from now on.
    pub(crate) fn resume(&self) {
        self.change(&MarkedSlots::All, UNMARK);
    }

    fn change(&self, words: &MarkedSlots, by: u64) {
        let change = |word: &AtomicU64| word.fetch_add(by, Ordering::SeqCst);
        match words {
            MarkedSlots::All => {
                change(&self.all);
            }
            MarkedSlots::One(at) => {
                change(&self.words[*at as usize]);
            }
            MarkedSlots::Some(many) => many.iter().for_each(|&at| {
                change(&self.words[at as usize]);
            }),
        }
    }
}

/// Which words a write marks.
#[derive(Debug)]
enum MarkedSlots {
    All,
    One(u32),
    Some(Box<[u32]>),
}

/// The keys that the requests of a transaction write, until it is executed.
#[derive(Debug)]
pub(crate) enum GatheredKeys {
    /// Any, or more than are worth remembering.
    All,
    Some(Vec<u32>),
}

impl Default for GatheredKeys {
    fn default() -> Self {
        Self::Some(Vec::new())
    }
}

impl GatheredKeys {
    /// Adds the keys of one more request.
    pub(crate) fn add(&mut self, mark: &Mark) {
        let Self::Some(words) = self else { return };
        match &mark.words {
            Some(MarkedSlots::One(word)) => words.push(*word),
            Some(MarkedSlots::Some(many)) => words.extend_from_slice(many),
            Some(MarkedSlots::All) => return *self = Self::All,
            None => {}
        }
        if words.len() > MOST_GATHERED {
            *self = Self::All;
        }
    }
}

/// Marks for one thread, and those that stay for a while.
#[derive(Debug)]
pub(crate) struct Marker {
    versions: Arc<Versions>,
    /// Marks of writes that got no answer, and until when they stay; `None` until the next look.
    late: RefCell<VecDeque<(Option<Nanos>, MarkedSlots)>>,
    /// When the store will forget everything, as clients have told it to.
    delay_refusal: RefCell<Vec<Delayed>>,
}

/// A time around which no answer holds.
#[derive(Clone, Copy, Debug)]
struct Delayed {
    from: Nanos,
    until: Nanos,
    is_marked: bool,
}

impl Marker {
    pub(crate) fn new(versions: Arc<Versions>) -> Rc<Self> {
        Rc::new(Self { versions, late: RefCell::default(), delay_refusal: RefCell::default() })
    }

    /// Does something after which keys may be at other stores: no answer from before holds, and none that is asked for meanwhile.
    pub(crate) fn while_keys_move(&self, change: &dyn Fn()) {
        self.versions.suspend();
        change();
        self.versions.resume();
    }

    /// Marks the keys of a write that is about to be sent; without keys, all there are.
    #[inline]
    pub(crate) fn mark<'k>(self: &Rc<Self>, mut keys: impl Iterator<Item = &'k [u8]>) -> Mark {
        let word = |key: &[u8]| (self.versions.hash(key).0 as usize % WORDS) as u32;
        let words = match (keys.next(), keys.next()) {
            (None, _) => MarkedSlots::All,
            (Some(key), None) => MarkedSlots::One(word(key)),
            (Some(one), Some(other)) => {
                MarkedSlots::Some([one, other].into_iter().chain(keys).map(word).collect())
            }
        };
        self.versions.change(&words, MARK);
        Mark { words: Some(words), marker: Rc::clone(self) }
    }

    /// Marks all keys.
    pub(crate) fn mark_all(self: &Rc<Self>) -> Mark {
        self.mark(std::iter::empty())
    }

    /// Marks the keys that a transaction writes and is about to be executed; `None` if it writes none.
    pub(crate) fn mark_gathered(self: &Rc<Self>, gathered: GatheredKeys) -> Option<Mark> {
        let words = match gathered {
            GatheredKeys::All => MarkedSlots::All,
            GatheredKeys::Some(words) if words.is_empty() => return None,
            GatheredKeys::Some(words) => MarkedSlots::Some(words.into()),
        };
        self.versions.change(&words, MARK);
        Some(Mark { words: Some(words), marker: Rc::clone(self) })
    }

    /// Marks all keys around a time at which the store will forget them: from when an answer that is kept could
    /// outlive it, until the store's clock is certain to have reached it.
    pub(crate) fn mark_all_at(&self, time: Nanos, now: Nanos) {
        let from = time.saturating_sub(BEFORE_FLUSH);
        let until = time.saturating_add(AFTER_FLUSH);
        let mut delay_refusal = self.delay_refusal.borrow_mut();
        if delay_refusal.len() < MOST_DELAYED {
            delay_refusal.push(Delayed { from, until, is_marked: false });
        } else if let Some(last) = delay_refusal.last_mut() {
            // Whoever asks for so many has them as one.
            (last.from, last.until) = (last.from.min(from), last.until.max(until));
        }
        drop(delay_refusal);
        self.mark_delayed(now);
    }

    /// Unmarks what has stayed for the store's timeout. To be called now and then.
    pub(crate) fn housekeeping(&self, now: Nanos, timeout: Nanos) {
        self.mark_delayed(now);
        let late = &mut *self.late.borrow_mut();
        for (until, _) in late.iter_mut().rev().take_while(|(until, _)| until.is_none()) {
            *until = Some(now.saturating_add(timeout));
        }
        while let Some((_, words)) = late.pop_front_if(|(until, _)| until.is_some_and(|until| until <= now)) {
            self.versions.change(&words, UNMARK);
        }
    }

    /// Marks and unmarks all keys as the times come and pass.
    fn mark_delayed(&self, now: Nanos) {
        self.delay_refusal.borrow_mut().retain_mut(|delay_refusal| {
            let marks = (delay_refusal.from..delay_refusal.until).contains(&now);
            if marks != std::mem::replace(&mut delay_refusal.is_marked, marks) {
                self.versions.change(&MarkedSlots::All, if marks { MARK } else { UNMARK });
            }
            now < delay_refusal.until
        });
    }
}

/// The mark of one write.
#[derive(Debug)]
#[must_use]
pub(crate) struct Mark {
    words: Option<MarkedSlots>,
    marker: Rc<Marker>,
}

impl Mark {
    /// The write is over: it was answered, or never sent.
    #[inline]
    pub(crate) fn over(mut self) {
        if let Some(words) = self.words.take() {
            self.marker.versions.change(&words, UNMARK);
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(words) = self.words.take() {
            self.marker.late.borrow_mut().push_back((None, words));
        }
    }
}

/// 512 KiB: at 10,000 writes outstanding, one hot key in seven is blocked by another's.
const WORDS: usize = 1 << 16;
/// Keys of a transaction that are marked one by one.
const MOST_GATHERED: usize = 1 << 12;
/// Times to forget everything at that are kept apart.
const MOST_DELAYED: usize = 16;
/// An answer lives for 3 s at most; and memcached counts in seconds.
const BEFORE_FLUSH: Nanos = Nanos::from_secs(5);
const AFTER_FLUSH: Nanos = Nanos::from_secs(2);
/// One version more, and one write more.
const MARK: u64 = (1 << 32) + 1;
/// One version more, and one write less.
const UNMARK: u64 = (1 << 32) - 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Nanos = Nanos::from_secs(1);

    fn marker() -> (Arc<Versions>, Rc<Marker>) {
        let versions = Arc::new(Versions::new(1));
        (Arc::clone(&versions), Marker::new(versions))
    }

    fn mark(marker: &Rc<Marker>, key: &[u8]) -> Mark {
        marker.mark(std::iter::once(key))
    }

    #[test]
    fn a_write_invalidates_reads_before_and_during_it() {
        let (versions, marker) = marker();
        let key = versions.hash(b"key");
        let other = versions.hash(b"other");
        let before = versions.of(key).unwrap();
        let unharmed = versions.of(other).unwrap();
        let mark = mark(&marker, b"key");
        assert!(versions.of(key).is_none() && !versions.holds(key, before));
        mark.over();
        let after = versions.of(key).unwrap();
        assert!(!versions.holds(key, before) && versions.holds(key, after));
        assert!(versions.holds(other, unharmed));
    }

    #[test]
    fn what_may_touch_any_key_ends_all() {
        let (versions, marker) = marker();
        let key = versions.hash(b"key");
        let before = versions.of(key).unwrap();
        let all = marker.mark_all();
        assert!(versions.of(key).is_none());
        all.over();
        assert!(!versions.holds(key, before) && versions.of(key).is_some());
    }

    #[test]
    fn a_write_without_an_answer_blocks_its_keys_for_the_timeout() {
        let (versions, marker) = marker();
        let keys = [versions.hash(b"a"), versions.hash(b"b")];
        drop(marker.mark([&b"a"[..], b"b"].into_iter()));
        let blocked = |now: u64| {
            marker.housekeeping(Nanos(now), TIMEOUT);
            keys.map(|key| versions.of(key).is_none())
        };
        assert_eq!(blocked(5), [true, true]);
        assert_eq!(blocked(5 + TIMEOUT.0 - 1), [true, true]);
        assert_eq!(blocked(5 + TIMEOUT.0), [false, false]);
    }

    #[test]
    fn nothing_holds_while_the_store_may_forget_everything() {
        let (versions, marker) = marker();
        let key = versions.hash(b"key");
        marker.mark_all_at(Nanos::from_secs(100), Nanos::ZERO);
        let holds = |second| {
            marker.housekeeping(Nanos::from_secs(second), TIMEOUT);
            versions.of(key).is_some()
        };
        assert_eq!([0, 94, 95, 100, 101, 102].map(holds), [true, true, false, false, false, true]);
        (0..1_000)
            .for_each(|second| marker.mark_all_at(Nanos::from_secs(200 + second), Nanos::from_secs(103)));
        assert_eq!(marker.delay_refusal.borrow().len(), MOST_DELAYED);
        assert_eq!([194, 195, 1_200, 1_201].map(holds), [true, false, false, true]);
        assert!(marker.delay_refusal.borrow().is_empty());
    }

    proptest! {
        /// Against a plain model: by key, which writes are outstanding, and how many there have been.
        #[test]
        fn only_what_no_write_was_sent_to_since_holds(
            steps in proptest::collection::vec((0_u8..5, 0_u8..6, any::<proptest::sample::Index>()), 1..200),
        ) {
            let (versions, marker) = marker();
            let name = |key: u8| [b'k', key];
            let mut outstanding: Vec<(Vec<u8>, Mark)> = Vec::new();
            let mut sent = [0_u32; 6];
            let mut noted: Vec<(u8, Version, u32)> = Vec::new();
            for (step, key, index) in steps {
                let keys: Vec<u8> = match step {
                    0 => vec![key],
                    1 => vec![key, (key + 1) % 6],
                    2 => (0..6).collect(),
                    _ => Vec::new(),
                };
                if !keys.is_empty() {
                    let names: Vec<_> = keys.iter().map(|&key| name(key)).collect();
                    let mark = if step == 2 { marker.mark_all() } else {
                        marker.mark(names.iter().map(|name| &name[..]))
                    };
                    keys.iter().for_each(|&key| sent[usize::from(key)] += 1);
                    outstanding.push((keys, mark));
                } else if step == 3 && !outstanding.is_empty() {
                    outstanding.swap_remove(index.index(outstanding.len())).1.over();
                } else if let Some(version) = versions.of(versions.hash(&name(key))) {
                    prop_assert!(outstanding.iter().all(|(keys, _)| !keys.contains(&key)), "it is marked");
                    noted.push((key, version, sent[usize::from(key)]));
                }
                for &(key, version, before) in &noted {
                    let holds = versions.holds(versions.hash(&name(key)), version);
                    prop_assert!(!holds || before == sent[usize::from(key)], "an old version holds");
                    prop_assert!(holds || before != sent[usize::from(key)], "it was lost for nothing");
                }
            }
        }
    }

    #[test]
    fn a_transaction_marks_the_keys_that_it_writes() {
        let versions = Arc::new(Versions::new(1));
        let marker = Marker::new(Arc::clone(&versions));
        let blocked = |key: &str| versions.of(versions.hash(key.as_bytes())).is_none();
        let mut gathered = GatheredKeys::default();
        assert!(marker.mark_gathered(std::mem::take(&mut gathered)).is_none(), "it writes nothing");
        for keys in [&["a"][..], &["b", "c"]] {
            let mark = marker.mark(keys.iter().map(|key| key.as_bytes()));
            gathered.add(&mark);
            mark.over();
        }
        assert!(!blocked("a") && !blocked("b"), "what is queued is not done");
        let mark = marker.mark_gathered(std::mem::take(&mut gathered)).unwrap();
        assert!(["a", "b", "c"].into_iter().all(blocked) && !blocked("d"));
        mark.over();
        assert!(!blocked("a"));
        let mark = marker.mark_all();
        gathered.add(&mark);
        mark.over();
        let mark = marker.mark_gathered(gathered).unwrap();
        assert!(blocked("d"), "a script may write any key");
        mark.over();
        let mut many = GatheredKeys::default();
        for number in 0..=MOST_GATHERED {
            let mark = marker.mark(std::iter::once(number.to_string().as_bytes()));
            many.add(&mark);
            mark.over();
        }
        assert!(matches!(many, GatheredKeys::All), "more than are worth remembering");
    }
}
