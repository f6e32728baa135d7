//! The state of a service's store, as the shared connections of all threads report it, and what of that is logged.
//!
//! **Rule.** A store is up from the first connection on, and down when a connection fails and there is no other. A change is
//! logged at once. While a store stays down, or loses connections without going down, one line in [`REMINDER`] counts the
//! failures: a dead store costs a log line a minute, however many threads and pools try to reach it.
//!
//! **One truth.** Each connection pauses by itself after it has failed. Once one of them reaches a store that was down, the others need
//! not sit out their pauses: [`StoreState::back`]. A store that fails at once again ends their pauses once a second, no more often.
//! Likewise one connection learns for all that the store is silent ([`StoreState::suspect`]): it has waited in vain, and no other has
//! heard anything meanwhile. Those that have not heard either give up with it, whether they had asked or not.
//!
//! **Cost.** While all is well a connection writes here once in 10 ms, when it is looked after, and never per request.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gate_common::units::Nanos;
use tokio::sync::Notify;

use crate::config::StoreAddress;

/// One store's state, shared by all threads. It is locked only when a connection begins or ends, and by readers.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    state: Mutex<State>,
    back: Notify,
    /// When the store last said something on any shared connection, as of when that was looked after.
    heard: AtomicU64,
    /// Since when the store has been silent on all of them; 0 if it is not known to be.
    silent_since: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Connections that there are now.
    connections: u64,
    reached: Option<Reached>,
    /// Failures since the last line in the log.
    failures: u64,
    /// When the last line was written that told of failures.
    logged: Option<Nanos>,
    /// The last failure.
    failed: Option<Nanos>,
    /// When the others' pauses were ended last.
    told: Option<Nanos>,
}

/// Reachability of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// False if it cannot.
    pub up: bool,
    /// Since when, by `CLOCK_MONOTONIC`.
    pub since: Nanos,
}

/// A line for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreLog {
    /// The last connection has failed, or the first could not be made.
    Down,
    /// The store has stayed down for so long; so many failures since the last line.
    StillDown { down_for: Nanos, failures: u64 },
    /// The store is up again, after so long.
    UpAgain { down_for: Nanos },
    /// So many connections have failed since the last line, while others work.
    LostConnections { failures: u64 },
}

impl StoreState {
    /// Notes when a connection has last heard from the store.
    pub(crate) fn note_heard(&self, at: Nanos) {
        if at.0 > self.heard.load(Ordering::Relaxed) {
            self.heard.fetch_max(at.0, Ordering::Relaxed);
            if self.silent_since().is_some_and(|since| at >= since) {
                self.silent_since.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Notes that a connection has waited in vain since then. The store is silent if nothing has been heard since on any other.
    pub(crate) fn suspect(&self, since: Nanos) {
        if self.heard.load(Ordering::Relaxed) < since.0 {
            self.silent_since.store(since.0, Ordering::Relaxed);
        }
    }

    /// When the store last said something on any shared connection, as far as that was looked after.
    pub(super) fn heard(&self) -> Nanos {
        Nanos(self.heard.load(Ordering::Relaxed))
    }

    /// Since when the store has been silent on all shared connections, if it is known to be.
    #[inline]
    pub(crate) fn silent_since(&self) -> Option<Nanos> {
        Some(self.silent_since.load(Ordering::Relaxed)).filter(|&since| since > 0).map(Nanos)
    }

    /// A connection has been established.
    pub(crate) fn connected(&self, now: Nanos) -> Option<StoreLog> {
        self.note_heard(now);
        let mut state = self.lock();
        state.connections += 1;
        let before = state.reached;
        if before.is_some_and(|before| before.up) {
            return None;
        }
        state.reached = Some(Reached { up: true, since: now });
        state.failures = 0;
        // The next failure is news.
        state.logged = None;
        let down_for = now.saturating_sub(before?.since);
        if state.told.is_none_or(|told| now.saturating_sub(told) >= TOLD_EVERY) {
            state.told = Some(now);
            self.back.notify_waiters();
        }
        Some(StoreLog::UpAgain { down_for })
    }

    /// Waits until a connection reaches the store, which was down.
    pub(crate) async fn back(&self) {
        self.back.notified().await;
    }

    /// A connection that had been established has ended.
    pub(crate) fn disconnected(&self) {
        let mut state = self.lock();
        state.connections = state.connections.saturating_sub(1);
    }

    /// A connection has failed, or could not be made.
    pub(crate) fn failed(&self, now: Nanos) -> Option<StoreLog> {
        let mut state = self.lock();
        state.failures += 1;
        state.failed = Some(now);
        let reached = state.reached;
        let is_down = reached.is_some_and(|reached| !reached.up);
        if state.connections == 0 && !is_down {
            state.reached = Some(Reached { up: false, since: now });
            return state.log(now, StoreLog::Down);
        }
        if state.logged.is_some_and(|logged| now.saturating_sub(logged) < REMINDER) {
            return None;
        }
        let failures = state.failures;
        let line = match reached.filter(|_| is_down) {
            Some(Reached { since, .. }) => {
                StoreLog::StillDown { down_for: now.saturating_sub(since), failures }
            }
            None => StoreLog::LostConnections { failures },
        };
        state.log(now, line)
    }

    /// The store is none of the service's any more: nothing is known of whoever takes its place.
    pub(crate) fn left(&self) {
        self.silent_since.store(0, Ordering::Relaxed);
        let mut state = self.lock();
        *state = State { connections: state.connections, ..State::default() };
    }

    /// Reachability of the store; `None` if that has not been tried.
    pub(crate) fn reached(&self) -> Option<Reached> {
        self.lock().reached
    }

    /// True if the store is known to be down at `now`: an attempt to reach it has failed within [`KNOWN_FOR`]. A store
    /// that nobody has tried since, or whose connections were closed because nobody used them, may be up.
    pub(crate) fn is_down(&self, now: Nanos) -> bool {
        let state = self.lock();
        let is_recent = state.failed.is_some_and(|failed| now.saturating_sub(failed) < KNOWN_FOR);
        is_recent && state.reached.is_some_and(|reached| !reached.up)
    }

    /// Connections that there are now.
    pub(crate) fn connections(&self) -> u64 {
        self.lock().connections
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreLog {
    /// Writes the line to the log; `why` is the last failure.
    pub(crate) fn write(self, service: &str, store: &StoreAddress, why: &dyn Display) {
        match self {
            Self::Down => {
                tracing::warn!(service, %store, %why, "the store is down: its requests are refused until it answers");
            }
            Self::StillDown { down_for, failures } => {
                tracing::warn!(service, %store, %why, %down_for, failures, "the store is still down; said once a minute");
            }
            Self::LostConnections { failures } => {
                tracing::warn!(service, %store, %why, failures, "lost connections to the store; said once a minute");
            }
            Self::UpAgain { down_for } => {
                tracing::info!(service, %store, %down_for, "the store is up again");
            }
        }
    }
}

impl State {
    fn log(&mut self, now: Nanos, line: StoreLog) -> Option<StoreLog> {
        self.failures = 0;
        self.logged = Some(now);
        Some(line)
    }
}

/// Longer than the longest pause between two attempts, which is a second.
const KNOWN_FOR: Nanos = Nanos::from_secs(3);
/// How often pauses are ended at most: as often as the longest ends by itself.
const TOLD_EVERY: Nanos = Nanos::from_secs(1);
/// How often a lasting failure is logged.
const REMINDER: Nanos = Nanos::from_secs(60);

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    use super::*;

    const fn at(secs: u64) -> Nanos {
        Nanos::from_secs(secs)
    }

    #[test]
    fn a_store_is_silent_for_all_if_no_connection_has_heard() {
        let state = StoreState::default();
        state.note_heard(at(5));
        state.suspect(at(4));
        assert_eq!(state.silent_since(), None, "another has heard");
        state.suspect(at(6));
        assert_eq!(state.silent_since(), Some(at(6)));
        state.note_heard(at(5));
        assert_eq!(state.silent_since(), Some(at(6)), "that was before");
        state.connected(at(7));
        assert_eq!(state.silent_since(), None);
        state.suspect(at(6));
        assert_eq!(state.silent_since(), None, "a late one learns nothing");
        state.suspect(at(8));
        state.left();
        assert_eq!(state.silent_since(), None);
    }

    #[test]
    fn the_first_connection_is_no_recovery_and_a_later_one_is() {
        let state = StoreState::default();
        assert_eq!(state.reached(), None);
        assert_eq!(state.connected(at(1)), None);
        assert_eq!(state.reached(), Some(Reached { up: true, since: at(1) }));
        state.disconnected();
        assert_eq!(state.failed(at(5)), Some(StoreLog::Down));
        assert_eq!(state.reached(), Some(Reached { up: false, since: at(5) }));
        assert_eq!(state.connected(at(9)), Some(StoreLog::UpAgain { down_for: at(4) }));
        assert_eq!(state.reached(), Some(Reached { up: true, since: at(9) }));
        state.disconnected();
        // However soon: it is a change.
        assert_eq!(state.failed(at(9)), Some(StoreLog::Down));
    }

    #[test]
    fn a_dead_store_is_one_line_a_minute() {
        let state = StoreState::default();
        let tries = (0..1_810).map(|tenths| state.failed(Nanos::from_millis(tenths * 100)));
        let lines: Vec<_> = tries.flatten().collect();
        let still = |minutes: u64| StoreLog::StillDown { down_for: at(60 * minutes), failures: 600 };
        assert_eq!(lines, [StoreLog::Down, still(1), still(2), still(3)]);
    }

    #[test]
    fn a_store_that_is_back_ends_all_pauses_once_a_second() {
        let state = StoreState::default();
        let is_over = |pause: &mut Pin<&mut dyn Future<Output = ()>>| {
            pause.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        let mut now = 0;
        // The milliseconds that the store is down, and whether a pause ends with that.
        for (down_for, ends) in [(100, true), (900, false), (150, true), (10, false)] {
            let pause: &mut Pin<&mut dyn Future<Output = ()>> = &mut pin!(state.back());
            state.failed(Nanos::from_millis(now));
            assert!(!is_over(pause));
            now += down_for;
            state.connected(Nanos::from_millis(now));
            assert_eq!(is_over(pause), ends, "at {now} ms");
            state.disconnected();
        }
        let pause: &mut Pin<&mut dyn Future<Output = ()>> = &mut pin!(state.back());
        assert!(!is_over(pause));
        state.connected(at(9));
        assert!(!is_over(pause), "it was not down");
    }

    #[test]
    fn a_store_that_nobody_tries_any_more_is_not_known_to_be_down() {
        let state = StoreState::default();
        assert!(!state.is_down(at(1)), "nobody has tried it");
        state.connected(at(1));
        state.disconnected();
        assert!(!state.is_down(at(2)), "an idle connection was closed");
        state.failed(at(5));
        assert!(state.is_down(at(5)) && state.is_down(at(7)));
        assert!(!state.is_down(at(8)), "nobody has tried it since");
        state.failed(at(8));
        assert!(state.is_down(at(9)));
        state.connected(at(10));
        assert!(!state.is_down(at(10)));
    }

    #[test]
    fn a_store_is_up_while_one_connection_is_left() {
        let state = StoreState::default();
        (0..3).for_each(|_| assert_eq!(state.connected(at(1)), None));
        state.disconnected();
        assert_eq!(state.failed(at(2)), Some(StoreLog::LostConnections { failures: 1 }));
        state.disconnected();
        assert_eq!(state.failed(at(3)), None);
        assert_eq!(state.reached(), Some(Reached { up: true, since: at(1) }));
        state.disconnected();
        assert_eq!(state.failed(at(3)), Some(StoreLog::Down));
        assert_eq!(state.connections(), 0);
    }
}
