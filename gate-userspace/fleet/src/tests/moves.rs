//! Owners that come and go.

use super::*;
use crate::gate::book::Changes;
use crate::rendezvous::owner_of;
use gate_policy::fleet_share::Used;

fn follow(book: &mut Book, now: Nanos, owners: &[&str], revision: u64) -> Changes {
    let owners: Vec<String> = owners.iter().map(|&owner| owner.to_owned()).collect();
    book.follow(now, &owners, revision, || 7)
}

fn exchange_with(book: &mut Book, number: usize, owner: &mut Owner, now: Nanos) {
    let report = book.report(number, now).expect("no report is waited for");
    let answer = owner.take(now, &report).unwrap();
    book.answer(number, now, &answer).unwrap();
}

#[test]
fn who_stays_keeps_its_number_and_nobody_at_all_changes_nothing() {
    let mut book = book();
    let joined = |number, address: &str| vec![(number, address.to_owned())];
    assert_eq!(follow(&mut book, at(0), &["a"], 1), Changes::default());
    assert_eq!(follow(&mut book, at(0), &["a", "b"], 2), Changes { left: vec![], joined: joined(1, "b") });
    assert_eq!(follow(&mut book, at(0), &["b", "c"], 3), Changes { left: vec![0], joined: joined(2, "c") });
    assert_eq!(follow(&mut book, at(0), &[], 4), Changes::default());
    assert!(
        book.report(1, at(100)).is_some_and(|report| report.revision == 4),
        "the revision counts all the same"
    );
    assert!(book.report(0, at(100)).is_none() && book.hello(0, "gate").is_none());
}

#[test]
fn a_new_owner_hears_the_debt_and_of_unanswered_reports() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    // Ten seconds of debt.
    book.count(line, at(0), 10_100_000, 0);
    exchange(&mut book, &mut owner, at(100));
    book.count(line, at(100), 5_000, 0);
    book.report(0, at(200)).unwrap();
    book.count(line, at(200), 2_000, 0);
    follow(&mut book, at(250), &["b"], 9);
    let held = book.grant(line, at(400)).expect("what the old owner said holds for three ticks");
    assert!(held.reject_for > Nanos::from_secs(8), "{held:?}");
    let mut heir = Owner::new();
    exchange_with(&mut book, 1, &mut heir, at(350));
    assert_eq!(heir.charged("acme").0, 7_000);
    let all = heir.accounts.all();
    let left = all[0].lock().shares.left(at(350));
    assert!((-9_800_000..=-9_600_000).contains(&left), "{left}");
}

#[test]
fn a_new_owner_holds_back_who_was_held_back() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    for tick in 0..20 {
        book.count(line, at(tick * 100), 20_000, 10_000);
        book.count(line, at(tick * 100), if tick == 0 { 300_000 } else { 0 }, 0);
        exchange(&mut book, &mut owner, at(tick * 100 + 50));
    }
    assert!(owner.accounts.all()[0].lock().shares.left(at(2_000)) > 50_000, "the debt is paid");
    book.count(line, at(2_000), 20_000, 10_000);
    follow(&mut book, at(2_000), &["b"], 9);
    let mut heir = Owner::new();
    exchange_with(&mut book, 1, &mut heir, at(2_050));
    assert!(heir.accounts.all()[0].lock().shares.is_held_back(at(2_050)));
}

#[test]
fn a_report_is_sent_again_under_the_present_revision() {
    let mut book = book();
    let owner = Owner::new();
    let line = book.line(&name("acme"));
    book.count(line, at(0), 1_000, 0);
    let report = book.report(0, at(100)).unwrap();
    assert_eq!(follow(&mut book, at(150), &["a"], 9), Changes::default(), "it has registered anew");
    let again = Resumed::Known(Some(Report { revision: 9, ..report }));
    assert_eq!(book.resume(0, &owner.welcome(), 8), again);
}

#[test]
fn charges_without_an_owner_are_not_owed_to_the_next_one() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    book.count(line, at(0), 20_000, 0);
    exchange(&mut book, &mut owner, at(100));
    // One of four gates: its part is 250 RU/s.
    for tick in 2..=30 {
        book.count(line, at(tick * 100), 25_000, 10_000);
        assert!(tick < 5 || book.grant(line, at(tick * 100)).unwrap().rate == Rate::per_sec(LIMIT / 4));
    }
    follow(&mut book, at(3_000), &["b"], 9);
    assert_eq!(
        book.grant(line, at(3_000)).unwrap().rate.units_per_sec(),
        Some(LIMIT / 4),
        "until the new owner answers"
    );
    let mut heir = Owner::new();
    exchange_with(&mut book, 1, &mut heir, at(3_100));
    assert_eq!(heir.charged("acme"), (25_000, 10_000), "one tick's worth");
}

#[test]
fn what_a_dead_owner_did_not_answer_is_owed_to_the_next_one() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    book.count(line, at(0), 20_000, 0);
    exchange(&mut book, &mut owner, at(100));
    // Ten seconds of debt, and nobody knows whether the owner has charged it.
    book.count(line, at(150), 10_000_000, 0);
    book.report(0, at(200)).unwrap();
    book.count(line, at(300), 5_000, 0);
    for tick in 5..=30 {
        book.count(line, at(tick * 100), 25_000, 10_000);
    }
    follow(&mut book, at(3_000), &["b"], 9);
    let mut heir = Owner::new();
    exchange_with(&mut book, 1, &mut heir, at(3_100));
    assert_eq!(heir.charged("acme").0, 25_000, "one tick's worth of what no owner was there for");
    let left = heir.accounts.all()[0].lock().shares.left(at(3_100));
    assert!((-7_100_000..=-6_900_000).contains(&left), "{left}");
}

#[test]
fn charges_without_an_owner_count_and_are_not_owed_to_it() {
    // Of a second and a half, and of ten minutes: one tick's worth.
    for ticks in [15, 6_000] {
        let mut book = book();
        let mut owner = Owner::new();
        let line = book.line(&name("acme"));
        book.count(line, at(0), 20_000, 0);
        exchange(&mut book, &mut owner, at(100));
        (0..ticks).for_each(|tick| book.count(line, at(tick * 100), 25_000, 10_000));
        let back = at(100 + ticks * 100);
        exchange(&mut book, &mut owner, back);
        assert_eq!(owner.charged("acme"), (20_000 + 25_000 * ticks, 10_000 * ticks));
        let account = Arc::clone(&owner.accounts.all()[0]);
        let shares = &account.lock().shares;
        assert_eq!(shares.full_in(back), Nanos::ZERO, "25 RU were used within the tick");
        assert!(shares.gates(back).all(|(_, demand, _)| (349_000..=350_000).contains(&demand)));
    }
    // Of a second, in which nobody else was granted its part: all.
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    book.count(line, at(0), 1_350_000, 0);
    exchange(&mut book, &mut owner, at(1_000));
    let left = owner.accounts.all()[0].lock().shares.left(at(1_000));
    assert_eq!(left, -1_250_000);
}

/// A name, and an address whose owner takes it from "a" when it comes.
fn moving() -> (Name, &'static str) {
    let takes = |other: &&str| {
        let owners = ["a", *other].map(|owner| (owner.to_owned(), ()));
        owner_of("acme", &owners) == Some(1)
    };
    (name("acme"), ["b", "c", "d", "e", "f"].iter().find(|other| takes(other)).expect("one of five"))
}

#[test]
fn an_answer_about_a_name_that_has_moved_counts_as_a_debt_alone() {
    let mut book = book();
    let mut owner = Owner::new();
    let (name, other) = moving();
    let line = book.line(&name);
    book.count(line, at(0), 20_000, 0);
    exchange(&mut book, &mut owner, at(100));
    book.count(line, at(100), 10_100_000, 0);
    let report = book.report(0, at(200)).unwrap();
    let answer = owner.take(at(200), &report).unwrap();
    follow(&mut book, at(200), &["a", other], 9);
    book.answer(0, at(210), &answer).unwrap();
    assert_eq!(book.grant(line, at(220)).map(|grant| grant.reject_for), Some(Nanos::ZERO));
    let mut heir = Owner::new();
    exchange_with(&mut book, 1, &mut heir, at(300));
    let left = heir.accounts.all()[0].lock().shares.left(at(300));
    assert!(left < -9_000_000, "{left}");
}

#[test]
fn what_an_old_owner_says_late_is_said_of_no_other_name() {
    let mut book = book();
    let mut owner = Owner::new();
    let (name, other) = moving();
    let line = book.line(&name);
    book.count(line, at(0), 1_000, 0);
    let report = book.report(0, at(100)).unwrap();
    let answer = owner.take(at(100), &report).unwrap();
    follow(&mut book, at(100), &["a", other], 9);
    exchange_with(&mut book, 1, &mut Owner::new(), at(200));
    assert!(!book.release(line, at(60_000)), "there will be an answer about it");
    book.answer(0, at(60_000), &answer).unwrap();
    assert!(book.release(line, at(70_000)));
    // The limit of the first name, by its handle, when another name has its line.
    let owners = ["a", other].map(|owner| (owner.to_owned(), ()));
    let stays = |name: &String| owner_of(name, &owners) == Some(0);
    let next = (0..99).map(|number| format!("acme/user={number}")).find(stays).expect("one of many");
    assert_eq!(book.line(&self::name(&next)), line);
    let report = book.report(0, at(70_000)).unwrap();
    let late = Answer { limits: answer.limits.clone(), ..owner.take(at(70_000), &report).unwrap() };
    assert!(!late.limits.is_empty());
    book.answer(0, at(70_000), &late).unwrap();
    assert_eq!(book.grant(line, at(70_000)), None);
}

#[test]
fn a_limit_that_comes_back_owes_nothing_to_gates_that_moved_on() {
    let owner = Owner::new();
    let account = owner.accounts.account(at(0), &name("acme")).unwrap();
    let share = |gate, millis| {
        let mut state = account.lock();
        let used = Used { within: TICK, charged: 200_000, refused: 100_000 };
        state.report(gate, at(millis), used, (used, 0), u64::MAX);
        state.share(gate, at(millis))
    };
    let granted =
        |gate| account.lock().shares.gates(at(0)).find(|(number, ..)| *number == gate).map(|(.., part)| part);
    share(1, 0);
    share(1, 100);
    assert_eq!(granted(1), Some(1.0));
    owner.accounts.release_moved(|_| true);
    share(2, 200);
    assert_eq!(granted(2), Some(0.0), "the first has all of it");
    // It is another owner's meanwhile, to whom the first gate says that it needs it no longer.
    owner.accounts.release_moved(|name| name.as_str() != "acme");
    share(2, 300);
    assert_eq!((granted(1), granted(2)), (None, Some(1.0)));
}
