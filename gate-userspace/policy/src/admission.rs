//! The question that every admission policy answers: may this request join the queue before the store?
//!
//! One interface, so that the dispatcher and the simulator can choose a policy by name: see
//! [`Bouncer`](super::bouncer::Bouncer) and its [`baselines`](super::baselines).
//!
//! A request's life, as its policy sees it: [`decide`](Admission::decide); if admitted,
//! [`enqueued`](Admission::enqueued), [`dequeued`](Admission::dequeued) when the store begins on it,
//! and [`completed`](Admission::completed) when it is done. One that the store can begin on at once
//! is neither enqueued nor dequeued; one that leaves the queue without being processed (a client
//! gone, a deadline) is dequeued and never completed.

use gate_common::units::Nanos;

use super::Tier;
use super::bouncer::Objective;

/// A query type, as its index among the types that a policy was built with.
///
/// Any index beyond them means the catch-all type, `default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueryType(pub u16);

/// The properties of a request that a policy may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How critical it is.
    pub tier: Tier,
    /// The type of the query.
    pub query_type: QueryType,
}

/// In which order requests are taken from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOrder {
    /// As they came: a request waits for all that are queued.
    Fifo,
    /// The most critical tier first: a request waits for the tiers served before or with its own.
    ByTier,
}

impl QueueOrder {
    /// The queue that a request of `tier` joins, of one per tier; those before it are served first.
    #[inline]
    pub(super) const fn queue(self, tier: Tier) -> usize {
        match self {
            Self::Fifo => 0,
            Self::ByTier => tier.index(),
        }
    }
}

/// A policy's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Let it queue.
    Admit,
    /// Let it queue: it would miss its objective, but its type would starve otherwise.
    AdmitUnderserved,
    /// Refuse it.
    Refuse {
        /// How long until the queue that stands in its way is worked off, as far as the policy
        /// knows; [`Nanos::ZERO`] if it does not.
        retry_after: Nanos,
    },
}

impl Decision {
    /// True if the request may queue.
    #[must_use]
    pub const fn admits(self) -> bool {
        matches!(self, Self::Admit | Self::AdmitUnderserved)
    }
}

/// The response time that a policy expects of a request, beside one target of its objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The percentile of the target, from 0 to 100.
    pub percentile: f64,
    /// The limit on the response time there.
    pub limit: Nanos,
    /// The expected wait and processing time there.
    pub expected: Nanos,
}

/// An admission policy. All calls are concurrent and take no lock, [`refresh`](Self::refresh) aside.
pub trait Admission: Send + Sync {
    /// May `request`, which arrives `now`, join the queue? `draw` is uniform in `[0, 1)`. A `now`
    /// before an earlier one counts as that one.
    fn decide(&self, request: Request, now: Nanos, draw: f64) -> Decision;

    /// The decision of [`decide`](Self::decide) on the same request, which is not counted. The windows of moving averages
    /// are moved up to `now`, which changes no sum.
    fn peek(&self, request: Request, now: Nanos, draw: f64) -> Decision;

    /// The expected response time of `request`, target by target; empty if it does not know.
    fn estimates(&self, _request: Request) -> Vec<Estimate> {
        Vec::new()
    }

    /// `request`, which it has just admitted, another policy has refused.
    fn withdrawn(&self, _request: Request, _now: Nanos) {}

    /// `request` has joined the queue.
    fn enqueued(&self, request: Request);

    /// `request` has left the queue.
    fn dequeued(&self, request: Request);

    /// `request` has been processed, which took `processing` from its leaving the queue.
    fn completed(&self, request: Request, processing: Nanos, now: Nanos);

    /// Learns from what was completed. To be called at every tick (100 ms), off the hot path.
    fn refresh(&self, now: Nanos);

    /// How long a request of `tier` would wait if it joined the queue now; `None` if it does not know.
    fn expected_wait(&self, _tier: Tier) -> Option<Nanos> {
        None
    }

    /// Other objectives from now on, by type, and for those that are cold; of no interest to most policies.
    fn set_objectives(&self, _types: Vec<Objective>, _cold: Objective) {}

    /// The store gets so many requests at once from now on, at least 1. Of no interest to most policies.
    fn set_parallelism(&self, _parallelism: u32) {}

    /// Another deadline from now on, after which a queued request is of no use; `None` for none. Of no interest
    /// to most policies.
    fn set_deadline(&self, _deadline: Option<Nanos>) {}
}
