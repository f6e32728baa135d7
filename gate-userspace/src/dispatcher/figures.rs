//! What happened in one service, counted by one thread and read by any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// A client was accepted.
    Accepted,
    /// A client was turned away: there are too many.
    TurnedAway,
    /// A client left, or all was said.
    Left,
    /// A client was closed because it did not read its replies.
    SlowReader,
    /// A client was closed because the store broke off in the middle of its reply.
    Cut,
    /// A client got a connection to the store of its own.
    OwnConnection,
    /// A request was decoded.
    Request,
    /// The store answered a request.
    Answered,
    /// A connection to the store was made.
    StoreConnected,
    /// A connection to the store failed or was lost.
    StoreFailed,
}

impl Event {
    /// Every event, in the order of its number.
    pub const ALL: [Self; 10] = [
        Self::Accepted,
        Self::TurnedAway,
        Self::Left,
        Self::SlowReader,
        Self::Cut,
        Self::OwnConnection,
        Self::Request,
        Self::Answered,
        Self::StoreConnected,
        Self::StoreFailed,
    ];

    /// Its name in output and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::TurnedAway => "turned-away",
            Self::Left => "left",
            Self::SlowReader => "slow-reader",
            Self::Cut => "cut",
            Self::OwnConnection => "own-connection",
            Self::Request => "requests",
            Self::Answered => "answered",
            Self::StoreConnected => "store-connected",
            Self::StoreFailed => "store-failed",
        }
    }
}

/// One thread's counters of one service. All only grow.
#[derive(Debug, Default)]
pub struct Figures {
    counts: [AtomicU64; Event::ALL.len()],
}

impl Figures {
    /// Counts one more. Only the thread whose figures these are may call this.
    #[inline]
    pub(super) fn count(&self, event: Event) {
        let count = &self.counts[event as usize];
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often it happened.
    #[must_use]
    pub fn get(&self, event: Event) -> u64 {
        self.counts[event as usize].load(Ordering::Relaxed)
    }

    /// Clients that are connected.
    #[must_use]
    pub fn connected(&self) -> u64 {
        let gone = [Event::Left, Event::SlowReader, Event::Cut].map(|event| self.get(event));
        self.get(Event::Accepted).saturating_sub(gone.iter().sum())
    }
}

/// What happened at one service.
#[derive(Clone, Debug)]
pub struct ServiceFigures {
    /// Its name.
    pub name: String,
    /// Each thread's counts.
    pub threads: Arc<[Arc<Figures>]>,
}

impl ServiceFigures {
    pub(super) fn new(name: String, threads: usize) -> Self {
        Self { name, threads: (0..threads).map(|_| Arc::default()).collect() }
    }

    /// How often something happened, all threads together.
    #[must_use]
    pub fn get(&self, event: Event) -> u64 {
        self.threads.iter().map(|thread| thread.get(event)).sum()
    }

    /// Appends them in memcached's form of statistics.
    pub(super) fn write_stats(&self, out: &mut Vec<u8>) {
        for event in Event::ALL {
            out.extend_from_slice(format!("STAT {} {}\r\n", event.name(), self.get(event)).as_bytes());
        }
        out.extend_from_slice(b"END\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_list_and_names_differ() {
        for (place, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, place, "{}", event.name());
            assert_eq!(Event::ALL.iter().filter(|other| other.name() == event.name()).count(), 1);
        }
    }
}
