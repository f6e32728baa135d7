//! One counted key, and the weight that it is reported with.

use std::cmp::Reverse;

use gate_common::abi::Sample;

/// One counted key. Aligned, so that the counter and a short key share a cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Counter {
    pub(super) count: u64,
    pub(super) error: u64,
    pub(super) hash: u32,
    pub(super) scope: u32,
    /// The tenant that asks most, and its lead over the others.
    pub(super) tenant: u32,
    pub(super) lead: u64,
    pub(super) len: u16,
    pub(super) bytes: [u8; Sample::MAX_KEY],
}

/// A counted key and what it weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The service.
    pub scope: u32,
    /// The tenant that asks for it most.
    pub tenant: u32,
    /// The key.
    pub key: &'a [u8],
    /// How much it weighs.
    pub weight: Estimate,
}

/// A weight and how far it may be above the true one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// At least the true weight.
    pub count: u64,
    /// The true weight is at least `count - error`.
    pub error: u64,
}

impl Estimate {
    /// The key's weight without the possible error.
    #[must_use]
    pub const fn at_least(self) -> u64 {
        self.count.saturating_sub(self.error)
    }
}

impl Counter {
    pub(super) fn key(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(super) fn set_key(&mut self, key: &[u8]) {
        self.len = key.len() as u16;
        self.bytes[..key.len()].copy_from_slice(key);
    }

    #[inline]
    pub(super) fn is(&self, scope: u32, key: &[u8]) -> bool {
        self.scope == scope && self.key() == key
    }

    pub(super) const fn exact(&self) -> (u64, u64) {
        (self.count, self.error)
    }

    /// In whole units, rounded so that the bounds hold.
    pub(super) const fn weight(&self) -> Estimate {
        let at_least = (self.count - self.error) >> POINT;
        let count = self.count.div_ceil(1 << POINT);
        Estimate { count, error: count - at_least }
    }

    /// Sorts the heaviest first, and the same counters in the same order always.
    pub(super) fn rank(&self) -> (Reverse<u64>, u64, u32, &[u8]) {
        (Reverse(self.count), self.error, self.scope, self.key())
    }

    pub(super) fn entry(&self) -> Entry<'_> {
        Entry { scope: self.scope, tenant: self.tenant, key: self.key(), weight: self.weight() }
    }
}

/// Bits after the point of a weight, so that a light key does not lose all of it to rounding at every
/// decay. Leaves 54 bits before the point: a billion a second for half a year.
pub(super) const POINT: u32 = 10;
