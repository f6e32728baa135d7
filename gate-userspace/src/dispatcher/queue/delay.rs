//! How long requests of each tier wait, and which have waited too long.
//!
//! Pure: time is an argument.

use gate_common::units::Nanos;

use crate::config;
use crate::policy::Tier;
use crate::policy::codel::{TierCodels, Verdict};
use crate::policy::range::OutOfRange;

/// One thread's queue, as its waits tell of it.
#[derive(Debug, Default)]
pub(crate) struct Delay {
    codels: Option<TierCodels>,
    /// When to come again.
    retry_after: Nanos,
    /// By tier: the longest wait of those that have left since the last tick.
    longest: [Nanos; Tier::ALL.len()],
}

/// One tier's queue as of the last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Requests that wait.
    pub waiting: u64,
    /// The longest that one of them has waited, or one that has left since the tick before.
    pub delay: Nanos,
    /// True while requests are refused because it does not drain.
    pub stands: bool,
}

impl Delay {
    /// The configured one.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for what the configuration should not have let through.
    pub(crate) fn new(codel: Option<config::Codel>) -> Result<Self, OutOfRange> {
        let Some(codel) = codel else { return Ok(Self::default()) };
        let config::Codel { law, targets, interval } = codel;
        let codels = Some(TierCodels::new(law, targets, interval)?);
        Ok(Self { codels, retry_after: interval, ..Self::default() })
    }

    /// When a request that has waited too long had better come again: the queue may stand no more.
    pub(crate) fn retry_after(&self) -> Nanos {
        self.retry_after
    }

    /// A request has left the queue, or passed it by; `behind` more of its tier wait on. Returns whether it is
    /// to be refused.
    #[inline]
    pub(crate) fn left(&mut self, tier: Tier, now: Nanos, waited: Nanos, behind: usize) -> bool {
        self.waited(tier, waited);
        let verdict = self.codels.as_mut().map(|codels| codels.dequeue(tier, now, waited, behind));
        verdict == Some(Verdict::Drop)
    }

    /// A request has waited in a tier's queue, of which that says nothing.
    #[inline]
    pub(crate) fn waited(&mut self, tier: Tier, waited: Nanos) {
        let longest = &mut self.longest[tier.index()];
        *longest = (*longest).max(waited);
    }

    /// True if a request that still waits will be refused whenever it leaves the queue.
    pub(crate) fn has_expired(&self, tier: Tier, waited: Nanos) -> bool {
        self.codels.as_ref().is_some_and(|codels| codels.has_given_up(tier, waited))
    }

    /// A tier's queue, in which `waiting` are, the first of them for so long; the next reading begins anew.
    ///
    /// `CoDel` decides as requests leave, so a queue that nothing enters any more never shows it that it has drained:
    /// one that is empty, and that nothing which had waited has left since the last reading, does not stand.
    pub(crate) fn read(&mut self, tier: Tier, waiting: usize, first: Nanos) -> QueueState {
        let longest = std::mem::take(&mut self.longest[tier.index()]);
        let is_in_use = waiting > 0 || longest > Nanos::ZERO;
        let stands = is_in_use && self.codels.as_ref().is_some_and(|codels| codels.is_dropping(tier));
        QueueState { waiting: waiting as u64, delay: longest.max(first), stands }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tier_queue::{Queue, QueueKey};
    use super::*;
    use crate::policy::codel::Law;

    const TARGET: Nanos = Nanos::from_millis(10);
    const INTERVAL: Nanos = Nanos::from_millis(100);

    fn delay() -> Delay {
        let targets = [TARGET; 4];
        let codels = Some(TierCodels::new(Law::Overload, targets, INTERVAL).unwrap());
        Delay { codels, retry_after: INTERVAL, ..Delay::default() }
    }

    /// A store with one place that takes a millisecond, and so many requests of each tier every ten. Returns how
    /// many of each were served and refused in the last of ten seconds.
    fn offered(every_ten_ms: [u64; 4]) -> [(u64, u64); 4] {
        let mut queue = Queue::of_one_thread(1, 100_000, 0);
        let mut delay = delay();
        let mut outcome = [(0, 0); 4];
        let mut busy = false;
        for ms in 0..10_000 {
            let now = Nanos::from_millis(ms);
            // What it has begun is done by the next millisecond.
            if std::mem::take(&mut busy) {
                queue.leave();
            }
            if ms == 9_000 {
                outcome = [(0, 0); 4];
            }
            for tier in Tier::ALL.into_iter().filter(|_| ms % 10 == 0) {
                (0..every_ten_ms[tier.index()]).for_each(|_| {
                    queue.push(QueueKey { rank: tier.into(), tenant: 1, is_slow: false }, 1, (), b"", now)
                });
            }
            while let Some((tier, queued, behind)) = queue.pop(|()| true) {
                let outcome = &mut outcome[tier.index()];
                if delay.left(tier, now, now.saturating_sub(queued.since), behind) {
                    outcome.1 += 1;
                    queue.leave();
                } else {
                    outcome.0 += 1;
                    busy = true;
                }
            }
        }
        outcome
    }

    #[test]
    fn a_queue_that_drains_refuses_no_one() {
        assert_eq!(offered([2, 2, 2, 2]), [(200, 0); 4]);
    }

    #[test]
    fn the_lowest_tier_waits_too_long_and_the_critical_goes_on() {
        assert_eq!(offered([4, 2, 2, 12]), [(400, 0), (200, 0), (200, 0), (200, 1_000)]);
    }

    #[test]
    fn a_reading_shows_the_longest_wait_since_the_last_one() {
        let mut delay = delay();
        let ms = Nanos::from_millis;
        for waited in [3, 7, 5] {
            assert!(!delay.left(Tier::Batch, ms(1_000), ms(waited), 1));
        }
        let state = |waiting, delay| QueueState { waiting, delay, stands: false };
        assert_eq!(delay.read(Tier::Batch, 2, ms(6)), state(2, ms(7)));
        assert_eq!(delay.read(Tier::Batch, 2, ms(6)), state(2, ms(6)));
        assert_eq!(delay.read(Tier::Standard, 0, Nanos::ZERO), state(0, Nanos::ZERO));
    }

    #[test]
    fn a_queue_that_nothing_enters_any_more_does_not_stand() {
        let ms = Nanos::from_millis;
        for law in Law::ALL {
            let codels = Some(TierCodels::new(law, [TARGET; 4], INTERVAL).unwrap());
            let mut delay = Delay { codels, retry_after: INTERVAL, ..Delay::default() };
            for at in 0..500 {
                delay.left(Tier::BestEffort, ms(at), ms(50), 9);
            }
            assert!(delay.read(Tier::BestEffort, 9, ms(50)).stands, "{law:?}");
            assert!(delay.read(Tier::BestEffort, 9, ms(50)).stands, "{law:?}: they wait on");
            delay.left(Tier::BestEffort, ms(500), ms(50), 1);
            assert!(delay.read(Tier::BestEffort, 0, Nanos::ZERO).stands, "{law:?}: the last has just left");
            assert!(!delay.read(Tier::BestEffort, 0, Nanos::ZERO).stands, "{law:?}: nobody comes");
        }
    }

    #[test]
    fn what_waits_longer_than_target_and_interval_is_given_up() {
        let delay = delay();
        assert!(!delay.has_expired(Tier::Standard, Nanos::from_millis(110)));
        assert!(delay.has_expired(Tier::Standard, Nanos::from_millis(111)));
        assert!(!Delay::default().has_expired(Tier::Standard, Nanos::MAX));
    }
}
