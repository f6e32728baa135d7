//! A linearizability checker of one register: can the clients' operations have happened one after the other?
//!
//! After Wing and Gong, "Testing and Verifying Concurrent Objects" (1993), with the history read once, in the order
//! of time: at every moment there is a set of what may be the case, which is the register's value and which of the
//! operations under way have taken effect. When an operation ends, only those remain in which it has; if none does,
//! no order explains the history. A read under way that fits the value takes effect at once: that excludes nothing.

use std::collections::{BTreeMap, HashSet};

/// An operation on one register, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it was asked for.
    pub called: u64,
    /// When its answer was there; `u64::MAX` if there was none.
    pub returned: u64,
    /// Its effect.
    pub did: Did,
}

/// The effect of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// Saw this value, or none.
    Read(Option<u64>),
    /// Left this value.
    Write(u64),
    /// Left none. True if there was one before, where the reply says so.
    Delete(Option<bool>),
}

impl Did {
    /// The value after it, if it can take effect on this value.
    fn on(self, value: Option<u64>) -> Option<Option<u64>> {
        match self {
            Self::Read(seen) => (seen == value).then_some(value),
            Self::Write(new) => Some(Some(new)),
            Self::Delete(was_there) => {
                was_there.is_none_or(|was_there| was_there == value.is_some()).then_some(None)
            }
        }
    }
}

/// A possible state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    value: Option<u64>,
    /// Those under way that have taken effect.
    done: u64,
}

/// True if some order of the operations, which begin on an empty register, explains them.
///
/// # Errors
///
/// The operation at whose end there is none.
///
/// # Panics
///
/// If more than 64 are ever under way at once.
pub fn check(history: &[Operation]) -> Result<(), Operation> {
    // Ends before beginnings at the same moment: that asks for more, not for less.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (number, operation) in history.iter().enumerate() {
        events.push((operation.called, true, number));
        if operation.returned < u64::MAX {
            events.push((operation.returned, false, number));
        }
    }
    events.sort_unstable();
    let mut states = HashSet::from([State { value: None, done: 0 }]);
    let mut under_way: BTreeMap<u32, usize> = BTreeMap::new();
    for (_, begins, number) in events {
        if begins {
            let free = (0..64).find(|place| !under_way.contains_key(place));
            under_way.insert(free.expect("at most 64 are under way"), number);
            continue;
        }
        let (&place, _) = under_way.iter().find(|&(_, &other)| other == number).expect("it has begun");
        states = after(states, place, &under_way, history);
        under_way.remove(&place);
        if states.is_empty() {
            return Err(history[number]);
        }
    }
    Ok(())
}

/// The possible states once the operation at `place` has taken effect, which is then forgotten.
fn after(
    states: HashSet<State>,
    place: u32,
    under_way: &BTreeMap<u32, usize>,
    history: &[Operation],
) -> HashSet<State> {
    let mut to_do: Vec<State> = states.into_iter().collect();
    let mut seen: HashSet<State> = HashSet::new();
    let mut over: HashSet<State> = HashSet::new();
    while let Some(mut state) = to_do.pop() {
        for (other, number) in under_way {
            if matches!(history[*number].did, Did::Read(value) if value == state.value) {
                state.done |= 1 << other;
            }
        }
        if state.done >> place & 1 == 1 {
            over.insert(State { done: state.done & !(1 << place), ..state });
            continue;
        }
        if !seen.insert(state.clone()) {
            continue;
        }
        for (other, number) in under_way {
            let is_done = state.done >> other & 1 == 1;
            if let (false, Some(value)) = (is_done, history[*number].did.on(state.value)) {
                to_do.push(State { value, done: state.done | 1 << other });
            }
        }
    }
    over
}

#[cfg(test)]
mod tests {
    use super::Did::{Delete, Read, Write};
    use super::*;

    const NEVER: u64 = u64::MAX;

    fn holds(history: &[(u64, u64, Did)]) -> bool {
        let operation = |&(called, returned, did): &(u64, u64, Did)| Operation { called, returned, did };
        check(&history.iter().map(operation).collect::<Vec<_>>()).is_ok()
    }

    #[test]
    fn what_can_have_happened_is_taken() {
        for history in [
            &[][..],
            &[(0, 1, Read(None)), (2, 3, Write(1)), (4, 5, Read(Some(1))), (6, 7, Delete(Some(true)))],
            // The value may change at any moment of the write.
            &[(0, 9, Write(1)), (1, 2, Read(None)), (3, 4, Read(Some(1))), (5, 6, Read(Some(1)))],
            &[(0, 9, Write(1)), (0, 9, Write(2)), (1, 2, Read(Some(2))), (3, 4, Read(Some(1)))],
            // A write that nobody answered has happened, or not yet.
            &[(0, NEVER, Write(1)), (1, 2, Read(None)), (3, 4, Read(Some(1)))],
            &[(0, NEVER, Write(1)), (1, 2, Read(None))],
            &[(0, 1, Write(1)), (2, 9, Delete(None)), (3, 4, Read(Some(1))), (5, 6, Read(None))],
            &[(0, 1, Delete(Some(false))), (0, 1, Write(1)), (2, 3, Read(Some(1)))],
        ] {
            assert!(holds(history), "{history:?}");
        }
    }

    #[test]
    fn what_cannot_have_happened_is_found() {
        for history in [
            // Stale: the write was over before the read began.
            &[(0, 1, Write(1)), (2, 3, Write(2)), (4, 5, Read(Some(1)))][..],
            &[(0, 1, Write(1)), (2, 3, Read(None))],
            &[(0, 1, Write(1)), (2, 3, Delete(None)), (4, 5, Read(Some(1)))],
            // Out of thin air, and from the future.
            &[(0, 1, Read(Some(1)))],
            &[(0, 1, Read(Some(1))), (2, 3, Write(1))],
            // New, then old, while the write is under way.
            &[(0, 9, Write(1)), (1, 2, Read(Some(1))), (3, 4, Read(None))],
            &[(0, 1, Write(1)), (2, 9, Write(2)), (3, 4, Read(Some(2))), (5, 6, Read(Some(1)))],
            // Two orders of two writes.
            &[(0, 9, Write(1)), (0, 9, Write(2)), (10, 11, Read(Some(1))), (12, 13, Read(Some(2)))],
            // A value that comes back after it was gone.
            &[(0, 1, Write(1)), (2, 9, Delete(None)), (3, 4, Read(None)), (5, 6, Read(Some(1)))],
            &[(0, 1, Write(1)), (2, 3, Delete(Some(false)))],
        ] {
            assert!(!holds(history), "{history:?}");
        }
    }

    #[test]
    fn one_stale_read_in_a_long_history_is_found() {
        // Four clients in turn, each operation overlapping the next three.
        let mut history: Vec<_> = (0..10_000_u64)
            .map(|at| {
                let value = at / 10 * 10;
                let did = if at % 10 == 0 { Write(value) } else { Read(Some(value)) };
                Operation {
                    called: at * 10 + 5 - if at % 10 == 0 { 0 } else { 4 },
                    returned: at * 10 + 9,
                    did,
                }
            })
            .collect();
        assert_eq!(check(&history), Ok(()));
        history[7_777].did = Read(Some(7_760));
        assert_eq!(check(&history), Err(history[7_777]));
    }
}
