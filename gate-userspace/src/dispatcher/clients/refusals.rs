//! How long a client waits for a refusal: from when its request was decoded until gate has written it.
//!
//! **What is timed.** Refusals that are decided as soon as a request is decoded, and that nothing holds back: no
//! earlier request of the client's is unanswered, and its socket takes what there is. The time is gate's own, then. It
//! begins before the first request of a read is looked at, so those behind others in one read count these as well.
//!
//! **What is only counted.** A refusal whose place is behind an answer that the store still owes, and one that the
//! client has no room for: how long these take is up to the store, or to the client.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::units::Nanos;

use super::client::Client;
use super::replies::{Place, Replies};
use crate::dispatcher::figures::latency::{Latencies, Reading};
use crate::dispatcher::service::Service;
use crate::dispatcher::wire::Wire;
use crate::protocol::Refusal;

/// One thread's refusals at one service. All counts only grow, and only that thread writes.
#[derive(Debug, Default)]
pub(in crate::dispatcher) struct RefusalFigures {
    took: Latencies,
    held_back: AtomicU64,
}

/// All threads' refusals at one point in time, or between two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// How long those took that nothing held back.
    pub took: Reading,
    /// The others.
    pub held_back: u64,
}

/// A client's refusals that are in its output.
#[derive(Debug, Default)]
pub(in crate::dispatcher) struct Unwritten(Cell<Option<Batch>>);

/// Refusals that are written together.
#[derive(Clone, Copy, Debug)]
struct Batch {
    /// When the first of them was decoded.
    since: Nanos,
    count: u64,
}

impl<W: Wire> Service<W> {
    /// Refuses a request that has just been decoded, and watches how long that takes.
    pub(in crate::dispatcher) fn refuse_at_once(
        &self,
        client: &Client<W>,
        replies: &mut Replies,
        place: Place,
        silent: bool,
        refusal: Refusal,
        decoded: Nanos,
    ) {
        let in_turn = place == replies.first();
        if self.refuse(client, replies, place, silent, refusal) {
            self.watch_refusal(client, in_turn, decoded);
        }
    }

    /// The refusal of a request that has just been decoded is in its client's output, or waits for its turn.
    pub(in crate::dispatcher) fn watch_refusal(&self, client: &Client<W>, in_turn: bool, decoded: Nanos) {
        if in_turn {
            client.unwritten.add(decoded);
        } else {
            self.figures.refusals.held_back(1);
        }
    }
}

impl RefusalFigures {
    /// So many could not be written at once.
    pub(in crate::dispatcher) fn held_back(&self, count: u64) {
        self.held_back.store(self.held_back.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }
}

impl Refusals {
    /// Adds one thread's.
    pub(in crate::dispatcher) fn add(&mut self, figures: &RefusalFigures) {
        self.took.add(&figures.took);
        self.held_back = self.held_back.wrapping_add(figures.held_back.load(Ordering::Relaxed));
    }

    /// What has come since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            took: self.took.since(&earlier.took),
            held_back: self.held_back.wrapping_sub(earlier.held_back),
        }
    }
}

impl Unwritten {
    /// One more, whose request was decoded at `decoded`.
    pub(in crate::dispatcher) fn add(&self, decoded: Nanos) {
        let batch = self.0.get().unwrap_or(Batch { since: decoded, count: 0 });
        self.0.set(Some(Batch { count: batch.count + 1, ..batch }));
    }

    /// All that is in the output has been written; `now` is asked only if there are refusals among it.
    #[inline]
    pub(in crate::dispatcher) fn are_written(&self, figures: &RefusalFigures, now: impl FnOnce() -> Nanos) {
        if let Some(Batch { since, count }) = self.0.take() {
            figures.took.record(now().saturating_sub(since), count);
        }
    }

    /// Something in the output has to wait.
    pub(in crate::dispatcher) fn are_held_back(&self, figures: &RefusalFigures) {
        self.0.take().iter().for_each(|batch| figures.held_back(batch.count));
    }

    /// Nobody will read them.
    pub(in crate::dispatcher) fn are_lost(&self) {
        self.0.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(figures: &RefusalFigures) -> Refusals {
        let mut refusals = Refusals::default();
        refusals.add(figures);
        refusals
    }

    #[test]
    fn what_is_written_together_took_as_long_as_the_first_of_it() {
        let (figures, unwritten) = (RefusalFigures::default(), Unwritten::default());
        unwritten.add(Nanos::from_millis(100));
        unwritten.add(Nanos::from_millis(103));
        unwritten.are_written(&figures, || Nanos::from_millis(104));
        let all = read(&figures);
        assert_eq!((all.took.len(), all.held_back), (2, 0));
        let took = all.took.percentile(1.0).unwrap();
        assert!((Nanos::from_millis(4)..Nanos::from_micros(4_501)).contains(&took), "{took}");
        // There is nothing left of it, and nobody asks for the time.
        unwritten.are_written(&figures, || unreachable!());
        assert_eq!(read(&figures), all);
    }

    #[test]
    fn what_is_held_back_is_counted_and_not_timed_and_what_is_lost_is_neither() {
        let (figures, unwritten) = (RefusalFigures::default(), Unwritten::default());
        figures.held_back(1);
        let before = read(&figures);
        (0..3).for_each(|ms| unwritten.add(Nanos::from_millis(ms)));
        unwritten.are_held_back(&figures);
        unwritten.add(Nanos::ZERO);
        unwritten.are_lost();
        unwritten.are_written(&figures, || unreachable!());
        let interval = read(&figures).since(&before);
        assert_eq!((interval.took.len(), interval.held_back), (0, 3));
    }
}
