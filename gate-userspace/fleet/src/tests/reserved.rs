//! Limits that are also assigned to Envoys.

use super::*;
use gate_limits::Reserved;
use gate_policy::reservations::{FIRST, Wanted};

const WANTED: Wanted = Wanted { wanted: LIMIT, assigned: 0, lasts: Nanos::from_secs(20) };

fn part(per_sec: u64) -> Reserved {
    Reserved::Part { per_sec, burst: BURST }
}

/// Has a part reserved, by an owner that has been asked for long enough to know of all gates. Returns the time.
fn reserved(book: &mut Book, owner: &mut Owner, line: u32) -> Nanos {
    assert_eq!(book.reserve(line, at(0), Some(WANTED)), Reserved::Unknown);
    exchange(book, owner, at(100));
    assert_eq!(book.reserve(line, at(100), Some(WANTED)), Reserved::Unknown, "others may hold parts");
    let known = at(100).saturating_add(FIRST);
    exchange(book, owner, known);
    known
}

#[test]
fn a_part_counts_as_assigned_as_long_as_it_may_be() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    let mut now = reserved(&mut book, &mut owner, line);
    assert_eq!(book.reserve(line, now, Some(WANTED)), part(LIMIT));
    // Another gate wants as much.
    let report = book.report(0, now).unwrap();
    assert_eq!(report.reservations[0].assigned, LIMIT);
    let mut other = Session::new(2, 1, TICK);
    let mut other_book = self::book();
    let other_line = other_book.line(&name("acme"));
    other_book.reserve(other_line, now, Some(WANTED));
    let mut ask = |owner: &Owner, now| {
        let report = other_book.report(0, now).unwrap();
        let answer = other.report(&owner.accounts, &owner.counters, now, &report).unwrap();
        other_book.answer(0, now, &answer).unwrap();
        other_book.reserve(other_line, now, Some(WANTED))
    };
    assert_eq!(ask(&owner, now), Reserved::Unknown, "all of it is the first one's");
    let answer = owner.take(now, &report).unwrap();
    assert_eq!(owner.take(now, &report).unwrap().reserved, answer.reserved, "said again if it comes again");
    book.answer(0, now, &answer).unwrap();
    assert_eq!(ask(&owner, now), Reserved::Unknown, "the first one may still assign it");
    assert_eq!(book.reserve(line, now, Some(Wanted { assigned: LIMIT, ..WANTED })), part(LIMIT / 2));
    for _ in 0..2 {
        now = now.saturating_add(TICK);
        exchange(&mut book, &mut owner, now);
        book.reserve(line, now, Some(Wanted { assigned: LIMIT / 2, ..WANTED }));
    }
    assert_eq!(ask(&owner, now), part(LIMIT / 2));
}

#[test]
fn without_its_owner_a_part_is_an_equal_one_at_most() {
    for (on_lost, expected) in [(OnLost::Share, part(LIMIT / 4)), (OnLost::Local, Reserved::Own)] {
        let mut book = book_with(on_lost);
        let mut owner = Owner::new();
        let line = book.line(&name("acme"));
        let known = reserved(&mut book, &mut owner, line);
        let kept = known.saturating_add(Nanos(TICK.0 * KEPT));
        assert_eq!(book.reserve(line, kept, Some(WANTED)), part(LIMIT));
        let lost = kept.saturating_add(Nanos(1));
        assert_eq!(book.reserve(line, lost, Some(WANTED)), expected, "{on_lost:?}");
        // The next owner reserves no more than is assigned until it knows of all gates.
        let mut heir = Owner::new();
        assert_eq!(book.resume(0, &heir.welcome(), 2), Resumed::Anew);
        exchange(&mut book, &mut heir, lost);
        let at_most = book.reserve(line, lost, Some(WANTED));
        assert!(at_most == expected || at_most == Reserved::Unknown, "{on_lost:?}: {at_most:?}");
    }
}

#[test]
fn limits_that_no_owner_knows_are_assigned_as_gates_own() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("initech"));
    assert_eq!(book.reserve(line, at(0), Some(WANTED)), Reserved::Unknown);
    exchange(&mut book, &mut owner, at(100));
    assert_eq!(book.reserve(line, at(100), Some(WANTED)), Reserved::Own);
    // So are those of an owner that never says anything.
    let mut book = self::book();
    let line = book.line(&name("acme"));
    assert_eq!(book.reserve(line, at(0), Some(WANTED)), Reserved::Unknown);
    assert_eq!(book.reserve(line, at(3_000), Some(WANTED)), Reserved::Own);
}

#[test]
fn a_name_that_is_assigned_stays_in_the_book_and_its_account() {
    let mut book = book();
    let mut owner = Owner::with_room(1);
    let line = book.line(&name("acme"));
    let known = reserved(&mut book, &mut owner, line);
    assert!(!book.release(line, known.saturating_add(Nanos::from_secs(60))));
    assert_eq!(book.reserve(line, known, None), Reserved::Own);
    assert!(book.release(line, known.saturating_add(Nanos::from_secs(60))));
}
