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
    /// The last seconds of the same.
    recent: SlidingWindow,
}

/// The load that one window has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    pub(super) arrivals: u64,
    /// The sum of processing times, in nanoseconds.
    time: u64,
    requests: u64,
}

impl Load {
    /// The mean processing time, in nanoseconds.
    pub(super) fn mean_ns(&self) -> f64 {
        self.time as f64 / self.requests.max(1) as f64
    }
}

impl Averages {
    /// Of a store that works on `parallelism` requests at once.
    pub(super) fn new(parallelism: u32, now: Nanos) -> Result<Self, OutOfRange> {
        ensure(parallelism >= 1, "parallelism", parallelism, "at least 1")?;
        let window = SlidingWindow::new(COUNTERS, STEP, STEPS, now)?;
        let recent = SlidingWindow::new(COUNTERS, STEP, RECENT_STEPS, now)?;
        Ok(Self {
            parallelism: AtomicU32::new(parallelism),
            order: QueueOrder::Fifo,
            queued: Default::default(),
            window,
            recent,
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

    /// Where both windows stand at `now`.
    pub(super) fn advance(&self, now: Nanos) -> [Position; 2] {
        [self.window.advance(now), self.recent.advance(now)]
    }

    pub(super) fn arrived(&self) {
        self.window.add(ARRIVALS, 1);
        self.recent.add(ARRIVALS, 1);
    }

    pub(super) fn window(&self) -> &SlidingWindow {
        &self.window
    }

    pub(super) fn recent(&self) -> &SlidingWindow {
        &self.recent
    }

    /// The load in the whole window, and in the last seconds of it; if nothing was processed in those, that took as long as
    /// before.
    pub(super) fn loads(&self, at: [Position; 2]) -> [Load; 2] {
        let load = |window: &SlidingWindow, at| Load {
            arrivals: window.sum(ARRIVALS, at),
            time: window.sum(TIME_NS, at),
            requests: window.sum(REQUESTS, at),
        };
        let all = load(&self.window, at[0]);
        let lately = load(&self.recent, at[1]);
        let Load { time, requests, .. } = if lately.requests > 0 { lately } else { all };
        [all, Load { time, requests, ..lately }]
    }

    /// How long a request of `tier` would wait if it joined the queue now: the requests that are served
    /// before it, times the mean processing time, over the parallelism.
    pub(super) fn expected_wait(&self, tier: Tier, at: [Position; 2]) -> Nanos {
        let before = &self.queued[..=self.order.queue(tier)];
        let length = before.iter().map(QueueLength::get).fold(0, u64::saturating_add);
        if length == 0 {
            return Nanos::ZERO;
        }
        let [all, lately] = self.loads(at);
        let Load { time, requests, .. } =
            if is_lighter(all.mean_ns(), lately.mean_ns()) { lately } else { all };
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
        self.advance(now);
        for window in [&self.window, &self.recent] {
            window.add(TIME_NS, processing.min(MAX_PROCESSING).0);
            window.add(REQUESTS, 1);
        }
    }
}

/// True if the last seconds' average is clearly below the whole window's: an overload that is over does not count for the
/// rest of the window.
pub(super) fn is_lighter(average: f64, lately: f64) -> bool {
    lately < average * LIGHTER
}

const TIME_NS: usize = 0;
const REQUESTS: usize = 1;
const ARRIVALS: usize = 2;
const COUNTERS: usize = 3;
/// The last seconds, in steps.
const RECENT_STEPS: usize = 5;
/// A lower average is more than chance from this share on.
const LIGHTER: f64 = 0.9;
