//! Which keys are asked for most, by what XDP and the dispatcher sampled, and which of these are hot.

use std::collections::HashSet;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use gate_common::abi::{Sample, TopKey};
use gate_common::units::Nanos;

use crate::kernel::Maps;
use crate::policy::hot_key::{Change, Decay, Thresholds};
use crate::policy::range::OutOfRange;
use crate::policy::space_saving::SpaceSaving;

/// Counts sampled keys, and publishes the top ones for whoever reads the maps.
#[derive(Debug)]
pub struct HotKeys {
    counts: SpaceSaving,
    decay: Decay,
    /// By service.
    thresholds: Vec<Thresholds>,
    hot: HashSet<(u32, Box<[u8]>)>,
}

impl HotKeys {
    /// Nothing counted yet; weights decay at every `tick`. A key of a service is hot that is asked for as often
    /// a second as `hot_per_sec` has in that service's place. The seed keeps clients from choosing keys that
    /// collide.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if the tick is zero or over `HALF_LIFE`.
    pub fn new(
        tick: Nanos,
        hot_per_sec: impl IntoIterator<Item = u64>,
        seed: u64,
    ) -> Result<Self, OutOfRange> {
        let decay = Decay::new(HALF_LIFE, tick)?;
        let thresholds = hot_per_sec.into_iter().map(|per_sec| {
            let hot = decay.weight_of(per_sec).max(2);
            Thresholds::new(hot, hot / 2)
        });
        let (thresholds, hot) = (thresholds.collect::<Result<_, _>>()?, HashSet::new());
        Ok(Self { counts: SpaceSaving::new(COUNTED, seed)?, decay, thresholds, hot })
    }

    /// The keys that are hot, each with its service.
    pub fn hot(&self) -> impl Iterator<Item = (usize, &[u8])> + Clone {
        self.hot.iter().map(|(service, key)| (*service as usize, &**key))
    }

    /// Counts one sample.
    pub fn count(&mut self, sample: &Sample) {
        if let Some(key) = sample.key.get(..usize::from(sample.key_len)) {
            self.counts.update(sample.service, key, u64::from(sample.weight));
        }
    }

    /// Decays what is counted and publishes the top keys.
    pub fn tick(&mut self, maps: &Maps) {
        self.counts.decay(self.decay.keep());
        let top = self.counts.top(MOST_HOT);
        let hot = top.iter().filter(|counted| {
            let was_hot = self.hot.contains(&(counted.scope, counted.key.into()));
            let thresholds = self.thresholds.get(counted.scope as usize);
            match thresholds.and_then(|thresholds| thresholds.judge(was_hot, Some(counted.weight))) {
                None => was_hot,
                Some(change) => change == Change::BecomesHot,
            }
        });
        self.hot = hot.map(|counted| (counted.scope, counted.key.into())).collect();
        for rank in 0..TopKey::COUNT {
            let mut entry = EMPTY;
            if let Some(counted) = top.get(rank) {
                let length = counted.key.len().min(entry.key.len());
                entry.key[..length].copy_from_slice(&counted.key[..length]);
                entry.key_len = length as u16;
                entry.service = counted.scope;
                entry.estimate = counted.weight.count;
                entry.error = counted.weight.error;
                entry.hot = u16::from(self.hot.contains(&(counted.scope, counted.key.into())));
            }
            publish(maps, rank, entry);
        }
    }
}

/// Writes an entry between two raises of its version.
fn publish(maps: &Maps, rank: usize, entry: TopKey) {
    let version = maps.top_keys.word(rank, offset_of!(TopKey, version));
    let odd = version.load(Ordering::Relaxed) | 1;
    version.store(odd, Ordering::Relaxed);
    std::sync::atomic::fence(Ordering::Release);
    maps.top_keys.store(rank, &TopKey { version: odd, ..entry });
    version.store(odd.wrapping_add(1), Ordering::Release);
}

/// The published top keys, the most asked first. Entries that are being written all the time are left out.
#[must_use]
pub fn published(maps: &Maps) -> Vec<TopKey> {
    (0..maps.top_keys.len())
        .filter_map(|rank| consistent(maps, rank))
        .filter(|key| key.estimate > 0)
        .collect()
}

fn consistent(maps: &Maps, rank: usize) -> Option<TopKey> {
    let version = maps.top_keys.word(rank, offset_of!(TopKey, version));
    (0..ATTEMPTS).find_map(|_| {
        let before = version.load(Ordering::Acquire);
        let entry = maps.top_keys.load(rank);
        std::sync::atomic::fence(Ordering::Acquire);
        (before.is_multiple_of(2) && version.load(Ordering::Relaxed) == before).then_some(entry)
    })
}

const EMPTY: TopKey =
    TopKey { version: 0, estimate: 0, error: 0, service: 0, key_len: 0, hot: 0, key: [0; 256] };
/// Counters: with the published 64 keys in mind, plenty.
const COUNTED: usize = 4_096;
/// A key that nobody asks for any more leaves in about a minute.
const HALF_LIFE: Nanos = Nanos::from_secs(10);
/// Asked for so often a second, for certain, that one store connection notices.
pub const HOT_PER_SEC: u64 = 1_000;
/// Keys that may be hot at once, of all services.
const MOST_HOT: usize = 256;
/// An entry takes well under a microsecond to write, ten times a second.
const ATTEMPTS: usize = 100;
