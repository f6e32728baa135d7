//! The store's latency, counted by one thread and read by any.
//!
//! Buckets grow by an eighth, from a microsecond to over a minute, so that a percentile is off by at most that much.
//! Counts only grow: the counts of an interval are the difference of two readings.

use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::units::Nanos;

/// One thread's latencies of one class of requests.
#[derive(Debug)]
pub struct LatencyHistogram {
    counts: [AtomicU64; BUCKETS],
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

/// Latencies at one point in time, of any number of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySnapshot {
    counts: Vec<u64>,
}

impl LatencyHistogram {
    /// Counts `count` more of this latency. Only one thread may call this.
    #[inline]
    pub(crate) fn record(&self, took: Nanos, how_many: u64) {
        let count = &self.counts[bucket(took)];
        count.store(count.load(Ordering::Relaxed).wrapping_add(how_many), Ordering::Relaxed);
    }
}

impl Default for LatencySnapshot {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS] }
    }
}

impl LatencySnapshot {
    /// Adds one thread's.
    pub fn add(&mut self, latencies: &LatencyHistogram) {
        for (sum, count) in self.counts.iter_mut().zip(&latencies.counts) {
            *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
        }
    }

    /// The difference to an `earlier` reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts);
        Self { counts: counts.map(|(now, then)| now.wrapping_sub(*then)).collect() }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The counts below [`LatencySnapshot::BOUNDS`], each without those below the bound before, and those from the last one
    /// on.
    #[must_use]
    pub fn by_bound(&self) -> ([u64; LatencySnapshot::BOUNDS.len()], u64) {
        let mut rest = &self.counts[..];
        let mut taken = 0;
        let counts = Self::BOUNDS.map(|bound| {
            let upto = bucket(bound);
            let (below, above) = rest.split_at(upto - std::mem::replace(&mut taken, upto));
            rest = above;
            below.iter().sum()
        });
        (counts, rest.iter().sum())
    }

    /// Bounds that buckets end at: from 32,768 ns on, each twice the one before, to 8.6 s.
    pub const BOUNDS: [Nanos; 19] = {
        let mut bounds = [Nanos::ZERO; 19];
        let mut place = 0;
        while place < bounds.len() {
            bounds[place] = Nanos(1 << (15 + place));
            place += 1;
        }
        bounds
    };

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The latency that `percent` of them do not exceed, rounded up by at most an eighth; `None` if there are
    /// none.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<Nanos> {
        let len = self.len();
        let rank = ((len as f64 * percent / 100.0).ceil() as u64).clamp(1, len.max(1));
        let mut seen = 0;
        let reached = |count: &u64| {
            seen += count;
            seen >= rank
        };
        (len > 0).then(|| self.counts.iter().position(reached).map(end)).flatten()
    }
}

/// Of 1,024 ns: the first eight buckets have one each, then eight share each doubling.
const FINEST_SHIFT: u32 = 10;
const SHARE_SHIFT: u32 = 3;
const SHARES: u64 = 1 << SHARE_SHIFT;
const DOUBLINGS: usize = 24;
const BUCKETS: usize = SHARES as usize * (DOUBLINGS + 1);

#[inline]
fn bucket(took: Nanos) -> usize {
    let units = took.0 >> FINEST_SHIFT;
    if units < SHARES {
        return units as usize;
    }
    let doublings = units.ilog2() - SHARE_SHIFT;
    let share = (units >> doublings) & (SHARES - 1);
    ((u64::from(doublings + 1) * SHARES + share) as usize).min(BUCKETS - 1)
}

/// The first latency beyond a bucket.
fn end(bucket: usize) -> Nanos {
    let next = bucket as u64 + 1;
    if next <= SHARES {
        return Nanos(next << FINEST_SHIFT);
    }
    let doublings = next / SHARES - 1;
    let share = next % SHARES;
    Nanos((SHARES + share) << doublings << FINEST_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_latency_lies_in_a_bucket_that_ends_within_an_eighth_of_it(took in 0_u64..60_000_000_000) {
            let end = end(bucket(Nanos(took))).0;
            proptest::prop_assert!(end > took && end <= took + took / 8 + 1_024, "{took} {end}");
        }
    }

    #[test]
    fn counts_by_bound_are_of_what_is_below_it() {
        let latencies = LatencyHistogram::default();
        let mut all = LatencySnapshot::default();
        for (place, bound) in LatencySnapshot::BOUNDS.into_iter().enumerate() {
            latencies.record(Nanos(bound.0 - 1), 10 + place as u64);
            latencies.record(bound, 1);
        }
        all.add(&latencies);
        let (counts, beyond) = all.by_bound();
        let expected: Vec<u64> = (0..19).map(|place| 10 + place + u64::from(place > 0)).collect();
        assert_eq!((&counts[..], beyond), (&expected[..], 1));
        assert_eq!(counts.iter().sum::<u64>() + beyond, all.len());
    }

    #[test]
    fn percentiles_of_an_interval_are_those_of_the_difference() {
        let latencies = LatencyHistogram::default();
        let read = || {
            let mut reading = LatencySnapshot::default();
            reading.add(&latencies);
            reading
        };
        (0..100).for_each(|_| latencies.record(Nanos::from_secs(1), 1));
        let before = read();
        (1..=100).for_each(|ms| latencies.record(Nanos::from_millis(ms), 1));
        let interval = read().since(&before);
        assert_eq!(interval.len(), 100);
        for (percent, ms) in [(50.0, 50), (90.0, 90), (99.0, 99), (100.0, 100)] {
            let found = interval.percentile(percent).unwrap().0 as f64 / 1e6;
            assert!((f64::from(ms)..f64::from(ms) * 1.126).contains(&found), "p{percent}: {found} ms");
        }
        assert_eq!(before.since(&before).percentile(50.0), None);
    }
}
