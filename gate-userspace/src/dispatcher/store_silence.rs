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
//! connection was lost, may occupy the store until its own `slow_timeout` is over. Where keys are shared by several stores, each has
//! work of its own.
//!
//! **Cost.** Many writes may occupy a Redis, since they free what their key held. Each thread notes its own work where no other
//! writes ([`ThreadWork`]); others look there when they look after their connections.
//!
//! **Whose pauses.** Those that clients of gate ask for, from when the store has agreed. As for Redis, the longer of two
//! counts. All threads know of them, and all services before one store.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gate_common::units::Nanos;

use crate::protocol::resp::Command;

/// The known causes of a store's silence, for all threads: a pause, and requests that may occupy it.
#[derive(Debug, Default)]
pub(crate) struct StorePause {
    /// The end of the last pause of its clients.
    until: AtomicU64,
    /// The requests that may occupy it, by thread and service.
    work: Mutex<Vec<Arc<NotedWork>>>,
}

/// One thread's requests to a store that may occupy it. Only this thread writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct NotedWork {
    /// How many there are.
    count: AtomicUsize,
    /// The end of the last that is no longer with the store.
    until: AtomicU64,
    /// Some of them: when each was sent, in units of 2^16 ns, and its command's number; 0 where there is none.
    named: [AtomicU64; NAMED],
}

/// A thread's end of what it notes of a store. Its requests share it without what threads would contend for.
#[derive(Clone, Debug)]
pub(crate) struct ThreadWork(Rc<Own>);

#[derive(Debug)]
struct Own {
    work: Arc<NotedWork>,
}

/// A request that is with the store and may occupy it, for as long as this is there.
#[derive(Debug)]
pub(crate) struct SlowWork {
    thread: ThreadWork,
    /// The time until which it occupies the store at most, or did.
    until: Nanos,
    /// Its place among those that are named; beyond them if it has none.
    place: u8,
}

/// The oldest request that may occupy a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OldestWork {
    /// When it was sent.
    pub(crate) since: Nanos,
    /// Its command.
    pub(crate) command: Command,
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
    pub(crate) fn until(&self) -> Nanos {
        let mut until = self.until.load(Ordering::Relaxed);
        for work in &*self.work.lock().unwrap_or_else(PoisonError::into_inner) {
            if work.count.load(Ordering::Acquire) > 0 {
                return Nanos::MAX;
            }
            until = until.max(work.until.load(Ordering::Relaxed));
        }
        Nanos(until)
    }

    /// The oldest of the requests that may occupy the store, as far as they are named.
    pub(crate) fn oldest(&self) -> Option<OldestWork> {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let named = work.iter().flat_map(|work| &work.named).map(|place| place.load(Ordering::Relaxed));
        let oldest = named.filter(|&named| named > 0).min()?;
        let command = Command::numbered((oldest & COMMAND) as u16);
        Some(OldestWork { since: Nanos(oldest & !COMMAND), command })
    }

    /// A place for the calling thread to note its work in.
    pub(crate) fn thread(&self) -> ThreadWork {
        let work = Arc::<NotedWork>::default();
        self.work.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&work));
        ThreadWork(Rc::new(Own { work }))
    }
}

impl ThreadWork {
    /// Notes that a request is sent to the store at `now` that may occupy it, until then at most.
    #[inline]
    pub(crate) fn begin(&self, command: Command, now: Nanos, until: Nanos) -> SlowWork {
        let work = &self.0.work;
        work.count.store(work.count.load(Ordering::Relaxed) + 1, Ordering::Release);
        let place = work.named.iter().position(|place| place.load(Ordering::Relaxed) == 0).unwrap_or(NAMED);
        if let Some(place) = work.named.get(place) {
            place.store(now.0 & !COMMAND | u64::from(command.number()), Ordering::Relaxed);
        }
        SlowWork { thread: self.clone(), until, place: place as u8 }
    }
}

impl SlowWork {
    /// The store has answered it, at `now`.
    #[inline]
    pub(crate) fn over(mut self, now: Nanos) {
        self.until = now;
    }
}

impl Drop for SlowWork {
    #[inline]
    fn drop(&mut self) {
        let work = &self.thread.0.work;
        let until = work.until.load(Ordering::Relaxed).max(self.until.0);
        work.until.store(until, Ordering::Relaxed);
        if let Some(place) = work.named.get(usize::from(self.place)) {
            place.store(0, Ordering::Relaxed);
        }
        work.count.store(work.count.load(Ordering::Relaxed) - 1, Ordering::Release);
    }
}

/// The requests of a thread that are named: with 8 a thread's notes take one pair of cache lines.
const NAMED: usize = 8;
/// The bits of a named request that are its command's number.
const COMMAND: u64 = 0xffff;

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
    const SET: Command = Command::named("set");
    const KEYS: Command = Command::named("keys");

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
        let pause = StorePause::default();
        let threads = [pause.thread(), pause.thread()];
        let asked = |secs: u64| {
            let thread = &threads[secs as usize % 2];
            thread.begin(SET, Nanos::from_secs(secs), Nanos::from_secs(secs + 10))
        };
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
    fn the_oldest_request_that_occupies_the_store_is_named() {
        let pause = StorePause::default();
        let one = pause.thread();
        let other = pause.thread();
        let begin = |thread: &ThreadWork, command, secs| {
            thread.begin(command, Nanos::from_secs(secs), Nanos::from_secs(secs + 10))
        };
        let named = |secs: u64| {
            let OldestWork { since, command } = pause.oldest()?;
            assert!(since <= Nanos::from_secs(secs) && since > Nanos::from_secs(secs - 1), "{since}");
            Some(command)
        };
        assert_eq!(named(1), None);
        let first = begin(&one, KEYS, 100);
        // More than have names.
        let later: Vec<_> = (0..20).map(|number| begin(&other, SET, 101 + number)).collect();
        assert_eq!(named(100), Some(KEYS));
        first.over(Nanos::from_secs(130));
        assert_eq!(named(101), Some(SET));
        drop(later);
        assert_eq!(named(101), None);
        let again = begin(&other, KEYS, 140);
        assert_eq!(named(140), Some(KEYS));
        drop(again);
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
