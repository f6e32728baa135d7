//! A histogram that threads record into at once, without a lock.
//!
//! Log-linear as an HDR histogram: 64 buckets to each doubling, so that a bucket is at most 1/64 of
//! its values wide. Own code, because recording here is one atomic addition and nothing else:
//! `hdrhistogram` needs `&mut self` to record, or a channel of whole histograms per thread that are
//! merged under a lock. Fixed in size (8.5 KiB), so that a set of them fits a core's cache.

use std::sync::atomic::{AtomicU32, Ordering};

use gate_common::units::Nanos;

/// Counts of durations. From zero to [`Histogram::MAX`]; what is longer counts as that.
#[derive(Debug)]
pub(super) struct Histogram([AtomicU32; BUCKETS]);

impl Histogram {
    /// The longest duration that is told apart: 73 minutes.
    pub(super) const MAX: Nanos = Nanos((1 << MAX_BITS) - 1);

    pub(super) fn new() -> Box<Self> {
        Box::new(Self([const { AtomicU32::new(0) }; BUCKETS]))
    }

    #[inline]
    pub(super) fn record(&self, duration: Nanos) {
        self.record_many(duration, 1);
    }

    #[inline]
    pub(super) fn record_many(&self, duration: Nanos, count: u32) {
        self.0[bucket(duration)].fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn clear(&self) {
        for count in &self.0 {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Takes out what is recorded. Nothing that is recorded meanwhile is lost.
    pub(super) fn drain(&self) -> Snapshot {
        let mut drained = Snapshot::default();
        for (to, from) in drained.counts.iter_mut().zip(&self.0) {
            // Most are empty, and looking costs less than swapping.
            if from.load(Ordering::Relaxed) != 0 {
                *to = u64::from(from.swap(0, Ordering::Relaxed));
                drained.total += *to;
            }
        }
        drained
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).sum()
    }
}

/// The contents of some histograms at one moment. They never change, so all figures from them are consistent.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    counts: [u64; BUCKETS],
    total: u64,
}

impl Default for Snapshot {
    /// Of nothing.
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0 }
    }
}

impl Snapshot {
    pub(super) fn of<'a>(histograms: impl IntoIterator<Item = &'a Histogram>) -> Self {
        let mut counts = [0; BUCKETS];
        for histogram in histograms {
            for (to, from) in counts.iter_mut().zip(&histogram.0) {
                *to += u64::from(from.load(Ordering::Relaxed));
            }
        }
        Self { total: counts.iter().sum(), counts }
    }

    pub(super) const fn count(&self) -> u64 {
        self.total
    }

    /// Adds what another one holds.
    pub(super) fn add(&mut self, other: &Self) {
        if other.total > 0 {
            for (to, from) in self.counts.iter_mut().zip(&other.counts) {
                *to += from;
            }
            self.total += other.total;
        }
    }

    /// Takes out what another one holds, which has been added before.
    pub(super) fn subtract(&mut self, other: &Self) {
        for (from, less) in self.counts.iter_mut().zip(&other.counts) {
            *from -= less;
        }
        self.total -= other.total;
    }

    /// The mean, a bucket's values taken as its middle: within 1/128. Zero if nothing is recorded.
    pub(super) fn mean(&self) -> Nanos {
        let weigh = |(bucket, &count): (usize, &u64)| {
            let (low, width) = span(bucket);
            u128::from(2 * low + width) * u128::from(count)
        };
        let twice: u128 = self.counts.iter().enumerate().map(weigh).sum();
        // At most the middle of the last bucket: fits.
        Nanos((twice / (2 * u128::from(self.total.max(1)))) as u64)
    }

    /// The value that `share` (0 to 1) of the recorded ones do not exceed, a bucket's values taken as
    /// evenly spread. Zero if nothing is recorded.
    pub(super) fn quantile(&self, share: f64) -> Nanos {
        let rank = share * self.total as f64;
        let mut below = 0.0;
        let mut last = Nanos::ZERO;
        for (bucket, &count) in self.counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
            let (low, width) = span(bucket);
            let count = count as f64;
            if below + count >= rank {
                return Nanos(low + (width as f64 * ((rank - below) / count).clamp(0.0, 1.0)) as u64);
            }
            below += count;
            last = Nanos(low + width);
        }
        last
    }
}

/// The bucket of a duration.
#[inline]
fn bucket(duration: Nanos) -> usize {
    let value = duration.min(Histogram::MAX).0;
    // The first doubling that has buckets of its own begins at 2^MIN_BITS; below it they are all as
    // wide as there.
    let doubling = (u64::BITS - (value >> MIN_BITS).leading_zeros()) as usize;
    let shift = MIN_BITS - SUB_BITS + doubling.saturating_sub(1) as u32;
    let offset = (value >> shift) as usize;
    // From the second doubling on, an offset counts from 64 (its leading bit) to 127.
    offset + doubling.saturating_sub(1) * SUB_BUCKETS
}

/// The least value in a bucket, and how many values it spans.
const fn span(bucket: usize) -> (u64, u64) {
    let doubling = (bucket / SUB_BUCKETS).saturating_sub(1);
    let width = 1 << (MIN_BITS - SUB_BITS + doubling as u32);
    ((bucket - doubling * SUB_BUCKETS) as u64 * width, width)
}

/// Below 2^10 ns, about a microsecond, buckets are 16 ns wide: no store answers faster.
const MIN_BITS: u32 = 10;
const MAX_BITS: u32 = 42;
const SUB_BITS: u32 = 6;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
const BUCKETS: usize = (MAX_BITS - MIN_BITS + 1) as usize * SUB_BUCKETS;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recorded(values: impl IntoIterator<Item = u64>) -> Snapshot {
        let histogram = Histogram::new();
        values.into_iter().for_each(|value| histogram.record(Nanos(value)));
        Snapshot::of([&*histogram])
    }

    #[test]
    fn buckets_follow_each_other_without_gap_or_overlap() {
        let mut next = 0;
        for index in 0..BUCKETS {
            let (low, width) = span(index);
            assert_eq!(low, next, "bucket {index}");
            assert_eq!(bucket(Nanos(low)), index);
            assert_eq!(bucket(Nanos(low + width - 1)), index);
            next = low + width;
        }
        assert_eq!(next, Histogram::MAX.0 + 1);
        assert_eq!(bucket(Nanos::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_empty_histogram_answers_zero() {
        let empty = recorded([]);
        assert_eq!((empty.count(), empty.mean(), empty.quantile(0.9)), (0, Nanos::ZERO, Nanos::ZERO));
    }

    #[test]
    fn clearing_forgets() {
        let histogram = Histogram::new();
        histogram.record(Nanos(5));
        assert_eq!(histogram.count(), 1);
        histogram.clear();
        assert_eq!(histogram.count(), 0);
    }

    #[test]
    fn draining_takes_out_everything_once() {
        let histogram = Histogram::new();
        [5, 5, 1 << 30].into_iter().for_each(|value| histogram.record(Nanos(value)));
        let mut sum = histogram.drain();
        assert_eq!((sum.count(), histogram.count(), histogram.drain().count()), (3, 0, 0));
        sum.add(&recorded([1 << 30]));
        assert_eq!((sum.count(), sum.counts[bucket(Nanos(1 << 30))]), (4, 2));
        sum.subtract(&recorded([5, 1 << 30]));
        assert_eq!(
            (sum.count(), sum.counts[bucket(Nanos(5))], sum.counts[bucket(Nanos(1 << 30))]),
            (2, 1, 1)
        );
    }

    proptest! {
        #[test]
        fn estimates_are_those_of_the_values_within_a_bucket(
            mut values in prop::collection::vec(prop_oneof![0u64..5_000, 0u64..1 << 42, any::<u64>()], 1..300),
            share in 0.0f64..=1.0,
        ) {
            let snapshot = recorded(values.iter().copied());
            for value in &mut values {
                *value = (*value).min(Histogram::MAX.0);
            }
            values.sort_unstable();
            prop_assert_eq!(snapshot.count(), values.len() as u64);
            let close = |estimate: Nanos, exact: u64| estimate.0.abs_diff(exact) <= exact / 64 + 16;
            let exact = values[((share * values.len() as f64).ceil() as usize).clamp(1, values.len()) - 1];
            prop_assert!(close(snapshot.quantile(share), exact), "{} vs {}", snapshot.quantile(share), exact);
            let exact = values.iter().map(|&value| u128::from(value)).sum::<u128>() / values.len() as u128;
            prop_assert!(close(snapshot.mean(), exact as u64), "{} vs {}", snapshot.mean(), exact);
        }

        #[test]
        fn quantiles_never_fall(values in prop::collection::vec(any::<u64>(), 0..100), a in 0.0f64..1.0, b in 0.0f64..1.0) {
            let snapshot = recorded(values);
            prop_assert!(snapshot.quantile(a.min(b)) <= snapshot.quantile(a.max(b)));
        }
    }
}
