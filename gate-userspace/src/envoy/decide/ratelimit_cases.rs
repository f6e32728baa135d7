//! The cases of envoyproxy/ratelimit's integration tests, as data: the same limits imported, the same requests asked, and the answers that it
//! gives. Cases in which gate answers otherwise are listed with the reason and with gate's own answer, so that the list stays true.

use super::tests::{TEXT, descriptor, quotas_of};
use super::*;
use crate::config::{import_ratelimit, parse_limits};
use crate::envoy::wire::rls::rate_limit_response::rate_limit::Unit;
use crate::limits::WallClock;

/// Limits of the shapes that its tests and its example have.
const CONFIGURATIONS: [&str; 4] = [
    "
domain: plain
descriptors:
  - { key: fast, rate_limit: { unit: second, requests_per_unit: 50 } }
",
    "
domain: slow
descriptors:
  - { key: minutely, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: hourly, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: daily, rate_limit: { unit: day, requests_per_unit: 20 } }
",
    "
domain: starred
descriptors:
  - { key: shared, value: docs/*, share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: single, value: docs/*, rate_limit: { unit: hour, requests_per_unit: 10 } }
",
    "
domain: nested
descriptors:
  - key: team
    rate_limit: { unit: minute, requests_per_unit: 2 }
    descriptors:
      - { key: page, rate_limit: { unit: minute, requests_per_unit: 3 } }
      - { key: page, value: single, rate_limit: { name: single, unit: minute, requests_per_unit: 1 } }
      - { key: page, value: never, rate_limit: { name: never, unit: minute, requests_per_unit: 0 } }
      - { key: mood, value: honest, rate_limit: { unit: minute, requests_per_unit: 3 } }
      - { key: mood, value: tried, rate_limit: { unit: minute, requests_per_unit: 3 }, shadow_mode: true }
  - key: from
    value: proxy
    descriptors:
      - { key: to, value: lenient, rate_limit: { replaces: [ { name: never } ], unit: minute, requests_per_unit: 2 } }
      - { key: to, value: known, rate_limit: { name: known, unit: minute, requests_per_unit: 2 } }
      - { key: to, value: other, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: open, rate_limit: { unlimited: true } }
  - { key: told, detailed_metric: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: server, value: one, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: server, value: two, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
",
];

/// `DOMAIN DESCRIPTOR [& DESCRIPTOR] xTIMES -> STATUS [& STATUS]`: every answer has these codes, the last one these limits, and what remains.
const AGREE: &[&str] = &[
    // A request that no limit fits.
    "unknown hello=world x1 -> ok",
    // One of a limit by the second.
    "plain fast=a x1 -> ok 50/Second 49",
    // A limit by the minute is used up.
    "slow minutely=a x1 -> ok 20/Minute 19",
    "slow minutely=a x19 -> ok 20/Minute 0",
    "slow minutely=a x5 -> over 20/Minute 0",
    // Two limits of one request, the second of which is used up. What remains of the first stays, as with
    // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT.
    "slow minutely=b & hourly=b x10 -> ok 20/Minute 10 & ok 10/Hour 0",
    "slow minutely=b & hourly=b x5 -> ok 20/Minute 10 & over 10/Hour 0",
    // Values that end with a star, each counted by itself.
    "starred single=docs/a x1 -> ok 10/Hour 9",
    "starred single=docs/b x1 -> ok 10/Hour 9",
    "starred single=other x20 -> ok",
    // A value that is spelt out beside those that are not.
    "nested team=a,mood=honest x3 -> ok 3/Minute 0",
    "nested team=a,mood=honest x2 -> over 3/Minute 0",
    // A limit in shadow mode.
    "nested team=a,mood=tried x3 -> ok 3/Minute 0",
    "nested team=a,mood=tried x3 -> ok 3/Minute 0",
    // One that has a metric for each value.
    "nested told=some x2 -> ok 2/Minute 0",
    "nested told=some x1 -> over 2/Minute 0",
    "nested open=any x50 -> ok",
    // A limit of nothing, alone and beside another.
    "nested team=b,page=never x1 -> over 0/Any 0",
    "nested team=b,page=never & from=proxy,to=other x1 -> over 0/Any 0 & ok 1/Minute 1",
    // Limits that another one could replace, without it.
    "nested team=c,page=single x1 -> ok 1/Minute 0",
    "nested team=c,page=single x1 -> over 1/Minute 0",
    "nested team=d,page=any & from=proxy,to=known x2 -> ok 3/Minute 1 & ok 2/Minute 0",
    "nested team=d,page=any & from=proxy,to=known x1 -> ok 3/Minute 1 & over 2/Minute 0",
];

/// The same with gate's answer, then ratelimit's, and the reason.
const DIFFER: &[(&str, &str, &str)] = &[
    (
        "slow minutely=b & hourly=b x1 -> ok 20/Minute 10 & over 10/Hour 0",
        "ok 20/Minute 4 & over 10/Hour 0",
        "a refused request uses up none of its limits; there it uses up all, unless STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT is set",
    ),
    (
        "starred shared=docs/a x10 -> ok 10/Hour 0",
        "ok 10/Hour 0",
        "the case begins like that of values that are counted alone",
    ),
    (
        "starred shared=docs/b x1 -> ok 10/Hour 9",
        "over 10/Hour 0",
        "share_threshold: each value has a bucket of its own",
    ),
    (
        "nested team=b,page=never & from=proxy,to=lenient x2 -> over 0/Any 0 & ok 2/Minute 2",
        "ok & ok 2/Minute 0",
        "replaces: a request is held to the limits of all of its descriptors",
    ),
    (
        "nested server=one & server=two x3 -> ok & ok",
        "ok & over",
        "quota_mode: the limit is left out, since it would refuse more than there",
    ),
];

const NOW: Nanos = Nanos::from_secs(1_000);

/// The answers of gate to such a line, in the line's own form.
fn answered(quotas: &Quotas, now: &mut Nanos, line: &str) -> String {
    let (request, expected) = line.split_once(" -> ").unwrap();
    let (asked, times) = request.rsplit_once(" x").unwrap();
    let (domain, descriptors) = asked.split_once(' ').unwrap();
    let entries = |text: &str| -> Vec<(String, String)> {
        let pairs = text.split(',').map(|entry| entry.split_once('=').unwrap());
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let of = |text: &str| {
        let entries = entries(text);
        descriptor(&entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect::<Vec<_>>())
    };
    let descriptors = descriptors.split(" & ").map(of).collect();
    let request = RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 1 };
    let codes: Vec<&str> = expected.split(" & ").map(|status| status.split(' ').next().unwrap()).collect();
    let mut last = String::new();
    for time in 0..times.parse().unwrap() {
        // Nothing of a whole request comes in meanwhile.
        *now = now.saturating_add(Nanos::from_micros(10));
        let response = quotas.decide(&request, *now).unwrap();
        let statuses = response.statuses.iter().zip(&codes).map(|(status, &code)| {
            let got = if status.code == Code::OverLimit as i32 { "over" } else { "ok" };
            assert_eq!(got, code, "{line}, after {time} times");
            let Some(limit) = &status.current_limit else { return got.to_owned() };
            let unit = Unit::try_from(limit.unit).unwrap();
            // Of nothing no unit is said.
            let unit = if limit.requests_per_unit == 0 { "Any".to_owned() } else { format!("{unit:?}") };
            format!("{got} {}/{unit} {}", limit.requests_per_unit, status.limit_remaining)
        });
        last = statuses.collect::<Vec<_>>().join(" & ");
    }
    last
}

fn quotas(by_calendar: bool) -> Quotas {
    let mut text = TEXT.to_owned();
    for configuration in CONFIGURATIONS {
        let imported = import_ratelimit("rl.yaml", configuration, by_calendar).unwrap();
        assert!(parse_limits("limits.toml", &imported.text).is_ok(), "{}", imported.text);
        text += &imported.text;
    }
    let quotas = quotas_of(&text);
    quotas.table.set_clock(WallClock { ahead_ns: 1_774_731_600_000_000_000 });
    quotas
}

#[test]
fn cases_of_ratelimit_agree_or_are_listed_with_a_reason() {
    for by_calendar in [false, true] {
        let quotas = quotas(by_calendar);
        let mut now = NOW;
        for line in AGREE {
            let (_, expected) = line.split_once(" -> ").unwrap();
            assert_eq!(answered(&quotas, &mut now, line), expected, "{line} (calendar: {by_calendar})");
        }
        for (line, _theirs, _reason) in DIFFER {
            let (_, expected) = line.split_once(" -> ").unwrap();
            assert_eq!(answered(&quotas, &mut now, line), expected, "{line} (calendar: {by_calendar})");
        }
    }
}

#[test]
fn the_time_until_a_window_ends_runs_down_as_there() {
    let request = RateLimitRequest {
        domain: "slow".to_owned(),
        descriptors: vec![descriptor(&[("daily", "a")])],
        hits_addend: 1,
    };
    let resets = |by_calendar| {
        let quotas = quotas(by_calendar);
        [NOW, NOW.saturating_add(Nanos::from_secs(2))].map(|now| {
            let response = quotas.decide(&request, now).unwrap();
            response.statuses[0].duration_until_reset.unwrap().seconds
        })
    };
    let [first, second] = resets(true);
    assert_eq!(first - second, 2);
    // A bucket that fills evenly is full later the more is taken out of it.
    let [first, second] = resets(false);
    assert!(second > first, "{first} {second}");
}

#[test]
fn limits_of_another_file_hold_after_a_reload() {
    let quotas = quotas(true);
    let mut now = NOW;
    assert_eq!(answered(&quotas, &mut now, "later block=a x1 -> ok"), "ok");
    let imported = import_ratelimit(
        "rl.yaml",
        "{ domain: later, descriptors: [ { key: fast, rate_limit: { unit: second, requests_per_unit: 50 } } ] }",
        true,
    );
    let rules = parse_limits("limits.toml", &imported.unwrap().text).unwrap().rules;
    quotas.table.set_rules(Arc::new(rules), NOW);
    assert_eq!(answered(&quotas, &mut now, "later fast=a x1 -> ok 50/Second 49"), "ok 50/Second 49");
}
