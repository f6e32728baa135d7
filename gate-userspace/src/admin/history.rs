//! `/v1/history`: what the page's charts showed of the last 15 minutes, for a page that is opened now.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::queues::Queues;
use super::sources::Sources;
use super::survey::Survey;
use super::totals::Totals;
use crate::clock;

/// The document of `/v1/history`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// One each 5 seconds since gate was started, of at most 15 minutes; the oldest first. A machine on which reading all counters takes
    /// long has fewer.
    pub points: Vec<Point>,
}

/// One moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// In milliseconds since the machine's start: rates are of the time between two points.
    pub at_ms: u64,
    /// The same in seconds of Unix time.
    pub unix_s: u64,
    /// The sums over all tenants.
    pub totals: Totals,
    /// All services that are proxied or have a probe.
    pub services: Vec<ServicePoint>,
}

/// A service at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServicePoint {
    /// Its name.
    pub name: String,
    /// As of `/v1/queues`.
    pub latency_ratio: Option<f64>,
    /// The requests that wait; nothing if it is guarded.
    pub waiting: Option<u64>,
}

impl Point {
    fn read(sources: &Sources) -> Self {
        let now = clock::monotonic();
        let Queues { services, probed, .. } = Queues::read(&sources.queues, &[], now);
        let proxied = services.into_iter().map(|service| ServicePoint {
            name: service.name,
            latency_ratio: service.latency_ratio,
            waiting: Some(service.tiers.iter().map(|tier| tier.waiting).sum()),
        });
        let guarded = probed.into_iter().map(|service| ServicePoint {
            name: service.name,
            latency_ratio: service.latency_ratio,
            waiting: None,
        });
        Self {
            at_ms: now.0 / 1_000_000,
            unix_s: clock::unix_secs(),
            totals: Totals::of(&Survey::of(&sources.maps).sums),
            services: proxied.chain(guarded).collect(),
        }
    }
}

/// Keeps the points of one server.
#[derive(Debug, Default)]
pub(super) struct Recorder(Mutex<VecDeque<Point>>);

impl Recorder {
    /// Records until `stopped` says that the server ends.
    pub(super) async fn record(self: Arc<Self>, sources: Arc<Sources>, mut stopped: watch::Receiver<()>) {
        loop {
            let began = clock::monotonic();
            self.keep(Point::read(&sources));
            let took = Duration::from_nanos(clock::monotonic().saturating_sub(began).0);
            tokio::select! {
                _ = stopped.changed() => return,
                () = tokio::time::sleep(EVERY.max(took * LEAST_PAUSE)) => {}
            }
        }
    }

    fn keep(&self, point: Point) {
        let mut points = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = point.at_ms.saturating_sub(KEPT.as_millis() as u64);
        while points.front().is_some_and(|first| first.at_ms < oldest) {
            points.pop_front();
        }
        points.push_back(point);
    }

    /// The document.
    pub(super) fn document(&self) -> History {
        let points = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        History { points: points.iter().cloned().collect() }
    }
}

/// Between two points.
const EVERY: Duration = Duration::from_secs(5);
const KEPT: Duration = Duration::from_secs(15 * 60);
/// The times that a reading took between two: at most a hundredth of a core is spent on them.
const LEAST_PAUSE: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_the_last_fifteen_minutes_are_kept() {
        let recorder = Recorder::default();
        let all = 2 * KEPT.as_secs() / EVERY.as_secs();
        for number in 0..=all {
            let at_ms = number * EVERY.as_millis() as u64;
            let point = Point { at_ms, unix_s: 0, totals: Totals::default(), services: Vec::new() };
            recorder.keep(point);
        }
        let points = recorder.document().points;
        assert_eq!(points.len(), 181);
        assert_eq!(points[180].at_ms - points[0].at_ms, KEPT.as_millis() as u64);
        assert_eq!(points[180].at_ms, all * EVERY.as_millis() as u64);
    }
}
