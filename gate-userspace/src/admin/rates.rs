//! Rates by tenant: the counters of now against those of a reading before.
//!
//! Readings are taken when rates are asked for and at no other time, so that nothing is read while nobody looks. Whoever asks
//! shares them with others who do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kernel::Activity;

/// The rates of a tenant a second, since a reading some seconds ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// Requests that pass.
    pub passed: f64,
    /// TCP segments with payload that pass.
    pub segments: f64,
    /// Request units that are charged.
    pub charged_ru: f64,
    /// Requests that are refused.
    pub refused: f64,
}

/// The rates of `secs` from `before` to `now`; nothing if a counter fell, as when its number is another tenant's now.
pub(super) fn rates(now: &Activity, before: &Activity, secs: f64) -> Option<Rates> {
    let rate = |now: u64, before: u64| Some(now.checked_sub(before)? as f64 / secs);
    Some(Rates {
        passed: rate(now.passed, before.passed)?,
        segments: rate(now.segments, before.segments)?,
        charged_ru: rate(now.charged_mru, before.charged_mru)? / 1e3,
        refused: rate(now.refused, before.refused)?,
    })
}

/// The counters of all tenants at one time.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) at: Nanos,
    /// By number of tenant, from 1 on.
    pub(super) counts: Vec<Activity>,
}

/// The last readings, the oldest first.
#[derive(Debug, Default)]
pub struct Readings(Mutex<VecDeque<Arc<Reading>>>);

impl Readings {
    /// The reading to compare `now` with: the newest one that is old enough to say something, or else the oldest.
    pub(super) fn before(&self, now: Nanos) -> Option<Arc<Reading>> {
        let readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |reading: &&Arc<Reading>| now.saturating_sub(reading.at);
        let found =
            readings.iter().rev().find(|reading| age(reading) >= LEAST_AGE).or_else(|| readings.front());
        found.filter(|reading| (Nanos(1)..=MOST_AGE).contains(&age(reading))).cloned()
    }

    /// Keeps a reading, unless another is as good as new.
    pub(super) fn keep(&self, reading: Reading) {
        let mut readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if readings.back().is_none_or(|last| reading.at.saturating_sub(last.at) >= LEAST_AGE) {
            readings.push_back(Arc::new(reading));
            if readings.len() > KEPT {
                readings.pop_front();
            }
        }
    }
}

/// Rates of less time leap.
const LEAST_AGE: Nanos = Nanos::from_millis(150);
/// Rates of more time say nothing of now: somebody who asks once a minute still gets some.
const MOST_AGE: Nanos = Nanos::from_secs(90);
/// One to compare with, and one that is too new for that.
const KEPT: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Reading {
        Reading { at: Nanos::from_millis(ms), counts: Vec::new() }
    }

    #[test]
    fn the_newest_reading_that_is_old_enough_is_compared_with() {
        let readings = Readings::default();
        let before = |ms| readings.before(Nanos::from_millis(ms)).map(|reading| reading.at.0 / 1_000_000);
        assert_eq!(before(0), None);
        readings.keep(at(1_000));
        assert_eq!(before(1_000), None, "no time between them");
        assert_eq!(before(1_010), Some(1_000), "there is no older one");
        readings.keep(at(1_010));
        readings.keep(at(2_000));
        assert_eq!(before(2_010), Some(1_000), "the one at 2,000 ms is too new");
        assert_eq!(before(2_150), Some(2_000));
        readings.keep(at(3_000));
        assert_eq!(before(3_010), Some(2_000));
        assert_eq!(before(93_000), Some(3_000));
        assert_eq!(before(93_001), None, "of long ago");
    }

    #[test]
    fn rates_are_of_the_seconds_between_two_readings() {
        let before = Activity { passed: 10, segments: 1, charged_mru: 1_000, refused: 5 };
        let now = Activity { passed: 30, segments: 1, charged_mru: 5_000, refused: 6 };
        let expected = Rates { passed: 10.0, segments: 0.0, charged_ru: 2.0, refused: 0.5 };
        assert_eq!(rates(&now, &before, 2.0), Some(expected));
        assert_eq!(rates(&before, &now, 2.0), None, "a counter does not fall");
    }
}
