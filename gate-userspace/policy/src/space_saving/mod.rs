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
//! `1 / (1024 * (1 - f))`. With [shares](SpaceSaving::with_shares), a key that a full group displaced may come back with too
//! small a count; `count - error <= true` still holds. No allocation after construction but in [`SpaceSaving::merge`] and
//! [`SpaceSaving::top`], and with shares. Counts saturate.

mod counter;
mod index;
mod queue;
mod shares;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use gate_common::abi::Sample;
use gate_common::units::Fraction;

use self::counter::{Counter, POINT};
pub use self::counter::{Entry, Estimate};
use self::index::Index;
use self::queue::Queue;
use self::shares::Shares;
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
    /// The largest weight of a key that is not counted although there is room.
    missed: u64,
    counters: Vec<Counter>,
    index: Index,
    queue: Queue,
    shares: Option<Shares>,
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
            shares: None,
        })
    }

    /// The same, in which a tenant with a quarter of the counters, or a service (scope) with half of them, displaces only
    /// keys of its own.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn with_shares(capacity: usize, seed: u64) -> Result<Self, OutOfRange> {
        Ok(Self { shares: Some(Shares::new(capacity)), ..Self::new(capacity, seed)? })
    }

    /// Adds `weight` to a key. Nothing happens to a key longer than [`Self::MAX_KEY`] or for a weight
    /// of zero.
    #[inline]
    pub fn update(&mut self, scope: u32, key: &[u8], weight: u64) {
        self.update_from(0, scope, key, weight);
    }

    /// The same, for a key that `tenant` asked for.
    #[inline]
    pub fn update_from(&mut self, tenant: u32, scope: u32, key: &[u8], weight: u64) {
        if key.len() > Self::MAX_KEY || weight == 0 {
            return;
        }
        let weight = weight.saturating_mul(1 << POINT);
        self.total = self.total.saturating_add(weight);
        let hash = self.hash(scope, key);
        if let Some(number) = self.find(hash, scope, key) {
            let counter = &mut self.counters[number as usize];
            counter.count = counter.count.saturating_add(weight);
            self.vote(number, tenant, weight);
        } else if self.counters.len() < self.capacity {
            self.insert(hash, tenant, scope, key, weight);
        } else {
            self.replace(hash, tenant, scope, key, weight);
        }
    }

    /// Counts a tenant's vote for the counter. A tenant whose lead is used up loses the counter.
    #[inline]
    fn vote(&mut self, number: u32, tenant: u32, weight: u64) {
        let Some(shares) = &mut self.shares else { return };
        let counter = &mut self.counters[number as usize];
        if counter.tenant == tenant {
            counter.lead = counter.lead.saturating_add(weight);
        } else if counter.lead >= weight {
            counter.lead -= weight;
        } else {
            counter.lead = weight - counter.lead;
            shares.remove(counter.tenant, counter.scope);
            shares.add(tenant, counter.scope);
            counter.tenant = tenant;
        }
    }

    /// The weight of a key, if it is counted.
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

    /// True if no key is counted.
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

    /// The `most` heaviest keys, as [`Self::top`], in which no tenant takes more than a quarter of the places and no service
    /// more than half of them, as long as others have keys.
    #[must_use]
    pub fn fair_top(&self, most: usize) -> Vec<Entry<'_>> {
        let of_tenant = most.div_ceil(4);
        let of_service = most.div_ceil(2);
        let mut tenants = HashMap::<u32, usize>::new();
        let mut services = HashMap::<u32, usize>::new();
        let mut top = Vec::with_capacity(most);
        let mut rest = Vec::new();
        for entry in self.top(self.counters.len()) {
            let tenant = tenants.entry(entry.tenant).or_default();
            let service = services.entry(entry.scope).or_default();
            if *tenant < of_tenant && *service < of_service {
                (*tenant, *service) = (*tenant + 1, *service + 1);
                top.push(entry);
            } else {
                rest.push(entry);
            }
        }
        top.truncate(most);
        top.extend(rest.into_iter().take(most - top.len()));
        top.sort_by_key(|entry| Reverse(entry.weight.count));
        top
    }

    /// Multiplies every weight by `keep`, so that cooled keys leave.
    pub fn decay(&mut self, keep: Fraction) {
        self.total = scaled_down(self.total, keep);
        self.missed = scaled_up(self.missed, keep);
        for counter in &mut self.counters {
            counter.count = scaled_down(counter.count, keep);
            counter.error = scaled_up(counter.error, keep).min(counter.count);
            counter.lead = scaled_down(counter.lead, keep);
        }
        if let Some(shares) = &mut self.shares {
            shares.on_decay();
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
        let floor = self.exact_floor();
        let other_floor = other.exact_floor();
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
    fn insert(&mut self, hash: u32, tenant: u32, scope: u32, key: &[u8], weight: u64) {
        let number = self.counters.len() as u32;
        let count = self.missed.saturating_add(weight);
        let mut counter = Counter {
            count,
            error: self.missed,
            hash,
            scope,
            tenant,
            lead: weight,
            len: 0,
            bytes: [0; Self::MAX_KEY],
        };
        counter.set_key(key);
        self.counters.push(counter);
        self.index.insert(hash, number);
        self.queue.push(count, number);
        if let Some(shares) = &mut self.shares {
            shares.add(tenant, scope);
        }
    }

    /// Gives the counter with the smallest count to another key; of a group that has its share, the smallest of its own.
    #[inline]
    fn replace(&mut self, hash: u32, tenant: u32, scope: u32, key: &[u8], weight: u64) {
        let mut of_group = None;
        if let Some(shares) = &mut self.shares {
            let group = shares.confined_to(tenant, scope, self.counters.len());
            of_group = group.and_then(|group| shares.smallest_of(group, &self.counters));
        }
        let number = match of_group {
            Some(number) => number,
            None => self.queue.smallest(|number| self.counters[number as usize].count),
        };
        if let Some(shares) = &mut self.shares {
            let Counter { tenant: old, scope: of, .. } = self.counters[number as usize];
            shares.add(tenant, scope);
            shares.remove(old, of);
        }
        let counter = &mut self.counters[number as usize];
        self.index.remove(counter.hash, number);
        self.index.insert(hash, number);
        counter.error = counter.count;
        counter.count = counter.count.saturating_add(weight);
        counter.hash = hash;
        counter.scope = scope;
        (counter.tenant, counter.lead) = (tenant, weight);
        counter.set_key(key);
        // A counter of a group has only grown, which the queue sees by itself.
        if of_group.is_none() {
            self.queue.replace_smallest(counter.count, number);
        }
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
        if let Some(shares) = &mut self.shares {
            shares.rebuild(&self.counters);
        }
    }
}

fn scaled_down(weight: u64, keep: Fraction) -> u64 {
    ((u128::from(weight) * u128::from(keep.steps())) >> 16) as u64
}

fn scaled_up(weight: u64, keep: Fraction) -> u64 {
    (u128::from(weight) * u128::from(keep.steps())).div_ceil(1 << 16) as u64
}
