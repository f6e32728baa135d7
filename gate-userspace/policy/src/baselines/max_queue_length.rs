//! Refuse while the queue is full.

use gate_common::units::Nanos;

use super::QueueLength;
use crate::admission::{Admission, Decision, Request};
use crate::range::{OutOfRange, ensure};

/// At most so many queued requests.
#[derive(Debug)]
pub struct MaxQueueLength {
    limit: u64,
    queued: QueueLength,
}

impl MaxQueueLength {
    /// At most `limit` queued requests; the study's is 400.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if `limit` is zero.
    pub fn new(limit: u64) -> Result<Self, OutOfRange> {
        ensure(limit >= 1, "max_queue_length", limit, "at least 1")?;
        Ok(Self { limit, queued: QueueLength::default() })
    }
}

impl Admission for MaxQueueLength {
    fn decide(&self, request: Request, now: Nanos, draw: f64) -> Decision {
        self.peek(request, now, draw)
    }

    fn peek(&self, _request: Request, _now: Nanos, _draw: f64) -> Decision {
        if self.queued.get() < self.limit {
            Decision::Admit
        } else {
            Decision::Refuse { retry_after: Nanos::ZERO }
        }
    }

    fn enqueued(&self, _request: Request) {
        self.queued.add();
    }

    fn dequeued(&self, _request: Request) {
        self.queued.remove();
    }

    fn completed(&self, _request: Request, _processing: Nanos, _now: Nanos) {}

    fn refresh(&self, _now: Nanos) {}
}
