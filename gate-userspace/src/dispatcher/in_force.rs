//! Changes of a service's settings, on their way into force: each of its threads takes them over at its next tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a change, the first being 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change(u64);

/// The changes of a service's settings, and how far its threads have followed them.
#[derive(Debug)]
pub(crate) struct InForce {
    last: AtomicU64,
    /// By thread: the change that it has taken over last.
    threads: Box<[AtomicU64]>,
}

impl InForce {
    /// No change yet, in so many threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self { last: AtomicU64::new(0), threads: (0..threads).map(|_| AtomicU64::new(0)).collect() }
    }

    /// To be called behind a change, once all of it can be read.
    pub(crate) fn changed(&self) {
        self.last.fetch_add(1, Ordering::Release);
    }

    /// True if each thread judges by the last change.
    pub(crate) fn is_everywhere(&self) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        self.threads.iter().all(|thread| thread.load(Ordering::Acquire) == last)
    }
}

/// A thread that follows the changes of a service.
#[derive(Debug)]
pub(crate) struct Follower {
    of: Arc<InForce>,
    thread: usize,
}

impl Follower {
    /// The thread with this number.
    pub(crate) fn new(of: Arc<InForce>, thread: usize) -> Self {
        Self { of, thread }
    }

    /// The change that whoever reads the settings behind this call reads, or a later one.
    pub(crate) fn last(&self) -> Change {
        Change(self.of.last.load(Ordering::Acquire))
    }

    /// This thread judges by it from now on.
    pub(crate) fn has_taken_over(&self, change: Change) {
        self.of.threads[self.thread].store(change.0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_in_force_once_the_last_thread_has_taken_it_over() {
        let in_force = Arc::new(InForce::new(2));
        let [one, two] = [0, 1].map(|thread| Follower::new(Arc::clone(&in_force), thread));
        assert!(in_force.is_everywhere());
        in_force.changed();
        assert!(!in_force.is_everywhere());
        let first = one.last();
        one.has_taken_over(first);
        assert!(!in_force.is_everywhere());
        two.has_taken_over(two.last());
        assert!(in_force.is_everywhere());
        // One that was read before another change came says nothing of that.
        let before = one.last();
        in_force.changed();
        one.has_taken_over(before);
        two.has_taken_over(two.last());
        assert!(!in_force.is_everywhere());
        one.has_taken_over(one.last());
        assert!(in_force.is_everywhere());
    }
}
