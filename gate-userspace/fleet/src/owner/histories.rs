//! Histories of gates that join, leave, are cut off, are taken over, come back and lie, while limits are removed, restored and reset: whatever has
//! happened, a few seconds later the limit is what it was, and of who has gone nothing is left. `GATE_LONG=1` runs 100,000 of each.

use std::sync::Arc;

use gate_common::units::Nanos;
use proptest::prelude::*;

use super::accounts::Accounts;
use super::counters::Counters;
use super::gates::{Comer, Gates, SESSION_KEPT};
use super::session::Session;
use crate::wire::{Introduction, Report, value};
use gate_limits::{Limits, Name, Pattern, Rule, Rules};
use gate_policy::fleet_share::CORRECTION;

/// Thousandths of a request unit per second, and the burst and the debt that a limit has by default.
const LIMIT: u64 = 1_000_000;
const BURST: Nanos = Nanos::from_millis(100);
const MOST_DEBT: i64 = LIMIT as i64 / 5;
const TICK: Nanos = Nanos::from_millis(100);
const GATES: usize = 4;
/// Intervals without an answer after which a gate goes by a part of its own.
const KEPT: u64 = 3;
const ONE: f64 = 1_000.0;

fn rules(has_limit: bool) -> Rules {
    let mut rules = Rules::default();
    let name = if has_limit { "acme" } else { "other" };
    let limits = Limits::new(LIMIT, BURST.0);
    rules.add(Rule::new(Pattern::parse(name).unwrap(), limits)).unwrap();
    rules
}

/// An event between two ticks.
#[derive(Clone, Copy, Debug)]
enum Event {
    Join(usize),
    /// The stream ends; the gate does not come back by itself.
    Leave(usize),
    /// The stream ends, and the gate goes on with its session after so many ticks, in which it serves on.
    CutOff(usize, u8),
    /// Another process takes over; the one before drains its clients beside it, until another one takes over again or it leaves.
    TakeOver(usize),
    /// The next report says this in place of what was charged, refused and given back, within so many microseconds.
    Lie(usize, [u64; 4]),
    /// The next report says that all that was taken was given back.
    GiveBack(usize),
    Remove,
    Restore,
    Reset,
    /// Nothing for so many ticks.
    Wait(u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let gate = || 0..GATES;
    let count =
        || prop_oneof![Just(0), Just(1 << 63), Just(u64::MAX), Just(1_000_000_000_000_000), 0..2 * LIMIT];
    let event = prop_oneof![
        3 => gate().prop_map(Event::Join),
        2 => gate().prop_map(Event::Leave),
        2 => (gate(), 1..40_u8).prop_map(|(gate, ticks)| Event::CutOff(gate, ticks)),
        2 => gate().prop_map(Event::TakeOver),
        2 => (gate(), [count(), count(), count(), count()]).prop_map(|(gate, lie)| Event::Lie(gate, lie)),
        1 => gate().prop_map(Event::GiveBack),
        1 => Just(Event::Remove),
        2 => Just(Event::Restore),
        1 => Just(Event::Reset),
        6 => (0..30_u8).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 0..40)
}

/// A gate that gives out what it is told, from a bucket, and by twice the limit while it is told nothing.
#[derive(Debug)]
struct Gate {
    session: Option<Session>,
    /// Its session's, while its stream has ended.
    id: u64,
    number: u64,
    /// True until it has introduced its name.
    is_new: bool,
    per_sec: f64,
    burst: f64,
    left: f64,
    reject_until: Nanos,
    charged: u64,
    refused: u64,
    lie: Option<[u64; 4]>,
    /// The ticks until it is connected again; `None` while it is.
    cut_off: Option<u8>,
    /// When it reported last.
    reported: Nanos,
}

impl Gate {
    fn new() -> Self {
        let per_sec = 2.0 * LIMIT as f64;
        let burst = per_sec / 10.0;
        Self {
            session: None,
            id: 0,
            number: 0,
            is_new: true,
            per_sec,
            burst,
            left: burst,
            reject_until: Nanos::ZERO,
            charged: 0,
            refused: 0,
            lie: None,
            cut_off: None,
            reported: Nanos::ZERO,
        }
    }

    /// Goes by its part of the limit, as one of all gates: its owner is lost.
    fn lose_owner(&mut self) {
        (self.per_sec, self.reject_until) = (LIMIT as f64 / GATES as f64, Nanos::ZERO);
        self.burst = (self.per_sec / 10.0).max(ONE);
    }

    /// A tick in which it is asked for so much. Returns what it gave out.
    fn serve(&mut self, now: Nanos, asked: f64) -> f64 {
        self.left = (self.left + self.per_sec / 10.0).min(self.burst);
        let given = if now < self.reject_until { 0.0 } else { (asked.min(self.left) / ONE).floor() * ONE };
        self.left -= given;
        self.charged += given as u64;
        self.refused += (asked - given) as u64;
        given
    }

    fn report(&mut self, now: Nanos) -> Report {
        self.number += 1;
        let within = now.saturating_sub(std::mem::replace(&mut self.reported, now));
        let honest = [self.charged, self.refused, 0, within.0 / 1_000];
        let [charged, refused, returned, within_us] = self.lie.take().unwrap_or(honest);
        (self.charged, self.refused) = (0, 0);
        let introductions = vec![Introduction { name: "acme".to_owned(), ..Introduction::default() }];
        Report {
            number: self.number,
            within_us,
            introductions: if std::mem::take(&mut self.is_new) { introductions } else { Vec::new() },
            handles: vec![0],
            charged: vec![charged],
            refused: vec![refused],
            returned: vec![returned],
            ..Report::default()
        }
    }
}

struct Fleet {
    now: Nanos,
    accounts: Accounts,
    counters: Arc<Counters>,
    registry: Gates,
    /// Gates that may join, and as many that drain their clients beside them.
    gates: [Gate; 2 * GATES],
    has_limit: bool,
    next: u64,
    /// All that gates gave out.
    given: f64,
    /// The part of it that nobody could hold them back from.
    unknown: f64,
}

impl Fleet {
    fn new() -> Self {
        let counters = Arc::new(Counters::default());
        Self {
            now: Nanos::from_secs(10_000),
            accounts: Accounts::new(rules(true), 100, 1, Arc::clone(&counters)),
            counters,
            registry: Gates::default(),
            gates: [(); 2 * GATES].map(|()| Gate::new()),
            has_limit: true,
            next: 1,
            given: 0.0,
            unknown: 0.0,
        }
    }

    fn name(gate: usize) -> String {
        format!("gate-{}", gate % GATES)
    }

    fn join(&mut self, place: usize) {
        if self.gates[place].session.is_none() {
            self.begin(place, false);
        }
    }

    /// Begins a session in a place. If another process has it, that one drains.
    fn begin(&mut self, place: usize, takes_over: bool) {
        let id = self.next;
        self.next += 1;
        let comer = Comer { name: &Self::name(place), id, interval: TICK, takes_over, drains: false };
        let session = self.registry.take(self.now, comer).unwrap();
        self.gates[place] = Gate { session: Some(session), reported: self.now, ..Gate::new() };
        self.unknown += INTERVALS;
    }

    /// A process takes over from the one in a place, which drains from then on; one that drained before is gone.
    fn take_over(&mut self, place: usize) {
        if self.gates[place].session.is_none() || self.gates[place].cut_off.is_some() {
            return;
        }
        self.leave(place + GATES);
        self.gates.swap(place, place + GATES);
        self.begin(place, true);
        self.reconnect(place + GATES);
    }

    /// The stream of a gate ends.
    fn disconnect(&mut self, place: usize) {
        if let Some(session) = self.gates[place].session.take() {
            self.gates[place].id = session.id;
            self.registry.put_back(self.now, &Self::name(place), session, false);
        }
    }

    /// A gate goes on with its session, or begins another one where that is over.
    fn reconnect(&mut self, place: usize) {
        self.disconnect(place);
        let id = self.gates[place].id;
        let drains = place >= GATES;
        let comer = Comer { name: &Self::name(place), id, interval: TICK, takes_over: false, drains };
        let session = self.registry.take(self.now, comer).unwrap();
        let gate = &mut self.gates[place];
        // The owner repeats nothing of a session that it has forgotten.
        if session.names() == 0 {
            gate.is_new = true;
            gate.number = session.charged;
        }
        gate.session = Some(session);
        gate.cut_off = None;
    }

    fn leave(&mut self, place: usize) {
        self.disconnect(place);
        self.gates[place].cut_off = None;
    }

    fn limit(&mut self, has_limit: bool) {
        self.accounts.follow(self.now, rules(has_limit), "a test");
        self.has_limit = has_limit;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Join(gate) => self.join(gate),
            Event::Leave(gate) => {
                self.leave(gate);
                self.leave(gate + GATES);
            }
            Event::CutOff(gate, ticks) => {
                if self.gates[gate].session.is_some() {
                    self.disconnect(gate);
                    self.gates[gate].cut_off = Some(ticks);
                    self.unknown += INTERVALS;
                }
            }
            Event::TakeOver(gate) => self.take_over(gate),
            Event::Lie(gate, lie) => self.gates[gate].lie = Some(lie),
            Event::GiveBack(gate) => self.gates[gate].lie = Some([0, 0, u64::MAX, TICK.0 / 1_000]),
            Event::Remove => self.limit(false),
            Event::Restore => self.limit(true),
            Event::Reset => {
                let account = self.accounts.find(&Name::parse("acme").unwrap());
                account.into_iter().for_each(|account| account.lock().shares.reset());
            }
            Event::Wait(ticks) => {
                for _ in 0..ticks {
                    self.tick(LIMIT as f64);
                }
            }
        }
    }

    /// A tick in which all connected gates are asked for so much per second. Returns what they gave out.
    fn tick(&mut self, asked_per_sec: f64) -> f64 {
        self.now = self.now.saturating_add(TICK);
        self.registry.release_left(self.now);
        let mut given = 0.0;
        for place in 0..self.gates.len() {
            match self.gates[place].cut_off {
                Some(0) => self.reconnect(place),
                Some(left) => {
                    self.unknown += LIMIT as f64 / 10.0 / GATES as f64;
                    if self.now >= self.gates[place].reported.saturating_add(Nanos(TICK.0 * KEPT)) {
                        self.gates[place].lose_owner();
                    }
                    given += self.gates[place].serve(self.now, asked_per_sec / 10.0);
                    self.gates[place].cut_off = Some(left - 1);
                }
                None => {}
            }
            let gate = &mut self.gates[place];
            let Some(mut session) = gate.session.take() else { continue };
            given += gate.serve(self.now, asked_per_sec / 10.0);
            let report = gate.report(self.now);
            let answer = session.report(&self.accounts, &self.counters, self.now, &report).unwrap();
            self.registry.seen(self.now, &Self::name(place), &session);
            gate.session = Some(session);
            let full_in = Nanos::from_millis(value(&answer.full_in_ms, 0));
            let known = if self.has_limit { LIMIT } else { 2 * LIMIT };
            let part = value(&answer.per_sec, 0);
            gate.per_sec = if part > 0 { part } else { known } as f64;
            gate.burst = match value(&answer.burst_ru, 0) {
                0 => known as f64 / 10.0,
                burst => burst as f64 * ONE,
            };
            gate.left = gate.left.min(gate.burst);
            let wait = full_in.saturating_sub(BURST.saturating_add(CORRECTION));
            gate.reject_until = if part > 0 { self.now.saturating_add(wait) } else { Nanos::ZERO };
        }
        if let Some(account) = self.accounts.find(&Name::parse("acme").unwrap()) {
            let left = account.lock().shares.left(self.now);
            assert!((-MOST_DEBT..=LIMIT as i64 / 10).contains(&left), "{left}");
        }
        self.given += given;
        given
    }
}

/// The amount that a gate may give out before it is told how much, or that its owner is lost: that of some intervals.
const INTERVALS: f64 = LIMIT as f64 / 2.0;

/// So many histories of each kind.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    if std::env::var_os("GATE_LONG").is_some() {
        ProptestConfig { cases: 100_000, max_shrink_time: 60_000, ..default }
    } else {
        default
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_happened_the_limit_is_soon_what_it_was(events in events(), last in 1..=GATES) {
        let mut fleet = Fleet::new();
        events.into_iter().for_each(|event| fleet.happen(event));
        if !fleet.has_limit {
            fleet.limit(true);
        }
        (GATES..2 * GATES).for_each(|gate| fleet.leave(gate));
        (0..GATES).filter(|&gate| fleet.gates[gate].cut_off.is_some()).collect::<Vec<_>>().into_iter().for_each(|gate| fleet.reconnect(gate));
        (0..last).for_each(|gate| fleet.join(gate));
        fleet.gates.iter_mut().for_each(|gate| gate.lie = None);
        // Each is asked for the whole limit.
        for _ in 0..40 {
            fleet.tick(LIMIT as f64);
        }
        let given: f64 = (0..50).map(|_| fleet.tick(LIMIT as f64)).sum();
        let of_limit = given / (5.0 * LIMIT as f64);
        prop_assert!((0.9..1.1).contains(&of_limit), "{of_limit} of the limit");
    }

    #[test]
    fn never_more_than_the_limit_passes_but_for_intervals(events in events()) {
        let mut fleet = Fleet::new();
        let begun = fleet.now;
        for event in events {
            match event {
                Event::Lie(..) | Event::GiveBack(_) | Event::Remove | Event::Restore | Event::Reset => {}
                Event::Join(_) | Event::Leave(_) | Event::CutOff(..) | Event::TakeOver(_) | Event::Wait(_) => {
                    fleet.happen(event);
                }
            }
        }
        let of_limit = LIMIT as f64 * fleet.now.saturating_sub(begun).0 as f64 / 1e9;
        let most = of_limit + LIMIT as f64 * BURST.0 as f64 / 1e9 + fleet.unknown;
        prop_assert!(fleet.given <= most, "{} of {most}, of which {of_limit} by the limit", fleet.given);
    }

    #[test]
    fn of_gates_that_have_gone_nothing_is_left(events in events()) {
        let mut fleet = Fleet::new();
        events.into_iter().for_each(|event| fleet.happen(event));
        (0..2 * GATES).for_each(|gate| fleet.leave(gate));
        for _ in 0..=SESSION_KEPT.0 / TICK.0 {
            fleet.tick(0.0);
        }
        prop_assert_eq!(fleet.accounts.room().used(), 0);
        let all = fleet.accounts.all();
        prop_assert!(all.iter().all(|account| account.lock().shares.is_idle(fleet.now)));
        prop_assert!(all.iter().all(|account| Arc::strong_count(account) == 2), "one here, and one there");
        fleet.now = fleet.now.saturating_add(Nanos::from_secs(600));
        fleet.tick(0.0);
        prop_assert!(fleet.registry.known().is_empty());
    }
}
