//! The baselines in virtual time.

use proptest::prelude::*;

use super::*;
use crate::Tier;
use crate::admission::{Admission, Decision, QueryType, Request};

const REQUEST: Request = Request { tier: Tier::Standard, query_type: QueryType(0) };

/// Lets `policy` see requests that take `ms` milliseconds each, `per_sec` a second, for `secs`
/// seconds; how much of them it admitted.
fn admitted(policy: &dyn Admission, per_sec: u64, ms: u64, secs: u64) -> f64 {
    let mut rng = crate::test_rng::TestRng::new(3);
    let mut admitted = 0;
    for arrival in 0..per_sec * secs {
        let now = Nanos(arrival * 1_000_000_000 / per_sec);
        if policy.decide(REQUEST, now, rng.unit()).admits() {
            admitted += 1;
            policy.completed(REQUEST, Nanos::from_millis(ms), now);
        }
    }
    f64::from(admitted) / (per_sec * secs) as f64
}

/// How many requests `policy` lets into a queue from which nothing is taken.
fn queue_room(policy: &dyn Admission, now: Nanos) -> usize {
    let mut queued = 0;
    while queued < 10_000 && policy.decide(REQUEST, now, 0.5).admits() {
        policy.enqueued(REQUEST);
        queued += 1;
    }
    queued
}

#[test]
fn impossible_parameters_are_refused() {
    assert_eq!(MaxQueueLength::new(0).unwrap_err().field, "max_queue_length");
    for (limit, parallelism, field) in [(0, 1, "max_queue_wait"), (1, 0, "parallelism")] {
        let error = MaxQueueWait::new(Nanos(limit), parallelism, Nanos::ZERO).unwrap_err();
        assert_eq!(error.field, field);
    }
    for (utilization, parallelism, field) in [
        (0.0, 1, "max_utilization"),
        (-1.0, 1, "max_utilization"),
        (1.01, 1, "max_utilization"),
        (f64::NAN, 1, "max_utilization"),
        (0.5, 0, "parallelism"),
    ] {
        let policy = AcceptFraction::new(utilization, parallelism, Averaging::Covered, Nanos::ZERO);
        assert_eq!(policy.unwrap_err().field, field, "{utilization}");
    }
}

#[test]
fn the_queue_never_exceeds_its_length_and_has_room_again() {
    let policy = MaxQueueLength::new(400).unwrap();
    assert_eq!(queue_room(&policy, Nanos::ZERO), 400);
    policy.dequeued(REQUEST);
    assert_eq!(queue_room(&policy, Nanos::ZERO), 1);
}

#[test]
fn the_queue_never_waits_longer_than_its_limit() {
    // Ten servers, 5 ms each: 30 requests wait 15 ms, and the next one is still let in.
    let policy = MaxQueueWait::new(Nanos::from_millis(15), 10, Nanos::ZERO).unwrap();
    (0..100).for_each(|_| policy.completed(REQUEST, Nanos::from_millis(5), Nanos::ZERO));
    let room = queue_room(&policy, Nanos::ZERO);
    assert_eq!(room, 31);
    let decision = policy.decide(REQUEST, Nanos::ZERO, 0.0);
    assert_eq!(decision, Decision::Refuse { retry_after: Nanos(500_000) });
    // What was completed more than a minute ago says nothing.
    assert!(policy.decide(REQUEST, Nanos::from_secs(61), 0.0).admits());
}

#[test]
fn the_accepted_fraction_keeps_the_utilization() {
    for (per_sec, fraction) in
        [(500, 1.0), (949, 1.0), (1_000, 0.95), (1_500, 0.95 / 1.5), (4_000, 0.95 / 4.0)]
    {
        // Ten servers, 10 ms each: 1,000 requests a second are their capacity.
        let policy = AcceptFraction::new(0.95, 10, Averaging::Covered, Nanos::ZERO).unwrap();
        let got = admitted(&policy, per_sec, 10, 20);
        assert!((got - fraction).abs() < 0.01, "{got} of {per_sec}/s, not {fraction}");
    }
}

#[test]
fn a_rate_over_the_whole_window_admits_all_until_the_window_fills() {
    // At 1.5 times the capacity, 0.95 is reached after 38 of 60 seconds.
    let policy = AcceptFraction::new(0.95, 10, Averaging::WholeWindow, Nanos::ZERO).unwrap();
    assert_eq!(admitted(&policy, 1_500, 10, 37), 1.0);
}

proptest! {
    #[test]
    fn nothing_that_is_accepted_panics(
        limit in 1..=u64::MAX,
        parallelism in 1..=u32::MAX,
        utilization in 1e-300f64..=1.0,
        whole in any::<bool>(),
        start in any::<u64>(),
        calls in prop::collection::vec((0u8..5, any::<u64>(), 0.0f64..1.0), 0..200),
    ) {
        let averaging = if whole { Averaging::WholeWindow } else { Averaging::Covered };
        let policies: [&dyn Admission; 3] = [
            &MaxQueueLength::new(limit).unwrap(),
            &MaxQueueWait::new(Nanos(limit), parallelism, Nanos(start)).unwrap(),
            &AcceptFraction::new(utilization, parallelism, averaging, Nanos(start)).unwrap(),
        ];
        for policy in policies {
            for &(call, time, draw) in &calls {
                match call {
                    0 => { policy.decide(REQUEST, Nanos(time), draw); }
                    1 => policy.enqueued(REQUEST),
                    2 => policy.dequeued(REQUEST),
                    3 => policy.completed(REQUEST, Nanos(time), Nanos(time)),
                    _ => policy.refresh(Nanos(time)),
                }
            }
        }
    }

    #[test]
    fn an_empty_queue_refuses_nothing(limit in 1..=u64::MAX, processing in any::<u64>(), now in any::<u64>()) {
        prop_assert!(MaxQueueLength::new(limit).unwrap().decide(REQUEST, Nanos(now), 0.5).admits());
        let wait = MaxQueueWait::new(Nanos(limit), 1, Nanos::ZERO).unwrap();
        wait.completed(REQUEST, Nanos(processing), Nanos(now));
        prop_assert!(wait.decide(REQUEST, Nanos(now), 0.5).admits());
    }
}
