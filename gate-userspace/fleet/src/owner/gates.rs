//! The gates that report, by name.
//!
//! **Lifetimes.** A gate that has left keeps what it was granted for [`RELEASE_AFTER`] and its session, in which
//! it may go on where it was, for [`SESSION_KEPT`], or until there is no room for the sessions of others. The debts that it left are the
//! accounts'. Then the number of its last report alone is known, so that one that was not answered is not charged twice, and after
//! [`FORGOTTEN_AFTER`] nothing.
//!
//! **Locks.** One lock covers all gates. Reports and joins do nothing under it that takes longer the more gates there are: those that have
//! left are in a queue, in the order in which they did, and how many share the limits is counted as they come and go.
//!
//! **Two at a time.** A process that takes over from another one of its gate, or drains its clients, says so, and both may report.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gate_common::units::Nanos;

use super::session::{RELEASE_AFTER, Session};

/// The gates.
#[derive(Debug, Default)]
pub(super) struct Gates(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    by_name: HashMap<Arc<str>, [Option<Gate>; PLACES]>,
    /// The gates that have left, those first that did so first; and some that have come back or are no more.
    left: VecDeque<Departure>,
    /// How many of them report, or did so within [`LATELY`].
    sharing: usize,
    /// How many gates there are.
    count: usize,
    /// Numbers that no gate has, below the next one.
    vacant: Vec<u32>,
    next: u32,
}

/// A gate that has left at some time. It still has if it was not seen since.
#[derive(Debug)]
struct Departure {
    name: Arc<str>,
    number: u32,
    seen: Nanos,
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
    /// True if it is counted among those that share the limits.
    is_counted: bool,
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
        self.lock().take(now, comer)
    }

    /// Puts a session back whose stream has ended; what is left of one that `is_over` is its number.
    pub(super) fn put_back(&self, now: Nanos, name: &str, session: Session, is_over: bool) {
        self.lock().put_back(now, name, session, is_over);
    }

    /// Notes that a gate has reported.
    pub(super) fn seen(&self, now: Nanos, name: &str, session: &Session) {
        self.lock().gate(name, session.id).into_iter().for_each(|gate| gate.note(now, session));
    }

    /// Gives back what gates had been granted that have left, and in time forgets them.
    pub(super) fn release_left(&self, now: Nanos) {
        self.lock().release_left(now);
    }

    /// Gives up the sessions of all gates that have left.
    pub(super) fn end_left(&self) {
        self.lock().each_left(|_| Fate::End);
    }

    /// How many report, or did so within [`LATELY`] before the last [`Gates::release_left`].
    pub(super) fn sharing(&self) -> usize {
        self.lock().sharing
    }

    /// All of them.
    pub(super) fn known(&self) -> Vec<Known> {
        let state = self.lock();
        let all = state
            .by_name
            .iter()
            .flat_map(|(name, gates)| gates.iter().flatten().map(move |gate| (name, gate)));
        let known = |(name, gate): (&Arc<str>, &Gate)| Known {
            name: name.to_string(),
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

/// The fate of a gate that has left.
enum Fate {
    Keep,
    /// Nothing is left of what it had been granted.
    Release,
    /// Its session ends as well.
    End,
    /// Its session ends, and it no longer counts among those that share the limits.
    Uncount,
    Forget,
}

impl State {
    fn take(&mut self, now: Nanos, comer: Comer<'_>) -> Result<Session, Denied> {
        if self.count >= MOST_GATES && !self.by_name.contains_key(comer.name) {
            self.forget_one(now).ok_or(Denied::TooMany)?;
        }
        let Self { by_name, count, vacant, next, sharing, .. } = self;
        if !by_name.contains_key(comer.name) {
            by_name.insert(comer.name.into(), Default::default());
        }
        let places = by_name.get_mut(comer.name).ok_or(Denied::TooMany)?;
        let known = places.iter_mut().flatten().find(|gate| gate.id == comer.id);
        if let Some(gate) = known {
            let session = gate.resume(now, comer)?;
            gate.share(sharing);
            return Ok(session);
        }
        let is_free = |gate: &&mut Option<Gate>| gate.as_ref().is_none_or(|gate| !gate.is_connected());
        let is_taken = places.iter().flatten().any(|gate| gate.is_connected() && !gate.drains);
        let may_report = comer.takes_over || comer.drains || !is_taken;
        let place = places.iter_mut().find(is_free).filter(|_| may_report);
        let place = place.ok_or(Denied::Connected)?;
        let mut before = place.take();
        before.iter_mut().for_each(|gate| {
            gate.release();
            gate.leave(sharing);
        });
        let number = before.map(|gate| gate.number).unwrap_or_else(|| {
            *count += 1;
            vacant.pop().unwrap_or_else(|| {
                *next += 1;
                *next - 1
            })
        });
        let gate = place.insert(Gate {
            number,
            seen: now,
            id: comer.id,
            charged: 0,
            names: 0,
            is_released: true,
            drains: comer.drains,
            is_counted: false,
            stage: Stage::Connected,
        });
        gate.share(sharing);
        Ok(Session::new(comer.id, number, comer.interval))
    }

    fn put_back(&mut self, now: Nanos, name: &str, session: Session, is_over: bool) {
        let Some((name, _)) = self.by_name.get_key_value(name) else { return };
        let name = Arc::clone(name);
        let Some(gate) = self.gate(&name, session.id) else { return };
        gate.note(now, &session);
        gate.is_released = false;
        gate.stage = Stage::Left(session);
        if is_over {
            // It begins anew, and what it introduces then has no place beside what it has now.
            gate.end();
            gate.id = 0;
        }
        let departure = Departure { name, number: gate.number, seen: gate.seen };
        self.left.push_back(departure);
    }

    fn release_left(&mut self, now: Nanos) {
        self.each_left(|gate| match now.saturating_sub(gate.seen) {
            left if left > FORGOTTEN_AFTER => Fate::Forget,
            left if left > LATELY => Fate::Uncount,
            left if left >= SESSION_KEPT => Fate::End,
            left if left >= RELEASE_AFTER => Fate::Release,
            _ => Fate::Keep,
        });
    }

    /// Decides of every gate that has left, in the order in which they did.
    fn each_left(&mut self, mut fate: impl FnMut(&mut Gate) -> Fate) {
        for _ in 0..self.left.len() {
            let Some(departure) = self.left.pop_front() else { return };
            let Some(gate) = self.departed(&departure) else { continue };
            match fate(gate) {
                Fate::Keep => {}
                Fate::Release => gate.give_back(),
                Fate::End => gate.end(),
                Fate::Uncount => {
                    gate.end();
                    let was_counted = std::mem::take(&mut gate.is_counted);
                    self.sharing -= usize::from(was_counted);
                }
                Fate::Forget => {
                    self.forget(&departure);
                    continue;
                }
            }
            self.left.push_back(departure);
        }
    }

    /// The gate of a session.
    fn gate(&mut self, name: &str, id: u64) -> Option<&mut Gate> {
        self.by_name.get_mut(name)?.iter_mut().flatten().find(|gate| gate.id == id)
    }

    /// The gate of a departure, unless it has come back since, or another one is in its place.
    fn departed(&mut self, departure: &Departure) -> Option<&mut Gate> {
        let is_it = |gate: &&mut Gate| {
            !gate.is_connected() && (gate.number, gate.seen) == (departure.number, departure.seen)
        };
        self.by_name.get_mut(&departure.name)?.iter_mut().flatten().find(is_it)
    }

    /// Forgets the gate that left first, if that was long ago.
    fn forget_one(&mut self, now: Nanos) -> Option<()> {
        while let Some(departure) = self.left.pop_front() {
            if self.departed(&departure).is_none() {
                continue;
            }
            if departure.seen >= now.saturating_sub(LATELY) {
                self.left.push_front(departure);
                return None;
            }
            self.forget(&departure);
            return Some(());
        }
        None
    }

    fn forget(&mut self, departure: &Departure) {
        let Self { by_name, count, vacant, sharing, .. } = self;
        let Some(places) = by_name.get_mut(&departure.name) else { return };
        let is_it = |gate: &mut Gate| gate.number == departure.number;
        for mut gate in places.iter_mut().filter_map(|place| place.take_if(is_it)) {
            gate.release();
            gate.leave(sharing);
            vacant.push(gate.number);
            *count -= 1;
        }
        if places.iter().all(Option::is_none) {
            by_name.remove(&departure.name);
        }
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

    /// Counts it among those that share the limits.
    fn share(&mut self, sharing: &mut usize) {
        *sharing += usize::from(!std::mem::replace(&mut self.is_counted, true));
    }

    /// Counts it no longer.
    fn leave(&mut self, sharing: &mut usize) {
        *sharing -= usize::from(std::mem::take(&mut self.is_counted));
    }

    /// Gives back what it had been granted, if it has left.
    fn give_back(&mut self) {
        if !std::mem::replace(&mut self.is_released, true) {
            self.release();
        }
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
mod tests;
