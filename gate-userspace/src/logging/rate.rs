//! The lines that a place in the code may log: a bucket of lines for each, and one for all dependencies together.
//!
//! A condition that lasts is logged once a minute by whoever logs it. This is the bound where that was forgotten, or where
//! a peer has found a line that a dependency logs. It is for lines up to `info`: `debug` and `trace` are asked for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gate_common::units::Nanos;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::queue::{Lost, Queue};
use crate::clock;

/// Drops and counts the lines beyond the rate. A layer below those that write.
#[derive(Debug)]
pub(super) struct RateLimit {
    buckets: Mutex<HashMap<Place, Bucket>>,
    queue: &'static Queue,
}

/// The places in the code that share a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Own(Identifier),
    Dependencies,
}

/// The lines that may be logged now, as of a moment.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    lines: u64,
    /// When the last line was added.
    filled: Nanos,
}

/// A rate of lines.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Lines at once.
    burst: u64,
    /// The time in which one more line is allowed.
    interval: Nanos,
}

impl RateLimit {
    pub(super) fn new(queue: &'static Queue) -> Self {
        Self { buckets: Mutex::default(), queue }
    }

    fn allows(&self, metadata: &Metadata<'_>, now: Nanos) -> bool {
        if *metadata.level() > Level::INFO {
            return true;
        }
        let (place, rate) = match metadata.target().starts_with(OWN) {
            true => (Place::Own(metadata.callsite()), OWN_RATE),
            false => (Place::Dependencies, DEPENDENCIES_RATE),
        };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.entry(place).or_insert(Bucket { lines: rate.burst, filled: now }).take(rate, now)
    }
}

impl<S: Subscriber> Layer<S> for RateLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let allows = self.allows(event.metadata(), clock::monotonic());
        if !allows {
            self.queue.lose(Lost::RateLimited);
        }
        allows
    }
}

impl Bucket {
    fn take(&mut self, rate: Rate, now: Nanos) -> bool {
        let added = now.saturating_sub(self.filled).0 / rate.interval.0;
        self.lines = self.lines.saturating_add(added).min(rate.burst);
        self.filled = Nanos(self.filled.0 + added * rate.interval.0);
        let allows = self.lines > 0;
        self.lines = self.lines.saturating_sub(1);
        allows
    }
}

/// True if a line about what lasts is due, which is logged once a minute; `last` holds when it was.
pub fn once_a_minute(last: &AtomicU64, now: Nanos) -> bool {
    let before = last.load(Ordering::Relaxed);
    let is_due = before == 0 || now.saturating_sub(Nanos(before)) >= MINUTE;
    is_due && last.compare_exchange(before, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

const MINUTE: Nanos = Nanos::from_secs(60);
/// The beginning of gate's own targets: its crates' names.
const OWN: &str = "gate";
/// Above the warnings of a large configuration, one place's, and above a fleet that connects at once.
const OWN_RATE: Rate = Rate { burst: 500, interval: Nanos::from_secs(1) };
const DEPENDENCIES_RATE: Rate = Rate { burst: 5, interval: Nanos::from_secs(60) };

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Counts the events that come through.
    struct Counted(std::sync::Arc<Mutex<HashMap<String, u64>>>);

    impl<S: Subscriber> Layer<S> for Counted {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            *self.0.lock().unwrap().entry(event.metadata().target().to_owned()).or_default() += 1;
        }
    }

    #[test]
    fn dependencies_and_each_place_of_gates_own_are_bounded() {
        let queue: &'static Queue = Box::leak(Box::default());
        let counts = std::sync::Arc::default();
        let subscriber = tracing_subscriber::registry()
            .with(RateLimit::new(queue))
            .with(Counted(std::sync::Arc::clone(&counts)));
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..2_000 {
                tracing::error!(target: "h2::proto", "one");
                tracing::error!(target: "hyper", "another");
                tracing::warn!(target: "gate_userspace::one", "one");
                tracing::debug!(target: "gate_userspace::asked_for", "as it comes");
            }
            tracing::warn!(target: "gate_userspace::two", "another place");
        });
        let counts = counts.lock().unwrap();
        let of = |target: &str| counts.get(target).copied().unwrap_or(0);
        assert_eq!(of("h2::proto") + of("hyper"), DEPENDENCIES_RATE.burst);
        assert!((OWN_RATE.burst..OWN_RATE.burst + 60).contains(&of("gate_userspace::one")), "{counts:?}");
        assert_eq!((of("gate_userspace::two"), of("gate_userspace::asked_for")), (1, 2_000));
        assert_eq!(queue.lost().total(), 8_001 - counts.values().sum::<u64>());
    }

    #[test]
    fn a_bucket_fills_up_to_its_burst() {
        let rate = Rate { burst: 2, interval: Nanos::from_secs(10) };
        let at = |secs| Nanos::from_secs(secs);
        let mut bucket = Bucket { lines: 2, filled: at(100) };
        for (now, expected) in
            [(100, true), (101, true), (109, false), (110, true), (119, false), (120, true), (90, false)]
        {
            assert_eq!(bucket.take(rate, at(now)), expected, "{now}");
        }
        // A day later there are two, and not more.
        assert_eq!([0; 3].map(|_| bucket.take(rate, at(90_000))), [true, true, false]);
    }
}
