//! The limit on requests at the store where it is found by measurement ([`Gradient`]): one for all threads of a service.
//!
//! Each thread records how long the store took, and hands that over at its tick. One of them then lets the controller decide.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gate_common::units::Nanos;

use super::permits::Permits;
use super::shares::Shares;
use super::tier_queue::QueueTotals;
use crate::config::Parallelism;
use crate::policy::gradient::{Config, Gradient, Tick, Window};
use crate::policy::range::OutOfRange;

/// The counts before the store that all threads of a service share.
#[derive(Clone, Debug)]
pub(crate) struct SharedLimits {
    pub(crate) permits: Arc<Permits>,
    /// Where the number of permits is found by measurement.
    pub(crate) adaptive: Option<Arc<AdaptiveLimit>>,
    pub(crate) queued: Arc<QueueTotals>,
    pub(crate) shares: Arc<Shares>,
}

impl SharedLimits {
    /// Those of a service with so many threads and query types, from `now` on.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for parameters of gate's own.
    pub(crate) fn new(
        parallelism: Option<Parallelism>,
        threads: usize,
        types: usize,
        now: Nanos,
    ) -> Result<Self, OutOfRange> {
        let permits = Permits::new(parallelism.map(|parallelism| parallelism.at_start() as usize), threads);
        let adaptive = match parallelism {
            Some(Parallelism::Auto) => Some(AdaptiveLimit::new(Arc::clone(&permits), types, now)?),
            Some(Parallelism::Fixed(_)) | None => None,
        };
        Ok(Self { permits, adaptive, queued: Arc::default(), shares: Arc::default() })
    }
}

/// The limit that all threads of a service share.
#[derive(Debug)]
pub(crate) struct AdaptiveLimit {
    permits: Arc<Permits>,
    state: Mutex<State>,
    /// While a measurement lasts, when it began; else zero.
    measuring_since: AtomicU64,
    classes: usize,
}

#[derive(Debug)]
struct State {
    gradient: Gradient,
    window: Window,
    /// The most requests that were at the store since the last tick, added up over threads.
    peak: usize,
}

/// The latencies of one thread since its last tick.
#[derive(Debug)]
pub(crate) struct ThreadLatencies {
    shared: Arc<AdaptiveLimit>,
    window: Window,
}

impl AdaptiveLimit {
    /// A limit on `permits` for so many query types, from `now` on.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for parameters of gate's own.
    pub(crate) fn new(permits: Arc<Permits>, types: usize, now: Nanos) -> Result<Arc<Self>, OutOfRange> {
        let classes = types + 1;
        let gradient = Gradient::new(Config::default(), classes, now)?;
        permits.set_limit(gradient.limit() as usize);
        let state = Mutex::new(State { gradient, window: Window::new(classes), peak: 0 });
        Ok(Arc::new(Self { permits, state, measuring_since: AtomicU64::new(0), classes }))
    }

    /// The latencies of one more thread.
    pub(crate) fn of_thread(self: &Arc<Self>) -> ThreadLatencies {
        ThreadLatencies { shared: Arc::clone(self), window: Window::new(self.classes) }
    }

    /// Decides. To be called at every tick by one thread; returns the limit. `draw` is uniform in `[0, 1)`.
    pub(crate) fn tick(&self, now: Nanos, draw: f64) -> u32 {
        let State { gradient, window, peak } =
            &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_reached = self.permits.take_reached();
        gradient.tick(window, Tick { now, is_reached, peak: std::mem::take(peak), draw });
        let since = gradient.measuring_since().map_or(0, |since| since.0);
        self.measuring_since.store(since, Ordering::Relaxed);
        let limit = gradient.limit();
        if self.permits.limit() != limit as usize {
            self.permits.set_limit(limit as usize);
        }
        limit
    }
}

impl ThreadLatencies {
    /// The store took so long for `count` requests of a query type that were sent together.
    #[inline]
    pub(crate) fn record(&mut self, query_type: usize, sent: Nanos, took: Nanos, count: u32) {
        if sent.0 >= self.shared.measuring_since.load(Ordering::Relaxed) {
            self.window.record(query_type, took, count);
        }
    }

    /// Hands over what was recorded, and the most requests that this thread had at the store.
    pub(crate) fn submit(&mut self, peak: usize) -> &Arc<AdaptiveLimit> {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.window.take_from(&mut self.window);
        state.peak += peak;
        drop(state);
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    #[test]
    fn threads_share_decisions_and_old_requests_are_not_measured() {
        let permits = Permits::new(Some(1), 2);
        let limit = AdaptiveLimit::new(Arc::clone(&permits), 1, Nanos::ZERO).unwrap();
        let mut one = limit.of_thread();
        let mut other = limit.of_thread();
        let start = permits.limit();
        assert!(start > 1);
        let mut now = Nanos::ZERO;
        let mut tick = |took: Nanos| {
            now = now.saturating_add(Nanos::from_millis(100));
            one.record(0, now, took, 50);
            other.record(9, now, took, 50);
            one.submit(1_000);
            other.submit(1_000).tick(now, 0.5)
        };
        tick(MS);
        let lowered = tick(Nanos::from_millis(100));
        assert!((lowered as usize) < start && permits.limit() == lowered as usize, "{lowered}");
        // The minimum is measured after a minute.
        let measuring = (0..700).map(|_| tick(Nanos::from_millis(100))).position(|limit| limit == 4);
        assert!(measuring.is_some());
        limit.measuring_since.store(1_000, Ordering::Relaxed);
        let mut third = limit.of_thread();
        third.record(0, Nanos(999), MS, 1);
        assert!(third.window.is_empty());
        third.record(0, Nanos(1_000), MS, 1);
        assert_eq!(third.window.len(), 1);
    }
}
