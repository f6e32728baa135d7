//! How long a store works on a request.

use gate_common::units::{NANOS_PER_SEC, Nanos};

use super::rng::Rng;
use gate_policy::range::{OutOfRange, ensure};

/// A distribution of processing times, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// The logarithm is normal with this mean and standard deviation.
    Lognormal {
        /// Mean of the logarithm, which is the logarithm of the median.
        mu: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Memoryless.
    Exponential {
        /// The mean in seconds.
        mean: f64,
    },
    /// Always the same.
    Constant {
        /// The time in seconds.
        value: f64,
    },
}

impl Distribution {
    /// The lognormal distribution with this mean and median, so that an offered load computed from
    /// the mean is exact.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if the median is not above 0, or the mean below it or above an hour.
    pub fn lognormal(mean: Nanos, median: Nanos) -> Result<Self, OutOfRange> {
        ensure(median > Nanos::ZERO, "p50_ms", millis(median), "above 0")?;
        let in_range = mean >= median && mean <= LONGEST;
        ensure(in_range, "mean_ms", millis(mean), "from the median to an hour (3600000)")?;
        let mean = secs(mean);
        let median = secs(median);
        Ok(Self::Lognormal { mu: median.ln(), sigma: (2.0 * (mean / median).ln()).sqrt() })
    }

    /// The exponential distribution with this mean.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if the mean is zero or above an hour.
    pub fn exponential(mean: Nanos) -> Result<Self, OutOfRange> {
        check_mean(mean)?;
        Ok(Self::Exponential { mean: secs(mean) })
    }

    /// Always `value`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if it is zero or above an hour.
    pub fn constant(value: Nanos) -> Result<Self, OutOfRange> {
        check_mean(value)?;
        Ok(Self::Constant { value: secs(value) })
    }

    /// The same with every time `factor` (above 0) times as long.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        match self {
            Self::Lognormal { mu, sigma } => Self::Lognormal { mu: mu + factor.ln(), sigma },
            Self::Exponential { mean } => Self::Exponential { mean: mean * factor },
            Self::Constant { value } => Self::Constant { value: value * factor },
        }
    }

    /// The mean in seconds.
    #[must_use]
    pub fn mean_secs(&self) -> f64 {
        match *self {
            Self::Lognormal { mu, sigma } => (mu + sigma * sigma / 2.0).exp(),
            Self::Exponential { mean } => mean,
            Self::Constant { value } => value,
        }
    }

    /// One processing time, rounded to the nearest nanosecond.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> Nanos {
        let secs = match *self {
            Self::Lognormal { mu, sigma } => (mu + sigma * rng.normal()).exp(),
            Self::Exponential { mean } => mean * rng.exponential(),
            Self::Constant { value } => value,
        };
        Nanos((secs * NANOS_PER_SEC as f64).round() as u64)
    }
}

fn check_mean(mean: Nanos) -> Result<(), OutOfRange> {
    let in_range = mean > Nanos::ZERO && mean <= LONGEST;
    ensure(in_range, "mean_ms", millis(mean), "above 0, at most an hour (3600000)")
}

fn secs(span: Nanos) -> f64 {
    span.0 as f64 / NANOS_PER_SEC as f64
}

fn millis(span: Nanos) -> f64 {
    span.0 as f64 / 1e6
}

const LONGEST: Nanos = Nanos::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_the_mean_and_median_it_was_built_with() {
        let mean = Nanos::from_micros(2_005);
        let median = Nanos::from_micros(1_251);
        for (distribution, median_ms) in [
            (Distribution::lognormal(mean, median), 1.251),
            (Distribution::lognormal(mean, mean), 2.005),
            (Distribution::exponential(mean), 2.005 * std::f64::consts::LN_2),
            (Distribution::constant(mean), 2.005),
        ] {
            let distribution = distribution.unwrap();
            assert!((distribution.mean_secs() - 0.002_005).abs() < 1e-12, "{distribution:?}");
            assert!((distribution.times(1.5).mean_secs() - 0.003_007_5).abs() < 1e-12, "{distribution:?}");
            let mut rng = Rng::new(1, 0);
            let mut samples: Vec<u64> = (0..200_001).map(|_| distribution.sample(&mut rng).0).collect();
            samples.sort_unstable();
            let mean = samples.iter().sum::<u64>() as f64 / samples.len() as f64;
            assert!((mean / 2_005_000.0 - 1.0).abs() < 0.02, "{distribution:?} has mean {mean}");
            let median = samples[100_000] as f64 / 1e6;
            assert!((median / median_ms - 1.0).abs() < 0.02, "{distribution:?} has median {median}");
        }
    }

    #[test]
    fn impossible_distributions_are_refused() {
        let one = Nanos::from_millis(1);
        let two = Nanos::from_millis(2);
        for (distribution, error) in [
            (Distribution::lognormal(one, two), "mean_ms = 1: must be from the median to an hour (3600000)"),
            (Distribution::lognormal(one, Nanos::ZERO), "p50_ms = 0: must be above 0"),
            (
                Distribution::exponential(Nanos::ZERO),
                "mean_ms = 0: must be above 0, at most an hour (3600000)",
            ),
            (
                Distribution::constant(Nanos::MAX),
                "mean_ms = 18446744073709.55: must be above 0, at most an hour (3600000)",
            ),
        ] {
            assert_eq!(distribution.unwrap_err().to_string(), error);
        }
    }
}
