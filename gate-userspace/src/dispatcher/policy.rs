//! The admission policy that a service's threads share.

use std::fmt;
use std::sync::Arc;

use gate_common::units::Nanos;

use crate::config::{self, AdmissionPolicy};
use crate::policy::Tier;
use crate::policy::admission::{Admission, Decision, Request};
use crate::policy::baselines::{AcceptFraction, Averaging, MaxQueueLength, MaxQueueWait};
use crate::policy::bouncer::{self, Bouncer, Fairness, Objective, QueueOrder, Target};
use crate::policy::range::OutOfRange;

/// Who may join the queue; without a policy, everyone.
#[derive(Clone, Default)]
pub(super) struct Policy(Option<Arc<dyn Admission>>);

impl Policy {
    /// The configured one.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for what the configuration should not have let through.
    pub(super) fn new(admission: Option<&config::Admission>, now: Nanos) -> Result<Self, OutOfRange> {
        let Some(admission) = admission else { return Ok(Self::default()) };
        let parallelism = admission.parallelism;
        Ok(Self(match admission.policy {
            AdmissionPolicy::Off => None,
            AdmissionPolicy::Bouncer(fairness) => Some(Arc::new(bouncer(admission, fairness, now)?)),
            AdmissionPolicy::MaxQueueLength(limit) => Some(Arc::new(MaxQueueLength::new(limit)?)),
            AdmissionPolicy::MaxQueueWait(limit) => {
                Some(Arc::new(MaxQueueWait::new(limit, parallelism, now)?))
            }
            AdmissionPolicy::AcceptFraction(share) => {
                let share = f64::from(share.steps()) / f64::from(gate_common::units::Fraction::ONE.steps());
                Some(Arc::new(AcceptFraction::new(share, parallelism, Averaging::Covered, now)?))
            }
        }))
    }

    /// Puts other objectives in force.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for what the configuration should not have let through.
    pub(super) fn follow(&self, admission: Option<&config::Admission>) -> Result<(), OutOfRange> {
        let (Some(policy), Some(admission)) = (&self.0, admission) else { return Ok(()) };
        let types = admission.objectives.iter().map(objective).collect::<Result<_, _>>()?;
        policy.set_objectives(types, objective(&admission.default_objective)?);
        Ok(())
    }

    /// How long `request` had better stay away, if it must not queue.
    #[inline]
    pub(super) fn refuses(&self, request: Request, now: Nanos, draw: impl FnOnce() -> f64) -> Option<Nanos> {
        match self.0.as_ref()?.decide(request, now, draw()) {
            Decision::Admit | Decision::AdmitUnderserved => None,
            Decision::Refuse { retry_after } => Some(retry_after),
        }
    }

    /// How long one more request of a tier would wait, as far as it knows.
    pub(super) fn expected_wait(&self, tier: Tier) -> Option<Nanos> {
        self.0.as_ref()?.expected_wait(tier)
    }

    pub(super) fn enqueued(&self, request: Request) {
        self.0.iter().for_each(|policy| policy.enqueued(request));
    }

    pub(super) fn dequeued(&self, request: Request) {
        self.0.iter().for_each(|policy| policy.dequeued(request));
    }

    #[inline]
    pub(super) fn completed(&self, request: Request, took: Nanos, now: Nanos) {
        self.0.iter().for_each(|policy| policy.completed(request, took, now));
    }

    /// To be called at every tick, by one thread.
    pub(super) fn refresh(&self, now: Nanos) {
        self.0.iter().for_each(|policy| policy.refresh(now));
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Policy(Some(..))" } else { "Policy(None)" })
    }
}

fn objective(targets: &config::Objective) -> Result<Objective, OutOfRange> {
    let target = |&(percentile, limit)| Target { percentile: f64::from(percentile), limit };
    Objective::new(targets.iter().map(target).collect())
}

fn bouncer(
    admission: &config::Admission,
    fairness: config::Fairness,
    now: Nanos,
) -> Result<Bouncer, OutOfRange> {
    let types = admission.objectives.iter().map(objective).collect::<Result<_, _>>()?;
    let config = bouncer::Config {
        types,
        order: QueueOrder::ByTier,
        next_place: true,
        fairness: match fairness {
            config::Fairness::None => Fairness::None,
            config::Fairness::AcceptanceAllowance => Fairness::AcceptanceAllowance { allowance: ALLOWANCE },
            config::Fairness::HelpingTheUnderserved => Fairness::HelpingTheUnderserved { alpha: ALPHA },
        },
        ..bouncer::Config::new(admission.parallelism, 1, objective(&admission.default_objective)?)
    };
    Bouncer::new(config, now)
}

/// The published study's values.
const ALLOWANCE: f64 = 0.05;
const ALPHA: f64 = 1.0;
