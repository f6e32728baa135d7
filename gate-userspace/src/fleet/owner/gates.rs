//! The gates that report, by name.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gate_common::units::Nanos;

use super::session::Session;

/// The gates.
#[derive(Debug, Default)]
pub(super) struct Gates(Mutex<HashMap<String, Gate>>);

#[derive(Debug)]
struct Gate {
    number: u32,
    seen: Nanos,
    charged: u64,
    names: usize,
    /// True if nothing that it has been granted is left.
    is_released: bool,
    /// `None` while a stream has it.
    session: Option<Session>,
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

/// Why a stream gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// A gate of this name is connected.
    Connected,
    /// There are too many.
    TooMany,
}

impl Gates {
    /// Takes a gate's session, or begins one with reports in this interval, which gives back what the one before it had been granted.
    pub(super) fn take(&self, now: Nanos, name: &str, id: u64, interval: Nanos) -> Result<Session, Denied> {
        let gates = &mut *self.lock();
        if let Some(gate) = gates.get_mut(name) {
            let before = gate.session.take().ok_or(Denied::Connected)?;
            gate.seen = now;
            if before.id == id {
                return Ok(before);
            }
            before.release();
            return Ok(Session::new(id, gate.number, interval));
        }
        if gates.len() >= MOST_GATES {
            forget_one(gates, now).ok_or(Denied::TooMany)?;
        }
        let number = (0..).find(|number| gates.values().all(|gate| gate.number != *number));
        let number = number.ok_or(Denied::TooMany)?;
        gates.insert(
            name.to_owned(),
            Gate { number, seen: now, charged: 0, names: 0, is_released: true, session: None },
        );
        Ok(Session::new(id, number, interval))
    }

    /// Puts a session back whose stream has ended.
    pub(super) fn put_back(&self, now: Nanos, name: &str, session: Session) {
        if let Some(gate) = self.lock().get_mut(name) {
            (gate.charged, gate.names) = (session.charged, session.names());
            (gate.is_released, gate.session) = (false, Some(session));
            gate.seen = now;
        }
    }

    /// Notes that a gate has reported.
    pub(super) fn seen(&self, now: Nanos, name: &str, session: &Session) {
        if let Some(gate) = self.lock().get_mut(name) {
            (gate.seen, gate.charged, gate.names) = (now, session.charged, session.names());
        }
    }

    /// Gives back what gates had been granted that left at `left` or before.
    pub(super) fn release_left(&self, left: Nanos) {
        for gate in self.lock().values_mut().filter(|gate| gate.seen <= left && !gate.is_released) {
            if let Some(session) = &gate.session {
                session.release();
                gate.is_released = true;
            }
        }
    }

    /// How many report, or did so within [`LATELY`].
    pub(super) fn count(&self, now: Nanos) -> usize {
        let since = now.saturating_sub(LATELY);
        self.lock().values().filter(|gate| gate.session.is_none() || gate.seen >= since).count()
    }

    /// All of them.
    pub(super) fn known(&self) -> Vec<Known> {
        let known = |(name, gate): (&String, &Gate)| Known {
            name: name.clone(),
            number: gate.number,
            is_connected: gate.session.is_none(),
            charged: gate.charged,
            names: gate.names,
        };
        let mut all: Vec<_> = self.lock().iter().map(known).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Gate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the gate that left first, if that was long ago.
fn forget_one(gates: &mut HashMap<String, Gate>, now: Nanos) -> Option<()> {
    let gone =
        gates.iter().filter(|(_, gate)| gate.session.is_some() && gate.seen < now.saturating_sub(LATELY));
    let name = gone.min_by_key(|(_, gate)| gate.seen).map(|(name, _)| name.clone())?;
    if let Some(session) = gates.remove(&name).and_then(|gate| gate.session) {
        session.release();
    }
    Some(())
}

/// A gate that left longer ago is not counted as one that shares the limits.
const LATELY: Nanos = Nanos::from_secs(60);
/// The most gates that are known.
const MOST_GATES: usize = 4_096;
