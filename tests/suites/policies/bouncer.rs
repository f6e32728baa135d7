//! The simulator reproduces the published study of admission policies.
//!
//! At reduced size, and so with wider tolerances, unless `GATE_LONG=1`.

use std::process::Command;

use gate_common::units::Nanos;
use gate_tests::privilege;
use gate_userspace::policy::baselines::Averaging;
use gate_userspace::policy::bouncer::HistogramKind;
use gate_userspace::sim::bouncer::{Policy, Report, Study};
use gate_userspace::sim::parallel::Progress;
use gate_userspace::sim::scenario::Scenario;
use serde_json::Value;
use xtask::paths;

const TYPES: [&str; 4] = ["fast", "medium fast", "medium slow", "slow"];

fn published() -> Value {
    serde_json::from_str(include_str!("../../data/bouncer.json")).unwrap()
}

fn long() -> bool {
    std::env::var_os("GATE_LONG").is_some_and(|value| value == "1")
}

/// The results of `policy` at `loads`, at the size that is asked for.
fn simulate(policy: Policy, loads: &[f64], change: impl FnOnce(&mut Scenario)) -> Vec<Report> {
    simulate_all(&[policy], loads, change)
}

/// The results of `policies` together.
fn simulate_all(policies: &[Policy], loads: &[f64], change: impl FnOnce(&mut Scenario)) -> Vec<Report> {
    let mut scenario = Scenario { loads: loads.to_vec(), ..Scenario::study() };
    let (queries, runs) = if long() {
        (1_500_000, 5)
    } else {
        scenario.warm_up = 100_000;
        (200_000, 2)
    };
    change(&mut scenario);
    let study = Study { scenario, policies: policies.to_vec(), queries, runs, seed: 1 };
    study.run(&Progress::default()).unwrap()
}

fn rejected(report: &Report, name: &str) -> f64 {
    report.rejected_percent.get(name).copied().flatten().unwrap()
}

fn accepted_share(report: &Report, name: &str) -> f64 {
    1.0 - rejected(report, name) / 100.0
}

fn slow_p50_ms(report: &Report) -> f64 {
    report.rt_ms.get("slow").and_then(|of| of.p50).unwrap()
}

fn assert_near(got: f64, expected: f64, tolerance: f64, what: &str) {
    assert!((got - expected).abs() <= tolerance, "{what}: {got:.3}, not within {tolerance} of {expected}");
}

#[test]
fn the_scenario_is_the_published_one() {
    let published = published();
    let scenario = Scenario::study();
    assert_eq!(published["engine"]["processes"], scenario.processes);
    for (row, of) in published["query_types_table_1"].as_array().unwrap().iter().zip(&scenario.types) {
        assert_eq!(row["type"], of.name);
        assert_eq!(row["mix"], of.mix);
        assert_near(of.processing.mean_secs() * 1e3, row["pt_mean_ms"].as_f64().unwrap(), 1e-9, &of.name);
        let limits: Vec<u64> =
            of.objective.targets().iter().map(|target| target.limit.0.div_ceil(1_000_000)).collect();
        let table_2 = &published["parameters_table_2"];
        assert_eq!(limits, ["slo_p50_ms", "slo_p90_ms"].map(|name| table_2[name].as_u64().unwrap()));
    }
    let factors = &published["rejections_percent_table_3_basic"]["factor"];
    assert_eq!(*factors, Value::from(scenario.loads));
}

#[test]
fn bouncer_and_both_strategies_reject_what_table_3_says() {
    for (policy, allowance, table) in [
        (Policy::Bouncer, None, "rejections_percent_table_3_basic"),
        (Policy::BouncerAcceptanceAllowance, Some(0.1), "rejections_percent_table_3_acceptance_allowance"),
        (Policy::BouncerHelpingUnderserved, None, "rejections_percent_table_3_helping_the_underserved"),
    ] {
        let table = &published()[table];
        let column = |name: &str| -> Vec<f64> {
            table[name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
        };
        let (slow, medium_slow, all) = if long() { (3.0, 2.0, 1.0) } else { (4.0, 2.5, 1.2) };
        let loads = column("factor");
        let reports = simulate(policy, &loads, |scenario| {
            scenario.policies.allowance = allowance.unwrap_or(scenario.policies.allowance);
        });
        for (name, tolerance) in [
            ("fast", 0.005),
            ("medium fast", 0.005),
            ("medium slow", medium_slow),
            ("slow", slow),
            ("all", all),
        ] {
            for (report, published) in reports.iter().zip(column(name)) {
                let what = format!("{}: {name} at {}", report.policy, report.load);
                assert_near(rejected(report, name), published, tolerance, &what);
            }
        }
    }
}

#[test]
fn admitted_queries_meet_their_objective_at_full_utilization() {
    // At reduced size, the start at which nothing is known yet weighs more.
    let tolerance = if long() { 1.0 } else { 1.1 };
    for report in simulate(Policy::Bouncer, &[1.1, 1.3, 1.5], |_| {}) {
        for name in TYPES {
            let response = report.rt_ms.get(name).unwrap();
            assert!(response.p50.unwrap() <= 18.0 * tolerance, "{name} at {}: {response:?}", report.load);
            assert!(response.p90.unwrap() <= 50.0 * tolerance, "{name} at {}: {response:?}", report.load);
        }
        assert_near(report.utilization, 1.0, 0.01, "utilization");
    }
}

#[test]
fn a_larger_allowance_or_factor_lets_more_slow_queries_in() {
    // Alone, Bouncer accepts one slow query in 65 at this load: what they get is the strategy's.
    let shares = |policy, change: fn(&mut Scenario, f64), values: &[f64]| -> Vec<f64> {
        let report = |&value: &f64| simulate(policy, &[1.5], |scenario| change(scenario, value)).remove(0);
        values.iter().map(report).map(|report| accepted_share(&report, "slow")).collect()
    };
    let allowances = [0.01, 0.05, 0.2, 0.5];
    let given = shares(
        Policy::BouncerAcceptanceAllowance,
        |scenario, allowance| scenario.policies.allowance = allowance,
        &allowances,
    );
    for (share, allowance) in given.iter().zip(allowances) {
        assert_near(*share, allowance, 0.03, &format!("slow with A = {allowance}"));
    }
    let alphas = [0.1, 0.5, 1.0];
    let given =
        shares(Policy::BouncerHelpingUnderserved, |scenario, alpha| scenario.policies.alpha = alpha, &alphas);
    assert!(given.windows(2).all(|pair| pair[0] < pair[1]), "{given:?}");
    for (share, alpha) in given.iter().zip(alphas) {
        assert!(*share <= 0.5 * alpha + 0.03, "{share} with alpha = {alpha}: at most half of it is help");
    }
}

#[test]
fn limits_on_the_queue_give_plateaus_and_hit_all_types_alike() {
    for (policy, low, high) in [(Policy::MaxQueueLength, 37.0, 39.5), (Policy::MaxQueueWait, 25.0, 28.0)] {
        for report in simulate(policy, &[1.1, 1.3, 1.5], |_| {}) {
            let p50 = slow_p50_ms(&report);
            let what = format!("{} at {}", report.policy, report.load);
            assert!((low..=high).contains(&p50), "{what}: p50 of slow is {p50} ms");
            assert_near(report.utilization, 1.0, 0.005, &what);
            // What exceeds the capacity is rejected, whatever its type.
            for name in TYPES {
                assert_near(rejected(&report, name), 100.0 * (1.0 - 1.0 / report.load), 1.5, &what);
            }
        }
    }
}

#[test]
fn accept_fraction_keeps_utilization_if_averages_track_the_load() {
    for report in simulate(Policy::AcceptFraction, &[1.1, 1.3, 1.5], |_| {}) {
        assert_near(report.utilization, 0.95, 0.015, &format!("utilization at {}", report.load));
        assert_near(slow_p50_ms(&report), 14.0, 1.0, &format!("p50 of slow at {}", report.load));
    }
}

#[test]
fn accept_fraction_lets_latency_grow_if_a_rate_starts_at_zero() {
    let whole_window = |scenario: &mut Scenario| scenario.policies.averaging = Averaging::WholeWindow;
    let reports = simulate(Policy::AcceptFraction, &[0.9, 1.1, 1.3, 1.5], whole_window);
    let p50s: Vec<f64> = reports.iter().map(slow_p50_ms).collect();
    assert!(p50s.windows(2).all(|pair| pair[1] > 1.3 * pair[0]), "{p50s:?}");
}

#[test]
fn accept_fraction_bounds_latency_if_queries_have_a_deadline() {
    let reports = simulate(Policy::AcceptFraction, &[0.9, 1.1, 1.3, 1.5], |scenario| {
        scenario.policies.averaging = Averaging::WholeWindow;
        scenario.policies.deadline = Some(Nanos::from_millis(50));
    });
    for report in reports {
        // At most 50 ms in the queue, and the median of 12.5 ms.
        let p50 = slow_p50_ms(&report);
        let what = format!("slow at {}", report.load);
        assert!(p50 <= 64.0, "{what}: p50 is {p50} ms");
        assert!(report.load < 1.0 || p50 > 20.0, "{what}: p50 is {p50} ms, and nothing queues");
    }
}

#[test]
fn wait_limits_by_type_equal_bouncer_until_the_store_slows() {
    let run = |policy, slowdown| {
        simulate(policy, &[1.2, 1.3], |scenario| {
            scenario.slowdown = slowdown;
            // What the objective leaves beside each type's median.
            for (of, limit_us) in scenario.types.iter_mut().zip([17_620, 15_780, 10_600, 5_490]) {
                of.max_queue_wait = Some(Nanos::from_micros(limit_us));
            }
        })
    };
    for (bouncer, waits) in run(Policy::Bouncer, 0.0).iter().zip(&run(Policy::MaxQueueWait, 0.0)) {
        let what = format!("at {}", bouncer.load);
        assert_near(slow_p50_ms(waits), slow_p50_ms(bouncer), 1.0, &what);
        assert_near(rejected(waits, "all"), rejected(bouncer, "all"), 0.5, &what);
    }
    for report in run(Policy::Bouncer, 0.2) {
        assert!(slow_p50_ms(&report) <= 18.0, "at {}: {report:?}", report.load);
    }
    for report in run(Policy::MaxQueueWait, 0.2).iter().skip(1) {
        assert!(slow_p50_ms(report) > 18.3, "at {}: {report:?}", report.load);
    }
}

#[test]
fn accept_fraction_behind_bouncer_keeps_utilization() {
    let loads = [1.1, 1.3];
    let [only, behind, before] = [
        &[Policy::AcceptFraction][..],
        &[Policy::Bouncer, Policy::AcceptFraction],
        &[Policy::AcceptFraction, Policy::Bouncer],
    ]
    .map(|policies| simulate_all(policies, &loads, |_| {}));
    for ((only, behind), before) in only.iter().zip(&behind).zip(&before) {
        let what = format!("at {}", behind.load);
        assert_near(behind.utilization, 0.95, 0.015, &what);
        assert!(slow_p50_ms(behind) <= 18.0, "{what}: {behind:?}");
        // What Bouncer refuses is no demand; asked last, it has next to nothing left to refuse.
        assert_near(rejected(before, "all"), rejected(only, "all"), 1.0, &what);
        assert!(rejected(behind, "all") < rejected(only, "all"), "{what}: {behind:?} and {only:?}");
    }
}

#[test]
fn a_sliding_window_rejects_what_swapped_histograms_reject() {
    let [swap, sliding] = [HistogramKind::Swap, HistogramKind::Sliding].map(|histogram| {
        simulate(Policy::Bouncer, &[1.1, 1.4], |scenario| scenario.policies.histogram = histogram)
    });
    for (swap, sliding) in swap.iter().zip(&sliding) {
        assert_ne!(swap, sliding);
        for (name, tolerance) in [("medium slow", 1.0), ("slow", 2.5), ("all", 0.5)] {
            let what = format!("{name} at {}", swap.load);
            assert_near(rejected(sliding, name), rejected(swap, name), tolerance, &what);
        }
    }
}

#[test]
fn the_command_prints_the_documented_keys_and_repeats_itself() {
    let gate = paths::gate();
    if !gate.exists() {
        let test = "bouncer::the_command_prints_the_documented_keys_and_repeats_itself";
        return privilege::not_run(test, &format!("no {}: cargo build --release", gate.display()));
    }
    let run = |arguments: &str| {
        let output =
            Command::new(&gate).args(["sim", "bouncer"]).args(arguments.split(' ')).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) =
        run("--policy bouncer+hu --load 1.2 --alpha 0.5 --queries 20000 --runs 3 --seed 7 --json");
    assert_eq!(code, Some(0));
    let json: Value = serde_json::from_str(&text).unwrap();
    for name in TYPES {
        assert!(json["rejected_percent"][name].is_f64());
        assert!(["p50", "p90", "p99"].iter().all(|percentile| json["rt_ms"][name][percentile].is_f64()));
    }
    assert!(json["rejected_percent"]["all"].is_f64() && json["utilization"].is_f64());
    assert!(json["queries_per_second_simulated"].as_f64().unwrap() > 0.0);

    let short = "--policy maxql --load 0.9,1.2 --queries 20000 --runs 2 --seed 7";
    let (code, table) = run(short);
    assert_eq!((code, &table), (Some(0), &run(short).1));
    assert_eq!(run("--load -1").0, Some(2));
    assert_eq!(run("--scenario /nowhere.toml").0, Some(1));
}
