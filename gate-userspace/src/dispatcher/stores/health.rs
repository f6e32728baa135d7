//! The circuit breaker of a store connection.
//!
//! **Problem.** A dead store must not make its clients wait, and one that comes back must not be met by all of them at
//! once. **Rule**, after the circuit breaker: after a failure everything is refused for a pause that doubles with each
//! failure in a row. Then a store that answers gate's own probe is tried with a few requests at a time, and each answer
//! allows one more at once. The store is trusted again when it has answered often enough, or has stayed connected for a
//! while with nothing to answer.
//!
//! **Invariants.** Pure. A pause is at least [`SHORTEST`] and at most [`LONGEST`].

use gate_common::units::Nanos;

/// One connection's state of health.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    state: State,
    /// Failures in a row.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not connected yet, for the first time: requests may wait for that.
    Starting,
    /// Trusted.
    Up,
    /// Refuses until then.
    Down { until: Nanos },
    /// Tried, with so many requests at once.
    Trying { allowed: usize, connected: Option<Nanos> },
}

impl Health {
    /// One that has never been connected.
    pub(crate) const fn new() -> Self {
        Self { state: State::Starting, failures: 0 }
    }

    /// Checks that one more request may be sent while `waiting` are not answered.
    ///
    /// # Errors
    ///
    /// The time after which to try again.
    pub(crate) fn accepts(&self, waiting: usize, now: Nanos) -> Result<(), Nanos> {
        match self.state {
            State::Up => Ok(()),
            State::Starting if waiting < MOST_WAITING => Ok(()),
            State::Trying { allowed, connected: Some(_) } if waiting < allowed => Ok(()),
            State::Down { until } => Err(until.saturating_sub(now).max(SHORTEST)),
            State::Starting | State::Trying { .. } => Err(SHORTEST),
        }
    }

    /// True if it has answered since it failed last, or never failed.
    pub(crate) fn is_trusted(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// True if a pause is over, and the store has not been tried since.
    pub(crate) fn may_be_tried(&self, now: Nanos) -> bool {
        matches!(self.state, State::Down { until } if until <= now)
    }

    /// Notes that the store is connected, at `now`.
    pub(crate) fn connected(&mut self, now: Nanos) {
        self.state = match self.state {
            // Starting => Up
            State::Starting => State::Up,
            State::Trying { allowed, .. } => State::Trying { allowed, connected: Some(now) },
            state => state,
        };
    }

    /// Notes that no request waits for the store at `now`.
    pub(crate) fn idle(&mut self, now: Nanos) {
        if let State::Trying { connected: Some(since), .. } = self.state
            && now.saturating_sub(since) >= STABLE_AFTER
        {
            // Trying => Up: it has stayed connected.
            *self = Self { state: State::Up, failures: 0 };
        }
    }

    /// Notes that the store has answered a request.
    #[inline]
    pub(crate) fn answered(&mut self) {
        if let State::Trying { allowed, .. } = &mut self.state {
            *allowed += 1;
            if *allowed > TRUSTED {
                // Trying => Up: it has answered often enough.
                *self = Self { state: State::Up, failures: 0 };
            }
        }
    }

    /// Notes that the store has failed at `now`. Returns the pause.
    pub(crate) fn failed(&mut self, now: Nanos) -> Nanos {
        let backoff = Nanos(SHORTEST.0 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        // Any => Down
        self.state = State::Down { until: now.saturating_add(backoff) };
        backoff
    }

    /// Ends the pause.
    pub(crate) fn retry(&mut self) {
        // Down => Trying: a few at a time at first.
        self.state = State::Trying { allowed: FIRST, connected: None };
    }
}

/// A restarted store is back in no time.
const SHORTEST: Nanos = Nanos::from_millis(20);
/// So that a store that is back is found soon.
const LONGEST: Nanos = Nanos::from_secs(1);
/// Requests that are tried first.
const FIRST: usize = 16;
/// So many at once are as good as any number.
const TRUSTED: usize = 128;
/// The time that an idle connection must last to be trusted again.
const STABLE_AFTER: Nanos = Nanos::from_millis(200);
/// Requests that may wait for the first connection.
const MOST_WAITING: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(1);

    #[test]
    fn a_bounded_number_waits_for_the_first_connection() {
        let health = Health::new();
        assert_eq!(health.accepts(0, NOW), Ok(()));
        assert_eq!(health.accepts(MOST_WAITING, NOW), Err(SHORTEST));
    }

    #[test]
    fn backoffs_double_up_to_a_second_and_begin_anew() {
        let mut health = Health::new();
        let backoffs: Vec<u64> = (0..8)
            .map(|_| {
                health.retry();
                health.failed(NOW).0 / 1_000_000
            })
            .collect();
        assert_eq!(backoffs, [20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        health.retry();
        health.connected(NOW);
        (0..TRUSTED).for_each(|_| health.answered());
        assert_eq!(health.accepts(1_000_000, NOW), Ok(()));
        assert_eq!(health.failed(NOW), SHORTEST);
    }

    #[test]
    fn an_idle_store_that_stays_connected_is_trusted_again() {
        let mut health = Health::new();
        health.failed(NOW);
        health.retry();
        health.idle(Nanos::MAX);
        assert!(health.accepts(0, NOW).is_err(), "not connected");
        health.connected(NOW);
        health.idle(Nanos(NOW.0 + STABLE_AFTER.0 - 1));
        assert!(health.accepts(FIRST, NOW).is_err());
        health.idle(Nanos(NOW.0 + STABLE_AFTER.0));
        assert_eq!(health.accepts(1_000, NOW), Ok(()));
    }

    #[test]
    fn a_store_that_failed_gets_one_request_more_per_answer() {
        let mut health = Health::new();
        health.connected(NOW);
        let backoff = health.failed(NOW);
        assert_eq!(health.accepts(0, NOW), Err(backoff));
        health.retry();
        assert!(health.accepts(0, NOW).is_err(), "not connected yet");
        health.connected(NOW);
        for allowed in FIRST..=TRUSTED {
            assert_eq!(health.accepts(allowed - 1, NOW), Ok(()));
            assert_eq!(health.accepts(allowed, NOW), Err(SHORTEST));
            health.answered();
        }
        assert_eq!(health.accepts(TRUSTED + 1, NOW), Ok(()));
    }
}
