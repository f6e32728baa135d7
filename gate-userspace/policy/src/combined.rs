//! Several admission policies one after the other: a request is admitted if each admits it.
//!
//! **Problem.** Policies guard different things: Bouncer keeps response times, accept-fraction the store's
//! utilization. The paper runs one on its brokers and the other on the shards behind them.
//!
//! **What counts where.** As with brokers and shards, a policy is asked only about what those before it
//! have admitted: accept-fraction behind Bouncer takes for demand what Bouncer lets through. What a later one
//! refuses is [withdrawn](Admission::withdrawn) from those before, which then count it as asked for but not
//! accepted. The queue is the same for all, and so is what is processed: each counts all of it.
//!
//! **Invariants.** Each policy decides with a draw of its own, made from the request's, so that a request that
//! one admits by luck is no luckier with the next. The order matters for what is counted only: without
//! counts and draws (the limits on the queue), any order decides the same.

use gate_common::units::Nanos;

use super::Tier;
use super::admission::{Admission, Decision, Estimate, Request};
use super::bouncer::Objective;

/// Policies that must all admit. See the [module](self).
pub struct Combined(Box<[Box<dyn Admission>]>);

impl Combined {
    /// Asks `policies` in this order; without any, everything is admitted.
    #[must_use]
    pub fn new(policies: Vec<Box<dyn Admission>>) -> Self {
        Self(policies.into())
    }
}

impl Admission for Combined {
    #[inline]
    fn decide(&self, request: Request, now: Nanos, draw: f64) -> Decision {
        let mut admitted = Decision::Admit;
        let mut draw = draw;
        for (index, policy) in self.0.iter().enumerate() {
            match policy.decide(request, now, draw) {
                Decision::Admit => {}
                Decision::AdmitUnderserved => admitted = Decision::AdmitUnderserved,
                refused @ Decision::Refuse { .. } => {
                    self.0[..index].iter().for_each(|before| before.withdrawn(request, now));
                    return refused;
                }
            }
            draw = next_draw(draw);
        }
        admitted
    }

    fn peek(&self, request: Request, now: Nanos, draw: f64) -> Decision {
        let mut admitted = Decision::Admit;
        let mut draw = draw;
        for policy in &self.0 {
            match policy.peek(request, now, draw) {
                Decision::Admit => {}
                Decision::AdmitUnderserved => admitted = Decision::AdmitUnderserved,
                refused @ Decision::Refuse { .. } => return refused,
            }
            draw = next_draw(draw);
        }
        admitted
    }

    /// Those of the first policy that knows.
    fn estimates(&self, request: Request) -> Vec<Estimate> {
        let estimates = self.0.iter().map(|policy| policy.estimates(request));
        estimates.into_iter().find(|estimates| !estimates.is_empty()).unwrap_or_default()
    }

    fn withdrawn(&self, request: Request, now: Nanos) {
        self.0.iter().for_each(|policy| policy.withdrawn(request, now));
    }

    fn enqueued(&self, request: Request) {
        self.0.iter().for_each(|policy| policy.enqueued(request));
    }

    fn dequeued(&self, request: Request) {
        self.0.iter().for_each(|policy| policy.dequeued(request));
    }

    #[inline]
    fn completed(&self, request: Request, processing: Nanos, now: Nanos) {
        self.0.iter().for_each(|policy| policy.completed(request, processing, now));
    }

    fn refresh(&self, now: Nanos) {
        self.0.iter().for_each(|policy| policy.refresh(now));
    }

    /// The first policy's that knows.
    fn expected_wait(&self, tier: Tier) -> Option<Nanos> {
        self.0.iter().find_map(|policy| policy.expected_wait(tier))
    }

    fn set_objectives(&self, types: Vec<Objective>, cold: Objective) {
        self.0.iter().for_each(|policy| policy.set_objectives(types.clone(), cold.clone()));
    }

    fn set_parallelism(&self, parallelism: u32) {
        self.0.iter().for_each(|policy| policy.set_parallelism(parallelism));
    }

    fn set_deadline(&self, deadline: Option<Nanos>) {
        self.0.iter().for_each(|policy| policy.set_deadline(deadline));
    }
}

/// Another number from `[0, 1)`, which does not follow `draw`: its bits, mixed as SplitMix64 does.
#[inline]
fn next_draw(draw: f64) -> f64 {
    let mut mixed = draw.to_bits().wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use super::*;
    use crate::admission::QueryType;
    use crate::baselines::{AcceptFraction, Averaging, MaxQueueLength, MaxQueueWait};
    use crate::bouncer::{Bouncer, Config, Fairness, Target};
    use crate::test_rng::TestRng;

    const REQUEST: Request = Request { tier: Tier::Standard, query_type: QueryType(0) };

    fn length(limit: u64) -> Box<dyn Admission> {
        Box::new(MaxQueueLength::new(limit).unwrap())
    }

    fn wait(ms: u64) -> Box<dyn Admission> {
        Box::new(MaxQueueWait::new(Nanos::from_millis(ms), 1, Nanos::ZERO).unwrap())
    }

    /// A Bouncer whose type 0 takes 30 ms, and so misses its objective.
    fn bouncer(fairness: Fairness) -> Bouncer {
        let target = Target { percentile: 50.0, limit: Nanos::from_millis(18) };
        let config = Config::new(10, 1, Objective::new(vec![target]).unwrap());
        let bouncer = Bouncer::new(Config { fairness, min_samples: 1, ..config }, Nanos::ZERO).unwrap();
        bouncer.completed(REQUEST, Nanos::from_millis(30), Nanos::ZERO);
        bouncer.refresh(Nanos::ZERO);
        bouncer
    }

    #[test]
    fn a_draw_and_the_next_are_uniform_and_do_not_follow_each_other() {
        let mut rng = TestRng::new(1);
        let draws: Vec<(f64, f64)> = (0..100_000).map(|_| rng.unit()).map(|u| (u, next_draw(u))).collect();
        for low in [0.05, 0.3, 0.5] {
            let share = |of: &dyn Fn(&(f64, f64)) -> bool| {
                draws.iter().filter(|pair| of(pair)).count() as f64 / draws.len() as f64
            };
            assert!((share(&|pair| pair.1 < low) - low).abs() < 0.01);
            assert!((share(&|pair| pair.0 < low && pair.1 < low) - low * low).abs() < 0.01);
        }
        assert!((0.0..1.0).contains(&next_draw(0.0)));
    }

    #[test]
    fn a_later_refusal_is_no_acceptance_of_an_earlier_policy() {
        // Nothing is ever accepted in the end, so the allowance admits every single one.
        let helped = || {
            let fairness = Fairness::AcceptanceAllowance { allowance: 0.5 };
            Combined::new(vec![Box::new(bouncer(fairness)), length(1)])
        };
        let single = bouncer(Fairness::AcceptanceAllowance { allowance: 0.5 });
        let both = helped();
        let mut decisions = [0; 2];
        for n in 0..100 {
            let now = Nanos::from_millis(n);
            decisions[0] += u64::from(single.decide(REQUEST, now, 0.9).admits());
            // Another one fills the queue meanwhile, so that the second refuses.
            both.0[1].enqueued(REQUEST);
            assert!(!both.decide(REQUEST, now, 0.9).admits());
            both.0[1].dequeued(REQUEST);
            decisions[1] += u64::from(both.0[0].decide(REQUEST, now, 0.9).admits());
            both.0[0].withdrawn(REQUEST, now);
        }
        assert!(decisions[0].abs_diff(50) <= 1, "alone: {decisions:?}");
        assert_eq!(decisions[1], 100, "{decisions:?}");
    }

    #[test]
    fn a_later_policy_takes_for_demand_what_the_earlier_ones_admit() {
        // The queue is full: nothing reaches accept-fraction, whose demand is 3 when it is asked for everything.
        let fraction = || Box::new(AcceptFraction::new(1.0, 1, Averaging::Covered, Nanos::ZERO).unwrap());
        for (first, admitted) in [(true, false), (false, true)] {
            let policies: Vec<Box<dyn Admission>> =
                if first { vec![fraction(), length(1)] } else { vec![length(1), fraction()] };
            let policy = Combined::new(policies);
            policy.enqueued(REQUEST);
            for n in 0..3_000 {
                let now = Nanos::from_millis(n * 10);
                policy.completed(REQUEST, Nanos::from_millis(30), now);
                assert!(!policy.decide(REQUEST, now, 0.5).admits());
            }
            policy.dequeued(REQUEST);
            // Mixed, this draw is far from 0: see above.
            let draw =
                (0..100).map(|n| f64::from(n) / 100.0).find(|&draw| draw > 0.5 && next_draw(draw) > 0.5);
            let decision = policy.decide(REQUEST, Nanos::from_secs(30), draw.unwrap());
            assert_eq!(decision.admits(), admitted, "accept-fraction first: {first}");
        }
    }

    /// A policy that writes down its calls.
    #[derive(Default)]
    struct Spy(Arc<Mutex<Vec<String>>>);

    impl Spy {
        fn note(&self, what: String) {
            self.0.lock().unwrap().push(what);
        }
    }

    impl Admission for Spy {
        fn decide(&self, _request: Request, _now: Nanos, _draw: f64) -> Decision {
            Decision::Admit
        }

        fn peek(&self, _request: Request, _now: Nanos, _draw: f64) -> Decision {
            Decision::Admit
        }

        fn estimates(&self, _request: Request) -> Vec<Estimate> {
            let reported = self.0.lock().unwrap().len() as f64;
            vec![Estimate { percentile: reported, limit: Nanos(1), expected: Nanos(2) }]
        }

        fn withdrawn(&self, request: Request, now: Nanos) {
            self.note(format!("withdrawn {request:?} {now}"));
        }

        fn enqueued(&self, _request: Request) {}

        fn dequeued(&self, _request: Request) {}

        fn completed(&self, _request: Request, _processing: Nanos, _now: Nanos) {}

        fn refresh(&self, _now: Nanos) {}

        fn set_objectives(&self, types: Vec<Objective>, cold: Objective) {
            self.note(format!("{types:?} {cold:?}"));
        }

        fn set_parallelism(&self, parallelism: u32) {
            self.note(format!("parallelism {parallelism}"));
        }

        fn set_deadline(&self, deadline: Option<Nanos>) {
            self.note(format!("deadline {deadline:?}"));
        }
    }

    /// The first numbers of SplitMix64 after these seeds, by its authors' code.
    #[test]
    fn another_draw_is_what_splitmix64_says() {
        for (seed, number) in [(0, 0xe220_a839_7b1d_cdaf_u64), (1, 0x910a_2dec_8902_5cc1)] {
            let drawn = next_draw(f64::from_bits(seed));
            assert_eq!(drawn, (number >> 11) as f64 / (1u64 << 53) as f64, "{seed}");
        }
    }

    #[test]
    fn each_policy_is_told_what_changes() {
        let reported: [Arc<Mutex<Vec<String>>>; 2] = Default::default();
        let spies = reported.iter().map(|reported| Box::new(Spy(Arc::clone(reported))) as Box<dyn Admission>);
        let both = Combined::new(spies.collect());
        let objective =
            |ms| Objective::new(vec![Target { percentile: 50.0, limit: Nanos::from_millis(ms) }]).unwrap();
        both.set_objectives(vec![objective(1)], objective(2));
        both.set_parallelism(7);
        both.set_deadline(Some(Nanos(9)));
        both.withdrawn(REQUEST, Nanos(11));
        let expected = [
            format!("{:?} {:?}", vec![objective(1)], objective(2)),
            "parallelism 7".to_owned(),
            format!("deadline {:?}", Some(Nanos(9))),
            format!("withdrawn {REQUEST:?} {}", Nanos(11)),
        ];
        for reported in &reported {
            assert_eq!(*reported.lock().unwrap(), expected);
        }
    }

    #[test]
    fn the_estimates_are_those_of_the_first_policy_that_has_any() {
        let reported = Arc::new(Mutex::new(vec![String::new(); 3]));
        let knows = || Box::new(Spy(Arc::clone(&reported))) as Box<dyn Admission>;
        let of = |policies| Combined::new(policies).estimates(REQUEST);
        let expected = vec![Estimate { percentile: 3.0, limit: Nanos(1), expected: Nanos(2) }];
        assert_eq!(of(vec![length(5), knows(), Box::<Spy>::default()]), expected);
        assert_eq!(of(vec![length(5), wait(5)]), []);
    }

    #[test]
    fn help_counts_as_help_and_one_policys_estimate_is_reported() {
        let fairness = Fairness::AcceptanceAllowance { allowance: 1.0 };
        let policy = Combined::new(vec![length(5), Box::new(bouncer(fairness)), wait(1_000)]);
        assert_eq!(policy.decide(REQUEST, Nanos::ZERO, 0.5), Decision::AdmitUnderserved);
        policy.enqueued(REQUEST);
        assert!(policy.expected_wait(Tier::Standard).is_some_and(|wait| wait > Nanos::from_millis(2)));
        assert_eq!(Combined::new(vec![length(5)]).expected_wait(Tier::Standard), None);
        assert_eq!(Combined::new(Vec::new()).decide(REQUEST, Nanos::ZERO, 0.5), Decision::Admit);
    }

    proptest! {
        #[test]
        fn it_admits_what_each_admits_in_any_order(
            limits in (1u64..20, 1u64..200),
            took in prop::collection::vec(0u64..50, 0..10),
            queue in prop::collection::vec(any::<bool>(), 0..60),
        ) {
            let separate = || [length(limits.0), wait(limits.1)];
            let [a, b] = separate();
            let [c, d] = separate();
            let both = [Combined::new(vec![a, b]), Combined::new(vec![d, c])];
            let separate = separate();
            let all: Vec<&dyn Admission> =
                separate.iter().map(|policy| &**policy).chain(both.iter().map(|policy| policy as _)).collect();
            for ms in took {
                all.iter().for_each(|policy| policy.completed(REQUEST, Nanos::from_millis(ms), Nanos::ZERO));
            }
            let mut queued = 0;
            for joins in queue {
                let admits: Vec<bool> =
                    all.iter().map(|policy| policy.decide(REQUEST, Nanos::ZERO, 0.5).admits()).collect();
                let each = admits[0] && admits[1];
                prop_assert_eq!(&admits[2..], [each, each]);
                if joins {
                    all.iter().for_each(|policy| policy.enqueued(REQUEST));
                    queued += 1;
                } else if queued > 0 {
                    all.iter().for_each(|policy| policy.dequeued(REQUEST));
                    queued -= 1;
                }
            }
        }
    }
}
