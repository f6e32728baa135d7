//! Limits, answers and charges that are absent, come late, or come back.

use gate_common::units::MilliRu;
use prost::Message as _;

use super::names::Gate;
use super::*;
use crate::wire::MAX_MESSAGE;
use gate_limits::{Charge, Charged};

#[test]
fn what_was_given_out_without_a_limit_is_no_debt_of_it() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    book.count(line, at(0), 20_000, 0);
    exchange(&mut book, &mut owner, at(100));
    owner.accounts.follow(at(150), rules(&["shop/user=*"]), "a test");
    for tick in 2..80 {
        // Twice the limit.
        book.count(line, at(tick * 100), LIMIT / 5, 0);
        exchange(&mut book, &mut owner, at(tick * 100));
        assert_eq!(book.grant(line, at(tick * 100)), None);
    }
    owner.accounts.follow(at(8_000), rules(&["acme"]), "a test");
    // Its gate has not heard of that.
    book.count(line, at(8_000), LIMIT / 5, 0);
    exchange(&mut book, &mut owner, at(8_050));
    assert_eq!(book.grant(line, at(8_050)).and_then(|grant| grant.rate.units_per_sec()), Some(LIMIT));
    assert_eq!(owner.charged("acme"), (20_000, 0));
}

#[test]
fn an_owner_that_knows_no_limits_is_taken_for_lost() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    book.count(line, at(0), 20_000, 0);
    exchange(&mut book, &mut owner, at(100));
    // It starts anew, and finds no limits where they should be.
    let counters = Arc::new(Counters::default());
    let accounts = Accounts::new(Rules::default(), 100, 1, Arc::clone(&counters));
    let mut heir = Owner { accounts, counters, session: Session::new(2, 0, TICK) };
    assert_eq!(book.resume(0, &heir.welcome(), 2), Resumed::Anew);
    for tick in 2..10 {
        book.count(line, at(tick * 100), 1_000, 0);
        exchange(&mut book, &mut heir, at(tick * 100));
    }
    assert!(book.has_lost(0, at(900)));
    assert_eq!(book.grant(line, at(900)).and_then(|grant| grant.rate.units_per_sec()), Some(LIMIT / 4));
    heir.accounts.follow(at(950), rules(&["acme"]), "a test");
    book.count(line, at(950), 1_000, 0);
    exchange(&mut book, &mut heir, at(1_000));
    assert_eq!(book.grant(line, at(1_000)).and_then(|grant| grant.rate.units_per_sec()), Some(LIMIT));
}

#[test]
fn what_is_given_back_later_reaches_the_owner() {
    let mut gate = Gate::new(10);
    let mut owner = Owner::new();
    let alice = name("shop/user=alice");
    assert!(gate.charge(&alice, 90_000, at(0)));
    gate.tick(&mut owner, at(0));
    let left = |owner: &Owner, now| owner.accounts.all()[0].lock().shares.left(now);
    assert_eq!(left(&owner, at(0)), 10_000);
    gate.tick(&mut owner, at(5));
    gate.table.give_back(&alice, MilliRu(60_000), at(5));
    gate.tick(&mut owner, at(10));
    assert_eq!(left(&owner, at(10)), 80_000, "10 RU have come in");
    // More than was taken is none's to give.
    gate.table.give_back(&alice, MilliRu(4_000_000_000), at(10));
    gate.tick(&mut owner, at(15));
    assert_eq!(left(&owner, at(15)), 100_000);
}

#[test]
fn a_new_name_starts_at_a_part_and_dear_requests_still_pass() {
    let mut gate = Gate::new(10);
    let mut owner = Owner::new();
    let [alice, bob, carol] = ["shop/user=alice", "shop/user=bob", "shop/user=carol"].map(name);
    assert!(gate.charge(&alice, 1_000, at(0)));
    gate.tick(&mut owner, at(0));
    // There are four gates. Gate's own limit is 10,000 RU/s, of which 1,000 RU at once.
    assert!(gate.charge(&bob, 250_000, at(0)) && !gate.charge(&bob, 1_000, at(0)));
    assert!(gate.charge(&carol, 900_000, at(0)), "from a full bucket");
    gate.tick(&mut owner, at(100));
    assert_eq!(gate.rate(&alice, at(100)), Some(LIMIT));
}

#[test]
fn of_a_long_burst_no_gate_gives_out_more_than_is_left() {
    let long = |patterns: &[&str]| {
        let mut rules = Rules::default();
        for pattern in patterns {
            let limits = Limits { max_debt_ns: 0, ..Limits::new(10, 1_000_000_000_000) };
            rules.add(Rule::new(Pattern::parse(pattern).unwrap(), limits)).unwrap();
        }
        rules
    };
    let mut owner = Owner::new();
    owner.accounts.follow(at(0), long(&["shop/user=*"]), "a test");
    let alice = name("shop/user=alice");
    let ask = |gate: &Gate, now| {
        let charge = Charge { name: &alice, cost: MilliRu::ONE_RU, is_question: false, limits: None };
        (0..20).filter(|_| matches!(gate.table.charge(&[charge], now)[..], [Charged::Within(_)])).count()
    };
    let mut others = [(); 3].map(|()| Gate::with(long(&["shop/user=*"])));
    let mut sessions = [10, 11, 12].map(|gate| Session::new(u64::from(gate), gate, TICK));
    let mut passed = 0;
    for tick in 0..300 {
        let now = at(tick * TICK.0 / 1_000_000);
        for (place, gate) in others.iter_mut().enumerate() {
            // One after the other is asked, once a second; all know by then that there are four.
            if tick % 30 == 1 + 10 * place as u64 {
                passed += ask(gate, now);
            }
            std::mem::swap(&mut owner.session, &mut sessions[place]);
            gate.tick(&mut owner, now);
            std::mem::swap(&mut owner.session, &mut sessions[place]);
        }
    }
    assert!((8..=13).contains(&passed), "{passed}");
}

#[test]
fn limits_that_change_are_told_in_pages_that_fit() {
    const NAMES: u64 = 120_000;
    let mut book = book();
    let mut owner = Owner::with_room(400_000);
    for user in 0..NAMES {
        let line = book.line(&name(&format!("shop/user={user}")));
        book.count(line, at(0), 1_000, 0);
    }
    let mut now = at(0);
    while (owner.session.names() as u64) < NAMES {
        now = now.saturating_add(TICK);
        exchange(&mut book, &mut owner, now);
    }
    let mut other = Rules::default();
    let limits = Limits::new(2 * LIMIT, BURST.0);
    other.add(Rule::new(Pattern::parse("shop/user=*").unwrap(), limits)).unwrap();
    owner.accounts.follow(now, other, "a test");
    let mut listed = 0;
    for _ in 0..3 {
        now = now.saturating_add(TICK);
        let report = book.report(0, now).unwrap();
        let answer = owner.take(now, &report).unwrap();
        // The answer is lost: it comes again with the same page.
        assert_eq!(owner.take(now, &report).unwrap().limits, answer.limits);
        assert!(answer.encoded_len() < MAX_MESSAGE);
        listed += answer.limits.len() as u64;
        book.answer(0, now, &answer).unwrap();
    }
    assert_eq!(listed, NAMES);
    for user in [0, NAMES - 1] {
        let line = book.line(&name(&format!("shop/user={user}")));
        assert_eq!(book.grant(line, now).and_then(|grant| grant.rate.units_per_sec()), Some(2 * LIMIT));
    }
}

#[test]
fn a_report_that_was_charged_is_not_repeated_in_another_session() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    for millis in [100, 200] {
        book.count(line, at(millis), 20_000, 0);
        let report = book.report(0, at(millis)).unwrap();
        let answer = owner.take(at(millis), &report).unwrap();
        if millis == 100 {
            book.answer(0, at(millis), &answer).unwrap();
        }
    }
    // The answer to the second one was lost, and the gate was away for long: its handles were given up.
    let mut session = Session::new(1, 0, TICK);
    session.ended = owner.session.charged;
    owner.session = session;
    assert_eq!(book.resume(0, &owner.welcome(), 2), Resumed::Anew);
    owner.session = Session::new(2, 0, TICK);
    assert!(matches!(book.resume(0, &owner.welcome(), 3), Resumed::Known(None)));
    book.count(line, at(20_000), 1_000, 0);
    exchange(&mut book, &mut owner, at(20_000));
    assert_eq!(owner.charged("acme"), (41_000, 0));
}
