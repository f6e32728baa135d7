//! The scenario of `gate sim bouncer`: query types, objectives, policies' parameters, loads.
//!
//! Without a file it is the published study. A file replaces what it names:
//!
//! ```toml
//! processes = 100               # what the store works on at once
//! loads = [0.9, 1.0, 1.2]       # times what keeps all processes busy
//! warm_up = 150000              # queries before those that count
//! slowdown = 0                  # at a load of 1 + x, processing takes 1 + slowdown * x times as long
//!
//! [policies]
//! allowance = 0.05              # acceptance-allowance
//! alpha = 1.0                   # helping-the-underserved
//! alpha_types = 6               # types that its average is over, at least
//! maxql_limit = 400             # queued queries
//! maxqwt_limit_ms = 15          # of the types that have none of their own
//! max_utilization = 0.95        # accept-fraction
//! averaging = "covered"         # or "whole-window"
//! deadline_ms = 100             # accept-fraction: refuses who would wait longer; the study knows none
//! histogram = "swap"            # or "sliding"
//! histogram_interval_ms = 1000
//! histogram_min_samples = 3000
//!
//! [[types]]                     # at least one; replaces all types of the study
//! name = "fast"
//! mix = 0.4                     # shares add up to 1
//! processing = { lognormal = { mean_ms = 1.16, p50_ms = 0.38 } }
//!                               # or { exponential = { mean_ms = 1 } }, { constant = { mean_ms = 1 } }
//! objective = [{ percentile = 50, limit_ms = 18 }, { percentile = 90, limit_ms = 50 }]
//! maxqwt_limit_ms = 17          # its own
//! ```

use gate_common::units::Nanos;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::distribution::Distribution;
use super::engine::Workload;
use gate_policy::baselines::Averaging;
use gate_policy::bouncer::{HistogramKind, Objective, Target};
use gate_policy::range::{OutOfRange, ensure};

/// A scenario that can be simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The number of requests that the store processes at once.
    pub processes: u32,
    /// Multiples of the load that keeps all processes busy.
    pub loads: Vec<f64>,
    /// Queries before those that count.
    pub warm_up: u64,
    /// How much longer processing takes for every 1 of load above 1: 0 if it always takes the same.
    pub slowdown: f64,
    /// The policies' parameters; each is checked by its policy.
    pub policies: Policies,
    /// At least one.
    pub types: Vec<TypeScenario>,
}

/// One query type.
#[derive(Clone, Debug)]
pub struct TypeScenario {
    /// Its name in the output.
    pub name: String,
    /// Its share of the queries.
    pub mix: f64,
    /// Its processing times.
    pub processing: Distribution,
    /// The response times that it must keep.
    pub objective: Objective,
    /// Its limit under max queue wait, if it has one of its own.
    pub max_queue_wait: Option<Nanos>,
}

/// The parameters of all policies.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policies {
    /// Acceptance-allowance: the share of each type that always passes.
    pub allowance: f64,
    /// Helping-the-underserved: the factor on a type's distance from the average.
    pub alpha: f64,
    /// Helping-the-underserved: over how many types the average acceptance ratio is taken, at least.
    pub alpha_types: u32,
    /// Max queue length, in queries.
    pub maxql_limit: u64,
    /// Max queue wait, of the types that have no limit of their own.
    #[serde(rename = "maxqwt_limit_ms", deserialize_with = "millis")]
    pub maxqwt_limit: Nanos,
    /// Accept-fraction: the utilization to keep.
    pub max_utilization: f64,
    /// Accept-fraction: how rates are averaged.
    pub averaging: Averaging,
    /// Accept-fraction: how long a query may be expected to wait; the study's may wait for any time.
    #[serde(rename = "deadline_ms", deserialize_with = "optional_millis")]
    pub deadline: Option<Nanos>,
    /// Bouncer: what a type's figures are of.
    pub histogram: HistogramKind,
    /// Bouncer: how often histograms are replaced.
    #[serde(rename = "histogram_interval_ms", deserialize_with = "millis")]
    pub histogram_interval: Nanos,
    /// Bouncer: how many values a new histogram needs.
    pub histogram_min_samples: u32,
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            allowance: 0.05,
            alpha: 1.0,
            alpha_types: 6,
            maxql_limit: 400,
            maxqwt_limit: Nanos::from_millis(15),
            max_utilization: 0.95,
            averaging: Averaging::Covered,
            deadline: None,
            histogram: HistogramKind::Swap,
            histogram_interval: Nanos::from_secs(1),
            histogram_min_samples: 3_000,
        }
    }
}

/// A scenario as it is written down.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawScenario {
    processes: u32,
    loads: Vec<f64>,
    warm_up: u64,
    slowdown: f64,
    policies: Policies,
    types: Vec<RawType>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawType {
    name: String,
    mix: f64,
    processing: RawProcessing,
    #[serde(default = "study_objective")]
    objective: Vec<RawTarget>,
    #[serde(default, rename = "maxqwt_limit_ms", deserialize_with = "optional_millis")]
    max_queue_wait: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum RawProcessing {
    Lognormal {
        #[serde(rename = "mean_ms", deserialize_with = "millis")]
        mean: Nanos,
        #[serde(rename = "p50_ms", deserialize_with = "millis")]
        p50: Nanos,
    },
    Exponential {
        #[serde(rename = "mean_ms", deserialize_with = "millis")]
        mean: Nanos,
    },
    Constant {
        #[serde(rename = "mean_ms", deserialize_with = "millis")]
        mean: Nanos,
    },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTarget {
    percentile: f64,
    #[serde(rename = "limit_ms", deserialize_with = "millis")]
    limit: Nanos,
}

impl Default for RawScenario {
    /// The study: its Tables 1 and 2, and the thirteen loads of its Table 3.
    fn default() -> Self {
        let types = [
            ("fast", 0.40, 1_160, 380),
            ("medium fast", 0.20, 2_530, 2_220),
            ("medium slow", 0.30, 12_130, 7_400),
            ("slow", 0.10, 20_050, 12_510),
        ];
        let study_type = |(name, mix, mean_us, p50_us): (&str, f64, u64, u64)| RawType {
            name: name.into(),
            mix,
            processing: RawProcessing::Lognormal {
                mean: Nanos::from_micros(mean_us),
                p50: Nanos::from_micros(p50_us),
            },
            objective: study_objective(),
            max_queue_wait: None,
        };
        Self {
            processes: 100,
            loads: (18..=30).map(|twentieths| f64::from(twentieths) / 20.0).collect(),
            warm_up: 150_000,
            slowdown: 0.0,
            policies: Policies::default(),
            types: types.map(study_type).into(),
        }
    }
}

fn study_objective() -> Vec<RawTarget> {
    [(50.0, 18), (90.0, 50)]
        .map(|(percentile, ms)| RawTarget { percentile, limit: Nanos::from_millis(ms) })
        .into()
}

impl Scenario {
    /// The published study.
    #[must_use]
    pub fn study() -> Self {
        Self::try_from(RawScenario::default()).expect("the study's parameters are in range")
    }

    /// The workload at `load` times the load that keeps all processes busy, as long as none slows them down.
    #[must_use]
    pub fn workload(&self, load: f64) -> Workload {
        let mean_secs: f64 = self.types.iter().map(|of| of.mix * of.processing.mean_secs()).sum();
        let slower = 1.0 + self.slowdown * (load - 1.0).max(0.0);
        Workload {
            servers: self.processes as usize,
            per_sec: load * f64::from(self.processes) / mean_secs,
            types: self.types.iter().map(|of| (of.mix, of.processing.times(slower))).collect(),
        }
    }
}

impl TryFrom<RawScenario> for Scenario {
    type Error = OutOfRange;

    fn try_from(raw: RawScenario) -> Result<Self, OutOfRange> {
        ensure((1..=100_000).contains(&raw.processes), "processes", raw.processes, "from 1 to 100000")?;
        ensure(!raw.loads.is_empty(), "loads", "[]", "at least one load")?;
        for (index, &load) in raw.loads.iter().enumerate() {
            check_load(&format!("loads[{index}]"), load)?;
        }
        ensure(raw.warm_up <= MAX_QUERIES, "warm_up", raw.warm_up, "at most 10^12")?;
        let in_range = (0.0..=100.0).contains(&raw.slowdown);
        ensure(in_range, "slowdown", raw.slowdown, "from 0 to 100")?;
        ensure((1..=1_000).contains(&raw.types.len()), "types", raw.types.len(), "from 1 to 1000")?;
        let sum: f64 = raw.types.iter().map(|of| of.mix).sum();
        ensure((sum - 1.0).abs() < 1e-6, "types[..].mix", sum, "shares that add up to 1")?;
        for (index, of) in raw.types.iter().enumerate() {
            let taken = raw.types[..index].iter().any(|before| before.name == of.name);
            let good = !taken && !of.name.is_empty() && of.name != "all";
            let range = "a name of its own, not empty and not \"all\"";
            ensure(good, &format!("types[{index}].name"), &of.name, range)?;
        }
        let parse = |(index, raw)| {
            parse_type(raw).map_err(|error: OutOfRange| error.within(&format!("types[{index}]")))
        };
        let types = raw.types.into_iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        let RawScenario { processes, loads, warm_up, slowdown, policies, .. } = raw;
        Ok(Self { processes, loads, warm_up, slowdown, policies, types })
    }
}

/// A load that can be simulated.
///
/// # Errors
///
/// [`OutOfRange`], naming `field`.
pub fn check_load(field: &str, load: f64) -> Result<(), OutOfRange> {
    ensure(load > 0.0 && load <= 1_000.0, field, load, "above 0, at most 1000")
}

fn parse_type(raw: RawType) -> Result<TypeScenario, OutOfRange> {
    ensure(raw.mix >= 0.0, "mix", raw.mix, "from 0 to 1")?;
    let processing = match raw.processing {
        RawProcessing::Lognormal { mean, p50 } => Distribution::lognormal(mean, p50),
        RawProcessing::Exponential { mean } => Distribution::exponential(mean),
        RawProcessing::Constant { mean } => Distribution::constant(mean),
    }?;
    let target = |RawTarget { percentile, limit }| Target { percentile, limit };
    let objective = Objective::new(raw.objective.into_iter().map(target).collect())?;
    Ok(TypeScenario {
        name: raw.name,
        mix: raw.mix,
        processing,
        objective,
        max_queue_wait: raw.max_queue_wait,
    })
}

/// Milliseconds, above 0, at most an hour.
fn millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Nanos, D::Error> {
    let ms = f64::deserialize(deserializer)?;
    if ms > 0.0 && ms <= 3_600_000.0 {
        return Ok(Nanos((ms * 1e6).round().max(1.0) as u64));
    }
    Err(D::Error::custom(format_args!("{ms} ms: must be above 0, at most an hour (3600000)")))
}

/// [`millis`], of a key that may be absent.
fn optional_millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Nanos>, D::Error> {
    millis(deserializer).map(Some)
}

/// More than anyone can wait for.
pub const MAX_QUERIES: u64 = 1_000_000_000_000;

#[cfg(test)]
mod tests;
