//! Refuse while the queue's expected wait is too long.
//!
//! The wait is the queue's length times the moving average of all processing times, over the
//! store's parallelism.

use gate_common::units::Nanos;

use super::averages::Averages;
use crate::admission::{Admission, Decision, QueueOrder, Request};
use crate::range::{OutOfRange, ensure};

/// At most so long an expected wait.
#[derive(Debug)]
pub struct MaxQueueWait {
    limit: Nanos,
    averages: Averages,
}

impl MaxQueueWait {
    /// At most `limit` of wait before a store that works on `parallelism` requests at once; the
    /// study's is 15 ms. With a queue in order of arrival.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if either is zero.
    pub fn new(limit: Nanos, parallelism: u32, now: Nanos) -> Result<Self, OutOfRange> {
        ensure(limit > Nanos::ZERO, "max_queue_wait", limit, "above 0")?;
        Ok(Self { limit, averages: Averages::new(parallelism, now)? })
    }

    /// The same before a queue that is served in this order.
    #[must_use]
    pub fn with_order(self, order: QueueOrder) -> Self {
        Self { averages: self.averages.with_order(order), ..self }
    }
}

impl Admission for MaxQueueWait {
    fn decide(&self, request: Request, now: Nanos, _draw: f64) -> Decision {
        let wait = self.averages.expected_wait(request.tier, self.averages.advance(now));
        if wait <= self.limit {
            Decision::Admit
        } else {
            Decision::Refuse { retry_after: wait.saturating_sub(self.limit) }
        }
    }

    fn enqueued(&self, request: Request) {
        self.averages.enqueued(request);
    }

    fn dequeued(&self, request: Request) {
        self.averages.dequeued(request);
    }

    fn completed(&self, _request: Request, processing: Nanos, now: Nanos) {
        self.averages.completed(processing, now);
    }

    fn refresh(&self, now: Nanos) {
        self.averages.advance(now);
    }
}
