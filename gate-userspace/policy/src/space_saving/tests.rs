//! Every property run keeps exact counts beside the sketch.

use std::collections::HashMap;

use gate_common::units::Fraction;
use proptest::prelude::*;

use super::*;

type Update = (u32, Vec<u8>, u64);
type Exact = HashMap<(u32, Vec<u8>), u64>;

/// Few keys in two scopes, so that small sketches are full and keys come back; keys of all lengths.
fn update() -> impl Strategy<Value = Update> {
    let key = (0..40_u8, 0..3_usize).prop_map(|(key, long)| {
        let mut bytes = vec![b'k'; [0, 30, SpaceSaving::MAX_KEY - 1][long]];
        bytes.push(key / (1 + long as u8));
        bytes
    });
    (0..2_u32, key, prop_oneof![3 => 1..=1_u64, 1 => 1..=100_u64])
}

fn updates() -> impl Strategy<Value = Vec<Update>> {
    prop::collection::vec(update(), 0..400)
}

fn sketch(capacity: usize, updates: &[Update]) -> SpaceSaving {
    let mut sketch = SpaceSaving::new(capacity, 1).unwrap();
    for (scope, key, weight) in updates {
        sketch.update(*scope, key, *weight);
    }
    sketch
}

fn exact<'a>(updates: impl IntoIterator<Item = &'a Update>) -> Exact {
    let mut exact = Exact::new();
    for (scope, key, weight) in updates {
        *exact.entry((*scope, key.clone())).or_default() += weight;
    }
    exact
}

/// `true <= count <= true + error` for every counted key, and the floor above all others.
fn assert_bounds(sketch: &SpaceSaving, exact: &Exact) {
    for entry in sketch.iter() {
        let truth = exact.get(&(entry.scope, entry.key.to_vec())).copied().unwrap_or(0);
        let Estimate { count, error } = entry.weight;
        assert!(truth <= count && count <= truth + error, "{truth} {entry:?}");
        assert_eq!(sketch.estimate(entry.scope, entry.key), Some(entry.weight));
    }
    let floor = sketch.floor();
    for ((scope, key), &truth) in exact {
        assert!(sketch.estimate(*scope, key).is_some() || truth <= floor, "{truth} above the floor {floor}");
    }
}

/// Queue, index and counters say the same.
fn assert_whole(sketch: &SpaceSaving) {
    assert!(sketch.counters.len() <= sketch.capacity);
    sketch.queue.assert_whole(&sketch.counters.iter().map(|counter| counter.count).collect::<Vec<_>>());
    for (number, counter) in (0..).zip(&sketch.counters) {
        assert!(counter.error <= counter.count && counter.count > 0);
        assert_eq!(sketch.find(counter.hash, counter.scope, counter.key()), Some(number));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_estimate_exceeds_the_truth_by_at_most_its_error(
        capacity in 1..40_usize, updates in updates(),
    ) {
        let sketch = sketch(capacity, &updates);
        let exact = exact(&updates);
        assert_bounds(&sketch, &exact);
        assert_whole(&sketch);
        prop_assert_eq!(sketch.total(), exact.values().sum::<u64>());
        prop_assert_eq!(sketch.iter().map(|entry| entry.weight.count).sum::<u64>(), sketch.total());
        prop_assert!(sketch.floor() <= sketch.total() / capacity as u64);
    }

    #[test]
    fn with_a_counter_for_every_key_nothing_is_estimated(updates in updates()) {
        let sketch = sketch(1_000, &updates);
        let exact = exact(&updates);
        prop_assert_eq!(sketch.len(), exact.len());
        for entry in sketch.iter() {
            prop_assert_eq!(entry.weight, Estimate { count: exact[&(entry.scope, entry.key.to_vec())], error: 0 });
        }
    }

    #[test]
    fn merging_keeps_the_bounds_for_the_sum_of_the_streams(
        streams in prop::collection::vec((1..40_usize, updates()), 2..4), more in updates(),
    ) {
        let (capacity, first) = &streams[0];
        let mut merged = sketch(*capacity, first);
        for (capacity, updates) in &streams[1..] {
            let other = sketch(*capacity, updates);
            let floors = merged.floor() + other.floor();
            merged.merge(&other);
            assert_whole(&merged);
            // More if keys of both had to make room for each other.
            prop_assert!(merged.floor() >= floors);
        }
        for (scope, key, weight) in &more {
            merged.update(*scope, key, *weight);
        }
        let exact = exact(streams.iter().flat_map(|(_, updates)| updates).chain(&more));
        prop_assert_eq!(merged.total(), exact.values().sum::<u64>());
        assert_bounds(&merged, &exact);
        assert_whole(&merged);
    }

    #[test]
    fn a_merge_of_sketches_misses_no_more_than_one_sketch(
        capacity in 1..40_usize, left in updates(), right in updates(),
    ) {
        let mut merged = sketch(capacity, &left);
        merged.merge(&sketch(capacity, &right));
        for entry in merged.iter() {
            prop_assert!(entry.weight.error <= merged.total() / capacity as u64);
        }
    }

    #[test]
    fn decay_keeps_lower_bounds_exact_and_upper_ones_rounded(
        capacity in 1..40_usize, keep in 1..=1_u32 << 16, rounds in prop::collection::vec(updates(), 1..8),
    ) {
        let share = f64::from(keep) / 65_536.0;
        let mut sketch = SpaceSaving::new(capacity, 1).unwrap();
        let mut truth: HashMap<(u32, Vec<u8>), f64> = HashMap::new();
        let mut decays = 0.0;
        for updates in rounds {
            for (scope, key, weight) in updates {
                *truth.entry((scope, key.clone())).or_default() += weight as f64;
                sketch.update(scope, &key, weight);
            }
            sketch.decay(Fraction::from_steps(keep));
            truth.values_mut().for_each(|weight| *weight *= share);
            decays += 1.0;
            assert_whole(&sketch);
            for entry in sketch.iter() {
                let truth = truth.get(&(entry.scope, entry.key.to_vec())).copied().unwrap_or(0.0);
                prop_assert!(entry.weight.at_least() as f64 <= truth + 1e-6, "{truth} {entry:?}");
                prop_assert!(entry.weight.count as f64 + decays / 1_024.0 >= truth - 1e-6, "{truth} {entry:?}");
            }
        }
    }

    #[test]
    fn any_weight_is_safe(weights in prop::collection::vec((0..4_u8, any::<u64>()), 1..50), keep in 0..=1_u32 << 16) {
        let mut sketch = SpaceSaving::new(2, 1).unwrap();
        for (key, weight) in weights {
            sketch.update(0, &[key], weight);
            assert_whole(&sketch);
        }
        let other = sketch.clone();
        sketch.merge(&other);
        assert_whole(&sketch);
        sketch.decay(Fraction::from_steps(keep));
        assert_whole(&sketch);
    }
}

#[test]
fn impossible_capacities_are_refused() {
    for capacity in [0, SpaceSaving::MAX_CAPACITY + 1] {
        assert_eq!(SpaceSaving::new(capacity, 1).unwrap_err().field, "capacity");
    }
}

#[test]
fn equal_keys_of_two_scopes_are_two_keys() {
    let sketch = sketch(4, &[(1, b"a".to_vec(), 2), (2, b"a".to_vec(), 3), (1, b"a".to_vec(), 4)]);
    assert_eq!(sketch.estimate(1, b"a"), Some(Estimate { count: 6, error: 0 }));
    assert_eq!(sketch.estimate(2, b"a"), Some(Estimate { count: 3, error: 0 }));
    assert_eq!(sketch.estimate(3, b"a"), None);
}

#[test]
fn a_key_that_is_too_long_and_a_weight_of_zero_change_nothing() {
    let mut sketch = sketch(1, &[(0, b"a".to_vec(), 5)]);
    sketch.update(0, &[0; SpaceSaving::MAX_KEY + 1], 100);
    sketch.update(0, b"b", 0);
    assert_eq!((sketch.total(), sketch.estimate(0, b"a")), (5, Some(Estimate { count: 5, error: 0 })));
}

#[test]
fn the_top_is_sorted_and_the_same_whatever_the_seed() {
    let updates: Vec<Update> = (0..50).map(|key| (0, vec![key], u64::from(key % 5) + 1)).collect();
    let tops = [1, 2].map(|seed| {
        let mut sketch = SpaceSaving::new(100, seed).unwrap();
        for (scope, key, weight) in &updates {
            sketch.update(*scope, key, *weight);
        }
        sketch.top(12).iter().map(|entry| (entry.weight.count, entry.key.to_vec())).collect::<Vec<_>>()
    });
    let expected: Vec<_> = [(5, 4), (4, 3)]
        .iter()
        .flat_map(|&(count, first)| (0..10).map(move |nth| (count, vec![first + 5 * nth])))
        .collect();
    assert_eq!(tops[0], expected[..12]);
    assert_eq!(tops[0], tops[1]);
}

#[test]
fn a_cooled_key_leaves_and_a_hot_one_stays() {
    let mut sketch = SpaceSaving::new(10, 1).unwrap();
    let keep = Fraction::of(9, 10);
    sketch.update(0, b"viral once", 10_000);
    for _ in 0..200 {
        sketch.update(0, b"always", 100);
        sketch.decay(keep);
    }
    assert_eq!(sketch.estimate(0, b"viral once"), None);
    // 100 a round, a tenth lost each: 900 in the long run.
    let count = sketch.estimate(0, b"always").unwrap().count;
    assert!((899..=900).contains(&count), "{count}");
}

#[test]
fn memory_is_under_two_megabytes_at_a_thousand_counters() {
    let mut sketch = SpaceSaving::new(1_000, 1).unwrap();
    let before = sketch.memory_bytes();
    let counters = sketch.counters.capacity();
    assert!(before < 500_000, "{before}");
    for key in 0..10_000_u32 {
        sketch.update(0, &key.to_be_bytes(), 1);
    }
    let other = sketch.clone();
    sketch.merge(&other);
    sketch.clear();
    assert_eq!((sketch.memory_bytes(), sketch.counters.capacity()), (before, counters));
    assert_eq!((sketch.len(), sketch.total(), sketch.floor()), (0, 0, 0));
}

/// A sketch with shares, in which a steady tenant asks for ten keys a hundred times each.
fn steady(capacity: usize) -> SpaceSaving {
    let mut sketch = SpaceSaving::with_shares(capacity, 1).unwrap();
    for _ in 0..100 {
        (0..10_u8).for_each(|key| sketch.update_from(1, 0, &[key], 1));
    }
    sketch
}

#[test]
fn a_flood_of_keys_displaces_its_tenants_own_alone() {
    for service in [0, 1] {
        let mut sketch = steady(64);
        (0..100_000_u32).for_each(|key| sketch.update_from(2, service, &(key % 1_000).to_be_bytes(), 64));
        for key in 0..10_u8 {
            assert_eq!(
                sketch.estimate(0, &[key]),
                Some(Estimate { count: 100, error: 0 }),
                "{service} {key}"
            );
        }
        assert_whole(&sketch);
    }
}

#[test]
fn a_single_tenant_has_every_counter_and_every_rank() {
    let mut sketch = SpaceSaving::with_shares(64, 1).unwrap();
    (0..1_000_u32).for_each(|key| sketch.update_from(2, 0, &key.to_be_bytes(), 1));
    assert_eq!((sketch.len(), sketch.fair_top(32).len()), (64, 32));
}

#[test]
fn a_tenant_takes_a_quarter_of_the_top_ranks() {
    let mut sketch = steady(128);
    (0..40_u32).for_each(|key| sketch.update_from(2, 0, &key.to_be_bytes(), 1_000));
    let top = sketch.fair_top(16);
    assert_eq!(top.iter().filter(|entry| entry.tenant == 1).count(), 4);
    assert!(top.is_sorted_by_key(|entry| Reverse(entry.weight.count)));
    let wide = sketch.fair_top(40);
    assert_eq!(wide.iter().filter(|entry| entry.tenant == 1).count(), 10);
}

#[test]
fn a_key_is_the_tenants_that_asks_for_it_most() {
    let mut sketch = SpaceSaving::with_shares(8, 1).unwrap();
    for (tenant, weight, owner) in [(2, 1, 2), (1, 1, 2), (1, 3, 1), (2, 3, 1), (2, 1, 2)] {
        sketch.update_from(tenant, 0, b"key", weight);
        assert_eq!(sketch.iter().next().unwrap().tenant, owner, "{tenant} {weight}");
    }
    assert_whole(&sketch);
}

proptest! {
    #[test]
    fn with_shares_no_key_weighs_more_for_certain_than_it_does(
        updates in updates(), tenants in 1..5_u32, keep in 0..=1_u32,
    ) {
        let mut sketch = SpaceSaving::with_shares(8, 1).unwrap();
        let mut truth = Exact::new();
        for (nth, (scope, key, weight)) in updates.iter().enumerate() {
            sketch.update_from(nth as u32 % tenants, *scope, key, *weight);
            *truth.entry((*scope, key.clone())).or_default() += weight;
            if keep == 1 && nth % 50 == 49 {
                sketch.decay(Fraction::from_steps(60_000));
            }
            assert_whole(&sketch);
        }
        for entry in sketch.iter() {
            prop_assert!(entry.weight.at_least() <= truth[&(entry.scope, entry.key.to_vec())]);
        }
        prop_assert_eq!(sketch.fair_top(4).len(), sketch.len().min(4));
    }
}
