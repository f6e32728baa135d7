//! Bouncer: refuse a request that would miss its objective, before it queues.
//!
//! **Problem.** Under overload a queue makes every request late. Limits on the queue's length or
//! wait hit all types alike: cheap queries, which would have met their objective, and expensive
//! ones, which would not.
//!
//! **Source.** Xu and Colmenares, *Bouncer: Admission Control with Response Time Objectives for
//! Low-latency Online Data Systems*, SIGMOD 2024. With `count` the queued requests of a type, `pt`
//! processing times from recent completions and P the store's parallelism:
//!
//! ```text
//! wait   = sum over types of count(type) * pt_mean(type) / P
//! refuse if wait + pt_px(type) > limit_px(type) for any percentile px of the type's objective
//! ```
//!
//! Counts are of *queued* requests, not of those in processing. See `estimator.rs` for how processing
//! times are learned, `fairness.rs` for what keeps types from starving.
//!
//! **Deviations.** A type's objective may have any percentiles. What queues also waits for the next
//! place to free, since all are taken: `mean / P`, which the formula leaves out and which is much where
//! P is small; [`Config::next_permit`] counts it. Where the queue has tiers, counts are per tier, and the
//! wait sums the tiers served before or with the request's own. Processing times are then learned by type and tier, so that a
//! tier's dear requests do not refuse those of another: a tier that has seen too few of a type goes by those of all tiers. What comes to the tiers above in the
//! meantime is served first, too, so the wait is divided by the share of the store that they leave
//! (Cobham, *Priority Assignment in Waiting Line Problems*, 1954). A histogram that holds too few values
//! goes on filling instead of being thrown away. A type whose processing times alone miss its objective
//! would never be admitted, and so never be measured, again, be it that the store was slow for a while
//! or that chance put a percentile above its limit: after ten intervals without news it is on trial,
//! judged by the wait alone, until it has been measured. It is on trial at once where its times are of an overload that
//! is over: some were recorded before an interval in which nothing has been queued. The rule is turned around: each type's
//! *budget*, `P * min over px of (limit_px - pt_px)`, is worked out at every tick, so that a decision
//! only compares the queue's work with it.
//!
//! **Concurrency.** A decision takes no lock: it reads the queued work, which is kept up to date as
//! requests come and go, and one budget, all atomic, however many types there are. It may see one
//! type's new figures beside another's old ones: each is an estimate by itself. Two threads that
//! decide at once may both admit into the last place. A request that is queued or taken at the very
//! moment of a tick may be counted wrong, until the next tick adds up the work anew.
//!
//! **Invariants.** With an empty queue, a type passes if its processing times alone keep its
//! objective. No type is refused for good while the queue is empty. More queued work, a longer mean
//! or a lower limit never turn a refusal into an admission. Nothing that the constructor accepts can
//! panic or overflow later.

mod config;
mod estimator;
mod fairness;
mod learned;
mod sliding;

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gate_common::units::Nanos;

pub use self::config::{AverageOver, Config, Fairness, HistogramKind, Objective, Target};
pub use self::estimator::ProcessingTimes;
use self::estimator::{Published, Recorder, Rhythm};
use self::fairness::Helper;
use self::learned::{Grounds, Learned, Measured, Shares};
use super::Tier;
use super::admission::{Admission, Decision, Estimate, QueryType, QueueOrder, Request};
use super::range::OutOfRange;

/// The policy. See the [module](self).
#[derive(Debug)]
pub struct Bouncer {
    parallelism: AtomicU32,
    order: QueueOrder,
    /// One per tier; if the queue is served in order of arrival, only the first is used.
    queues: [Queue; Tier::ALL.len()],
    /// The part of the mean processing time, of all types, that passes before the next place is free; zero if that does
    /// not count.
    next_permit: AtomicU64,
    counts_next_permit: bool,
    helper: Helper,
    /// One per type, all tiers together.
    recorders: Box<[Recorder]>,
    /// Where the queue has tiers, one per tier and type.
    tier_recorders: Box<[Recorder]>,
    learned: Mutex<Learned>,
}

/// The queued requests of a tier. A request that is dequeued before the thread that enqueued it has
/// counted it makes the numbers negative for a moment.
#[derive(Debug)]
struct Queue {
    /// The sum over the types of their count times their mean, in nanoseconds.
    work: AtomicI64,
    /// By type.
    counts: Box<[AtomicI32]>,
    /// By type: its mean processing time, in nanoseconds.
    means: Box<[AtomicU64]>,
    /// By type: how much work may be queued for it to keep its objective, plus one; zero if none keeps it.
    budgets: Box<[AtomicU64]>,
    /// How long its completed requests were processed, in nanoseconds. Wraps.
    done: AtomicU64,
    /// The factor on a wait because of the tiers above, in 65,536ths.
    delay: AtomicU64,
}

impl Bouncer {
    fn parallelism(&self) -> u32 {
        self.parallelism.load(Ordering::Relaxed)
    }

    /// A policy that has seen nothing yet.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`], naming the first parameter that is.
    pub fn new(config: Config, now: Nanos) -> Result<Self, OutOfRange> {
        config.validate()?;
        let types = config.types.len() + 1;
        let helper = Helper::new(&config, types, now)?;
        let mut objectives = config.types;
        objectives.push(config.default_objective.clone());
        let percentiles = percentiles(&objectives);
        let of_tiers = match config.order {
            QueueOrder::Fifo => 0,
            QueueOrder::ByTier => Tier::ALL.len() * types,
        };
        let atomics = || (0..types).map(|_| AtomicU64::new(0)).collect();
        let published = |count| (0..count).map(|_| Published::nothing(config.histogram, now)).collect();
        let bouncer = Self {
            parallelism: AtomicU32::new(config.parallelism),
            order: config.order,
            queues: Tier::ALL.map(|_| Queue {
                work: AtomicI64::new(0),
                counts: (0..types).map(|_| AtomicI32::new(0)).collect(),
                means: atomics(),
                budgets: atomics(),
                done: AtomicU64::new(0),
                delay: AtomicU64::new(NO_DELAY),
            }),
            next_permit: AtomicU64::new(0),
            counts_next_permit: config.next_permit,
            helper,
            recorders: (0..types).map(|_| Recorder::new()).collect(),
            tier_recorders: (0..of_tiers).map(|_| Recorder::new()).collect(),
            learned: Mutex::new(Learned {
                objectives,
                default_objective: config.default_objective,
                percentiles,
                rhythm: Rhythm { interval: config.interval, min_samples: u64::from(config.min_samples) },
                published: published(types),
                tier_published: published(of_tiers),
                general: Published::nothing(HistogramKind::Swap, now),
                shares: Shares { last: now, done: Default::default(), taken: Default::default() },
                idle_since: None,
            }),
        };
        bouncer.publish(&mut bouncer.learned.lock().unwrap_or_else(PoisonError::into_inner), now);
        Ok(bouncer)
    }

    /// How long a request of this tier would wait if it joined the queue now.
    #[must_use]
    pub fn expected_wait(&self, tier: Tier) -> Nanos {
        Nanos(self.work_before(tier) / u64::from(self.parallelism()))
    }

    /// The processing times of a type that decisions use; `None` while the type is cold.
    #[must_use]
    pub fn processing_times(&self, query_type: QueryType) -> Option<ProcessingTimes> {
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        learned.published[self.column(query_type)].processing_times().cloned()
    }

    /// A type's place; the last for those that are not known.
    #[inline]
    fn column(&self, query_type: QueryType) -> usize {
        usize::from(query_type.0).min(self.recorders.len() - 1)
    }

    /// The queue that a request of `tier` joins.
    #[inline]
    fn queue(&self, tier: Tier) -> usize {
        self.order.queue(tier)
    }

    /// The work that is served before a new request of `tier`, in nanoseconds of one server.
    #[inline]
    fn work_before(&self, tier: Tier) -> u64 {
        let work = |queue: &Queue| queue.work.load(Ordering::Relaxed).max(0).cast_unsigned();
        let queues = &self.queues[..=self.queue(tier)];
        let queued = queues.iter().map(work).fold(0, u64::saturating_add);
        if queued == 0 {
            // There may be a place that is free.
            return 0;
        }
        let known = queued.saturating_add(self.next_permit.load(Ordering::Relaxed));
        let delay = queues[queues.len() - 1].delay.load(Ordering::Relaxed);
        let all = (u128::from(known) * u128::from(delay)) >> NO_DELAY.ilog2();
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Counts `requests` (one, or minus one) more into the queue.
    #[inline]
    fn count(&self, request: Request, requests: i32) {
        let column = self.column(request.query_type);
        let queue = &self.queues[self.queue(request.tier)];
        let mean = queue.means[column].load(Ordering::Relaxed).cast_signed();
        queue.counts[column].fetch_add(requests, Ordering::Relaxed);
        queue.work.fetch_add(mean * i64::from(requests), Ordering::Relaxed);
    }

    /// Makes what is learned by `now` the ground of decisions.
    fn publish(&self, learned: &mut Learned, now: Nanos) {
        let is_idle = self.queues.iter().all(Queue::is_empty);
        learned.idle_since = is_idle.then(|| learned.idle_since.unwrap_or(now));
        let mut on_trial = Vec::new();
        for (tier, queue) in self.queues.iter().enumerate() {
            for column in 0..learned.objectives.len() {
                let Grounds { objective, times, of } = learned.grounds(tier, column);
                let mut budget = self.budget(objective, times);
                queue.means[column].store(times.map_or(0, |times| times.mean.0), Ordering::Relaxed);
                if budget == 0 && learned.is_trial_due(of, now) {
                    // Hopeless => On trial: nothing was admitted that could have told otherwise.
                    budget = self.budget(objective, None);
                    on_trial.push(of);
                }
                queue.budgets[column].store(budget, Ordering::Relaxed);
            }
        }
        for of in on_trial {
            match of {
                Measured::Type(column) => learned.published[column].renew(&self.recorders[column], now),
                Measured::OfTier(place) => {
                    learned.tier_published[place].renew(&self.tier_recorders[place], now);
                }
            }
        }
        let general = learned.general.processing_times().filter(|_| self.counts_next_permit);
        self.next_permit.store(general.map_or(0, |times| times.mean.0), Ordering::Relaxed);
        for queue in &self.queues {
            let work = |(count, mean): (&AtomicI32, &AtomicU64)| {
                i128::from(count.load(Ordering::Relaxed)) * i128::from(mean.load(Ordering::Relaxed))
            };
            let work: i128 = queue.counts.iter().zip(&queue.means).map(work).sum();
            // A million more of the longest requests have room before the next tick.
            queue.work.store(work.clamp(0, i128::from(i64::MAX / 2)) as i64, Ordering::Relaxed);
        }
    }

    /// Works out what the tiers above leave to each tier.
    fn share(&self, shares: &mut Shares, now: Nanos) {
        let passed = now.saturating_sub(shares.last).0 as f64;
        if passed == 0.0 {
            return;
        }
        shares.last = now;
        let weight = passed / (passed + SHARES_OVER.0 as f64);
        let mut left = 1.0;
        for ((queue, done), taken) in self.queues.iter().zip(&mut shares.done).zip(&mut shares.taken) {
            queue.delay.store((NO_DELAY as f64 / f64::max(left, LEAST_LEFT)) as u64, Ordering::Relaxed);
            let before = std::mem::replace(done, queue.done.load(Ordering::Relaxed));
            let lately = done.wrapping_sub(before) as f64 / (passed * f64::from(self.parallelism()));
            *taken += (lately - *taken) * weight;
            left -= *taken;
        }
    }

    /// The decision, where `overrides` says if a type's refusal is overridden.
    #[inline]
    fn judge(&self, request: Request, overrides: impl FnOnce(usize, bool) -> bool) -> Decision {
        let column = self.column(request.query_type);
        let work = self.work_before(request.tier);
        let budget = self.queues[self.queue(request.tier)].budgets[column].load(Ordering::Relaxed);
        let refused = work >= budget;
        if overrides(column, refused) {
            return Decision::AdmitUnderserved;
        }
        if !refused {
            return Decision::Admit;
        }
        let excess = (work - budget).saturating_add(1);
        Decision::Refuse { retry_after: Nanos(excess.div_ceil(u64::from(self.parallelism()))) }
    }

    /// How much queued work leaves room for the objective, plus one; zero if it is missed even without.
    fn budget(&self, objective: &Objective, times: Option<&ProcessingTimes>) -> u64 {
        let room = |target: &Target| {
            let processing = times.map_or(Nanos::ZERO, |times| times.at(target.percentile));
            target.limit.0.checked_sub(processing.0)
        };
        let room = objective.targets().iter().map(room).min().flatten();
        room.map_or(0, |room| room.saturating_mul(u64::from(self.parallelism())).saturating_add(1))
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Relaxed) <= 0)
    }
}

impl Admission for Bouncer {
    #[inline]
    fn decide(&self, request: Request, now: Nanos, draw: f64) -> Decision {
        self.judge(request, |column, refused| self.helper.overrides(column, refused, now, draw))
    }

    fn peek(&self, request: Request, now: Nanos, draw: f64) -> Decision {
        self.judge(request, |column, refused| self.helper.peek(column, refused, now, draw))
    }

    fn estimates(&self, request: Request) -> Vec<Estimate> {
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        let Grounds { objective, times, .. } =
            learned.grounds(self.queue(request.tier), self.column(request.query_type));
        let wait = self.expected_wait(request.tier);
        let estimate = |target: &Target| {
            let processing = times.map_or(Nanos::ZERO, |times| times.at(target.percentile));
            let expected = wait.saturating_add(processing);
            Estimate { percentile: target.percentile, limit: target.limit, expected }
        };
        objective.targets().iter().map(estimate).collect()
    }

    fn withdrawn(&self, request: Request, now: Nanos) {
        self.helper.withdrawn(self.column(request.query_type), now);
    }

    #[inline]
    fn enqueued(&self, request: Request) {
        self.count(request, 1);
    }

    #[inline]
    fn dequeued(&self, request: Request) {
        self.count(request, -1);
    }

    #[inline]
    fn completed(&self, request: Request, processing: Nanos, _now: Nanos) {
        self.queues[self.queue(request.tier)].done.fetch_add(processing.0, Ordering::Relaxed);
        let column = self.column(request.query_type);
        self.recorders[column].record(processing);
        let place = self.queue(request.tier) * self.recorders.len() + column;
        if let Some(recorder) = self.tier_recorders.get(place) {
            recorder.record(processing);
        }
    }

    fn set_parallelism(&self, parallelism: u32) {
        self.parallelism.store(parallelism.max(1), Ordering::Relaxed);
    }

    /// They hold from the next tick. A percentile that none has named so far counts as no time at all until
    /// processing times are learned anew.
    fn set_objectives(&self, mut types: Vec<Objective>, cold: Objective) {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        types.resize(learned.objectives.len() - 1, cold.clone());
        types.push(cold.clone());
        learned.percentiles = percentiles(&types);
        learned.objectives = types;
        learned.default_objective = cold;
    }

    fn expected_wait(&self, tier: Tier) -> Option<Nanos> {
        Some(self.expected_wait(tier))
    }

    fn refresh(&self, now: Nanos) {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        let Learned { percentiles, rhythm, published, tier_published, general, .. } = &mut *learned;
        general.refresh_general(&self.recorders, published, percentiles, *rhythm, now);
        for (recorder, published) in self.recorders.iter().zip(published) {
            published.refresh(recorder, percentiles, *rhythm, now);
        }
        for (recorder, published) in self.tier_recorders.iter().zip(tier_published) {
            published.refresh(recorder, percentiles, *rhythm, now);
        }
        self.share(&mut learned.shares, now);
        self.publish(&mut learned, now);
    }
}

/// Every percentile that an objective names, ascending.
fn percentiles(objectives: &[Objective]) -> Vec<f64> {
    let targets = objectives.iter().flat_map(Objective::targets);
    let mut percentiles: Vec<f64> = targets.map(|target| target.percentile).collect();
    percentiles.sort_by(f64::total_cmp);
    percentiles.dedup();
    percentiles
}

/// A wait as long as the queue's work takes, in 65,536ths.
const NO_DELAY: u64 = 1 << 16;
/// The time over which a tier's share of the store is averaged.
const SHARES_OVER: Nanos = Nanos::from_secs(1);
/// So little is left to every tier: what was taken lately need not be taken again.
const LEAST_LEFT: f64 = 1.0 / 64.0;

#[cfg(test)]
mod tests;
