//! The most requested keys, by the samples of XDP and the dispatcher, and which of these are hot.

use std::collections::HashSet;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use gate_common::abi::{KeyBuckets, Sample, SampleHead, TopKey};
use gate_common::token_bucket::Limits;
use gate_common::units::Nanos;

use super::key_limits;
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
    /// In the same order: the limit of each hot key at the interface.
    limits: Vec<Option<Limits>>,
    /// True if buckets at the interface may be of services that had other numbers.
    renumbered: bool,
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
        let services = Vec::new();
        let hot = HashSet::new();
        let limits = Vec::new();
        Ok(Self { counts, decay, services, hot, limits, renumbered: false })
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
            self.renumbered = true;
        }
        self.services = services;
        Ok(())
    }

    /// From now on each hot key of these services, in their order, has a bucket with these limits at the interface, if the
    /// service has limits.
    pub fn limit(&mut self, limits: impl IntoIterator<Item = Option<Limits>>) {
        self.limits = limits.into_iter().collect();
    }

    /// The keys that are hot, each with its service's name.
    pub fn hot(&self) -> impl Iterator<Item = (&str, &[u8])> + Clone {
        self.hot.iter().filter_map(|(service, key)| Some((&*self.services.get(*service as usize)?.0, &**key)))
    }

    /// Counts one sample of a request that was not refused.
    pub fn count(&mut self, sample: &Sample) {
        let SampleHead { service, tenant, weight, key_len, .. } = sample.head;
        if let Some(key) = sample.key.get(..usize::from(key_len)) {
            self.counts.update_from(tenant, service, key, u64::from(weight));
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
        let hot: Vec<(u32, Box<[u8]>)> = hot.map(|counted| (counted.scope, counted.key.into())).collect();
        let limited = self.assign_buckets(maps, &hot);
        self.hot = hot.into_iter().collect();
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
                if limited.contains(&KeyBuckets::hash(counted.scope, counted.key)) {
                    entry.hot = TopKey::LIMITED;
                }
            }
            publish(maps, rank, entry);
        }
    }

    /// Gives the hottest keys of services with limits buckets at the interface. Returns the hashes of those that have one.
    fn assign_buckets(&mut self, maps: &Maps, hot: &[(u32, Box<[u8]>)]) -> HashSet<u64> {
        let limits = |service: u32| self.limits.get(service as usize).copied().flatten();
        let wanted: Vec<_> = hot
            .iter()
            .filter_map(|(service, key)| Some((KeyBuckets::hash(*service, key), limits(*service)?)))
            .collect();
        key_limits::assign(maps, &wanted, std::mem::take(&mut self.renumbered))
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
/// A key with a limit is hot at one in so many requests of the limit: early, since none is refused before the limit is reached.
pub const LIMIT_PER_HOT: u64 = 4;
/// At this rate a key takes a noticeable share of one store connection.
pub const HOT_PER_SEC: u64 = 1_000;
/// Keys that may be hot at once, of all services.
const MOST_HOT: usize = 256;
/// An entry takes well under a microsecond to write, ten times a second.
const ATTEMPTS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> (HotKeys, Maps) {
        let maps = Maps::small();
        let mut hot_keys = HotKeys::new(Nanos::from_millis(100), 1).unwrap();
        hot_keys.follow([("a".to_owned(), 100), ("b".to_owned(), 1_000_000)]).unwrap();
        (hot_keys, maps)
    }

    fn count(hot_keys: &mut HotKeys, service: u32, key: &[u8], weight: u32) {
        let head = SampleHead { service, weight, key_len: key.len() as u16, ..SampleHead::default() };
        let mut sample = Sample { head, key: [0; 256] };
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
