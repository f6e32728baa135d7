//! What the threads of one proxied service have learned, taken once a tick.

use gate_common::units::Nanos;

use crate::dispatcher::{Reading, ServiceFigures};
use crate::policy::pricing::{AFTERMATH, ByClass, Lesson};

/// Takes it, and remembers what there was a while ago.
#[derive(Debug)]
pub(super) struct Lessons {
    figures: ServiceFigures,
    /// How long requests had taken at the last two looks, the older first.
    looks: [ByClass<Reading>; 2],
    looked: Nanos,
}

impl Lessons {
    /// From now on.
    pub(super) fn new(figures: ServiceFigures, now: Nanos) -> Self {
        let reading = figures.service_times();
        // What was left there before is of another time.
        figures.take_window();
        Self { looks: [reading.clone(), reading], looked: now, figures }
    }

    /// This tick's.
    pub(super) fn take(&mut self, now: Nanos) -> Lesson {
        let reading = self.figures.service_times();
        let p95 = std::array::from_fn(|class| {
            let recent = reading[class].since(&self.looks[0][class]);
            recent.percentile(95.0).filter(|_| recent.len() >= ENOUGH)
        });
        if now.saturating_sub(self.looked) >= LOOK_EVERY {
            self.looks.swap(0, 1);
            (self.looks[1], self.looked) = (reading, now);
        }
        Lesson { window: self.figures.take_window(), p95 }
    }
}

/// What is recent covers the last one or two of these: long enough for what is rare.
const LOOK_EVERY: Nanos = Nanos::from_secs(5);
/// Fewer requests of a class than this say nothing.
const ENOUGH: u64 = 20;
// Nothing that is recent is of an overload when learning goes on.
const _: () = assert!(2 * LOOK_EVERY.0 <= AFTERMATH.0);
