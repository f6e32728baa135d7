//! The hot keys: samples go to the thread that counts them, and its findings come back to every thread.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use gate_common::abi::{Sample, SampleHead};
use tokio::sync::watch;

use super::versions::{KeyHash, Versions};
use crate::dispatcher::metrics::verdicts::Countdown;

/// The hot keys of a service. One that has the hash of a hot key is taken for hot: that harms nobody.
pub(crate) type HotSet = HashSet<KeyHash, foldhash::fast::RandomState>;

/// Where a service's hot keys are announced.
#[derive(Debug)]
pub(crate) struct HotSetPublisher {
    versions: Arc<Versions>,
    hot: watch::Sender<Arc<HotSet>>,
}

impl HotSetPublisher {
    pub(crate) fn new(versions: Arc<Versions>) -> Self {
        Self { versions, hot: watch::Sender::default() }
    }

    /// Tells all threads, if it is news.
    pub(crate) fn publish<'k>(&self, hot: impl Iterator<Item = &'k [u8]>) {
        let hot: HotSet = hot.map(|key| self.versions.hash(key)).collect();
        self.hot.send_if_modified(|known| {
            let pending_writes = **known != hot;
            if pending_writes {
                *known = Arc::new(hot);
            }
            pending_writes
        });
    }

    pub(crate) fn listen(&self) -> watch::Receiver<Arc<HotSet>> {
        self.hot.subscribe()
    }
}

/// A way for samples, on which they are rather lost than waited for.
pub(crate) fn samples() -> (SyncSender<Sample>, Receiver<Sample>) {
    sync_channel(MOST_SAMPLES)
}

/// One thread's share of the samples of one service.
#[derive(Debug)]
pub(crate) struct Sampler {
    to: SyncSender<Sample>,
    countdown: Countdown,
}

impl Sampler {
    pub(crate) fn new(to: SyncSender<Sample>) -> Self {
        Self { to, countdown: Countdown::default() }
    }

    /// True if the next request is a sample, one in `every` on average; `draw` is from `[0, 1)`. At equal distances, of
    /// keys that are read in turn only some would ever be seen.
    #[inline]
    pub(crate) fn is_due(&self, every: u32, draw: impl FnOnce() -> f64) -> bool {
        self.countdown.is_due(|| (every, draw()))
    }

    /// Sends a sample of a key. One that is longer than those that are counted is not: cut off, it would be
    /// taken for another.
    pub(crate) fn send(&self, service: u32, tenant: u32, weight: u32, key: &[u8]) {
        let head = SampleHead { service, tenant, weight, key_len: key.len() as u16, ..SampleHead::default() };
        let mut sample = Sample { head, key: [0; Sample::MAX_KEY] };
        let Some(room) = sample.key.get_mut(..key.len()) else { return };
        room.copy_from_slice(key);
        // Full: one sample of many.
        let _ = self.to.try_send(sample);
    }
}

/// The samples between two ticks, one of 64 of more requests than there ever are: 2 MiB.
const MOST_SAMPLES: usize = 8_192;

#[cfg(test)]
mod tests {
    use gate_common::abi::draw;

    use super::*;

    #[test]
    fn keys_that_are_asked_for_in_turn_are_all_sampled_as_often() {
        let mut random = 7;
        for every in [1, 2, 64] {
            let sampler = Sampler::new(samples().0);
            let mut seen = [0_u32; 4];
            for request in 0..4_000 * every as usize {
                let mut next = || {
                    random = draw::next(random);
                    (random >> 11) as f64 / (1_u64 << 53) as f64
                };
                seen[request % 4] += u32::from(sampler.is_due(every, &mut next));
            }
            assert!(seen.iter().all(|seen| (900..1_100).contains(seen)), "{every}: {seen:?}");
        }
        let never = Sampler::new(samples().0);
        assert!((0..99).all(|_| !never.is_due(0, || 0.5)));
    }
}
