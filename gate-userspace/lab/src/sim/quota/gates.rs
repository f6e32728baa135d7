//! The gates of one tenant, and the owner of its limit.
//!
//! Most gates report to the owner once in an interval, at moments spread evenly over the gates, and are told what to do until
//! their next report. Those of the schemes that were rejected ask it, or tell it, within a request.

use gate_common::token_bucket::{Limits, Take, at_another_rate, debt_ns, settle, take};
use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};

use super::{Algorithm, Setup};
use gate_policy::fixed_window::FixedWindow;
use gate_policy::fleet_share::{FleetShares, LONGEST_DEBT, Share, Used};
use gate_policy::rate::Rate;
use gate_policy::rejection_rate::{Rejection, RejectionRate};

/// The gates and the owner.
pub(super) struct Gates {
    gates: Vec<Gate>,
    owner: Owner,
    setup: Setup,
    /// Time between two reports of any gates.
    step: u64,
    /// Reports so far.
    reports: u64,
    waited: Nanos,
}

/// The state of one gate.
struct Gate {
    bucket: Bucket,
    rejection: Rejection,
    /// Tokens that it has fetched, and not given out yet.
    fetched: u64,
    /// Since its last report.
    offered: u64,
    admitted: u64,
}

impl Gates {
    pub(super) fn new(setup: &Setup) -> Self {
        let gate = || Gate {
            bucket: Bucket::new(setup),
            rejection: Rejection::NONE,
            fetched: 0,
            offered: 0,
            admitted: 0,
        };
        Self {
            gates: (0..setup.gates).map(|_| gate()).collect(),
            owner: Owner::new(setup),
            setup: *setup,
            step: setup.report_interval.0 / u64::from(setup.gates),
            reports: 0,
            waited: Nanos::ZERO,
        }
    }

    /// True if a request passes at a gate.
    pub(super) fn admit(&mut self, now: Nanos, gate: usize, draw: u16) -> bool {
        match self.setup.algorithm {
            Algorithm::RemoteCall => self.ask(now),
            Algorithm::PrefetchedTokens => self.admit_by_fetched(now, gate),
            Algorithm::Sampling => self.admit_sampled(now, gate, draw),
            Algorithm::TokenBucket
            | Algorithm::FixedWindow
            | Algorithm::RejectionRate
            | Algorithm::Shares => {
                self.report_until(now);
                self.gates[gate].admit(now, draw, self.setup.local_bucket)
            }
        }
    }

    /// The time that requests have waited for answers of the owner, in all.
    pub(super) fn waited(&self) -> Nanos {
        self.waited
    }

    /// Lets the gates report whose turn it is up to `now`.
    fn report_until(&mut self, now: Nanos) {
        let count = self.gates.len() as u64;
        let interval = self.setup.report_interval;
        loop {
            let round = self.reports / count * interval.0;
            let at = Nanos(round + (self.reports % count + 1) * self.step);
            if at > now {
                return;
            }
            let number = (self.reports % count) as usize;
            let gate = &mut self.gates[number];
            self.owner.report(at, interval, number as u32, gate.offered, gate.admitted);
            (gate.offered, gate.admitted) = (0, 0);
            gate.take_answer(at, self.owner.answer(number as u32, at), &self.setup);
            self.reports += 1;
        }
    }

    /// Asks the owner within a request, which waits for the answer.
    fn ask(&mut self, now: Nanos) -> bool {
        self.waited = self.waited.saturating_add(ROUND_TRIP);
        self.owner.bucket().take(now)
    }

    /// Gives out a token that has been fetched; without one, fetches as many as there are, up to [`FETCHED`] of the limit.
    fn admit_by_fetched(&mut self, now: Nanos, gate: usize) -> bool {
        if self.gates[gate].fetched == 0 {
            let most = (self.setup.limit * FETCHED.0 / NANOS_PER_SEC).max(1);
            self.waited = self.waited.saturating_add(ROUND_TRIP);
            let bucket = self.owner.bucket();
            self.gates[gate].fetched = (0..most).take_while(|_| bucket.take(now)).count() as u64;
        }
        let gate = &mut self.gates[gate];
        let admits = gate.fetched > 0;
        gate.fetched = gate.fetched.saturating_sub(1);
        admits
    }

    /// Tells the owner of one in [`SAMPLED`] requests, at once, as if it were all of them; nobody waits for its answer.
    fn admit_sampled(&mut self, now: Nanos, gate: usize, draw: u16) -> bool {
        let gate = &mut self.gates[gate];
        let admits = gate.admit(now, 0, self.setup.local_bucket);
        if admits && draw.is_multiple_of(SAMPLED) {
            self.owner.report(now, Nanos::ZERO, 0, 0, SAMPLED.into());
            let rejection = self.owner.rejection(now);
            self.gates.iter_mut().for_each(|gate| gate.rejection = rejection);
        }
        admits
    }
}

impl Gate {
    fn admit(&mut self, now: Nanos, draw: u16, local_bucket: bool) -> bool {
        self.offered += 1;
        let admits = self.rejection.admits(now, draw) && (!local_bucket || self.bucket.take(now));
        self.admitted += u64::from(admits);
        admits
    }

    fn take_answer(&mut self, now: Nanos, answer: Answer, setup: &Setup) {
        match answer {
            Answer::Rejection(rejection) => self.rejection = rejection,
            Answer::Share(Share::Whole) => self.bucket.change(now, Bucket::new(setup).limits),
            Answer::Share(Share::Part { reject_until, rate, burst }) => {
                let per_sec = (rate.nano() / 1_000_000).max(1);
                self.rejection = Rejection::all_until(reject_until);
                self.bucket.change(now, Limits::new(per_sec, burst * NANOS_PER_SEC / per_sec));
            }
        }
    }
}

/// A token bucket that every request is charged to.
pub(super) struct Bucket {
    tat: u64,
    limits: Limits,
}

impl Bucket {
    pub(super) fn new(setup: &Setup) -> Self {
        Self { tat: 0, limits: Limits::new(setup.limit * u64::from(COST.0), setup.burst.0) }
    }

    pub(super) fn take(&mut self, now: Nanos) -> bool {
        // The clock starts a second in, so that the bucket is full.
        let Take::Admit { tat } = take(self.tat, now.0 + NANOS_PER_SEC, COST.0, &self.limits) else {
            return false;
        };
        self.tat = tat;
        true
    }

    fn change(&mut self, now: Nanos, limits: Limits) {
        self.tat = at_another_rate(self.tat, now.0 + NANOS_PER_SEC, self.limits.rate, limits.rate);
        self.limits = limits;
    }
}

/// The owner of the limit. It knows of requests only what gates tell it.
enum Owner {
    TokenBucket(Bucket),
    FixedWindow(FixedWindow),
    RejectionRate(RejectionRate),
    Shares(FleetShares),
}

/// The answer to a report.
enum Answer {
    Rejection(Rejection),
    Share(Share),
}

impl Owner {
    fn new(setup: &Setup) -> Self {
        let possible = "a possible setup";
        match setup.algorithm {
            Algorithm::TokenBucket | Algorithm::Sampling => {
                let mut bucket = Bucket::new(setup);
                // Every admitted request is charged, however large the debt.
                bucket.limits.max_debt_ns = u64::MAX;
                Self::TokenBucket(bucket)
            }
            Algorithm::RemoteCall | Algorithm::PrefetchedTokens => Self::TokenBucket(Bucket::new(setup)),
            Algorithm::FixedWindow => {
                Self::FixedWindow(FixedWindow::new(setup.limit, Nanos::from_secs(1)).expect(possible))
            }
            Algorithm::RejectionRate => {
                Self::RejectionRate(RejectionRate::new(setup.limit, setup.report_interval).expect(possible))
            }
            Algorithm::Shares => {
                // As of a limit that forgives nothing: whatever gates gave out too much is paid back.
                let per_sec = setup.limit * u64::from(COST.0);
                Self::Shares(FleetShares::new(Rate::per_sec(per_sec), setup.burst, LONGEST_DEBT))
            }
        }
    }

    /// The bucket of a scheme that asks one.
    fn bucket(&mut self) -> &mut Bucket {
        match self {
            Self::TokenBucket(bucket) => bucket,
            _ => unreachable!("a scheme that asks has a bucket"),
        }
    }

    /// Takes in what a gate did in the `interval` that ends now.
    fn report(&mut self, now: Nanos, interval: Nanos, gate: u32, offered: u64, admitted: u64) {
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
            Self::Shares(shares) => {
                let cost = u64::from(COST.0);
                let refused = (offered - admitted) * cost;
                shares.report(gate, now, Used { within: interval, charged: admitted * cost, refused });
            }
        }
    }

    /// The answer to a gate that has just reported.
    fn answer(&mut self, gate: u32, now: Nanos) -> Answer {
        match self {
            Self::Shares(shares) => Answer::Share(shares.share(gate, now)),
            _ => Answer::Rejection(self.rejection(now)),
        }
    }

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
            Self::Shares(_) => Rejection::NONE,
        }
    }
}

/// The cost of a request.
const COST: MilliRu = MilliRu::ONE_RU;
/// The time that a question to the owner takes, within a data centre.
const ROUND_TRIP: Nanos = Nanos::from_micros(500);
/// The tokens that are fetched at once: what comes in in this time at the limit.
const FETCHED: Nanos = Nanos::from_millis(10);
/// One in so many requests is a sample.
const SAMPLED: u16 = 16;
