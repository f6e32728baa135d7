//! Token buckets from configured rates.

use gate_common::token_bucket::{Limits, Rate};
use gate_common::units::{MilliRu, Nanos};

pub(super) fn bucket(per_sec: Option<u64>, burst: Nanos, max_debt: Nanos) -> Limits {
    match per_sec {
        Some(per_sec) => Limits { rate: Rate::per_sec(per_sec), burst_ns: burst.0, max_debt_ns: max_debt.0 },
        None => Limits::UNLIMITED,
    }
}

/// The coarse bucket where nothing is said: four times the quota, at one KiB to the request unit.
pub(super) fn default_tcp_quota(quota: Option<u64>, burst: Nanos) -> Limits {
    tcp(quota.map(|milli_ru| milli_ru.saturating_mul(4 * 1024) / 1_000), burst)
}

/// A bucket of bytes that any segment fits into.
pub(super) fn tcp(per_sec: Option<u64>, burst: Nanos) -> Limits {
    let rate = per_sec.map_or(Rate::UNLIMITED, Rate::per_sec);
    let segment = Nanos(rate.time_for(MAX_SEGMENT_BYTES));
    bucket(per_sec, burst, Nanos(2 * burst.0).max(segment))
}

/// The largest segment that a network interface hands over, receive offload included.
const MAX_SEGMENT_BYTES: u32 = 1 << 16;

/// The kernel's clock ticks every 4 ms: a smaller burst would be spent before the next tick.
pub(super) const BURST_RANGE: (Nanos, Nanos) = (Nanos::from_millis(4), Nanos::from_secs(3_600));
pub(super) const DEBT_RANGE: (Nanos, Nanos) = (Nanos::ZERO, Nanos::from_secs(7_200));

/// How many requests of such a price a full bucket admits at once, without debt; `None` if any number.
pub(super) fn requests(limits: &Limits, price: MilliRu) -> Option<u64> {
    limits.rate.units_per_sec()?;
    limits.burst_ns.checked_div(limits.rate.time_for(price.0))
}

/// Clients come with a few connections, and a pipeline on each.
pub(super) const FEW: u64 = 20;
