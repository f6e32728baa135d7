//! Accept the fraction of requests that keeps the store's utilization at its limit.
//!
//! The demand is the moving average of the arrival rate times that of the processing time, over the
//! store's parallelism: how many times its capacity is asked for. Above the limit, a request passes
//! with probability `limit / demand`.
//!
//! **Deviations.** The paper leaves open how the averages begin; see [`Averaging`].

use gate_common::units::{NANOS_PER_SEC, Nanos};

use super::{MAX_PROCESSING, STEP, STEPS};
use crate::admission::{Admission, Decision, Request};
use crate::range::{OutOfRange, ensure};
use crate::window::SlidingWindow;

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
    parallelism: u32,
    averaging: Averaging,
    seen: SlidingWindow,
}

impl AcceptFraction {
    /// At most `max_utilization` of a store that works on `parallelism` requests at once; the
    /// study's is 0.95.
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
        ensure(parallelism >= 1, "parallelism", parallelism, "at least 1")?;
        Ok(Self {
            max_utilization,
            parallelism,
            averaging,
            seen: SlidingWindow::new(COUNTERS, STEP, STEPS, now)?,
        })
    }

    /// How many times the store's capacity is asked for. The request that asks counts as arrived.
    fn demand(&self, now: Nanos) -> f64 {
        let at = self.seen.advance(now);
        self.seen.add(ARRIVALS, 1);
        let span = match self.averaging {
            Averaging::Covered => self.seen.span(at, now),
            Averaging::WholeWindow => self.seen.length(),
        };
        let sum = |counter| self.seen.sum(counter, at) as f64;
        let per_sec = sum(ARRIVALS) * NANOS_PER_SEC as f64 / span.0 as f64;
        let mean_secs = sum(TIME_NS) / sum(REQUESTS).max(1.0) / NANOS_PER_SEC as f64;
        per_sec * mean_secs / f64::from(self.parallelism)
    }
}

impl Admission for AcceptFraction {
    fn decide(&self, _request: Request, now: Nanos, draw: f64) -> Decision {
        if draw * self.demand(now) < self.max_utilization {
            Decision::Admit
        } else {
            Decision::Refuse { retry_after: Nanos::ZERO }
        }
    }

    fn enqueued(&self, _request: Request) {}

    fn dequeued(&self, _request: Request) {}

    fn completed(&self, _request: Request, processing: Nanos, now: Nanos) {
        self.seen.advance(now);
        self.seen.add(TIME_NS, processing.min(MAX_PROCESSING).0);
        self.seen.add(REQUESTS, 1);
    }

    fn refresh(&self, now: Nanos) {
        self.seen.advance(now);
    }
}

const ARRIVALS: usize = 0;
const TIME_NS: usize = 1;
const REQUESTS: usize = 2;
const COUNTERS: usize = 3;
