//! Bouncer's parameters, checked once.

use gate_common::units::Nanos;

use crate::admission::QueueOrder;
use crate::range::{OutOfRange, ensure};

/// Bouncer's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How many requests the store works on at once. At least 1.
    pub parallelism: u32,
    /// The objective of each query type, in the order of their indices. From 1 to 1,000.
    pub types: Vec<Objective>,
    /// The objective of the catch-all type, and of every type while it is cold.
    pub default_objective: Objective,
    /// In which order the queue is served.
    pub order: QueueOrder,
    /// True if a queued request is also expected to wait for the next place to become free. In the study it is not.
    pub next_permit: bool,
    /// The histogram behind a type's figures.
    pub histogram: HistogramKind,
    /// How often a type's histogram is replaced by a newer one. Above 0.
    pub interval: Nanos,
    /// How many values a histogram needs before it replaces the older one. At least 1.
    pub min_samples: u32,
    /// The strategy against starvation.
    pub fairness: Fairness,
    /// The types whose acceptance ratios helping-the-underserved averages.
    pub average_over: AverageOver,
    /// The window over which a strategy counts, in steps. From 1 to 1,000 steps above 0.
    pub fairness_window: (Nanos, usize),
}

impl Config {
    /// One objective for all of `types` types, and what the published study used otherwise.
    #[must_use]
    pub fn new(parallelism: u32, types: usize, objective: Objective) -> Self {
        Self {
            parallelism,
            types: vec![objective.clone(); types],
            default_objective: objective,
            order: QueueOrder::Fifo,
            next_permit: false,
            histogram: HistogramKind::Swap,
            interval: Nanos::from_secs(1),
            // Of 1,000 values a percentile has a standard error of 5 %: in the study the slow type's p90 lies
            // but 2.7 of them below its limit, and in one run of ten chance puts it above.
            min_samples: 3_000,
            fairness: Fairness::None,
            average_over: AverageOver::SeenTypes,
            fairness_window: (Nanos::from_millis(10), 100),
        }
    }

    pub(super) fn validate(&self) -> Result<(), OutOfRange> {
        ensure(self.parallelism >= 1, "parallelism", self.parallelism, "at least 1")?;
        ensure((1..=1_000).contains(&self.types.len()), "types", self.types.len(), "from 1 to 1000")?;
        ensure(self.interval > Nanos::ZERO, "interval", self.interval, "above 0")?;
        ensure(self.min_samples >= 1, "min_samples", self.min_samples, "at least 1")?;
        match self.fairness {
            Fairness::None => Ok(()),
            Fairness::AcceptanceAllowance { allowance } => {
                ensure((0.0..=1.0).contains(&allowance), "allowance", allowance, "from 0 to 1")
            }
            Fairness::HelpingTheUnderserved { alpha } => {
                ensure(alpha > 0.0 && alpha <= 1.0, "alpha", alpha, "above 0, at most 1")
            }
        }
    }
}

/// Which processing times a type's figures are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HistogramKind {
    /// One histogram replaces another at every interval, if it holds enough: the paper's.
    Swap,
    /// A window of the interval's length, or of as many values as are enough, that slides by a tenth.
    Sliding,
}

/// The strategy against starvation of types whose objective cannot be met.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fairness {
    /// Nothing: the basic policy.
    None,
    /// A type passes while its accepted share is below the allowance, and beyond with that probability.
    AcceptanceAllowance {
        /// The share, from 0 to 1. The study's Table 2 says 0.05, its Table 3 is for 0.1.
        allowance: f64,
    },
    /// A type that is accepted less than the average passes with a probability that grows with its
    /// distance from it.
    HelpingTheUnderserved {
        /// Twice the highest probability, above 0, at most 1. The study's is 1.
        alpha: f64,
    },
}

/// Over which types the average acceptance ratio is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AverageOver {
    /// So many, or more if the window holds more; those without requests count with a ratio of 0.
    AllTypes {
        /// At least the types that there are.
        count: u32,
    },
    /// Those of which the window holds requests.
    SeenTypes,
}

/// At most `limit` for a share of a type's requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The share, in percent: above 0, below 100.
    pub percentile: f64,
    /// The response time that it may take, queue and processing together. Above 0.
    pub limit: Nanos,
}

/// Response times that a type must keep at some percentiles, the lowest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective(Vec<Target>);

impl Objective {
    /// An objective of any number of targets.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] without targets, if a percentile or limit is out of range, or if one does not
    /// lie above the percentile, or below the limit, before it.
    pub fn new(targets: Vec<Target>) -> Result<Self, OutOfRange> {
        ensure(!targets.is_empty(), "objective", "[]", "at least one target")?;
        let mut before = Target { percentile: 0.0, limit: Nanos(1) };
        for (index, &target) in targets.iter().enumerate() {
            let Target { percentile, limit } = target;
            let field = |name| format!("objective[{index}].{name}");
            let between = percentile > before.percentile && percentile < 100.0;
            ensure(
                between,
                &field("percentile"),
                percentile,
                "above 0 and the percentile before it, below 100",
            )?;
            ensure(limit >= before.limit, &field("limit"), limit, "above 0, not below the limit before it")?;
            before = target;
        }
        Ok(Self(targets))
    }

    /// Its targets, the lowest percentile first.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objective(targets: &[(f64, u64)]) -> Result<Objective, OutOfRange> {
        let target = |&(percentile, limit)| Target { percentile, limit: Nanos(limit) };
        Objective::new(targets.iter().map(target).collect())
    }

    #[test]
    fn impossible_objectives_are_refused() {
        for (targets, field) in [
            (&[][..], "objective"),
            (&[(0.0, 1)], "objective[0].percentile"),
            (&[(100.0, 1)], "objective[0].percentile"),
            (&[(f64::NAN, 1)], "objective[0].percentile"),
            (&[(50.0, 0)], "objective[0].limit"),
            (&[(50.0, 2), (50.0, 2)], "objective[1].percentile"),
            (&[(50.0, 2), (90.0, 1)], "objective[1].limit"),
        ] {
            assert_eq!(objective(targets).unwrap_err().field, field, "{targets:?}");
        }
        assert!(objective(&[(0.1, 1), (50.0, 1), (99.99, u64::MAX)]).is_ok());
    }

    #[test]
    fn impossible_parameters_are_refused() {
        let good = Config::new(1, 1, objective(&[(50.0, 1)]).unwrap());
        assert_eq!(good.validate(), Ok(()));
        let allowance = |allowance| Fairness::AcceptanceAllowance { allowance };
        let alpha = |alpha| Fairness::HelpingTheUnderserved { alpha };
        for (bad, field) in [
            (Config { parallelism: 0, ..good.clone() }, "parallelism"),
            (Config { types: vec![], ..good.clone() }, "types"),
            (Config { interval: Nanos::ZERO, ..good.clone() }, "interval"),
            (Config { min_samples: 0, ..good.clone() }, "min_samples"),
            (Config { fairness: allowance(-0.1), ..good.clone() }, "allowance"),
            (Config { fairness: allowance(1.1), ..good.clone() }, "allowance"),
            (Config { fairness: allowance(f64::NAN), ..good.clone() }, "allowance"),
            (Config { fairness: alpha(0.0), ..good.clone() }, "alpha"),
            (Config { fairness: alpha(1.1), ..good.clone() }, "alpha"),
            (Config { fairness: alpha(f64::NAN), ..good.clone() }, "alpha"),
        ] {
            assert_eq!(bad.validate().unwrap_err().field, field);
        }
    }
}
