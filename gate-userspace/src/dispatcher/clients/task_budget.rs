//! How much work a client's task does before the other tasks of its thread run.
//!
//! **Problem.** A thread serves many clients. One that always has input ready, a long pipeline or a large value, must not keep
//! the others waiting until it has none. **Rule.** A task counts its work in requests and bytes. When its budget is spent, it
//! yields: the runtime looks at all sockets, and runs every task that can go on, before this one has its next budget.
//!
//! **Invariants.** Pure, but for the yield. A budget is some 50 to 100 us of work, whatever that is made of.

use std::task::{Context, Poll};

use tokio::task::yield_now;

/// The work that is left of a task's budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskBudget(usize);

impl TaskBudget {
    /// A new one.
    pub(crate) const fn new() -> Self {
        Self(REQUESTS)
    }

    /// One without an end: for input whose length is bounded.
    pub(crate) const fn endless() -> Self {
        Self(usize::MAX)
    }

    /// True if it is spent.
    pub(crate) const fn is_spent(self) -> bool {
        self.0 == 0
    }

    /// Counts a request of so many bytes, which may all be keys.
    #[inline]
    pub(crate) const fn count_request(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(1 + bytes / BYTES_OF_KEYS);
    }

    /// Counts a datagram of so many bytes, which may be full of requests.
    #[inline]
    pub(crate) const fn count_datagram(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(1 + bytes / BYTES_OF_REQUESTS);
    }

    /// Counts bytes that are passed on as they are. If the budget is spent, lets others go first, and begins a new one.
    pub(crate) async fn pass_on(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(1 + bytes / BYTES_PASSED_ON);
        if self.is_spent() {
            *self = Self::new();
            yield_now().await;
        }
    }
}

/// Has the task polled again once the runtime has looked at all sockets, and other tasks have run.
pub(crate) fn let_others_go_first<T>(cx: &mut Context<'_>) -> Poll<T> {
    // Its first poll has the runtime wake the task; nothing is left to be done then.
    let _ = std::pin::pin!(yield_now()).poll(cx);
    Poll::Pending
}

/// The requests of one budget.
const REQUESTS: usize = 128;
/// The bytes of a request that take as long as one request more, if they are keys.
const BYTES_OF_KEYS: usize = 256;
/// The bytes of the shortest requests that a client has a reason to send.
const BYTES_OF_REQUESTS: usize = 16;
/// The bytes that are passed on while one request is decoded and priced.
const BYTES_PASSED_ON: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    /// How many requests of so many bytes are in a budget.
    fn requests(bytes: usize) -> usize {
        let mut budget = TaskBudget::new();
        (1..)
            .find(|_| {
                budget.count_request(bytes);
                budget.is_spent()
            })
            .unwrap()
    }

    #[test]
    fn a_budget_is_spent_by_requests_and_by_their_bytes() {
        for (bytes, expected) in [(0, 128), (30, 128), (255, 128), (256, 64), (8 << 10, 4), (1 << 20, 1)] {
            assert_eq!(requests(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn datagrams_full_of_requests_spend_a_budget_soon() {
        for (bytes, expected) in [(15, 128), (40, 43), (1_400, 2), (60_000, 1)] {
            let mut budget = TaskBudget::new();
            let datagrams = (1..).find(|_| {
                budget.count_datagram(bytes);
                budget.is_spent()
            });
            assert_eq!(datagrams, Some(expected), "{bytes}");
        }
    }

    #[test]
    fn an_endless_budget_is_never_spent() {
        let mut budget = TaskBudget::endless();
        (0..1_000_000).for_each(|_| budget.count_request(64 << 10));
        assert!(!budget.is_spent());
    }

    #[tokio::test]
    async fn others_go_first_once_a_budget_of_bytes_is_spent() {
        let mut budget = TaskBudget::new();
        let passes_at_once = |budget: &mut TaskBudget, bytes| {
            let pass = std::pin::pin!(budget.pass_on(bytes));
            let mut cx = Context::from_waker(std::task::Waker::noop());
            pass.poll(&mut cx).is_ready()
        };
        assert!(passes_at_once(&mut budget, 64 << 10));
        assert!(!passes_at_once(&mut budget, 64 << 10), "128 KiB are a budget");
        assert!(passes_at_once(&mut budget, 64 << 10), "a new one");
    }
}
