//! The buckets under one lock, in bounded memory.
//!
//! Each has one place in a heap, by the time from which on it was full when it was looked at last. A charge moves that time on
//! without a word to the heap, so the first of the heap is looked at again: if its bucket is no longer full, or has been full since
//! later, it goes to its new place. No bucket is full before its time in the heap, but for refunds; so where the first is not due, none
//! is, and nothing is looked at.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::quality::RandomState;
use gate_common::units::Nanos;
use slab::Slab;

use super::member::Member;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Shard {
    index: HashMap<ByKey, u32, RandomState>,
    members: Slab<Arc<Member>>,
    /// By the time since when it is full, at the latest look; then the place among `members`.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    bytes: usize,
}

/// A member that is found by its key.
#[derive(Debug)]
struct ByKey(Arc<Member>);

impl Borrow<[u8]> for ByKey {
    fn borrow(&self) -> &[u8] {
        self.0.key()
    }
}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

impl Shard {
    pub(super) fn get(&self, key: &[u8]) -> Option<&Arc<Member>> {
        let place = *self.index.get(key)?;
        self.members.get(place as usize)
    }

    /// Makes a full bucket for a key that has none, if there is room for it in so many bytes or can be made; counts the
    /// evictions.
    pub(super) fn insert(
        &mut self,
        key: &[u8],
        room: usize,
        now: Nanos,
        evictions: &mut u64,
    ) -> Option<Arc<Member>> {
        let bytes = bytes_of(key);
        let mut looks = LOOKS;
        while self.bytes + bytes > room {
            self.evict_one(now, &mut looks)?;
            *evictions += 1;
        }
        self.bytes += bytes;
        let member = Arc::new(Member::new(key));
        let place = self.members.insert(Arc::clone(&member)) as u32;
        self.index.insert(ByKey(Arc::clone(&member)), place);
        self.due.push(Reverse((now.0, place)));
        Some(member)
    }

    /// The members at these places, and true if there may be some behind them.
    pub(super) fn at(&self, places: Range<usize>) -> (impl Iterator<Item = &Arc<Member>>, bool) {
        let is_more = places.end < self.members.capacity();
        (places.filter_map(|place| self.members.get(place)), is_more)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Evicts the bucket that has been full for longest; `None` if none is full, or none is found in as many looks as are left.
    fn evict_one(&mut self, now: Nanos, looks: &mut usize) -> Option<()> {
        while let Some(&Reverse((since, place))) = self.due.peek().filter(|first| first.0.0 <= now.0) {
            self.due.pop();
            let member = &self.members[place as usize];
            let full_since = member.word().load(Ordering::Relaxed);
            // The last looks are for any that may go: there may be no end of buckets that were used shortly.
            let is_first = full_since <= since || *looks < LOOKS_FOR_ANY;
            if is_first && member.is_full(now) && !is_held(member) {
                self.remove(place);
                return Some(());
            }
            let again = if is_held(member) { now.saturating_add(LOOK_AT_HELD).0 } else { full_since };
            self.due.push(Reverse((again.max(since), place)));
            *looks = looks.checked_sub(1)?;
        }
        None
    }

    fn remove(&mut self, place: u32) {
        let member = self.members.remove(place as usize);
        self.index.remove(member.key());
        self.bytes -= bytes_of(member.key());
    }
}

/// True if something beside the shard refers to a member. Under the shard's lock nobody begins to.
fn is_held(member: &Arc<Member>) -> bool {
    Arc::strong_count(member) > 2
}

/// The most memory that a member takes: the tables double when they are full.
fn bytes_of(key: &[u8]) -> usize {
    let tables = size_of::<Arc<Member>>() + size_of::<(ByKey, u32)>() + 1 + size_of::<Reverse<(u64, u32)>>();
    2 * (tables + size_of::<usize>()) + size_of::<Member>() + ARC_HEADER + key.len().next_multiple_of(16)
}

/// Buckets that are looked at for one that may go: enough to find one of a few, and no time that a flood of new values could make
/// long.
const LOOKS: usize = 64;
/// Of these, the last ones that take any that may go.
const LOOKS_FOR_ANY: usize = 48;
/// The time until a member is looked at again that something refers to.
const LOOK_AT_HELD: Nanos = Nanos::from_secs(1);
/// Two counters.
const ARC_HEADER: usize = 16;
