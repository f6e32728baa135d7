//! The Bouncer study: one policy, or several combined, under several loads, several runs each.

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

use gate_common::units::Nanos;

use super::engine::{self, Length, Outcome, TypeOutcome};
use super::parallel::{self, Progress};
use super::scenario::{MAX_QUERIES, Policies, Scenario};
use gate_policy::admission::Admission;
use gate_policy::baselines::{AcceptFraction, MaxQueueLength, MaxQueueWait};
use gate_policy::bouncer::{AverageOver, Bouncer, Config, Fairness};
use gate_policy::combined::Combined;
use gate_policy::range::{OutOfRange, ensure};

/// The policies of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Bouncer without fairness.
    Bouncer,
    /// Bouncer with acceptance-allowance.
    BouncerAcceptanceAllowance,
    /// Bouncer with helping-the-underserved.
    BouncerHelpingUnderserved,
    /// Max queue length.
    MaxQueueLength,
    /// Max queue wait.
    MaxQueueWait,
    /// Accept-fraction.
    AcceptFraction,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Bouncer,
        Self::BouncerAcceptanceAllowance,
        Self::BouncerHelpingUnderserved,
        Self::MaxQueueLength,
        Self::MaxQueueWait,
        Self::AcceptFraction,
    ];

    /// Its name on the command line and in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bouncer => "bouncer",
            Self::BouncerAcceptanceAllowance => "bouncer+aa",
            Self::BouncerHelpingUnderserved => "bouncer+hu",
            Self::MaxQueueLength => "maxql",
            Self::MaxQueueWait => "maxqwt",
            Self::AcceptFraction => "accept-fraction",
        }
    }

    pub(super) fn build(self, scenario: &Scenario) -> Result<Box<dyn Admission>, OutOfRange> {
        let Policies { allowance, alpha, maxql_limit, max_utilization, averaging, deadline, .. } =
            scenario.policies;
        let processes = scenario.processes;
        let start = Nanos::ZERO;
        Ok(match self {
            Self::Bouncer => Box::new(bouncer(scenario, Fairness::None)?),
            Self::BouncerAcceptanceAllowance => {
                Box::new(bouncer(scenario, Fairness::AcceptanceAllowance { allowance })?)
            }
            Self::BouncerHelpingUnderserved => {
                Box::new(bouncer(scenario, Fairness::HelpingTheUnderserved { alpha })?)
            }
            Self::MaxQueueLength => Box::new(MaxQueueLength::new(maxql_limit)?),
            Self::MaxQueueWait => {
                let limit = scenario.policies.maxqwt_limit;
                let limits: Vec<_> =
                    scenario.types.iter().map(|of| of.max_queue_wait.unwrap_or(limit)).collect();
                Box::new(MaxQueueWait::new(limit, processes, start)?.with_types(&limits)?)
            }
            Self::AcceptFraction => {
                let policy = AcceptFraction::new(max_utilization, processes, averaging, start)?;
                Box::new(policy.with_deadline(deadline))
            }
        })
    }
}

fn bouncer(scenario: &Scenario, fairness: Fairness) -> Result<Bouncer, OutOfRange> {
    // Every query has a type of its own here; the default objective only stands in for cold ones.
    let default = scenario.types[0].objective.clone();
    let config = Config {
        types: scenario.types.iter().map(|of| of.objective.clone()).collect(),
        histogram: scenario.policies.histogram,
        interval: scenario.policies.histogram_interval,
        min_samples: scenario.policies.histogram_min_samples,
        fairness,
        average_over: AverageOver::AllTypes { count: scenario.policies.alpha_types },
        ..Config::new(scenario.processes, scenario.types.len(), default)
    };
    Bouncer::new(config, Nanos::ZERO)
}

/// A study to run.
#[derive(Clone, Debug)]
pub struct Study {
    /// The scenario.
    pub scenario: Scenario,
    /// Under which policies, in the order in which they are asked: a query is admitted if each admits it. Each
    /// once, at least one.
    pub policies: Vec<Policy>,
    /// Queries per run, warm-up aside.
    pub queries: u64,
    /// Runs per load, whose results are averaged.
    pub runs: u64,
    /// The first run's seed; each run's is one more than the one before it.
    pub seed: u64,
}

impl Study {
    /// How many queries it simulates in all, which is what [`Progress`] counts.
    #[must_use]
    pub fn total_queries(&self) -> u64 {
        let per_load = self.runs.saturating_mul(self.queries.saturating_add(self.scenario.warm_up));
        per_load.saturating_mul(self.scenario.loads.len() as u64)
    }

    /// Runs it on all cores; one report per load, in their order.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`], naming the first parameter that is.
    pub fn run(&self, progress: &Progress) -> Result<Vec<Report>, OutOfRange> {
        ensure((1..=MAX_QUERIES).contains(&self.queries), "queries", self.queries, "from 1 to 10^12")?;
        ensure((1..=1_000_000).contains(&self.runs), "runs", self.runs, "from 1 to 1000000")?;
        let unique = |(index, policy): (usize, &Policy)| !self.policies[..index].contains(policy);
        let in_range = !self.policies.is_empty() && self.policies.iter().enumerate().all(unique);
        ensure(in_range, "policy", self.name(), "one or several, each once")?;
        let Self { scenario, runs, .. } = self;
        let length = Length { warm_up: scenario.warm_up, queries: self.queries };
        let outcomes = parallel::run(scenario.loads.len() * *runs as usize, |job| {
            let load = job / *runs as usize;
            let run = job as u64 % runs;
            let policy = self.build()?;
            let workload = scenario.workload(scenario.loads[load]);
            Ok(engine::run(&workload, &*policy, self.seed.wrapping_add(run), length, progress))
        });
        let outcomes: Vec<Outcome> = outcomes.into_iter().collect::<Result<_, _>>()?;
        let by_load = scenario.loads.iter().zip(outcomes.chunks(*runs as usize));
        Ok(by_load.map(|(&load, outcomes)| self.report(load, outcomes)).collect())
    }

    /// The policies' names, as on the command line.
    #[must_use]
    pub fn name(&self) -> String {
        self.policies.iter().map(|policy| policy.name()).collect::<Vec<_>>().join(",")
    }

    fn build(&self) -> Result<Box<dyn Admission>, OutOfRange> {
        if let [only] = self.policies[..] {
            return only.build(&self.scenario);
        }
        let policies = self.policies.iter().map(|policy| policy.build(&self.scenario));
        Ok(Box::new(Combined::new(policies.collect::<Result<_, _>>()?)))
    }

    fn report(&self, load: f64, outcomes: &[Outcome]) -> Report {
        let of_type = |index: usize| {
            move |outcome: &Outcome| {
                let of = &outcome.types[index];
                percent(of.rejected, of.received)
            }
        };
        let of_all = |outcome: &Outcome| {
            let sum = |value: fn(&TypeOutcome) -> u64| outcome.types.iter().map(value).sum();
            percent(sum(|of| of.rejected), sum(|of| of.received))
        };
        let names = || self.scenario.types.iter().map(|of| of.name.clone());
        let mut rejected: Vec<_> =
            names().enumerate().map(|(index, name)| (name, mean(outcomes, of_type(index)))).collect();
        rejected.push(("all".into(), mean(outcomes, of_all)));
        let response = |index: usize| {
            let at = |share: f64| {
                mean(outcomes, move |outcome| response_ms(&outcome.types[index].response_us, share))
            };
            Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
        };
        Report {
            policy: self.name(),
            load,
            queries: self.queries,
            runs: self.runs,
            seed: self.seed,
            rejected_percent: ByName(rejected),
            rt_ms: ByName(names().enumerate().map(|(index, name)| (name, response(index))).collect()),
            utilization: mean(outcomes, |outcome| Some(outcome.utilization)).unwrap_or(0.0),
        }
    }
}

/// The results of one load, averaged over the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The policy's name, or those of several with commas.
    pub policy: String,
    /// Times what keeps all processes busy.
    pub load: f64,
    /// Queries per run.
    pub queries: u64,
    /// Runs that are averaged.
    pub runs: u64,
    /// The first run's seed.
    pub seed: u64,
    /// Rejected queries in percent, by type, and of `all`; `None` where none arrived.
    pub rejected_percent: ByName<Option<f64>>,
    /// Response times of admitted queries in milliseconds, by type.
    pub rt_ms: ByName<Percentiles>,
    /// The processes' busy share of the time.
    pub utilization: f64,
}

/// Response times in milliseconds; `None` where no query was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: Option<f64>,
    /// The 90th percentile.
    pub p90: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
}

/// Values by name, in the scenario's order.
#[derive(Clone, Debug, PartialEq)]
pub struct ByName<T>(pub Vec<(String, T)>);

impl<T> ByName<T> {
    /// The value of `name`, if there is one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, value)| value)
    }
}

impl<T: Serialize> Serialize for ByName<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The mean over the runs that have a value.
fn mean(outcomes: &[Outcome], value: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
    let values = || outcomes.iter().filter_map(&value);
    let count = values().count();
    (count > 0).then(|| values().sum::<f64>() / count as f64)
}

fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| 100.0 * part as f64 / whole as f64)
}

fn response_ms(response_us: &Histogram<u32>, share: f64) -> Option<f64> {
    (!response_us.is_empty()).then(|| response_us.value_at_quantile(share) as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(policy: Policy) -> Study {
        let scenario = Scenario { loads: vec![0.9, 1.2], warm_up: 5_000, ..Scenario::study() };
        Study { scenario, policies: vec![policy], queries: 10_000, runs: 3, seed: 1 }
    }

    fn json(study: &Study) -> String {
        serde_json::to_string(&study.run(&Progress::default()).unwrap()).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_under_every_policy() {
        for policy in Policy::ALL {
            let first = json(&study(policy));
            assert_eq!(first, json(&study(policy)), "{policy:?}");
            assert_ne!(first, json(&Study { seed: 2, ..study(policy) }), "{policy:?}");
        }
    }

    #[test]
    fn a_load_gives_the_same_by_itself_as_among_others() {
        let both = study(Policy::Bouncer).run(&Progress::default()).unwrap();
        let mut single = study(Policy::Bouncer);
        single.scenario.loads = vec![1.2];
        assert_eq!(single.run(&Progress::default()).unwrap()[0], both[1]);
    }

    #[test]
    fn a_type_that_never_arrives_has_no_percentiles() {
        let mut study = study(Policy::MaxQueueLength);
        study.scenario.types[3].mix = 0.0;
        study.scenario.types[0].mix = 0.5;
        let report = &study.run(&Progress::default()).unwrap()[0];
        assert_eq!(report.rejected_percent.get("slow"), Some(&None));
        assert_eq!(report.rt_ms.get("slow").and_then(|of| of.p50), None);
        assert!(report.rt_ms.get("fast").is_some_and(|of| of.p50 < of.p90 && of.p90 < of.p99));
    }

    #[test]
    fn impossible_studies_are_refused() {
        let bad = |change: fn(&mut Study)| {
            let mut study = study(Policy::BouncerAcceptanceAllowance);
            change(&mut study);
            study.run(&Progress::default()).unwrap_err().field
        };
        assert_eq!(bad(|study| study.queries = 0), "queries");
        assert_eq!(bad(|study| study.runs = 0), "runs");
        assert_eq!(bad(|study| study.policies.clear()), "policy");
        assert_eq!(bad(|study| study.policies.push(Policy::BouncerAcceptanceAllowance)), "policy");
        assert_eq!(bad(|study| study.scenario.policies.allowance = 2.0), "allowance");
        assert_eq!(bad(|study| study.scenario.policies.histogram_min_samples = 0), "min_samples");
    }
}
