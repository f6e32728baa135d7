//! Seeded streams of random numbers.
//!
//! One seed names a family of independent streams (arrivals, service times, draws of a policy ...),
//! so that what one consumer draws does not shift what another sees: two policies under the same
//! seed meet the very same arrivals.

use gate_common::units::{NANOS_PER_SEC, Nanos};
use rand::{Rng as _, SeedableRng};
use rand_distr::{Distribution, Exp1, StandardNormal};
use rand_pcg::Pcg64Mcg;

/// A stream of random numbers, fixed by its seed and its number. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(Pcg64Mcg);

impl Rng {
    /// Stream number `stream` of the family `seed`.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&mix(seed).to_le_bytes());
        bytes[8..].copy_from_slice(&mix(mix(seed) ^ stream).to_le_bytes());
        Self(Pcg64Mcg::from_seed(bytes))
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `[0, 1)`, in steps of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A draw from any distribution.
    #[inline]
    pub fn draw<T>(&mut self, from: &impl Distribution<T>) -> T {
        from.sample(&mut self.0)
    }

    /// Standard normal: mean 0, variance 1.
    #[inline]
    pub fn normal(&mut self) -> f64 {
        StandardNormal.sample(&mut self.0)
    }

    /// Exponential with mean 1.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        Exp1.sample(&mut self.0)
    }

    /// The gap to the next arrival of a Poisson process of `per_sec` arrivals a second (above 0).
    #[inline]
    pub fn poisson_gap(&mut self, per_sec: f64) -> Nanos {
        // Rounded to the nearest: rounding down would raise the rate by half a nanosecond a gap.
        Nanos((self.exponential() * (NANOS_PER_SEC as f64 / per_sec)).round() as u64)
    }
}

/// Spreads every bit of `word` over all of them (the finalizer of SplitMix64), so that seeds 1, 2, 3
/// share nothing.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(seed: u64, stream: u64) -> Vec<u64> {
        let mut rng = Rng::new(seed, stream);
        (0..8).map(|_| rng.bits()).collect()
    }

    #[test]
    fn a_stream_repeats_and_differs_from_its_neighbours() {
        assert_eq!(first(1, 0), first(1, 0));
        for (seed, stream) in [(1, 1), (2, 0), (0, 1), (0, 0)] {
            assert_ne!(first(1, 0), first(seed, stream), "seed {seed}, stream {stream}");
        }
    }

    #[test]
    fn draws_have_the_mean_of_their_distribution() {
        let mut rng = Rng::new(7, 0);
        let mut mean = |draw: fn(&mut Rng) -> f64| {
            let draws = 200_000;
            (0..draws).map(|_| draw(&mut rng)).sum::<f64>() / f64::from(draws)
        };
        assert!((mean(Rng::unit) - 0.5).abs() < 0.005);
        assert!(mean(Rng::normal).abs() < 0.01);
        assert!((mean(Rng::exponential) - 1.0).abs() < 0.01);
        assert!((mean(|rng| rng.poisson_gap(1_000.0).0 as f64) - 1e6).abs() < 1e4);
    }
}
