//! Refuse while the queue's expected wait is too long for the request's type.
//!
//! The wait is the queue's length times the moving average of all processing times, over the
//! store's parallelism. The paper's policy has one limit for all types; with one per type (its section
//! 5.5) the limits can be tuned to objectives as long as processing times stay as they are.

use gate_common::units::Nanos;

use super::averages::Averages;
use crate::admission::{Admission, Decision, QueueOrder, Request};
use crate::range::{OutOfRange, ensure};

/// At most so long an expected wait.
#[derive(Debug)]
pub struct MaxQueueWait {
    /// One per type; that of all others is the last.
    limits: Box<[Nanos]>,
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
        Ok(Self { limits: Box::new([limit]), averages: Averages::new(parallelism, now)? })
    }

    /// The same with a limit for each query type, in the order of their indices; what was the limit holds for all
    /// others.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if one is zero.
    pub fn with_types(self, types: &[Nanos]) -> Result<Self, OutOfRange> {
        for (index, &limit) in types.iter().enumerate() {
            ensure(limit > Nanos::ZERO, &format!("max_queue_wait[{index}]"), limit, "above 0")?;
        }
        let others = &self.limits[self.limits.len() - 1..];
        Ok(Self { limits: [types, others].concat().into(), ..self })
    }

    /// The same before a queue that is served in this order.
    #[must_use]
    pub fn with_order(self, order: QueueOrder) -> Self {
        Self { averages: self.averages.with_order(order), ..self }
    }
}

impl Admission for MaxQueueWait {
    fn decide(&self, request: Request, now: Nanos, draw: f64) -> Decision {
        self.peek(request, now, draw)
    }

    fn peek(&self, request: Request, now: Nanos, _draw: f64) -> Decision {
        let wait = self.averages.expected_wait(request.tier, self.averages.advance(now));
        let limit = self.limits[usize::from(request.query_type.0).min(self.limits.len() - 1)];
        if wait <= limit {
            Decision::Admit
        } else {
            Decision::Refuse { retry_after: wait.saturating_sub(limit) }
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

    fn set_parallelism(&self, parallelism: u32) {
        self.averages.set_parallelism(parallelism);
    }

    fn refresh(&self, now: Nanos) {
        self.averages.advance(now);
    }
}
