use super::*;

fn setup(disciplines: &[Discipline], load: f64) -> Setup {
    let scenario = Scenario { processes: 20, ..Scenario::study() };
    Setup {
        scenario,
        disciplines: disciplines.to_vec(),
        loads: vec![load],
        patience: Nanos::from_millis(200),
        part: Nanos::from_secs(20),
        seed: 7,
    }
}

fn reports(disciplines: &[Discipline], load: f64) -> Vec<Report> {
    setup(disciplines, load).run(&Progress::default()).unwrap()
}

#[test]
fn who_sheds_nothing_works_for_clients_that_have_left() {
    let [deadline, others @ ..] = &reports(&Discipline::ALL, 1.5)[..] else { panic!("there are several") };
    assert!(deadline.goodput_percent < 60.0, "{deadline:?}");
    for report in others {
        assert!(report.goodput_percent > deadline.goodput_percent + 20.0, "{report:?}");
        assert!(report.goodput_percent + report.wasted_percent < 101.0, "{report:?}");
        assert!(report.refused_percent > 25.0, "{report:?}");
        // DAGOR admits a hundredth more in each window, which takes longer than the lull.
        let recovers = report.discipline != Discipline::Dagor.name();
        assert_eq!(report.recovered_after_s.is_some(), recovers, "{report:?}");
    }
}

#[test]
fn nobody_is_refused_in_a_lull() {
    for report in reports(&Discipline::ALL, Setup::LULL) {
        assert!(report.refused_percent < 0.5, "{report:?}");
        assert_eq!(report.recovered_after_s, Some(0), "{report:?}");
        assert!((report.goodput_percent - 70.0).abs() < 3.0, "{report:?}");
    }
}

#[test]
fn a_seed_gives_the_same_report_again() {
    let twice = [0, 1].map(|_| reports(&[Discipline::Pid, Discipline::Dagor], 2.0));
    assert_eq!(twice[0], twice[1]);
    let other = Setup { seed: 8, ..setup(&[Discipline::Pid], 2.0) };
    assert_ne!(other.run(&Progress::default()).unwrap()[0], twice[0][0]);
}

#[test]
fn parameters_out_of_range_are_named() {
    let fine = || setup(&[Discipline::Codel], 1.5);
    for (setup, named) in [
        (Setup { patience: Nanos::ZERO, ..fine() }, "patience"),
        (Setup { part: Nanos::from_secs(1), ..fine() }, "part"),
        (Setup { loads: vec![0.0], ..fine() }, "load"),
    ] {
        let error = setup.run(&Progress::default()).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}
