//! One tenant at its gates, and the counter that they share.

use std::collections::VecDeque;

use gate_common::units::{NANOS_PER_SEC, Nanos};

use super::arrivals::{Arrivals, STREAMS};
use super::gates::{Bucket, Gates};
use super::{Pattern, Setup};
use crate::sim::rng::Rng;

/// The result for a tenant, in requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) requests: u64,
    pub(super) admitted: u64,
    pub(super) exact: u64,
    pub(super) most_in_second: u64,
    pub(super) most_in_10_seconds: u64,
    pub(super) most_missed_in_second: u64,
    /// The time that requests have waited for answers of the owner, in all.
    pub(super) waited: Nanos,
}

/// Simulates a tenant that offers `per_sec` requests. `watch` is called for every request with when it came,
/// whether it passed, and whether it passed the exact shared counter. `setup` must be possible.
pub(super) fn run(
    setup: &Setup,
    tenant: u64,
    per_sec: f64,
    watch: &mut dyn FnMut(Nanos, bool, bool),
) -> Outcome {
    let mut draws = Rng::new(setup.seed, tenant * STREAMS + 2);
    let mut gates = Gates::new(setup);
    let mut exact = Bucket::new(setup);
    let mut second = Window::new(NANOS_PER_SEC);
    let mut ten_seconds = Window::new(10 * NANOS_PER_SEC);
    let mut shortfall = Shortfall::default();
    let mut outcome = Outcome::default();
    for now in Arrivals::new(setup.pattern, per_sec, setup.seed, tenant).take_while(|&now| now < setup.length)
    {
        let draw = draws.bits();
        let gate = match setup.pattern {
            Pattern::Hop => (now.0 / HOP.0) as usize,
            _ => (draw >> 32) as usize,
        };
        let admits = gates.admit(now, gate % setup.gates as usize, draw as u16);
        let exactly = exact.take(now);
        watch(now, admits, exactly);
        outcome.requests += 1;
        outcome.exact += u64::from(exactly);
        shortfall.count(now, admits, exactly);
        if admits {
            outcome.admitted += 1;
        }
        if admits && now >= setup.settling {
            outcome.most_in_second = outcome.most_in_second.max(second.count(now));
            outcome.most_in_10_seconds = outcome.most_in_10_seconds.max(ten_seconds.count(now));
        }
    }
    outcome.most_missed_in_second = shortfall.worst();
    outcome.waited = gates.waited();
    outcome
}

/// How long all requests go to one gate under [`Pattern::Hop`].
const HOP: Nanos = Nanos::from_secs(2);

/// Counts over a sliding window, exactly.
struct Window {
    length: u64,
    times: VecDeque<Nanos>,
}

impl Window {
    fn new(length: u64) -> Self {
        Self { length, times: VecDeque::new() }
    }

    /// Counts one at `now`, and says how many there are in the window that ends with it.
    fn count(&mut self, now: Nanos) -> u64 {
        self.times.push_back(now);
        while self.times.front().is_some_and(|first| first.0 + self.length <= now.0) {
            self.times.pop_front();
        }
        self.times.len() as u64
    }
}

/// By how much a tenant got less than under the exact shared counter, second by second.
#[derive(Default)]
struct Shortfall {
    second: u64,
    here: u64,
    exact: u64,
    worst: u64,
}

impl Shortfall {
    fn count(&mut self, now: Nanos, admits: bool, exactly: bool) {
        if now.0 / NANOS_PER_SEC != self.second {
            self.worst = self.worst();
            (self.second, self.here, self.exact) = (now.0 / NANOS_PER_SEC, 0, 0);
        }
        self.here += u64::from(admits);
        self.exact += u64::from(exactly);
    }

    fn worst(&self) -> u64 {
        self.worst.max(self.exact.saturating_sub(self.here))
    }
}
