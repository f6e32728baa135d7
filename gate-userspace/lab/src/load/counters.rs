//! One tenant's counters and latencies.

use std::collections::BTreeMap;

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::memcached::Reply;

/// Counts and times of one tenant. Every offered request ends in exactly one of answered, refused,
/// failed, lost, unsent, or is still outstanding.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Requests that were due.
    pub offered: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that the store answered.
    pub answered: u64,
    /// Reads among them that found a value.
    pub hits: u64,
    /// Refusals by [`Reason`], and last those that state none.
    pub refused: [u64; Reason::COUNT + 1],
    /// Requests that could not be sent, or whose answer was an error.
    pub failed: u64,
    /// Requests without an answer in time.
    pub lost: u64,
    /// Requests that were due before the end, and that the generator did not get to.
    pub unsent: u64,
    /// Answers that came after their request was given up.
    pub late: u64,
    /// From when a request was due to its answer by the store.
    pub latency: Histogram<u64>,
    /// From when a request was due to its refusal.
    pub refusal_latency: Histogram<u64>,
    /// From when a request was due to when it was sent: the delay that the generator itself adds.
    pub lag: Histogram<u64>,
    /// By kind of request, in the order of the mix; empty without one.
    pub by_request: Vec<RequestCounters>,
}

/// Counts and times of one kind of request.
#[derive(Clone, Debug)]
pub struct RequestCounters {
    /// See [`Counters::offered`]; so for all counts.
    pub offered: u64,
    /// Requests that the store answered.
    pub answered: u64,
    /// Refusals.
    pub refused: u64,
    /// Requests that failed, were lost or not sent.
    pub failed: u64,
    /// From when a request was due to its answer by the store.
    pub latency: Histogram<u64>,
    /// From when a request was due to its refusal.
    pub refusal_latency: Histogram<u64>,
}

impl RequestCounters {
    fn new() -> Self {
        Self {
            offered: 0,
            answered: 0,
            refused: 0,
            failed: 0,
            latency: histogram(),
            refusal_latency: histogram(),
        }
    }

    fn absorb(&mut self, other: &mut Self) {
        self.offered += std::mem::take(&mut other.offered);
        self.answered += std::mem::take(&mut other.answered);
        self.refused += std::mem::take(&mut other.refused);
        self.failed += std::mem::take(&mut other.failed);
        move_times(&mut self.latency, &mut other.latency);
        move_times(&mut self.refusal_latency, &mut other.refusal_latency);
    }
}

/// Adds the times of `other`, and empties it.
fn move_times(times: &mut Histogram<u64>, other: &mut Histogram<u64>) {
    if !other.is_empty() {
        times.add(&*other).expect("all have the same bounds");
        other.reset();
    }
}

impl Counters {
    /// Counters of a mix with so many kinds of requests that are counted by themselves.
    pub(super) fn new(entries: usize) -> Self {
        Self {
            offered: 0,
            sent: 0,
            answered: 0,
            hits: 0,
            refused: [0; Reason::COUNT + 1],
            failed: 0,
            lost: 0,
            unsent: 0,
            late: 0,
            latency: histogram(),
            refusal_latency: histogram(),
            lag: histogram(),
            by_request: vec![RequestCounters::new(); entries],
        }
    }

    /// A request of this kind is due.
    pub(super) fn offer(&mut self, entry: usize) {
        self.offered += 1;
        if let Some(counters) = self.by_request.get_mut(entry) {
            counters.offered += 1;
        }
    }

    /// A request of this kind had no answer in time.
    pub(super) fn lose(&mut self, entry: usize) {
        self.lost += 1;
        self.fail_entry(entry);
    }

    /// A request of this kind could not be sent, or was on a connection that ended.
    pub(super) fn fail(&mut self, entry: usize) {
        self.failed += 1;
        self.fail_entry(entry);
    }

    /// The generator did not get to a request of this kind.
    pub(super) fn leave_unsent(&mut self, entry: usize) {
        self.unsent += 1;
        self.fail_entry(entry);
    }

    fn fail_entry(&mut self, entry: usize) {
        if let Some(counters) = self.by_request.get_mut(entry) {
            counters.failed += 1;
        }
    }

    /// An answer to a request of this kind, so long after it was due.
    pub(super) fn reply(&mut self, reply: Reply, entry: usize, after: Nanos) {
        if let Some(counters) = self.by_request.get_mut(entry) {
            match reply {
                Reply::Hit | Reply::Miss | Reply::Done => {
                    counters.answered += 1;
                    counters.latency.saturating_record(after.0);
                }
                Reply::Refused(_) => {
                    counters.refused += 1;
                    counters.refusal_latency.saturating_record(after.0);
                }
                Reply::Error => counters.failed += 1,
            }
        }
        match reply {
            Reply::Hit | Reply::Miss | Reply::Done => {
                self.answered += 1;
                self.hits += u64::from(reply == Reply::Hit);
                self.latency.saturating_record(after.0);
            }
            Reply::Refused(reason) => {
                self.refused[reason.map_or(Reason::COUNT, Reason::index)] += 1;
                self.refusal_latency.saturating_record(after.0);
            }
            Reply::Error => self.failed += 1,
        }
    }

    /// Takes over what `other` has counted, and empties it.
    pub(super) fn absorb(&mut self, other: &mut Self) {
        let counts = [
            (&mut self.offered, &mut other.offered),
            (&mut self.sent, &mut other.sent),
            (&mut self.answered, &mut other.answered),
            (&mut self.hits, &mut other.hits),
            (&mut self.failed, &mut other.failed),
            (&mut self.lost, &mut other.lost),
            (&mut self.unsent, &mut other.unsent),
            (&mut self.late, &mut other.late),
        ];
        let refused = self.refused.iter_mut().zip(&mut other.refused);
        for (count, other) in counts.into_iter().chain(refused) {
            *count += std::mem::take(other);
        }
        move_times(&mut self.latency, &mut other.latency);
        move_times(&mut self.refusal_latency, &mut other.refusal_latency);
        move_times(&mut self.lag, &mut other.lag);
        for (counters, other) in self.by_request.iter_mut().zip(&mut other.by_request) {
            counters.absorb(other);
        }
    }

    /// All refusals.
    #[must_use]
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Refusals by the name of their reason, those that happened.
    #[must_use]
    pub fn refused_by_name(&self) -> BTreeMap<&'static str, u64> {
        let names = Reason::ALL.iter().map(|reason| reason.name()).chain([UNSTATED]);
        names.zip(self.refused).filter(|&(_, count)| count > 0).collect()
    }
}

/// How a refusal is listed that states no reason: the short form from the interface.
pub const UNSTATED: &str = "unstated";

/// 1 µs to 60 s, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 60_000_000_000, 3).expect("the bounds are in order")
}

/// The result of one tenant's run, for `--json` and the table.
#[derive(Clone, Debug, Serialize)]
pub struct TenantSummary {
    /// The tenant.
    pub name: String,
    /// See [`Counters::offered`]; so for all counts.
    pub offered: u64,
    /// Requests that were due before the end, and that the generator did not get to.
    pub unsent: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that the store answered.
    pub answered: u64,
    /// Reads among them that found a value.
    pub hits: u64,
    /// Refusals, in all.
    pub refused: u64,
    /// Refusals by reason.
    pub refused_by_reason: BTreeMap<&'static str, u64>,
    /// Errors.
    pub failed: u64,
    /// Without an answer in time.
    pub lost: u64,
    /// Answers that came too late.
    pub late: u64,
    /// Of answers, from when the request was due.
    pub latency_ns: Quantiles,
    /// Of refusals, from when the request was due.
    pub refusal_latency_ns: Quantiles,
    /// The delay that the generator itself adds: from when a request was due to when it was sent.
    pub lag_ns: Quantiles,
    /// By kind of request, in the order of the mix.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<RequestSummary>,
}

/// The result of one kind of request.
#[derive(Clone, Debug, Serialize)]
pub struct RequestSummary {
    /// Its name in the mix.
    pub name: String,
    /// See [`RequestCounters::offered`]; so for all counts.
    pub offered: u64,
    /// Requests that the store answered.
    pub answered: u64,
    /// Refusals.
    pub refused: u64,
    /// Requests that failed, were lost or not sent.
    pub failed: u64,
    /// Of answers, from when the request was due.
    pub latency_ns: Quantiles,
    /// Of refusals, from when the request was due.
    pub refusal_latency_ns: Quantiles,
}

impl RequestSummary {
    fn new(name: &str, counters: &RequestCounters) -> Self {
        Self {
            name: name.to_owned(),
            offered: counters.offered,
            answered: counters.answered,
            refused: counters.refused,
            failed: counters.failed,
            latency_ns: (&counters.latency).into(),
            refusal_latency_ns: (&counters.refusal_latency).into(),
        }
    }
}

/// Points of a distribution, in nanoseconds; all zero if it is empty.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: u64,
    /// 90%.
    pub p90: u64,
    /// 99%.
    pub p99: u64,
    /// 99.9%.
    pub p999: u64,
    /// The largest.
    pub max: u64,
}

impl From<&Histogram<u64>> for Quantiles {
    fn from(times: &Histogram<u64>) -> Self {
        let at = |quantile| times.value_at_quantile(quantile);
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: times.max() }
    }
}

impl TenantSummary {
    /// `entry_names` are the names of what is counted by itself.
    pub(super) fn new(name: &str, entry_names: &[String], counters: &Counters) -> Self {
        let by_request = entry_names.iter().zip(&counters.by_request);
        Self {
            requests: by_request.map(|(name, counters)| RequestSummary::new(name, counters)).collect(),
            name: name.to_owned(),
            offered: counters.offered,
            unsent: counters.unsent,
            sent: counters.sent,
            answered: counters.answered,
            hits: counters.hits,
            refused: counters.refused_in_all(),
            refused_by_reason: counters.refused_by_name(),
            failed: counters.failed,
            lost: counters.lost,
            late: counters.late,
            latency_ns: (&counters.latency).into(),
            refusal_latency_ns: (&counters.refusal_latency).into(),
            lag_ns: (&counters.lag).into(),
        }
    }
}
