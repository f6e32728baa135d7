//! Cold starts and lulls (the paper's appendix A): what a policy does in each half second from the first query
//! on, while nothing is known, and when a type comes back that nobody has asked for in a while.

use gate_common::units::Nanos;
use serde::Serialize;

use super::bouncer::{ByName, Policy};
use super::engine::{self, Outcome, Phase, Workload};
use super::scenario::{Scenario, check_load};
use gate_policy::range::OutOfRange;

/// A run of three phases: all types, all but the last, all types.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The types and the policies' parameters.
    pub scenario: Scenario,
    /// Under which policy.
    pub policy: Policy,
    /// Times what keeps all processes busy.
    pub load: f64,
    /// The same seed gives the same figures.
    pub seed: u64,
}

/// The results of the queries that arrived within a slice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slice {
    /// When it began.
    pub from_seconds: f64,
    /// Rejected queries in percent, by type; `None` where none arrived.
    pub rejected_percent: ByName<Option<f64>>,
    /// Median response times of admitted queries in milliseconds, by type; `None` where there are none.
    pub p50_ms: ByName<Option<f64>>,
}

impl Setup {
    /// Runs it.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`], naming the first parameter that is.
    pub fn run(&self) -> Result<Vec<Slice>, OutOfRange> {
        check_load("load", self.load)?;
        let policy = self.policy.build(&self.scenario)?;
        let all = self.scenario.workload(self.load);
        let lull = without_last(&all);
        let phase = |workload, seconds: u32| Phase { workload, slice: SLICE, slices: 2 * seconds };
        let phases = [phase(&all, BEFORE), phase(&lull, LULL), phase(&all, AFTER)];
        let outcomes = engine::run_phases(&phases, &*policy, self.seed);
        Ok(outcomes.iter().enumerate().map(|(index, outcome)| self.slice(index, outcome)).collect())
    }

    fn slice(&self, index: usize, outcome: &Outcome) -> Slice {
        let by_type = |of: &dyn Fn(&engine::TypeOutcome) -> Option<f64>| {
            let names = self.scenario.types.iter().map(|of| of.name.clone());
            ByName(names.zip(outcome.types.iter().map(of)).collect())
        };
        Slice {
            from_seconds: index as f64 / 2.0,
            rejected_percent: by_type(&|of| {
                (of.received > 0).then(|| 100.0 * of.rejected as f64 / of.received as f64)
            }),
            p50_ms: by_type(&|of| {
                (!of.response_us.is_empty()).then(|| of.response_us.value_at_quantile(0.5) as f64 / 1e3)
            }),
        }
    }
}

/// The same arrivals of all types but the last.
fn without_last(all: &Workload) -> Workload {
    let mut lull = all.clone();
    let last = lull.types.len() - 1;
    let left: f64 = lull.types[..last].iter().map(|(share, _)| share).sum();
    if left > 0.0 {
        lull.types[last].0 = 0.0;
        lull.types[..last].iter_mut().for_each(|(share, _)| *share /= left);
        lull.per_sec *= left;
    }
    lull
}

const SLICE: Nanos = Nanos::from_millis(500);
/// The length of the phases, in seconds.
pub const BEFORE: u32 = 20;
/// In which nobody asks for the last type.
pub const LULL: u32 = 20;
const AFTER: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_before_a_lull_holds_after_it() {
        let run = |policy| Setup { scenario: Scenario::study(), policy, load: 1.2, seed: 1 }.run().unwrap();
        let slices = run(Policy::Bouncer);
        assert_eq!(slices, run(Policy::Bouncer));
        assert_eq!(slices.len(), 120);
        let slow = |second: usize| slices[2 * second].rejected_percent.get("slow").copied().flatten();
        let p50 = |second: usize| slices[2 * second].p50_ms.get("slow").copied().flatten();
        assert_eq!((slow(25), p50(25)), (None, None), "nobody asks");
        // Nothing is known at first: who comes then queues for longer than the objective allows.
        assert!(slow(0).is_some_and(|rejected| rejected < 50.0), "{:?}", slow(0));
        for second in [10, 15, 42, 50] {
            assert!(slow(second).is_some_and(|rejected| rejected > 20.0), "{second}: {:?}", slow(second));
            assert!(p50(second).is_some_and(|ms| ms < 22.0), "{second}: {:?}", p50(second));
        }
    }
}
