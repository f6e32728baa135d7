//! Keys whose removal has not reached the disk.
//!
//! A key that is removed must not be found again: neither by a look-up that has read the disk before, nor by one that reads it
//! before the removal is written. The first sees another generation, the second finds the key here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The removals of a cache.
#[derive(Debug, Default)]
pub(super) struct Removals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    generation: u64,
    /// By prefix of keys: how many removals of it are to be written.
    pending: HashMap<Box<[u8]>, usize>,
}

/// The state of removals when a look-up began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation(u64);

impl Removals {
    /// A look-up of this key begins; `None` if the disk may have what is removed.
    pub(super) fn begin(&self, key: &[u8]) -> Option<Generation> {
        let state = self.lock();
        let is_pending =
            !state.pending.is_empty() && state.pending.keys().any(|prefix| key.starts_with(prefix));
        (!is_pending).then_some(Generation(state.generation))
    }

    /// True if nothing has been removed since.
    pub(super) fn is_current(&self, since: Generation) -> bool {
        self.lock().generation == since.0
    }

    /// Keys with this prefix are to be removed.
    pub(super) fn add(&self, prefix: &[u8]) {
        let state = &mut *self.lock();
        state.generation += 1;
        *state.pending.entry(prefix.into()).or_default() += 1;
    }

    /// The disk has done so, once.
    pub(super) fn done(&self, prefix: &[u8]) {
        let state = &mut *self.lock();
        if let Some(count) = state.pending.get_mut(prefix) {
            *count -= 1;
            if *count == 0 {
                state.pending.remove(prefix);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_key_is_not_looked_up_until_the_disk_has_done_so() {
        let removals = Removals::default();
        let before = removals.begin(b"ab").unwrap();
        removals.add(b"a");
        removals.add(b"a");
        assert!(!removals.is_current(before), "it may have read the old one");
        removals.done(b"a");
        assert_eq!(removals.begin(b"ab"), None);
        assert!(removals.begin(b"b").is_some());
        removals.done(b"a");
        assert!(removals.begin(b"ab").is_some_and(|begun| removals.is_current(begun)));
    }
}
