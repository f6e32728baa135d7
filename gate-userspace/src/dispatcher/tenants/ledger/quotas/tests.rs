//! Charges by a thread while another puts parts of a limit in force, slow and fast in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::super::tests::ticker_of;
use super::*;
use crate::clock;
use crate::control::tick::Ticker;
use crate::fleet::gate::book::{Book, OnLost, Settings};
use crate::fleet::gate::shared::SharedBook;
use crate::fleet::wire::{Answer, Limit, VERSION, Welcome};
use crate::kernel::Maps;
use crate::limits::Name;

const SHARED: &str = r#"
    [[service]]
    name = "cache"
    protocol = "memcached"
    listen = "127.0.0.1:11211"
    backend = "127.0.0.1:11212"
    [[tenant]]
    name = "team"
    sources = ["10.0.0.0/8"]
    quota = "100000 RU/s"
    burst = "1s"
"#;
const TEAM: TenantId = TenantId(1);
const ONE: MilliRu = MilliRu::ONE_RU;
/// The rate of a part in request units per second, and its burst in microseconds.
const SLOW: (u64, u64) = (1, 1_000_000);
const FAST: (u64, u64) = (1_000, 50_000);
/// So often a slow rate is looked at, which a look within a moment of its beginning would find wrong.
const LOOKS: usize = 20_000;
const PATIENCE: Nanos = Nanos::from_secs(30);

/// A ticker whose only tenant has what an owner says, and its book.
struct Gate {
    ticker: Ticker,
    maps: Arc<Maps>,
    book: SharedBook,
}

impl Gate {
    fn new() -> Self {
        let (maps, ticker) = ticker_of(SHARED);
        let settings = Settings { interval: Nanos::from_millis(100), on_lost: OnLost::Share };
        let book = SharedBook::new(Book::new(settings));
        let mut this = Self { ticker, maps, book };
        this.ticker.share(Some(this.book.clone()));
        let now = this.now();
        let mut book = this.book.lock();
        book.follow(now, &["owner".to_owned()], 0, || 7);
        book.hello(0, "gate").unwrap();
        book.resume(0, &Welcome { version: VERSION, ..Welcome::default() }, 7);
        drop(book);
        this
    }

    fn now(&self) -> Nanos {
        self.maps.clock().at_monotonic(clock::monotonic())
    }

    /// Has the owner say that this is the limit, and puts it in force.
    fn tick(&mut self, (ru_per_sec, burst_us): (u64, u64)) {
        let now = self.now();
        let mut book = self.book.lock();
        let line = book.line(&Name::parse("team").unwrap());
        book.count(line, now, 1, 0);
        let report = book.report(0, now).unwrap();
        let handle = 0;
        let limit = Limit {
            handle,
            per_sec: ru_per_sec * 1_000,
            burst_us,
            max_debt_us: 4_000_000_000,
            ..Limit::default()
        };
        let answer = Answer { number: report.number, limits: vec![limit], ..Answer::default() };
        book.answer(0, now, &answer).unwrap();
        drop(book);
        self.ticker.tick(now, &[]).unwrap();
    }

    fn ledger(&self) -> Ledger {
        Ledger::new(Arc::clone(&self.maps), 2, 7, [(0, "cache")])
    }

    /// The time until the bucket is full, by the rate that its word is of.
    fn owed(&self) -> Nanos {
        let tat = self.maps.quota_tat(TEAM.0 as usize).load(Ordering::Acquire);
        Nanos(tat).saturating_sub(self.now())
    }
}

/// A change by a thread that has not seen the last tick, of a bucket that owed so many request units, and what it owes then by the fast
/// rate, in milliseconds.
type Case = (u32, fn(&mut Ledger), std::ops::RangeInclusive<u64>);

#[test]
fn a_word_is_changed_by_the_rate_that_it_is_of() {
    let cases: [Case; 3] = [
        (
            0,
            |ledger| {
                ledger.charge((TEAM, None), (ONE, ONE), 0, clock::monotonic(), false);
            },
            0..=10,
        ),
        (
            3_000,
            |ledger| ledger.charge_debt((TEAM, None), MilliRu(1_000_000), clock::monotonic()),
            2_000..=4_000,
        ),
        (3_000, |ledger| ledger.refund((TEAM, None), MilliRu(1_000_000)), 500..=2_000),
    ];
    for (place, (owed, change, expected)) in cases.into_iter().enumerate() {
        let mut gate = Gate::new();
        gate.tick(SLOW);
        let mut ledger = gate.ledger();
        ledger.charge_debt((TEAM, None), MilliRu(1_000 * owed), clock::monotonic());
        gate.tick(FAST);
        change(&mut ledger);
        let owed = gate.owed();
        assert!(expected.contains(&(owed.0 / 1_000_000)), "{place}: {owed:?} rather than {expected:?} ms");
    }
}

#[test]
fn no_slow_rate_is_in_force_for_a_word_of_a_fast_one() {
    let mut gate = Gate::new();
    let maps = Arc::clone(&gate.maps);
    let is_over = AtomicBool::new(false);
    let seen = AtomicUsize::new(0);
    let watch = || {
        let mut wrong = 0;
        while !is_over.load(Ordering::Relaxed) {
            let generation = maps.generation();
            let is_slow = maps.quota_rate(TEAM.0).units_per_sec() == Some(SLOW.0 * 1_000);
            let tat = Nanos(maps.quota_tat(TEAM.0 as usize).load(Ordering::Acquire));
            if is_slow && maps.generation() == generation {
                seen.fetch_add(1, Ordering::Relaxed);
                let owed = tat.saturating_sub(maps.clock().at_monotonic(clock::monotonic()));
                wrong += usize::from(owed < Nanos::from_secs(60));
            }
        }
        wrong
    };
    let until = clock::monotonic().saturating_add(PATIENCE);
    let wrong = std::thread::scope(|scope| {
        gate.tick(FAST);
        let mut watching = None;
        while seen.load(Ordering::Relaxed) < LOOKS && clock::monotonic() < until {
            // By the fast rate it is paid in seconds, by the slow one in an hour.
            if gate.owed() < Nanos::from_secs(2) {
                gate.ledger().charge_debt((TEAM, None), MilliRu(2_000_000), clock::monotonic());
            }
            gate.tick(SLOW);
            watching.get_or_insert_with(|| scope.spawn(watch));
            gate.tick(FAST);
        }
        is_over.store(true, Ordering::Relaxed);
        watching.unwrap().join().unwrap()
    });
    let seen = seen.into_inner();
    assert!(seen >= LOOKS && wrong == 0, "{wrong} of {seen}");
}
