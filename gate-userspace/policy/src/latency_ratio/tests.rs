use proptest::prelude::*;

use super::*;

const TICK: Nanos = Nanos::from_millis(100);

/// Two query types, and a clock.
struct Store {
    ratio: LatencyRatio,
    now: Nanos,
}

impl Store {
    fn new() -> Self {
        Self { ratio: LatencyRatio::new(2, Settings::default(), Nanos::ZERO).unwrap(), now: Nanos::ZERO }
    }

    /// `ticks` ticks with `requests` of each type per tick, taking `micros`: the last ratio.
    fn run(&mut self, ticks: u64, requests: [u64; 2], micros: [u64; 2], overloaded: bool) -> Option<f64> {
        let mut last = None;
        for _ in 0..ticks {
            for query_type in 0..2 {
                for nth in 0..requests[query_type] {
                    // From 90% to 110% of the given latency.
                    let latency = micros[query_type] * (900 + nth * 200 / requests[query_type]);
                    self.ratio.latencies().record(query_type, Nanos(latency));
                }
            }
            self.now = self.now.saturating_add(TICK);
            last = self.ratio.tick(self.now, overloaded);
        }
        last
    }
}

fn assert_near(ratio: Option<f64>, expected: f64) {
    let ratio = ratio.expect("a signal");
    assert!((ratio - expected).abs() < 0.03, "{ratio}, not {expected}");
}

#[test]
fn the_ratio_is_one_when_healthy_and_falls_as_latency_climbs() {
    let mut store = Store::new();
    assert_near(store.run(600, [50, 50], [2_000, 8_000], false), 1.0);
    assert_near(store.run(10, [50, 50], [4_000, 16_000], true), 0.5);
    assert_near(store.run(10, [50, 50], [20_000, 80_000], true), 0.1);
    assert_near(store.run(10, [50, 50], [2_000, 8_000], true), 1.0);
    assert_near(store.run(10, [50, 50], [200, 8_000], true), 1.0);
}

#[test]
fn a_climb_is_seen_in_two_ticks_and_gone_with_the_window() {
    let mut store = Store::new();
    store.run(600, [50, 50], [2_000, 2_000], false);
    assert!(store.run(2, [50, 50], [20_000, 20_000], true).unwrap() < 0.2);
    store.run(50, [50, 50], [20_000, 20_000], true);
    assert!(store.run(10, [50, 50], [2_000, 2_000], true).unwrap() > 0.9);
}

#[test]
fn a_mix_with_more_slow_queries_is_no_overload() {
    let mut store = Store::new();
    store.run(600, [90, 10], [2_000, 50_000], false);
    for share in 1..=9 {
        assert_near(store.run(10, [90 - 10 * share, 10 + 10 * share], [2_000, 50_000], false), 1.0);
    }
}

#[test]
fn types_count_by_their_requests() {
    let mut store = Store::new();
    store.run(600, [90, 30], [2_000, 2_000], false);
    // A quarter of the requests are at 0.2.
    assert_near(store.run(10, [90, 30], [2_000, 10_000], true), 0.8);
    assert_near(store.ratio.of_type(0), 1.0);
    assert_near(store.ratio.of_type(1), 0.2);
    assert!(store.ratio.recent_p95(1).unwrap() > Nanos::from_millis(10));
}

#[test]
fn a_tiny_latency_is_nobodys_problem() {
    let mut store = Store::new();
    store.run(600, [50, 50], [50, 50], false);
    assert_eq!(store.run(10, [50, 50], [200, 800], false), None);
    assert!(store.run(10, [50, 50], [200, 2_000], true).unwrap() < 0.2);
}

#[test]
fn few_samples_say_nothing() {
    let mut store = Store::new();
    assert_eq!(store.run(1, [49, 49], [2_000, 2_000], false), None);
    store.run(600, [50, 50], [2_000, 2_000], false);
    // At most 99 in any second.
    assert_eq!(store.run(20, [9, 9], [90_000, 90_000], false), None);
}

#[test]
fn an_overload_is_not_learned_until_it_has_lasted() {
    let mut store = Store::new();
    store.run(600, [50, 50], [2_000, 2_000], false);
    assert_near(store.run(3_000, [50, 50], [8_000, 8_000], true), 0.25);
    // After five minutes, what was before is forgotten.
    assert_eq!(store.run(1, [50, 50], [8_000, 8_000], true), None);
    assert_near(store.run(1, [50, 50], [8_000, 8_000], true), 1.0);
    store.run(300, [50, 50], [8_000, 8_000], false);
    assert_near(store.run(10, [50, 50], [16_000, 16_000], true), 0.5);
}

#[test]
fn a_pause_empties_the_short_window() {
    let mut store = Store::new();
    store.run(600, [50, 50], [2_000, 2_000], false);
    store.now = store.now.saturating_add(Nanos::from_secs(5));
    assert_eq!(store.run(1, [50, 50], [9_000, 9_000], true), None);
}

#[test]
fn impossible_parameters_are_refused() {
    let good = Settings::default();
    for (types, settings, field) in [
        (0, good, "types"),
        (257, good, "types"),
        (1, Settings { short: Nanos::ZERO, ..good }, "short"),
        (1, Settings { long: good.short, ..good }, "long"),
        (1, Settings { long: Nanos::MAX, ..good }, "long"),
        (1, Settings { min_samples: 0, ..good }, "min_samples"),
    ] {
        assert_eq!(LatencyRatio::new(types, settings, Nanos::ZERO).unwrap_err().field, field);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_input_is_safe_and_gives_a_ratio_from_zero_to_one(
        min_samples in 1..5_u64,
        ticks in prop::collection::vec((any::<u64>(), any::<bool>(), prop::collection::vec(any::<u64>(), 0..10)), 1..30),
    ) {
        let settings = Settings { min_samples, ..Settings::default() };
        let mut ratio = LatencyRatio::new(1, settings, Nanos::ZERO).unwrap();
        for (now, overloaded, latencies) in ticks {
            latencies.into_iter().for_each(|latency| ratio.latencies().record(0, Nanos(latency)));
            if let Some(ratio) = ratio.tick(Nanos(now), overloaded) {
                prop_assert!((0.0..=1.0).contains(&ratio));
            }
        }
    }
}
