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
        match take(seen, now.0, price.0, limits) {
            Take::Admit { tat } => {
                match word.compare_exchange_weak(seen, tat, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Ok(()),
                    Err(found) => seen = found,
                }
            }
            Take::Refuse { wait_ns } => {
                return Err(Refusal::after(Reason::Quota, Nanos(wait_ns)));
            }
            Take::TooLarge => return Err(Refusal::by(Reason::TooLarge, Rule::Burst)),
        }
    }
    Err(Refusal::of(Reason::Quota))
}

/// The number of times that a compare-and-swap is tried. Each failure means that someone else succeeded.
const ATTEMPTS: u32 = 16;
