//! The concurrency permits of a service, which all its threads share.
//!
//! **Problem.** A limit on the requests at the store holds for the process. Dealt out per thread, a thread waits while
//! another has permits to spare; taken one by one from a shared counter, every request moves a cache line between cores.
//!
//! **Rule.** One atomic counter holds the permits that are taken. A thread keeps some that it has released
//! (none where the limit is small) and takes them again without touching the counter. A thread
//! whose requests wait publishes a claim: how many wait with its most critical [`Rank`], and since when the first one does. Whoever
//! releases a permit while there are claims grants it to the claim of the most critical rank, of those to the oldest, and
//! wakes that thread. The releasing thread's own claim counts as [`HEAD_START`] older, so that few permits cross threads; no
//! claim waits longer than that behind others of its rank that came later.
//!
//! **No lost wake-up.** A thread publishes its claim before it looks for a free permit once more; a permit is given back before
//! the claims are looked at; both are sequentially consistent, so that one of the two sees the other. A permit that a thread
//! keeps while a claim is published is given back at its next release, or within 10 ms by [`ThreadPermits::poll`].
//!
//! **Invariants.** Permits that are taken, kept and granted together never exceed the limit, but for [`ThreadPermits::enter`]
//! and while a lowered limit is reached. Pure: time is an argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use gate_common::units::Nanos;
use tokio::sync::Notify;

use crate::policy::rank::Rank;

/// A service's permits.
#[derive(Debug)]
pub(crate) struct Permits {
    taken: CacheLine<AtomicUsize>,
    settings: CacheLine<Limit>,
    /// The number of published claims.
    claimed: CacheLine<AtomicUsize>,
    claims: Box<[CacheLine<Claim>]>,
}

/// The settings that change rarely and are read for each request.
#[derive(Debug)]
struct Limit {
    limit: AtomicUsize,
    /// The permits that a thread may keep.
    spare: AtomicUsize,
    /// True if a request found no permit since the last look.
    is_reached: AtomicBool,
}

/// The requests of one thread that wait for a permit.
#[derive(Debug)]
struct Claim {
    /// The rank and the time of the first of them; [`NO_CLAIM`] if none waits. Smaller goes first.
    order: AtomicU64,
    /// How many wait that are not granted a permit yet.
    wanted: AtomicUsize,
    /// Permits that others have granted it.
    granted: AtomicUsize,
    woken: Notify,
}

/// Its own cache line, and the one that is fetched along with it.
#[derive(Debug)]
#[repr(align(128))]
struct CacheLine<T>(T);

impl Permits {
    /// `limit` permits for so many threads; `None` for no limit.
    pub(crate) fn new(limit: Option<usize>, threads: usize) -> Arc<Self> {
        let claim = || Claim {
            order: AtomicU64::new(NO_CLAIM),
            wanted: AtomicUsize::new(0),
            granted: AtomicUsize::new(0),
            woken: Notify::new(),
        };
        let this = Self {
            taken: CacheLine(AtomicUsize::new(0)),
            settings: CacheLine(Limit {
                limit: AtomicUsize::new(0),
                spare: AtomicUsize::new(0),
                is_reached: AtomicBool::new(false),
            }),
            claimed: CacheLine(AtomicUsize::new(0)),
            claims: (0..threads).map(|_| CacheLine(claim())).collect(),
        };
        this.set_limit(limit.unwrap_or(UNLIMITED));
        Arc::new(this)
    }

    /// The permits of thread `number`.
    pub(crate) fn of_thread(self: &Arc<Self>, number: usize) -> ThreadPermits {
        ThreadPermits { shared: Arc::clone(self), number, spare: 0, in_use: 0, peak: 0 }
    }

    /// How many permits there are.
    pub(crate) fn limit(&self) -> usize {
        self.settings.0.limit.load(Ordering::Relaxed)
    }

    /// Changes the number of permits, and wakes those who wait if there are more.
    pub(crate) fn set_limit(&self, limit: usize) {
        let spare = if limit == UNLIMITED {
            0
        } else {
            (limit / self.claims.len().max(1) / SPARE_SHARE).min(MOST_SPARE)
        };
        self.settings.0.spare.store(spare, Ordering::Relaxed);
        self.settings.0.limit.store(limit, Ordering::SeqCst);
        self.grant(None);
    }

    /// True if a request has found no permit since the last call.
    pub(crate) fn take_reached(&self) -> bool {
        let is_reached = &self.settings.0.is_reached;
        is_reached.load(Ordering::Relaxed) && is_reached.swap(false, Ordering::Relaxed)
    }

    /// True if more permits are taken than there are: the limit has been lowered.
    #[inline]
    fn is_exceeded(&self) -> bool {
        self.taken.0.load(Ordering::SeqCst) > self.settings.0.limit.load(Ordering::Relaxed)
    }

    fn is_exhausted(&self) -> bool {
        self.taken.0.load(Ordering::SeqCst) >= self.settings.0.limit.load(Ordering::SeqCst)
    }

    #[inline]
    fn has_claims(&self) -> bool {
        self.claimed.0.load(Ordering::SeqCst) > 0
    }

    /// Takes a permit from the counter.
    fn try_take(&self) -> bool {
        let limit = self.settings.0.limit.load(Ordering::SeqCst);
        let below = |taken| (taken < limit).then_some(taken + 1);
        self.taken.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, below).is_ok()
    }

    /// Gives `count` permits back to the counter; those that others wait for are granted to them.
    fn put(&self, count: usize, own: Option<usize>) {
        self.taken.0.fetch_sub(count, Ordering::SeqCst);
        if self.has_claims() {
            self.grant(own);
        }
    }

    /// Grants free permits to claims, until there is no permit, no claim, or one that the releasing thread, `own`, serves
    /// itself.
    fn grant(&self, own: Option<usize>) {
        while let Some(number) = self.next_claim(own) {
            if own == Some(number) || !self.try_take() {
                return;
            }
            let claim = &self.claims[number].0;
            let one_less = |wanted: usize| wanted.checked_sub(1);
            if claim.wanted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_err() {
                // Another thread was faster.
                self.taken.0.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            claim.granted.fetch_add(1, Ordering::SeqCst);
            claim.woken.notify_one();
        }
    }

    /// The claim that a free permit goes to.
    fn next_claim(&self, own: Option<usize>) -> Option<usize> {
        let order = |(number, claim): (usize, &CacheLine<Claim>)| {
            let order = claim.0.order.load(Ordering::SeqCst);
            if order == NO_CLAIM || claim.0.wanted.load(Ordering::SeqCst) == 0 {
                return None;
            }
            let head_start = if own == Some(number) { HEAD_START.0 } else { 0 };
            Some(((order & !TIME) | (order & TIME).saturating_sub(head_start), number))
        };
        self.claims.iter().enumerate().filter_map(order).min().map(|(_, number)| number)
    }
}

/// One thread's part in a service's permits.
#[derive(Debug)]
pub(crate) struct ThreadPermits {
    shared: Arc<Permits>,
    number: usize,
    /// Permits that are taken from the counter, and by no request.
    spare: usize,
    /// Permits that requests of this thread have, and the most that they had.
    in_use: usize,
    peak: usize,
}

impl ThreadPermits {
    #[cfg(test)]
    fn shared(&self) -> &Arc<Permits> {
        &self.shared
    }

    /// Takes a permit; false if there is none.
    #[inline]
    pub(crate) fn try_acquire(&mut self) -> bool {
        let is_acquired = self.shared.limit() == UNLIMITED || self.take_spare() || self.take_shared();
        if is_acquired {
            self.count_in();
        }
        is_acquired
    }

    /// True if [`ThreadPermits::try_acquire`] would find a permit.
    pub(crate) fn may_acquire(&self) -> bool {
        let shared = &*self.shared;
        let spare = self.spare + shared.claims[self.number].0.granted.load(Ordering::SeqCst);
        let taken = shared.taken.0.load(Ordering::SeqCst);
        let limit = shared.limit();
        limit == UNLIMITED || spare > 0 && !shared.is_exceeded() || taken.saturating_sub(spare) < limit
    }

    /// Takes a permit even if there is none.
    pub(crate) fn enter(&mut self) {
        if self.shared.limit() != UNLIMITED && !self.take_spare() {
            self.shared.taken.0.fetch_add(1, Ordering::SeqCst);
        }
        self.count_in();
    }

    /// Gives a permit back.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.in_use -= 1;
        let shared = &*self.shared;
        if shared.limit() == UNLIMITED {
            return;
        }
        let most = shared.settings.0.spare.load(Ordering::Relaxed);
        let is_kept = self.spare < most && !shared.has_claims() && !shared.is_exceeded();
        if is_kept {
            self.spare += 1;
            return;
        }
        let count = 1 + if shared.has_claims() { self.spare } else { self.spare / 2 };
        self.spare -= count - 1;
        shared.put(count, Some(self.number));
    }

    /// So many requests of this thread wait with its most critical rank, the first since `since`.
    pub(crate) fn claim(&self, rank: impl Into<Rank>, since: Nanos, wanted: usize) {
        let claim = &self.shared.claims[self.number].0;
        claim.wanted.store(wanted, Ordering::SeqCst);
        let order = (rank.into().index() as u64) << RANK_SHIFT | since.0.min(TIME - 1);
        if claim.order.swap(order, Ordering::SeqCst) == NO_CLAIM {
            self.shared.claimed.0.fetch_add(1, Ordering::SeqCst);
        }
        if !self.shared.is_exhausted() || claim.granted.load(Ordering::SeqCst) > 0 {
            claim.woken.notify_one();
        }
    }

    /// No request of this thread waits.
    pub(crate) fn unclaim(&mut self) {
        let claim = &self.shared.claims[self.number].0;
        if claim.order.load(Ordering::Relaxed) == NO_CLAIM {
            return;
        }
        claim.order.store(NO_CLAIM, Ordering::SeqCst);
        claim.wanted.store(0, Ordering::SeqCst);
        self.shared.claimed.0.fetch_sub(1, Ordering::SeqCst);
        self.poll();
    }

    /// Gives back what this thread keeps and others wait for. To be called when [`ThreadPermits::woken`] says so, after
    /// requests have been taken from the queue, and every 10 ms.
    pub(crate) fn poll(&mut self) {
        self.collect();
        let shared = &*self.shared;
        let has_claims = shared.has_claims();
        let most = if has_claims { 0 } else { shared.settings.0.spare.load(Ordering::Relaxed) };
        let most = if shared.is_exceeded() { 0 } else { most };
        if self.spare > most {
            shared.put(self.spare - most, None);
            self.spare = most;
        } else if has_claims {
            shared.grant(None);
        }
    }

    /// Ends when this thread has been granted a permit, or may find one.
    pub(crate) fn woken(&self) -> impl Future<Output = ()> + use<> {
        let shared = Arc::clone(&self.shared);
        let number = self.number;
        async move { shared.claims[number].0.woken.notified().await }
    }

    /// The most permits that requests of this thread had at once since this was asked last.
    pub(crate) fn take_peak(&mut self) -> usize {
        std::mem::replace(&mut self.peak, self.in_use)
    }

    #[inline]
    fn count_in(&mut self) {
        self.in_use += 1;
        self.peak = self.peak.max(self.in_use);
    }

    /// Takes a permit that this thread keeps, unless the limit has been lowered below what is taken.
    #[inline]
    fn take_spare(&mut self) -> bool {
        let is_usable = self.spare > 0 && !self.shared.is_exceeded();
        self.spare -= usize::from(is_usable);
        is_usable
    }

    fn take_shared(&mut self) -> bool {
        self.collect();
        if self.take_spare() {
            return true;
        }
        let unusable = std::mem::take(&mut self.spare);
        if unusable > 0 {
            self.shared.put(unusable, None);
        }
        let is_taken = self.shared.try_take();
        if !is_taken && !self.shared.settings.0.is_reached.load(Ordering::Relaxed) {
            self.shared.settings.0.is_reached.store(true, Ordering::Relaxed);
        }
        is_taken
    }

    /// Takes over what others have granted.
    fn collect(&mut self) {
        let granted = &self.shared.claims[self.number].0.granted;
        if granted.load(Ordering::Relaxed) > 0 {
            self.spare += granted.swap(0, Ordering::SeqCst);
        }
    }
}

/// The limit of a service without one.
pub(crate) const UNLIMITED: usize = usize::MAX;
const NO_CLAIM: u64 = u64::MAX;
/// Above this a claim's rank, below its time.
const RANK_SHIFT: u32 = 61;
const TIME: u64 = (1 << RANK_SHIFT) - 1;
/// Long beside what it costs to wake a thread, short beside what a client notices.
const HEAD_START: Nanos = Nanos::from_micros(500);
/// All threads together keep at most this part of the permits.
const SPARE_SHARE: usize = 8;
/// More spares nothing.
const MOST_SPARE: usize = 64;

#[cfg(test)]
mod tests;
