//! Results that the simulations of quotas, overloads and hot keys must show.
//!
//! At reduced size unless `GATE_LONG=1`.

use std::process::Command;

use gate_common::units::Nanos;
use gate_tests::privilege;
use gate_userspace::policy::Tier;
use gate_userspace::policy::codel::Law;
use gate_userspace::sim::hotkeys::{self, Sketch};
use gate_userspace::sim::overload::{self, Report, Scenario};
use gate_userspace::sim::parallel::Progress;
use gate_userspace::sim::quota::{self, Algorithm, Pattern};
use serde_json::Value;
use xtask::paths;

fn long() -> bool {
    std::env::var_os("GATE_LONG").is_some_and(|value| value == "1")
}

#[test]
fn a_local_bucket_overshoots_by_less_than_five_percent() {
    let (length, seeds) = if long() { (Nanos::from_secs(600), 1..=3) } else { (Nanos::from_secs(60), 1..=2) };
    for pattern in Pattern::ALL {
        for seed in seeds.clone() {
            for offered in [800, 3_000, 20_000] {
                let tenants = if pattern == Pattern::Zipf { 5 } else { 1 };
                let setup =
                    quota::Setup { pattern, seed, offered, tenants, length, ..quota::Setup::default() };
                let report = setup.run(&Progress::default()).unwrap();
                let above = report.above_limit_percent.worst_10_seconds;
                assert!(above <= 5.0, "{pattern:?}, {offered}/s, seed {seed}: {above} %");
            }
        }
    }
}

#[test]
fn schemes_without_it_overshoot_more_with_interval_and_skew() {
    let length = Nanos::from_secs(if long() { 600 } else { 30 });
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::RejectionRate] {
        let worst = |millis, skew, tenants| {
            let setup = quota::Setup {
                algorithm,
                local_bucket: false,
                report_interval: Nanos::from_millis(millis),
                pattern: Pattern::Zipf,
                skew,
                tenants,
                length,
                ..quota::Setup::default()
            };
            setup.run(&Progress::default()).unwrap().above_limit_percent.worst_second
        };
        let by_interval = [20, 200, 1_000].map(|millis| worst(millis, 0.0, 1));
        assert!(by_interval.is_sorted() && by_interval[2] > 100.0, "{algorithm:?}: {by_interval:?}");
        let by_skew = [0.0, 1.5].map(|skew| worst(100, skew, 20));
        assert!(by_skew[1] > by_skew[0] + 50.0, "{algorithm:?}: {by_skew:?}");
    }
}

/// A capacity drop to 60% of the offered load for a minute, a smaller store unless it is long.
fn overload(scenario: Scenario, critical: f64, seed: u64) -> overload::Setup {
    let workers = if long() { 100 } else { 40 };
    let begins = Nanos::from_secs(if long() { 60 } else { 35 });
    let lasts = Nanos::from_secs(if long() { 60 } else { 20 });
    overload::Setup {
        scenario,
        workers,
        critical,
        seed,
        begins,
        lasts,
        after: lasts,
        ..overload::Setup::default()
    }
}

fn run(setup: &overload::Setup) -> [Report; 4] {
    setup.run(&Progress::default()).unwrap().try_into().expect("four sets of mechanisms")
}

fn assert_in_order(report: &Report) {
    let goodput = report.goodput_percent_during;
    assert!(goodput.critical > 99.0, "{goodput:?}");
    assert!(goodput.critical >= goodput.standard && goodput.standard >= goodput.batch, "{goodput:?}");
    assert!(goodput.batch + 0.1 >= goodput.best_effort, "{goodput:?}");
}

#[test]
fn a_capacity_drop_sheds_tiers_in_order_and_spares_critical() {
    let (shares, seeds) = if long() { (&[0.1, 0.25, 0.4][..], 1..=3) } else { (&[0.4][..], 1..=1) };
    for &critical in shares {
        for seed in seeds.clone() {
            for law in Law::ALL {
                let setup = overload::Setup { law, ..overload(Scenario::CapacityDrop, critical, seed) };
                let [none, codel, shedding, both] = run(&setup);
                assert_in_order(&both);
                if law == Law::Overload {
                    assert_in_order(&codel);
                }
                // Without any of it, nobody gets anything.
                assert!(none.goodput_percent_during.critical < 20.0, "{none:?}");
                assert!(none.transitions.is_empty() && codel.transitions.is_empty());
                for report in [shedding, both] {
                    let what = format!("{}, critical {critical}, seed {seed}, {law:?}", report.mechanisms);
                    assert!(report.goodput_percent_after.best_effort > 95.0, "{what}");
                    assert!(report.restored_after_seconds.unwrap() <= 10.0, "{what}: {report:?}");
                    assert_eq!(report.raised_after_recovery, 0, "{what}");
                    assert_eq!(report.highest_multiplier.critical, 1.0, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_shift_of_the_mix_and_a_tiny_latency_shed_nothing() {
    for scenario in [Scenario::MixShift, Scenario::TinyLatency] {
        let mut setup = overload(scenario, 0.4, 1);
        if scenario == Scenario::TinyLatency {
            // A worker does 24,000 a second.
            setup.workers = if long() { 20 } else { 10 };
        }
        for report in run(&setup) {
            assert_eq!(report.transitions, [], "{scenario:?}, {}", report.mechanisms);
            let goodput = report.goodput_percent_during;
            assert!(Tier::ALL.into_iter().all(|tier| goodput.get(tier) > 90.0), "{scenario:?}, {goodput:?}");
        }
    }
}

#[test]
fn a_lasting_latency_step_is_normal_after_five_minutes() {
    let mut setup = overload(Scenario::LatencyStep, 0.4, 1);
    setup.lasts = Nanos::from_secs(320);
    if !long() {
        setup.workers = 10;
    }
    for report in run(&setup) {
        assert!(report.restored_after_seconds.unwrap() < 315.0, "{report:?}");
        let highest = report.highest_multiplier;
        assert_eq!(highest.critical, 1.0, "{}", report.mechanisms);
        // With few requests, the ratio is noisy. It is a third: low enough for the lowest tier only.
        assert!(!long() || highest.standard == 1.0, "{}", report.mechanisms);
    }
}

#[test]
fn heaviest_keys_are_found_from_one_request_in_a_hundred() {
    // At reduced size, as many samples of fewer requests.
    let (requests, sample_every) = if long() { (100_000_000, 100) } else { (10_000_000, 10) };
    let setup = hotkeys::Setup {
        keys: 1_000_000,
        requests,
        exponents: vec![0.99],
        sketches: vec![Sketch { capacity: 1_000, sample_every }],
        top: 20,
        seed: 1,
    };
    let report = setup.run(&Progress::default()).unwrap()[0];
    assert!(report.precision >= 0.95, "{report:?}");
    assert!(report.recall >= 0.95, "{report:?}");
    assert!(report.memory_bytes <= 2_000_000, "{report:?}");
    assert_eq!(report.out_of_bounds, 0);
}

#[test]
fn commands_print_json_repeatably_and_refuse_bad_arguments() {
    let gate = paths::gate();
    if !gate.exists() {
        let test = "simulations::commands_print_json_repeatably_and_refuse_bad_arguments";
        return privilege::not_run(test, &format!("no {}: cargo build --release", gate.display()));
    }
    let run = |arguments: &str| {
        let output = Command::new(&gate).arg("sim").args(arguments.split(' ')).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for (arguments, key) in [
        ("quota --pattern bursts --gates 3 --no-local-bucket --for 10s", "/above_limit_percent/worst_second"),
        (
            "overload --workers 10 --begins 15s --lasts 10s --after 10s",
            "/runs/3/goodput_percent_during/critical",
        ),
        ("hotkeys --keys 1000 --requests 100000 --exponent 1.1 --sample 10", "/0/precision"),
    ] {
        let (code, json, _) = run(&format!("{arguments} --seed 7 --json"));
        assert_eq!(code, Some(0), "{arguments}");
        let parsed: Value = serde_json::from_str(&json).unwrap();
        assert!(parsed.pointer(key).is_some_and(Value::is_number), "{arguments}: no {key} in {json}");
        assert_eq!(run(&format!("{arguments} --seed 7 --json")).1, json, "{arguments}");
        assert!(run(&format!("{arguments} --seed 7")).1.contains("|--"), "{arguments}");
    }
    for (arguments, named) in [
        ("quota --limit 0", "limit = 0"),
        ("quota --algorithm guess", "--algorithm"),
        ("quota --gates 0", "gates = 0"),
        ("overload --drop-to 1.5", "drop_to = 1.5"),
        ("overload --workers 1", "workers = 1"),
        ("hotkeys --exponent 1,-1", "exponents[1] = -1"),
        ("hotkeys --capacity 10", "sketches[0].capacity = 10"),
    ] {
        let (code, _, errors) = run(arguments);
        assert!(code == Some(2) && errors.contains(named), "{arguments}: {code:?}, {errors}");
    }
}
