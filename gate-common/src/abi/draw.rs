//! Draws that XDP, its model in the tests and the daemon agree on.

/// The next state of a generator of draws (xorshift64): never zero, if `state` is not.
///
/// Source: G. Marsaglia, *Xorshift RNGs* (2003). Good enough to thin out and to sample; no secret.
#[must_use]
#[inline(always)]
pub const fn next(state: u64) -> u64 {
    let state = state ^ (state << 13);
    let state = state ^ (state >> 7);
    state ^ (state << 17)
}

/// A uniform draw for [`crate::units::Fraction::covers`] out of a generator's state.
#[must_use]
#[inline(always)]
pub const fn share(state: u64) -> u16 {
    (state >> 48) as u16
}

/// Requests until the next sample, that one included: uniform from 1 to `2 * every - 1`, so that no
/// client can keep in step with it. Its mean is `every`, at most 2^31.
#[must_use]
#[inline(always)]
pub const fn countdown(state: u64, every: u32) -> u64 {
    let span = every.saturating_mul(2).saturating_sub(1);
    1 + (((state >> 32) * span as u64) >> 32)
}

/// The place of a source among all sources, the same for every packet: a draw that decides whether
/// [`super::View::enforce`] covers it. IPv4 as `::ffff:a.b.c.d`.
#[must_use]
#[inline(always)]
pub const fn of_source(address: &[u8; 16]) -> u16 {
    let whole = u128::from_be_bytes(*address);
    let folded = (whole >> 64) as u64 ^ (whole as u64).rotate_left(29);
    // Twice a multiplication by an odd constant (from the golden ratio), high bits folded down between.
    let mixed = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u16
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::units::Fraction;

    #[test]
    fn a_countdown_has_the_mean_that_was_asked_for() {
        for every in [1_u32, 2, 64, 1_000, 1 << 31] {
            let mut state = 1;
            let mut sum = 0_u128;
            for _ in 0..100_000 {
                state = next(state);
                let countdown = countdown(state, every);
                assert!((1..2 * u64::from(every)).contains(&countdown), "{every}: {countdown}");
                sum += u128::from(countdown);
            }
            let expected = u128::from(every) * 100_000;
            assert!(sum.abs_diff(expected) <= expected / 100, "{every}: {sum}");
        }
    }

    #[test]
    fn a_share_of_draws_and_of_neighbouring_sources_is_that_share() {
        for percent in [0_u64, 1, 10, 50, 99, 100] {
            let fraction = Fraction::of(percent, 100);
            let mut state = 1;
            let mut drawn = 0;
            let mut sources = [0_u64; 2];
            for n in 0..100_000_u128 {
                state = next(state);
                drawn += u64::from(fraction.covers(share(state)));
                for (which, base) in [0xffff_c612_0000_u128, 0xfd00 << 112].into_iter().enumerate() {
                    sources[which] += u64::from(fraction.covers(of_source(&(base + n).to_be_bytes())));
                }
            }
            for covered in [drawn, sources[0], sources[1]] {
                assert!(covered.abs_diff(percent * 1_000) < 600, "{percent}%: {covered}");
            }
        }
    }
}
