//! The control algorithms. Pure: time and randomness are arguments, no I/O, no clock, and no
//! allocation per decision. The simulator runs these very types.

#![forbid(unsafe_code)]

pub mod admission;
pub mod baselines;
pub mod bouncer;
pub mod codel;
pub mod combined;
pub mod cost_model;
pub mod deep_debt;
pub mod drr;
pub mod fair_share;
pub mod fixed_window;
pub mod fleet_share;
pub mod gradient;
mod histogram;
pub mod hot_key;
pub mod key_reads;
pub mod latency_ratio;
pub mod peers;
pub mod placement;
pub mod pricing;
pub mod range;
pub mod rank;
pub mod rate;
pub mod read_cost;
pub mod rejection_rate;
pub mod reservations;
pub mod shedding;
pub mod space_saving;
pub mod window;

/// The lowest tier gives way first: `critical` > `standard` > `batch` > `best-effort`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Tier {
    /// Gives way last, and least.
    Critical,
    /// A tenant's tier by default.
    #[default]
    Standard,
    /// Work that can wait.
    Batch,
    /// Gives way first.
    BestEffort,
}

impl Tier {
    /// Every tier, the most critical first.
    pub const ALL: [Self; 4] = [Self::Critical, Self::Standard, Self::Batch, Self::BestEffort];

    /// Its place in [`Tier::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in configuration and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Standard => "standard",
            Self::Batch => "batch",
            Self::BestEffort => "best-effort",
        }
    }
}

/// A seeded stream for tests.
#[cfg(test)]
mod test_rng {
    use rand::{Rng as _, SeedableRng as _};

    pub(crate) struct TestRng(rand_pcg::Pcg64Mcg);

    impl TestRng {
        pub(crate) fn new(seed: u64) -> Self {
            Self(rand_pcg::Pcg64Mcg::seed_from_u64(seed))
        }

        /// Uniform in `[0, 1)`.
        pub(crate) fn unit(&mut self) -> f64 {
            (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
        }
    }
}
