//! The gates of a fleet and the owner of a limit: the code that gates and owners run, in virtual time.
//!
//! A gate charges requests to its table of named limits. Once in an interval it brings what it counted into its book, reports from
//! that, and is answered. An answer is in force from the gate's next tick on, as in a gate. All gates know from the beginning
//! how many they are: they have reported before the first request comes.

use std::sync::Arc;

use gate_common::units::{MilliRu, Nanos};
use gate_fleet::gate::book::{Book, OnLost, Settings};
use gate_fleet::gate::names::{SharedNames, Times};
use gate_fleet::owner::accounts::Accounts;
use gate_fleet::owner::counters::Counters;
use gate_fleet::owner::session::Session;
use gate_fleet::wire::Answer;
use gate_limits::{Charge, Charged, Limits, Name, Pattern, Rule, Rules, Table};
use gate_policy::fleet_share::LONGEST_DEBT;

use super::Setup;

/// A fleet whose gates share one limit.
pub(super) struct Fleet {
    name: Name,
    accounts: Accounts,
    counters: Arc<Counters>,
    gates: Vec<Gate>,
    interval: u64,
    /// Reports so far.
    reports: u64,
}

/// A gate, and its session at the owner.
struct Gate {
    table: Arc<Table>,
    names: SharedNames,
    book: Book,
    session: Session,
}

impl Fleet {
    pub(super) fn new(setup: &Setup) -> Self {
        let counters = Arc::new(Counters::default());
        let accounts = Accounts::new(rules(setup), ACCOUNTS, 1, Arc::clone(&counters));
        let interval = setup.report_interval;
        let gates = (0..setup.gates).map(|number| Gate::new(setup, number)).collect();
        let name = Name::parse(NAME).expect("a name");
        let mut fleet = Self { name, accounts, counters, gates, interval: interval.0, reports: 0 };
        for number in 0..fleet.gates.len() {
            fleet.exchange(number, at(Nanos::ZERO));
        }
        fleet
    }

    /// True if a request passes at a gate.
    pub(super) fn admit(&mut self, now: Nanos, gate: usize) -> bool {
        self.report_until(now);
        let charge = Charge { name: &self.name, cost: MilliRu::ONE_RU, is_question: false, limits: None };
        matches!(self.gates[gate].table.charge(&[charge], at(now))[..], [Charged::Within(_)])
    }

    /// Lets the gates report whose turn it is up to `now`, at moments spread evenly over the gates.
    fn report_until(&mut self, now: Nanos) {
        let count = self.gates.len() as u64;
        loop {
            let turn = self.reports % count + 1;
            let due = Nanos(self.reports / count * self.interval + turn * (self.interval / count));
            if due > now {
                return;
            }
            self.exchange((turn - 1) as usize, at(due));
            self.reports += 1;
        }
    }

    /// One tick of a gate, and the owner's answer to its report.
    fn exchange(&mut self, number: usize, now: Nanos) {
        let gates = self.gates.len() as u32;
        let Gate { names, book, session, .. } = &mut self.gates[number];
        names.exchange(book, Times { gate: now, monotonic: now });
        let Some(report) = book.report(OWNER, now) else { return };
        let answer = session.report(&self.accounts, &self.counters, now, &report);
        let answer = Answer { gates, ..answer.expect("a report that holds together") };
        book.answer(OWNER, now, &answer).expect("an answer to this report");
    }
}

impl Gate {
    fn new(setup: &Setup, number: u32) -> Self {
        let interval = setup.report_interval;
        let table = Arc::new(Table::new(Arc::new(rules(setup)), TABLE_BYTES, true));
        let mut book = Book::new(Settings { interval, on_lost: OnLost::Share });
        let session = u64::from(number) + 1;
        book.follow(at(Nanos::ZERO), &["owner".to_owned()], 0, || session);
        let names = SharedNames::new(Arc::clone(&table), 1);
        Self { table, names, book, session: Session::new(session, number, interval) }
    }
}

/// The limit, which forgives nothing: whatever gates gave out too much is paid back. Gates know it as its owner does.
fn rules(setup: &Setup) -> Rules {
    let limits = Limits { max_debt_ns: LONGEST_DEBT.0, ..setup.limits() };
    let mut rules = Rules::default();
    rules.add(Rule::new(Pattern::parse("tenant/name=*").expect("a pattern"), limits)).expect("the only rule");
    rules
}

/// The clock starts some time in, so that buckets are full.
fn at(now: Nanos) -> Nanos {
    Nanos(now.0 + START.0)
}

const NAME: &str = "tenant/name=one";
/// The number of the only owner.
const OWNER: usize = 0;
const START: Nanos = Nanos::from_secs(1_000_000);
/// Room for the handles of a thousand gates.
const ACCOUNTS: usize = 10_000;
/// Room for one name, whichever shard it is in.
const TABLE_BYTES: usize = 1 << 20;
