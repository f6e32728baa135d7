//! When a key is hot, and how fast it cools.
//!
//! **Problem.** [`super::space_saving`] says what a key weighs, within an error. A key that hovers at
//! one threshold would be cached and dropped by turns, and an error must not make a key hot.
//!
//! **How.** Two thresholds. A key becomes hot when it weighs at least the upper one for certain, and
//! cools when it weighs less than the lower one at most. In between it stays what it is.

use gate_common::units::{Fraction, NANOS_PER_SEC, Nanos};

use super::range::{OutOfRange, ensure};
use super::space_saving::Estimate;

/// Two thresholds on the weight of a key. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    hot: u64,
    cool: u64,
}

/// A change of a key's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its weight is surely at or above the upper threshold.
    BecomesHot,
    /// Its weight is surely below the lower threshold.
    Cools,
}

impl Thresholds {
    /// A key becomes hot at a weight of `hot` and cools below `cool`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] unless `1 <= cool <= hot`.
    pub fn new(hot: u64, cool: u64) -> Result<Self, OutOfRange> {
        ensure(hot >= 1, "hot", hot, "above 0")?;
        ensure((1..=hot).contains(&cool), "cool", cool, "from 1 to the weight at which a key becomes hot")?;
        Ok(Self { hot, cool })
    }

    /// The change for a key with this weight, if it is known, and this state.
    #[must_use]
    pub fn classify(self, is_hot: bool, weight: Option<Estimate>) -> Option<Change> {
        let weight = weight.unwrap_or_default();
        match is_hot {
            // Cold => hot
            false if weight.at_least() >= self.hot => Some(Change::BecomesHot),
            // Hot => cold
            true if weight.count < self.cool => Some(Change::Cools),
            _ => None,
        }
    }
}

/// How weights decay: by half in every half-life, a little at each tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decay {
    keep: Fraction,
    half_life: Nanos,
}

impl Decay {
    /// Weights halve in `half_life`, decaying once every `tick`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] unless `tick` is above 0 and `half_life` from 1 to 1,000 ticks (beyond that, a
    /// [`Fraction`] could not tell the share kept from the whole to within 1%).
    pub fn new(half_life: Nanos, tick: Nanos) -> Result<Self, OutOfRange> {
        ensure(tick > Nanos::ZERO, "tick", tick, "above 0")?;
        let longest = tick.0.saturating_mul(1_000);
        let fits = (tick.0..=longest).contains(&half_life.0);
        ensure(fits, "half_life", half_life, "from 1 to 1000 ticks")?;
        let kept = 2_f64.powf(-(tick.0 as f64 / half_life.0 as f64));
        let keep = Fraction::from_steps((kept * f64::from(Fraction::ONE.steps())).round() as u32);
        Ok(Self { keep, half_life })
    }

    /// The argument of [`super::space_saving::SpaceSaving::decay`] at every tick.
    #[must_use]
    pub const fn keep(self) -> Fraction {
        self.keep
    }

    /// The weight that a steady stream of `per_sec` comes to in the long run: what flows in during
    /// `half_life / ln 2`. Saturates.
    #[must_use]
    pub fn weight_of(self, per_sec: u64) -> u64 {
        let seconds = self.half_life.0 as f64 / NANOS_PER_SEC as f64;
        (per_sec as f64 * seconds / std::f64::consts::LN_2).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::space_saving::SpaceSaving;

    #[test]
    fn only_a_sure_weight_changes_what_a_key_is() {
        let thresholds = Thresholds::new(100, 50).unwrap();
        for (is_hot, count, error, change) in [
            (false, 99, 0, None),
            (false, 100, 0, Some(Change::BecomesHot)),
            (false, 100, 1, None),
            (false, 150, 50, Some(Change::BecomesHot)),
            (true, 100, 100, None),
            (true, 50, 50, None),
            (true, 49, 0, Some(Change::Cools)),
        ] {
            let weight = Some(Estimate { count, error });
            assert_eq!(thresholds.classify(is_hot, weight), change, "{is_hot} {count} {error}");
        }
        assert_eq!(thresholds.classify(true, None), Some(Change::Cools));
        assert_eq!(thresholds.classify(false, None), None);
    }

    #[test]
    fn impossible_parameters_are_refused() {
        for (hot, cool, field) in [(0, 0, "hot"), (5, 0, "cool"), (5, 6, "cool")] {
            assert_eq!(Thresholds::new(hot, cool).unwrap_err().field, field);
        }
        for (half_life, tick, field) in
            [(5, 0, "tick"), (0, 1, "half_life"), (9, 10, "half_life"), (1_001, 1, "half_life")]
        {
            assert_eq!(Decay::new(Nanos(half_life), Nanos(tick)).unwrap_err().field, field);
        }
    }

    #[test]
    fn a_steady_stream_comes_to_the_weight_of_its_rate() {
        let tick = Nanos::from_millis(100);
        for (half_life, per_sec) in
            [(Nanos::from_secs(1), 1_000), (Nanos::from_secs(5), 10), (Nanos::from_secs(100), 1_000)]
        {
            let decay = Decay::new(half_life, tick).unwrap();
            let mut sketch = SpaceSaving::new(10, 1).unwrap();
            for _ in 0..10_000 {
                sketch.update(0, b"key", per_sec / 10);
                sketch.decay(decay.keep());
            }
            let weight = sketch.estimate(0, b"key").unwrap().count as f64;
            let expected = decay.weight_of(per_sec) as f64;
            assert!((weight / expected - 1.0).abs() < 0.05, "{half_life}: {weight} for {expected}");
        }
    }

    proptest! {
        #[test]
        fn a_key_between_the_thresholds_never_flaps(
            hot in 1..1_000_u64, cool in 1..1_000_u64, weights in prop::collection::vec(0..1_200_u64, 1..50),
        ) {
            let cool = cool.min(hot);
            let thresholds = Thresholds::new(hot, cool).unwrap();
            let mut is_hot = false;
            for count in weights {
                let change = thresholds.classify(is_hot, Some(Estimate { count, error: 0 }));
                is_hot = match change {
                    Some(Change::BecomesHot) => true,
                    Some(Change::Cools) => false,
                    None => is_hot,
                };
                prop_assert!(change.is_none() || !(cool..hot).contains(&count));
                prop_assert!(!is_hot || count >= cool);
                prop_assert!(is_hot || count < hot);
            }
        }

        #[test]
        fn what_is_accepted_never_panics(half_life: u64, tick: u64, per_sec: u64) {
            if let Ok(decay) = Decay::new(Nanos(half_life), Nanos(tick)) {
                let _ = decay.weight_of(per_sec);
                prop_assert!(decay.keep() < Fraction::ONE);
            }
        }
    }
}
