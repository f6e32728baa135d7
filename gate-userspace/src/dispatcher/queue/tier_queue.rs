//! The queue before the store: requests that wait for one of P places, the most critical tier first.
//!
//! **Invariants.** Pure: time is an argument. A client's requests leave in the order in which they came: one
//! that follows a queued request of a lower tier joins that tier. Requests of clients that have left, and those
//! whose deadline has passed, are never served. The memory of served requests is used again.

use std::collections::VecDeque;

use gate_common::units::Nanos;

use crate::policy::Tier;

/// Requests that wait, and how many may be with the store. `T` is what is kept of one beside its bytes.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    tiers: [VecDeque<Queued<T>>; Tier::ALL.len()],
    len: usize,
    limit: usize,
    /// What the requests are, and may be, long together.
    bytes: usize,
    max_bytes: usize,
    /// Requests that may be with the store, and that are.
    permits: usize,
    taken: usize,
    spare: Vec<Vec<u8>>,
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
}

impl<T> Queue<T> {
    /// A queue of at most `limit` requests, and `max_bytes` of them, before `permits` places.
    pub(crate) fn new(permits: usize, limit: usize, max_bytes: usize) -> Self {
        let (tiers, spare) = Default::default();
        Self { tiers, len: 0, limit, bytes: 0, max_bytes, permits, taken: 0, spare }
    }

    /// Whether a request may go to the store at once. If so, it has taken its place.
    #[inline]
    pub(crate) fn pass(&mut self) -> bool {
        let free = self.taken < self.permits && self.len == 0;
        self.taken += usize::from(free);
        free
    }

    /// A request takes a place, even if there is none: it had one, and gave it back for a while.
    pub(crate) fn enter(&mut self) {
        self.taken += 1;
    }

    /// A request has left the store.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.taken -= 1;
    }

    /// Whether one more may wait that is so long.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.len < self.limit && self.bytes + bytes <= self.max_bytes
    }

    /// From now on so many may wait, and so many bytes; those that do already stay.
    pub(crate) fn set_limits(&mut self, limit: usize, max_bytes: usize) {
        (self.limit, self.max_bytes) = (limit, max_bytes);
    }

    /// Adds a request.
    pub(crate) fn push(&mut self, tier: Tier, item: T, bytes: &[u8], since: Nanos) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        self.tiers[tier.index()].push_back(Queued { item, bytes: copy, since });
        self.len += 1;
        self.bytes += bytes.len();
    }

    /// The next request, if there is a free place; it has taken it. `behind` more of its tier wait on.
    pub(crate) fn pop(&mut self) -> Option<(Tier, Queued<T>, usize)> {
        if self.taken >= self.permits {
            return None;
        }
        let tier = Tier::ALL.into_iter().find(|tier| !self.tiers[tier.index()].is_empty())?;
        let waiting = &mut self.tiers[tier.index()];
        let queued = waiting.pop_front()?;
        self.len -= 1;
        self.bytes -= queued.bytes.len();
        self.taken += 1;
        Some((tier, queued, waiting.len()))
    }

    /// Takes out the first request of a tier that `is_lost`, without a place; the oldest of each tier are
    /// looked at.
    pub(crate) fn pop_expired(
        &mut self,
        is_lost: impl Fn(Tier, &Queued<T>) -> bool,
    ) -> Option<(Tier, Queued<T>)> {
        let lost = |tier: &Tier| self.tiers[tier.index()].front().is_some_and(|first| is_lost(*tier, first));
        let tier = Tier::ALL.into_iter().find(lost)?;
        let queued = self.tiers[tier.index()].pop_front()?;
        self.len -= 1;
        self.bytes -= queued.bytes.len();
        Some((tier, queued))
    }

    /// How many of a tier wait, and since when the first of them.
    pub(crate) fn waiting(&self, tier: Tier) -> (usize, Option<Nanos>) {
        let waiting = &self.tiers[tier.index()];
        (waiting.len(), waiting.front().map(|first| first.since))
    }

    /// Gives back the memory of a request that has left the queue.
    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() <= MOST_BYTES_KEPT && self.spare.len() < MOST_KEPT {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

/// Large requests give their memory back.
const MOST_BYTES_KEPT: usize = 4 << 10;
/// With the bytes above: 4 MiB at most.
const MOST_KEPT: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_its_places_are_with_the_store_and_tiers_go_first() {
        let mut queue = Queue::new(2, 3, 1_000);
        assert!(queue.pass() && queue.pass() && !queue.pass());
        for (tier, item) in [(Tier::Batch, 1), (Tier::Critical, 2), (Tier::Batch, 3)] {
            assert!(queue.has_room(1));
            queue.push(tier, item, b"x", Nanos(item));
        }
        assert!(!queue.has_room(1) && queue.pop().is_none());
        queue.leave();
        let (tier, queued, behind) = queue.pop().unwrap();
        assert_eq!((tier, queued.item, queued.since, behind), (Tier::Critical, 2, Nanos(2), 0));
        assert!(queue.pop().is_none(), "its place is taken");
        queue.leave();
        queue.leave();
        let order: Vec<_> =
            std::iter::from_fn(|| queue.pop()).map(|(_, queued, behind)| (queued.item, behind)).collect();
        assert_eq!((order, queue.len), (vec![(1, 1), (3, 0)], 0));
    }

    #[test]
    fn only_so_many_bytes_wait_however_they_leave() {
        let mut queue = Queue::new(1, 10, 100);
        queue.push(Tier::Standard, (), &[0; 60], Nanos(1));
        queue.push(Tier::Batch, (), &[0; 40], Nanos(1));
        assert!(!queue.has_room(1) && queue.has_room(0));
        assert!(queue.pop().is_some() && queue.has_room(60) && !queue.has_room(61));
        assert!(queue.pop_expired(|_, _| true).is_some() && queue.has_room(100));
    }

    #[test]
    fn nothing_passes_while_others_wait() {
        let mut queue = Queue::new(2, 10, 1_000);
        assert!(queue.pass());
        queue.push(Tier::Standard, (), b"", Nanos(1));
        assert!(!queue.pass());
    }

    #[test]
    fn what_is_lost_leaves_without_a_place_from_the_front_of_each_tier() {
        let mut queue = Queue::new(1, 10, 1_000);
        assert!(queue.pass());
        for (tier, item) in [(Tier::Batch, 1), (Tier::Critical, 4), (Tier::Batch, 2), (Tier::Batch, 6)] {
            queue.push(tier, item, b"", Nanos(item));
        }
        let mut lost =
            |before: u64| queue.pop_expired(|_, queued| queued.since.0 < before).map(|(_, q)| q.item);
        assert_eq!((lost(5), lost(5), lost(5), lost(5)), (Some(4), Some(1), Some(2), None));
        assert_eq!((queue.len, queue.waiting(Tier::Batch)), (1, (1, Some(Nanos(6)))));
        assert!(queue.pop().is_none(), "no place is free");
    }

    #[test]
    fn memory_is_used_again_unless_it_is_much() {
        let mut queue = Queue::new(1, 10, 1_000);
        queue.push(Tier::Standard, (), b"first", Nanos(1));
        let (_, queued, _) = queue.pop().unwrap();
        let at = queued.bytes.as_ptr();
        queue.recycle(queued.bytes);
        queue.leave();
        queue.push(Tier::Standard, (), b"again", Nanos(2));
        let (_, queued, _) = queue.pop().unwrap();
        assert_eq!((queued.bytes.as_ptr(), &queued.bytes[..]), (at, &b"again"[..]));
        queue.recycle(vec![0; MOST_BYTES_KEPT + 1]);
        assert!(queue.spare.is_empty());
    }
}
