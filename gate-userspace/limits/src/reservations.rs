//! The names whose limits are also assigned to Envoys, where several gates share them: what Envoys want and have, and the part that the
//! limit's owner has reserved for this gate.
//!
//! **Invariant.** A name's assignments change under the lock under which its part does. So what is said to be assigned when the part is
//! smaller than before can only become less until the next look.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gate_common::units::Nanos;

use super::name::Name;
use gate_policy::reservations::Wanted;

/// The part of a name's limit that this gate may assign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserved {
    /// Not known yet: nothing is assigned.
    #[default]
    Unknown,
    /// No other gate shares it: gate's own limit holds.
    Own,
    /// A part of the limit.
    Part {
        /// In thousandths of a request unit per second.
        per_sec: u64,
        /// The limit's burst.
        burst: Nanos,
    },
}

/// The assignments of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The rate that is asked for, in thousandths of a request unit per second.
    pub wanted: u64,
    /// The rate that is assigned.
    pub assigned: u64,
    /// When none of it holds any more, nor any report is expected.
    pub until: Nanos,
}

/// The names that are also assigned to Envoys, and what is reserved of each.
#[derive(Debug, Default)]
pub struct Reservations(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    names: HashMap<Name, (Assigned, Reserved)>,
    /// Names whose part has changed since they were last taken.
    changed: Vec<Name>,
}

impl Reservations {
    /// Changes the assignments of a name, by the part that is reserved.
    pub fn assign<T>(&self, name: &Name, assign: impl FnOnce(Reserved) -> (T, Assigned)) -> T {
        let mut state = self.lock();
        let known = state.names.get_mut(name);
        let (result, assigned) = assign(known.as_ref().map(|(_, reserved)| *reserved).unwrap_or_default());
        match known {
            Some(known) => known.0 = assigned,
            None => drop(state.names.insert(name.clone(), (assigned, Reserved::Unknown))),
        }
        result
    }

    /// The names whose part has changed since the last call.
    pub fn take_changed(&self) -> Vec<Name> {
        std::mem::take(&mut self.lock().changed)
    }

    /// Puts the parts in force that `part` returns for what is wanted; it is `None` when a name is assigned no longer. `part` must not use
    /// the table.
    pub fn exchange(&self, now: Nanos, mut part: impl FnMut(&Name, Option<Wanted>) -> Reserved) {
        let State { names, changed } = &mut *self.lock();
        names.retain(|name, (assigned, reserved)| {
            let lasts = assigned.until.saturating_sub(now);
            let is_assigned = lasts > Nanos::ZERO;
            let Assigned { wanted, assigned, .. } = *assigned;
            let part = part(name, is_assigned.then_some(Wanted { wanted, assigned, lasts }));
            if is_assigned && std::mem::replace(reserved, part) != part {
                changed.push(name.clone());
            }
            is_assigned
        });
    }

    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
