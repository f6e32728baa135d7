//! The most requested keys, by the samples of XDP and the dispatcher, and which of these are hot.

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
    /// In the order of the configuration.
    services: Vec<(String, Thresholds)>,
    hot: HashSet<(u32, Box<[u8]>)>,
}

impl HotKeys {
    /// Nothing counted yet, of no service; weights decay at every `tick`. The seed keeps clients from choosing
    /// keys that collide.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if the tick is zero or over `HALF_LIFE`.
    pub fn new(tick: Nanos, seed: u64) -> Result<Self, OutOfRange> {
        let counts = SpaceSaving::with_shares(COUNTED, seed)?;
        let decay = Decay::new(HALF_LIFE, tick)?;
        Ok(Self { counts, decay, services: Vec::new(), hot: HashSet::new() })
    }

    /// From now on these are the services, in their order: their names, and how often a second a key must be
    /// asked for to be hot. If there are others than before, counting begins anew.
    ///
    /// # Errors
    ///
    /// None: there are thresholds for every number.
    pub fn follow(&mut self, services: impl IntoIterator<Item = (String, u64)>) -> Result<(), OutOfRange> {
        let with_thresholds = |(name, per_sec)| {
            let hot = self.decay.weight_of(per_sec).max(2);
            Ok((name, Thresholds::new(hot, hot / 2)?))
        };
        let services: Vec<(String, Thresholds)> =
            services.into_iter().map(with_thresholds).collect::<Result<_, _>>()?;
        if !services.iter().map(|(name, _)| name).eq(self.services.iter().map(|(name, _)| name)) {
            self.counts.clear();
            self.hot.clear();
        }
        self.services = services;
        Ok(())
    }

    /// The keys that are hot, each with its service's name.
    pub fn hot(&self) -> impl Iterator<Item = (&str, &[u8])> + Clone {
        self.hot.iter().filter_map(|(service, key)| Some((&*self.services.get(*service as usize)?.0, &**key)))
    }

    /// Counts one sample of a request that was not refused.
    pub fn count(&mut self, sample: &Sample) {
        if let Some(key) = sample.key.get(..usize::from(sample.key_len)) {
            self.counts.update_from(sample.tenant, sample.service, key, u64::from(sample.weight));
        }
    }

    /// Decays what is counted and publishes the top keys.
    pub fn tick(&mut self, maps: &Maps) {
        self.counts.decay(self.decay.keep());
        let top = self.counts.fair_top(MOST_HOT);
        let hot = top.iter().filter(|counted| {
            let was_hot = self.hot.contains(&(counted.scope, counted.key.into()));
            let service = self.services.get(counted.scope as usize);
            match service.and_then(|(_, thresholds)| thresholds.classify(was_hot, Some(counted.weight))) {
                None => was_hot,
                Some(change) => change == Change::BecomesHot,
            }
        });
        self.hot = hot.map(|counted| (counted.scope, counted.key.into())).collect();
        let shown = self.counts.fair_top(TopKey::COUNT);
        for rank in 0..TopKey::COUNT {
            let mut entry = EMPTY;
            if let Some(counted) = shown.get(rank) {
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

/// The published top keys, the most frequent first. Entries that are being written all the time are left out.
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
/// A key without requests leaves in about a minute.
const HALF_LIFE: Nanos = Nanos::from_secs(10);
/// At this rate a key takes a noticeable share of one store connection.
pub const HOT_PER_SEC: u64 = 1_000;
/// Keys that may be hot at once, of all services.
const MOST_HOT: usize = 256;
/// An entry takes well under a microsecond to write, ten times a second.
const ATTEMPTS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Sizes;

    fn scene() -> (HotKeys, Maps) {
        let sizes = Sizes {
            cpus: 1,
            cpu_rows: 1,
            thread_rows: 0,
            tenants: 4,
            services: 4,
            blocks: 16,
            samples: 4_096,
        };
        let (maps, _) = Maps::private(&sizes).unwrap();
        let mut hot_keys = HotKeys::new(Nanos::from_millis(100), 1).unwrap();
        hot_keys.follow([("a".to_owned(), 100), ("b".to_owned(), 1_000_000)]).unwrap();
        (hot_keys, maps)
    }

    fn count(hot_keys: &mut HotKeys, service: u32, key: &[u8], weight: u32) {
        let mut sample =
            Sample { service, tenant: 0, weight, flags: 0, key_len: key.len() as u16, key: [0; 256] };
        sample.key[..key.len()].copy_from_slice(key);
        hot_keys.count(&sample);
    }

    #[test]
    fn services_have_thresholds_and_keys_cool_at_half_of_them() {
        let (mut hot_keys, maps) = scene();
        let hot = hot_keys.decay.weight_of(100) as u32;
        count(&mut hot_keys, 0, b"hot", hot * 11 / 10);
        count(&mut hot_keys, 0, b"warm", hot / 2);
        count(&mut hot_keys, 1, b"hot", hot * 11 / 10);
        count(&mut hot_keys, 7, b"of no service", hot * 100);
        hot_keys.tick(&maps);
        assert_eq!(hot_keys.hot().collect::<Vec<_>>(), [("a", &b"hot"[..])]);
        let flags = || published(&maps).iter().filter(|key| key.hot == 1).count();
        assert_eq!((published(&maps).len(), flags()), (4, 1));
        // Half a half-life: in between.
        (0..50).for_each(|_| hot_keys.tick(&maps));
        assert_eq!((hot_keys.hot().count(), flags()), (1, 1));
        (0..70).for_each(|_| hot_keys.tick(&maps));
        assert_eq!((hot_keys.hot().count(), flags()), (0, 0));
    }

    #[test]
    fn other_services_begin_anew_and_other_thresholds_go_on() {
        let (mut hot_keys, maps) = scene();
        let hot = hot_keys.decay.weight_of(100) as u32;
        count(&mut hot_keys, 0, b"key", hot * 2);
        hot_keys.tick(&maps);
        hot_keys.follow([("a".to_owned(), 1_000), ("b".to_owned(), 1_000)]).unwrap();
        hot_keys.tick(&maps);
        assert_eq!(hot_keys.hot().count(), 0, "less than half of the new one");
        hot_keys.follow([("a".to_owned(), 100), ("b".to_owned(), 100)]).unwrap();
        hot_keys.tick(&maps);
        assert_eq!(hot_keys.hot().collect::<Vec<_>>(), [("a", &b"key"[..])]);
        hot_keys.follow([("b".to_owned(), 100), ("a".to_owned(), 100)]).unwrap();
        hot_keys.tick(&maps);
        assert_eq!(hot_keys.hot().count(), 0);
    }
}
