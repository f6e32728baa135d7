//! Refuse while the queue's expected wait is too long.
//!
//! The wait is the queue's length times the moving average of all processing times, over the
//! store's parallelism.

use gate_common::units::Nanos;

use super::{MAX_PROCESSING, QueueLength, STEP, STEPS};
use crate::admission::{Admission, Decision, Request};
use crate::range::{OutOfRange, ensure};
use crate::window::SlidingWindow;

/// At most so long an expected wait.
#[derive(Debug)]
pub struct MaxQueueWait {
    limit: Nanos,
    parallelism: u32,
    queued: QueueLength,
    completed: SlidingWindow,
}

impl MaxQueueWait {
    /// At most `limit` of wait before a store that works on `parallelism` requests at once; the
    /// study's is 15 ms.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if either is zero.
    pub fn new(limit: Nanos, parallelism: u32, now: Nanos) -> Result<Self, OutOfRange> {
        ensure(limit > Nanos::ZERO, "max_queue_wait", limit, "above 0")?;
        ensure(parallelism >= 1, "parallelism", parallelism, "at least 1")?;
        let completed = SlidingWindow::new(2, STEP, STEPS, now)?;
        Ok(Self { limit, parallelism, queued: QueueLength::default(), completed })
    }

    /// How long a request would wait if it joined the queue now.
    fn expected_wait(&self, now: Nanos) -> Nanos {
        let at = self.completed.advance(now);
        let (time, requests) = (self.completed.sum(TIME_NS, at), self.completed.sum(REQUESTS, at));
        let work = u128::from(self.queued.get()) * u128::from(time);
        let wait = work / (u128::from(requests.max(1)) * u128::from(self.parallelism));
        Nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

impl Admission for MaxQueueWait {
    fn decide(&self, _request: Request, now: Nanos, _draw: f64) -> Decision {
        let wait = self.expected_wait(now);
        if wait <= self.limit {
            Decision::Admit
        } else {
            Decision::Refuse { retry_after: wait.saturating_sub(self.limit) }
        }
    }

    fn enqueued(&self, _request: Request) {
        self.queued.add();
    }

    fn dequeued(&self, _request: Request) {
        self.queued.remove();
    }

    fn completed(&self, _request: Request, processing: Nanos, now: Nanos) {
        self.completed.advance(now);
        self.completed.add(TIME_NS, processing.min(MAX_PROCESSING).0);
        self.completed.add(REQUESTS, 1);
    }

    fn refresh(&self, now: Nanos) {
        self.completed.advance(now);
    }
}

const TIME_NS: usize = 0;
const REQUESTS: usize = 1;
