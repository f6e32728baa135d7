use super::*;
use crate::quota::parse_limits;

fn imported(text: &str) -> Imported {
    let imported = import_ratelimit("rl.yaml", text, false).unwrap();
    let read = parse_limits("limits.toml", &imported.text).unwrap();
    assert_eq!(read.rules.list().len(), imported.limits, "{}", imported.text);
    imported
}

/// The limits as `name = quota`, in the order of the file.
fn limits(imported: &Imported) -> Vec<String> {
    let document: toml::Table = imported.text.parse().unwrap();
    let Some(limits) = document.get("limit").and_then(toml::Value::as_array) else { return Vec::new() };
    let text = |limit: &toml::Value, key: &str| limit[key].as_str().unwrap().to_owned();
    limits.iter().map(|limit| format!("{} = {}", text(limit, "name"), text(limit, "quota"))).collect()
}

fn of(descriptors: &str) -> Imported {
    imported(&format!("domain: shop\ndescriptors:\n{descriptors}"))
}

#[test]
fn descriptors_become_names_and_values_left_open_stars() {
    let all = of("  - key: user
    rate_limit: { unit: DAY, requests_per_unit: 5 }
    descriptors:
      - key: path
        value: /x=*y
        rate_limit: { unit: second, requests_per_unit: 1 }
      - key: path
        value: /x
        rate_limit: { unit: second, requests_per_unit: 10 }
  - key: user
    value: mallory
    rate_limit: { unit: minute }
  - key: tier
    value: \"gold\"
    rate_limit: { unlimited: true }
  - { key: any, value: \"*\", rate_limit: { unit: week, requests_per_unit: 7 } }
");
    assert_eq!(
        limits(&all),
        [
            "shop/user=* = 5/day",
            "shop/user=*/path=%2Fx = 10/second",
            "shop/user=mallory = 0",
            // There the value has no path, so that no path of its is limited.
            "shop/user=mallory/path=%2Fx = unlimited",
            "shop/tier=gold = unlimited",
            "shop/any=* = 7/week",
        ]
    );
    assert_eq!(all.notes.len(), 1);
    assert!(
        all.notes[0].line == 6 && all.notes[0].what.contains("a '*' only at the end of a value"),
        "{:?}",
        all.notes
    );
}

#[test]
fn a_value_without_a_limit_is_exempt_from_that_of_its_key() {
    let all = of("  - key: user
    rate_limit: { unit: minute, requests_per_unit: 20 }
    descriptors:
      - key: path
        rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: user
    value: admin
  - key: user
    value: bob
    descriptors:
      - key: path
        rate_limit: { unit: minute, requests_per_unit: 4 }
");
    assert_eq!(
        limits(&all),
        [
            "shop/user=* = 20/minute",
            "shop/user=*/path=* = 3/minute",
            "shop/user=admin = unlimited",
            "shop/user=admin/path=* = unlimited",
            "shop/user=bob/path=* = 4/minute",
            "shop/user=bob = unlimited",
        ]
    );
    assert_eq!(all.notes, []);
}

#[test]
fn a_star_that_ends_a_value_is_carried_over() {
    let all = of("  - key: path
    value: /api/*
    rate_limit: { unit: second, requests_per_unit: 10 }
    descriptors:
      - { key: user, rate_limit: { unit: second, requests_per_unit: 3 } }
  - { key: path, value: /api/v2/*, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: path, value: /api/login, descriptors: [ { key: user, value: a*, rate_limit: { unit: second } } ] }
  - { key: path, value: /ap*, rate_limit: { unit: second, requests_per_unit: 20 } }
  - { key: path, rate_limit: { unit: second, requests_per_unit: 50 } }
");
    assert_eq!(
        limits(&all),
        [
            "shop/path=%2Fapi%2F* = 10/second",
            "shop/path=%2Fapi%2F*/user=* = 3/second",
            "shop/path=%2Fapi%2Flogin/user=a* = 0",
            "shop/path=%2Fapi%2Flogin = unlimited",
            "shop/path=%2Fapi%2Flogin/user=* = unlimited",
            "shop/path=%2Fap* = 20/second",
            "shop/path=* = 50/second",
        ]
    );
    let notes: Vec<_> = all.notes.iter().map(|note| (note.line, note.what.as_str())).collect();
    assert_eq!(
        notes,
        [(
            8,
            "the descriptor is left out, with all below it: its values have the '*' of line 3, which comes first"
        )]
    );
}

#[test]
fn everything_that_is_not_carried_over_is_noted_with_its_line() {
    let all = of("  - key: a
    detailed_metric: true
    metadata: { any: { thing: [1, two] } }
    rate_limit:
      unit: second
      requests_per_unit: 1
      name: one
      replaces: [ { name: other } ]
  - key: b
    rate_limit: { unit: second, requests_per_unit: 1 }
    shadow_mode: true
  - key: c
    quota_mode: true
    rate_limit: { unit: second, requests_per_unit: 1 }
  - key: d
    value: '*'
    share_threshold: true
    value_to_metric: true
    rate_limit: { unit: second, requests_per_unit: 1 }
    shadow_mode: false
");
    assert_eq!(limits(&all), ["shop/a=* = 1/second", "shop/b=* = 1/second", "shop/d=* = 1/second"]);
    assert_eq!(all.text.matches("mode = \"shadow\"").count(), 1, "{}", all.text);
    assert!(all.text.ends_with("name = \"shop/d=*\"\nquota = \"1/second\"\n"), "{}", all.text);
    let notes: Vec<_> =
        all.notes.iter().map(|note| (note.line, note.what.split(':').next().unwrap_or_default())).collect();
    assert_eq!(
        notes,
        [
            (4, "detailed_metric"),
            (5, "metadata"),
            (10, "replaces"),
            (15, "quota_mode"),
            (19, "share_threshold"),
            (20, "value_to_metric"),
        ]
    );
    assert_eq!(limits(&of("  - key: k\n    descriptors:\n")), Vec::<String>::new());
}

#[test]
fn a_name_that_is_too_long_is_left_out() {
    let long = "x".repeat(300);
    let all = of(&format!("  - key: {long}\n    rate_limit: {{ unit: second, requests_per_unit: 1 }}\n"));
    assert_eq!((limits(&all).len(), all.notes.len()), (0, 1));
    assert!(all.notes[0].what.contains("longer than"), "{:?}", all.notes);
}

#[test]
fn every_fault_has_its_line() {
    for (text, fault) in [
        ("", "rl.yaml:1: is empty"),
        ("'", "rl.yaml:"),
        ("domain: shop\n---\ndomain: other\n", "rl.yaml:2: begins another document"),
        ("descriptors:\n", "rl.yaml:1: domain: is missing or empty"),
        ("- a\n", "rl.yaml:1: the document must be a map"),
        ("domain: shop\ndescriptors:\n  - a\n", "rl.yaml:3: a descriptor must be a map"),
        ("domain: shop\ndescriptors: five\n", "rl.yaml:2: descriptors: must be a list"),
        ("domain: shop\ndescriptors:\n  - value: v\n", "rl.yaml:3: key: is missing or empty"),
        (
            "domain: shop\ndescriptors:\n  - key: k\n    ratelimit: {}\n",
            "4: ratelimit: unknown key; did you mean rate_limit?",
        ),
        (
            "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: { unit: foo }\n",
            "4: unit: must be one of second,",
        ),
        (
            "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, unlimited: true }\n",
            "4: unit: stands beside unlimited",
        ),
        (
            "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: -1 }\n",
            "must be a whole number",
        ),
        ("domain: shop\ndescriptors:\n  - key: k\n  - key: k\n", "4: key: a descriptor with this key"),
        ("domain: shop\ndescriptors:\n  - key: k\n    key: l\n", "4: key: is there twice"),
        ("domain: &a shop\ndescriptors:\n  - key: *a\n", "3: is an alias"),
        ("? [a]\n: b\n", "1: a key must be a word"),
        (
            "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, name: n, replaces: [ { name: n } ] }\n",
            "names this very limit",
        ),
        (
            "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, replaces: [ { name: } ] }\n",
            "needs the name of another",
        ),
    ] {
        let faults = import_ratelimit("rl.yaml", text, false).unwrap_err().to_string();
        assert!(faults.contains(fault), "{faults}\nlacks {fault}");
    }
    let deep = format!("domain: {}", "[".repeat(1_000));
    assert!(import_ratelimit("rl.yaml", &deep, false).is_err());
}

#[test]
fn windows_are_those_of_the_calendar_if_asked_for() {
    let text = "domain: shop
descriptors:
  - { key: a, rate_limit: { unit: day, requests_per_unit: 5 } }
  - { key: b, rate_limit: { unit: second, requests_per_unit: 50 } }
  - { key: c, rate_limit: { unit: minute, requests_per_unit: 0 } }
  - { key: d, rate_limit: { unlimited: true } }
";
    let imported = import_ratelimit("rl.yaml", text, true).unwrap();
    let read = parse_limits("limits.toml", &imported.text).unwrap();
    let by_calendar: Vec<_> = read.rules.list().iter().map(|rule| rule.calendar.is_some()).collect();
    assert_eq!(by_calendar, [true, false, false, false], "{}", imported.text);
}
