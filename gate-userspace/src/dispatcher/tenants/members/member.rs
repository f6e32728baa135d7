//! One member of a tenant.

use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::units::Nanos;

/// One member. It is kept at least as long as something refers to it.
#[derive(Debug)]
pub(crate) struct Member {
    /// Its bucket's word.
    tat: AtomicU64,
    /// Distinct among all members of this process.
    number: u64,
    key: Box<[u8]>,
}

impl Member {
    /// Its bucket's word.
    #[inline]
    pub(crate) fn word(&self) -> &AtomicU64 {
        &self.tat
    }

    /// Its number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The bytes that name it.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// One with a full bucket, which no look-up finds.
    pub(crate) fn new(key: &[u8]) -> Self {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { tat: AtomicU64::new(0), number, key: key.into() }
    }

    /// True if its bucket is full.
    pub(super) fn is_full(&self, now: Nanos) -> bool {
        self.tat.load(Ordering::Relaxed) <= now.0
    }
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);
