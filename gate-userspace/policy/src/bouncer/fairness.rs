//! Strategies against starvation: they admit some of the requests that Bouncer would refuse.
//!
//! **Problem.** A type whose processing time alone comes near its objective is refused whenever a
//! queue builds up; under a lasting overload it gets nothing, and what is never processed is never
//! measured anew.
//!
//! **Source.** The two strategies of the paper, which count each type's received and accepted
//! requests over one second in steps of 10 ms. With AR a type's accepted share of the requests
//! received before this one:
//!
//! - *Acceptance-allowance* (Algorithm 2): pass if the type was not asked for in the window, or if
//!   `AR < A`; else, if Bouncer refuses, pass with probability A.
//! - *Helping-the-underserved* (Algorithm 3): with AAR the mean of AR over the types, pass a refused
//!   request with probability `p = α · x / (1 + x)`, `x = (AAR − AR) / AAR`, if `AR < AAR`. It is at
//!   most `α / 2`.
//!
//! **Deviations.** Algorithm 3 averages over all types, those without requests as an AR of 0. A daemon
//! has many types that nobody asks for, which would lower the mean and with it all help, so
//! [`Config::average_over`] chooses: all types as in the paper's study, or those that the window holds.
//!
//! **Invariants.** Only a refusal is ever overridden. Helping-the-underserved overrides at most one
//! refusal in two, and none of the type that is accepted most.

use gate_common::units::Nanos;

use super::config::{AverageOver, Config, Fairness};
use crate::range::OutOfRange;
use crate::window::{Position, SlidingWindow};

/// A strategy with what it counts.
#[derive(Debug)]
pub(super) struct Helper {
    fairness: Fairness,
    /// Three counters to each type, next to each other: refused, accepted, and of those withdrawn.
    counts: SlidingWindow,
    types: usize,
    average_over: AverageOver,
}

impl Helper {
    /// For `types` types, the catch-all included.
    pub(super) fn new(config: &Config, types: usize, now: Nanos) -> Result<Self, OutOfRange> {
        let (step, steps) = config.fairness_window;
        let counts = SlidingWindow::new(COUNTERS * types, step, steps, now)?;
        Ok(Self { fairness: config.fairness, counts, types, average_over: config.average_over })
    }

    /// True if the refusal of a request of type `index` is overridden, given a draw from `[0, 1)`.
    /// Counts the request, be it refused or not.
    #[inline]
    pub(super) fn overrides(&self, index: usize, refused: bool, now: Nanos, draw: f64) -> bool {
        if self.fairness == Fairness::None {
            return false;
        }
        let at = self.counts.advance(now);
        let overrides = refused && self.helps(index, at, draw);
        self.counts.add(COUNTERS * index + if refused && !overrides { REFUSED } else { ACCEPTED }, 1);
        overrides
    }

    /// The same for a request that is not counted.
    pub(super) fn peek(&self, index: usize, refused: bool, now: Nanos, draw: f64) -> bool {
        self.fairness != Fairness::None && refused && self.helps(index, self.counts.advance(now), draw)
    }

    /// True if a refusal of a request of type `index` is overridden.
    #[inline]
    fn helps(&self, index: usize, at: Position, draw: f64) -> bool {
        match self.fairness {
            Fairness::None => false,
            Fairness::AcceptanceAllowance { allowance } => {
                let (accepted, received) = self.counted(index, at);
                received == 0 || ratio(accepted, received) < allowance || draw < allowance
            }
            Fairness::HelpingTheUnderserved { alpha } => {
                let (accepted, received) = self.counted(index, at);
                draw < alpha * help(ratio(accepted, received), self.average_ratio(index, at))
            }
        }
    }

    /// The accepted and the received requests of type `index` in the window.
    fn counted(&self, index: usize, at: Position) -> (u64, u64) {
        let counted = |counter| self.counts.sum(COUNTERS * index + counter, at);
        let admitted = counted(ACCEPTED);
        // A request may leave the window a step before its withdrawal.
        (admitted.saturating_sub(counted(WITHDRAWN)), admitted.saturating_add(counted(REFUSED)))
    }

    /// A request of type `index` that was counted as accepted was refused elsewhere: it was asked for, no more.
    #[inline]
    pub(super) fn withdrawn(&self, index: usize, now: Nanos) {
        if self.fairness != Fairness::None {
            self.counts.advance(now);
            self.counts.add(COUNTERS * index + WITHDRAWN, 1);
        }
    }

    /// The mean acceptance ratio, AAR, of type `asking` and the types that the window holds, and where the average is
    /// over more types, of those too, with a ratio of 0.
    fn average_ratio(&self, asking: usize, at: Position) -> f64 {
        let mut sum = 0.0;
        let mut types = 0u32;
        for index in 0..self.types {
            let (accepted, received) = self.counted(index, at);
            if received > 0 || index == asking {
                sum += ratio(accepted, received);
                types += 1;
            }
        }
        match self.average_over {
            AverageOver::SeenTypes => sum / f64::from(types),
            AverageOver::AllTypes { count } => sum / f64::from(count.max(types)),
        }
    }
}

const REFUSED: usize = 0;
const ACCEPTED: usize = 1;
const WITHDRAWN: usize = 2;
const COUNTERS: usize = 3;

/// The acceptance ratio, AR: 0 of nothing.
fn ratio(accepted: u64, received: u64) -> f64 {
    accepted as f64 / received.max(1) as f64
}

/// How much help an acceptance ratio below the average gets, before α scales it: from 0 to 1/2.
fn help(ratio: f64, average: f64) -> f64 {
    if ratio >= average {
        return 0.0;
    }
    let distance = (average - ratio) / average;
    distance / (1.0 + distance)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bouncer::config::{Objective, Target};

    fn config(fairness: Fairness, types: usize) -> Config {
        let objective = Objective::new(vec![Target { percentile: 50.0, limit: Nanos(1) }]).unwrap();
        Config { fairness, ..Config::new(1, types, objective) }
    }

    fn helper(fairness: Fairness, types: usize) -> Helper {
        Helper::new(&config(fairness, types), types, Nanos::ZERO).unwrap()
    }

    /// One request of each of `refused`'s types every millisecond for `secs` seconds; how many of each
    /// passed, in percent. The last type is the catch-all.
    fn passed(fairness: Fairness, refused: &[bool], secs: u64) -> Vec<f64> {
        let helper = helper(fairness, refused.len());
        let mut rng = crate::test_rng::TestRng::new(1);
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
    fn a_refused_type_gets_its_allowance_and_what_history_lacks() {
        // With an accepted share a, the history lets one pass whenever a is below A; above it one in 1/A passes
        // on the spot. So a stays at A or a little above.
        for allowance in [0.0, 0.01, 0.05, 0.2, 0.5, 1.0] {
            let fairness = Fairness::AcceptanceAllowance { allowance };
            let [refused, fine] = passed(fairness, &[true, false], 20)[..] else { unreachable!() };
            let percent = 100.0 * allowance;
            assert!(refused >= percent - 0.2, "{refused}% at A = {allowance}");
            assert!(refused <= percent + 2.5, "{refused}% at A = {allowance}");
            assert_eq!(fine, 100.0);
        }
    }

    #[test]
    fn a_type_outside_the_window_passes_under_any_allowance() {
        let helper = helper(Fairness::AcceptanceAllowance { allowance: 0.0 }, 1);
        let overridden = |ms| helper.overrides(0, true, Nanos::from_millis(ms), 0.5);
        assert!(overridden(0));
        assert!(!overridden(500) && !overridden(990));
        // The window holds it for a second.
        assert!(overridden(2_000));
    }

    #[test]
    fn an_allowance_is_drawn_at_once_without_a_history() {
        let helper = helper(Fairness::AcceptanceAllowance { allowance: 0.25 }, 1);
        let overridden = |refused, draw| helper.overrides(0, refused, Nanos::ZERO, draw);
        // All accepted so far: the history gives no pass.
        assert!(!overridden(false, 0.0) && !overridden(false, 0.9));
        assert!(overridden(true, 0.249));
        assert!(!overridden(true, 0.25));
    }

    /// Draws below `alpha * x / (1 + x)` pass, worked out here by hand.
    #[test]
    fn help_is_the_sigmoid_of_the_distance_from_the_average() {
        for (ratio, average, expected) in [
            (0.0, 0.75, 0.5),
            (0.0, 1e-9, 0.5),
            (0.25, 0.5, 1.0 / 3.0),
            (0.75, 1.0, 0.2),
            (0.5, 0.5, 0.0),
            (1.0, 0.5, 0.0),
        ] {
            let got = help(ratio, average);
            assert!((got - expected).abs() < 1e-12, "{got} for {ratio} and {average}");
        }
        assert_eq!(help(0.0, 0.0), 0.0);
    }

    #[test]
    fn underserved_types_stabilise_at_their_share() {
        // Of four types three get all and one is refused: with its share a, AAR = (3 + a) / 4, and so
        // x = 3 (1 - a) / (3 + a) and a = alpha * x / (1 + x) = alpha * 3 (1 - a) / (6 - 2 a).
        for alpha in [0.1, 0.5, 1.0] {
            let fairness = Fairness::HelpingTheUnderserved { alpha };
            // 2 a^2 - (6 + 3 alpha) a + 3 alpha = 0
            let b = 6.0 + 3.0 * alpha;
            let expected = 100.0 * (b - f64::sqrt(b * b - 24.0 * alpha)) / 4.0;
            let shares = passed(fairness, &[true, false, false, false], 100);
            assert!((shares[0] - expected).abs() < 1.0, "{}% at alpha = {alpha}: {expected}", shares[0]);
            assert_eq!(shares[1..], [100.0; 3]);
        }
    }

    #[test]
    fn idle_types_lower_only_an_average_over_all_types() {
        // Of four configured types and the catch-all one is refused, one accepted and two are not asked for: AAR is
        // (0 + 1) / 2 of those seen, (0 + 1 + 0 + 0) / 4 of all. Either way x = 1 for the refused one.
        for (average_over, expected) in
            [(AverageOver::SeenTypes, 0.5), (AverageOver::AllTypes { count: 4 }, 0.25)]
        {
            let config = Config { average_over, ..config(Fairness::HelpingTheUnderserved { alpha: 1.0 }, 4) };
            let helper = Helper::new(&config, 5, Nanos::ZERO).unwrap();
            helper.overrides(0, true, Nanos::ZERO, 0.9);
            helper.overrides(1, false, Nanos::ZERO, 0.9);
            let at = helper.counts.advance(Nanos::ZERO);
            assert_eq!(helper.average_ratio(0, at), expected, "{average_over:?}");
        }
    }

    #[test]
    fn nothing_is_overridden_without_a_strategy() {
        assert_eq!(passed(Fairness::None, &[true, false], 1), [0.0, 100.0]);
    }

    proptest! {
        #[test]
        fn only_refusals_are_overridden(
            factor in 0.001f64..=1.0,
            requests in prop::collection::vec((0usize..3, any::<bool>(), any::<u64>(), 0.0f64..1.0), 0..100),
        ) {
            for fairness in [
                Fairness::AcceptanceAllowance { allowance: factor },
                Fairness::HelpingTheUnderserved { alpha: factor },
            ] {
                let helper = helper(fairness, 3);
                for &(index, refused, now, draw) in &requests {
                    prop_assert!(!helper.overrides(index, refused, Nanos(now), draw) || refused);
                }
            }
        }
    }
}
