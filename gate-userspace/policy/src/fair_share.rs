//! Fair shares of a store that cannot do all that it is asked for: who is above their share gives way, in proportion.
//!
//! **Problem.** In an overload someone must give way. A tenant that asks for less than its share of the store is not the
//! cause, and refusing it helps nobody. Tiers alone cannot tell it from the one that asks for ten times as much.
//!
//! **Source.** Max-min fairness by progressive filling (Bertsekas, Gallager, "Data Networks", 6.5.2): the capacity rises
//! like water over all demands; who asks for less than the level gets all of it, the others the level.
//!
//! **How.** The capacity is measured: what the store completes while the queue before it stands. Tiers are filled in their
//! order, each from what those above it leave. Within a tier the level is weighted by quotas. Whoever asks for more than
//! the level is accepted with the chance `level / demand`, by a draw for each request; everyone else passes. So nothing is
//! given away: what one does not use goes to those who want more, and then to the tier below.
//!
//! - *Demand* is what a tenant wants to send to the store, refused or not: an average over two seconds, or over as long as some twenty
//!   requests take, so that a burst is no excess, which falls sooner when they stop. What is accepted of a sudden flood follows the last tick.
//! - *The queue* tells how far the measure is off. The sum that is given is the capacity, and up to a tenth more while
//!   the queue is shorter than `WANTED_QUEUE`. While it is longer, those above their share get less than it, down to half. So a tier that was shed is let in again by
//!   at most a tenth of a tick's work at a time, as soon as there is room, and the store is never without work.
//! - *Growth.* While the queue does not stand, what is completed is a lower bound of the capacity.
//! - *In force* are shares from the first tick in which the queue stood until it has not stood, and nobody has been refused
//!   a part of their demand, for `HOLD`. A queue alone says who goes first, and refuses no one: clients that wait for their answers
//!   can make one stand for good. Those above their share are *refused* from the first sign on that the store is overloaded,
//!   until there has been none, and nobody has been refused, for `HOLD`. An overloaded store of which nobody asks for more than
//!   their share is slow for another reason, and shares do not help.
//!
//! **Invariants.** Who asks for at most their share is accepted whole. The shares that are asked for sum up to the sum that
//! is given, or to all that is asked for. A tier gets nothing before those above it have all that they ask for. A clock
//! that goes back stands still. The memory is bounded by the sharers of the last ticks. Pure.

use std::collections::BTreeMap;

use gate_common::units::Nanos;

use super::Tier;

/// A tenant's requests of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sharer {
    /// The tier of the requests.
    pub tier: Tier,
    /// The tenant's number.
    pub tenant: u32,
}

/// The requests of a sharer since the last tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The tenant, and the tier.
    pub sharer: Sharer,
    /// Its quota, in units a second; `None` for no limit, which weighs as much as the greatest of its tier.
    pub weight: Option<u64>,
    /// The price of those that wanted to go to the store, refused or not, in thousandths of a request unit.
    pub offered_mru: u64,
}

/// The observations of a tick.
#[derive(Clone, Copy, Debug)]
pub struct Tick<'a> {
    /// On any clock.
    pub now: Nanos,
    /// The time that the loads cover.
    pub interval: Nanos,
    /// True if requests waited for the store all the time.
    pub stood: bool,
    /// The number of requests that the store has answered.
    pub answers: u64,
    /// Their price, in thousandths of a request unit.
    pub served_mru: u64,
    /// The price of those that wait now.
    pub queued_mru: u64,
    /// True while something says that waiting is no answer any more: the store's latency, or how long requests wait for it.
    pub is_overloaded: bool,
    /// By sharer, in any order; a sharer may come more than once.
    pub loads: &'a [Load],
}

/// A sharer's part of the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Its part, in thousandths of a request unit a second; `None` where there is enough for all. What it does not ask for is others'.
    pub mru_per_sec: Option<f64>,
    /// The recent demand, likewise.
    pub demand_mru_per_sec: f64,
    /// The chance that a request of its is accepted, from 0 to 1.
    pub accepted: f64,
    /// True if it asks for more than its part, or so much that it soon may.
    pub is_above: bool,
    /// True if its requests wait behind those of its tier that ask for less: it is above its part, or may soon be by its last ticks.
    pub waits_behind: bool,
}

/// Decides about shares, once a tick. See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct FairShare {
    now: Nanos,
    /// In thousandths of a request unit a second; `None` before the queue has stood.
    capacity: Option<f64>,
    /// The average price of an answered request.
    price: f64,
    /// Measured since the last estimate, while the queue stood: price, number, and time.
    measured: Measured,
    /// When shares were last needed; `None` while they are not in force.
    needed_at: Option<Nanos>,
    /// When the store was last overloaded, or somebody refused; `None` while nobody may be refused.
    refused_at: Option<Nanos>,
    /// When somebody was last refused a part of what they ask for; `None` if that is long ago.
    cut_at: Option<Nanos>,
    sharers: BTreeMap<Sharer, Demand>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    served_mru: u64,
    answers: u64,
    time: Nanos,
}

/// The demand of a sharer, in thousandths of a request unit a second.
#[derive(Clone, Copy, Debug)]
struct Demand {
    weight: Option<u64>,
    /// The ticks that the longer average is of, up to [`MEMORY`].
    ticks: f64,
    /// Over two seconds, and over some ticks.
    long: f64,
    short: f64,
    /// In the last tick.
    last: f64,
    /// The price of requests that no rate has yet.
    offered_mru: u64,
    share: Share,
}

impl FairShare {
    /// Takes in a tick, and decides anew.
    pub fn tick(&mut self, tick: &Tick<'_>) {
        self.now = self.now.max(tick.now);
        for load in tick.loads {
            let demand = self.sharers.entry(load.sharer).or_insert(Demand::NONE);
            demand.weight = load.weight;
            demand.offered_mru = demand.offered_mru.saturating_add(load.offered_mru);
        }
        if tick.interval == Nanos::ZERO {
            return;
        }
        let seconds = tick.interval.0 as f64 / 1e9;
        // A tick that is late counts as several.
        let new_short = weight_of(1.0 / SHORT_MEMORY, seconds);
        let counted = self.price * COUNTED / TICK_SECONDS;
        for demand in self.sharers.values_mut() {
            demand.last = std::mem::take(&mut demand.offered_mru) as f64 / seconds;
            let memory = (counted / demand.long.max(1.0)).clamp(MEMORY, LONGEST_MEMORY);
            demand.ticks = (demand.ticks + seconds / TICK_SECONDS).min(memory);
            demand.long += (demand.last - demand.long) * weight_of(1.0 / demand.ticks, seconds);
            demand.short += (demand.last - demand.short) * new_short;
        }
        self.sharers.retain(|_, demand| demand.long >= FORGOTTEN_MRU);
        self.measure(tick);
        self.decide(tick);
    }

    /// True while shares decide who goes first.
    #[must_use]
    pub const fn is_in_force(&self) -> bool {
        self.needed_at.is_some()
    }

    /// True while somebody is above their share, and refused a part of what they ask for. While nobody is, a store that is slow is not
    /// so for what is asked beyond shares.
    #[must_use]
    pub const fn cuts(&self) -> bool {
        self.cut_at.is_some()
    }

    /// The capacity of the store, in thousandths of a request unit a second; `None` while it is not known.
    #[must_use]
    pub const fn capacity(&self) -> Option<f64> {
        self.capacity
    }

    /// How long requests of those above their share may wait: twice as long as the queue that is wanted lasts, above 0; `None`
    /// while nobody is refused.
    #[must_use]
    pub fn longest_wait(&self) -> Option<Nanos> {
        self.refused_at?;
        let capacity = self.capacity.unwrap_or(0.0).max(1.0);
        let wait = 2.0 * self.wanted_queue(capacity) / capacity;
        Some(Nanos((wait * 1e9) as u64).max(Nanos(1)))
    }

    /// The price of the queue that is wanted before a store that can do so much.
    fn wanted_queue(&self, capacity: f64) -> f64 {
        (capacity * WANTED_QUEUE.0 as f64 / 1e9).max(self.price * FEWEST_QUEUED).max(1.0)
    }

    /// The shares of those who have asked for something lately, by tier; none while shares are not in force.
    pub fn shares(&self) -> impl Iterator<Item = (Sharer, Share)> {
        let Self { needed_at, refused_at, .. } = *self;
        let of = move |(&sharer, demand): (&Sharer, &Demand)| {
            let accepted = if refused_at.is_some() { demand.share.accepted } else { 1.0 };
            (sharer, Share { accepted, ..demand.share })
        };
        self.sharers.iter().filter(move |_| needed_at.is_some()).map(of)
    }

    /// Learns what the store can do.
    fn measure(&mut self, tick: &Tick<'_>) {
        let served_mru = tick.served_mru;
        if tick.answers > 0 {
            let price = served_mru as f64 / tick.answers as f64;
            self.price = if self.price == 0.0 { price } else { self.price + (price - self.price) * LEARNED };
        }
        let seconds = tick.interval.0 as f64 / 1e9;
        if !tick.stood {
            self.measured = Measured::default();
            let at_least = served_mru as f64 / seconds;
            let before = self.capacity.unwrap_or(0.0);
            if at_least > before {
                self.capacity = Some(before + (at_least - before) * LEARNED);
            }
            return;
        }
        // A store that is silent for a moment is as fast as before.
        let expected = self.capacity.unwrap_or(0.0) * seconds / self.price.max(1.0);
        if tick.answers == 0 && expected >= ENOUGH as f64 {
            return;
        }
        let Measured { served_mru: before, answers, time } = self.measured;
        let measured = Measured {
            served_mru: before + served_mru,
            answers: answers + tick.answers,
            time: time.saturating_add(tick.interval),
        };
        if measured.answers < ENOUGH && (measured.time < LONGEST || measured.answers == 0) {
            self.measured = measured;
            return;
        }
        self.measured = Measured::default();
        let seconds = measured.time.0 as f64 / 1e9;
        let found = measured.served_mru as f64 / seconds;
        // What was completed before the queue stood may be far from all that the store can do.
        let step = if self.needed_at.is_none() && self.capacity.is_none_or(|before| found > before) {
            1.0
        } else {
            weight_of(LEARNED, seconds)
        };
        let before = self.capacity.unwrap_or(0.0);
        self.capacity = Some(before + (found - before) * step);
        // Steady => Ordering: the queue has stood for a tick.
        self.needed_at = Some(self.now);
    }

    /// Shares out what the store can do.
    fn decide(&mut self, tick: &Tick<'_>) {
        let (Some(capacity), Some(needed_at)) = (self.capacity, self.needed_at) else { return };
        let queued = tick.queued_mru as f64 / self.wanted_queue(capacity);
        let given = capacity * (1.0 + HEADROOM * (1.0 - queued).max(0.0));
        let of_excess = (1.0 - (queued - 1.0).max(0.0) / LONG_QUEUE).max(LEAST_GIVEN);
        let is_short = self.share_out(given, of_excess);
        let refused_for = self.refused_at.map(|refused_at| self.now.saturating_sub(refused_at));
        let is_refused = is_short && refused_for.is_some();
        self.refused_at = match refused_for {
            // Ordering => Refusing, or it goes on.
            _ if tick.is_overloaded || is_refused => Some(self.now),
            // Refusing => Ordering
            Some(passed) if passed >= HOLD => None,
            Some(_) | None => self.refused_at,
        };
        self.cut_at = match self.cut_at {
            _ if is_refused => Some(self.now),
            Some(cut_at) if self.now.saturating_sub(cut_at) >= HOLD => None,
            before => before,
        };
        if is_refused || tick.stood {
            self.needed_at = Some(self.now);
            return;
        }
        let passed = self.now.saturating_sub(needed_at);
        if passed >= HOLD && (!tick.is_overloaded || passed >= LONGEST_HOLD) {
            // Ordering => Steady: everyone has had all they asked for.
            (self.needed_at, self.refused_at, self.cut_at) = (None, None, None);
        }
    }

    /// Gives everyone their share of so much, and of it only a part to those who ask for more. True if anyone is refused a part
    /// of their demand.
    fn share_out(&mut self, given: f64, of_excess: f64) -> bool {
        let mut left = Level { capacity: given, near: given * NEAR };
        let mut is_refused = false;
        for tier in Tier::ALL {
            let range = Sharer { tier, tenant: 0 }..=Sharer { tier, tenant: u32::MAX };
            let heaviest = self.sharers.range(range.clone()).filter_map(|(_, demand)| demand.weight).max();
            let weigh = |demand: &Demand| demand.weight.or(heaviest).unwrap_or(1).max(1) as f64;
            let demands =
                self.sharers.range(range.clone()).map(|(_, demand)| (demand.recent(), weigh(demand)));
            let mut demands: Vec<_> = demands.collect();
            let level = fill(&mut demands, left.capacity);
            let near = fill(&mut demands, left.near);
            let asked: f64 = demands.iter().map(|(demand, _)| demand).sum();
            left = Level { capacity: (left.capacity - asked).max(0.0), near: (left.near - asked).max(0.0) };
            let burst = self.price * BURST / (SHORT_MEMORY * TICK_SECONDS);
            for (_, demand) in self.sharers.range_mut(range) {
                demand.take((level, near), weigh(demand), (of_excess, burst));
                is_refused |= demand.share.accepted < 1.0;
            }
        }
        is_refused
    }
}

/// The capacity that is left for the next tier, and a little less.
#[derive(Clone, Copy, Debug)]
struct Level {
    capacity: f64,
    near: f64,
}

impl Demand {
    const NONE: Self = Self {
        weight: None,
        ticks: UNSEEN,
        long: 0.0,
        short: 0.0,
        last: 0.0,
        offered_mru: 0,
        share: Share {
            mru_per_sec: Some(0.0),
            demand_mru_per_sec: 0.0,
            accepted: 1.0,
            is_above: false,
            waits_behind: true,
        },
    };

    /// The demand of late: a burst is little of it, and an end soon all.
    fn recent(&self) -> f64 {
        self.long.min(self.short * 2.0)
    }

    /// Takes the share at a level, and notes if it asks for more than at the one `near` it. Requests that come at once are no flood up to
    /// this `burst` a second.
    fn take(&mut self, (level, near): (f64, f64), weight: f64, (of_excess, burst): (f64, f64)) {
        let recent = self.recent();
        let most = level * weight;
        let back = if self.share.is_above { BACK_BELOW } else { 1.0 };
        let is_above = recent > near * weight * back;
        // A sudden flood is not yet in the averages.
        let asked = if self.last > recent * 2.0 { self.last } else { recent };
        // Who asks for twice their share, or more, gives way to a long queue with all of it; a small excess with as little.
        let excess = ((asked - most) / most.max(1.0)).clamp(0.0, 1.0);
        let kept = 1.0 - (1.0 - of_excess) * excess;
        let accepted = if recent > most { (most * kept / asked).min(1.0) } else { 1.0 };
        let mru_per_sec = most.is_finite().then_some(most);
        let waits_behind = is_above || self.short > near * weight * 2.0 + burst;
        self.share = Share { mru_per_sec, demand_mru_per_sec: recent, accepted, is_above, waits_behind };
    }
}

/// The weight of what was seen for so long in an average that moves by `step` a tick.
fn weight_of(step: f64, seconds: f64) -> f64 {
    1.0 - (1.0 - step).powf(seconds / TICK_SECONDS)
}

/// The level, by weight, to which this capacity fills demands, each with its weight; infinite if it covers them all.
fn fill(demands: &mut [(f64, f64)], capacity: f64) -> f64 {
    demands.sort_unstable_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let mut left = capacity;
    let mut weight: f64 = demands.iter().map(|(_, weight)| weight).sum();
    for &(demand, own) in &*demands {
        if demand * weight > left * own {
            return left / weight;
        }
        left = (left - demand).max(0.0);
        weight -= own;
    }
    f64::INFINITY
}

/// The averages of demand: in ticks, and the length of one. Two requests a second are told from four by the longer one.
const MEMORY: f64 = 20.0;
/// The average of few requests tells little: it is of about so many, but of 10 s at most.
const COUNTED: f64 = 20.0;
const LONGEST_MEMORY: f64 = 100.0;
/// So many requests that come at once are no flood, however small a share is.
const BURST: f64 = 4.0;
const SHORT_MEMORY: f64 = 3.0;
/// The ticks in which a new tenant is taken to have asked for nothing: a burst is no excess, a flood soon is one.
const UNSEEN: f64 = 4.0;
const TICK_SECONDS: f64 = 0.1;
/// Less demand than a thousandth of a unit in 10 s is none.
const FORGOTTEN_MRU: f64 = 0.1;
/// The weight of one tick's measurement.
const LEARNED: f64 = 0.2;
/// Fewer answers say little; a slow store is measured by those of a second.
const ENOUGH: u64 = 10;
const LONGEST: Nanos = Nanos::from_secs(1);
/// The most that is given beyond the capacity, as a share of it; and the least of their share that those above it get.
const HEADROOM: f64 = 0.1;
const LEAST_GIVEN: f64 = 0.5;
/// The queue that is wanted: enough that the store does not run dry between two ticks.
const WANTED_QUEUE: Nanos = Nanos::from_millis(100);
const FEWEST_QUEUED: f64 = 32.0;
/// In wanted queues: with so many beyond the first, those above their share would get nothing.
const LONG_QUEUE: f64 = 20.0;
/// The part of the given sum by which a share is drawn tighter when a tenant is told to be above it, if only to wait behind others.
const NEAR: f64 = 0.9;
/// The part of that share below which a tenant is within it again.
const BACK_BELOW: f64 = 0.9;
/// Shares bind for so long after they were needed, and for so long at most if the store is still slow.
const HOLD: Nanos = Nanos::from_secs(3);
const LONGEST_HOLD: Nanos = Nanos::from_secs(10);

#[cfg(test)]
mod tests;
