//! How long a store may be silent while it has a request to answer.
//!
//! **Problem.** A store whose clients are paused (`CLIENT PAUSE`) answers nobody until the pause ends, new connections
//! included, and is none the worse for it. **Rule.** A store is down when it has been silent for `store_timeout`, or for
//! `slow_timeout` while it does what may take long. A silence that began before the end of a pause may last until
//! `store_timeout` after that end, but for `slow_timeout` at most.
//!
//! **Whose pauses.** Those that clients of gate ask for, from when the store has agreed. As for Redis, the longer of two
//! counts. All threads know of them, and all services before one store.

use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::units::Nanos;

/// The end of the last pause of a store's clients.
#[derive(Debug, Default)]
pub(crate) struct StorePause(AtomicU64);

/// A change of the pause that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseChange {
    /// The store pauses its clients for so long.
    Begin(Nanos),
    /// The store ends the pause.
    End,
}

/// The limits of a store's silence, as of now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SilenceLimits {
    /// Usually.
    pub(crate) timeout: Nanos,
    /// While the store does what may take long, or its clients are paused.
    pub(crate) slow: Nanos,
    /// The end of the pause.
    pub(crate) paused_until: Nanos,
}

impl StorePause {
    /// The store has done what was asked of it, at `now`.
    pub(crate) fn follow(&self, change: PauseChange, now: Nanos) {
        match change {
            PauseChange::Begin(time) => self.0.fetch_max(now.saturating_add(time).0, Ordering::Relaxed),
            PauseChange::End => self.0.fetch_min(now.0, Ordering::Relaxed),
        };
    }

    /// The end of the pause; it may have passed.
    #[inline]
    pub(crate) fn until(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

impl SilenceLimits {
    /// The time when a store is down that has had a request to answer and been silent since `since`; `is_slow` if it does what may
    /// take long.
    #[inline]
    pub(crate) fn end(self, since: Nanos, is_slow: bool) -> Nanos {
        let longest = since.saturating_add(self.slow);
        if is_slow {
            return longest;
        }
        since.max(self.paused_until).saturating_add(self.timeout).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn end(pause: &StorePause, since: u64, is_slow: bool) -> u64 {
        let limits =
            SilenceLimits { timeout: SECOND, slow: Nanos::from_secs(10), paused_until: pause.until() };
        limits.end(Nanos::from_secs(since), is_slow).0 / SECOND.0
    }

    #[test]
    fn a_silence_that_meets_a_pause_may_last_beyond_its_end() {
        let pause = StorePause::default();
        assert_eq!((end(&pause, 100, false), end(&pause, 100, true)), (101, 110));
        pause.follow(PauseChange::Begin(Nanos::from_secs(5)), Nanos::from_secs(100));
        for (since, at) in [(97, 106), (100, 106), (104, 106), (105, 106), (106, 107)] {
            assert_eq!(end(&pause, since, false), at, "since {since}");
        }
        assert_eq!(end(&pause, 90, false), 100, "slow_timeout is the most");
        assert_eq!(end(&pause, 100, true), 110);
    }

    #[test]
    fn the_longer_pause_counts_until_it_is_ended() {
        let pause = StorePause::default();
        for (time, until) in [(5, 105), (1, 105), (u64::MAX, 110)] {
            pause.follow(PauseChange::Begin(Nanos::from_secs(time)), Nanos::from_secs(100));
            assert_eq!(end(&pause, 100, false), 1 + until.min(109), "{time} s");
        }
        pause.follow(PauseChange::End, Nanos::from_secs(103));
        assert_eq!(end(&pause, 100, false), 104);
        pause.follow(PauseChange::End, Nanos::from_secs(200));
        assert_eq!(end(&pause, 100, false), 104, "it had ended");
    }
}
