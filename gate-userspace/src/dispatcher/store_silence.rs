//! How long a store may be silent while it has a request to answer.
//!
//! **Problem.** A store whose clients are paused (`CLIENT PAUSE`) answers nobody until the pause ends, new connections
//! included, and is none the worse for it. **Rule.** A store is down when it has been silent for `store_timeout`, or for
//! `slow_timeout` while it does what may take long. A silence that began before the end of a pause may last until
//! `store_timeout` after that end, but for `slow_timeout` at most.
//!
//! **One thing at a time.** A Redis that does something slow answers nobody meanwhile, whoever asked for it and whoever waits. So what
//! may occupy the store ([`SlowWork`]) counts for all that wait for it, until it is answered: a silence that meets it may last until
//! `store_timeout` after its answer, but for `slow_timeout` at most. What was not answered, since its client has left or the
//! connection was lost, may occupy the store until its own `slow_timeout` is over.
//!
//! **Whose pauses.** Those that clients of gate ask for, from when the store has agreed. As for Redis, the longer of two
//! counts. All threads know of them, and all services before one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use gate_common::units::Nanos;

/// The known causes of a store's silence, for all threads: a pause, and requests that may occupy it.
#[derive(Debug, Default)]
pub(crate) struct StorePause {
    /// The end of the last pause of its clients.
    until: AtomicU64,
    /// The requests with it that may occupy it.
    slow: AtomicUsize,
    /// The end of the last that is no longer with it.
    slow_until: AtomicU64,
}

/// A request that is with the store and may occupy it, for as long as this is there.
#[derive(Debug)]
pub(crate) struct SlowWork {
    store: Arc<StorePause>,
    /// The time until which it occupies the store at most, or did.
    until: Nanos,
}

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
    /// While the store does what may take long, or something holds it back.
    pub(crate) slow: Nanos,
    /// The end of the pause, or of what occupies it.
    pub(crate) paused_until: Nanos,
}

impl StorePause {
    /// The store has done what was asked of it, at `now`.
    pub(crate) fn follow(&self, change: PauseChange, now: Nanos) {
        match change {
            PauseChange::Begin(time) => self.until.fetch_max(now.saturating_add(time).0, Ordering::Relaxed),
            PauseChange::End => self.until.fetch_min(now.0, Ordering::Relaxed),
        };
    }

    /// The end of what keeps the store silent; it may have passed. It is not known while a request occupies the store.
    #[inline]
    pub(crate) fn until(&self) -> Nanos {
        if self.slow.load(Ordering::Acquire) > 0 {
            return Nanos::MAX;
        }
        let pause = self.until.load(Ordering::Relaxed);
        Nanos(pause.max(self.slow_until.load(Ordering::Relaxed)))
    }

    /// Notes that a request is with the store that may occupy it, until then at most.
    pub(crate) fn begin_slow(self: &Arc<Self>, until: Nanos) -> SlowWork {
        self.slow.fetch_add(1, Ordering::AcqRel);
        SlowWork { store: Arc::clone(self), until }
    }
}

impl SlowWork {
    /// The store has answered it, at `now`.
    pub(crate) fn over(mut self, now: Nanos) {
        self.until = now;
    }
}

impl Drop for SlowWork {
    fn drop(&mut self) {
        self.store.slow_until.fetch_max(self.until.0, Ordering::Relaxed);
        self.store.slow.fetch_sub(1, Ordering::AcqRel);
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
    fn what_occupies_the_store_lets_all_wait_until_it_is_answered() {
        let pause = Arc::new(StorePause::default());
        let asked = |secs: u64| pause.begin_slow(Nanos::from_secs(secs + 10));
        let answered = asked(100);
        let left = asked(101);
        assert_eq!(end(&pause, 102, false), 112);
        answered.over(Nanos::from_secs(103));
        assert_eq!(end(&pause, 102, false), 112, "another one is there");
        drop(left);
        assert_eq!(end(&pause, 104, false), 112, "it may go on without its client");
        assert_eq!(end(&pause, 120, false), 121);
        asked(200).over(Nanos::from_secs(205));
        assert_eq!((end(&pause, 202, false), end(&pause, 205, false)), (206, 206));
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
