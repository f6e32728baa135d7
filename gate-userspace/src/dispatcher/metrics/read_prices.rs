//! Prices by what requests read beside those of their class, counted by one thread.

use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::units::MilliRu;

use crate::policy::pricing::ByClass;
use crate::protocol::price_class::PriceClass;

/// The requests whose price was learned from what the ones before read. All only grow.
#[derive(Debug, Default)]
pub(crate) struct ReadPriceMetrics(ByClass<Sums<AtomicU64>>);

#[derive(Debug, Default)]
struct Sums<N> {
    count: N,
    class_mru: N,
    learned_mru: N,
}

/// The requests of one price class whose price was learned from what the ones before read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadPriceSums {
    /// How many.
    pub count: u64,
    /// The sum of what they cost by their class, in thousandths of a request unit.
    pub class_mru: u64,
    /// The sum of what they were to pay.
    pub learned_mru: u64,
}

impl ReadPriceMetrics {
    /// Counts a request that costs so much by its class, and by what it is expected to read. Only the thread whose metrics
    /// these are may call this.
    #[inline]
    pub(crate) fn record(&self, class: PriceClass, by_class: MilliRu, learned: MilliRu) {
        let Sums { count, class_mru, learned_mru } = &self.0[class.index()];
        for (sum, more) in [(count, 1), (class_mru, by_class.0), (learned_mru, learned.0)] {
            sum.store(sum.load(Ordering::Relaxed).wrapping_add(more.into()), Ordering::Relaxed);
        }
    }

    /// Adds these to `sums`.
    pub(crate) fn add_to(&self, sums: &mut ByClass<ReadPriceSums>) {
        for (sum, Sums { count, class_mru, learned_mru }) in sums.iter_mut().zip(&self.0) {
            sum.count += count.load(Ordering::Relaxed);
            sum.class_mru += class_mru.load(Ordering::Relaxed);
            sum.learned_mru += learned_mru.load(Ordering::Relaxed);
        }
    }
}

impl ReadPriceSums {
    /// Those since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            count: self.count.wrapping_sub(earlier.count),
            class_mru: self.class_mru.wrapping_sub(earlier.class_mru),
            learned_mru: self.learned_mru.wrapping_sub(earlier.learned_mru),
        }
    }
}
