//! The admission policies that Bouncer is compared to, there to choose as well.
//!
//! **Problem.** The usual guards of a queue know nothing of query types: they look at the queue's
//! length, at its wait, or at the store's utilization.
//!
//! **Source.** The policies that the Bouncer paper compares itself to, with its parameters: moving
//! averages over 60 s in steps of 1 s.
//!
//! **Deviations.** Where the queue has tiers, a wait is for the tiers that are served before or with the
//! request's own. Where the last seconds' average is clearly below that of the whole window, it counts: what was refused in
//! an overload is served again once that is over, not a minute later.
//!
//! **Invariants.** All types are treated alike. With an empty queue and a store at rest, nothing is
//! refused. Nothing that a constructor accepts can panic or overflow later.

mod accept_fraction;
mod averages;
mod max_queue_length;
mod max_queue_wait;

use std::sync::atomic::{AtomicI64, Ordering};

use gate_common::units::Nanos;

pub use self::accept_fraction::{AcceptFraction, Averaging};
pub use self::max_queue_length::MaxQueueLength;
pub use self::max_queue_wait::MaxQueueWait;

/// How many requests are queued.
#[derive(Debug, Default)]
struct QueueLength(AtomicI64);

impl QueueLength {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// A request that is removed before the thread that added it has counted it makes the length
    /// negative for a moment.
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed).max(0) as u64
    }
}

/// The longest time that is counted: one hour, so that the sum over a window cannot overflow.
const MAX_PROCESSING: Nanos = Nanos::from_secs(3_600);
/// The step of the moving averages.
const STEP: Nanos = Nanos::from_secs(1);
/// Their length in steps.
const STEPS: usize = 60;

#[cfg(test)]
mod tests;
