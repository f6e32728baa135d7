//! The queue before the store: requests that wait for a concurrency permit, the most critical tier first.
//!
//! Each thread has one. The permits, and the number and length of requests that may wait, are all threads' together
//! ([`Permits`](super::permits::Permits), [`QueueTotals`]).
//!
//! **Order.** Within a tier those go first whose tenants ask for less than their share, while [shares](super::shares) bind: those that
//! wait move when that changes. Then tenants take turns by what their requests cost ([`DeficitRoundRobin`]), so that a tenant with many
//! waiting does not hold up one with few. Requests that are slow by kind have turns of their own: while their connection
//! takes no more of them, the others go on. A tenant may have as much of the queue as is left free beside what it has: alone it
//! gets half, and whoever comes finds room.
//!
//! **Invariants.** Pure: time is an argument. A client's requests leave in the order in which they came: one that follows a queued
//! request joins its rank, its tenant's turn and its kind. Requests of clients that have left, and those whose deadline has
//! passed, are never served. The memory of served requests is used again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use gate_common::units::Nanos;
use slab::Slab;

use super::permits::ThreadPermits;
use crate::policy::Tier;
use crate::policy::drr::DeficitRoundRobin;
use crate::policy::rank::Rank;

/// The requests that wait in all threads of a service: their number above [`BYTES_BITS`], their length in bytes below. In one word,
/// so that it takes one access to memory that threads share.
#[derive(Debug, Default)]
pub(crate) struct QueueTotals(AtomicU64);

impl QueueTotals {
    /// How many wait, and how many bytes.
    fn get(&self) -> (usize, usize) {
        let both = self.0.load(Ordering::Relaxed);
        ((both >> BYTES_BITS) as usize, (both & ((1 << BYTES_BITS) - 1)) as usize)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(Self::one(bytes), Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.0.fetch_sub(Self::one(bytes), Ordering::Relaxed);
    }

    const fn one(bytes: usize) -> u64 {
        (1 << BYTES_BITS) | bytes as u64
    }
}

/// Requests that wait, and the permits to be with the store. `T` is kept of each beside its bytes.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// All that wait here. Each stays where it is; what has an order are its indices.
    requests: Slab<Queued<T>>,
    /// By [`Rank`].
    ranks: [RankQueue; Rank::ALL.len()],
    totals: Arc<QueueTotals>,
    /// The number and length of requests that may wait in all threads.
    limit: usize,
    max_bytes: usize,
    /// The requests of each tenant here.
    shares: HashMap<u32, Share, RandomState>,
    permits: ThreadPermits,
    /// The rank for which other threads know that requests wait here.
    claimed: Option<Rank>,
    /// True if no request has waited at a moment since that was asked last.
    was_empty: bool,
    spare: Vec<Vec<u8>>,
}

/// The requests of one rank, by their index.
#[derive(Debug)]
struct RankQueue {
    /// Those that are fast by kind, and those that are slow.
    lanes: [DeficitRoundRobin<usize>; 2],
    /// The kind that is looked at first next time.
    next: usize,
}

/// The requests of one tenant that wait.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    len: usize,
    bytes: usize,
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueKey {
    pub(crate) rank: Rank,
    /// The number of the tenant whose turn it waits for.
    pub(crate) tenant: u32,
    /// True if it waits among those that are slow by kind.
    pub(crate) is_slow: bool,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Queued<T> {
    /// The caller's part of it.
    pub(crate) item: T,
    /// The whole request.
    pub(crate) bytes: Vec<u8>,
    /// The time at which it was queued.
    pub(crate) since: Nanos,
    /// The tenant that it belongs to.
    tenant: u32,
}

impl RankQueue {
    fn len(&self) -> usize {
        self.lanes.iter().map(DeficitRoundRobin::len).sum()
    }

    fn pop(&mut self, mut may: impl FnMut(usize) -> bool) -> Option<usize> {
        for lane in [self.next, 1 - self.next] {
            if self.lanes[lane].is_empty() {
                continue;
            }
            let popped = self.lanes[lane].pop(|&request| may(request));
            if popped.is_some() {
                self.next = 1 - lane;
                return popped;
            }
        }
        None
    }

    fn firsts(&self) -> impl Iterator<Item = usize> {
        self.lanes.iter().flat_map(DeficitRoundRobin::firsts).copied()
    }
}

impl<T> Queue<T> {
    /// A thread's queue before `permits`; it and those of other threads count in `totals`. At most `limit` requests wait,
    /// and `max_bytes` of them.
    pub(crate) fn new(
        permits: ThreadPermits,
        totals: Arc<QueueTotals>,
        limit: usize,
        max_bytes: usize,
    ) -> Self {
        let lanes = || [(); 2].map(|()| DeficitRoundRobin::new(QUANTUM));
        let ranks = Rank::ALL.map(|_| RankQueue { lanes: lanes(), next: 0 });
        let (shares, spare) = Default::default();
        let requests = Slab::new();
        Self {
            requests,
            ranks,
            totals,
            limit,
            max_bytes,
            shares,
            permits,
            claimed: None,
            was_empty: true,
            spare,
        }
    }

    /// True if a request of this rank may go to the store at once. If so, it has taken a permit.
    #[inline]
    pub(crate) fn pass(&mut self, is_slow: bool) -> bool {
        self.is_first(is_slow) && self.permits.try_acquire()
    }

    /// True if [`Queue::pass`] would let it.
    pub(crate) fn may_pass(&self, is_slow: bool) -> bool {
        self.is_first(is_slow) && self.permits.may_acquire()
    }

    /// True if no request waits that is before a new one.
    #[inline]
    fn is_first(&self, is_slow: bool) -> bool {
        self.requests.is_empty() || !is_slow && self.ranks.iter().all(|rank| rank.lanes[0].is_empty())
    }

    /// A request takes a permit, even if there is none: it had one, and gave it back for a while.
    pub(crate) fn enter(&mut self) {
        self.permits.enter();
    }

    /// A request has left the store.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.permits.release();
    }

    /// The permits.
    pub(crate) fn permits(&mut self) -> &mut ThreadPermits {
        &mut self.permits
    }

    /// True if one more request of a tenant, of `bytes`, may wait; `is_only` says that there is no other tenant.
    /// Threads that ask at the same moment may all find room.
    pub(crate) fn has_room(&self, tenant: u32, bytes: usize, is_only: bool) -> bool {
        let (len, total) = self.totals.get();
        let free = self.limit.saturating_sub(len);
        let Some(free_bytes) = self.max_bytes.checked_sub(total + bytes) else { return false };
        let own =
            if is_only { Share::default() } else { self.shares.get(&tenant).copied().unwrap_or_default() };
        free > 0 && own.len <= free && own.bytes <= free_bytes
    }

    /// From now on so many may wait, and so many bytes; those that do already stay.
    pub(crate) fn set_limits(&mut self, limit: usize, max_bytes: usize) {
        (self.limit, self.max_bytes) = (limit, max_bytes);
    }

    /// Adds a request that costs so much.
    pub(crate) fn push(&mut self, key: QueueKey, cost: u64, item: T, bytes: &[u8], since: Nanos) {
        let QueueKey { rank, tenant, is_slow } = key;
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        let request = self.requests.insert(Queued { item, bytes: copy, since, tenant });
        self.ranks[rank.index()].lanes[usize::from(is_slow)].push(tenant, cost, request);
        self.totals.add(bytes.len());
        let share = self.shares.entry(tenant).or_default();
        (share.len, share.bytes) = (share.len + 1, share.bytes + bytes.len());
        // Those behind it are claimed for when this one has left, or finds no permit.
        if self.claimed.is_none_or(|claimed| rank < claimed) {
            self.claim();
        }
    }

    /// The next request that `may` leave, if there is a permit; it has taken it. `behind` more of its rank wait on.
    pub(crate) fn pop(&mut self, mut may: impl FnMut(&T) -> bool) -> Option<(Tier, Queued<T>, usize)> {
        if self.requests.is_empty() {
            self.unclaim();
            return None;
        }
        if !self.permits.try_acquire() {
            self.claim();
            return None;
        }
        for rank in Rank::ALL {
            let Self { requests, ranks, .. } = self;
            let waiting = &mut ranks[rank.index()];
            if let Some(request) = waiting.pop(|request| may(&requests[request].item)) {
                let behind = waiting.len();
                return Some((rank.tier, self.remove(request), behind));
            }
        }
        // All wait for their connections, and none for a permit.
        self.unclaim();
        self.permits.release();
        None
    }

    /// Moves the requests of tenants who wait behind others of their tier from now on, or no more; `moved` is called for each with its
    /// rank before and after. Who asks for little waits with all that it has: without this it would stay behind those that it goes before.
    pub(crate) fn follow_shares(
        &mut self,
        waits_behind: impl Fn(u32, Tier) -> bool,
        mut moved: impl FnMut(&T, Rank, Rank),
    ) {
        let Self { requests, ranks, shares, .. } = self;
        for from in Rank::ALL.into_iter().filter(|from| ranks[from.index()].len() > 0).collect::<Vec<_>>() {
            let to = Rank { waits_behind: !from.waits_behind, ..from };
            for &tenant in shares.keys().filter(|&&tenant| waits_behind(tenant, from.tier) == to.waits_behind)
            {
                for lane in 0..2 {
                    for (cost, request) in ranks[from.index()].lanes[lane].take_flow(tenant) {
                        moved(&requests[request].item, from, to);
                        ranks[to.index()].lanes[lane].push(tenant, cost, request);
                    }
                }
            }
        }
        if self.claimed.is_some() {
            self.claim();
        }
    }

    /// Tells other threads what waits here for a permit.
    fn claim(&mut self) {
        let waiting = Rank::ALL.into_iter().zip(&self.ranks).find(|(_, waiting)| waiting.len() > 0);
        let Some((rank, waiting)) = waiting else { return };
        let since = waiting.firsts().next().map_or(Nanos::ZERO, |first| self.requests[first].since);
        self.permits.claim(rank, since, waiting.len());
        self.claimed = Some(rank);
    }

    fn unclaim(&mut self) {
        self.claimed = None;
        self.permits.unclaim();
    }

    /// Takes out a request that has lost its place in the order.
    fn remove(&mut self, request: usize) -> Queued<T> {
        let Queued { ref bytes, tenant, .. } = self.requests[request];
        let bytes = bytes.len();
        self.totals.remove(bytes);
        if let Some(share) = self.shares.get_mut(&tenant) {
            (share.len, share.bytes) = (share.len - 1, share.bytes - bytes);
            if share.len == 0 {
                self.shares.remove(&tenant);
            }
        }
        let queued = self.requests.remove(request);
        if self.requests.is_empty() {
            self.was_empty = true;
            if self.requests.capacity() > MOST_REQUESTS_KEPT {
                self.requests = Slab::new();
            }
        }
        queued
    }

    /// Takes out the first request of a tier that `is_lost`, without a permit; the first of each tenant are looked at.
    pub(crate) fn pop_expired(
        &mut self,
        is_lost: impl Fn(Tier, &Queued<T>) -> bool,
    ) -> Option<(Tier, Queued<T>)> {
        let Self { requests, ranks, .. } = self;
        for (Rank { tier, .. }, waiting) in Rank::ALL.into_iter().zip(ranks) {
            let lost = |lane: &mut DeficitRoundRobin<_>| {
                lane.remove_first(|&request| is_lost(tier, &requests[request]))
            };
            if let Some(request) = waiting.lanes.iter_mut().find_map(lost) {
                return Some((tier, self.remove(request)));
            }
        }
        None
    }

    /// Takes out all requests that are lost, wherever they wait, without a permit.
    pub(crate) fn remove_lost(&mut self, is_lost: impl Fn(&Queued<T>) -> bool) -> Vec<(Tier, Queued<T>)> {
        let Self { requests, ranks, .. } = self;
        let mut lost = Vec::new();
        for (Rank { tier, .. }, waiting) in Rank::ALL.into_iter().zip(ranks) {
            for lane in &mut waiting.lanes {
                lane.remove_all(|&request| is_lost(&requests[request]), |request| lost.push((tier, request)));
            }
        }
        lost.into_iter().map(|(tier, request)| (tier, self.remove(request))).collect()
    }

    /// How many of a tier wait, and since when the one does that has waited longest.
    pub(crate) fn waiting(&self, tier: Tier) -> (usize, Option<Nanos>) {
        let ranks = [false, true].map(|waits_behind| &self.ranks[Rank { tier, waits_behind }.index()]);
        let firsts = ranks.iter().flat_map(|waiting| waiting.firsts());
        let since = firsts.map(|first| self.requests[first].since).min();
        (ranks.iter().map(|waiting| waiting.len()).sum(), since)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// True if requests have waited all the time since this was asked last.
    pub(crate) fn take_stood(&mut self) -> bool {
        let is_empty = self.requests.is_empty();
        !std::mem::replace(&mut self.was_empty, is_empty) && !is_empty
    }

    /// Gives back the memory of a request that has left the queue.
    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() <= MOST_BYTES_KEPT && self.spare.len() < MOST_KEPT {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

/// Enough for 64 GiB, and for 16 million requests above.
const BYTES_BITS: u32 = 40;
/// The cost that a tenant may spend at its turn, in thousandths of an RU: few requests, so that turns come soon.
const QUANTUM: u64 = 8_000;
/// Large requests give their memory back.
const MOST_BYTES_KEPT: usize = 4 << 10;
/// With the bytes above: 4 MiB at most.
const MOST_KEPT: usize = 1 << 10;
/// Room for more requests is given back once none waits.
const MOST_REQUESTS_KEPT: usize = 1 << 12;

#[cfg(test)]
impl<T> Queue<T> {
    /// The queue of the only thread.
    pub(crate) fn of_one_thread(permits: usize, limit: usize, max_bytes: usize) -> Self {
        let permits = super::permits::Permits::new(Some(permits), 1).of_thread(0);
        Self::new(permits, Arc::default(), limit, max_bytes)
    }
}

#[cfg(test)]
mod tests;
