//! The queue before the store: requests that wait for a concurrency permit, the most critical tier first.
//!
//! Each thread has one. The permits, and the number and length of requests that may wait, are all threads' together
//! ([`Permits`](super::permits::Permits), [`QueueTotals`]).
//!
//! **Order.** Within a tier tenants take turns by what their requests cost ([`DeficitRoundRobin`]), so that a tenant with many
//! waiting does not hold up one with few. Requests that are slow by kind have turns of their own: while their connection
//! takes no more of them, the others go on. A tenant may have as much of the queue as is left free beside what it has: alone it
//! gets half, and whoever comes finds room.
//!
//! **Invariants.** Pure: time is an argument. A client's requests leave in the order in which they came: one that follows a queued
//! request joins its tier, its tenant's turn and its kind. Requests of clients that have left, and those whose deadline has
//! passed, are never served. The memory of served requests is used again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use gate_common::units::Nanos;

use super::permits::ThreadPermits;
use crate::policy::Tier;
use crate::policy::drr::DeficitRoundRobin;

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

/// Requests that wait, and how many may be with the store. `T` is what is kept of one beside its bytes.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    tiers: [TierQueue<T>; Tier::ALL.len()],
    len: usize,
    totals: Arc<QueueTotals>,
    /// The number and length of requests that may wait in all threads.
    limit: usize,
    max_bytes: usize,
    /// What tenants have waiting here.
    shares: HashMap<u32, Share, RandomState>,
    permits: ThreadPermits,
    /// The tier for which other threads know that requests wait here.
    claimed: Option<Tier>,
    spare: Vec<Vec<u8>>,
}

/// The requests of one tier.
#[derive(Debug)]
struct TierQueue<T> {
    /// Those that are fast by kind, and those that are slow.
    kinds: [DeficitRoundRobin<Queued<T>>; 2],
    /// The kind that is looked at first next time.
    next: usize,
}

/// What a tenant has waiting.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    len: usize,
    bytes: usize,
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) tier: Tier,
    /// The number of the tenant whose turn it waits for.
    pub(crate) tenant: u32,
    /// True if it waits among those that are slow by kind.
    pub(crate) is_slow: bool,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Queued<T> {
    /// What is kept of it.
    pub(crate) item: T,
    /// All of it.
    pub(crate) bytes: Vec<u8>,
    /// When it came.
    pub(crate) since: Nanos,
    /// Who has it waiting.
    tenant: u32,
}

impl<T> TierQueue<T> {
    fn len(&self) -> usize {
        self.kinds.iter().map(DeficitRoundRobin::len).sum()
    }

    fn pop(&mut self, mut may: impl FnMut(&T) -> bool) -> Option<Queued<T>> {
        for kind in [self.next, 1 - self.next] {
            if self.kinds[kind].is_empty() {
                continue;
            }
            let popped = self.kinds[kind].pop(|queued| may(&queued.item));
            if popped.is_some() {
                self.next = 1 - kind;
                return popped;
            }
        }
        None
    }

    fn firsts(&self) -> impl Iterator<Item = &Queued<T>> {
        self.kinds.iter().flat_map(DeficitRoundRobin::firsts)
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
        let kinds = || [(); 2].map(|()| DeficitRoundRobin::new(QUANTUM));
        let tiers = Tier::ALL.map(|_| TierQueue { kinds: kinds(), next: 0 });
        let (shares, spare) = Default::default();
        Self { tiers, len: 0, totals, limit, max_bytes, shares, permits, claimed: None, spare }
    }

    /// Whether a request may go to the store at once. If so, it has taken a permit.
    #[inline]
    pub(crate) fn pass(&mut self, is_slow: bool) -> bool {
        let is_first = self.len == 0 || !is_slow && self.tiers.iter().all(|tier| tier.kinds[0].is_empty());
        is_first && self.permits.try_acquire()
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

    /// Whether one more request of a tenant may wait that is so long; `is_only` says that there is no other tenant. Threads that
    /// ask at the same moment may all be told so.
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
    pub(crate) fn push(&mut self, place: Place, cost: u64, item: T, bytes: &[u8], since: Nanos) {
        let Place { tier, tenant, is_slow } = place;
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        let queued = Queued { item, bytes: copy, since, tenant };
        self.tiers[tier.index()].kinds[usize::from(is_slow)].push(tenant, cost, queued);
        self.len += 1;
        self.totals.add(bytes.len());
        let share = self.shares.entry(tenant).or_default();
        (share.len, share.bytes) = (share.len + 1, share.bytes + bytes.len());
        // Those behind it are claimed for when this one has left, or finds no permit.
        if self.claimed.is_none_or(|claimed| tier < claimed) {
            self.claim();
        }
    }

    /// The next request that `may` leave, if there is a permit; it has taken it. `behind` more of its tier wait on.
    pub(crate) fn pop(&mut self, mut may: impl FnMut(&T) -> bool) -> Option<(Tier, Queued<T>, usize)> {
        if self.len == 0 {
            self.unclaim();
            return None;
        }
        if !self.permits.try_acquire() {
            self.claim();
            return None;
        }
        for tier in Tier::ALL {
            let waiting = &mut self.tiers[tier.index()];
            if let Some(queued) = waiting.pop(&mut may) {
                let behind = waiting.len();
                self.removed(&queued);
                return Some((tier, queued, behind));
            }
        }
        // All wait for their connections, and none for a permit.
        self.unclaim();
        self.permits.release();
        None
    }

    /// Tells other threads what waits here for a permit.
    fn claim(&mut self) {
        let waiting = Tier::ALL.into_iter().zip(&self.tiers).find(|(_, waiting)| waiting.len() > 0);
        let Some((tier, waiting)) = waiting else { return };
        let since = waiting.firsts().next().map_or(Nanos::ZERO, |first| first.since);
        self.permits.claim(tier, since, waiting.len());
        self.claimed = Some(tier);
    }

    fn unclaim(&mut self) {
        self.claimed = None;
        self.permits.unclaim();
    }

    fn removed(&mut self, queued: &Queued<T>) {
        let bytes = queued.bytes.len();
        self.len -= 1;
        self.totals.remove(bytes);
        let Some(share) = self.shares.get_mut(&queued.tenant) else { return };
        (share.len, share.bytes) = (share.len - 1, share.bytes - bytes);
        if share.len == 0 {
            self.shares.remove(&queued.tenant);
        }
    }

    /// Takes out the first request of a tier that `is_lost`, without a permit; the first of each tenant are looked at.
    pub(crate) fn pop_expired(
        &mut self,
        is_lost: impl Fn(Tier, &Queued<T>) -> bool,
    ) -> Option<(Tier, Queued<T>)> {
        for (tier, waiting) in Tier::ALL.into_iter().zip(&mut self.tiers) {
            let lost = |kind: &mut DeficitRoundRobin<_>| kind.remove_first(|queued| is_lost(tier, queued));
            if let Some(queued) = waiting.kinds.iter_mut().find_map(lost) {
                self.removed(&queued);
                return Some((tier, queued));
            }
        }
        None
    }

    /// How many of a tier wait, and since when the one does that has waited longest.
    pub(crate) fn waiting(&self, tier: Tier) -> (usize, Option<Nanos>) {
        let waiting = &self.tiers[tier.index()];
        (waiting.len(), waiting.firsts().map(|first| first.since).min())
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
/// What a tenant may spend at its turn, in thousandths of an RU: few requests, so that turns come soon.
const QUANTUM: u64 = 8_000;
/// Large requests give their memory back.
const MOST_BYTES_KEPT: usize = 4 << 10;
/// With the bytes above: 4 MiB at most.
const MOST_KEPT: usize = 1 << 10;

#[cfg(test)]
impl<T> Queue<T> {
    /// The queue of the only thread.
    pub(crate) fn of_one_thread(permits: usize, limit: usize, max_bytes: usize) -> Self {
        let permits = super::permits::Permits::new(Some(permits), 1).of_thread(0);
        Self::new(permits, Arc::default(), limit, max_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(tier: Tier) -> Place {
        Place { tier, tenant: 1, is_slow: false }
    }

    fn of(tenant: u32, is_slow: bool) -> Place {
        Place { tier: Tier::Standard, tenant, is_slow }
    }

    #[test]
    fn tenants_take_turns_by_what_their_requests_cost() {
        let mut queue = Queue::of_one_thread(1, 1_000, 0);
        assert!(queue.pass(false));
        (0..100).for_each(|_| queue.push(of(1, false), QUANTUM, 1, b"", Nanos(1)));
        (0..10).for_each(|_| queue.push(of(2, false), QUANTUM / 2, 2, b"", Nanos(2)));
        queue.leave();
        let served: Vec<_> = std::iter::from_fn(|| {
            let served = queue.pop(|_| true).map(|(_, queued, _)| queued.item);
            queue.leave();
            served
        })
        .take(12)
        .collect();
        assert_eq!(served, [1, 2, 2, 1, 2, 2, 1, 2, 2, 1, 2, 2]);
    }

    #[test]
    fn what_is_slow_waits_for_its_connection_and_holds_nobody_up() {
        let mut queue = Queue::of_one_thread(1, 1_000, 0);
        assert!(queue.pass(true));
        (0..3).for_each(|_| queue.push(of(1, true), 1, "slow", b"", Nanos(1)));
        queue.push(of(1, false), 1, "fast", b"", Nanos(2));
        assert!(!queue.pass(false), "another is before it");
        queue.leave();
        let mut pop =
            |slow_may| queue.pop(|&item| slow_may || item == "fast").map(|(_, queued, _)| queued.item);
        assert_eq!((pop(false), pop(false)), (Some("fast"), None));
        queue.leave();
        assert!(queue.pass(false), "only slow ones wait");
        queue.leave();
        assert!(!queue.pass(true));
        assert_eq!(queue.pop(|_| true).map(|(_, queued, _)| queued.item), Some("slow"));
    }

    #[test]
    fn a_permit_is_not_kept_by_what_waits_for_its_connection() {
        let permits = super::super::permits::Permits::new(Some(1), 2);
        let [mut one, mut other] =
            [0, 1].map(|number| Queue::new(permits.of_thread(number), Arc::default(), 9, 100));
        one.push(of(1, true), 1, (), b"", Nanos(1));
        assert!(one.pop(|()| false).is_none() && other.pass(false));
        other.leave();
        assert!(other.pass(false), "no permit is granted to what cannot use it");
    }

    #[test]
    fn a_tenant_leaves_room_for_another() {
        let mut queue = Queue::of_one_thread(1, 10, 100);
        let fill = |queue: &mut Queue<()>, tenant, is_only| {
            let mut count = 0;
            while queue.has_room(tenant, 1, is_only) {
                queue.push(of(tenant, false), 1, (), b"x", Nanos(1));
                count += 1;
            }
            count
        };
        assert_eq!([1, 2, 3, 4].map(|tenant| fill(&mut queue, tenant, false)), [6, 3, 1, 0]);
        let mut queue = Queue::of_one_thread(1, 10, 100);
        assert_eq!(fill(&mut queue, 1, true), 10);
        let mut queue = Queue::of_one_thread(1, 10, 100);
        queue.push(of(1, false), 1, (), &[0; 60], Nanos(1));
        assert!(
            !queue.has_room(1, 1, false) && queue.has_room(2, 40, false) && !queue.has_room(2, 41, false)
        );
    }

    #[test]
    fn what_waits_in_one_thread_takes_room_from_the_others() {
        let permits = super::super::permits::Permits::new(Some(1), 2);
        let totals = Arc::default();
        let [mut one, mut other] =
            [0, 1].map(|number| Queue::new(permits.of_thread(number), Arc::clone(&totals), 2, 100));
        assert!(one.pass(false) && !other.pass(false));
        one.push(place(Tier::Standard), 1, (), &[0; 60], Nanos(1));
        assert!(other.has_room(1, 40, true) && !other.has_room(1, 41, true));
        other.push(place(Tier::Standard), 1, (), &[0; 40], Nanos(2));
        assert!(!one.has_room(1, 0, true) && !other.has_room(1, 0, true));
        one.leave();
        assert!(one.pop(|()| true).is_some() && other.pop(|()| true).is_none());
        assert!(other.has_room(1, 60, true));
    }

    #[test]
    fn no_more_than_its_places_are_with_the_store_and_tiers_go_first() {
        let mut queue = Queue::of_one_thread(2, 3, 1_000);
        assert!(queue.pass(false) && queue.pass(false) && !queue.pass(false));
        for (tier, item) in [(Tier::Batch, 1), (Tier::Critical, 2), (Tier::Batch, 3)] {
            assert!(queue.has_room(1, 1, true));
            queue.push(place(tier), 1, item, b"x", Nanos(item));
        }
        assert!(!queue.has_room(1, 1, true) && queue.pop(|_| true).is_none());
        queue.leave();
        let (tier, queued, behind) = queue.pop(|_| true).unwrap();
        assert_eq!((tier, queued.item, queued.since, behind), (Tier::Critical, 2, Nanos(2), 0));
        assert!(queue.pop(|_| true).is_none(), "its place is taken");
        queue.leave();
        queue.leave();
        let order: Vec<_> = std::iter::from_fn(|| queue.pop(|_| true))
            .map(|(_, queued, behind)| (queued.item, behind))
            .collect();
        assert_eq!((order, queue.len), (vec![(1, 1), (3, 0)], 0));
    }

    #[test]
    fn only_so_many_bytes_wait_however_they_leave() {
        let mut queue = Queue::of_one_thread(1, 10, 100);
        queue.push(place(Tier::Standard), 1, (), &[0; 60], Nanos(1));
        queue.push(place(Tier::Batch), 1, (), &[0; 40], Nanos(1));
        assert!(!queue.has_room(1, 1, true) && queue.has_room(1, 0, true));
        assert!(queue.pop(|_| true).is_some() && queue.has_room(1, 60, true) && !queue.has_room(1, 61, true));
        assert!(queue.pop_expired(|_, _| true).is_some() && queue.has_room(1, 100, true));
    }

    #[test]
    fn nothing_passes_while_others_wait() {
        let mut queue = Queue::of_one_thread(2, 10, 1_000);
        assert!(queue.pass(false));
        queue.push(place(Tier::Standard), 1, (), b"", Nanos(1));
        assert!(!queue.pass(false));
    }

    #[test]
    fn what_is_lost_leaves_without_a_place_from_the_front_of_each_tier() {
        let mut queue = Queue::of_one_thread(1, 10, 1_000);
        assert!(queue.pass(false));
        for (tier, item) in [(Tier::Batch, 1), (Tier::Critical, 4), (Tier::Batch, 2), (Tier::Batch, 6)] {
            queue.push(place(tier), 1, item, b"", Nanos(item));
        }
        let mut lost =
            |before: u64| queue.pop_expired(|_, queued| queued.since.0 < before).map(|(_, q)| q.item);
        assert_eq!((lost(5), lost(5), lost(5), lost(5)), (Some(4), Some(1), Some(2), None));
        assert_eq!((queue.len, queue.waiting(Tier::Batch)), (1, (1, Some(Nanos(6)))));
        assert!(queue.pop(|_| true).is_none(), "no place is free");
    }

    #[test]
    fn memory_is_used_again_unless_it_is_much() {
        let mut queue = Queue::of_one_thread(1, 10, 1_000);
        queue.push(place(Tier::Standard), 1, (), b"first", Nanos(1));
        let (_, queued, _) = queue.pop(|_| true).unwrap();
        let at = queued.bytes.as_ptr();
        queue.recycle(queued.bytes);
        queue.leave();
        queue.push(place(Tier::Standard), 1, (), b"again", Nanos(2));
        let (_, queued, _) = queue.pop(|_| true).unwrap();
        assert_eq!((queued.bytes.as_ptr(), &queued.bytes[..]), (at, &b"again"[..]));
        queue.recycle(vec![0; MOST_BYTES_KEPT + 1]);
        assert!(queue.spare.is_empty());
    }
}
