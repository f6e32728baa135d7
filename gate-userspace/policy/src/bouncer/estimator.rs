//! Processing times by query type: recorded by all threads, published at every tick.
//!
//! Each type records into one of two buffers. When an interval is over and the buffer holds enough
//! values, its mean and percentiles are published and the buffers change places; with fewer values
//! the buffer goes on filling and what was published stays, so that neither a lull nor a rare type
//! is judged by an almost empty histogram. A type is *cold* until its first publication, which does
//! not wait for the interval; until then the general histogram, all that the types' buffers hold
//! together, stands in for it.
//!
//! The other kind of histogram covers a window that slides by a tenth of the interval, the paper's future
//! work: a step joins it as soon as it holds a tenth of the values that are enough, and the figures are of the
//! interval's values, or as many older ones as are needed. A rare type's figures follow ten times as soon.

use std::sync::atomic::{AtomicUsize, Ordering};

use gate_common::units::Nanos;

use super::config::HistogramKind;
use super::sliding::SlidingHistogram;
use crate::histogram::{Histogram, Snapshot};

/// Two buffers, one of which is recorded into.
#[derive(Debug)]
pub(super) struct Recorder {
    buffers: [Box<Histogram>; 2],
    recording: AtomicUsize,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self { buffers: [Histogram::new(), Histogram::new()], recording: AtomicUsize::new(0) }
    }

    #[inline]
    pub(super) fn record(&self, duration: Nanos) {
        self.buffers[self.recording.load(Ordering::Acquire) & 1].record(duration);
    }

    /// The number of values since the last change.
    fn count(&self) -> u64 {
        self.buffers[self.recording.load(Ordering::Relaxed)].count()
    }

    /// Changes the buffers and returns what the full one holds. For one thread at a time. A thread
    /// that is overtaken while it records may put a value into the buffer that is cleared next time,
    /// which loses that value and nothing else.
    fn swap(&self) -> Snapshot {
        let full = self.recording.load(Ordering::Relaxed);
        self.buffers[1 - full].clear();
        self.recording.store(1 - full, Ordering::Release);
        Snapshot::of([&*self.buffers[full]])
    }

    /// Takes out what is recorded since the last change, without a change.
    fn drain(&self) -> Snapshot {
        self.buffers[self.recording.load(Ordering::Relaxed)].drain()
    }

    /// The values in both buffers of all `recorders`.
    fn snapshot(recorders: &[Self]) -> Snapshot {
        Snapshot::of(recorders.iter().flat_map(|recorder| &recorder.buffers).map(|buffer| &**buffer))
    }
}

/// When a recorder's buffer is full enough, and old enough, to be published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rhythm {
    pub(super) interval: Nanos,
    pub(super) min_samples: u64,
}

/// The values that one recorder has published.
#[derive(Debug)]
pub(super) struct Published {
    processing_times: Option<ProcessingTimes>,
    /// When, or when recording began.
    since: Nanos,
    /// When the first of the published values may have been recorded, and the first of those that are not published yet.
    measured_from: Nanos,
    recording_from: Nanos,
    /// If the figures are of a sliding window.
    sliding: Option<Box<SlidingHistogram>>,
    /// Since the last publication, whether recording has begun anew.
    is_renewed: bool,
}

impl Published {
    pub(super) fn nothing(kind: HistogramKind, since: Nanos) -> Self {
        let sliding = match kind {
            HistogramKind::Swap => None,
            HistogramKind::Sliding => Some(Box::new(SlidingHistogram::new(since))),
        };
        Self {
            processing_times: None,
            since,
            measured_from: since,
            recording_from: since,
            sliding,
            is_renewed: false,
        }
    }

    /// Forgets the values that are recorded and not published, once until the next publication: a type on trial is measured
    /// anew, not by what was recorded before it.
    pub(super) fn renew(&mut self, recorder: &Recorder, now: Nanos) {
        if std::mem::replace(&mut self.is_renewed, true) {
            return;
        }
        self.recording_from = now;
        recorder.drain();
        self.sliding.iter_mut().for_each(|sliding| sliding.clear());
    }

    pub(super) const fn processing_times(&self) -> Option<&ProcessingTimes> {
        self.processing_times.as_ref()
    }

    /// When it was published, or when recording began.
    pub(super) const fn since(&self) -> Nanos {
        self.since
    }

    /// When the first of the published values may have been recorded.
    pub(super) const fn measured_from(&self) -> Nanos {
        self.measured_from
    }

    /// Publishes what `recorder` holds, if its time has come.
    pub(super) fn refresh(&mut self, recorder: &Recorder, percentiles: &[f64], rhythm: Rhythm, now: Nanos) {
        if let Some(sliding) = &mut self.sliding {
            let due = match self.processing_times {
                None => recorder.count() >= rhythm.min_samples,
                Some(_) => sliding.is_due(|| recorder.count(), rhythm, now),
            };
            if due {
                sliding.push(recorder.drain(), rhythm, now);
                if sliding.total().count() >= rhythm.min_samples {
                    self.processing_times = Some(ProcessingTimes::new(sliding.total(), percentiles));
                    self.measured_from = sliding.covers_from().max(self.recording_from);
                    (self.since, self.is_renewed) = (now, false);
                }
            }
        } else if self.due(rhythm, now) && recorder.count() >= rhythm.min_samples {
            self.publish(&recorder.swap(), percentiles, now);
        }
    }

    /// Publishes what all of `recorders` and of the types' sliding windows hold together, if its time has come.
    pub(super) fn refresh_general(
        &mut self,
        recorders: &[Recorder],
        types: &[Self],
        percentiles: &[f64],
        rhythm: Rhythm,
        now: Nanos,
    ) {
        if self.due(rhythm, now) {
            let mut snapshot = Recorder::snapshot(recorders);
            types
                .iter()
                .filter_map(|of| of.sliding.as_ref())
                .for_each(|sliding| snapshot.add(sliding.total()));
            if snapshot.count() >= rhythm.min_samples {
                self.publish(&snapshot, percentiles, now);
            }
        }
    }

    /// Cold => Warm: at once. Warm => Warm: when the interval is over.
    fn due(&self, rhythm: Rhythm, now: Nanos) -> bool {
        self.processing_times.is_none() || now.saturating_sub(self.since) >= rhythm.interval
    }

    fn publish(&mut self, snapshot: &Snapshot, percentiles: &[f64], now: Nanos) {
        self.processing_times = Some(ProcessingTimes::new(snapshot, percentiles));
        (self.since, self.is_renewed) = (now, false);
        self.measured_from = std::mem::replace(&mut self.recording_from, now);
    }
}

/// Published processing times.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessingTimes {
    /// How many requests this rests on.
    pub samples: u64,
    /// Their mean processing time.
    pub mean: Nanos,
    /// Their processing times at the percentiles that the objectives name, the lowest first.
    pub percentiles: Vec<(f64, Nanos)>,
}

impl ProcessingTimes {
    fn new(snapshot: &Snapshot, percentiles: &[f64]) -> Self {
        let at = |&percentile: &f64| (percentile, snapshot.quantile(percentile / 100.0));
        Self {
            samples: snapshot.count(),
            mean: snapshot.mean(),
            percentiles: percentiles.iter().map(at).collect(),
        }
    }

    /// The processing time at `percentile`; zero if it is not among them.
    pub(super) fn at(&self, percentile: f64) -> Nanos {
        self.percentiles.iter().find(|&&(at, _)| at == percentile).map_or(Nanos::ZERO, |&(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RHYTHM: Rhythm = Rhythm { interval: Nanos(1_000), min_samples: 10 };

    fn recorded(recorder: &Recorder, count: usize, value: u64) {
        (0..count).for_each(|_| recorder.record(Nanos(value)));
    }

    #[test]
    fn an_almost_empty_histogram_never_replaces_a_full_one() {
        let recorder = Recorder::new();
        let mut published = Published::nothing(HistogramKind::Swap, Nanos::ZERO);
        let mut refresh = |now| {
            let before = published.since();
            published.refresh(&recorder, &[50.0], RHYTHM, Nanos(now));
            published.processing_times().filter(|_| published.since() != before).map(|times| times.samples)
        };
        // Values recorded before, time, what is published then.
        for (count, now, samples) in [
            (9, 500, None),         // cold, too few
            (1, 501, Some(10)),     // Cold => Warm, before the interval is over
            (50, 1_500, None),      // full, but too young
            (0, 1_501, Some(50)),   // the interval is over
            (9, 2_501, None),       // too few: the old one stays ...
            (0, 900_000, None),     // ... through a lull ...
            (1, 900_001, Some(10)), // ... until the new one has enough
        ] {
            recorded(&recorder, count, 160);
            assert_eq!(refresh(now), samples, "at {now}");
        }
    }

    #[test]
    fn a_buffer_is_empty_when_its_turn_comes_again() {
        let recorder = Recorder::new();
        let mut published = Published::nothing(HistogramKind::Swap, Nanos::ZERO);
        for (round, value) in [1_600, 3_200, 6_400, 12_800].into_iter().enumerate() {
            recorded(&recorder, 20, value);
            published.refresh(&recorder, &[50.0], RHYTHM, Nanos(1_000 * (round as u64 + 1)));
            let times = published.processing_times().unwrap();
            assert_eq!(times.samples, 20);
            assert!(times.at(50.0).0.abs_diff(value) <= value / 64 + 16, "{times:?}");
        }
    }
}
