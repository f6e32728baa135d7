//! One tenant at its gates, and the counter that they share.

use std::collections::VecDeque;

use gate_common::token_bucket::{Limits, Take, debt_ns, settle, take};
use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};

use super::arrivals::{Arrivals, STREAMS};
use super::{Algorithm, Setup};
use crate::policy::fixed_window::FixedWindow;
use crate::policy::rejection_rate::{Rejection, RejectionRate};
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
    let mut gates = GateFleet::new(setup);
    let mut exact = Bucket::new(setup);
    let mut second = Window::new(NANOS_PER_SEC);
    let mut ten_seconds = Window::new(10 * NANOS_PER_SEC);
    let mut shortfall = Shortfall::default();
    let mut outcome = Outcome::default();
    for now in Arrivals::new(setup.pattern, per_sec, setup.seed, tenant).take_while(|&now| now < setup.length)
    {
        gates.report_until(now);
        let draw = draws.bits();
        let admits = gates.admit(now, (draw >> 32) as usize, draw as u16);
        let exactly = exact.take(now);
        watch(now, admits, exactly);
        outcome.requests += 1;
        outcome.exact += u64::from(exactly);
        shortfall.count(now, admits, exactly);
        if admits {
            outcome.admitted += 1;
            outcome.most_in_second = outcome.most_in_second.max(second.count(now));
            outcome.most_in_10_seconds = outcome.most_in_10_seconds.max(ten_seconds.count(now));
        }
    }
    outcome.most_missed_in_second = shortfall.worst();
    outcome
}

/// The cost of a request.
const COST: MilliRu = MilliRu::ONE_RU;

/// The gates, which report in turn.
struct GateFleet {
    gates: Vec<GateState>,
    counter: Counter,
    local_bucket: bool,
    /// Time between two reports of any gates.
    step: u64,
    /// Reports so far.
    reports: u64,
    interval: Nanos,
}

/// The state of one gate.
struct GateState {
    bucket: Bucket,
    rejection: Rejection,
    /// Since its last report.
    offered: u64,
    admitted: u64,
}

impl GateFleet {
    fn new(setup: &Setup) -> Self {
        let gate =
            || GateState { bucket: Bucket::new(setup), rejection: Rejection::NONE, offered: 0, admitted: 0 };
        Self {
            gates: (0..setup.gates).map(|_| gate()).collect(),
            counter: Counter::new(setup),
            local_bucket: setup.local_bucket,
            step: setup.report_interval.0 / u64::from(setup.gates),
            reports: 0,
            interval: setup.report_interval,
        }
    }

    /// Lets the gates report whose turn it is up to `now`.
    fn report_until(&mut self, now: Nanos) {
        let count = self.gates.len() as u64;
        loop {
            let round = self.reports / count * self.interval.0;
            let at = Nanos(round + (self.reports % count + 1) * self.step);
            if at > now {
                return;
            }
            let gate = &mut self.gates[(self.reports % count) as usize];
            self.counter.report(at, self.interval, gate.offered, gate.admitted);
            (gate.offered, gate.admitted) = (0, 0);
            gate.rejection = self.counter.rejection(at);
            self.reports += 1;
        }
    }

    fn admit(&mut self, now: Nanos, gate: usize, draw: u16) -> bool {
        let count = self.gates.len();
        let gate = &mut self.gates[gate % count];
        gate.offered += 1;
        let admits = gate.rejection.admits(now, draw) && (!self.local_bucket || gate.bucket.take(now));
        gate.admitted += u64::from(admits);
        admits
    }
}

/// A token bucket that every request is charged to.
struct Bucket {
    tat: u64,
    limits: Limits,
}

impl Bucket {
    fn new(setup: &Setup) -> Self {
        Self { tat: 0, limits: Limits::new(setup.limit * u64::from(COST.0), setup.burst.0) }
    }

    fn take(&mut self, now: Nanos) -> bool {
        // The clock starts a second in, so that the bucket is full.
        let Take::Admit { tat } = take(self.tat, now.0 + NANOS_PER_SEC, COST.0, &self.limits) else {
            return false;
        };
        self.tat = tat;
        true
    }
}

/// The counter that the gates share. It receives requests only by reports.
enum Counter {
    TokenBucket(Bucket),
    FixedWindow(FixedWindow),
    RejectionRate(RejectionRate),
}

impl Counter {
    fn new(setup: &Setup) -> Self {
        let possible = "a possible setup";
        match setup.algorithm {
            Algorithm::TokenBucket => {
                let mut bucket = Bucket::new(setup);
                // Every admitted request is charged, however large the debt.
                bucket.limits.max_debt_ns = u64::MAX;
                Self::TokenBucket(bucket)
            }
            Algorithm::FixedWindow => {
                Self::FixedWindow(FixedWindow::new(setup.limit, Nanos::from_secs(1)).expect(possible))
            }
            Algorithm::RejectionRate => {
                Self::RejectionRate(RejectionRate::new(setup.limit, setup.report_interval).expect(possible))
            }
        }
    }

    /// Takes in what a gate did in the `interval` that ends now.
    fn report(&mut self, now: Nanos, interval: Nanos, offered: u64, admitted: u64) {
        match self {
            Self::TokenBucket(Bucket { tat, limits }) => {
                // Used since the last report, so charged as of then: what has refilled since is there.
                let then = now.0 + NANOS_PER_SEC - interval.0.min(NANOS_PER_SEC);
                for _ in 0..admitted {
                    *tat = settle(*tat, then, COST.0, limits);
                }
            }
            Self::FixedWindow(window) => window.charge(now, admitted),
            Self::RejectionRate(rate) => rate.offered(now, offered),
        }
    }

    /// The rejection that a gate receives with its report.
    fn rejection(&self, now: Nanos) -> Rejection {
        match self {
            Self::TokenBucket(Bucket { tat, limits }) => {
                match debt_ns(*tat, now.0 + NANOS_PER_SEC, limits.burst_ns) {
                    0 => Rejection::NONE,
                    debt => Rejection::all_until(now.saturating_add(Nanos(debt))),
                }
            }
            Self::FixedWindow(window) => window.rejection(now),
            Self::RejectionRate(rate) => rate.rejection(now),
        }
    }
}

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
