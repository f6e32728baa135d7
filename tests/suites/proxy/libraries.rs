//! The policies beside well-kept libraries that do the same job.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use datasketches::frequencies::{ErrorType, FrequentItemsSketch};
use gate_common::token_bucket::{Limits, Take, take};
use gate_userspace::policy::space_saving::SpaceSaving;
use gate_userspace::sim::rng::Rng;
use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use rand_distr::Zipf;

/// A million requests: the same answer to each, where the library's whole nanoseconds are exact and
/// the request is no dearer than the burst.
#[test]
fn the_token_bucket_decides_as_governor_does() {
    const REQUESTS: u64 = 250_000;
    for (per_sec, burst) in [(1_000, 100), (1, 1), (1_000_000_000, 5_000), (62_500, 7)] {
        let clock = FakeRelativeClock::default();
        let quota =
            Quota::per_second(NonZeroU32::new(per_sec).unwrap()).allow_burst(NonZeroU32::new(burst).unwrap());
        let theirs = RateLimiter::direct_with_clock(quota, clock.clone());
        let cell_ns = 1_000_000_000 / u64::from(per_sec);
        let ours = Limits::new(per_sec.into(), u64::from(burst) * cell_ns);

        let mut rng = Rng::new(1, 0);
        let mut now_ns = 0;
        let mut tat = 0;
        let mut admitted = 0;
        for request in 0..REQUESTS {
            // On average, half as much comes in as is asked for.
            let step_ns = rng.bits() % (u64::from(burst) * cell_ns / 2 + 1);
            clock.advance(Duration::from_nanos(step_ns));
            now_ns += step_ns;
            let cost = 1 + (rng.bits() % u64::from(burst)) as u32;
            let answer = take(tat, now_ns, cost, &ours);
            let expected = theirs.check_n(NonZeroU32::new(cost).unwrap()).expect("within the burst").is_ok();
            assert_eq!(matches!(answer, Take::Admit { .. }), expected, "request {request} at {per_sec}/s");
            if let Take::Admit { tat: next } = answer {
                (tat, admitted) = (next, admitted + 1);
            }
        }
        assert!((REQUESTS / 10..REQUESTS * 9 / 10).contains(&admitted), "{admitted} admitted: too tame");
    }
}

/// Both bound every weight from both sides, both bounds hold, and both find the heaviest.
#[test]
fn the_heavy_keys_are_those_that_datasketches_finds() {
    const COUNTERS: usize = 768;
    for (exponent, heaviest) in [(0.99, 1), (1.2, 1), (0.99, 20_000)] {
        let mut rng = Rng::new(1, 0);
        let zipf = Zipf::new(1e5, exponent).unwrap();
        let mut ours = SpaceSaving::new(COUNTERS, 1).unwrap();
        // A map of 1,024 keeps 768 keys.
        let mut theirs = FrequentItemsSketch::<Vec<u8>>::new(1_024).unwrap();
        let mut truth: HashMap<Vec<u8>, u64> = HashMap::new();
        for _ in 0..300_000 {
            let key = (rng.draw(&zipf) as u32).to_be_bytes();
            let weight = 1 + rng.bits() % heaviest;
            ours.update(0, &key, weight);
            theirs.update_with_count_ref(&key[..], weight);
            *truth.entry(key.to_vec()).or_default() += weight;
        }
        for (key, &weight) in &truth {
            let (least, most) = match ours.estimate(0, key) {
                Some(estimate) => (estimate.at_least(), estimate.count),
                None => (0, ours.floor()),
            };
            assert!((least..=most).contains(&weight));
            assert!((theirs.lower_bound(&key[..])..=theirs.upper_bound(&key[..])).contains(&weight));
        }
        assert_eq!(ours.total(), theirs.total_weight());

        let mut heaviest: Vec<_> = truth.iter().collect();
        heaviest.sort_unstable_by_key(|&(_, weight)| std::cmp::Reverse(weight));
        let found = ours.top(20);
        let rows = theirs.frequent_items(ErrorType::NoFalseNegatives);
        for (key, _) in &heaviest[..10] {
            assert!(found.iter().any(|entry| entry.key == key.as_slice()));
            assert!(rows.iter().any(|row| row.item() == *key));
        }
    }
}
