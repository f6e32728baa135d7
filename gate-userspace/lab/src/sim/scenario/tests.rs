use super::*;

fn parse(toml: &str) -> Result<Scenario, String> {
    let raw: RawScenario = toml::from_str(toml).map_err(|error| error.to_string())?;
    Scenario::try_from(raw).map_err(|error| error.to_string())
}

#[test]
fn nothing_written_down_is_the_study() {
    let scenario = parse("").unwrap();
    assert_eq!(scenario.loads.len(), 13);
    assert_eq!((scenario.loads[0], scenario.loads[12]), (0.9, 1.5));
    // 100 processes / 6.614 ms.
    let per_sec = scenario.workload(1.0).per_sec;
    assert!((per_sec - 15_119.4).abs() < 0.1, "{per_sec}");
}

#[test]
fn a_file_replaces_what_it_names() {
    let scenario = parse(
        r#"
        processes = 8
        loads = [0.5]
        slowdown = 2
        [policies]
        alpha = 0.25
        averaging = "whole-window"
        deadline_ms = 100
        [[types]]
        name = "get"
        mix = 0.75
        processing = { constant = { mean_ms = 1 } }
        objective = [{ percentile = 99.9, limit_ms = 2.5 }]
        [[types]]
        name = "range"
        mix = 0.25
        processing = { exponential = { mean_ms = 5 } }
        maxqwt_limit_ms = 7
        "#,
    )
    .unwrap();
    assert_eq!((scenario.processes, scenario.warm_up, &scenario.loads[..]), (8, 150_000, &[0.5][..]));
    assert_eq!(scenario.policies.alpha, 0.25);
    assert_eq!(scenario.policies.averaging, Averaging::WholeWindow);
    assert_eq!(scenario.policies.deadline, Some(Nanos::from_millis(100)));
    assert_eq!(scenario.policies.maxql_limit, 400);
    let target = Target { percentile: 99.9, limit: Nanos::from_micros(2_500) };
    assert_eq!(scenario.types[0].objective.targets(), [target]);
    assert_eq!(scenario.types[1].objective.targets().len(), 2);
    assert_eq!(
        [0, 1].map(|index: usize| scenario.types[index].max_queue_wait),
        [None, Some(Nanos::from_millis(7))]
    );
    assert!((scenario.workload(0.5).per_sec - 2_000.0).abs() < 1e-6);
    // At one and a half times the load, everything takes twice as long.
    for (load, mean_secs) in [(0.5, 0.001), (1.0, 0.001), (1.5, 0.002)] {
        assert!((scenario.workload(load).types[0].1.mean_secs() - mean_secs).abs() < 1e-12, "at {load}");
    }
}

#[test]
fn the_documented_file_is_read() {
    let manual = include_str!("../../../../../docs/SIMULATOR.md");
    let (_, rest) = manual.split_once("```toml\n").unwrap();
    let scenario = parse(rest.split_once("```").unwrap().0).unwrap();
    let names: Vec<_> = scenario.types.iter().map(|of| of.name.as_str()).collect();
    assert_eq!((names, scenario.policies), (vec!["get", "range"], Policies::default()));
}

#[test]
fn the_scenarios_of_documented_commands_are_read() {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scenarios")).unwrap();
    for path in files.map(|file| file.unwrap().path()) {
        let read = parse(&std::fs::read_to_string(&path).unwrap());
        assert!(read.is_ok(), "{}: {read:?}", path.display());
    }
}

#[test]
fn a_faulty_file_is_refused_with_field_and_range() {
    let of_type = |line: &str| format!("[[types]]\nname = \"a\"\nmix = 1\n{line}");
    let constant = "processing = { constant = { mean_ms = 1 } }\n";
    for (toml, parts) in [
        ("processes = 0".to_owned(), ["processes = 0", "from 1 to 100000"]),
        ("loads = []".into(), ["loads = []", "at least one"]),
        ("loads = [1, -1]".into(), ["loads[1] = -1", "above 0"]),
        ("loads = [nan]".into(), ["loads[0] = NaN", "above 0"]),
        ("slowdown = -1".into(), ["slowdown = -1", "from 0 to 100"]),
        ("slowdown = nan".into(), ["slowdown = NaN", "from 0 to 100"]),
        (of_type("maxqwt_limit_ms = 0"), ["line 4", "must be above 0"]),
        ("types = []".into(), ["types = 0", "from 1 to 1000"]),
        ("procesess = 1".into(), ["line 1", "unknown field"]),
        ("[policies]\nmaxqwt_limit_ms = 0".into(), ["line 2", "must be above 0"]),
        ("[policies]\ndeadline_ms = -1".into(), ["line 2", "must be above 0"]),
        ("[policies]\nhistogram = \"slide\"".into(), ["line 2", "unknown variant"]),
        ("[policies]\naveraging = \"some\"".into(), ["line 2", "unknown variant"]),
        (of_type(""), ["missing field", "processing"]),
        (of_type("processing = { lognormal = { mean_ms = 1 } }"), ["line 4", "missing field `p50_ms`"]),
        (
            of_type("processing = { lognormal = { mean_ms = 1, p50_ms = 2 } }"),
            ["types[0].mean_ms = 1", "from the median"],
        ),
        (of_type("processing = { constant = { mean_ms = -1 } }"), ["line 4", "must be above 0"]),
        (of_type(&format!("{constant}objective = []")), ["types[0].objective = []", "at least one"]),
        (
            of_type(&format!("{constant}objective = [{{ percentile = 100, limit_ms = 1 }}]")),
            ["types[0].objective[0].percentile = 100", "below 100"],
        ),
        (of_type(constant).replace("mix = 1", "mix = 0.5"), ["mix = 0.5", "add up to 1"]),
        (of_type(constant).replace("\"a\"", "\"all\""), ["types[0].name = all", "a name of its own"]),
    ] {
        let error = parse(&toml).expect_err(&toml);
        assert!(parts.iter().all(|part| error.contains(part)), "{toml}: {error}");
    }
}
