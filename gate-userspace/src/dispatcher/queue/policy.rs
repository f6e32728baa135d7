//! The admission policy that a service's threads share.

use std::fmt;
use std::sync::Arc;

use gate_common::units::{Fraction, Nanos};

use crate::config::{self, AdmissionPolicy};
use crate::policy::Tier;
use crate::policy::admission::{Admission, Decision, Estimate, QueueOrder, Request};
use crate::policy::baselines::{AcceptFraction, Averaging, MaxQueueLength, MaxQueueWait};
use crate::policy::bouncer::{self, Bouncer, Fairness, HistogramKind, Objective, Target};
use crate::policy::combined::Combined;
use crate::policy::range::OutOfRange;
use crate::protocol::query_types::QueryTypes;

/// The rule for joining the queue; without a policy, every request may.
#[derive(Clone, Default)]
pub(crate) struct Policy(Option<Arc<dyn Admission>>);

impl Policy {
    /// The configured one.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for what the configuration should not have let through.
    pub(crate) fn new(admission: Option<&config::Admission>, now: Nanos) -> Result<Self, OutOfRange> {
        let Some(admission) = admission else { return Ok(Self::default()) };
        let policies = admission.policies.iter().map(|policy| build(admission, policy, now));
        let mut policies = policies.collect::<Result<Vec<_>, _>>()?;
        Ok(Self(match policies.len() {
            0 | 1 => policies.pop().map(Arc::from),
            _ => Some(Arc::new(Combined::new(policies))),
        }))
    }

    /// Puts other objectives and another deadline in force, for the query types that there have been since the
    /// start.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for what the configuration should not have let through.
    pub(crate) fn follow(&self, backend: &config::Backend, types: &QueryTypes) -> Result<(), OutOfRange> {
        let (Some(policy), Some(admission)) = (&self.0, &backend.admission) else { return Ok(()) };
        let types = types.names().filter_map(|name| backend.objective(name)).map(objective);
        let types = types.collect::<Result<_, _>>()?;
        policy.set_objectives(types, objective(&admission.default_objective)?);
        policy.set_deadline(admission.deadline);
        Ok(())
    }

    /// The store gets so many requests at once from now on.
    pub(crate) fn set_parallelism(&self, parallelism: u32) {
        self.0.iter().for_each(|policy| policy.set_parallelism(parallelism));
    }

    /// How long `request` had better stay away, if it must not queue.
    #[inline]
    pub(crate) fn refuses(&self, request: Request, now: Nanos, draw: impl FnOnce() -> f64) -> Option<Nanos> {
        match self.0.as_ref()?.decide(request, now, draw()) {
            Decision::Admit | Decision::AdmitUnderserved => None,
            Decision::Refuse { retry_after } => Some(retry_after),
        }
    }

    /// [`Policy::refuses`] of a request that is not counted.
    pub(crate) fn peek(&self, request: Request, now: Nanos, draw: impl FnOnce() -> f64) -> Option<Nanos> {
        match self.0.as_ref()?.peek(request, now, draw()) {
            Decision::Admit | Decision::AdmitUnderserved => None,
            Decision::Refuse { retry_after } => Some(retry_after),
        }
    }

    /// The share of draws by which it refuses a request, in hundredths.
    pub(crate) fn chance(&self, request: Request, now: Nanos) -> f64 {
        let draws = (0..DRAWS).map(|number| (f64::from(number) + 0.5) / f64::from(DRAWS));
        let refused = draws.filter(|&draw| self.peek(request, now, || draw).is_some());
        refused.count() as f64 / f64::from(DRAWS)
    }

    /// The expected response time of a request beside its objective, as far as it knows.
    pub(crate) fn estimates(&self, request: Request) -> Vec<Estimate> {
        self.0.as_ref().map_or_else(Vec::new, |policy| policy.estimates(request))
    }

    /// How long one more request of a tier would wait, as far as it knows.
    pub(crate) fn expected_wait(&self, tier: Tier) -> Option<Nanos> {
        self.0.as_ref()?.expected_wait(tier)
    }

    pub(crate) fn enqueued(&self, request: Request) {
        self.0.iter().for_each(|policy| policy.enqueued(request));
    }

    pub(crate) fn dequeued(&self, request: Request) {
        self.0.iter().for_each(|policy| policy.dequeued(request));
    }

    #[inline]
    pub(crate) fn completed(&self, request: Request, took: Nanos, now: Nanos) {
        self.0.iter().for_each(|policy| policy.completed(request, took, now));
    }

    /// To be called at every tick, by one thread.
    pub(crate) fn refresh(&self, now: Nanos) {
        self.0.iter().for_each(|policy| policy.refresh(now));
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Policy(Some(..))" } else { "Policy(None)" })
    }
}

fn build(
    admission: &config::Admission,
    policy: &AdmissionPolicy,
    now: Nanos,
) -> Result<Box<dyn Admission>, OutOfRange> {
    let parallelism = admission.parallelism.at_start();
    let order = QueueOrder::ByTier;
    Ok(match policy {
        AdmissionPolicy::Bouncer(fairness, histogram, values) => {
            Box::new(bouncer(admission, *fairness, (*histogram, *values), now)?)
        }
        AdmissionPolicy::MaxQueueLength(limit) => Box::new(MaxQueueLength::new(*limit)?),
        AdmissionPolicy::MaxQueueWait(limits) => {
            let policy = MaxQueueWait::new(limits.default, parallelism, now)?.with_types(&limits.types)?;
            Box::new(policy.with_order(order))
        }
        AdmissionPolicy::AcceptFraction(share) => {
            let policy = AcceptFraction::new(as_float(*share), parallelism, Averaging::Covered, now)?;
            Box::new(policy.with_deadline(admission.deadline).with_order(order))
        }
    })
}

fn objective(targets: &config::Objective) -> Result<Objective, OutOfRange> {
    let target = |&(percentile, limit)| Target { percentile: f64::from(percentile), limit };
    Objective::new(targets.iter().map(target).collect())
}

fn bouncer(
    admission: &config::Admission,
    fairness: config::Fairness,
    (histogram, min_samples): (HistogramKind, u32),
    now: Nanos,
) -> Result<Bouncer, OutOfRange> {
    let types = admission.objectives.iter().map(objective).collect::<Result<_, _>>()?;
    let config = bouncer::Config {
        types,
        order: QueueOrder::ByTier,
        next_permit: true,
        histogram,
        min_samples,
        fairness: match fairness {
            config::Fairness::None => Fairness::None,
            config::Fairness::AcceptanceAllowance(allowance) => {
                Fairness::AcceptanceAllowance { allowance: as_float(allowance) }
            }
            config::Fairness::HelpingTheUnderserved(alpha) => {
                Fairness::HelpingTheUnderserved { alpha: as_float(alpha) }
            }
        },
        ..bouncer::Config::new(admission.parallelism.at_start(), 1, objective(&admission.default_objective)?)
    };
    Bouncer::new(config, now)
}

fn as_float(share: Fraction) -> f64 {
    f64::from(share.steps()) / f64::from(Fraction::ONE.steps())
}

/// The draws by which a chance is told, evenly spread.
const DRAWS: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::admission::QueryType;

    /// Refuses by draws below a share.
    struct Below(f64);

    impl Admission for Below {
        fn decide(&self, _: Request, _: Nanos, _: f64) -> Decision {
            panic!("nobody has asked for this request")
        }

        fn peek(&self, _: Request, _: Nanos, draw: f64) -> Decision {
            if draw < self.0 { Decision::Refuse { retry_after: Nanos(1) } } else { Decision::Admit }
        }

        fn enqueued(&self, _: Request) {}

        fn dequeued(&self, _: Request) {}

        fn completed(&self, _: Request, _: Nanos, _: Nanos) {}

        fn refresh(&self, _: Nanos) {}
    }

    #[test]
    fn the_chance_of_a_refusal_is_known() {
        let request = Request { tier: Tier::Standard, query_type: QueryType(0) };
        for chance in [0.0, 0.37, 1.0] {
            assert_eq!(Policy(Some(Arc::new(Below(chance)))).chance(request, Nanos::ZERO), chance);
        }
        assert_eq!(Policy(None).chance(request, Nanos::ZERO), 0.0);
    }

    fn backend(said: &str) -> config::Backend {
        let text = format!(
            "[[service]]\nname = \"s\"\nprotocol = \"resp\"\nlisten = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n\
             parallelism = \"1\"\n{said}\n[[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\n\
             quota = \"unlimited\""
        );
        let config = config::Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}"));
        config.services[0].backend.clone().unwrap()
    }

    #[test]
    fn a_deadline_is_followed() {
        let with = |deadline| backend(&format!("admission = \"accept-fraction\"\ndeadline = \"{deadline}\""));
        let long = with("1s");
        let short = with("5ms");
        let policy = Policy::new(long.admission.as_ref(), Nanos::ZERO).unwrap();
        let request = Request { tier: Tier::Standard, query_type: QueryType(0) };
        policy.completed(request, Nanos::from_millis(10), Nanos::ZERO);
        policy.enqueued(request);
        let refuses = || policy.refuses(request, Nanos::from_secs(1), || 0.0).is_some();
        // It would wait for 10 ms.
        assert!(!refuses());
        policy.follow(&short, &long.query_types).unwrap();
        assert!(refuses());
        policy.follow(&backend("admission = \"accept-fraction\""), &long.query_types).unwrap();
        assert!(!refuses());
    }

    #[test]
    fn a_request_is_admitted_if_each_policy_admits_it() {
        let backend =
            backend("admission = [\"max-queue-wait\", \"max-queue-length\"]\nmax_queue_length = \"2\"");
        let policy = Policy::new(backend.admission.as_ref(), Nanos::ZERO).unwrap();
        let of = |tier| Request { tier, query_type: QueryType(0) };
        policy.completed(of(Tier::Batch), Nanos::from_millis(10), Nanos::ZERO);
        let refuses = |tier| policy.refuses(of(tier), Nanos::ZERO, || 0.0).is_some();
        policy.enqueued(of(Tier::Batch));
        assert_eq!([Tier::Critical, Tier::Batch].map(refuses), [false, false]);
        policy.enqueued(of(Tier::Batch));
        assert_eq!([Tier::Critical, Tier::Batch].map(refuses), [true, true], "the length");
        policy.dequeued(of(Tier::Batch));
        policy.completed(of(Tier::Batch), Nanos::from_millis(100), Nanos::ZERO);
        assert_eq!([Tier::Critical, Tier::Batch].map(refuses), [false, true], "the wait");
    }

    #[test]
    fn without_a_policy_nothing_is_refused() {
        let backend = backend("admission = \"off\"");
        let policy = Policy::new(backend.admission.as_ref(), Nanos::ZERO).unwrap();
        let request = Request { tier: Tier::Batch, query_type: QueryType(0) };
        (0..100_000).for_each(|_| policy.enqueued(request));
        assert_eq!(policy.refuses(request, Nanos::ZERO, || 0.9), None);
    }

    #[test]
    fn a_wait_is_limited_by_query_type() {
        let backend =
            backend("admission = \"max-queue-wait\"\nmax_queue_wait = { get = \"50ms\", default = \"5ms\" }");
        let policy = Policy::new(backend.admission.as_ref(), Nanos::ZERO).unwrap();
        let class = |name| {
            let query_type = QueryType(backend.query_types.place(name).unwrap() as u16);
            Request { tier: Tier::Standard, query_type }
        };
        policy.completed(class("get"), Nanos::from_millis(10), Nanos::ZERO);
        policy.enqueued(class("get"));
        let refuses = |name| policy.refuses(class(name), Nanos::ZERO, || 0.0).is_some();
        assert_eq!((refuses("get"), refuses("set")), (false, true));
    }

    #[test]
    fn objectives_are_followed_by_the_names_of_types() {
        let started = backend("fairness = \"none\"\nquery_types = { a = \"GET\", b = \"SET\" }");
        let types = &started.query_types;
        let policy = Policy::new(started.admission.as_ref(), Nanos::ZERO).unwrap();
        // Without `a`, `b` has another place.
        let new = backend(
            "fairness = \"none\"\nquery_types = { b = \"SET\" }\nobjectives = { b = { p50 = \"500us\" } }",
        );
        policy.follow(&new, types).unwrap();
        let class = |name| {
            let query_type = QueryType(types.place(name).unwrap() as u16);
            Request { tier: Tier::Standard, query_type }
        };
        for name in ["a", "b", "get"] {
            (0..3_000).for_each(|_| policy.completed(class(name), Nanos::from_millis(1), Nanos::ZERO));
        }
        let now = Nanos::from_secs(1);
        policy.refresh(now);
        for (name, refused) in [("a", false), ("b", true), ("get", false)] {
            assert_eq!(policy.refuses(class(name), now, || 0.5).is_some(), refused, "{name}");
        }
    }
}
