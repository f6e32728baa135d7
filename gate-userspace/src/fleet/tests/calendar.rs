//! Limits that count in windows of the calendar, at gates that share them.

use super::names::Gate;
use super::*;
use crate::limits::{Calendar, Period, WallClock};

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
