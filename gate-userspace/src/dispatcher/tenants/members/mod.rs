//! The members of a tenant: a bucket for each value that requests name themselves by, in bounded memory.
//!
//! **Problem.** Values come without end, and any client may make up new ones. Their buckets must not take the memory of gate, and
//! room for a new one must not be made by forgetting what another member has spent. **Rule.** A bucket is made with a member's first
//! request, and evicted for want of memory, that which has been full for longest first. A full bucket is what a new one would be, so
//! an eviction changes no answer. Where no bucket is full, a new value has none: its requests take from the one bucket that the
//! tenant has in the maps, and share it with all others that came too late.
//!
//! **Invariants.** A bucket that is not full, or that a connection or a request refers to, is never evicted. The buckets take at most
//! the configured memory. All threads take from the same word by compare-and-swap; the lock of a shard is held for a look-up alone.
//! Pure, but for these locks: time is an argument, on gate's clock.
//!
//! `member`: one of them; `shard`: the buckets under one lock.

use std::cmp::Reverse;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use gate_common::units::Nanos;

pub(crate) use self::member::Member;
use self::shard::Shard;

mod member;
mod shard;

/// The members of one tenant.
#[derive(Debug)]
pub(crate) struct Members {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// The bytes that all shards may take.
    memory: AtomicUsize,
    evictions: AtomicU64,
    without_room: AtomicU64,
}

/// Counts of a tenant's members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberTotals {
    /// Members with a bucket.
    pub members: usize,
    /// The memory that their buckets take.
    pub bytes: usize,
    /// Full buckets that made room for others, since gate has started.
    pub evictions: u64,
    /// Look-ups of members for which there was no room, since gate has started.
    pub without_room: u64,
}

impl Members {
    /// None yet; their buckets may take so many bytes.
    pub(crate) fn new(memory: usize) -> Self {
        Self::with_shards(memory, SHARDS)
    }

    fn with_shards(memory: usize, shards: usize) -> Self {
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
            memory: AtomicUsize::new(memory),
            evictions: AtomicU64::new(0),
            without_room: AtomicU64::new(0),
        }
    }

    /// Sets the memory; what takes more than that goes as room is needed.
    pub(crate) fn set_memory(&self, memory: usize) {
        self.memory.store(memory, Ordering::Relaxed);
    }

    /// The member that has this key, which is made if need be; `None` if there is no room for it.
    pub(crate) fn take(&self, key: &[u8], now: Nanos) -> Option<Arc<Member>> {
        let mut shard = self.shard(key);
        if let Some(member) = shard.get(key) {
            return Some(Arc::clone(member));
        }
        let room = self.memory.load(Ordering::Relaxed) / self.shards.len();
        let mut evictions = 0;
        let member = shard.insert(key, room, now, &mut evictions);
        drop(shard);
        self.evictions.fetch_add(evictions, Ordering::Relaxed);
        if member.is_none() {
            self.without_room.fetch_add(1, Ordering::Relaxed);
        }
        member
    }

    /// The member that has this key; `None` if it has no bucket.
    pub(crate) fn peek(&self, key: &[u8]) -> Option<Arc<Member>> {
        self.shard(key).get(key).map(Arc::clone)
    }

    /// The members whose buckets will be full last, the last first, each with the time when it will be.
    pub(crate) fn emptiest(&self, most: usize) -> Vec<(Nanos, Arc<Member>)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let mut first = 0;
            loop {
                let shard = locked(shard);
                let (members, is_more) = shard.at(first..first + LOOKED_AT_ONCE);
                found.extend(
                    members.map(|member| (Nanos(member.word().load(Ordering::Relaxed)), Arc::clone(member))),
                );
                drop(shard);
                keep_last(&mut found, most);
                if !is_more {
                    break;
                }
                first += LOOKED_AT_ONCE;
            }
        }
        found.sort_unstable_by_key(|&(full_at, _)| Reverse(full_at));
        found
    }

    /// Their counts.
    pub(crate) fn totals(&self) -> MemberTotals {
        let mut totals = MemberTotals {
            evictions: self.evictions.load(Ordering::Relaxed),
            without_room: self.without_room.load(Ordering::Relaxed),
            ..MemberTotals::default()
        };
        for shard in &self.shards {
            let shard = locked(shard);
            totals.members += shard.len();
            totals.bytes += shard.bytes();
        }
        totals
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        locked(&self.shards[self.hasher.hash_one(key) as usize % self.shards.len()])
    }
}

/// Keeps as many as `most`, those that will be full last.
fn keep_last(found: &mut Vec<(Nanos, Arc<Member>)>, most: usize) {
    if found.len() > most {
        found.select_nth_unstable_by_key(most, |&(full_at, _)| Reverse(full_at));
        found.truncate(most);
    }
}

/// Nothing panics under a lock, and a shard is whole after each of its changes.
fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enough for a few threads not to meet.
const SHARDS: usize = 8;
/// Members that are looked at under a lock, so that no request waits for long.
const LOOKED_AT_ONCE: usize = 256;

#[cfg(test)]
mod tests;
