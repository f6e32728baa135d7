use super::*;

const PATTERNS: [Pattern; 5] = Pattern::ALL;

fn run(setup: Setup) -> Report {
    setup.run(&Progress::default()).unwrap()
}

#[test]
fn a_local_bucket_overshoots_by_less_than_five_percent() {
    for pattern in PATTERNS {
        for algorithm in Algorithm::ALL {
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

#[test]
fn a_tenant_below_its_limit_is_never_refused() {
    for algorithm in Algorithm::ALL {
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
        (Setup { burst: Nanos::from_secs(61), ..good }, "burst"),
        (Setup { burst: Nanos::from_millis(1), limit: 999, ..good }, "burst"),
        (Setup { length: Nanos::from_secs(9), ..good }, "length"),
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
