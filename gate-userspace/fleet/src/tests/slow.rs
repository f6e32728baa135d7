//! Limits of a few requests a day, and of none.

use super::names::Gate;
use super::*;

const DAY: Nanos = Nanos::from_secs(86_400);

fn one(limits: Limits) -> Rules {
    let mut rules = Rules::default();
    rules.add(Rule::new(Pattern::parse("shop/user=alice").unwrap(), limits)).unwrap();
    rules
}

fn owner(limits: Limits) -> Owner {
    let owner = Owner::new();
    owner.accounts.follow(at(0), one(limits), "a test");
    owner
}

#[test]
fn five_a_day_are_five_a_day_at_an_owner_too() {
    let alice = name("shop/user=alice");
    let mut owner = owner(Limits::requests_in(5, DAY));
    // What gate allows by itself is far above that.
    let mut gate = Gate::with(one(Limits::new(10 * LIMIT, BURST.0)));
    gate.tick(&mut owner, at(0));
    let mut passed = Vec::new();
    for minute in 0..2 * 24 * 60_u64 {
        let begin = 100 + minute * 60_000;
        gate.tick(&mut owner, at(begin));
        if gate.charge(&alice, 1_000, at(begin + 50)) {
            passed.push(minute);
        }
        gate.tick(&mut owner, at(begin + 100));
    }
    // Five at once, and then one every 4.8 hours.
    assert_eq!(passed[..5], [0, 1, 2, 3, 4]);
    assert!((14..=15).contains(&passed.len()), "{passed:?}");
    assert!(passed.windows(6).all(|six| six[5] - six[0] >= 280), "{passed:?}");
}

#[test]
fn an_owner_that_starts_anew_is_told_of_a_day_that_is_used_up() {
    let alice = name("shop/user=alice");
    let limits = Limits::requests_in(5, DAY);
    let mut first = owner(limits);
    let mut gate = Gate::with(one(limits));
    for tick in 0..10 {
        let _ = gate.charge(&alice, 1_000, at(tick * 100));
        gate.tick(&mut first, at(tick * 100 + 50));
    }
    assert_eq!(first.charged("shop/user=alice").0, 5_000);
    let mut second = owner(limits);
    gate.restart(&mut second, at(1_100));
    let hour = 3_600_000;
    gate.tick(&mut second, at(hour));
    assert!(!gate.charge(&alice, 1_000, at(hour)));
    let left = second.accounts.account(at(hour), &alice).unwrap().lock().shares.left(at(hour));
    assert!((0..1_000).contains(&left), "{left}");
}

#[test]
fn a_limit_of_nothing_lets_nothing_pass() {
    let alice = name("shop/user=alice");
    let mut owner = owner(Limits::BANNED);
    let mut gate = Gate::with(one(Limits::new(10 * LIMIT, BURST.0)));
    let mut passed = 0;
    for tick in 0..200 {
        passed += u64::from(gate.charge(&alice, 1_000, at(tick * 100)));
        gate.tick(&mut owner, at(tick * 100 + 50));
    }
    assert_eq!(passed, 1, "the first, of which no owner had heard");
    let own = Gate::with(one(Limits::BANNED));
    assert!(!own.charge(&alice, 1, at(0)));
}
