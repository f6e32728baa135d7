//! The gates of one tenant, and the owner of its limit.
//!
//! Most gates report to the owner once in an interval, at moments spread evenly over the gates, and are told what to do until
//! their next report. Those of the schemes that were rejected ask it, or tell it, within a request.

use gate_common::token_bucket::{Take, take_time};
use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};

use super::fleet::Fleet;
use super::{Algorithm, Setup};
use gate_limits::Limits;
use gate_policy::fixed_window::FixedWindow;
use gate_policy::rejection_rate::{Rejection, RejectionRate};

/// The gates and the owner.
pub(super) struct Gates {
    gates: Vec<Gate>,
    owner: Owner,
    /// The gates and the owner of [`Algorithm::Shares`].
    fleet: Option<Fleet>,
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
            fleet: (setup.algorithm == Algorithm::Shares).then(|| Fleet::new(setup)),
            setup: *setup,
            step: setup.report_interval.0 / u64::from(setup.gates),
            reports: 0,
            waited: Nanos::ZERO,
        }
    }

    /// True if a request passes at a gate.
    pub(super) fn admit(&mut self, now: Nanos, gate: usize, draw: u16) -> bool {
        if let Some(fleet) = &mut self.fleet {
            return fleet.admit(now, gate);
        }
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
            self.owner.report(at, interval, gate.offered, gate.admitted);
            (gate.offered, gate.admitted) = (0, 0);
            gate.rejection = self.owner.rejection(at);
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
            let most = (self.setup.limit * FETCHED.0 / self.setup.per.0).max(1);
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
            self.owner.report(now, Nanos::ZERO, 0, SAMPLED.into());
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
}

/// A token bucket that every request is charged to.
pub(super) struct Bucket {
    tat: u64,
    limits: Limits,
}

impl Bucket {
    pub(super) fn new(setup: &Setup) -> Self {
        Self { tat: 0, limits: Limits { max_debt_ns: 0, ..setup.limits() } }
    }

    pub(super) fn take(&mut self, now: Nanos) -> bool {
        let Limits { rate, burst_ns, max_debt_ns, .. } = self.limits;
        let time = rate.time_for(COST.0.into());
        let Take::Admit { tat } = take_time(self.tat, since_full(now), time, burst_ns, max_debt_ns) else {
            return false;
        };
        self.tat = tat;
        true
    }

    /// Charges what was used at some time, however large the debt.
    fn settle(&mut self, then: u64, requests: u64) {
        let cost = requests.saturating_mul(COST.0.into());
        self.tat = self.tat.max(then).saturating_add(self.limits.rate.time_for(cost));
    }

    /// The time until the debt is paid.
    fn debt(&self, now: Nanos) -> Nanos {
        Nanos(self.tat.saturating_sub(since_full(now).saturating_add(self.limits.burst_ns)))
    }
}

/// The clock of buckets, which starts a second in.
fn since_full(now: Nanos) -> u64 {
    now.0 + NANOS_PER_SEC
}

/// The owner of the limit. It knows of requests only what gates tell it.
enum Owner {
    TokenBucket(Bucket),
    FixedWindow(FixedWindow),
    RejectionRate(RejectionRate),
}

impl Owner {
    fn new(setup: &Setup) -> Self {
        let possible = "a possible setup";
        match setup.algorithm {
            Algorithm::TokenBucket
            | Algorithm::Sampling
            | Algorithm::RemoteCall
            | Algorithm::PrefetchedTokens
            | Algorithm::Shares => Self::TokenBucket(Bucket::new(setup)),
            Algorithm::FixedWindow => {
                Self::FixedWindow(FixedWindow::new(setup.limit, setup.per).expect(possible))
            }
            Algorithm::RejectionRate => {
                Self::RejectionRate(RejectionRate::new(setup.limit, setup.report_interval).expect(possible))
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
    fn report(&mut self, now: Nanos, interval: Nanos, offered: u64, admitted: u64) {
        match self {
            Self::TokenBucket(bucket) => {
                // Used since the last report, so charged as of then: what has refilled since is there.
                let then = since_full(now) - interval.0.min(NANOS_PER_SEC);
                bucket.settle(then, admitted);
            }
            Self::FixedWindow(window) => window.charge(now, admitted),
            Self::RejectionRate(rate) => rate.offered(now, offered),
        }
    }

    fn rejection(&self, now: Nanos) -> Rejection {
        match self {
            Self::TokenBucket(bucket) => match bucket.debt(now) {
                Nanos::ZERO => Rejection::NONE,
                debt => Rejection::all_until(now.saturating_add(debt)),
            },
            Self::FixedWindow(window) => window.rejection(now),
            Self::RejectionRate(rate) => rate.rejection(now),
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
