//! Quantities with their unit in the type.

use core::fmt;

/// A span of time, or a point on gate's clock, in nanoseconds.
///
/// Range: the whole of `u64` (584 years). All arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time at all, and the origin of a clock.
    pub const ZERO: Self = Self(0);
    /// The longest span, the latest point.
    pub const MAX: Self = Self(u64::MAX);

    /// A span of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS_PER_SEC))
    }

    /// A span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A span of whole microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// `self + span`, at most [`Nanos::MAX`].
    #[must_use]
    #[inline(always)]
    pub const fn saturating_add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// `self - span`, at least zero.
    #[must_use]
    #[inline(always)]
    pub const fn saturating_sub(self, span: Self) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// The later of two points, the longer of two spans.
    #[must_use]
    #[inline(always)]
    pub const fn max(self, other: Self) -> Self {
        if self.0 >= other.0 { self } else { other }
    }

    /// The earlier of two points, the shorter of two spans.
    #[must_use]
    #[inline(always)]
    pub const fn min(self, other: Self) -> Self {
        if self.0 <= other.0 { self } else { other }
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&core::time::Duration::from_nanos(self.0), f)
    }
}

impl From<core::time::Duration> for Nanos {
    /// Saturates beyond 584 years.
    fn from(span: core::time::Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for core::time::Duration {
    fn from(span: Nanos) -> Self {
        Self::from_nanos(span.0)
    }
}

/// Nanoseconds in a second.
pub const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A price in thousandths of a request unit (RU). One RU is a point read of one small row.
///
/// Range: 0 to 4,294,967.295 RU for one request. All arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct MilliRu(pub u32);

impl MilliRu {
    /// The price of nothing.
    pub const ZERO: Self = Self(0);
    /// One request unit.
    pub const ONE_RU: Self = Self(1_000);
    /// The dearest price.
    pub const MAX: Self = Self(u32::MAX);

    /// `self + other`, at most [`MilliRu::MAX`].
    #[must_use]
    #[inline(always)]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// `self * times`, at most [`MilliRu::MAX`].
    #[must_use]
    #[inline(always)]
    pub const fn saturating_mul(self, times: u32) -> Self {
        Self(self.0.saturating_mul(times))
    }

    /// `self * factor`, rounded up, at most [`MilliRu::MAX`].
    #[must_use]
    #[inline(always)]
    pub const fn scaled(self, factor: Multiplier) -> Self {
        let product = self.0 as u64 * factor.0 as u64;
        let scaled =
            (product >> Multiplier::FRACTION_BITS) + ((product & (Multiplier::ONE.0 as u64 - 1) != 0) as u64);
        Self(if scaled > u32::MAX as u64 { u32::MAX } else { scaled as u32 })
    }
}

impl fmt::Display for MilliRu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} RU", self.0 / 1_000, self.0 % 1_000)
    }
}

/// A factor on a price, as a binary fraction with 16 bits after the point.
///
/// Range: 0 to 65,535.99998.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Multiplier(pub u32);

impl Multiplier {
    /// Bits after the binary point.
    pub const FRACTION_BITS: u32 = 16;
    /// Prices as they are.
    pub const ONE: Self = Self(1 << Self::FRACTION_BITS);

    /// A whole factor. Saturates at 65,535.
    #[must_use]
    pub const fn from_int(factor: u32) -> Self {
        let capped = if factor > 65_535 { 65_535 } else { factor };
        Self(capped << Self::FRACTION_BITS)
    }
}

impl Default for Multiplier {
    fn default() -> Self {
        Self::ONE
    }
}

/// A share of a whole, from 0 to 1, in steps of 1/65,536.
///
/// The decision is a comparison: `draw` is uniform over `u16`, and `share.covers(draw)` is true for
/// exactly that share of the draws, so that zero covers none and one covers all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Fraction(u32);

impl Fraction {
    /// No part.
    pub const ZERO: Self = Self(0);
    /// The whole.
    pub const ONE: Self = Self(1 << 16);

    /// `steps` of 1/65,536, at most the whole.
    #[must_use]
    pub const fn from_steps(steps: u32) -> Self {
        Self(if steps > Self::ONE.0 { Self::ONE.0 } else { steps })
    }

    /// `part / whole`, at most one. Zero of zero is zero.
    #[must_use]
    pub const fn of(part: u64, whole: u64) -> Self {
        if part >= whole {
            return if whole == 0 { Self::ZERO } else { Self::ONE };
        }
        // part < whole: halve both until the product fits.
        let mut part = part;
        let mut whole = whole;
        while part > u64::MAX >> 16 {
            part >>= 1;
            whole >>= 1;
        }
        Self::from_steps(((part << 16) / whole) as u32)
    }

    /// In steps of 1/65,536.
    #[must_use]
    #[inline(always)]
    pub const fn steps(self) -> u32 {
        self.0
    }

    /// True if a uniform draw falls into this share.
    #[must_use]
    #[inline(always)]
    pub const fn covers(self, draw: u16) -> bool {
        (draw as u32) < self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::ToString;

    #[test]
    fn a_scaled_price_rounds_up_and_saturates() {
        for (price, factor, scaled) in [
            (0, Multiplier::from_int(64), 0),
            (1_000, Multiplier::ONE, 1_000),
            (1_000, Multiplier::from_int(2), 2_000),
            (1, Multiplier(1), 1),
            (3, Multiplier(Multiplier::ONE.0 / 2), 2),
            (u32::MAX, Multiplier::ONE, u32::MAX),
            (u32::MAX, Multiplier(u32::MAX), u32::MAX),
        ] {
            assert_eq!(MilliRu(price).scaled(factor), MilliRu(scaled), "{price} x {factor:?}");
        }
    }

    #[test]
    fn a_fraction_covers_its_share_of_draws() {
        for (part, whole, steps) in [
            (0, 0, 0),
            (0, 7, 0),
            (7, 7, 65_536),
            (9, 7, 65_536),
            (1, 2, 32_768),
            (u64::MAX / 2, u64::MAX, 32_767),
        ] {
            let share = Fraction::of(part, whole);
            assert_eq!(share.steps(), steps, "{part}/{whole}");
            let covered = (0..=u16::MAX).filter(|&draw| share.covers(draw)).count();
            assert_eq!(covered, steps as usize);
        }
    }

    #[test]
    fn units_print_with_their_unit() {
        assert_eq!(MilliRu(1_250).to_string(), "1.250 RU");
        assert_eq!(Nanos::from_millis(100).to_string(), "100ms");
    }
}
