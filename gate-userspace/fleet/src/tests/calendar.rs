//! Limits that count in windows of the calendar, at gates that share them.

use super::names::Gate;
use super::*;
use gate_limits::{Calendar, Period, Reserved, WallClock};
use gate_policy::fleet_share::Used;
use gate_policy::reservations::Wanted;

const MINUTE: u64 = 60_000;
const GATES: usize = 3;

/// The monotonic clock's [`at`] zero is a whole minute of Unix time.
const WALL: WallClock = WallClock { ahead_ns: (1_774_731_600 - 1_000) * 1_000_000_000 };

fn a_minute(count: u64) -> Rules {
    let limits = Limits::in_window(count * 1_000, Period::Minute);
    let calendar = Arc::new(Calendar::new(Period::Minute, Calendar::zone("UTC").unwrap()));
    let pattern = Pattern::parse("shop/user=*").unwrap();
    let mut rules = Rules::default();
    rules.add(Rule { calendar: Some(calendar), ..Rule::new(pattern, limits) }).unwrap();
    rules
}

fn owner(count: u64) -> Owner {
    let owner = Owner::new();
    owner.accounts.set_clock(WALL);
    owner.accounts.follow(at(0), a_minute(count), "a test");
    owner
}

/// Gates that share a limit of so many a minute.
struct Fleet {
    count: u64,
    owner: Owner,
    gates: [Gate; GATES],
    sessions: [Session; GATES],
    alice: Name,
}

impl Fleet {
    fn new(count: u64) -> Self {
        let gates = [(); GATES].map(|()| {
            let gate = Gate::with(a_minute(count));
            gate.table.set_clock(WALL);
            gate
        });
        let sessions = [10, 11, 12].map(|gate| Session::new(u64::from(gate), gate, TICK));
        let mut fleet = Self { count, owner: owner(count), gates, sessions, alice: name("shop/user=alice") };
        // A gate that has not reported for long would not be believed.
        fleet.tick(MINUTE - 50);
        fleet
    }

    /// The requests of so many that pass at a gate.
    fn ask(&self, gate: usize, times: u32, millis: u64) -> u64 {
        (0..times).filter(|_| self.gates[gate].charge(&self.alice, 1_000, at(millis))).count() as u64
    }

    fn tick(&mut self, millis: u64) {
        for (gate, session) in self.gates.iter_mut().zip(&mut self.sessions) {
            std::mem::swap(&mut self.owner.session, session);
            gate.tick(&mut self.owner, at(millis));
            std::mem::swap(&mut self.owner.session, session);
        }
    }

    /// Another owner comes in the place of this one, and knows nothing.
    fn restart_owner(&mut self, millis: u64) {
        self.owner = owner(self.count);
        self.sessions = [20, 21, 22].map(|gate| Session::new(u64::from(gate), gate, TICK));
        for (gate, session) in self.gates.iter_mut().zip(&mut self.sessions) {
            std::mem::swap(&mut self.owner.session, session);
            gate.restart(&mut self.owner, at(millis));
            std::mem::swap(&mut self.owner.session, session);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whoever is asked for however much, and when: in no window more than the limit, one request for each gate, and the part that a gate has
    /// that is not asked all the time; and of the limit at least 95 % where that much was asked for over the whole window.
    #[test]
    fn gates_give_out_the_limit_of_each_window(
        count in 1..150_u64,
        minutes in prop::collection::vec((0..GATES, 0..4_u32, prop::collection::vec((0..GATES, 0..200_u64, 1..60_u32), 0..12)), 1..5),
    ) {
        let mut fleet = Fleet::new(count);
        for (minute, (steady, per_tick, asked)) in minutes.iter().enumerate() {
            let begin = (minute as u64 + 1) * MINUTE;
            let mut passed = 0;
            // `Owner::take` says that there are four.
            let part = (count / 4).max(1);
            let is_asked_now_and_then = |gate: usize| {
                !(*steady == gate && *per_tick > 0) && asked.iter().any(|(at, ..)| *at == gate)
            };
            let most = count + GATES as u64 + part * (0..GATES).filter(|gate| is_asked_now_and_then(*gate)).count() as u64;
            // Twenty seconds in which somebody asks, and forty in which nobody does.
            for tick in (0..200).chain((200..600).step_by(10)) {
                let millis = begin + tick * 100;
                passed += fleet.ask(*steady, if tick < 200 { *per_tick } else { 0 }, millis);
                for &(gate, when, times) in asked {
                    if when == tick {
                        passed += fleet.ask(gate, times, millis);
                    }
                }
                fleet.tick(millis + 50);
            }
            prop_assert!(passed <= most, "{passed} of {count} in minute {minute}, at most {most}");
            if *per_tick > 0 {
                prop_assert!(passed * 100 >= count * 95, "{passed} of {count} in minute {minute}");
            }
        }
    }
}

#[test]
fn what_was_given_out_is_no_debt_of_the_next_window() {
    let mut fleet = Fleet::new(100);
    for tick in 0..600 {
        let _ = fleet.ask(0, 5, MINUTE + tick * 100);
        fleet.tick(MINUTE + tick * 100 + 50);
    }
    // An owner that has started since is told of the debt while its window lasts, and of nothing after that.
    fleet.restart_owner(2 * MINUTE - 40);
    let left = |fleet: &Fleet, millis| {
        let account = fleet.owner.accounts.account(at(millis), &fleet.alice).unwrap();
        account.lock_at(at(millis), WALL).shares.left(at(millis))
    };
    assert!(left(&fleet, 2 * MINUTE - 40) <= 0, "{}", left(&fleet, 2 * MINUTE - 40));
    assert_eq!(fleet.ask(0, 3, 2 * MINUTE - 30), 0);
    fleet.restart_owner(2 * MINUTE + 10);
    assert_eq!(left(&fleet, 2 * MINUTE + 10), 100_000);
}

#[test]
fn a_debt_of_another_window_than_the_owners_is_none() {
    for (millis, window_left, owed) in [
        (MINUTE + 10_000, 50_000, 30),
        // Clocks differ by a second.
        (MINUTE + 10, 58_990, 30),
        // A report was made 40 ms before the window ended, and took 50 ms.
        (MINUTE + 10, 40, 0),
        // The gate's window has begun, and the owner's has not.
        (2 * MINUTE - 10, 59_995, 0),
        // The gate does not say.
        (MINUTE + 10, 0, 30),
    ] {
        let owner = owner(100);
        let account = owner.accounts.account(at(millis), &name("shop/user=alice")).unwrap();
        let mut state = account.lock_at(at(millis), WALL);
        state.take_over_debt(at(millis), Nanos::from_secs(30), Nanos::from_millis(window_left));
        assert_eq!(state.shares.left(at(millis)), (100 - owed) * 1_000, "{millis} {window_left}");
    }
}

/// Requests a day, by an owner of the tenant `acme`.
fn owner_of_a_day(count: u64) -> Owner {
    let calendar = Arc::new(Calendar::new(Period::Day, Calendar::zone("UTC").unwrap()));
    let limits = Limits::in_window(count * 1_000, Period::Day);
    let mut rules = Rules::default();
    rules
        .add(Rule { calendar: Some(calendar), ..Rule::new(Pattern::parse("acme").unwrap(), limits) })
        .unwrap();
    let owner = Owner::new();
    owner.accounts.set_clock(WALL);
    owner.accounts.follow(at(0), rules, "a test");
    owner
}

#[test]
fn a_tenant_keeps_its_rate_until_its_windows_owner_is_lost() {
    // 5,000 RU/s, and 500 RU at once.
    let own = Limits::new(5_000_000, 100_000_000);
    for (count, used, then, alone) in [
        // The day's part of one gate of four, evenly: of 1,000,000 a day 2.89 RU/s.
        (1_000_000, 0, own, Limits::new(2_893, 0)),
        (1_000_000, 900_000, own, Limits::new(2_893, 0)),
        // A part of a small limit holds less than the tenant's own burst.
        (100, 60, Limits { max_debt_ns: 0, ..Limits::new(5_000_000, 20_000_000) }, Limits::new(0, 0)),
    ] {
        let mut book = book();
        let mut owner = owner_of_a_day(count);
        let line = book.line(&name("acme"));
        let mut now = at(0);
        for tick in 1..=4 {
            now = at(tick * 1_000);
            book.count(line, now, 1 + used * 250, 0);
            exchange(&mut book, &mut owner, now);
        }
        let grant = book.grant(line, now).unwrap();
        assert_eq!(grant.reject_for, Nanos::ZERO);
        assert_eq!(grant.within(own), then, "{used} of {count}");
        let lost = now.saturating_add(Nanos(TICK.0 * KEPT + 1));
        let held = book.grant(line, lost).unwrap().within(own);
        assert_eq!((held.rate.units_per_sec(), held.window), (alone.rate.units_per_sec(), None));
        let a_day = held.rate.amount_in(Period::Day.length().0);
        let part = count * 1_000 / 4;
        assert!(a_day <= part && a_day + a_day / 1_000 >= part, "{a_day} of {part}");
        assert_eq!(held.rate.amount_in(held.burst_ns), part.min(500_000));
    }
}

#[test]
fn a_tenant_is_refused_once_its_window_is_used_up() {
    let mut book = book();
    let mut owner = owner_of_a_day(100);
    let line = book.line(&name("acme"));
    for tick in 1..50 {
        book.count(line, at(tick * 100), if tick < 12 { 10_000 } else { 0 }, 1_000);
        exchange(&mut book, &mut owner, at(tick * 100));
        let rejects = book.grant(line, at(tick * 100)).unwrap().reject_for > Nanos::from_millis(100);
        assert_eq!(rejects, tick > 10, "{tick}");
    }
}

#[test]
fn without_its_owner_a_window_is_reserved_evenly() {
    for (count, known, alone) in [(1_000, 0, 2), (1_000_000, 0, 2_893), (1_000_000, 20_000, 2_893)] {
        let mut book = book();
        let mut owner = owner_of_a_day(count);
        let line = book.line(&name("acme"));
        let wanted = Wanted { wanted: known, assigned: known, lasts: Nanos::from_secs(20) };
        let _ = book.reserve(line, at(0), Some(wanted));
        let mut now = at(0);
        for tick in 1..300 {
            now = at(tick * 100);
            exchange(&mut book, &mut owner, now);
            let _ = book.reserve(line, now, (known > 0 || tick == 1).then_some(wanted));
        }
        let lost = now.saturating_add(Nanos(TICK.0 * KEPT + 1));
        let Reserved::Part { per_sec, burst } = book.reserve(line, lost, Some(wanted)) else {
            panic!("{count}")
        };
        assert_eq!(per_sec, alone, "{count}, {known} known");
        let a_day = Period::Day.length();
        assert!(burst >= a_day && burst.0 - a_day.0 < a_day.0 / 1_000, "{burst:?}");
    }
}

#[test]
fn an_account_gives_no_window_twice_whose_beginning_comes_twice() {
    let owner = owner(100);
    let alice = name("shop/user=alice");
    let left = |millis: u64, used| {
        let account = owner.accounts.account(at(millis), &alice).unwrap();
        let mut state = account.lock_at(at(millis), owner.accounts.wall());
        state.shares.report(1, at(millis), Used { within: TICK, charged: used, refused: 0 });
        state.shares.left(at(millis))
    };
    assert_eq!(left(MINUTE - 1, 10_000), 90_000);
    assert_eq!(left(MINUTE, 20_000), 80_000);
    assert_eq!(left(MINUTE - 1, 5_000), 75_000);
    assert_eq!(left(MINUTE + 1, 0), 75_000);
    assert_eq!(left(2 * MINUTE, 0), 100_000);
    // The clock itself is not set back for what is no more than the width of a look at it.
    for (by, passes) in [(-5, false), (5, false), (-11, true), (0, true)] {
        let wall = WallClock { ahead_ns: WALL.ahead_ns + by * 1_000_000 };
        owner.accounts.set_clock(wall);
        assert_eq!(owner.accounts.wall() == wall, passes, "{by} ms");
    }
}

#[test]
fn an_account_begins_its_window_before_it_follows_other_limits() {
    let owner = owner(100);
    let account = owner.accounts.account(at(0), &name("shop/user=alice")).unwrap();
    account.lock_at(at(0), WALL).shares.report(1, at(0), Used { within: TICK, charged: 70_000, refused: 0 });
    let mut hourly = Rules::default();
    let calendar = Arc::new(Calendar::new(Period::Hour, Calendar::zone("UTC").unwrap()));
    let pattern = Pattern::parse("shop/user=*").unwrap();
    let rule =
        Rule { calendar: Some(calendar), ..Rule::new(pattern, Limits::in_window(100_000, Period::Hour)) };
    hourly.add(rule).unwrap();
    owner.accounts.follow(at(MINUTE), hourly, "a test");
    let left = account.lock_at(at(MINUTE), WALL).shares.left(at(MINUTE));
    assert_eq!(left, 100_000);
}
