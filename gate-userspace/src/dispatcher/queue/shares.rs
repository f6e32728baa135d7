//! Fair shares of a service's store ([`FairShare`]), which all its threads follow.
//!
//! Each thread counts the demand of tenants from the first request that finds no permit on, and hands that over at its tick. One of
//! them then decides, and all read the decision at their next tick. While the queue stands, shares say who goes first. They refuse
//! requests once something else would for the store's sake: its latency ratio is below what the ladder of tiers bears, `CoDel`
//! finds that a queue stands, or one has waited for [`LONGEST_WAIT`].
//!
//! **Invariants.** While no request waits nothing is counted. Tenants are known by number for as long as the configuration stays.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::FixedState;
use gate_common::units::{MilliRu, Nanos};

use crate::policy::fair_share::{FairShare, Load, Share, Sharer, Tick};

/// The shares of a service, for all threads.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// True while the latency ratio is below what the ladder bears.
    is_slow: AtomicBool,
    /// True while shares refuse somebody something.
    cut: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    policy: FairShare,
    loads: Vec<Load>,
    seen: Seen,
    accepted: Accepted,
    /// True if a thread has counted since the last decision.
    is_counted: bool,
    /// The average price of a request that was accepted, in thousandths of a request unit.
    price: f64,
    /// The time of the last decision; zero before the first.
    decided: Nanos,
    /// The shares in force; `None` while there are none.
    shares: Option<Arc<InForce>>,
}

/// The shares in force.
#[derive(Debug)]
struct InForce {
    shares: HashMap<Sharer, Share, FixedState>,
    /// How long requests of those above their share may wait, while they are refused.
    longest_wait: Option<Nanos>,
    /// True while they refuse somebody something.
    cut: bool,
}

/// The observations of one thread, or of all, since the last tick.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The requests that the store has answered.
    pub(crate) answers: u64,
    /// The requests that wait now.
    pub(crate) waiting: u64,
    /// True if requests waited all the time.
    pub(crate) stood: bool,
    /// True if `CoDel` refuses for a queue that stands.
    pub(crate) is_refused: bool,
    /// The longest that a request has waited that waits now, or has left.
    pub(crate) delay: Nanos,
}

/// Requests that were accepted, and their price.
#[derive(Clone, Copy, Debug, Default)]
struct Accepted {
    count: u64,
    mru: u64,
}

/// One thread's part.
#[derive(Debug)]
pub(crate) struct ThreadShares {
    shared: Arc<Shares>,
    in_force: Option<Arc<InForce>>,
    is_counting: bool,
    offered: HashMap<Sharer, u64, FixedState>,
    accepted: Accepted,
}

/// A tenant's place among those who share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Standing {
    /// The chance that a request is accepted, from 0 to 1.
    pub(crate) accepted: f64,
    /// True if it asks for more than its share.
    pub(crate) is_above: bool,
    /// True if its requests wait behind those of its tier that ask for less.
    pub(crate) waits_behind: bool,
}

impl Shares {
    /// One thread's part.
    pub(crate) fn of_thread(self: &Arc<Self>) -> ThreadShares {
        ThreadShares {
            shared: Arc::clone(self),
            in_force: None,
            is_counting: false,
            offered: HashMap::default(),
            accepted: Accepted::default(),
        }
    }

    /// True while shares refuse somebody what the store cannot do.
    pub(crate) fn cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Notes whether the latency ratio is below what the ladder bears.
    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::Relaxed);
    }

    fn decide(&self, state: &mut State, now: Nanos) {
        let seen = std::mem::take(&mut state.seen);
        let before = std::mem::replace(&mut state.decided, now);
        let Accepted { count, mru } = std::mem::take(&mut state.accepted);
        if !std::mem::take(&mut state.is_counted) {
            (state.policy, state.shares) = Default::default();
            self.cut.store(false, Ordering::Relaxed);
            return;
        }
        if count > 0 {
            let price = mru as f64 / count as f64;
            state.price =
                if state.price == 0.0 { price } else { state.price + (price - state.price) * LEARNED };
        }
        let is_slow = self.is_slow.load(Ordering::Relaxed);
        let is_overloaded = is_slow || seen.is_refused || seen.delay >= LONGEST_WAIT;
        state.policy.tick(&Tick {
            now,
            interval: if before == Nanos::ZERO { Nanos::ZERO } else { now.saturating_sub(before) },
            stood: seen.stood,
            answers: seen.answers,
            served_mru: (seen.answers as f64 * state.price) as u64,
            queued_mru: (seen.waiting as f64 * state.price) as u64,
            is_overloaded,
            loads: &state.loads,
        });
        state.loads.clear();
        let policy = &state.policy;
        state.shares = policy.is_in_force().then(|| {
            let shares = policy.shares().collect();
            Arc::new(InForce { shares, longest_wait: policy.longest_wait(), cut: policy.cuts() })
        });
        self.cut.store(policy.cuts(), Ordering::Relaxed);
    }
}

impl ThreadShares {
    /// The place of a tenant's requests of a tier; `None` while no shares are in force. Who was not seen before waits behind the others.
    #[inline]
    pub(crate) fn standing(&self, sharer: Sharer) -> Option<Standing> {
        let InForce { shares, .. } = &**self.in_force.as_ref()?;
        let unseen = Standing { accepted: 1.0, is_above: false, waits_behind: true };
        Some(shares.get(&sharer).map_or(unseen, |&Share { accepted, is_above, waits_behind, .. }| Standing {
            accepted,
            is_above,
            waits_behind,
        }))
    }

    /// True while they refuse somebody something.
    pub(crate) fn cut(&self) -> bool {
        self.in_force.as_ref().is_some_and(|in_force| in_force.cut)
    }

    /// True if a tenant is within its share while others are refused what they ask for beyond theirs.
    #[inline]
    pub(crate) fn is_spared(&self, sharer: Sharer) -> bool {
        self.cut() && self.standing(sharer).is_some_and(|standing| !standing.is_above)
    }

    /// A tenant's share, if any are in force.
    pub(crate) fn share(&self, sharer: Sharer) -> Option<Share> {
        self.in_force.as_ref()?.shares.get(&sharer).copied()
    }

    /// How long requests of those above their share may wait, while they are refused.
    pub(crate) fn longest_wait(&self) -> Option<Nanos> {
        self.in_force.as_ref()?.longest_wait
    }

    /// A request waits for a permit.
    #[inline]
    pub(crate) fn count_from_now(&mut self) {
        self.is_counting = true;
    }

    /// Counts a request for the store. False if it is to be refused, as this `draw` has it.
    #[inline]
    pub(crate) fn offer(&mut self, sharer: Sharer, price: MilliRu, draw: impl FnOnce() -> f64) -> bool {
        if !self.is_counting {
            return true;
        }
        let price = u64::from(price.0).max(LEAST_PRICE);
        *self.offered.entry(sharer).or_default() += price;
        let is_accepted = self
            .standing(sharer)
            .is_none_or(|standing| standing.accepted >= 1.0 || draw() < standing.accepted);
        if is_accepted {
            self.accepted.count += 1;
            self.accepted.mru += price;
        }
        is_accepted
    }

    /// Hands over what was counted, and takes over what is decided; `decides` is true in the thread that acts for all. `weight_of` a
    /// tenant is its quota.
    pub(crate) fn tick(
        &mut self,
        seen: Seen,
        decides: bool,
        now: Nanos,
        mut weight_of: impl FnMut(u32) -> Option<u64>,
    ) {
        let state = &mut *self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(sharer, offered_mru): (Sharer, u64)| Load {
            sharer,
            weight: weight_of(sharer.tenant),
            offered_mru,
        };
        state.loads.extend(self.offered.drain().map(of));
        let all = &mut state.seen;
        *all = Seen {
            answers: all.answers + seen.answers,
            waiting: all.waiting + seen.waiting,
            stood: all.stood || seen.stood,
            is_refused: all.is_refused || seen.is_refused,
            delay: all.delay.max(seen.delay),
        };
        let accepted = std::mem::take(&mut self.accepted);
        state.accepted.count += accepted.count;
        state.accepted.mru += accepted.mru;
        state.is_counted |= self.is_counting;
        if decides {
            self.shared.decide(state, now);
        }
        self.in_force.clone_from(&state.shares);
        self.is_counting = self.in_force.is_some() || seen.waiting > 0;
    }

    /// Forgets all: the numbers of tenants may be others'.
    pub(crate) fn forget(&mut self) {
        let state = &mut *self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.policy, state.shares) = Default::default();
        state.loads.clear();
        self.shared.cut.store(false, Ordering::Relaxed);
        self.in_force = None;
        self.offered.clear();
    }
}

/// A request that has waited for so long is a sign of overload by itself.
const LONGEST_WAIT: Nanos = Nanos::from_secs(1);
/// The weight of one tick's average price.
const LEARNED: f64 = 0.2;
/// The least that a request counts, in thousandths of a request unit, as when tenants take turns: one may be free, and is not nothing to the
/// store.
const LEAST_PRICE: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Tier;

    const POLITE: Sharer = Sharer { tier: Tier::Standard, tenant: 1 };
    const GREEDY: Sharer = Sharer { tier: Tier::Standard, tenant: 2 };
    const STOOD: Seen =
        Seen { answers: 60, waiting: 90, stood: true, is_refused: false, delay: Nanos::from_millis(100) };

    /// Ticks of two threads, of which the first decides.
    struct Threads {
        shared: Arc<Shares>,
        threads: [ThreadShares; 2],
        now: Nanos,
    }

    impl Threads {
        fn new() -> Self {
            let shared = Arc::<Shares>::default();
            let threads = [(); 2].map(|()| shared.of_thread());
            Self { shared, threads, now: Nanos::from_secs(1) }
        }

        /// In each of so many ticks the one tenant asks for 10 requests in the first thread, the other for 450 in the second.
        fn run(&mut self, ticks: u32, seen: Seen) {
            for _ in 0..ticks {
                for (thread, sharer, asked) in [(0, POLITE, 10), (1, GREEDY, 450)] {
                    for draw in 0..asked {
                        self.threads[thread].offer(sharer, MilliRu(1_000), || f64::from(draw) / 450.0);
                    }
                }
                self.now = self.now.saturating_add(Nanos::from_millis(100));
                for (place, thread) in self.threads.iter_mut().enumerate() {
                    thread.tick(seen, place == 0, self.now, |_| Some(5_000));
                }
            }
        }
    }

    #[test]
    fn those_above_are_refused_once_the_store_is_slow() {
        let mut all = Threads::new();
        all.threads.iter_mut().for_each(ThreadShares::count_from_now);
        all.run(20, STOOD);
        let greedy = all.threads[1].standing(GREEDY).unwrap();
        assert!(!all.shared.cut() && greedy.waits_behind && greedy.accepted >= 1.0, "nobody is refused");
        all.shared.set_slow(true);
        all.run(20, STOOD);
        for thread in &all.threads {
            let polite = thread.standing(POLITE).unwrap();
            assert_eq!(polite, Standing { accepted: 1.0, is_above: false, waits_behind: false });
            let greedy = thread.standing(GREEDY).unwrap();
            assert!(
                greedy.is_above && greedy.waits_behind && (0.05..0.3).contains(&greedy.accepted),
                "{greedy:?}"
            );
            let unseen = thread.standing(Sharer { tenant: 3, ..POLITE }).unwrap();
            assert_eq!(unseen, Standing { accepted: 1.0, is_above: false, waits_behind: true });
        }
        // The store is fast enough again.
        all.shared.set_slow(false);
        all.run(200, Seen { answers: 460, ..Seen::default() });
        assert!(!all.shared.cut() && all.threads.iter().all(|thread| thread.standing(GREEDY).is_none()));
    }

    #[test]
    fn a_thread_where_nobody_waits_follows_and_its_answers_count() {
        let mut all = Threads::new();
        all.threads[0].count_from_now();
        all.shared.set_slow(true);
        all.run(20, STOOD);
        assert!(
            all.threads.iter().all(|thread| thread.standing(GREEDY).is_some_and(|greedy| greedy.is_above))
        );
        // Both threads say that the store has answered 60.
        let capacity = all.shared.state.lock().unwrap().policy.capacity().unwrap();
        assert!((1_100_000.0..1_300_000.0).contains(&capacity), "{capacity}");
    }

    #[test]
    fn a_long_wait_and_codel_are_signs_of_overload() {
        for sign in [Seen { is_refused: true, ..STOOD }, Seen { delay: LONGEST_WAIT, ..STOOD }] {
            let mut all = Threads::new();
            all.threads.iter_mut().for_each(ThreadShares::count_from_now);
            all.run(3, sign);
            assert!(all.shared.cut(), "{sign:?}");
        }
    }

    #[test]
    fn nothing_is_counted_while_nobody_waits() {
        let mut all = Threads::new();
        all.shared.set_slow(true);
        all.run(20, Seen { answers: 460, ..Seen::default() });
        assert!(!all.shared.cut() && all.threads.iter().all(|thread| thread.offered.is_empty()));
    }

    #[test]
    fn numbers_that_may_be_others_are_forgotten() {
        let mut all = Threads::new();
        all.threads.iter_mut().for_each(ThreadShares::count_from_now);
        all.shared.set_slow(true);
        all.run(20, STOOD);
        all.threads[1].forget();
        assert!(!all.shared.cut() && all.threads[1].standing(GREEDY).is_none());
        all.threads[0].tick(STOOD, true, all.now, |_| None);
        assert!(all.threads[0].standing(GREEDY).is_none());
    }
}
