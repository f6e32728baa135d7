//! Reservations: the parts of one limit that several gates may assign to their Envoys.
//!
//! **Problem.** An Envoy gives out what it was assigned by itself, for longer than a gate's share holds. A gate has it back when the Envoy
//! was assigned less, or the assignment is over. Until then it must be nobody else's.
//!
//! **Source.** Envoy's rate limit quota service: the assignments of a bucket never add up to more than its limit.
//!
//! **Rule.** Each report of a gate says which rate its Envoys want, and which they have. The limit is divided max-min fair ([`divide`]), what
//! nobody wants equally. A gate's part grows only by what no other gate holds: its part, the one before, which it may still have assigned when it
//! reported, or what it says is assigned, whichever is the most. A gate that reports no longer holds its part until its assignments are over. An owner
//! that has just begun to keep a limit reserves no more than is assigned for [`FIRST`]: others may hold parts that it has not heard of.
//!
//! **Invariants.** Pure. What gates hold never adds up to more than the limit, if they assign no more than they may and no other owner
//! reserves parts of it. Any time and any count is safe.

use gate_common::units::Nanos;

/// The parts of one limit. See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    gates: Vec<Gate>,
    /// Since when there is any.
    since: Nanos,
    /// Space for [`divide`].
    order: Vec<(u64, usize)>,
}

/// The demand of a gate's Envoys for a limit. Rates are thousandths of a request unit per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The rate that they are asked for.
    pub wanted: u64,
    /// The rate that they are assigned.
    pub assigned: u64,
    /// The longest time for which that holds.
    pub lasts: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Gate {
    session: u64,
    wanted: u64,
    assigned: u64,
    part: u64,
    /// The part before.
    before: u64,
    /// When it holds nothing any more, if it does not report.
    until: Nanos,
}

impl Gate {
    fn held(&self) -> u64 {
        self.assigned.max(self.part).max(self.before)
    }
}

impl Reservations {
    /// Takes in the report of a gate's session. Returns what the gate may assign of `per_sec` until its next report; `None` while that is not
    /// known, or nothing.
    pub fn report(&mut self, session: u64, now: Nanos, wanted: Wanted, per_sec: u64) -> Option<u64> {
        self.gates.retain(|gate| now < gate.until);
        if self.gates.is_empty() {
            self.since = now;
        }
        let place = self.place(session).unwrap_or_else(|| {
            self.gates.push(Gate { session, wanted: 0, assigned: 0, part: 0, before: 0, until: now });
            self.gates.len() - 1
        });
        let gate = &mut self.gates[place];
        (gate.wanted, gate.assigned) = (wanted.wanted, wanted.assigned);
        gate.until = now.saturating_add(wanted.lasts.max(SHORTEST).min(LONGEST));
        let others = self.gates.iter().enumerate().filter(|(other, _)| *other != place);
        let others = others.fold(0, |sum: u64, (_, gate)| sum.saturating_add(gate.held()));
        let is_first = now < self.since.saturating_add(FIRST);
        let target = if is_first { wanted.assigned } else { self.target(place, per_sec) };
        let part = target.min(per_sec.saturating_sub(others));
        let gate = &mut self.gates[place];
        (gate.before, gate.part) = (gate.part, part);
        gate.known_part()
    }

    /// The part that was returned last to a gate's session.
    #[must_use]
    pub fn part(&self, session: u64) -> Option<u64> {
        self.place(session).and_then(|place| self.gates[place].known_part())
    }

    /// True if nobody holds a part.
    #[must_use]
    pub fn is_empty(&self, now: Nanos) -> bool {
        self.gates.iter().all(|gate| gate.until <= now)
    }

    fn place(&self, session: u64) -> Option<usize> {
        self.gates.iter().position(|gate| gate.session == session)
    }

    /// The fair part of a gate. One whose Envoys want nothing has some, so that they can give out the first requests that come.
    fn target(&mut self, place: usize, per_sec: u64) -> u64 {
        let count = self.gates.len() as u64;
        let floor = per_sec / (FLOOR * count);
        self.order.clear();
        self.order.extend(self.gates.iter().enumerate().map(|(place, gate)| (gate.wanted.max(floor), place)));
        let left = divide(per_sec, &mut self.order);
        let part = self.order.iter().find(|(_, other)| *other == place).map_or(0, |(part, _)| *part);
        part + left / count
    }
}

impl Gate {
    /// Nothing at all is not said: others are about to give something up.
    fn known_part(&self) -> Option<u64> {
        (self.part > 0 || self.assigned > 0).then_some(self.part)
    }
}

/// Divides an amount max-min fair: whoever wants less than an equal part gets that, and the others divide the rest. Each wanted amount becomes
/// the part. Returns what nobody wants. The order changes.
pub fn divide(amount: u64, wanted: &mut [(u64, usize)]) -> u64 {
    wanted.sort_unstable();
    let count = wanted.len() as u64;
    let mut left = amount;
    for (served, (wanted, _)) in wanted.iter_mut().enumerate() {
        *wanted = (*wanted).min(left / (count - served as u64));
        left -= *wanted;
    }
    left
}

/// Every gate can have so small a part of an equal one, whatever it is asked for.
pub const FLOOR: u64 = 10;
/// How long an owner that is new to a limit reserves nothing new: all gates report several times meanwhile.
pub const FIRST: Nanos = Nanos::from_secs(1);
/// How long a gate that reports no longer holds its part at least.
const SHORTEST: Nanos = Nanos::from_secs(1);
/// The longest time that a gate is believed.
const LONGEST: Nanos = Nanos::from_secs(300);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 100_000;

    fn at(millis: u64) -> Nanos {
        Nanos::from_millis(1_000_000 + millis)
    }

    fn wanted(wanted: u64, assigned: u64) -> Wanted {
        Wanted { wanted, assigned, lasts: Nanos::from_secs(20) }
    }

    #[test]
    fn parts_follow_demand_and_grow_by_what_others_gave_up() {
        let mut parts = Reservations::default();
        assert_eq!(parts.report(1, at(0), wanted(LIMIT, 0), LIMIT), None, "others may hold parts");
        assert_eq!(parts.report(1, at(1_000), wanted(LIMIT, 0), LIMIT), Some(LIMIT));
        assert_eq!(parts.report(2, at(1_050), wanted(LIMIT, 0), LIMIT), None, "the first has all of it");
        assert_eq!(parts.report(1, at(1_100), wanted(LIMIT, LIMIT), LIMIT), Some(LIMIT / 2));
        assert_eq!(parts.report(2, at(1_150), wanted(LIMIT, 0), LIMIT), None, "its Envoys are not told yet");
        assert_eq!(parts.report(1, at(1_200), wanted(LIMIT, LIMIT / 2), LIMIT), Some(LIMIT / 2));
        assert_eq!(parts.report(2, at(1_250), wanted(LIMIT, 0), LIMIT), Some(LIMIT / 2));
        // The second is asked for nothing any more.
        assert_eq!(parts.report(2, at(1_300), wanted(0, LIMIT / 2), LIMIT), Some(LIMIT / 20));
        for (millis, assigned) in [(1_350, LIMIT / 2), (1_400, LIMIT / 20)] {
            assert_eq!(parts.report(1, at(millis), wanted(LIMIT, LIMIT / 2), LIMIT), Some(LIMIT / 2));
            assert_eq!(parts.report(2, at(millis), wanted(0, assigned), LIMIT), Some(LIMIT / 20));
        }
        assert_eq!(parts.report(1, at(1_450), wanted(LIMIT, LIMIT / 2), LIMIT), Some(LIMIT - LIMIT / 20));
        assert_eq!(parts.part(1), Some(LIMIT - LIMIT / 20));
    }

    #[test]
    fn a_gate_that_is_gone_holds_its_part_as_long_as_its_envoys() {
        let mut parts = Reservations::default();
        parts.report(1, at(0), wanted(LIMIT, LIMIT / 2), LIMIT);
        parts.report(2, at(0), wanted(LIMIT, LIMIT / 2), LIMIT);
        for millis in (100..20_000).step_by(100) {
            let part = parts.report(2, at(millis), wanted(LIMIT, LIMIT / 2), LIMIT);
            assert_eq!(part, Some(LIMIT / 2), "{millis}");
        }
        assert_eq!(parts.report(2, at(20_000), wanted(LIMIT, LIMIT / 2), LIMIT), Some(LIMIT));
        assert!(!parts.is_empty(at(39_999)) && parts.is_empty(at(40_000)));
    }

    #[test]
    fn a_new_owner_reserves_what_is_assigned_and_no_more() {
        let mut parts = Reservations::default();
        for millis in [0, 900] {
            assert_eq!(parts.report(1, at(millis), wanted(LIMIT, LIMIT / 4), LIMIT), Some(LIMIT / 4));
        }
        assert_eq!(parts.report(2, at(950), wanted(LIMIT, LIMIT / 2), LIMIT), Some(LIMIT / 2));
        assert_eq!(parts.report(1, at(1_000), wanted(LIMIT, LIMIT / 4), LIMIT), Some(LIMIT / 2));
        // More than there is: each gets what is left of it, at last nothing.
        assert_eq!(parts.report(3, at(1_050), wanted(0, u64::MAX), LIMIT), Some(0));
    }

    /// A gate that assigns as much as it may, as soon as it has read an answer.
    #[derive(Clone, Copy, Debug, Default)]
    struct Obedient {
        assigned: u64,
        may: u64,
        answer: Option<Option<u64>>,
    }

    proptest! {
        #[test]
        fn what_all_envoys_are_assigned_is_never_more_than_the_limit(
            steps in proptest::collection::vec((0..4_usize, 0..3_u8, 0..2 * LIMIT, 0..300_u64), 1..400),
        ) {
            let mut parts = Reservations::default();
            let mut gates = [Obedient::default(); 4];
            let mut now = at(0);
            for (place, step, asked, wait) in steps {
                now = now.saturating_add(Nanos::from_millis(wait));
                let gate = &mut gates[place];
                match step {
                    // One report is outstanding at a time.
                    0 if gate.answer.is_none() => {
                        let asked = Wanted { lasts: Nanos::from_secs(1_000), ..wanted(asked, gate.assigned) };
                        gate.answer = Some(parts.report(place as u64, now, asked, LIMIT));
                    }
                    1 => {
                        if let Some(answer) = gate.answer.take() {
                            gate.may = answer.unwrap_or(0);
                            gate.assigned = gate.assigned.min(gate.may);
                        }
                    }
                    _ => gate.assigned = gate.may,
                }
                let sum: u64 = gates.iter().map(|gate| gate.assigned).sum();
                prop_assert!(sum <= LIMIT, "{gates:?}");
                // Within 300 s nobody is forgotten here, since nobody is silent for so long.
                prop_assert!(parts.gates.iter().map(Gate::held).sum::<u64>() <= LIMIT, "{parts:?}");
            }
        }

        #[test]
        fn any_report_is_safe(
            reports in proptest::collection::vec(any::<(u64, u64, u64, u64, u64, u64)>(), 1..50),
        ) {
            let mut parts = Reservations::default();
            for (session, now, wanted, assigned, lasts, per_sec) in reports {
                let wanted = Wanted { wanted, assigned, lasts: Nanos(lasts) };
                let part = parts.report(session % 5, Nanos(now), wanted, per_sec);
                prop_assert!(part.is_none_or(|part| part <= per_sec));
            }
        }
    }
}
