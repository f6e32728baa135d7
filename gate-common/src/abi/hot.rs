//! Hot keys: those that the daemon publishes for whoever reads the maps, and those that XDP limits.

use core::mem::size_of;

use super::Block;
use crate::token_bucket::Rate;

/// One of the most asked keys. The entries are in falling order of `estimate`; a zero `estimate` ends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TopKey {
    /// Raised before and after each change: odd while the entry is written.
    pub version: u64,
    /// Requests that asked for it, at most; older ones count less.
    pub estimate: u64,
    /// By how much `estimate` may be too high.
    pub error: u64,
    /// [`super::Service::id`].
    pub service: u32,
    /// Bytes of `key` that count.
    pub key_len: u16,
    /// One if it is hot, by the configured threshold; [`TopKey::LIMITED`] if it has one of the [`KeyBuckets`] as well.
    pub hot: u16,
    /// The key.
    pub key: [u8; 256],
}

const _: () = assert!(size_of::<TopKey>() == 288);

impl TopKey {
    /// How many are published.
    pub const COUNT: usize = 64;
    /// The value of [`TopKey::hot`] for a key that XDP limits.
    pub const LIMITED: u16 = 2;
}

/// The buckets of hot keys of services with [`super::service_flags::LIMITS_KEYS`], in block [`KeyBuckets::BLOCK`] of
/// [`super::maps::TABLES`], which is part of no table.
///
/// A key's bucket is in the set of its [hash](KeyBuckets::start), in any place there. The daemon changes a place only while its
/// hash is zero: it writes the limits, then the hash. XDP alone changes a `tat`, by compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct KeyBuckets {
    /// By place: the hash of the key that has the bucket. Zero: none.
    pub hashes: [u64; KeyBuckets::COUNT],
    /// The `tat` of its [token bucket](crate::token_bucket), in thousandths of a request.
    pub tats: [u64; KeyBuckets::COUNT],
    /// Its [`Limits::rate`](crate::token_bucket::Limits::rate).
    pub rates: [Rate; KeyBuckets::COUNT],
    /// Its [`Limits::burst_ns`](crate::token_bucket::Limits::burst_ns). It may not go into debt.
    pub bursts_ns: [u64; KeyBuckets::COUNT],
}

const _: () = assert!(size_of::<KeyBuckets>() == size_of::<Block>());

impl KeyBuckets {
    /// The block that holds them.
    pub const BLOCK: u32 = 0;
    /// How many there are.
    pub const COUNT: usize = 32;
    /// Places in a set: their hashes share a cache line.
    pub const WAYS: usize = 8;
    /// The price of a request.
    pub const COST: u32 = 1_000;

    /// The hash of no bytes of a key of a service ([`super::Service::id`]); the words of the key follow.
    #[must_use]
    #[inline(always)]
    pub const fn start(service: u32) -> u64 {
        Self::mix(MULTIPLIER, service as u64)
    }

    /// The hash after the next eight bytes of the key in memory order; zeros follow the last one. Collisions are rare by
    /// accident. Whoever makes one can only spend the bucket of a key that it might as well ask for.
    #[must_use]
    #[inline(always)]
    pub const fn mix(hash: u64, word: u64) -> u64 {
        let mixed = (hash ^ word).wrapping_mul(MULTIPLIER);
        mixed ^ (mixed >> 29)
    }

    /// The hash as an entry of [`KeyBuckets::hashes`], after all words.
    #[must_use]
    #[inline(always)]
    pub const fn finish(hash: u64) -> u64 {
        if hash == 0 { 1 } else { hash }
    }

    /// The first place of a hash's set.
    #[must_use]
    #[inline(always)]
    pub const fn first_place(hash: u64) -> usize {
        (hash >> 56) as usize & (Self::COUNT - Self::WAYS)
    }

    /// The hash of a whole key.
    #[must_use]
    pub fn hash(service: u32, key: &[u8]) -> u64 {
        let mut hash = Self::start(service);
        for chunk in key.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = Self::mix(hash, u64::from_le_bytes(word));
        }
        Self::finish(hash)
    }
}

/// An odd number from the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn keys_and_services_have_hashes_of_their_own_in_all_sets() {
        let mut hashes = std::collections::HashSet::new();
        let mut sets = [0; KeyBuckets::COUNT / KeyBuckets::WAYS];
        for service in 0..8 {
            for number in 0..1_000 {
                let hash = KeyBuckets::hash(service, std::format!("key:{number}").as_bytes());
                assert!(hashes.insert(hash), "{service} {number}");
                sets[KeyBuckets::first_place(hash) / KeyBuckets::WAYS] += 1;
            }
        }
        assert!(sets.iter().all(|&keys| (1_800..2_200).contains(&keys)), "{sets:?}");
        assert_ne!(KeyBuckets::hash(0, b"12345678"), KeyBuckets::hash(0, b"1234567"));
    }
}
