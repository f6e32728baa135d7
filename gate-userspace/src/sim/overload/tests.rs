use super::*;

fn run(setup: Setup) -> Vec<Report> {
    let reports = setup.run(&Progress::default()).unwrap();
    assert_eq!(reports.len(), Mechanisms::ALL.len());
    reports
}

/// Small enough for a debug build.
fn small(scenario: Scenario) -> Setup {
    Setup {
        scenario,
        workers: 30,
        begins: Nanos::from_secs(40),
        lasts: Nanos::from_secs(30),
        after: Nanos::from_secs(30),
        ..Setup::default()
    }
}

#[test]
fn in_a_capacity_drop_critical_keeps_its_goodput_and_the_others_give_way_in_order() {
    let reports = run(small(Scenario::CapacityDrop));
    let [none, codel, shedding, both] = &reports[..] else { unreachable!("four sets of mechanisms") };
    for report in [codel, both] {
        let goodput = report.goodput_percent_during;
        assert!(goodput.critical > 99.0, "{goodput:?}");
        assert!(goodput.critical > goodput.standard && goodput.standard > goodput.batch, "{goodput:?}");
        assert!(goodput.batch >= goodput.best_effort, "{goodput:?}");
    }
    // Without any of it, nobody gets anything, not even when the store is back.
    assert!(none.goodput_percent_during.critical < 20.0, "{none:?}");
    assert!(none.goodput_percent_after.critical < 20.0, "{none:?}");
    assert!(none.transitions.is_empty() && codel.transitions.is_empty());
    for report in [shedding, both] {
        assert!(report.goodput_percent_after.best_effort > 95.0);
        assert!(report.restored_after_seconds.unwrap() <= 10.0, "{:?}", report.restored_after_seconds);
        assert_eq!(report.raised_after_recovery, 0);
        assert_eq!(report.highest_multiplier.critical, 1.0);
    }
}

#[test]
fn what_is_no_overload_sheds_nobody() {
    for scenario in [Scenario::MixShift, Scenario::TinyLatency] {
        let workers = if scenario == Scenario::TinyLatency { 10 } else { 30 };
        for report in run(Setup { workers, begins: Nanos::from_secs(20), ..small(scenario) }) {
            assert_eq!(report.transitions, [], "{scenario:?}, {}", report.mechanisms);
            let goodput = report.goodput_percent_during;
            assert!(Tier::ALL.into_iter().all(|tier| goodput.get(tier) > 90.0), "{scenario:?}, {goodput:?}");
        }
    }
}

#[test]
fn a_lasting_step_in_latency_is_the_new_normal_after_five_minutes() {
    let setup = Setup {
        workers: 10,
        lasts: Nanos::from_secs(320),
        after: Nanos::from_secs(10),
        ..small(Scenario::LatencyStep)
    };
    for report in run(setup) {
        assert!(report.restored_after_seconds.unwrap() < 315.0, "{report:?}");
        assert_eq!(report.highest_multiplier.critical, 1.0, "{}", report.mechanisms);
    }
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let setup = Setup {
        workers: 10,
        begins: Nanos::from_secs(15),
        lasts: Nanos::from_secs(10),
        after: Nanos::from_secs(10),
        ..Setup::default()
    };
    assert_eq!(run(setup), run(setup));
    assert_ne!(run(setup), run(Setup { seed: 2, ..setup }));
}

#[test]
fn impossible_setups_are_refused() {
    let good = Setup::default();
    for (setup, field) in [
        (Setup { workers: 9, ..good }, "workers"),
        (Setup { drop_to: 0.0, ..good }, "drop_to"),
        (Setup { drop_to: f64::NAN, ..good }, "drop_to"),
        (Setup { critical: 1.0, ..good }, "critical"),
        (Setup { begins: Nanos::from_secs(9), ..good }, "begins"),
        (Setup { lasts: Nanos::from_secs(3_601), ..good }, "lasts"),
        (Setup { after: Nanos::ZERO, ..good }, "after"),
    ] {
        assert_eq!(setup.run(&Progress::default()).unwrap_err().field, field);
    }
}
