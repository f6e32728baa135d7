//! The buckets of hot keys at the interface: which keys have one.
//!
//! A key that XDP should limit gets a free place of its hash's set; the hottest come first. A key that has cooled keeps its
//! bucket while that is more than half spent, so that a key whose requests are refused is not let go for want of samples.
//! A place that is given up is given to another key a tick later, when no packet is judged by what it held.

use std::collections::HashSet;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::abi::KeyBuckets;
use gate_common::token_bucket::{Limits, Rate};

use crate::kernel::Maps;

/// Gives the buckets of the maps to `wanted` keys, each by its hash and with its limits, the hottest first. `forget`: none
/// keeps one that is not wanted. Returns the hashes of the keys that have a bucket.
pub(super) fn assign(maps: &Maps, wanted: &[(u64, Limits)], forget: bool) -> HashSet<u64> {
    let free: HashSet<usize> = (0..KeyBuckets::COUNT).filter(|&place| hash(maps, place) == 0).collect();
    for place in (0..KeyBuckets::COUNT).filter(|place| !free.contains(place)) {
        let present = (hash(maps, place), limits(maps, place));
        let is_known = wanted.iter().any(|(hash, _)| *hash == present.0);
        let keeps = wanted.contains(&present) || (!is_known && !forget && is_half_spent(maps, place));
        if !keeps {
            word(maps, offset_of!(KeyBuckets, hashes), place).store(0, Ordering::Release);
        }
    }
    for (key, limits) in wanted {
        let first = KeyBuckets::first_place(*key);
        let set = first..first + KeyBuckets::WAYS;
        let is_there = set.clone().any(|place| hash(maps, place) == *key);
        let mut places = set.filter(|place| free.contains(place) && hash(maps, *place) == 0);
        if let (false, Some(place)) = (is_there, places.next()) {
            give(maps, place, *key, limits);
        }
    }
    (0..KeyBuckets::COUNT).map(|place| hash(maps, place)).filter(|&hash| hash != 0).collect()
}

fn give(maps: &Maps, place: usize, key: u64, limits: &Limits) {
    let block = KeyBuckets::BLOCK as usize;
    maps.tables.store_at(block, offset_of!(KeyBuckets, rates) + 8 * place, &limits.rate);
    word(maps, offset_of!(KeyBuckets, bursts_ns), place).store(limits.burst_ns, Ordering::Relaxed);
    word(maps, offset_of!(KeyBuckets, tats), place).store(0, Ordering::Relaxed);
    word(maps, offset_of!(KeyBuckets, hashes), place).store(key, Ordering::Release);
}

fn hash(maps: &Maps, place: usize) -> u64 {
    word(maps, offset_of!(KeyBuckets, hashes), place).load(Ordering::Relaxed)
}

fn limits(maps: &Maps, place: usize) -> Limits {
    let block = KeyBuckets::BLOCK as usize;
    let rate: Rate = maps.tables.load_at(block, offset_of!(KeyBuckets, rates) + 8 * place);
    let burst_ns = word(maps, offset_of!(KeyBuckets, bursts_ns), place).load(Ordering::Relaxed);
    Limits { rate, burst_ns, max_debt_ns: 0 }
}

/// True if the bucket holds less than half of its burst.
fn is_half_spent(maps: &Maps, place: usize) -> bool {
    let tat = word(maps, offset_of!(KeyBuckets, tats), place).load(Ordering::Relaxed);
    tat.saturating_sub(maps.heartbeat().0) > limits(maps, place).burst_ns / 2
}

/// The word of one place of an array of [`KeyBuckets`].
fn word(maps: &Maps, array: usize, place: usize) -> &AtomicU64 {
    maps.tables.word(KeyBuckets::BLOCK as usize, array + 8 * place)
}

#[cfg(test)]
mod tests {
    use gate_common::units::Nanos;

    use super::*;

    const BURST_NS: u64 = 100_000_000;

    fn maps() -> Maps {
        let maps = Maps::small();
        maps.beat(Nanos::from_secs(1_000));
        maps
    }

    fn limited(per_sec: u64) -> Limits {
        Limits { max_debt_ns: 0, ..Limits::new(1_000 * per_sec, BURST_NS) }
    }

    fn spend(maps: &Maps) {
        let full = maps.heartbeat().0 + BURST_NS;
        (0..KeyBuckets::COUNT)
            .for_each(|place| word(maps, offset_of!(KeyBuckets, tats), place).store(full, Ordering::Relaxed));
    }

    #[test]
    fn a_cooled_key_keeps_its_bucket_while_that_is_half_spent() {
        let maps = maps();
        let key = KeyBuckets::hash(0, b"key");
        assert_eq!(assign(&maps, &[(key, limited(2_000))], false), HashSet::from([key]));
        spend(&maps);
        assert_eq!(assign(&maps, &[], false), HashSet::from([key]));
        maps.beat(Nanos(maps.heartbeat().0 + BURST_NS));
        assert_eq!(assign(&maps, &[], false), HashSet::new());
    }

    #[test]
    fn a_key_whose_limit_has_changed_gets_a_full_bucket() {
        let maps = maps();
        let key = KeyBuckets::hash(0, b"key");
        assign(&maps, &[(key, limited(2_000))], false);
        spend(&maps);
        assert_eq!(assign(&maps, &[(key, limited(500))], false), HashSet::from([key]));
        let place = (0..KeyBuckets::COUNT).find(|&place| hash(&maps, place) == key).unwrap();
        assert_eq!(limits(&maps, place), limited(500));
        assert!(!is_half_spent(&maps, place));
    }

    #[test]
    fn a_bucket_that_is_given_up_is_given_again_a_tick_later() {
        let maps = maps();
        let of_first_set = |from: u32| -> Vec<_> {
            let hashes = (from..).map(|n| KeyBuckets::hash(0, &n.to_le_bytes()));
            let first = hashes.filter(|hash| KeyBuckets::first_place(*hash) == 0);
            first.map(|hash| (hash, limited(2_000))).take(KeyBuckets::WAYS).collect()
        };
        let before = of_first_set(0);
        let after = of_first_set(1_000);
        assert_eq!(assign(&maps, &before, false).len(), KeyBuckets::WAYS);
        assert_eq!(assign(&maps, &after, false), HashSet::new());
        assert_eq!(assign(&maps, &after, false), after.iter().map(|(key, _)| *key).collect());
    }

    #[test]
    fn services_of_other_numbers_leave_no_bucket_behind() {
        let maps = maps();
        assign(&maps, &[(KeyBuckets::hash(0, b"key"), limited(2_000))], false);
        spend(&maps);
        assert_eq!(assign(&maps, &[], true), HashSet::new());
    }

    #[test]
    fn no_more_keys_have_buckets_than_there_are_and_the_hottest_do() {
        let maps = maps();
        let keys: Vec<_> =
            (0..1_000_u32).map(|n| (KeyBuckets::hash(0, &n.to_le_bytes()), limited(2_000))).collect();
        let given = assign(&maps, &keys, false);
        assert_eq!(given.len(), KeyBuckets::COUNT);
        assert!(keys[..4].iter().all(|(key, _)| given.contains(key)));
    }
}
