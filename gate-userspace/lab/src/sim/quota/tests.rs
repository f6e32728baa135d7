use super::*;

const PATTERNS: [Pattern; 6] = Pattern::ALL;

fn run(setup: Setup) -> Report {
    setup.run(&Progress::default()).unwrap()
}

#[test]
fn a_local_bucket_overshoots_by_less_than_five_percent() {
    for pattern in PATTERNS {
        for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::RejectionRate] {
            let report = run(Setup { pattern, algorithm, length: Nanos::from_secs(30), ..Setup::default() });
            let above = report.above_limit_percent;
            assert!(above.worst_10_seconds <= 5.0, "{algorithm:?} {pattern:?}: {above:?}");
            // A burst of 100 ms in a second.
            assert!(above.worst_second <= 10.2, "{algorithm:?} {pattern:?}: {above:?}");
        }
    }
}

#[test]
fn one_gate_with_its_bucket_is_the_exact_counter() {
    for pattern in PATTERNS {
        let report = run(Setup { pattern, ..Setup::default() });
        assert!(report.exact_admitted > 10_000);
        // The counter never finds a debt that the bucket did not refuse.
        assert_eq!(report.admitted, report.exact_admitted, "{pattern:?}");
        assert_eq!(report.below_exact_percent, Below::default());
    }
}

#[test]
fn overshoot_without_it_grows_with_interval_and_load() {
    let overshoot = |millis, offered| {
        let report_interval = Nanos::from_millis(millis);
        run(Setup { local_bucket: false, report_interval, offered, ..Setup::default() }).above_limit_percent
    };
    let by_interval = [10, 100, 500].map(|millis| overshoot(millis, 3_000).worst_second);
    assert!(by_interval.is_sorted() && by_interval[2] > by_interval[0] + 30.0, "{by_interval:?}");
    let by_offer = [1_500, 3_000, 9_000].map(|offered| overshoot(100, offered).worst_second);
    assert!(by_offer.is_sorted() && by_offer[2] > by_offer[0] + 50.0, "{by_offer:?}");
    // The excess becomes debt: in the long run, the token bucket keeps the limit.
    assert!(overshoot(100, 9_000).overall < 2.0);
}

#[test]
fn a_fixed_window_lets_two_limits_through_where_windows_meet() {
    let report = run(Setup {
        algorithm: Algorithm::FixedWindow,
        pattern: Pattern::Bursts,
        local_bucket: false,
        report_interval: Nanos::from_millis(1),
        length: Nanos::from_secs(300),
        ..Setup::default()
    });
    let above = report.above_limit_percent;
    assert!((50.0..=110.0).contains(&above.worst_second), "{above:?}");
    assert!(above.overall < 5.0, "{above:?}");
}

#[test]
fn rejection_rate_keeps_the_limit_on_average_at_steady_load() {
    let report = run(Setup { algorithm: Algorithm::RejectionRate, local_bucket: false, ..Setup::default() });
    assert!(report.above_limit_percent.overall < 3.0, "{report:?}");
    assert!(report.below_exact_percent.overall < 3.0, "{report:?}");
}

#[test]
fn gates_share_the_limit_through_the_counter() {
    for gates in [2, 10] {
        let report = run(Setup { gates, ..Setup::default() });
        assert!(report.above_limit_percent.overall < 2.0, "{gates}: {report:?}");
        assert!(report.below_exact_percent.overall < 5.0, "{gates}: {report:?}");
    }
}

/// The gates of a fleet and the loads for which [`Algorithm::Shares`] is held to its bounds.
fn fleets() -> impl Iterator<Item = Setup> {
    let of = |gates, offered, pattern| Setup {
        algorithm: Algorithm::Shares,
        gates,
        offered,
        pattern,
        tenants: if pattern == Pattern::Zipf { 10 } else { 1 },
        settling: Nanos::from_secs(10),
        length: Nanos::from_secs(if offered > 3_000 { 20 } else { 60 }),
        ..Setup::default()
    };
    [1, 8, 100].into_iter().flat_map(move |gates| {
        [1_500, 3_000, 30_000]
            .into_iter()
            .flat_map(move |offered| PATTERNS.into_iter().map(move |pattern| of(gates, offered, pattern)))
    })
}

#[test]
fn shares_of_any_fleet_keep_the_limit_and_waste_little_of_it() {
    for setup in fleets() {
        let report = run(setup);
        let above = report.above_limit_percent;
        let context = format!("{} gates, {}/s, {:?}: {report:?}", setup.gates, setup.offered, setup.pattern);
        assert!(above.worst_10_seconds <= 5.0, "{context}");
        // A burst of 100 ms, and what comes in between two ticks: an answer is in force from the next tick on.
        assert!(above.worst_second <= 25.0, "{context}");
        if matches!(setup.pattern, Pattern::Steady | Pattern::Diurnal | Pattern::Zipf) {
            assert!(report.below_exact_percent.overall <= 5.0, "{context}");
        }
    }
}

#[test]
fn traffic_that_moves_soon_has_its_limit_elsewhere() {
    for gates in [2, 8, 100] {
        for offered in [1_500, 3_000, 30_000] {
            let pattern = Pattern::Hop;
            let setup = Setup { algorithm: Algorithm::Shares, gates, offered, pattern, ..Setup::default() };
            let trace = setup.trace(600).unwrap();
            for hop in trace.admitted.chunks_exact(20).skip(1) {
                // The last 500 ms before the next one.
                let rate = hop[15..].iter().sum::<u32>() * 2;
                assert!(rate >= 900, "{gates} gates, {offered}/s: {hop:?}");
            }
        }
    }
}

#[test]
fn a_fleet_that_starts_pays_back_what_each_gate_gave_out() {
    for gates in [1, 8, 100] {
        let setup = Setup { algorithm: Algorithm::Shares, gates, offered: 30_000, ..Setup::default() };
        let trace = setup.trace(100).unwrap();
        // The first two intervals: a gate that has just reported nothing learns it with its next report.
        let at_first: u32 = trace.admitted[..2].iter().sum();
        assert!(at_first <= gates * 200 + 200, "{gates}: {at_first}");
        let report = run(setup);
        assert!(report.above_limit_percent.overall <= 1.0, "{gates}: {report:?}");
    }
}

#[test]
fn a_tenant_below_its_limit_is_never_refused() {
    for algorithm in
        [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::RejectionRate, Algorithm::Shares]
    {
        for gates in [1, 5] {
            let report = run(Setup { algorithm, gates, offered: 500, ..Setup::default() });
            assert_eq!(report.admitted, report.requests, "{algorithm:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_report_and_trace() {
    let setup = Setup {
        tenants: 5,
        gates: 3,
        pattern: Pattern::Zipf,
        length: Nanos::from_secs(10),
        ..Setup::default()
    };
    assert_eq!(run(setup), run(setup));
    assert_ne!(run(setup), run(Setup { seed: 2, ..setup }));
    let trace = setup.trace(50).unwrap();
    assert_eq!(trace, setup.trace(50).unwrap());
    assert!(trace.offered.iter().all(|&tenth| tenth > 0) && trace.exact.len() == 50);
}

#[test]
fn impossible_setups_are_refused() {
    let good = Setup::default();
    for (setup, field) in [
        (Setup { limit: 0, ..good }, "limit"),
        (Setup { offered: 0, ..good }, "offered"),
        (Setup { report_interval: Nanos::ZERO, ..good }, "report_interval"),
        (Setup { gates: 0, ..good }, "gates"),
        (Setup { tenants: 0, ..good }, "tenants"),
        (Setup { skew: -0.1, ..good }, "skew"),
        (Setup { skew: f64::NAN, ..good }, "skew"),
        (Setup { burst: Nanos::from_secs(3_601), ..good }, "burst"),
        (Setup { burst: Nanos::from_millis(1), limit: 999, ..good }, "burst"),
        (Setup { length: Nanos::from_secs(9), ..good }, "length"),
        (Setup { settling: Nanos::from_secs(31), ..good }, "settling"),
        (Setup { offered: 1_000_000, tenants: 10_000, ..good }, "offered"),
        (
            Setup {
                algorithm: Algorithm::RejectionRate,
                limit: 10,
                report_interval: Nanos::from_millis(99),
                ..good
            },
            "report_interval",
        ),
    ] {
        assert_eq!(setup.run(&Progress::default()).unwrap_err().field, field);
        assert_eq!(setup.trace(1).unwrap_err().field, field);
    }
}

#[test]
fn what_was_not_taken_waits_wastes_or_overshoots() {
    let report = |algorithm, offered, gates| {
        let settling = Nanos::from_secs(10);
        run(Setup { algorithm, offered, gates, settling, ..Setup::default() })
    };
    let asked = report(Algorithm::RemoteCall, 3_000, 8);
    assert_eq!((asked.admitted, asked.added_latency_us), (asked.exact_admitted, 500.0));
    // Who has no tokens asks for every request.
    let fetched = report(Algorithm::PrefetchedTokens, 30_000, 8);
    assert!(fetched.added_latency_us > 400.0, "{fetched:?}");
    let sampled = report(Algorithm::Sampling, 30_000, 8);
    let shares = report(Algorithm::Shares, 30_000, 8);
    assert_eq!((sampled.added_latency_us, shares.added_latency_us), (0.0, 0.0));
    let above = |report: &Report| report.above_limit_percent.worst_second;
    assert!(above(&sampled) > above(&shares) + 5.0, "{sampled:?} {shares:?}");
}

/// Small limits, of so many requests in a time, with their bursts.
const SMALL: [(u64, Nanos, Nanos); 5] = [
    (1, SECOND, SECOND),
    (10, SECOND, Nanos::from_millis(100)),
    (100, SECOND, Nanos::from_millis(100)),
    (1_000, SECOND, Nanos::from_millis(100)),
    (10, Nanos::from_secs(3_600), Nanos::from_secs(3_600)),
];
const SECOND: Nanos = Nanos::from_secs(1);

/// The most that passes of a small limit within any second and any 10 seconds, of several patterns up to 30 times the limit.
fn most_of_small((limit, per, burst): (u64, Nanos, Nanos), gates: u32, settling: Nanos) -> MostWithin {
    let mut most = MostWithin::default();
    for pattern in [Pattern::Steady, Pattern::Bursts, Pattern::Onoff] {
        for times in [1, 3, 30] {
            let offered = if per == SECOND { times * limit } else { times };
            let setup = Setup { limit, per, burst, gates, settling, offered, pattern, ..Setup::default() };
            let MostWithin { second, ten_seconds } =
                run(Setup { algorithm: Algorithm::Shares, ..setup }).most_within;
            most = MostWithin {
                second: most.second.max(second),
                ten_seconds: most.ten_seconds.max(ten_seconds),
            };
        }
    }
    most
}

/// The most that may pass of a limit in so many seconds, a part of it and so many requests beyond it.
fn bound((limit, per, burst): (u64, Nanos, Nanos), seconds: u64, part: f64, more: u64) -> u64 {
    let rate = limit as f64 * 1e9 / per.0 as f64;
    let whole_burst = if burst > SECOND { rate * burst.0 as f64 / 1e9 } else { 0.0 };
    ((rate * seconds as f64 + whole_burst) * (1.0 + part)) as u64 + more
}

#[test]
fn one_gate_exceeds_a_small_limit_by_a_fifth_or_a_request() {
    for small in SMALL {
        let most = most_of_small(small, 1, Nanos::ZERO);
        assert!(most.second <= bound(small, 1, 0.2, 1), "{small:?}: {most:?}");
        assert!(most.ten_seconds <= bound(small, 10, 0.05, 1), "{small:?}: {most:?}");
    }
}

#[test]
fn many_gates_exceed_a_small_limit_by_a_request_of_each() {
    for small in SMALL.into_iter().filter(|(limit, ..)| *limit <= 100) {
        for gates in [10, 100] {
            let most = most_of_small(small, gates, Nanos::from_secs(10));
            let of_each = u64::from(gates);
            assert!(most.second <= bound(small, 1, 0.2, of_each), "{small:?}, {gates} gates: {most:?}");
            assert!(
                most.ten_seconds <= bound(small, 10, 0.05, of_each),
                "{small:?}, {gates} gates: {most:?}"
            );
        }
    }
}

#[test]
fn busy_gates_give_out_a_small_limit_in_turn() {
    let [settling, burst] = [10_000, 100].map(Nanos::from_millis);
    for (gates, most_over) in [(10, 5), (30, 10), (100, 10)] {
        let algorithm = Algorithm::Shares;
        let report =
            run(Setup { algorithm, limit: 10, burst, gates, offered: 305, settling, ..Setup::default() });
        assert!(report.most_within.second <= 10 + most_over, "{gates} gates: {report:?}");
        assert!(report.most_within.ten_seconds <= 105, "{gates} gates: {report:?}");
    }
}
