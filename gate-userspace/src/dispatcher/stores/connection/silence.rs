//! The end of a connection whose store is silent.

use gate_common::units::Nanos;

use super::StoreConnection;
use crate::dispatcher::metrics::store_state::StoreState;
use crate::dispatcher::store_silence::SilenceLimits;
use crate::dispatcher::stores::events::StoreEvents;

impl<E: StoreEvents> StoreConnection<E> {
    /// Looks whether the store has been silent for too long, here or, by its `shared` state, on all connections. How old a request is
    /// says nothing while answers to others come, or parts of one.
    pub(crate) fn check(&self, now: Nanos, (limits, shared): (SilenceLimits, &StoreState)) {
        let mut state = self.state.borrow_mut();
        if self.is_paused.get() {
            state.last_read = now;
        } else {
            shared.note_heard(state.last_read);
        }
        let is_slow = state.slow > 0;
        let oldest = state.waiting.front().map(|waiting| waiting.since.max(state.last_read));
        if oldest.is_none() {
            state.health.idle(now);
        }
        let is_trusted = state.health.is_trusted();
        let last_read = state.last_read;
        drop(state);
        // A store that does something slow is there all the same: its machine acknowledges what it does not read.
        let is_unreachable = |since: Nanos| {
            let is_late = now > since.saturating_add(limits.timeout);
            let socket = self.socket.borrow().upgrade().filter(|_| is_late);
            socket.is_some_and(|socket| socket.is_unreachable(limits.timeout))
        };
        let overdue = oldest.filter(|&since| now > limits.end(since, is_slow) || is_unreachable(since));
        overdue.iter().for_each(|&since| shared.suspect(since));
        let is_silent =
            || is_trusted && !is_slow && shared.silent_since().is_some_and(|since| last_read < since);
        if overdue.is_some() || is_silent() {
            self.overdue.set(true);
            self.wake();
        }
    }
}
