//! Named limits that gates share.

use gate_common::units::MilliRu;

use super::super::gate::book::IDLE;
use super::super::gate::names::{SharedNames, Times};
use super::*;
use gate_limits::{Charge, Charged, Table};

/// A gate with limits of its own, ten times those of the owner.
pub(super) struct Gate {
    book: Book,
    pub(super) table: Arc<Table>,
    names: SharedNames,
}

impl Gate {
    pub(super) fn new(most: usize) -> Self {
        let mut own = Rules::default();
        for pattern in ["shop/user=*", "other/user=*"] {
            let limits = Limits::new(10 * LIMIT, BURST.0);
            own.add(Rule::new(Pattern::parse(pattern).unwrap(), limits)).unwrap();
        }
        Self::of(own, most)
    }

    /// One with these limits of its own.
    pub(super) fn with(own: Rules) -> Self {
        Self::of(own, 10)
    }

    fn of(own: Rules, most: usize) -> Self {
        let table = Arc::new(Table::new(Arc::new(own), 1 << 26, true));
        Self { book: book(), names: SharedNames::new(Arc::clone(&table), most), table }
    }

    pub(super) fn charge(&self, name: &Name, cost: u32, now: Nanos) -> bool {
        let charge = Charge { name, cost: MilliRu(cost), is_question: false, limits: None };
        matches!(self.table.charge(&[charge], now)[..], [Charged::Within(_)])
    }

    /// A tick: what was counted is reported, and the answer in force.
    pub(super) fn tick(&mut self, owner: &mut Owner, now: Nanos) {
        let times = Times { gate: now, monotonic: now };
        self.names.exchange(&mut self.book, times);
        exchange(&mut self.book, owner, now);
        self.names.exchange(&mut self.book, times);
    }

    /// Meets an owner that has started anew, as its address is the same.
    pub(super) fn restart(&mut self, owner: &mut Owner, now: Nanos) {
        let resumed = self.book.resume(0, &Welcome::default(), 8);
        assert_eq!(resumed, Resumed::Anew);
        self.tick(owner, now);
    }

    pub(super) fn rate(&self, of: &Name, now: Nanos) -> Option<u64> {
        self.table.standing(of, now).unwrap().limits.rate.units_per_sec()
    }
}

#[test]
fn a_name_is_charged_at_its_owner_and_held_to_its_part() {
    let mut gate = Gate::new(10);
    let mut owner = Owner::new();
    let [alice, unknown] = ["shop/user=alice", "other/user=bob"].map(name);
    for name in [&alice, &unknown] {
        assert!(gate.charge(name, 500_000, at(0)));
        assert_eq!(gate.rate(name, at(0)), Some(10 * LIMIT));
    }
    gate.tick(&mut owner, at(100));
    assert_eq!(owner.charged("shop/user=alice"), (500_000, 0));
    // 400 RU are owed, which is more than is paid within 200 ms: nothing passes.
    assert_eq!(gate.rate(&unknown, at(100)), Some(10 * LIMIT));
    assert!(!gate.charge(&alice, 1_000, at(101)) && gate.charge(&unknown, 1_000, at(101)));
    gate.tick(&mut owner, at(200));
    assert_eq!(owner.charged("shop/user=alice"), (500_000, 1_000));
    // When nobody is held back any more the owner's limit holds, until it is lost: then one gate of four has a quarter.
    for tick in 3..=130 {
        assert!(tick % 10 != 0 || gate.charge(&alice, 1_000, at(tick * 100)));
        gate.tick(&mut owner, at(tick * 100));
    }
    assert_eq!(gate.rate(&alice, at(13_000)), Some(LIMIT));
    let lost = at(13_000 + 100 * (KEPT + 1));
    gate.names.exchange(&mut gate.book, Times { gate: lost, monotonic: lost });
    assert_eq!(gate.rate(&alice, lost), Some(LIMIT / 4));
}

#[test]
fn an_unused_name_leaves_the_book_and_its_handle_means_nothing() {
    let mut gate = Gate::new(1);
    let mut owner = Owner::new();
    let [alice, bob, carol] = ["shop/user=alice", "shop/user=bob", "shop/user=carol"].map(name);
    assert!(gate.charge(&alice, 10_000, at(0)));
    gate.tick(&mut owner, at(0));
    // There is room for one: the other one has gate's own limit, and its owner does not hear of it.
    assert!(gate.charge(&bob, 10_000, at(10)));
    gate.tick(&mut owner, at(100));
    assert_eq!((gate.rate(&alice, at(100)), gate.rate(&bob, at(100))), (Some(LIMIT), Some(10 * LIMIT)));
    let idle = at(100 + IDLE.0 / 1_000_000);
    gate.tick(&mut owner, idle);
    let line = gate.book.line(&carol);
    assert_eq!(line, 0, "the place of the one that has left");
    // Limits that change are told of all handles, those that mean nothing any more too.
    owner.accounts.follow(idle, rules(&["shop/user=alice"]), "a test");
    exchange(&mut gate.book, &mut owner, idle);
    assert_eq!(gate.book.grant(line, idle), None);
    assert!(!gate.book.release(7, idle), "there is no such line");
}

#[test]
fn a_session_with_many_unused_handles_is_begun_anew() {
    const NAMES: u64 = 40_000;
    let mut gate = Gate::new(NAMES as usize);
    let mut owner = Owner::with_room(2 * NAMES as usize);
    let of = |user: u64| name(&format!("shop/user={user}"));
    let mut now = at(0);
    for user in 0..NAMES {
        assert!(gate.charge(&of(user), 1_000, now));
    }
    // So many are not introduced at once.
    for _ in 0..3 {
        now = now.saturating_add(TICK);
        gate.tick(&mut owner, now);
    }
    assert_eq!(owner.session.names() as u64, NAMES);
    assert!(!gate.book.renew(0, || 7));
    now = now.saturating_add(IDLE);
    assert!(gate.charge(&of(1), 1_000, now));
    gate.tick(&mut owner, now);
    assert!(gate.book.renew(0, || 7) && !gate.book.renew(0, || 8));
    owner.session = Session::new(7, 0, TICK);
    assert!(gate.charge(&of(1), 1_000, now));
    gate.tick(&mut owner, now);
    assert_eq!((owner.session.names(), owner.charged("shop/user=1").0), (1, 3_000));
}
