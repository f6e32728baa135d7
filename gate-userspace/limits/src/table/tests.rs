mod calendar;

use std::collections::HashMap;

use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};
use proptest::prelude::*;

use super::super::{Pattern, Rule};
use super::*;

/// Ten request units a second, and a burst of ten.
const TEN: Limits = Limits::new(10_000, NANOS_PER_SEC);
const MEMORY: usize = 1 << 20;

fn rules(limits: &[(&str, Limits)]) -> Arc<Rules> {
    let mut rules = Rules::default();
    for &(pattern, limits) in limits {
        rules.add(Rule::new(Pattern::parse(pattern).unwrap(), limits)).unwrap();
    }
    Arc::new(rules)
}

fn table(limits: &[(&str, Limits)], memory: usize) -> Table {
    Table::new(rules(limits), memory, true)
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn one(table: &Table, text: &str, ru: u32, now: Nanos) -> Charged {
    let name = name(text);
    // Of nothing, whether one would pass.
    let cost = MilliRu(ru.max(1) * 1_000);
    table.charge(&[Charge { name: &name, cost, is_question: ru == 0, limits: None }], now)[0]
}

fn remaining(table: &Table, text: &str, now: Nanos) -> Option<u64> {
    table.standing(&name(text), now).map(|standing| standing.remaining)
}

fn changes(table: &Table, now: Nanos) -> HashMap<String, Counts> {
    let mut changes = HashMap::new();
    table.take_changes(now, |change| {
        assert!(changes.insert(change.name.to_string(), change.counts).is_none());
    });
    changes
}

#[test]
fn a_name_is_limited_by_its_rule_and_others_pass() {
    let table = table(&[("acme", TEN), ("shop/user=*", TEN)], MEMORY);
    let now = Nanos::from_secs(100);
    let half = Standing { limits: TEN, remaining: 6_000, reset: Nanos::from_millis(400) };
    assert_eq!(one(&table, "acme", 4, now), Charged::Within(half));
    assert_eq!(one(&table, "acme", 7, now), Charged::Refused(half, Refusal::Until(Nanos::from_millis(100))));
    assert_eq!(one(&table, "acme", 31, now), Charged::Refused(half, Refusal::TooLarge));
    assert_eq!(one(&table, "acme", 0, now), Charged::Within(half));
    assert_eq!(one(&table, "shop/user=alice", 4, now), Charged::Within(half));
    assert_eq!(one(&table, "shop/user=bob", 4, now), Charged::Within(half));
    assert_eq!(one(&table, "shop", 1_000, now), Charged::Unlimited);
    assert_eq!(table.totals().names, 3);
}

#[test]
fn all_names_are_charged_or_none() {
    let table = table(&[("a", TEN), ("b", TEN), ("c", TEN)], MEMORY);
    let now = Nanos::from_secs(100);
    let _ = one(&table, "b", 8, now);
    let _ = changes(&table, now);
    let names = ["a", "b", "c", "unknown"].map(name);
    let charges =
        names.each_ref().map(|name| Charge { name, cost: MilliRu(3_000), is_question: false, limits: None });
    let [a, b, c, unknown] = table.charge(&charges, now)[..] else { panic!() };
    assert!(matches!(a, Charged::Within(Standing { remaining: 10_000, .. })), "{a:?}");
    assert!(matches!(b, Charged::Refused(Standing { remaining: 2_000, .. }, _)), "{b:?}");
    assert!(matches!(c, Charged::Within(Standing { remaining: 10_000, .. })), "{c:?}");
    assert_eq!(unknown, Charged::Unlimited);
    let refused = Counts { refused: 3_000, ..Counts::default() };
    assert_eq!(changes(&table, now), HashMap::from([("b".to_owned(), refused)]));
    let later = now.saturating_add(Nanos::from_millis(100));
    assert!(table.charge(&charges, later).iter().all(|charged| !matches!(charged, Charged::Refused(..))));
    assert_eq!(
        ["a", "b", "c"].map(|name| remaining(&table, name, later)),
        [Some(7_000), Some(0), Some(7_000)]
    );
}

#[test]
fn a_rule_in_shadow_refuses_nothing_and_takes_what_it_holds() {
    let mut rules = Rules::default();
    for (pattern, is_shadow) in [("a", true), ("b", false)] {
        rules.add(Rule { is_shadow, ..Rule::new(Pattern::parse(pattern).unwrap(), TEN) }).unwrap();
    }
    let table = Table::new(Arc::new(rules.clone()), MEMORY, true);
    let now = Nanos::from_secs(100);
    let both = |cost| {
        let names = ["a", "b"].map(name);
        let charges = names.each_ref().map(|name| Charge { name, cost, is_question: false, limits: None });
        let [a, b] = table.charge(&charges, now)[..] else { panic!() };
        (a, b)
    };
    assert!(matches!(one(&table, "a", 8, now), Charged::Within(_)));
    // What it does not hold passes, is not taken, and keeps nothing from the other name.
    let (a, b) = both(MilliRu(3_000));
    assert!(matches!(a, Charged::Shadowed(Standing { remaining: 2_000, .. })), "{a:?}");
    assert!(matches!(b, Charged::Within(Standing { remaining: 7_000, .. })), "{b:?}");
    // The other one's refusal still counts for both.
    let (a, b) = both(MilliRu(8_000));
    assert!(matches!((a, b), (Charged::Shadowed(_), Charged::Refused(..))), "{a:?} {b:?}");
    assert_eq!(["a", "b"].map(|name| remaining(&table, name, now)), [Some(2_000), Some(7_000)]);
    let a = Counts { used: 8_000, refused: 11_000, ..Counts::default() };
    let b = Counts { used: 3_000, refused: 8_000, ..Counts::default() };
    assert_eq!(changes(&table, now), HashMap::from([("a".to_owned(), a), ("b".to_owned(), b)]));
    // A rule that leaves shadow mode refuses at once, by what has been taken.
    let mut enforced = Rules::default();
    rules.list().iter().for_each(|rule| enforced.add(Rule { is_shadow: false, ..rule.clone() }).unwrap());
    table.set_rules(Arc::new(enforced), now);
    assert!(matches!(one(&table, "a", 3, now), Charged::Refused(..)));
}

#[test]
fn counts_are_of_what_changed_since_they_were_read() {
    let table = table(&[("a", TEN), ("shop/user=*", TEN)], MEMORY);
    let now = Nanos::from_secs(100);
    let _ = one(&table, "a", 2, now);
    let _ = one(&table, "a", 20, now);
    let _ = one(&table, "shop/user=x", 3, now);
    table.give_back(&name("a"), MilliRu(500), now);
    let a = Counts { used: 2_000, returned: 500, refused: 20_000 };
    let x = Counts { used: 3_000, ..Counts::default() };
    assert_eq!(changes(&table, now), HashMap::from([("a".to_owned(), a), ("shop/user=x".to_owned(), x)]));
    assert!(changes(&table, now).is_empty());
    let _ = one(&table, "a", 0, now);
    assert!(changes(&table, now).is_empty(), "a question changes nothing");
    table.settle(&name("a"), MilliRu(1_000), now);
    assert_eq!(changes(&table, now)["a"].used, 1_000);
    assert_eq!(remaining(&table, "a", now), Some(7_500));
}

#[test]
fn a_share_keeps_what_was_taken_and_refuses_until_its_time() {
    let table = table(&[("a", TEN)], MEMORY);
    let now = Nanos::from_secs(100);
    let _ = one(&table, "a", 5, now);
    let limits = Limits::new(1_000, 10 * NANOS_PER_SEC);
    assert!(table.set_share(&name("a"), Share { limits, reject_until: Nanos::from_secs(101) }, now));
    assert!(!table.set_share(&name("b"), Share { limits, reject_until: Nanos::ZERO }, now));
    let wait = Refusal::Until(Nanos::from_secs(1));
    assert!(
        matches!(one(&table, "a", 1, now), Charged::Refused(Standing { remaining: 0, .. }, refusal) if refusal == wait)
    );
    assert_eq!(remaining(&table, "a", Nanos::from_secs(101)), Some(6_000));
    assert!(matches!(one(&table, "a", 6, Nanos::from_secs(101)), Charged::Within(_)));
}

#[test]
fn other_rules_keep_debts_and_drop_names_without_one() {
    let table = table(&[("a", TEN), ("b", TEN), ("shop/user=*", TEN)], MEMORY);
    let now = Nanos::from_secs(100);
    for text in ["a", "b", "shop/user=x"] {
        let _ = one(&table, text, 8, now);
    }
    let twice = Limits::new(20_000, NANOS_PER_SEC);
    table.set_rules(rules(&[("a", twice), ("shop/user=x", TEN), ("new", TEN)]), now);
    let found = ["a", "b", "shop/user=x", "new"].map(|name| remaining(&table, name, now));
    assert_eq!(found, [Some(12_000), None, Some(2_000), Some(10_000)]);
    assert_eq!(changes(&table, now).len(), 2, "those that are left");
    assert_eq!(one(&table, "b", 100, now), Charged::Unlimited);
}

#[test]
fn only_idle_and_full_buckets_go_and_what_has_no_room_passes() {
    let table = table(&[("a", TEN), ("shop/user=*", TEN)], 256 << 10);
    let now = Nanos::from_secs(100);
    let user = |i: usize| format!("shop/user={i}");
    let tracked: Vec<bool> =
        (0..5_000).map(|i| matches!(one(&table, &user(i), 10, now), Charged::Within(_))).collect();
    let totals = table.totals();
    assert!(totals.bytes <= 256 << 10 && totals.names > 200, "{totals:?}");
    assert_eq!(totals.untracked as usize, tracked.iter().filter(|tracked| !*tracked).count());
    assert_eq!(totals.evictions, 0);
    // Whoever has a bucket is limited, whatever comes after.
    for (i, tracked) in tracked.iter().enumerate() {
        assert_eq!(matches!(one(&table, &user(i), 1, now), Charged::Refused(..)), *tracked, "{i}");
    }
    // Full, but not read: still there.
    let later = Nanos::from_secs(200);
    let _ = one(&table, &user(9_999), 1, later);
    assert_eq!(table.totals().evictions, 0);
    let _ = changes(&table, later);
    for i in 10_000..12_000 {
        assert!(matches!(one(&table, &user(i), 0, later), Charged::Within(_)), "{i}");
    }
    assert!(table.totals().bytes <= 256 << 10);
    assert!(remaining(&table, "a", later).is_some(), "a rule for one name keeps its place");
}

#[test]
fn a_request_can_bring_a_limit_that_lowers_its_own_only() {
    let table = table(&[("a", TEN)], MEMORY);
    let now = Nanos::from_secs(100);
    let named = name("a");
    let lowered = named.with_override("2/SECOND");
    let both = [
        Charge { name: &named, cost: MilliRu(1_000), is_question: false, limits: None },
        Charge {
            name: &lowered,
            cost: MilliRu(1_000),
            is_question: false,
            limits: Some(Limits::new(2_000, NANOS_PER_SEC)),
        },
    ];
    let passed = (0..5).filter(|_| table.charge(&both, now).iter().all(|c| matches!(c, Charged::Within(_))));
    assert_eq!(passed.count(), 2);
    assert_eq!(remaining(&table, "a", now), Some(8_000), "the refused were charged to none");
    assert_eq!(changes(&table, now).keys().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn threads_never_admit_more_than_the_burst() {
    let table = table(&[("a", TEN), ("b", TEN)], MEMORY);
    let now = Nanos::from_secs(100);
    let names = ["a", "b"].map(name);
    let passed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let order = if i % 2 == 0 { [0, 1] } else { [1, 0] };
                let charges = order.map(|i| Charge {
                    name: &names[i],
                    cost: MilliRu(1_000),
                    is_question: false,
                    limits: None,
                });
                let table = &table;
                scope.spawn(move || {
                    let all = |_: &usize| {
                        table.charge(&charges, now).iter().all(|c| matches!(c, Charged::Within(_)))
                    };
                    (0..1_000).filter(all).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(passed <= 10, "{passed}");
    let used = changes(&table, now);
    assert_eq!((used["a"].used, used["b"].used), (passed as u64 * 1_000, passed as u64 * 1_000));
    let left = 10_000 - passed as u64 * 1_000;
    assert_eq!(["a", "b"].map(|name| remaining(&table, name, now)), [Some(left), Some(left)]);
}

proptest! {
    /// Whatever names come in whatever order, with however little memory: no name is refused that a table with room for
    /// all would admit, and one with a bucket gets no more than its limits allow.
    #[test]
    fn small_memory_refuses_no_more_and_evictions_change_no_answer(
        steps in proptest::collection::vec((0..40_u32, 0..12_u32, 0..300_u64, any::<bool>()), 1..400),
    ) {
        let limits = [("shop/user=*", TEN)];
        let small = table(&limits, 32 << 10);
        let large = table(&limits, 64 << 20);
        let mut now = Nanos::from_secs(100);
        let mut was_untracked = HashMap::new();
        for (user, ru, wait, read) in steps {
            now = now.saturating_add(Nanos::from_millis(wait));
            if read {
                small.take_changes(now, |_| ());
            }
            let user = format!("shop/user={user}");
            let of_large = one(&large, &user, ru, now);
            match one(&small, &user, ru, now) {
                Charged::Untracked => drop(was_untracked.insert(user, ())),
                of_small if !was_untracked.contains_key(&user) => prop_assert_eq!(of_small, of_large),
                of_small => prop_assert!(!matches!(of_small, Charged::Unlimited)),
            }
        }
        prop_assert_eq!(large.totals().untracked, 0);
    }
}

#[test]
fn names_that_are_asked_for_most_are_listed() {
    let table = table(&[("shop/user=*", TEN)], MEMORY);
    let now = Nanos::from_secs(100);
    for user in 0..200 {
        let _ = one(&table, &format!("shop/user={user}"), 1 + user % 50, now);
    }
    let _ = one(&table, "shop/user=often", 9, now);
    let _ = one(&table, "shop/user=often", 60, now);
    let _ = one(&table, "shop/user=asked", 0, now);
    assert!(table.most_asked(0, now).is_empty());
    let listed = table.most_asked(3, now);
    let listed: Vec<_> =
        listed.iter().map(|limit| (limit.name.as_str(), limit.asked, limit.refused)).collect();
    assert_eq!(
        listed,
        [
            ("shop/user=often", 69_000, 60_000),
            ("shop/user=149", 50_000, 50_000),
            ("shop/user=199", 50_000, 50_000)
        ]
    );
    assert_eq!(table.most_asked(1_000, now).len(), 201, "a question asks for nothing");
}
