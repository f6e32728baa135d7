//! One bucket in shared memory: XDP and all threads take from its word by compare-and-swap.

use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::abi::Reason;
use gate_common::token_bucket::{Limits, Take, take};
use gate_common::units::{MilliRu, Nanos};

use crate::protocol::{Refusal, Rule};

/// Changes one bucket by compare-and-swap.
pub(super) fn update(word: &AtomicU64, to: impl Fn(u64) -> u64) {
    // Only ever fails to find another value, and then tries again.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tat| Some(to(tat)));
}

/// Takes a price from one bucket by compare-and-swap.
pub(super) fn attempt(word: &AtomicU64, now: Nanos, price: MilliRu, limits: &Limits) -> Result<(), Refusal> {
    let mut seen = word.load(Ordering::Relaxed);
    for _ in 0..ATTEMPTS {
        let tat = taken(seen, now, price, limits)?;
        match word.compare_exchange_weak(seen, tat, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(found) => seen = found,
        }
    }
    Err(Refusal::of(Reason::Quota))
}

/// The word of a bucket out of which a price was taken.
#[inline]
pub(super) fn taken(tat: u64, now: Nanos, price: MilliRu, limits: &Limits) -> Result<u64, Refusal> {
    match take(tat, now.0, price.0, limits) {
        Take::Admit { tat } => Ok(tat),
        Take::Refuse { wait_ns } => Err(Refusal::after(Reason::Quota, Nanos(wait_ns))),
        Take::TooLarge => Err(Refusal::by(Reason::TooLarge, Rule::Burst)),
    }
}

/// The number of times that a compare-and-swap is tried. Each failure means that someone else succeeded.
const ATTEMPTS: u32 = 16;
