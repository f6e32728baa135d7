//! Records and bodies in memory, bounded by bytes.

use std::sync::Arc;

use hyper::body::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use super::digest::Digest;
use super::processed::Processed;
use super::record::Record;

/// The part of a cache that is in memory.
#[derive(Debug)]
pub(super) struct Memory {
    records: Cache<Box<[u8]>, Arc<Record>, OfRecords, foldhash::fast::RandomState>,
    bodies: Cache<Digest, Bytes, OfBodies, foldhash::fast::RandomState>,
    processed: Cache<Box<[u8]>, Arc<Processed>, OfProcessed, foldhash::fast::RandomState>,
}

#[derive(Clone, Debug)]
struct OfRecords;

impl Weighter<Box<[u8]>, Arc<Record>> for OfRecords {
    fn weight(&self, key: &Box<[u8]>, record: &Arc<Record>) -> u64 {
        key.len() as u64 + record.weight() + ENTRY
    }
}

#[derive(Clone, Debug)]
struct OfProcessed;

impl Weighter<Box<[u8]>, Arc<Processed>> for OfProcessed {
    fn weight(&self, key: &Box<[u8]>, processed: &Arc<Processed>) -> u64 {
        key.len() as u64 + processed.weight() + ENTRY
    }
}

#[derive(Clone, Debug)]
struct OfBodies;

impl Weighter<Digest, Bytes> for OfBodies {
    fn weight(&self, _: &Digest, body: &Bytes) -> u64 {
        body.len() as u64 + ENTRY
    }
}

impl Memory {
    /// One that takes at most `bytes`, an eighth of them for records and half of that for what was processed, with bodies up to `longest`.
    pub(super) fn new(bytes: u64, longest: u64) -> Self {
        let of_records = bytes / 8;
        let of_processed = bytes / 16;
        let of_bodies = bytes - of_records - of_processed;
        // What is longer than a shard is not kept.
        let shards = (of_bodies / (2 * longest.max(1))).clamp(1, SHARDS);
        let options = |weight: u64, each: u64, shards: u64| {
            let mut options = OptionsBuilder::new();
            let items = usize::try_from(weight / each).unwrap_or(usize::MAX).clamp(16, MOST_ITEMS);
            options.estimated_items_capacity(items).weight_capacity(weight).shards(shards as usize);
            options.build().expect("both capacities are set")
        };
        let random = foldhash::fast::RandomState::default;
        Self {
            records: Cache::with_options(
                options(of_records, 2_048, SHARDS),
                OfRecords,
                random(),
                DefaultLifecycle::default(),
            ),
            processed: Cache::with_options(
                options(of_processed, 1_024, SHARDS),
                OfProcessed,
                random(),
                DefaultLifecycle::default(),
            ),
            bodies: Cache::with_options(
                options(of_bodies, 16_384, shards),
                OfBodies,
                random(),
                DefaultLifecycle::default(),
            ),
        }
    }

    pub(super) fn record(&self, key: &[u8]) -> Option<Arc<Record>> {
        self.records.get(key)
    }

    pub(super) fn body(&self, digest: &Digest) -> Option<Bytes> {
        self.bodies.get(digest)
    }

    pub(super) fn put_record(&self, key: Box<[u8]>, record: Arc<Record>) {
        self.records.insert(key, record);
    }

    pub(super) fn processed(&self, key: &[u8]) -> Option<Arc<Processed>> {
        self.processed.get(key)
    }

    pub(super) fn put_processed(&self, key: Box<[u8]>, processed: Arc<Processed>) {
        self.processed.insert(key, processed);
    }

    pub(super) fn put_body(&self, digest: Digest, body: Bytes) {
        self.bodies.insert(digest, body);
    }

    pub(super) fn remove(&self, key: &[u8]) {
        self.records.remove(key);
        self.processed.remove(key);
    }

    /// Removes all records whose keys begin with this. Looks at every one.
    pub(super) fn remove_all(&self, prefix: &[u8]) {
        self.records.retain(|key, _| !key.starts_with(prefix));
        self.processed.retain(|key, _| !key.starts_with(prefix));
    }

    /// The bytes that are taken.
    pub(super) fn weight(&self) -> u64 {
        self.records.weight() + self.processed.weight() + self.bodies.weight()
    }
}

/// The bytes that an entry takes beside what it holds, about.
const ENTRY: u64 = 128;
const SHARDS: u64 = 16;
const MOST_ITEMS: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_take_no_more_than_there_is_for_them() {
        let memory = Memory::new(1 << 20, 64 << 10);
        for number in 0..200_u32 {
            let body = number.to_be_bytes().repeat(10_000);
            memory.put_body(Digest::of(&body), body.into());
            assert!(memory.weight() <= 1 << 20, "{number}: {}", memory.weight());
        }
        assert!(memory.weight() > 1 << 19, "{}", memory.weight());
    }
}
