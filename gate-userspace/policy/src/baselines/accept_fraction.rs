//! Accept the fraction of requests that keeps the store's utilization at its limit, and none that is
//! expected to time out in the queue.
//!
//! The demand is the moving average of the arrival rate times that of the processing time, over the
//! store's parallelism: how many times its capacity is asked for. Above the limit, a request passes
//! with probability `limit / demand`. Where requests have a deadline, one whose mean wait (Equation 5 of
//! the paper: the queue's length times the mean processing time, over the parallelism) is expected to be
//! longer is refused whatever the draw says.
//!
//! **Deviations.** The paper leaves open how the averages begin; see [`Averaging`]. Its simulation knows no
//! deadline, its real system does; without one nothing is refused for its wait. An overload that is over counts no longer
//! than the last seconds: where those ask for clearly less than the whole window, they decide.

use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::units::{NANOS_PER_SEC, Nanos};

use super::averages::{Averages, Load, is_lighter};
use crate::admission::{Admission, Decision, QueueOrder, Request};
use crate::range::{OutOfRange, ensure};
use crate::window::Position;

/// By what the arrivals in the window are divided to get a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Averaging {
    /// By the time that the window has covered so far: the rate is right from the start.
    Covered,
    /// By the window's whole length: the rate is too low until the window has filled once, and the
    /// queue that builds up meanwhile grows with the load.
    WholeWindow,
}

/// At most so much of the store's capacity.
#[derive(Debug)]
pub struct AcceptFraction {
    max_utilization: f64,
    averaging: Averaging,
    averages: Averages,
    /// In nanoseconds; [`NO_DEADLINE`] if there is none.
    deadline: AtomicU64,
}

impl AcceptFraction {
    /// At most `max_utilization` of a store that works on `parallelism` requests at once; the
    /// study's is 0.95. Without a deadline, and with a queue in order of arrival.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if `max_utilization` is not above 0 and at most 1, or `parallelism` is zero.
    pub fn new(
        max_utilization: f64,
        parallelism: u32,
        averaging: Averaging,
        now: Nanos,
    ) -> Result<Self, OutOfRange> {
        let in_range = max_utilization > 0.0 && max_utilization <= 1.0;
        ensure(in_range, "max_utilization", max_utilization, "above 0, at most 1")?;
        let averages = Averages::new(parallelism, now)?;
        Ok(Self { max_utilization, averaging, averages, deadline: AtomicU64::new(NO_DEADLINE) })
    }

    /// The same for requests that are of no use after so long a wait.
    #[must_use]
    pub fn with_deadline(self, deadline: Option<Nanos>) -> Self {
        self.set_deadline(deadline);
        self
    }

    /// The same before a queue that is served in this order.
    #[must_use]
    pub fn with_order(self, order: QueueOrder) -> Self {
        Self { averages: self.averages.with_order(order), ..self }
    }

    /// The decision where `more` requests than are counted have arrived, the one that asks among them.
    fn judge(&self, request: Request, at: [Position; 2], now: Nanos, draw: f64, more: u64) -> Decision {
        let demand = self.demand(at, now, more);
        let deadline = self.deadline.load(Ordering::Relaxed);
        if deadline != NO_DEADLINE {
            let late = self.averages.expected_wait(request.tier, at).saturating_sub(Nanos(deadline));
            if late > Nanos::ZERO {
                return Decision::Refuse { retry_after: late };
            }
        }
        if draw * demand < self.max_utilization {
            Decision::Admit
        } else {
            Decision::Refuse { retry_after: Nanos::ZERO }
        }
    }

    /// How many times the store's capacity is asked for.
    fn demand(&self, at: [Position; 2], now: Nanos, more: u64) -> f64 {
        let recent = self.averages.recent();
        let window = self.averages.window();
        let span = match self.averaging {
            Averaging::Covered => window.span(at[0], now),
            Averaging::WholeWindow => window.length(),
        };
        let [all, lately] = self.averages.loads(at);
        let demand = |load: Load, span: Nanos| {
            let per_sec = load.arrivals.wrapping_add(more) as f64 * NANOS_PER_SEC as f64 / span.0 as f64;
            per_sec * load.mean_ns() / NANOS_PER_SEC as f64 / f64::from(self.averages.parallelism())
        };
        let average = demand(all, span);
        let lately = demand(lately, recent.span(at[1], now));
        if is_lighter(average, lately) { lately } else { average }
    }
}

impl Admission for AcceptFraction {
    fn decide(&self, request: Request, now: Nanos, draw: f64) -> Decision {
        let at = self.averages.advance(now);
        self.averages.arrived();
        self.judge(request, at, now, draw, 0)
    }

    fn peek(&self, request: Request, now: Nanos, draw: f64) -> Decision {
        let at = self.averages.advance(now);
        self.judge(request, at, now, draw, 1)
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

    fn set_parallelism(&self, parallelism: u32) {
        self.averages.set_parallelism(parallelism);
    }

    fn set_deadline(&self, deadline: Option<Nanos>) {
        self.deadline.store(deadline.map_or(NO_DEADLINE, |deadline| deadline.0), Ordering::Relaxed);
    }
}

/// No wait is longer.
const NO_DEADLINE: u64 = u64::MAX;
