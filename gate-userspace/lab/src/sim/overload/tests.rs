use super::*;

fn run(setup: Setup) -> Vec<Report> {
    let reports = setup.run(&Progress::default()).unwrap();
    assert_eq!(reports.len(), Mechanisms::ALL.len());
    reports
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
