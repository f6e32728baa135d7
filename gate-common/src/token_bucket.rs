//! The token bucket: GCRA on one integer.
//!
//! **Problem.** One quota is spent by XDP on every CPU and by the daemon, at the same time, without
//! a lock. A bucket of tokens and a last-refill time are two words; GCRA (the generic cell rate
//! algorithm of ITU-T I.371) needs one: the *theoretical arrival time* `tat`, the moment at which
//! the bucket will be full again. So [`take`] is a pure function from one word to the next, and
//! whoever holds the word wraps it in a compare-and-swap loop.
//!
//! **Rule.** Admit if `max(tat, now) + cost <= now + burst`; then `tat = max(tat, now) + cost`. Costs
//! are turned into time by the bucket's [`Rate`].
//!
//! **Deviations.** A request dearer than the burst would never fit. It is admitted from a full
//! bucket only, and leaves a debt (`tat` beyond `now + burst`) that is paid by waiting. One that
//! would leave more than `max_debt` is refused for good. [`settle`] corrects a price afterwards and
//! may leave a debt too, capped at `max_debt`.
//!
//! **Invariants.** A `now` earlier than the last one admits no more than the last one would have:
//! `tat` never moves back except by a refund. A change of rate or burst keeps the debt. Over
//! any interval, settling aside, what is admitted and not refunded costs at most
//! `rate * (interval + one clock tick) + max(burst, dearest request)`. Rounding is against the
//! request, by at most 1 ns each. All arithmetic saturates: a bucket at the end of the clock refuses.
//! The tests hold it to exact arithmetic.

use crate::units::NANOS_PER_SEC;

/// How fast a bucket refills: the time that one unit of cost takes, `mantissa / 2^shift` nanoseconds.
///
/// Range: 1 to 10^12 units a second, within one part in 2^30 (never faster than asked for); or
/// [`Rate::UNLIMITED`]. The unit is the caller's: thousandths of a request unit, or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Rate {
    mantissa: u32,
    shift: u32,
}

impl Rate {
    /// Costs take no time.
    pub const UNLIMITED: Self = Self { mantissa: 0, shift: 0 };
    /// The slowest rate.
    pub const MIN_PER_SEC: u64 = 1;
    /// The fastest rate that is still a rate.
    pub const MAX_PER_SEC: u64 = 1_000_000_000_000;

    /// A rate in units per second, clamped to [`Rate::MIN_PER_SEC`] and [`Rate::MAX_PER_SEC`].
    #[must_use]
    pub const fn per_sec(units: u64) -> Self {
        let units = if units < Self::MIN_PER_SEC {
            Self::MIN_PER_SEC
        } else if units > Self::MAX_PER_SEC {
            Self::MAX_PER_SEC
        } else {
            units
        };
        // The largest shift for which the mantissa, rounded up, still fits 31 bits.
        let mut shift = 0;
        let mut mantissa = NANOS_PER_SEC.div_ceil(units) as u32;
        while shift < 63 {
            let wider = ((NANOS_PER_SEC as u128) << (shift + 1)).div_ceil(units as u128);
            if wider > i32::MAX as u128 {
                break;
            }
            shift += 1;
            mantissa = wider as u32;
        }
        Self { mantissa, shift }
    }

    /// The time that `cost` units take, in nanoseconds, rounded up.
    #[must_use]
    #[inline(always)]
    pub const fn time_for(self, cost: u32) -> u64 {
        // Below 2^63, since a mantissa has 31 bits. So it is a positive i64, and zero rounds to zero.
        let product = (cost as u64 * self.mantissa as u64) as i64;
        (product.wrapping_sub(1) >> (self.shift & 63)).wrapping_add(1) as u64
    }

    /// Units per second, rounded to the nearest; `None` for an unlimited rate.
    #[must_use]
    pub const fn units_per_sec(self) -> Option<u64> {
        if self.mantissa == 0 {
            return None;
        }
        let mantissa = self.mantissa as u128;
        Some((((NANOS_PER_SEC as u128) << (self.shift & 63)) + mantissa / 2).div_euclid(mantissa) as u64)
    }
}

/// The limits of a bucket. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Limits {
    /// How fast it refills.
    pub rate: Rate,
    /// How much a full bucket holds, as the time that it takes to refill.
    pub burst_ns: u64,
    /// The largest debt that a request or a settlement may leave beyond the burst.
    pub max_debt_ns: u64,
}

impl Limits {
    /// Admits everything.
    pub const UNLIMITED: Self = Self { rate: Rate::UNLIMITED, burst_ns: u64::MAX, max_debt_ns: u64::MAX };

    /// A bucket of `per_sec` units a second and a burst in time, with the default largest debt of
    /// twice the burst.
    #[must_use]
    pub const fn new(per_sec: u64, burst_ns: u64) -> Self {
        Self { rate: Rate::per_sec(per_sec), burst_ns, max_debt_ns: burst_ns.saturating_mul(2) }
    }

    /// True if a full bucket admits a request of this cost.
    #[must_use]
    #[inline(always)]
    pub const fn ever_admits(&self, cost: u32) -> bool {
        let cost_ns = self.rate.time_for(cost);
        cost_ns <= self.burst_ns || cost_ns - self.burst_ns <= self.max_debt_ns
    }

    /// The dearest request that a full bucket admits, in units of cost.
    #[must_use]
    pub const fn dearest(&self) -> u32 {
        if self.rate.mantissa == 0 {
            return u32::MAX;
        }
        // A rate's shift is below 42.
        let time = (self.burst_ns.saturating_add(self.max_debt_ns) as u128) << (self.rate.shift & 63);
        let cost = time / self.rate.mantissa as u128;
        if cost > u32::MAX as u128 { u32::MAX } else { cost as u32 }
    }
}

/// The result of a charge for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Admitted; the word becomes `tat`.
    Admit {
        /// The new theoretical arrival time.
        tat: u64,
    },
    /// Not now; the same request fits in `wait_ns` if nothing else is admitted. The word stays.
    Refuse {
        /// Nanoseconds until it would fit. Zero at the end of the clock, where nothing does.
        wait_ns: u64,
    },
    /// Never: it would leave more debt than is allowed. The word stays.
    TooLarge,
}

/// Asks the bucket whose word is `tat` for `cost` units at `now_ns`.
#[must_use]
#[inline(always)]
pub const fn take(tat: u64, now_ns: u64, cost: u32, limits: &Limits) -> Take {
    take_time(tat, now_ns, limits.rate.time_for(cost), limits.burst_ns, limits.max_debt_ns)
}

/// [`take`] for a cost that is already time.
#[must_use]
#[inline(always)]
pub const fn take_time(tat: u64, now_ns: u64, cost_ns: u64, burst_ns: u64, max_debt_ns: u64) -> Take {
    if cost_ns > burst_ns && cost_ns - burst_ns > max_debt_ns {
        return Take::TooLarge;
    }
    let mut start = now_ns;
    if tat > now_ns {
        // The debt at which the request still passes: nothing, if it is dearer than the burst. Written without saturating
        // operations, for which the BPF target has no instruction.
        let debt_ns = tat - now_ns;
        if cost_ns >= burst_ns {
            return Take::Refuse { wait_ns: debt_ns };
        }
        let room_ns = burst_ns - cost_ns;
        if debt_ns > room_ns {
            return Take::Refuse { wait_ns: debt_ns - room_ns };
        }
        start = tat;
    }
    match start.wrapping_add(cost_ns) {
        tat if tat < start || tat == u64::MAX => Take::Refuse { wait_ns: 0 },
        tat => Take::Admit { tat },
    }
}

/// Gives back what an admitted `cost` took, for a request that was refused elsewhere after all.
#[must_use]
#[inline(always)]
pub const fn refund(tat: u64, cost_ns: u64) -> u64 {
    tat.saturating_sub(cost_ns)
}

/// Charges `cost` units more for a request already admitted, leaving at most `max_debt_ns`.
#[must_use]
#[inline(always)]
pub const fn settle(tat: u64, now_ns: u64, cost: u32, limits: &Limits) -> u64 {
    let start = if tat > now_ns { tat } else { now_ns };
    let end = start.saturating_add(limits.rate.time_for(cost));
    let cap = now_ns.saturating_add(limits.burst_ns).saturating_add(limits.max_debt_ns);
    // A word that is past the cap already (the burst was lowered) keeps its debt.
    if end <= cap {
        end
    } else if start > cap {
        start
    } else {
        cap
    }
}

/// The word of a bucket that from now on fills at another rate: what has been taken out of it is still out.
///
/// Without it, time is kept: what a slow bucket gave out in the past would be owed by a fast one for as long.
#[must_use]
pub fn at_another_rate(tat: u64, now_ns: u64, from: Rate, to: Rate) -> u64 {
    let (Some(from), Some(to)) = (from.units_per_sec(), to.units_per_sec()) else { return now_ns.min(tat) };
    let out = u128::from(tat.saturating_sub(now_ns)) * u128::from(from) / u128::from(to.max(1));
    tat.min(now_ns).max(now_ns.saturating_add(u64::try_from(out).unwrap_or(u64::MAX)))
}

/// The debt of the bucket whose word is `tat`: nanoseconds before it admits anything at all.
#[must_use]
#[inline(always)]
pub const fn debt_ns(tat: u64, now_ns: u64, burst_ns: u64) -> u64 {
    tat.saturating_sub(now_ns.saturating_add(burst_ns))
}

#[cfg(test)]
mod tests;
