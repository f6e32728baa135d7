//! Recent times of the store, and the expected wait of a queued request (Equation 5 of the paper).

use std::sync::atomic::{AtomicU32, Ordering};

use gate_common::units::Nanos;

use super::{MAX_PROCESSING, QueueLength, STEP, STEPS};
use crate::Tier;
use crate::admission::{QueueOrder, Request};
use crate::range::{OutOfRange, ensure};
use crate::window::{Position, SlidingWindow};

/// The moving averages of arrivals and processing times, and the length of the queue.
#[derive(Debug)]
pub(super) struct Averages {
    parallelism: AtomicU32,
    order: QueueOrder,
    /// One per tier; if the queue is served in order of arrival, only the first is used.
    queued: [QueueLength; Tier::ALL.len()],
    window: SlidingWindow,
}

impl Averages {
    /// Of a store that works on `parallelism` requests at once.
    pub(super) fn new(parallelism: u32, now: Nanos) -> Result<Self, OutOfRange> {
        ensure(parallelism >= 1, "parallelism", parallelism, "at least 1")?;
        let window = SlidingWindow::new(COUNTERS, STEP, STEPS, now)?;
        Ok(Self {
            parallelism: AtomicU32::new(parallelism),
            order: QueueOrder::Fifo,
            queued: Default::default(),
            window,
        })
    }

    /// The same where the queue is served in this order.
    pub(super) fn with_order(self, order: QueueOrder) -> Self {
        Self { order, ..self }
    }

    pub(super) fn parallelism(&self) -> u32 {
        self.parallelism.load(Ordering::Relaxed)
    }

    pub(super) fn set_parallelism(&self, parallelism: u32) {
        self.parallelism.store(parallelism.max(1), Ordering::Relaxed);
    }

    pub(super) fn advance(&self, now: Nanos) -> Position {
        self.window.advance(now)
    }

    pub(super) fn arrived(&self) {
        self.window.add(ARRIVALS, 1);
    }

    pub(super) fn arrivals(&self, at: Position) -> u64 {
        self.window.sum(ARRIVALS, at)
    }

    pub(super) fn window(&self) -> &SlidingWindow {
        &self.window
    }

    /// The processing times in the window: their sum in nanoseconds, and how many there are.
    pub(super) fn processed(&self, at: Position) -> (u64, u64) {
        (self.window.sum(TIME_NS, at), self.window.sum(REQUESTS, at))
    }

    /// How long a request of `tier` would wait if it joined the queue now: the requests that are served
    /// before it, times the mean processing time, over the parallelism.
    pub(super) fn expected_wait(&self, tier: Tier, at: Position) -> Nanos {
        let before = &self.queued[..=self.order.queue(tier)];
        let length = before.iter().map(QueueLength::get).fold(0, u64::saturating_add);
        let (time, requests) = self.processed(at);
        let work = u128::from(length) * u128::from(time);
        let wait = work / (u128::from(requests.max(1)) * u128::from(self.parallelism()));
        Nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    pub(super) fn enqueued(&self, request: Request) {
        self.queued[self.order.queue(request.tier)].add();
    }

    pub(super) fn dequeued(&self, request: Request) {
        self.queued[self.order.queue(request.tier)].remove();
    }

    pub(super) fn completed(&self, processing: Nanos, now: Nanos) {
        self.window.advance(now);
        self.window.add(TIME_NS, processing.min(MAX_PROCESSING).0);
        self.window.add(REQUESTS, 1);
    }
}

const TIME_NS: usize = 0;
const REQUESTS: usize = 1;
const ARRIVALS: usize = 2;
const COUNTERS: usize = 3;
