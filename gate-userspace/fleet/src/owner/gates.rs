//! The gates that report, by name.
//!
//! **Lifetimes.** A gate that has left keeps what it was granted for [`RELEASE_AFTER`] and its session, in which
//! it may go on where it was, for [`SESSION_KEPT`], or until there is no room for the sessions of others. The debts that it left are the
//! accounts'. Then the number of its last report alone is known, so that one that was not answered is not charged twice, and after
//! [`FORGOTTEN_AFTER`] nothing.
//!
//! **Two at a time.** A process that takes over from another one of its gate, or drains its clients, says so, and both may report.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gate_common::units::Nanos;

use super::session::{RELEASE_AFTER, Session};

/// The gates.
#[derive(Debug, Default)]
pub(super) struct Gates(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    by_name: HashMap<String, [Option<Gate>; PLACES]>,
    /// How many gates there are.
    count: usize,
    /// Numbers that no gate has, below the next one.
    vacant: Vec<u32>,
    next: u32,
}

#[derive(Debug)]
struct Gate {
    number: u32,
    seen: Nanos,
    /// Its session's.
    id: u64,
    charged: u64,
    names: usize,
    /// True if nothing that it has been granted is left.
    is_released: bool,
    /// True if its successor may report as well.
    drains: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Connected,
    Left(Session),
    /// Its session's handles were given up.
    Ended,
}

/// A gate, for people.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) number: u32,
    pub(super) is_connected: bool,
    pub(super) charged: u64,
    pub(super) names: usize,
}

/// A gate that begins to report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comer<'n> {
    pub(super) name: &'n str,
    /// The session's.
    pub(super) id: u64,
    pub(super) interval: Nanos,
    /// True if it takes over from another one of this name, which may be connected.
    pub(super) takes_over: bool,
    /// True if it drains its clients: its successor may be connected.
    pub(super) drains: bool,
}

/// Why a stream gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// A gate of this name is connected.
    Connected,
    /// There are too many.
    TooMany,
}

impl Gates {
    /// Takes a gate's session, or begins one, which gives back what the one before it had been granted.
    pub(super) fn take(&self, now: Nanos, comer: Comer<'_>) -> Result<Session, Denied> {
        let state = &mut *self.lock();
        if state.count >= MOST_GATES && !state.by_name.contains_key(comer.name) {
            state.forget_one(now).ok_or(Denied::TooMany)?;
        }
        let places = state.by_name.entry(comer.name.to_owned()).or_default();
        let known = places.iter_mut().flatten().find(|gate| gate.id == comer.id);
        if let Some(gate) = known {
            return gate.resume(now, comer);
        }
        let is_free = |gate: &&mut Option<Gate>| gate.as_ref().is_none_or(|gate| !gate.is_connected());
        let is_taken = places.iter().flatten().any(|gate| gate.is_connected() && !gate.drains);
        let may_report = comer.takes_over || comer.drains || !is_taken;
        let place = places.iter_mut().find(is_free).filter(|_| may_report);
        let place = place.ok_or(Denied::Connected)?;
        let before = place.take();
        before.iter().for_each(Gate::release);
        let number = before.map(|gate| gate.number).unwrap_or_else(|| {
            state.count += 1;
            state.vacant.pop().unwrap_or_else(|| {
                state.next += 1;
                state.next - 1
            })
        });
        *place = Some(Gate {
            number,
            seen: now,
            id: comer.id,
            charged: 0,
            names: 0,
            is_released: true,
            drains: comer.drains,
            stage: Stage::Connected,
        });
        Ok(Session::new(comer.id, number, comer.interval))
    }

    /// Puts a session back whose stream has ended; what is left of one that `is_over` is its number.
    pub(super) fn put_back(&self, now: Nanos, name: &str, session: Session, is_over: bool) {
        if let Some(gate) = self.lock().gate(name, session.id) {
            gate.note(now, &session);
            gate.is_released = false;
            gate.stage = Stage::Left(session);
            if is_over {
                // It begins anew, and what it introduces then has no place beside what it has now.
                gate.end();
                gate.id = 0;
            }
        }
    }

    /// Notes that a gate has reported.
    pub(super) fn seen(&self, now: Nanos, name: &str, session: &Session) {
        self.lock().gate(name, session.id).into_iter().for_each(|gate| gate.note(now, session));
    }

    /// Gives back what gates had been granted that have left, and in time forgets them.
    pub(super) fn release_left(&self, now: Nanos) {
        let state = &mut *self.lock();
        for gate in state.gates().filter(|gate| !gate.is_connected()) {
            let left = now.saturating_sub(gate.seen);
            if left >= RELEASE_AFTER && !gate.is_released {
                gate.release();
                gate.is_released = true;
            }
            if left >= SESSION_KEPT {
                gate.end();
            }
        }
        let until = now.saturating_sub(FORGOTTEN_AFTER);
        state.forget(|_, gate| !gate.is_connected() && gate.seen < until);
    }

    /// Gives up the sessions of all gates that have left.
    pub(super) fn end_left(&self) {
        self.lock().gates().for_each(Gate::end);
    }

    /// How many report, or did so within [`LATELY`].
    pub(super) fn count(&self, now: Nanos) -> usize {
        let since = now.saturating_sub(LATELY);
        self.lock().gates().filter(|gate| gate.is_connected() || gate.seen >= since).count()
    }

    /// All of them.
    pub(super) fn known(&self) -> Vec<Known> {
        let state = self.lock();
        let all = state
            .by_name
            .iter()
            .flat_map(|(name, gates)| gates.iter().flatten().map(move |gate| (name, gate)));
        let known = |(name, gate): (&String, &Gate)| Known {
            name: name.clone(),
            number: gate.number,
            is_connected: gate.is_connected(),
            charged: gate.charged,
            names: gate.names,
        };
        let mut all: Vec<_> = all.map(known).collect();
        all.sort_unstable_by(|a, b| (&a.name, a.number).cmp(&(&b.name, b.number)));
        all
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn gates(&mut self) -> impl Iterator<Item = &mut Gate> {
        self.by_name.values_mut().flatten().flatten()
    }

    /// The gate of a session.
    fn gate(&mut self, name: &str, id: u64) -> Option<&mut Gate> {
        self.by_name.get_mut(name)?.iter_mut().flatten().find(|gate| gate.id == id)
    }

    /// Forgets the gate that left first, if that was long ago.
    fn forget_one(&mut self, now: Nanos) -> Option<()> {
        let gone = self.gates().filter(|gate| !gate.is_connected() && gate.seen < now.saturating_sub(LATELY));
        let number = gone.min_by_key(|gate| gate.seen)?.number;
        self.forget(|_, gate| gate.number == number);
        Some(())
    }

    /// Forgets these.
    fn forget(&mut self, is_gone: impl Fn(&str, &Gate) -> bool) {
        let Self { by_name, count, vacant, .. } = self;
        by_name.retain(|name, places| {
            for place in places.iter_mut() {
                let Some(gate) = place.take_if(|gate| is_gone(name, gate)) else { continue };
                gate.release();
                vacant.push(gate.number);
                *count -= 1;
            }
            places.iter().any(Option::is_some)
        });
    }
}

impl Gate {
    const fn is_connected(&self) -> bool {
        matches!(self.stage, Stage::Connected)
    }

    /// Goes on with its session. One whose handles were given up knows the number of its last report.
    fn resume(&mut self, now: Nanos, comer: Comer<'_>) -> Result<Session, Denied> {
        if self.is_connected() {
            return Err(Denied::Connected);
        }
        (self.seen, self.drains) = (now, comer.drains);
        match std::mem::replace(&mut self.stage, Stage::Connected) {
            Stage::Left(session) => Ok(session),
            Stage::Connected | Stage::Ended => {
                let mut session = Session::new(self.id, self.number, comer.interval);
                session.ended = self.charged;
                Ok(session)
            }
        }
    }

    /// Notes what its session has come to.
    fn note(&mut self, now: Nanos, session: &Session) {
        self.seen = now;
        self.names = session.names();
        // A session whose handles were given up has charged nothing since.
        self.charged = self.charged.max(session.charged);
    }

    fn release(&self) {
        if let Stage::Left(session) = &self.stage {
            session.release();
        }
    }

    /// Gives up the session of one that has left.
    fn end(&mut self) {
        if !self.is_connected() {
            self.release();
            (self.is_released, self.stage, self.names) = (true, Stage::Ended, 0);
        }
    }
}

/// Gates of one name at once: one that drains its clients, and its successor.
const PLACES: usize = 2;
/// A gate that left longer ago is not counted as one that shares the limits.
const LATELY: Nanos = Nanos::from_secs(60);
/// How long the session of a gate that has left is kept.
pub(super) const SESSION_KEPT: Nanos = Nanos::from_secs(10);
/// How long it is known that a gate has left.
const FORGOTTEN_AFTER: Nanos = Nanos::from_secs(600);
/// The most gates that are known.
const MOST_GATES: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(10_000 + seconds)
    }

    const fn comer(id: u64, takes_over: bool) -> Comer<'static> {
        Comer { name: "gate-1", id, interval: Nanos::from_millis(100), takes_over, drains: false }
    }

    #[test]
    fn of_a_name_one_reports_and_its_successor_beside_it() {
        let gates = Gates::default();
        let first = gates.take(at(0), comer(1, false)).unwrap();
        assert_eq!(gates.take(at(0), comer(2, false)).unwrap_err(), Denied::Connected);
        let second = gates.take(at(0), comer(2, true)).unwrap();
        assert_ne!(first.gate, second.gate, "each has its own part");
        assert_eq!(gates.take(at(0), comer(3, true)).unwrap_err(), Denied::Connected);
        assert_eq!(gates.count(at(0)), 2);
        // The first drains: its stream breaks, and goes on.
        gates.put_back(at(1), "gate-1", first, false);
        let drains = Comer { drains: true, ..comer(1, false) };
        let first = gates.take(at(1), drains).unwrap();
        gates.put_back(at(2), "gate-1", second, false);
        let second = gates.take(at(3), comer(4, false));
        assert!(second.is_ok(), "who drains is in nobody's way");
        // It has left for good: its place is the next one's that takes over from the second.
        gates.put_back(at(4), "gate-1", first, false);
        let third = gates.take(at(20), comer(3, true)).unwrap();
        assert_eq!((third.gate, gates.count(at(20))), (0, 2));
    }

    #[test]
    fn who_has_left_is_forgotten_in_time() {
        let gates = Gates::default();
        let leave = |id| {
            let mut session = gates.take(at(0), comer(id, false)).unwrap();
            session.charged = 7;
            gates.put_back(at(0), "gate-1", session, false);
        };
        leave(1);
        gates.release_left(at(9));
        assert_eq!(gates.take(at(9), comer(1, false)).unwrap().charged, 7);
        leave_again(&gates, 1);
        gates.release_left(at(20));
        let session = gates.take(at(20), comer(1, false)).unwrap();
        assert_eq!((session.charged, session.ended), (0, 7));
        gates.put_back(at(20), "gate-1", session, false);
        gates.release_left(at(700));
        assert!(gates.known().is_empty());
        let next = Comer { name: "gate-2", ..comer(1, false) };
        assert_eq!(gates.take(at(700), next).unwrap().gate, 0, "its number is another's");
    }

    fn leave_again(gates: &Gates, id: u64) {
        let mut session = Session::new(id, 0, Nanos::from_millis(100));
        session.charged = 7;
        gates.put_back(at(9), "gate-1", session, false);
    }
}
