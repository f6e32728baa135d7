//! A tenant's open connections and requests at a service, all threads together, and their limits.
//!
//! A client holds a [`UsageGuard`] of its tenant's usage, and gives it back when it drops it. Requests are counted once
//! for each batch of a client's: a limit may be exceeded by the requests that other threads take in meanwhile.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One tenant's.
#[derive(Debug)]
pub(crate) struct Usage {
    connections: AtomicU64,
    requests: AtomicU64,
    max_connections: AtomicU64,
    max_requests: AtomicU64,
    has_own_limit: AtomicBool,
}

impl Usage {
    /// Nothing is open yet; no limit is none.
    pub(crate) fn new(max_connections: Option<u64>, max_requests: Option<u64>) -> Self {
        let new = Self {
            connections: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            max_connections: AtomicU64::new(0),
            max_requests: AtomicU64::new(0),
            has_own_limit: AtomicBool::new(false),
        };
        new.limit(max_connections, max_requests);
        new
    }

    /// True if it has a limit on connections of its own.
    pub(crate) fn has_own_limit(&self) -> bool {
        self.has_own_limit.load(Ordering::Relaxed)
    }

    /// True if a client without open requests may have one.
    pub(crate) fn has_room(&self) -> bool {
        let max = self.max_requests.load(Ordering::Relaxed);
        max == u64::MAX || self.requests.load(Ordering::Relaxed) < max
    }

    /// Sets the limits; open connections and requests stay.
    pub(crate) fn limit(&self, max_connections: Option<u64>, max_requests: Option<u64>) {
        self.has_own_limit.store(max_connections.is_some(), Ordering::Relaxed);
        self.max_connections.store(max_connections.unwrap_or(u64::MAX), Ordering::Relaxed);
        self.max_requests.store(max_requests.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// One client's.
#[derive(Debug)]
pub(crate) struct UsageGuard {
    usage: Arc<Usage>,
    requests: Cell<u64>,
}

impl UsageGuard {
    /// That of one more connection; `None` if there are as many as there may be.
    pub(crate) fn of_connection(usage: Arc<Usage>) -> Option<Self> {
        let max = usage.max_connections.load(Ordering::Relaxed);
        let one_more = |open| (open < max).then_some(open + 1);
        usage.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self { usage, requests: Cell::new(0) })
    }

    /// True if a client that has `open` requests unanswered may have one more.
    #[inline]
    pub(crate) fn has_room(&self, open: usize) -> bool {
        let max = self.usage.max_requests.load(Ordering::Relaxed);
        let others = || self.usage.requests.load(Ordering::Relaxed).saturating_sub(self.requests.get());
        max == u64::MAX || others() + (open as u64) < max
    }

    /// Notes that the client has `open` requests unanswered.
    #[inline]
    pub(crate) fn note(&self, open: usize) {
        let now = open as u64;
        let before = self.requests.replace(open as u64);
        if now != before {
            self.usage.requests.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}

/// One request, where the requests of a connection may be of several tenants.
#[derive(Debug)]
pub(crate) struct RequestGuard(Arc<Usage>);

impl RequestGuard {
    /// That of one more request; `None` if as many are unanswered as may be.
    pub(crate) fn of_request(usage: Arc<Usage>) -> Option<Self> {
        let max = usage.max_requests.load(Ordering::Relaxed);
        let one_more = |open| (open < max).then_some(open + 1);
        usage.requests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self(usage))
    }

    /// One that counts, however many there are.
    pub(crate) fn unlimited(usage: Arc<Usage>) -> Self {
        usage.requests.fetch_add(1, Ordering::Relaxed);
        Self(usage)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for UsageGuard {
    fn drop(&mut self) {
        self.note(0);
        self.usage.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_connections_are_open_until_one_is_given_back() {
        let usage = Arc::new(Usage::new(Some(2), None));
        let open = || UsageGuard::of_connection(Arc::clone(&usage));
        let first = open().unwrap();
        let _second = open().unwrap();
        assert!(open().is_none());
        drop(first);
        let _third = open().unwrap();
        assert!(open().is_none());
        usage.limit(None, None);
        assert!(open().is_some());
    }

    #[test]
    fn requests_of_all_clients_count_and_end_with_their_client() {
        let usage = Arc::new(Usage::new(None, Some(10)));
        let [one, other] = [(); 2].map(|()| UsageGuard::of_connection(Arc::clone(&usage)).unwrap());
        one.note(6);
        assert!(other.has_room(3) && !other.has_room(4));
        other.note(3);
        assert!(one.has_room(6) && !one.has_room(7), "its own are not counted twice");
        one.note(2);
        assert!(other.has_room(7) && !other.has_room(8));
        drop(one);
        assert!(other.has_room(9) && !other.has_room(10));
    }
}
