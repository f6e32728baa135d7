//! The store's items by key, in bounded memory.

use gate_common::units::Nanos;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;

/// A value and what belongs to it.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) flags: u32,
    pub(super) value: Vec<u8>,
    /// Changes with every write.
    pub(super) version: u64,
    /// From then on it is gone.
    pub(super) expires: Nanos,
}

/// Items by key; the least useful go when memory is short.
pub(super) struct Items {
    pending: Cache<Vec<u8>, Item, ByBytes>,
    last_version: u64,
    /// How many keys were read.
    reads: u64,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Vec<u8>, Item> for ByBytes {
    fn weight(&self, key: &Vec<u8>, item: &Item) -> u64 {
        (OVERHEAD_BYTES + key.len() + item.value.len()) as u64
    }
}

/// The memory of an item beside its key and value, roughly.
const OVERHEAD_BYTES: usize = 128;

impl Items {
    /// Holds at most `bytes`.
    pub(super) fn new(bytes: u64) -> Self {
        let estimate = usize::try_from(bytes).unwrap_or(usize::MAX) / (2 * OVERHEAD_BYTES);
        Self {
            pending: Cache::with_weighter(estimate.min(1 << 20), bytes, ByBytes),
            last_version: 0,
            reads: 0,
        }
    }

    /// As [`Items::get`], for a client that reads the value: it is counted.
    pub(super) fn read(&mut self, key: &[u8], now: Nanos) -> Option<&Item> {
        self.reads += 1;
        self.get(key, now)
    }

    pub(super) fn get(&mut self, key: &[u8], now: Nanos) -> Option<&Item> {
        if self.pending.peek(key).is_some_and(|item| item.expires <= now) {
            self.pending.remove(key);
        }
        self.pending.get(key)
    }

    pub(super) fn put(&mut self, key: &[u8], flags: u32, value: Vec<u8>, expires: Nanos) {
        self.last_version += 1;
        let item = Item { flags, value, version: self.last_version, expires };
        self.pending.insert(key.to_vec(), item);
    }

    pub(super) fn remove(&mut self, key: &[u8], now: Nanos) -> bool {
        self.get(key, now).is_some() && self.pending.remove(key).is_some()
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    /// How many keys were read since the start, found or not.
    pub(super) fn reads(&self) -> u64 {
        self.reads
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.pending.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_expires_and_memory_is_bounded() {
        let mut items = Items::new(100_000);
        items.put(b"a", 0, b"1".to_vec(), Nanos(10));
        assert!(items.get(b"a", Nanos(9)).is_some());
        assert!(items.get(b"a", Nanos(10)).is_none());
        for i in 0..10_000_u32 {
            items.put(&i.to_le_bytes(), 0, vec![0; 100], Nanos::MAX);
        }
        assert!(
            items.bytes() <= 100_000 && items.len() > 100,
            "{} items, {} bytes",
            items.len(),
            items.bytes()
        );
        items.clear();
        assert_eq!(items.len(), 0);
    }
}
