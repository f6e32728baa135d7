//! Gates and owners together, over connections that lose what they carry.

mod absent;
mod calendar;
mod messages;
mod moves;
mod reserved;
mod slow;

use std::sync::Arc;

use gate_common::units::Nanos;
use proptest::prelude::*;

use super::gate::book::{Book, KEPT, OnLost, Resumed, Settings};
use super::gate::grant::Grant;
use super::owner::accounts::Accounts;
use super::owner::counters::{Counters, Event};
use super::owner::session::{Fault, Session};
use super::wire::{Answer, Introduction, Report, Welcome};
use gate_limits::{Limits, Name, Pattern, Rule, Rules};
use gate_policy::fleet_share::Share;
use gate_policy::rate::Rate;

mod names;

const TICK: Nanos = Nanos::from_millis(100);
/// Thousandths of a request unit per second.
const LIMIT: u64 = 1_000_000;
const BURST: Nanos = Nanos::from_millis(100);
/// Deep enough for all debts of these tests.
const MOST_DEBT: Nanos = Nanos::from_secs(3_600);

fn at(millis: u64) -> Nanos {
    Nanos::from_millis(1_000_000 + millis)
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn rules(patterns: &[&str]) -> Rules {
    let mut rules = Rules::default();
    for pattern in patterns {
        let limits = Limits { max_debt_ns: MOST_DEBT.0, ..Limits::new(LIMIT, BURST.0) };
        rules.add(Rule::new(Pattern::parse(pattern).unwrap(), limits)).unwrap();
    }
    rules
}

/// An owner of `acme` and of each user of `shop`, and one gate's session with it.
struct Owner {
    accounts: Accounts,
    counters: Arc<Counters>,
    session: Session,
}

impl Owner {
    fn new() -> Self {
        Self::with_room(1_000)
    }

    /// One of at most so many accounts.
    fn with_room(most: usize) -> Self {
        let counters = Arc::new(Counters::default());
        let accounts = Accounts::new(rules(&["acme", "shop/user=*"]), most, 2, Arc::clone(&counters));
        Self { accounts, counters, session: Session::new(1, 0, TICK) }
    }

    fn take(&mut self, now: Nanos, report: &Report) -> Result<Answer, Fault> {
        let answer = self.session.report(&self.accounts, &self.counters, now, report)?;
        Ok(Answer { gates: 4, ..answer })
    }

    fn welcome(&self) -> Welcome {
        Welcome { version: super::wire::VERSION, charged: self.session.charged, ended: self.session.ended }
    }

    fn charged(&self, of: &str) -> (u64, u64) {
        let all = self.accounts.all();
        let account = all.iter().find(|account| account.name == name(of)).expect("an account");
        let state = account.lock();
        (state.charged, state.refused)
    }
}

fn book() -> Book {
    book_with(OnLost::Share)
}

/// A book whose only owner is number 0.
fn book_with(on_lost: OnLost) -> Book {
    let mut book = Book::new(Settings { interval: TICK, on_lost });
    book.follow(at(0), &["a".to_owned()], 0, || 1);
    book
}

/// One report, and its answer.
fn exchange(book: &mut Book, owner: &mut Owner, now: Nanos) {
    let report = book.report(0, now).expect("no report is waited for");
    let answer = owner.take(now, &report).unwrap();
    book.answer(0, now, &answer).unwrap();
}

#[test]
fn the_whole_is_granted_below_the_limit_and_a_part_above_it() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    assert_eq!(book.grant(line, at(0)), None, "no owner has said anything");
    book.count(line, at(0), 20_000, 0);
    exchange(&mut book, &mut owner, at(100));
    let whole = Grant {
        rate: Rate::per_sec(LIMIT),
        burst: 100_000,
        max_debt: 3_600 * LIMIT,
        reject_for: Nanos::ZERO,
        window: None,
    };
    assert_eq!(book.grant(line, at(100)), Some(whole));
    book.count(line, at(0), 200_000, 300_000);
    exchange(&mut book, &mut owner, at(200));
    let part = book.grant(line, at(200)).unwrap();
    // 75 RU are owed, which smaller parts pay within 200 ms.
    assert_eq!(part, Grant { rate: Rate::per_sec(625_000), ..whole });
    assert_eq!(owner.charged("acme"), (220_000, 300_000));
}

#[test]
fn who_has_a_part_reports_until_it_has_the_whole_again() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    book.count(line, at(0), 500_000, 0);
    exchange(&mut book, &mut owner, at(100));
    let mut reported = 0;
    for tick in 2..200 {
        let now = at(tick * 100);
        let report = book.report(0, now).unwrap();
        reported += report.handles.len();
        let answer = owner.take(now, &report).unwrap();
        book.answer(0, now, &answer).unwrap();
    }
    // Held back for 10 s after the bucket was last less than half full.
    assert!((100..115).contains(&reported), "{reported}");
    assert_eq!(book.grant(line, at(19_900)).and_then(|grant| grant.rate.units_per_sec()), Some(LIMIT));
}

#[test]
fn a_lost_owner_leaves_each_gate_its_part() {
    for (on_lost, expected) in [(OnLost::Share, Some(LIMIT / 4)), (OnLost::Local, None)] {
        let mut book = book_with(on_lost);
        let mut owner = Owner::new();
        let line = book.line(&name("acme"));
        book.count(line, at(0), 20_000, 0);
        exchange(&mut book, &mut owner, at(100));
        let kept = at(100).saturating_add(Nanos(TICK.0 * KEPT));
        assert_eq!(book.grant(line, kept).and_then(|grant| grant.rate.units_per_sec()), Some(LIMIT));
        let lost = kept.saturating_add(Nanos(1));
        assert!(book.has_lost(0, lost));
        assert_eq!(
            book.grant(line, lost).and_then(|grant| grant.rate.units_per_sec()),
            expected,
            "{on_lost:?}"
        );
    }
}

#[test]
fn names_without_a_rule_are_the_gates_own_affair() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("initech"));
    book.count(line, at(0), 500_000, 0);
    exchange(&mut book, &mut owner, at(100));
    assert_eq!(book.grant(line, at(100)), None);
    assert_eq!(owner.counters.get(Event::NameWithoutRule), 1);
    // They get one once there is a rule for them.
    owner.accounts.follow(at(150), rules(&["acme", "initech"]), "a test");
    book.count(line, at(0), 1_000, 0);
    exchange(&mut book, &mut owner, at(200));
    assert_eq!(book.grant(line, at(200)).and_then(|grant| grant.rate.units_per_sec()), Some(LIMIT));
    assert_eq!(owner.charged("initech"), (0, 0), "it was given out without a limit");
    book.count(line, at(200), 1_000, 0);
    exchange(&mut book, &mut owner, at(300));
    assert_eq!(owner.charged("initech"), (1_000, 0));
}

#[test]
fn other_limits_hold_from_the_next_report_on() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    book.count(line, at(0), 1_000, 0);
    exchange(&mut book, &mut owner, at(100));
    let mut other = Rules::default();
    let limits = Limits::new(2 * LIMIT, BURST.0);
    other.add(Rule::new(Pattern::parse("acme").unwrap(), limits)).unwrap();
    owner.accounts.follow(at(150), other, "a test");
    exchange(&mut book, &mut owner, at(200));
    assert_eq!(book.grant(line, at(200)).and_then(|grant| grant.rate.units_per_sec()), Some(2 * LIMIT));
    owner.accounts.follow(at(250), Rules::default(), "a test");
    exchange(&mut book, &mut owner, at(300));
    assert_eq!(book.grant(line, at(300)), None, "no rule fits it any more");
}

#[test]
fn an_owner_that_starts_anew_is_told_the_debt() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    // Ten seconds of debt.
    book.count(line, at(0), 10_100_000, 0);
    exchange(&mut book, &mut owner, at(100));
    book.count(line, at(0), 5_000, 0);
    let unanswered = book.report(0, at(200)).unwrap();
    owner.take(at(200), &unanswered).unwrap();
    let mut heir = Owner::new();
    assert_eq!(book.resume(0, &heir.welcome(), 2), Resumed::Anew);
    assert!(matches!(book.resume(0, &heir.welcome(), 3), Resumed::Known(None)));
    exchange(&mut book, &mut heir, at(1_100));
    let all = heir.accounts.all();
    let left = all[0].lock().shares.left(at(1_100));
    // 10,105 RU were given out, of which 1,100 have come in, and the burst; what came in within a report is its due.
    assert!((-9_030_000..=-8_850_000).contains(&left), "{left}");
    assert_eq!(heir.charged("acme").0, 5_000, "what was not answered is charged by the heir");
}

#[test]
fn what_does_not_hold_together_changes_nothing() {
    let mut owner = Owner::new();
    let introductions = vec![Introduction { name: "acme".to_owned(), ..Introduction::default() }];
    let report = |number, handles: &[u32], charged: &[u64]| Report {
        number,
        handles: handles.to_vec(),
        charged: charged.to_vec(),
        refused: vec![0; charged.len()],
        introductions: if number == 1 { introductions.clone() } else { Vec::new() },
        ..Report::default()
    };
    owner.take(at(0), &report(1, &[0], &[7])).unwrap();
    let nameless = Report {
        introductions: vec![Introduction { name: "a b/=".to_owned(), ..Introduction::default() }],
        ..report(2, &[0], &[7])
    };
    for (wrong, fault) in [
        (report(0, &[], &[]), Fault::Number { number: 0, charged: 1 }),
        (report(3, &[], &[]), Fault::Number { number: 3, charged: 1 }),
        (report(2, &[0, 1], &[7]), Fault::Columns { handles: 2, charged: 1, refused: 1 }),
        (report(2, &[], &[7]), Fault::Columns { handles: 0, charged: 1, refused: 1 }),
        (report(2, &[1], &[7]), Fault::Handle { introduced: 1 }),
        (report(2, &[0, 0], &[7, 7]), Fault::Handle { introduced: 1 }),
    ] {
        assert_eq!(owner.take(at(100), &wrong), Err(fault));
    }
    assert!(matches!(owner.take(at(100), &nameless), Err(Fault::Name(_))));
    assert_eq!((owner.charged("acme"), owner.session.charged), ((7, 0), 1));
    // Counts at the end of their range.
    owner.take(at(200), &report(2, &[0], &[u64::MAX])).unwrap();
    owner.take(at(300), &Report { unit: u64::MAX, ..report(3, &[0], &[u64::MAX]) }).unwrap();
    // As much as a link carries in a tick, twice.
    assert_eq!(owner.charged("acme").0, 7 + 2 * 30_000_000_000);
}

#[test]
fn a_report_with_the_longest_names_fits_into_a_message() {
    let mut book = book();
    for number in 0..20_000 {
        let line = book.line(&name(&format!("shop/user={number:0>240}")));
        book.count(line, at(0), u64::MAX, u64::MAX);
    }
    let mut owner = Owner::with_room(40_000);
    let mut introduced = Vec::new();
    for millis in [100, 200] {
        let report = book.report(0, at(millis)).unwrap();
        assert!(prost::Message::encoded_len(&report) < super::wire::MAX_MESSAGE);
        introduced.push(report.introductions.len());
        let answer = owner.take(at(millis), &report).unwrap();
        book.answer(0, at(millis), &answer).unwrap();
    }
    assert_eq!(introduced, [16_384, 3_616]);
}

#[test]
fn idle_full_accounts_alone_make_room() {
    let counters = Arc::new(Counters::default());
    let accounts = Accounts::new(rules(&["shop/user=*"]), 2, 1, Arc::clone(&counters));
    let user = |number: u32| name(&format!("shop/user={number}"));
    let busy = accounts.account(at(0), &user(1)).unwrap();
    drop(accounts.account(at(0), &user(2)).unwrap());
    assert!(accounts.account(at(0), &user(3)).is_ok(), "an idle one makes room");
    let third = accounts.account(at(0), &user(3)).unwrap();
    assert!(accounts.account(at(0), &user(4)).is_err(), "both are in use");
    third.lock().shares.add_debt(at(0), Nanos::from_secs(1));
    drop((busy, third));
    // The first is idle now, and then the fifth is; the third never is.
    accounts.account(at(500), &user(5)).unwrap();
    accounts.account(at(500), &user(6)).unwrap();
    assert!(accounts.account(at(500), &user(3)).unwrap().lock().shares.full_in(at(500)) > Nanos::ZERO);
    assert_eq!(counters.get(Event::NameWithoutRoom), 1);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Count(u8, u16, u16),
    Report,
    Answer,
    /// The connection is cut: what is under way is lost.
    Cut,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<(u8, u16, u16)>().prop_map(|(line, charged, refused)| Step::Count(line % 5, charged, refused)),
        3 => Just(Step::Report),
        3 => Just(Step::Answer),
        1 => Just(Step::Cut),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn what_is_given_out_is_charged_once_if_connections_break(steps in steps()) {
        let mut book = book();
    let mut owner = Owner::new();
        let names = ["acme", "shop/user=a", "shop/user=b", "shop/user=c", "shop/user=d"];
        let lines = names.map(|text| book.line(&name(text)));
        let mut given_out = [(0, 0); 5];
        let mut sent = None;
        let mut under_way = None;
        let mut now = at(0);
        let last = [Step::Cut, Step::Report, Step::Answer, Step::Report, Step::Answer];
        for step in steps.into_iter().chain(last) {
            now = now.saturating_add(Nanos::from_millis(10));
            match step {
                Step::Count(line, charged, refused) => {
                    let line = usize::from(line);
                    let charged = u64::from(charged);
                    let refused = u64::from(refused);
                    book.count(lines[line], at(0), charged, refused);
                    given_out[line] = (given_out[line].0 + charged, given_out[line].1 + refused);
                }
                Step::Report => {
                    let report = sent.take().or_else(|| book.report(0, now));
                    under_way = report.map(|report| owner.take(now, &report).unwrap()).or(under_way);
                }
                Step::Answer => {
                    if let Some(answer) = under_way.take() {
                        book.answer(0, now, &answer).unwrap();
                    }
                }
                Step::Cut => {
                    under_way = None;
                    let Resumed::Known(again) = book.resume(0, &owner.welcome(), 9) else {
                        panic!("the owner knows the session");
                    };
                    sent = again;
                }
            }
        }
        for (text, given_out) in names.into_iter().zip(given_out).filter(|(_, given_out)| *given_out != (0, 0)) {
            prop_assert_eq!(owner.charged(text), given_out, "{}", text);
        }
    }
}
