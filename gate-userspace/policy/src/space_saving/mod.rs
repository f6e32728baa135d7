//! Space-Saving: the heaviest keys of a stream, in constant space.
//!
//! **Problem.** A few keys make most of the load, and there are too many keys to count each.
//!
//! **Source.** Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements
//! in Data Streams" (2005): count `capacity` keys; an uncounted key takes over the counter with the
//! smallest count, and that count becomes its error. Merging as in Agarwal et al., "Mergeable
//! Summaries" (2012).
//!
//! **Deviations.** Updates carry a weight, and weights differ. The paper's stream-summary, a list of
//! buckets of equal count, finds the smallest counter in constant time while every update adds one;
//! with weights it must walk past every count in between (a microsecond at 1,000 counters, where
//! weights are prices). Here a queue finds it that a growing counter does not touch, so counting a
//! known key is one look-up and one addition, and an update takes `O(log capacity)` amortized
//! whatever the weights.
//!
//! **Invariants.** Until the first decay, `true <= count <= true + error` for every counted key, and
//! no uncounted key weighs more than [`SpaceSaving::floor`], which is at most `total / capacity`.
//! Merging keeps both bounds. Weights are kept with ten bits after the point, and a decay by `f`
//! rounds counts down and errors up: `count - error <= true` stays exact, `true <= count` up to
//! `1 / (1024 * (1 - f))`. No allocation after construction but in [`SpaceSaving::merge`] and
//! [`SpaceSaving::top`]. Counts saturate.

mod index;
mod queue;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use gate_common::abi::Sample;
use gate_common::units::Fraction;

use self::index::Index;
use self::queue::Queue;
use super::range::{OutOfRange, ensure};

/// Counts the heaviest keys. See the [module](self).
///
/// A key is bytes within a scope (a service), so that equal keys of two services stay apart.
#[derive(Clone, Debug)]
pub struct SpaceSaving {
    hasher: FixedState,
    capacity: usize,
    // Weights here and in the counters have POINT bits after the point.
    total: u64,
    /// What a key may have weighed that is not counted although there is room.
    missed: u64,
    counters: Vec<Counter>,
    index: Index,
    queue: Queue,
}

/// One counted key. Aligned, so that the counter and a short key share a cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Counter {
    count: u64,
    error: u64,
    hash: u32,
    scope: u32,
    len: u16,
    bytes: [u8; SpaceSaving::MAX_KEY],
}

/// A counted key and what it weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Whose key it is.
    pub scope: u32,
    /// The key.
    pub key: &'a [u8],
    /// How much it weighs.
    pub weight: Estimate,
}

/// A weight and how far it may be above the true one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// At least the true weight.
    pub count: u64,
    /// The true weight is at least `count - error`.
    pub error: u64,
}

impl Estimate {
    /// What the key weighs for certain.
    #[must_use]
    pub const fn at_least(self) -> u64 {
        self.count.saturating_sub(self.error)
    }
}

impl SpaceSaving {
    /// The longest key that is counted, in bytes. A longer one never is: cut off, it would be
    /// taken for another.
    pub const MAX_KEY: usize = Sample::MAX_KEY;
    /// The most counters (26 MiB).
    pub const MAX_CAPACITY: usize = 1 << 16;

    /// A sketch of `capacity` counters. `seed` must be unpredictable where clients choose keys, or
    /// they can choose ones that collide.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if `capacity` is not from 1 to [`Self::MAX_CAPACITY`].
    pub fn new(capacity: usize, seed: u64) -> Result<Self, OutOfRange> {
        ensure((1..=Self::MAX_CAPACITY).contains(&capacity), "capacity", capacity, "from 1 to 65536")?;
        Ok(Self {
            hasher: FixedState::with_seed(seed),
            capacity,
            total: 0,
            missed: 0,
            counters: Vec::with_capacity(capacity),
            index: Index::new(capacity),
            queue: Queue::new(capacity),
        })
    }

    /// Adds `weight` to a key. Nothing happens to a key longer than [`Self::MAX_KEY`] or for a weight
    /// of zero.
    #[inline]
    pub fn update(&mut self, scope: u32, key: &[u8], weight: u64) {
        if key.len() > Self::MAX_KEY || weight == 0 {
            return;
        }
        let weight = weight.saturating_mul(1 << POINT);
        self.total = self.total.saturating_add(weight);
        let hash = self.hash(scope, key);
        if let Some(number) = self.find(hash, scope, key) {
            let counter = &mut self.counters[number as usize];
            counter.count = counter.count.saturating_add(weight);
        } else if self.counters.len() < self.capacity {
            self.insert(hash, scope, key, weight);
        } else {
            self.replace_smallest(hash, scope, key, weight);
        }
    }

    /// What a key weighs, if it is counted.
    #[must_use]
    pub fn estimate(&self, scope: u32, key: &[u8]) -> Option<Estimate> {
        self.find(self.hash(scope, key), scope, key).map(|number| self.counters[number as usize].weight())
    }

    /// No key that is not counted weighs more than this. Looks at every counter.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.exact_floor().div_ceil(1 << POINT)
    }

    /// The weight of all updates, decayed as the counts are, rounded up.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total.div_ceil(1 << POINT)
    }

    /// How many keys are counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counters.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    /// Every counted key, in no order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.counters.iter().map(Counter::entry)
    }

    /// The `most` heaviest keys, the heaviest first; of equal ones, the one whose scope and key come
    /// first.
    #[must_use]
    pub fn top(&self, most: usize) -> Vec<Entry<'_>> {
        let mut heaviest: Vec<_> = self.counters.iter().collect();
        heaviest.sort_unstable_by_key(|counter| counter.rank());
        heaviest.into_iter().take(most).map(Counter::entry).collect()
    }

    /// Multiplies every weight by `keep`, so that cooled keys leave.
    pub fn decay(&mut self, keep: Fraction) {
        self.total = scaled_down(self.total, keep);
        self.missed = scaled_up(self.missed, keep);
        for counter in &mut self.counters {
            counter.count = scaled_down(counter.count, keep);
            counter.error = scaled_up(counter.error, keep).min(counter.count);
        }
        if self.counters.iter().all(|counter| counter.count > 0) {
            self.queue.change_all(|count| scaled_down(count, keep));
        } else {
            self.counters.retain(|counter| counter.count > 0);
            self.rebuild();
        }
    }

    /// Adds what `other` counted, keeping the heaviest keys of both.
    pub fn merge(&mut self, other: &Self) {
        let (floor, other_floor) = (self.exact_floor(), other.exact_floor());
        for counter in &mut self.counters {
            let hash = other.hash(counter.scope, counter.key());
            let (count, error) = match other.find(hash, counter.scope, counter.key()) {
                Some(number) => other.counters[number as usize].exact(),
                None => (other_floor, other_floor),
            };
            counter.count = counter.count.saturating_add(count);
            counter.error = counter.error.saturating_add(error);
        }
        let mut union = std::mem::take(&mut self.counters);
        for counter in &other.counters {
            let hash = self.hash(counter.scope, counter.key());
            let counted =
                self.index.find(hash, |number| union[number as usize].is(counter.scope, counter.key()));
            if counted.is_none() {
                union.push(Counter {
                    hash,
                    count: counter.count.saturating_add(floor),
                    error: counter.error.saturating_add(floor),
                    ..counter.clone()
                });
            }
        }
        union.sort_unstable_by(|a, b| a.rank().cmp(&b.rank()));
        union.truncate(self.capacity);
        self.counters = union;
        self.counters.shrink_to(self.capacity);
        self.total = self.total.saturating_add(other.total);
        self.missed = floor.saturating_add(other_floor);
        self.rebuild();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        (self.total, self.missed) = (0, 0);
        self.counters.clear();
        self.rebuild();
    }

    /// The memory it takes, in bytes: the same from construction on.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.capacity * size_of::<Counter>() + self.index.memory_bytes() + self.queue.memory_bytes()
    }

    fn exact_floor(&self) -> u64 {
        if self.counters.len() < self.capacity {
            return self.missed;
        }
        self.counters.iter().map(|counter| counter.count).min().unwrap_or(0)
    }

    #[inline]
    fn hash(&self, scope: u32, key: &[u8]) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(scope);
        hasher.write(key);
        (hasher.finish() >> 32) as u32
    }

    #[inline]
    fn find(&self, hash: u32, scope: u32, key: &[u8]) -> Option<u32> {
        self.index.find(hash, |number| self.counters[number as usize].is(scope, key))
    }

    #[cold]
    fn insert(&mut self, hash: u32, scope: u32, key: &[u8], weight: u64) {
        let number = self.counters.len() as u32;
        let count = self.missed.saturating_add(weight);
        let mut counter =
            Counter { count, error: self.missed, hash, scope, len: 0, bytes: [0; Self::MAX_KEY] };
        counter.set_key(key);
        self.counters.push(counter);
        self.index.insert(hash, number);
        self.queue.push(count, number);
    }

    /// Gives the counter with the smallest count to another key.
    #[inline]
    fn replace_smallest(&mut self, hash: u32, scope: u32, key: &[u8], weight: u64) {
        let number = self.queue.smallest(|number| self.counters[number as usize].count);
        let counter = &mut self.counters[number as usize];
        self.index.remove(counter.hash, number);
        self.index.insert(hash, number);
        counter.error = counter.count;
        counter.count = counter.count.saturating_add(weight);
        counter.hash = hash;
        counter.scope = scope;
        counter.set_key(key);
        self.queue.replace_smallest(counter.count, number);
    }

    /// Makes index and queue anew from the counters.
    fn rebuild(&mut self) {
        self.index.clear();
        self.queue.clear();
        // Backwards, since merging leaves the smallest last and the queue likes it first.
        for (number, counter) in self.counters.iter().enumerate().rev() {
            self.index.insert(counter.hash, number as u32);
            self.queue.push(counter.count, number as u32);
        }
    }
}

impl Counter {
    fn key(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn set_key(&mut self, key: &[u8]) {
        self.len = key.len() as u16;
        self.bytes[..key.len()].copy_from_slice(key);
    }

    #[inline]
    fn is(&self, scope: u32, key: &[u8]) -> bool {
        self.scope == scope && self.key() == key
    }

    const fn exact(&self) -> (u64, u64) {
        (self.count, self.error)
    }

    /// In whole units, rounded so that the bounds hold.
    const fn weight(&self) -> Estimate {
        let (at_least, count) = ((self.count - self.error) >> POINT, self.count.div_ceil(1 << POINT));
        Estimate { count, error: count - at_least }
    }

    /// Sorts the heaviest first, and the same counters in the same order always.
    fn rank(&self) -> (Reverse<u64>, u64, u32, &[u8]) {
        (Reverse(self.count), self.error, self.scope, self.key())
    }

    fn entry(&self) -> Entry<'_> {
        Entry { scope: self.scope, key: self.key(), weight: self.weight() }
    }
}

fn scaled_down(weight: u64, keep: Fraction) -> u64 {
    ((u128::from(weight) * u128::from(keep.steps())) >> 16) as u64
}

fn scaled_up(weight: u64, keep: Fraction) -> u64 {
    (u128::from(weight) * u128::from(keep.steps())).div_ceil(1 << 16) as u64
}

/// Bits after the point of a weight, so that a light key does not lose all of it to rounding at every
/// decay. Leaves 54 bits before the point: a billion a second for half a year.
const POINT: u32 = 10;
