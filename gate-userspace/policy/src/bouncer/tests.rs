//! Bouncer in virtual time.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn objective(targets: &[(f64, u64)]) -> Objective {
    let target = |&(percentile, ms)| Target { percentile, limit: Nanos::from_millis(ms) };
    Objective::new(targets.iter().map(target).collect()).unwrap()
}

fn request(query_type: u16) -> Request {
    Request { tier: Tier::Standard, query_type: QueryType(query_type) }
}

/// Ten servers, two types, p50 within 18 ms and p90 within 50 ms.
fn config() -> Config {
    Config { min_samples: 100, ..Config::new(10, 2, objective(&[(50.0, 18), (90.0, 50)])) }
}

/// Records 1,000 requests of a type that took `ms` milliseconds each.
fn record(bouncer: &Bouncer, query_type: u16, ms: u64, now: Nanos) {
    (0..1_000).for_each(|_| bouncer.completed(request(query_type), Nanos::from_millis(ms), now));
    bouncer.refresh(now);
}

fn admits(bouncer: &Bouncer, request: Request) -> bool {
    bouncer.decide(request, Nanos::ZERO, 0.5).admits()
}

/// How many requests of `query_type` are admitted into an empty queue, one after the other.
fn room_for(bouncer: &Bouncer, query_type: u16) -> usize {
    let mut admitted = 0;
    while admitted < 10_000 && admits(bouncer, request(query_type)) {
        bouncer.enqueued(request(query_type));
        admitted += 1;
    }
    (0..admitted).for_each(|_| bouncer.dequeued(request(query_type)));
    admitted
}

#[test]
fn a_type_is_admitted_until_its_estimate_exceeds_any_limit() {
    // Processing time in ms (p50 and p90 alike), room: n * pt / 10 + pt > 18 for the last of them.
    for (ms, room) in [(1, 170), (2, 80), (9, 10), (17, 0), (19, 0)] {
        let bouncer = Bouncer::new(config(), Nanos::ZERO).unwrap();
        record(&bouncer, 0, ms, Nanos::ZERO);
        let got = room_for(&bouncer, 0);
        assert!(got.abs_diff(room) <= 1 + room / 50, "{ms} ms: room for {got}, not {room}");
    }
}

#[test]
fn new_objectives_hold_from_the_next_tick_for_learned_types() {
    let bouncer = Bouncer::new(config(), Nanos::ZERO).unwrap();
    record(&bouncer, 0, 1, Nanos::ZERO);
    let before = room_for(&bouncer, 0);
    bouncer.set_objectives(vec![objective(&[(50.0, 9), (90.0, 50)])], objective(&[(50.0, 1)]));
    assert_eq!(room_for(&bouncer, 0), before);
    bouncer.refresh(Nanos::ZERO);
    assert!(room_for(&bouncer, 0).abs_diff(80) <= 2, "{before}");
}

#[test]
fn every_percentile_of_the_objective_counts() {
    // One request in five takes ten times as long: p50 is 1 ms, p90 10 ms, p99 10 ms.
    for (targets, admitted) in [
        (&[(50.0, 2)][..], true),
        (&[(90.0, 2)], false),
        (&[(50.0, 2), (90.0, 11)], true),
        (&[(50.0, 2), (90.0, 11), (99.0, 11)], true),
        (&[(99.9, 9)], false),
        (&[(75.0, 2)], true),
    ] {
        let bouncer =
            Bouncer::new(Config { min_samples: 1, ..Config::new(10, 1, objective(targets)) }, Nanos::ZERO)
                .unwrap();
        (0..1_000).for_each(|n| {
            let ms = if n % 5 == 0 { 10 } else { 1 };
            bouncer.completed(request(0), Nanos::from_millis(ms), Nanos::ZERO);
        });
        bouncer.refresh(Nanos::ZERO);
        assert_eq!(admits(&bouncer, request(0)), admitted, "{targets:?}");
    }
}

#[test]
fn work_in_processing_is_not_counted_as_queued() {
    let bouncer = Bouncer::new(config(), Nanos::ZERO).unwrap();
    record(&bouncer, 0, 10, Nanos::ZERO);
    for _ in 0..10_000 {
        bouncer.enqueued(request(0));
        bouncer.dequeued(request(0));
    }
    assert_eq!(bouncer.expected_wait(Tier::BestEffort), Nanos::ZERO);
    assert!(admits(&bouncer, request(0)));
}

#[test]
fn queued_requests_wait_for_the_next_permit_where_it_counts() {
    let bouncer = Bouncer::new(Config { next_permit: true, ..config() }, Nanos::ZERO).unwrap();
    record(&bouncer, 0, 10, Nanos::ZERO);
    assert_eq!(bouncer.expected_wait(Tier::Standard), Nanos::ZERO, "there may be a place that is free");
    bouncer.enqueued(request(0));
    let wait = bouncer.expected_wait(Tier::Standard);
    assert!(wait.0.abs_diff(2 * MS) < MS / 20, "{wait}");
}

#[test]
fn a_queue_with_tiers_waits_for_the_tiers_before() {
    let config = Config { order: QueueOrder::ByTier, ..config() };
    let bouncer = Bouncer::new(config, Nanos::ZERO).unwrap();
    record(&bouncer, 0, 10, Nanos::ZERO);
    let of = |tier| Request { tier, query_type: QueryType(0) };
    for (tier, queued) in Tier::ALL.into_iter().zip([1, 10, 100, 1_000]) {
        (0..queued).for_each(|_| bouncer.enqueued(of(tier)));
    }
    for (tier, wait_ms) in Tier::ALL.into_iter().zip([1, 11, 111, 1_111]) {
        let wait = bouncer.expected_wait(tier);
        assert!(wait.0.abs_diff(wait_ms * MS) < wait_ms * MS / 50, "{tier:?} waits {wait}");
        assert_eq!(admits(&bouncer, of(tier)), wait_ms < 8, "{tier:?}");
    }
}

#[test]
fn what_the_tiers_above_take_delays_the_tiers_below() {
    let bouncer = Bouncer::new(Config { order: QueueOrder::ByTier, ..config() }, Nanos::ZERO).unwrap();
    let of = |tier| Request { tier, query_type: QueryType(0) };
    // Of ten places, critical takes six for a minute, standard three.
    for tick in 1..=600 {
        for (tier, places) in [(Tier::Critical, 6), (Tier::Standard, 3)] {
            (0..10 * places).for_each(|_| bouncer.completed(of(tier), Nanos(10 * MS), Nanos::ZERO));
        }
        bouncer.refresh(Nanos::from_millis(tick * 100));
    }
    for (tier, delay) in [(Tier::Critical, 1.0), (Tier::Standard, 2.5), (Tier::Batch, 10.0)] {
        bouncer.enqueued(of(tier));
        let wait = bouncer.expected_wait(tier).0 as f64 / (MS as f64 * delay);
        assert!((wait - 1.0).abs() < 0.05, "{tier:?} waits {wait} of what it should");
        bouncer.dequeued(of(tier));
    }
}

#[test]
fn a_cold_type_is_judged_by_all_and_the_default_objective() {
    let types = vec![objective(&[(50.0, 5)]), objective(&[(50.0, 1_000)])];
    let config = Config { types, ..config() };
    let bouncer = Bouncer::new(config, Nanos::ZERO).unwrap();
    assert!(admits(&bouncer, request(0)), "nothing is known: nothing is refused");
    record(&bouncer, 0, 30, Nanos::ZERO);
    assert_eq!(bouncer.processing_times(QueryType(1)), None);
    // 30 ms is above the default objective's 18, though far below the type's own.
    assert!(!admits(&bouncer, request(1)));
    assert!(!admits(&bouncer, request(2)) && !admits(&bouncer, request(u16::MAX)));
    // Cold => Warm: its own figures and objective.
    record(&bouncer, 1, 30, Nanos::from_millis(1));
    assert!(bouncer.processing_times(QueryType(1)).is_some_and(|times| times.samples == 1_000));
    assert!(admits(&bouncer, request(1)));
}

#[test]
fn unknown_types_share_the_catch_all() {
    let bouncer = Bouncer::new(config(), Nanos::ZERO).unwrap();
    record(&bouncer, 77, 40, Nanos::ZERO);
    record(&bouncer, 0, 1, Nanos::ZERO);
    assert!(!admits(&bouncer, request(2)) && !admits(&bouncer, request(9_999)));
    assert!(admits(&bouncer, request(0)));
}

#[test]
fn what_was_learned_outlives_a_lull_and_follows_a_change() {
    let bouncer = Bouncer::new(config(), Nanos::ZERO).unwrap();
    record(&bouncer, 0, 30, Nanos::ZERO);
    let learned = bouncer.processing_times(QueryType(0));
    for second in 1..1_000 {
        bouncer.refresh(Nanos::from_secs(second));
    }
    assert_eq!(bouncer.processing_times(QueryType(0)), learned, "an empty histogram says nothing");
    record(&bouncer, 0, 3, Nanos::from_secs(1_000));
    assert_ne!(bouncer.processing_times(QueryType(0)), learned, "a full one does");
}

#[test]
fn a_sliding_window_follows_rare_types_before_a_histogram() {
    let medians = [HistogramKind::Swap, HistogramKind::Sliding].map(|histogram| {
        let bouncer = Bouncer::new(Config { histogram, ..config() }, Nanos::ZERO).unwrap();
        record(&bouncer, 0, 3, Nanos::ZERO);
        // 90 a second at 30 ms, where 100 are enough for a histogram.
        for tick in 1..=10 {
            (0..9).for_each(|_| bouncer.completed(request(0), Nanos::from_millis(30), Nanos::ZERO));
            bouncer.refresh(Nanos::from_millis(tick * 100));
        }
        bouncer.processing_times(QueryType(0)).unwrap().mean
    });
    assert!(medians[0] < Nanos::from_millis(4), "{medians:?}");
    assert!(medians[1] > Nanos::from_millis(4), "{medians:?}");
}

#[test]
fn a_hopeless_type_is_tried_again_after_ten_intervals() {
    for histogram in [HistogramKind::Swap, HistogramKind::Sliding] {
        tried_again(&Bouncer::new(Config { histogram, ..config() }, Nanos::ZERO).unwrap());
    }
}

fn tried_again(bouncer: &Bouncer) {
    let at = |second: u64| {
        bouncer.refresh(Nanos::from_secs(second));
        room_for(bouncer, 0)
    };
    record(bouncer, 0, 30, Nanos::ZERO);
    assert_eq!((at(1), at(9)), (0, 0));
    // On trial: judged by the queue's wait alone.
    assert!(at(10).abs_diff(18 * 10 / 30) <= 1);
    // Still slow: hopeless for another ten intervals.
    record(bouncer, 0, 30, Nanos::from_secs(11));
    assert_eq!((at(12), at(20)), (0, 0));
    assert!(at(21) > 0);
    // Well again.
    record(bouncer, 0, 3, Nanos::from_secs(22));
    assert!(at(23).abs_diff(50) <= 2);
}

#[test]
fn what_an_overload_made_hopeless_is_tried_once_it_is_over() {
    for histogram in [HistogramKind::Swap, HistogramKind::Sliding] {
        let bouncer = Bouncer::new(Config { histogram, ..config() }, Nanos::ZERO).unwrap();
        let at = |tenths: u64| {
            bouncer.refresh(Nanos::from_millis(tenths * 100));
            admits(&bouncer, request(0))
        };
        let complete = |count, ms| {
            (0..count).for_each(|_| bouncer.completed(request(0), Nanos::from_millis(ms), Nanos::ZERO));
        };
        // Its type is not known yet, so it does not count as work.
        bouncer.enqueued(request(1));
        complete(100, 30);
        assert!(!at(1) && !at(10));
        // Nearly enough for another histogram: the last of the overload.
        complete(99, 30);
        bouncer.dequeued(request(1));
        assert!(!at(11) && !at(20), "it may not be over yet");
        assert!(at(21), "nothing has been queued for an interval");
        // The trial is not judged by what was recorded before it.
        complete(100, 3);
        assert!((22..50).all(at), "{histogram:?}");
        assert!(bouncer.processing_times(QueryType(0)).unwrap().mean < Nanos::from_millis(4));
        // A type that is slow by itself gets no trial for being the only one.
        complete(1_000, 30);
        (50..80).for_each(|tenths| _ = at(tenths));
        assert!(!at(80), "{histogram:?}");
    }
}

#[test]
fn a_cold_type_that_others_make_look_hopeless_is_tried_as_well() {
    let types = vec![objective(&[(50.0, 1_000)]), objective(&[(50.0, 18)])];
    let bouncer = Bouncer::new(Config { types, ..config() }, Nanos::ZERO).unwrap();
    let admits_at = |second: u64| {
        record(&bouncer, 0, 30, Nanos::from_secs(second));
        admits(&bouncer, request(1))
    };
    assert_eq!([0, 5, 9, 10].map(admits_at), [false, false, false, true]);
}

#[test]
fn a_refusal_says_when_the_queue_has_made_room() {
    let bouncer = Bouncer::new(config(), Nanos::ZERO).unwrap();
    record(&bouncer, 0, 10, Nanos::ZERO);
    (0..18).for_each(|_| bouncer.enqueued(request(0)));
    let Decision::Refuse { retry_after } = bouncer.decide(request(0), Nanos::ZERO, 0.0) else {
        panic!("admitted behind {}", bouncer.expected_wait(Tier::Critical));
    };
    // 18 ms of queue, 8 ms of room.
    assert!(retry_after.0.abs_diff(10 * MS) < MS / 2, "{retry_after}");
}

#[test]
fn a_starving_type_passes_under_each_strategy_only() {
    for (fairness, decision) in [
        (Fairness::None, Decision::Refuse { retry_after: Nanos(1) }),
        (Fairness::AcceptanceAllowance { allowance: 0.05 }, Decision::AdmitUnderserved),
        (Fairness::HelpingTheUnderserved { alpha: 1.0 }, Decision::AdmitUnderserved),
    ] {
        let bouncer = Bouncer::new(Config { fairness, ..config() }, Nanos::ZERO).unwrap();
        record(&bouncer, 0, 30, Nanos::ZERO);
        record(&bouncer, 1, 1, Nanos::ZERO);
        assert_eq!(bouncer.decide(request(1), Nanos::ZERO, 0.0), Decision::Admit);
        assert_eq!(bouncer.decide(request(0), Nanos::ZERO, 0.0), decision, "{fairness:?}");
    }
}

#[test]
fn threads_that_share_a_policy_leave_its_counts_even() {
    let fairness = Fairness::AcceptanceAllowance { allowance: 0.05 };
    let bouncer = Bouncer::new(Config { fairness, ..config() }, Nanos::ZERO).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let bouncer = &bouncer;
            scope.spawn(move || {
                for n in 0..20_000u64 {
                    let request = request((n % 3) as u16);
                    let now = Nanos::from_micros(n * 100);
                    if bouncer.decide(request, now, 0.5).admits() {
                        bouncer.enqueued(request);
                        bouncer.dequeued(request);
                        bouncer.completed(request, Nanos::from_millis(n % 7), now);
                    }
                    if thread == 0 && n % 1_000 == 0 {
                        bouncer.refresh(now);
                    }
                }
            });
        }
    });
    // What changed hands at the very moment of a tick is put right by the next one.
    bouncer.refresh(Nanos::from_secs(60));
    assert_eq!(bouncer.expected_wait(Tier::BestEffort), Nanos::ZERO);
    let samples = bouncer.processing_times(QueryType(0)).map_or(0, |times| times.samples);
    assert!(samples >= 100, "{samples} samples");
}

/// Any parameter that the constructor accepts.
fn any_config() -> impl Strategy<Value = Config> {
    let limits = prop::collection::vec((0.001f64..99.999, 1..=u64::MAX), 1..4);
    let objective = limits.prop_map(|mut targets| {
        targets.sort_by(|a, b| a.0.total_cmp(&b.0));
        targets.dedup_by(|a, b| a.0 == b.0);
        let mut limit = 0;
        let target = |(percentile, more): (f64, u64)| {
            limit = more.max(limit);
            Target { percentile, limit: Nanos(limit) }
        };
        Objective::new(targets.into_iter().map(target).collect()).unwrap()
    });
    let fairness = prop_oneof![
        Just(Fairness::None),
        (0.0f64..=1.0).prop_map(|allowance| Fairness::AcceptanceAllowance { allowance }),
        (0.001f64..=1.0).prop_map(|alpha| Fairness::HelpingTheUnderserved { alpha }),
    ];
    let order = prop_oneof![Just(QueueOrder::Fifo), Just(QueueOrder::ByTier)];
    let window = (1..=u64::MAX, 1usize..200).prop_map(|(step, steps)| (Nanos(step), steps));
    (
        1..=u32::MAX,
        prop::collection::vec(objective.clone(), 1..4),
        objective,
        order,
        (1..=u64::MAX, 1u32..20, any::<bool>(), any::<bool>()),
        fairness,
        window,
    )
        .prop_map(
            |(
                parallelism,
                types,
                default_objective,
                order,
                (interval, min_samples, next_permit, slides),
                fairness,
                window,
            )| {
                let interval = Nanos(interval);
                let histogram = if slides { HistogramKind::Sliding } else { HistogramKind::Swap };
                let fairness_window = window;
                Config {
                    parallelism,
                    types,
                    default_objective,
                    order,
                    next_permit,
                    histogram,
                    interval,
                    min_samples,
                    average_over: AverageOver::AllTypes { count: 3 },
                    fairness,
                    fairness_window,
                }
            },
        )
}

proptest! {
    #[test]
    fn nothing_that_is_accepted_panics(
        config in any_config(),
        start in any::<u64>(),
        calls in prop::collection::vec((0u8..5, 0usize..4, any::<u16>(), any::<u64>(), 0.0f64..1.0), 0..200),
    ) {
        let bouncer = Bouncer::new(config, Nanos(start)).unwrap();
        for (call, tier, query_type, time, draw) in calls {
            let request = Request { tier: Tier::ALL[tier], query_type: QueryType(query_type % 5) };
            match call {
                0 => { bouncer.decide(request, Nanos(time), draw); }
                1 => bouncer.enqueued(request),
                2 => bouncer.dequeued(request),
                3 => bouncer.completed(request, Nanos(time), Nanos(time)),
                _ => bouncer.refresh(Nanos(time)),
            }
            let _ = bouncer.expected_wait(request.tier);
        }
    }

    #[test]
    fn more_queued_work_never_turns_a_refusal_into_an_admission(
        config in any_config(),
        processing in prop::collection::vec((0u16..4, 0u64..100 * MS), 1..200),
        queue in prop::collection::vec((0usize..4, 0u16..4), 0..50),
    ) {
        let config = Config { fairness: Fairness::None, ..config };
        let bouncer = Bouncer::new(config, Nanos::ZERO).unwrap();
        for (query_type, took) in processing {
            bouncer.completed(request(query_type), Nanos(took), Nanos::ZERO);
        }
        bouncer.refresh(Nanos::ZERO);
        let asked = |query_type| admits(&bouncer, Request { tier: Tier::Batch, query_type: QueryType(query_type) });
        let mut before = [0, 1, 2, 3].map(asked);
        for (tier, query_type) in queue {
            bouncer.enqueued(Request { tier: Tier::ALL[tier], query_type: QueryType(query_type) });
            let after = [0, 1, 2, 3].map(asked);
            prop_assert!(before.iter().zip(after).all(|(&before, after)| before || !after));
            before = after;
        }
    }

    #[test]
    fn the_decision_is_the_papers_formula(
        took in prop::collection::vec(1u64..40, 2),
        queued in prop::collection::vec(0u32..50, 2),
    ) {
        let bouncer = Bouncer::new(config(), Nanos::ZERO).unwrap();
        for (query_type, &ms) in took.iter().enumerate() {
            record(&bouncer, query_type as u16, ms, Nanos::ZERO);
            (0..queued[query_type]).for_each(|_| bouncer.enqueued(request(query_type as u16)));
        }
        let times = [0, 1].map(|query_type| bouncer.processing_times(QueryType(query_type)).unwrap());
        let wait: f64 =
            times.iter().zip(&queued).map(|(times, &queued)| times.mean.0 as f64 * f64::from(queued)).sum::<f64>() / 10.0;
        for (query_type, times) in times.iter().enumerate() {
            let estimate = |percentile| wait + times.at(percentile).0 as f64;
            let p50 = estimate(50.0);
            let p90 = estimate(90.0);
            let at_p50 = (18 * MS) as f64;
            let at_p90 = (50 * MS) as f64;
            prop_assert_eq!(admits(&bouncer, request(query_type as u16)), p50 <= at_p50 && p90 <= at_p90);
        }
    }
}
