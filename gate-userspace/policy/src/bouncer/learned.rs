//! The processing times that [`Bouncer`](super::Bouncer) has learned, and which of them a request is judged by.

use gate_common::units::Nanos;

use super::config::Objective;
use super::estimator::{ProcessingTimes, Published, Rhythm};
use crate::Tier;

/// State that the hot path does not read.
#[derive(Debug)]
pub(super) struct Learned {
    /// One per type; the catch-all is the last.
    pub(super) objectives: Vec<Objective>,
    pub(super) default_objective: Objective,
    /// Every percentile that an objective names, ascending.
    pub(super) percentiles: Vec<f64>,
    pub(super) rhythm: Rhythm,
    /// One per type.
    pub(super) published: Vec<Published>,
    /// One per tier and type, as there are recorders.
    pub(super) tier_published: Vec<Published>,
    /// The times of all types together.
    pub(super) general: Published,
    /// The share of the store that each tier takes.
    pub(super) shares: Shares,
    /// Since when nothing has been queued at any tick; `None` if something was at the last one.
    pub(super) idle_since: Option<Nanos>,
}

/// The objective that a type is judged by in a tier, and the processing times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grounds<'l> {
    pub(super) objective: &'l Objective,
    pub(super) times: Option<&'l ProcessingTimes>,
    pub(super) of: Measured,
}

/// The requests whose processing times count.
#[derive(Clone, Copy, Debug)]
pub(super) enum Measured {
    /// The requests of a type in all tiers.
    Type(usize),
    /// The requests of a type in one tier, by their place in `tier_published`.
    OfTier(usize),
}

/// The share of the store that each tier took at the last tick.
#[derive(Debug)]
pub(super) struct Shares {
    pub(super) last: Nanos,
    pub(super) done: [u64; Tier::ALL.len()],
    /// The places at the store that each took, on average over the last second or so.
    pub(super) taken: [f64; Tier::ALL.len()],
}

impl Learned {
    /// True if a type that its last publication makes hopeless is to be tried again.
    pub(super) fn is_trial_due(&self, of: Measured, now: Nanos) -> bool {
        let published = match of {
            Measured::Type(column) => &self.published[column],
            Measured::OfTier(place) => &self.tier_published[place],
        };
        let passed = |since: Nanos, intervals: u64| {
            now.saturating_sub(since).0 >= self.rhythm.interval.0.saturating_mul(intervals)
        };
        let is_over = |idle: Nanos| published.measured_from() < idle && passed(idle, 1);
        passed(published.since(), PATIENCE_INTERVALS) || self.idle_since.is_some_and(is_over)
    }

    /// The grounds on which a type is judged in the queue of a tier: its own processing times there, those that it has in all
    /// tiers, or those of all types together while it is cold.
    pub(super) fn grounds(&self, tier: usize, column: usize) -> Grounds<'_> {
        let objective = &self.objectives[column];
        let place = tier * self.objectives.len() + column;
        if let Some(times) = self.tier_published.get(place).and_then(Published::processing_times) {
            return Grounds { objective, times: Some(times), of: Measured::OfTier(place) };
        }
        let of = Measured::Type(column);
        match self.published[column].processing_times() {
            Some(times) => Grounds { objective, times: Some(times), of },
            None => {
                Grounds { objective: &self.default_objective, times: self.general.processing_times(), of }
            }
        }
    }
}

/// How many intervals a type stays refused because its processing times alone miss its objective,
/// before it is tried again. What is hopeless indeed gets `min_samples` requests per so long.
const PATIENCE_INTERVALS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::super::{Bouncer, Config, Target};
    use super::*;
    use crate::admission::{Admission as _, QueryType, QueueOrder, Request};

    #[test]
    fn a_tiers_dear_requests_refuse_no_other_tier() {
        let target = Target { percentile: 50.0, limit: Nanos::from_millis(18) };
        let config = Config { min_samples: 100, ..Config::new(10, 2, Objective::new(vec![target]).unwrap()) };
        let admits = |bouncer: &Bouncer, request| bouncer.decide(request, Nanos::ZERO, 0.5).admits();
        let of = |tier| Request { tier, query_type: QueryType(0) };
        let record = |bouncer: &Bouncer, tier, ms, now| {
            (0..1_000).for_each(|_| bouncer.completed(of(tier), Nanos::from_millis(ms), now));
            bouncer.refresh(now);
        };
        for order in [QueueOrder::ByTier, QueueOrder::Fifo] {
            let bouncer = Bouncer::new(Config { order, ..config.clone() }, Nanos::ZERO).unwrap();
            record(&bouncer, Tier::BestEffort, 19, Nanos::ZERO);
            assert!(!admits(&bouncer, of(Tier::BestEffort)), "{order:?}");
            assert!(
                !admits(&bouncer, of(Tier::Critical)),
                "{order:?}: by the type's, until its own are known"
            );
            let now = Nanos::from_secs(1);
            (0..200).for_each(|_| bouncer.completed(of(Tier::Critical), Nanos::from_millis(1), now));
            record(&bouncer, Tier::BestEffort, 19, now);
            assert_eq!(admits(&bouncer, of(Tier::Critical)), order == QueueOrder::ByTier, "{order:?}");
            assert!(!admits(&bouncer, of(Tier::BestEffort)), "{order:?}");
            // Nor does their queue: it is served after.
            (0..10_000).for_each(|_| bouncer.enqueued(of(Tier::BestEffort)));
            assert_eq!(admits(&bouncer, of(Tier::Critical)), order == QueueOrder::ByTier, "{order:?}");
        }
    }
}
