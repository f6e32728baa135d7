//! The rates of tenants' buckets that hold a part of a limit, which change with the part.
//!
//! A bucket's word is a time at its rate: with another rate it becomes another time, so that what was taken out of it is still out.
//!
//! **Between the two.** The word and the rate change one after the other, and a request in between is charged by the wrong one. By a
//! slower rate than the word's it would be owed for minutes. So a word is changed before a slower rate is in force, but only when nothing
//! goes by the last one any more if the next is faster: a request in between is charged too little.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gate_common::token_bucket::{Rate, at_another_rate};
use gate_common::units::Nanos;

use crate::kernel::Maps;

/// The rate of a tenant's quota, and whether that is a part of a limit that it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) rate: Rate,
    pub(super) is_part: bool,
}

/// The way of a part's rate to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Slower,
    Faster,
}

impl Change {
    fn between(from: Rate, to: Rate) -> Self {
        let [from, to] = [from, to].map(|rate| rate.units_per_sec().unwrap_or(u64::MAX));
        if from < to { Self::Faster } else { Self::Slower }
    }
}

impl Part {
    /// That of a tenant which shares no limit.
    pub(super) const fn whole(rate: Rate) -> Self {
        Self { rate, is_part: false }
    }

    /// Changes the buckets of those among `tenants`, by their numbers, whose rate becomes slower, or faster: from the first part of each to
    /// the second. A rate that is no part's stays a time.
    pub(super) fn change<'t>(
        maps: &Maps,
        now: Nanos,
        change: Change,
        tenants: impl Iterator<Item = (u32, (&'t mut Self, Self))>,
    ) {
        let mut has_waited = change == Change::Slower;
        for (id, (from, to)) in tenants {
            let is_part = from.is_part || to.is_part;
            if from.rate != to.rate && Change::between(from.rate, to.rate) == change && is_part {
                if !std::mem::replace(&mut has_waited, true) {
                    std::thread::sleep(PACKET);
                }
                let changed = |tat| Some(at_another_rate(tat, now.0, from.rate, to.rate));
                // Only ever fails to find another value, and then tries again. Whoever sees it sees the generation as well.
                let _ =
                    maps.quota_tat(id as usize).fetch_update(Ordering::Release, Ordering::Relaxed, changed);
                from.rate = to.rate;
            }
            if change == Change::Faster {
                *from = to;
            }
        }
    }
}

/// The XDP program is done with a packet in less, also with one that it had begun by the last generation. Daemons' threads look themselves.
const PACKET: Duration = Duration::from_micros(100);
