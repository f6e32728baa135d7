use std::collections::HashMap;

use gate_common::abi::Reason;
use gate_common::token_bucket::{Limits, Take, take};
use gate_common::units::{MilliRu, NANOS_PER_SEC};

use super::super::bucket_word::attempt;
use super::*;

/// Ten request units a second, and a burst of ten.
const TEN: Limits = Limits::new(10_000, NANOS_PER_SEC);
const START: Nanos = Nanos::from_secs(100);

/// Charges a member so many request units.
fn charge(member: &Member, ru: u32, now: Nanos) -> bool {
    attempt(member.word(), now, MilliRu(ru * 1_000), &TEN).is_ok()
}

fn key(number: u64) -> Vec<u8> {
    format!("value-{number}").into_bytes()
}

#[test]
fn a_flood_of_values_neither_grows_nor_forgets_a_debt() {
    let members = Members::new(256 << 10);
    let debtor = members.take(b"debtor", START).unwrap();
    assert!(charge(&debtor, 30, START));
    drop(debtor);
    let mut kept = 0;
    for number in 0..100_000 {
        let member = members.take(&key(number), START);
        kept += usize::from(member.is_some());
        member.iter().for_each(|member| assert!(charge(member, 10, START)));
    }
    let totals = members.totals();
    assert!(totals.bytes <= 256 << 10 && kept > 500, "{totals:?}");
    assert_eq!((totals.members, totals.evictions), (kept + 1, 0), "nobody is full");
    assert_eq!(totals.without_room, 100_000 - kept as u64);
    let debtor = members.peek(b"debtor").unwrap();
    assert!(!charge(&debtor, 1, START.saturating_add(Nanos::from_secs(2))));
    // The others have paid, and make room for as many.
    let later = START.saturating_add(Nanos::from_millis(1_500));
    assert!((200_000..200_400).all(|number| members.take(&key(number), later).is_some()));
    assert!(members.peek(b"debtor").is_some());
}

#[test]
fn whoever_has_been_full_for_longest_goes_first() {
    let members = Members::with_shards(1 << 10, 1);
    let names: Vec<_> = (0..100).map(key).take_while(|name| members.take(name, START).is_some()).collect();
    let names = &names[..members.totals().members.min(names.len())];
    // All but the third are used, and full again a second later.
    let later = START.saturating_add(Nanos::from_secs(10));
    let first = members.totals().evictions;
    assert!(first > 0, "more came than there is room for");
    let kept: Vec<_> = (0..100).map(key).filter(|name| members.peek(name).is_some()).collect();
    for name in kept.iter().filter(|name| **name != kept[2]) {
        assert!(charge(&members.take(name, later).unwrap(), 5, later));
    }
    let last = later.saturating_add(Nanos::from_secs(10));
    assert!(members.take(b"new", last).is_some());
    let gone: Vec<_> = kept.iter().filter(|name| members.peek(name).is_none()).collect();
    assert_eq!(gone, [&kept[2]], "{names:?}");
}

#[test]
fn a_member_that_is_referred_to_stays() {
    let members = Members::with_shards(1 << 10, 1);
    let held = members.take(b"held", START).unwrap();
    for number in 0..1_000 {
        let now = START.saturating_add(Nanos::from_secs(number));
        assert!(members.take(&key(number), now).is_some());
    }
    assert!(charge(&held, 10, Nanos::from_secs(10_000)));
    let again = members.take(b"held", Nanos::from_secs(10_000)).unwrap();
    assert!(Arc::ptr_eq(&held, &again) && !charge(&again, 1, Nanos::from_secs(10_000)));
    members.set_memory(0);
    assert!(members.take(b"other", Nanos::from_secs(20_000)).is_none());
    assert_eq!(members.totals().members, 1, "all but that one have gone for less memory");
}

#[test]
fn threads_take_from_one_bucket() {
    let members = Members::new(1 << 20);
    let passed: usize = std::thread::scope(|scope| {
        let take = || (0..1_000).filter(|_| charge(&members.take(b"one", START).unwrap(), 1, START)).count();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!((1..=10).contains(&passed), "{passed}");
    assert_eq!(members.totals().members, 1);
}

/// A step of a generator of numbers that depend on nothing else.
fn draw(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// The names in a history.
const KEYS: [&[u8]; 12] = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i", b"j", b"k", b"l"];

/// A history beside one map of buckets without bounds: whoever has a bucket gets the same answers from both; whoever has none
/// finds none that could have gone; what is owed is kept; and the memory is.
fn history(start: u64) -> MemberTotals {
    let seed = &mut start.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let memory = 600 + draw(seed, 1_000) as usize;
    let members = Members::with_shards(memory, 1);
    let mut model: HashMap<u64, u64> = HashMap::new();
    let mut held: HashMap<u64, Arc<Member>> = HashMap::new();
    let mut released: HashMap<u64, Nanos> = HashMap::new();
    let mut now = START;
    for _ in 0..20 {
        now = now.saturating_add(Nanos::from_millis(draw(seed, 400)));
        let value = draw(seed, 12);
        if draw(seed, 8) == 0 {
            held.remove(&value).iter().for_each(|_| _ = released.insert(value, now));
        }
        let Some(member) = members.take(KEYS[value as usize], now) else {
            let may_go = |value: &u64| {
                let has_bucket = members.peek(KEYS[*value as usize]).is_some();
                // One that was referred to is looked at again a second later.
                let since =
                    released.get(value).map_or(Nanos::ZERO, |at| at.saturating_add(Nanos::from_secs(1)));
                let is_held = held.contains_key(value) || now < since;
                has_bucket && !is_held && model.get(value).is_none_or(|tat| *tat <= now.0)
            };
            assert!(!(0..12).any(|value| may_go(&value)), "{start}: a full one stays");
            continue;
        };
        let cost = draw(seed, 16) as u32 * 1_000;
        let expected = take(model.get(&value).copied().unwrap_or(0), now.0, cost, &TEN);
        let found = attempt(member.word(), now, MilliRu(cost), &TEN);
        match expected {
            Take::Admit { tat } => {
                assert_eq!(found, Ok(()), "{start}");
                model.insert(value, tat);
            }
            Take::Refuse { wait_ns } => {
                let refusal = found.unwrap_err();
                assert_eq!((refusal.reason, refusal.retry_after), (Reason::Quota, Nanos(wait_ns)), "{start}");
            }
            Take::TooLarge => assert_eq!(found.unwrap_err().reason, Reason::TooLarge, "{start}"),
        }
        if draw(seed, 6) == 0 {
            held.insert(value, member);
        }
        assert!(members.totals().bytes <= memory, "{start}");
    }
    for (value, tat) in model.iter().filter(|(_, tat)| **tat > now.0) {
        let kept = members.peek(KEYS[*value as usize]).map(|member| member.word().load(Ordering::Relaxed));
        assert_eq!(kept, Some(*tat), "{start}: a debt is forgotten");
    }
    members.totals()
}

#[test]
fn histories_are_those_of_a_map_without_bounds() {
    let mut sums = (0, 0);
    for seed in 0..100_000 {
        let totals = history(seed);
        sums.0 += totals.evictions;
        sums.1 += totals.without_room;
    }
    assert!(sums.0 > 50_000 && sums.1 > 50_000, "both kinds of want: {sums:?}");
}

#[test]
fn the_emptiest_are_found_among_many() {
    const MEMBERS: u32 = 20_000;
    let members = Members::new(16 << 20);
    for number in 0..MEMBERS {
        let member = members.take(&key(u64::from(number)), START).unwrap();
        // From full buckets to all of the burst, in no order.
        let spent = u64::from(number) * 7_919 % u64::from(MEMBERS);
        member.word().store(START.0 + spent * 1_000, Ordering::Relaxed);
    }
    let found = members.emptiest(300);
    let times: Vec<_> = found.iter().map(|(full_at, _)| (full_at.0 - START.0) / 1_000).collect();
    assert_eq!(times, (u64::from(MEMBERS) - 300..u64::from(MEMBERS)).rev().collect::<Vec<_>>());
    assert!(found.iter().all(|(full_at, member)| member.word().load(Ordering::Relaxed) == full_at.0));
    assert_eq!(members.emptiest(2 * MEMBERS as usize).len(), MEMBERS as usize);
    assert!(Members::new(1 << 20).emptiest(3).is_empty());
}
