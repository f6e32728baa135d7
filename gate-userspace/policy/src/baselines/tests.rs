//! The baselines in virtual time.

use proptest::prelude::*;

use super::*;
use crate::Tier;
use crate::admission::{Admission, Decision, QueryType, QueueOrder, Request};

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
fn a_rate_over_the_window_admits_all_until_it_fills() {
    // At 1.5 times the capacity, 0.95 is reached after 38 of 60 seconds.
    let policy = AcceptFraction::new(0.95, 10, Averaging::WholeWindow, Nanos::ZERO).unwrap();
    assert_eq!(admitted(&policy, 1_500, 10, 37), 1.0);
}

/// Lets `policy` see an overload of so many seconds, three times what ten servers do in 10 ms each, or in 100 ms each, and then
/// a fifth of that; how much of the last was admitted from five seconds after the overload on.
fn admitted_after_an_overload(policy: &dyn Admission, secs: u64, ms: u64) -> f64 {
    let mut rng = crate::test_rng::TestRng::new(3);
    for arrival in 0..3_000 * secs {
        let now = Nanos(arrival * 1_000_000_000 / 3_000);
        if policy.decide(REQUEST, now, rng.unit()).admits() {
            policy.completed(REQUEST, Nanos::from_millis(ms), now);
        }
    }
    let mut counts = [0; 2];
    for arrival in 0..2_000 {
        let now = Nanos::from_millis(secs * 1_000 + arrival * 5);
        let admits = policy.decide(REQUEST, now, rng.unit()).admits();
        if admits {
            policy.completed(REQUEST, Nanos::from_millis(10), now);
        }
        if arrival >= 1_000 {
            counts[usize::from(admits)] += 1;
        }
    }
    f64::from(counts[1]) / f64::from(counts[0] + counts[1])
}

#[test]
fn an_overload_that_is_over_counts_for_five_seconds() {
    for averaging in [Averaging::Covered, Averaging::WholeWindow] {
        for (secs, ms) in [(2, 10), (10, 10), (60, 10), (60, 100)] {
            let policy = AcceptFraction::new(0.95, 10, averaging, Nanos::ZERO).unwrap();
            let admitted = admitted_after_an_overload(&policy, secs, ms);
            assert!(admitted > 0.99, "{admitted} after {secs} s of {ms} ms, {averaging:?}");
        }
    }
    let policy = MaxQueueWait::new(Nanos::from_millis(15), 10, Nanos::ZERO).unwrap();
    (0..6_000).for_each(|ms| policy.completed(REQUEST, Nanos::from_millis(100), Nanos::from_millis(ms)));
    assert_eq!(queue_room(&policy, Nanos::from_secs(6)), 2);
    (0..2).for_each(|_| policy.dequeued(REQUEST));
    (0..60).for_each(|n| policy.completed(REQUEST, Nanos::from_millis(5), Nanos::from_millis(11_000 + n)));
    assert_eq!(queue_room(&policy, Nanos::from_secs(12)), 31);
}

#[test]
fn a_store_that_answers_nothing_is_no_relief() {
    let policy = AcceptFraction::new(0.95, 10, Averaging::Covered, Nanos::ZERO).unwrap();
    admitted(&policy, 4_000, 10, 20);
    let mut admitted = 0;
    for arrival in 0..40_000 {
        let now = Nanos(20_000_000_000 + arrival * 250_000);
        admitted += u32::from(policy.decide(REQUEST, now, (arrival % 100) as f64 / 100.0).admits());
    }
    assert!(admitted < 12_000, "{admitted} of 40,000 though nothing comes back");
}

#[test]
fn each_type_has_its_own_limit_and_the_others_the_common_one() {
    let ms = Nanos::from_millis;
    let policy = MaxQueueWait::new(ms(15), 10, Nanos::ZERO).unwrap().with_types(&[ms(5), ms(40)]).unwrap();
    (0..100).for_each(|_| policy.completed(REQUEST, ms(5), Nanos::ZERO));
    for (queued, admitted) in [
        (10, [true, true, true, true]),
        (11, [false, true, true, true]),
        (30, [false, true, true, true]),
        (31, [false, true, false, false]),
        (81, [false, false, false, false]),
    ] {
        (0..queued).for_each(|_| policy.enqueued(REQUEST));
        let admits = |index| {
            let request = Request { query_type: QueryType(index), ..REQUEST };
            policy.decide(request, Nanos::ZERO, 0.5).admits()
        };
        assert_eq!([0, 1, 2, u16::MAX].map(admits), admitted, "behind {queued}");
        (0..queued).for_each(|_| policy.dequeued(REQUEST));
    }
    let error = policy.with_types(&[ms(1), Nanos::ZERO]).unwrap_err();
    assert_eq!(error.field, "max_queue_wait[1]");
}

/// Ten servers, 5 ms each, far below their capacity, so that only the wait counts.
fn with_deadline(ms: u64, order: QueueOrder) -> AcceptFraction {
    let policy = AcceptFraction::new(1.0, 10, Averaging::Covered, Nanos::ZERO).unwrap();
    let policy = policy.with_deadline(Some(Nanos::from_millis(ms))).with_order(order);
    (0..100).for_each(|_| policy.completed(REQUEST, Nanos::from_millis(5), Nanos::ZERO));
    policy
}

#[test]
fn requests_that_would_time_out_in_the_queue_are_refused() {
    let policy = with_deadline(15, QueueOrder::Fifo);
    let now = Nanos::from_secs(30);
    // 30 requests wait 15 ms: the next one is just in time.
    assert_eq!(queue_room(&policy, now), 31);
    let decide = || policy.decide(REQUEST, now, 0.0);
    assert_eq!(decide(), Decision::Refuse { retry_after: Nanos(500_000) });
    policy.set_deadline(Some(Nanos::from_millis(16)));
    assert!(decide().admits(), "another deadline holds at once");
    policy.set_deadline(Some(Nanos::from_millis(1)));
    assert!(!decide().admits());
    policy.set_deadline(None);
    assert!(decide().admits(), "without one nobody waits for too long");
}

#[test]
fn a_request_waits_for_the_tiers_before_its_own_only() {
    let of = |tier| Request { tier, ..REQUEST };
    let policies: [(&dyn Admission, &str); 2] = [
        (&with_deadline(15, QueueOrder::ByTier), "accept-fraction"),
        (
            &MaxQueueWait::new(Nanos::from_millis(15), 10, Nanos::ZERO)
                .unwrap()
                .with_order(QueueOrder::ByTier),
            "max-queue-wait",
        ),
    ];
    let now = Nanos::from_secs(30);
    for (policy, name) in policies {
        (0..100).for_each(|_| policy.completed(REQUEST, Nanos::from_millis(5), Nanos::ZERO));
        (0..31).for_each(|_| policy.enqueued(of(Tier::Batch)));
        let admits = Tier::ALL.map(|tier| policy.decide(of(tier), now, 0.5).admits());
        assert_eq!(admits, [true, true, false, false], "{name}");
        policy.dequeued(of(Tier::Batch));
        assert!(policy.decide(of(Tier::BestEffort), now, 0.5).admits(), "{name}");
    }
}

proptest! {
    #[test]
    fn nothing_that_is_accepted_panics(
        limit in 1..=u64::MAX,
        parallelism in 1..=u32::MAX,
        utilization in 1e-300f64..=1.0,
        (whole, deadline) in any::<(bool, Option<u64>)>(),
        start in any::<u64>(),
        calls in prop::collection::vec((0u8..5, any::<u64>(), 0.0f64..1.0), 0..200),
    ) {
        let averaging = if whole { Averaging::WholeWindow } else { Averaging::Covered };
        let policies: [&dyn Admission; 3] = [
            &MaxQueueLength::new(limit).unwrap(),
            &MaxQueueWait::new(Nanos(limit), parallelism, Nanos(start)).unwrap(),
            &AcceptFraction::new(utilization, parallelism, averaging, Nanos(start))
                .unwrap()
                .with_deadline(deadline.map(Nanos)),
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
    fn one_limit_for_all_is_that_limit_for_each(
        limits in prop::collection::vec(1..=u64::MAX, 1..5),
        processing in prop::collection::vec(any::<u64>(), 0..20),
        queued in 0usize..50,
    ) {
        let limits: Vec<_> = limits.into_iter().map(Nanos).collect();
        let of = |limit| MaxQueueWait::new(limit, 3, Nanos::ZERO).unwrap();
        let decide = |policy: &MaxQueueWait, query_type| {
            processing.iter().for_each(|&took| policy.completed(REQUEST, Nanos(took), Nanos::ZERO));
            (0..queued).for_each(|_| policy.enqueued(REQUEST));
            policy.decide(Request { query_type, ..REQUEST }, Nanos::ZERO, 0.5)
        };
        for (index, &limit) in limits.iter().enumerate() {
            let query_type = QueryType(index as u16);
            let typed = of(Nanos(1)).with_types(&limits).unwrap();
            prop_assert_eq!(decide(&typed, query_type), decide(&of(limit), query_type));
        }
    }

    #[test]
    fn a_deadline_never_admits_more_nor_refuses_at_an_empty_queue(
        deadline in any::<u64>(),
        processing in prop::collection::vec(any::<u64>(), 0..20),
        queued in 0usize..50,
        draw in 0.0f64..1.0,
    ) {
        let policies = [None, Some(Nanos(deadline))].map(|deadline| {
            AcceptFraction::new(0.95, 3, Averaging::Covered, Nanos::ZERO).unwrap().with_deadline(deadline)
        });
        let admits = policies.map(|policy| {
            processing.iter().for_each(|&took| policy.completed(REQUEST, Nanos(took), Nanos::ZERO));
            (0..queued).for_each(|_| policy.enqueued(REQUEST));
            policy.decide(REQUEST, Nanos::from_secs(30), draw).admits()
        });
        prop_assert!(admits[0] || !admits[1]);
        prop_assert!(queued > 0 || admits[0] == admits[1]);
    }

    #[test]
    fn an_empty_queue_refuses_nothing(limit in 1..=u64::MAX, processing in any::<u64>(), now in any::<u64>()) {
        prop_assert!(MaxQueueLength::new(limit).unwrap().decide(REQUEST, Nanos(now), 0.5).admits());
        let wait = MaxQueueWait::new(Nanos(limit), 1, Nanos::ZERO).unwrap();
        wait.completed(REQUEST, Nanos(processing), Nanos(now));
        prop_assert!(wait.decide(REQUEST, Nanos(now), 0.5).admits());
    }
}

#[test]
fn a_tenth_less_is_lighter() {
    for (lately, lighter) in [(8.9, true), (9.1, false), (10.5, false)] {
        assert_eq!(super::averages::is_lighter(10.0, lately), lighter, "{lately}");
    }
}
