//! Hot keys: those that the daemon publishes for whoever reads the maps, and the layout that is kept
//! free for hot values in the kernel.

use core::mem::size_of;

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
    /// One if it is hot, by the configured threshold.
    pub hot: u16,
    /// The key.
    pub key: [u8; 256],
}

const _: () = assert!(size_of::<TopKey>() == 288);

impl TopKey {
    /// How many are published.
    pub const COUNT: usize = 64;
}

/// A hot key in the kernel, by hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct HotKey {
    /// [`super::Service::id`].
    pub service: u32,
    /// Length of the key in bytes.
    pub key_len: u32,
    /// 128 bits of a keyed hash of the key.
    pub hash: [u64; 2],
}

const _: () = assert!(size_of::<HotKey>() == 24);

/// A hot value, valid if both versions are the same before and after it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct HotValue {
    /// Raised before a change.
    pub version_before: u64,
    /// Until when it may be served, on gate's clock.
    pub expires_ns: u64,
    /// memcached's flags of the item.
    pub flags: u32,
    /// Bytes of `value` that count.
    pub value_len: u32,
    /// The value.
    pub value: [u8; 160],
    /// Raised after a change.
    pub version_after: u64,
}

const _: () = assert!(size_of::<HotValue>() == 192);
