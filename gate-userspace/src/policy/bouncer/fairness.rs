//! What keeps types from starving: requests that Bouncer would refuse and that pass anyway.
//!
//! **Problem.** A type whose processing time alone comes near its objective is refused whenever a
//! queue builds up; under a lasting overload it gets nothing, and what is never processed is never
//! measured anew.
//!
//! **Source.** The two strategies of the paper, which count each type's received and accepted
//! requests over one second in steps of 10 ms.
//!
//! - *Acceptance-allowance*: pass if the type's accepted share in the window is below A.
//! - *Helping-the-underserved*: with AR a type's accepted share and AAR the mean of AR over the types
//!   that were asked for in the window, pass with probability `α · (AAR − AR)`.
//!
//! **Deviations.** That the probability is linear in the distance is this project's reading. A type
//! of which the window holds nothing counts as unserved, so that a rare one gets at least one request
//! per window under acceptance-allowance; the request that asks counts as received.
//!
//! **Invariants.** Only a refusal is ever overridden. With A = 0 or α = 0 none is. Under
//! acceptance-allowance a type's accepted share of the window is below A only until its next request.

use gate_common::units::Nanos;

use super::config::{Config, Fairness};
use crate::policy::range::OutOfRange;
use crate::policy::window::{Position, SlidingWindow};

/// A strategy with what it counts.
#[derive(Debug)]
pub(super) struct Helper {
    fairness: Fairness,
    /// Two counters to each type, next to each other: refused and accepted.
    counts: SlidingWindow,
    types: usize,
}

impl Helper {
    /// For `types` types, the catch-all included.
    pub(super) fn new(config: &Config, types: usize, now: Nanos) -> Result<Self, OutOfRange> {
        let (step, steps) = config.fairness_window;
        let counts = SlidingWindow::new(2 * types, step, steps, now)?;
        Ok(Self { fairness: config.fairness, counts, types })
    }

    /// Whether the refusal of a request of type `index` is overridden, given a draw from `[0, 1)`.
    /// Counts the request, be it refused or not.
    #[inline]
    pub(super) fn overrides(&self, index: usize, refused: bool, now: Nanos, draw: f64) -> bool {
        if self.fairness == Fairness::None {
            return false;
        }
        let at = self.counts.advance(now);
        let overrides = refused
            && match self.fairness {
                Fairness::None => false,
                Fairness::AcceptanceAllowance { allowance } => self.share(index, 1, at) < allowance,
                Fairness::HelpingTheUnderserved { alpha } => {
                    let share = self.share(index, 1, at);
                    draw < alpha * (self.average_share(index, share, at) - share)
                }
            };
        self.counts.add(2 * index + usize::from(!refused || overrides), 1);
        overrides
    }

    /// The accepted share of what the window holds of type `index`, and of `asking` requests that are
    /// not counted yet; zero of nothing.
    fn share(&self, index: usize, asking: u64, at: Position) -> f64 {
        let accepted = self.counts.sum(2 * index + 1, at);
        let received = accepted.saturating_add(self.counts.sum(2 * index, at)).saturating_add(asking);
        accepted as f64 / received.max(1) as f64
    }

    /// The mean share of the types of which the window holds anything and of type `asking`, whose
    /// share is known.
    fn average_share(&self, asking: usize, share: f64, at: Position) -> f64 {
        let seen = |index: &usize| (0..2).any(|which| self.counts.sum(2 * index + which, at) > 0);
        let others = (0..self.types).filter(|&index| index != asking).filter(seen);
        let (sum, types) =
            others.fold((share, 1u32), |(sum, types), index| (sum + self.share(index, 0, at), types + 1));
        sum / f64::from(types)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::bouncer::config::{Objective, Target};

    fn helper(fairness: Fairness, types: usize) -> Helper {
        let objective = Objective::new(vec![Target { percentile: 50.0, limit: Nanos(1) }]).unwrap();
        let config = Config { fairness, ..Config::new(1, types, objective) };
        Helper::new(&config, types, Nanos::ZERO).unwrap()
    }

    /// One request of each of `refused`'s types every millisecond for `secs` seconds; how many of each
    /// passed, in percent.
    fn passed(fairness: Fairness, refused: &[bool], secs: u64) -> Vec<f64> {
        let helper = helper(fairness, refused.len());
        let mut rng = crate::sim::rng::Rng::new(1, 0);
        let mut passed = vec![0; refused.len()];
        for now in (0..secs * 1_000).map(Nanos::from_millis) {
            for (index, &refused) in refused.iter().enumerate() {
                let overrides = helper.overrides(index, refused, now, rng.unit());
                passed[index] += u64::from(!refused || overrides);
            }
        }
        passed.into_iter().map(|count| count as f64 / (secs * 10) as f64).collect()
    }

    #[test]
    fn the_allowance_is_what_a_refused_type_gets() {
        for allowance in [0.0, 0.01, 0.05, 0.2, 0.5, 1.0] {
            let fairness = Fairness::AcceptanceAllowance { allowance };
            let [refused, fine] = passed(fairness, &[true, false], 20)[..] else { unreachable!() };
            assert!((refused - 100.0 * allowance).abs() < 0.2, "{refused}% at A = {allowance}");
            assert_eq!(fine, 100.0);
        }
    }

    #[test]
    fn a_rare_type_gets_one_request_per_window_from_any_allowance() {
        let helper = helper(Fairness::AcceptanceAllowance { allowance: 0.001 }, 1);
        let overridden =
            (0..100).map(|tenth| helper.overrides(0, true, Nanos::from_millis(100 * tenth), 0.0));
        // One in ten: ten arrive in the window's second.
        assert_eq!(overridden.filter(|&overrides| overrides).count(), 10);
    }

    #[test]
    fn the_underserved_settle_where_their_probability_is_their_share() {
        // Three types get all, one is refused and gets a share a: AAR = (3 + a) / 4, and so
        // a = alpha * (AAR - a) = alpha * 3 * (1 - a) / 4.
        for alpha in [0.0, 0.1, 0.5, 1.0, 2.0, 10.0] {
            let fairness = Fairness::HelpingTheUnderserved { alpha };
            let expected = 100.0 * 3.0 * alpha / (4.0 + 3.0 * alpha);
            let shares = passed(fairness, &[true, false, false, false], 100);
            assert!((shares[0] - expected).abs() < 1.0, "{}% at alpha = {alpha}: {expected}", shares[0]);
            assert_eq!(shares[1..], [100.0; 3]);
        }
    }

    #[test]
    fn nothing_is_overridden_without_a_strategy() {
        assert_eq!(passed(Fairness::None, &[true, false], 1), [0.0, 100.0]);
    }

    proptest! {
        #[test]
        fn only_refusals_are_overridden(
            alpha in 0.0f64..1_000.0,
            requests in prop::collection::vec((0usize..3, any::<bool>(), any::<u64>(), 0.0f64..1.0), 0..100),
        ) {
            for fairness in [
                Fairness::AcceptanceAllowance { allowance: alpha / 1_000.0 },
                Fairness::HelpingTheUnderserved { alpha },
            ] {
                let helper = helper(fairness, 3);
                for &(index, refused, now, draw) in &requests {
                    prop_assert!(!helper.overrides(index, refused, Nanos(now), draw) || refused);
                }
            }
        }
    }
}
