//! Hot keys: those that the daemon publishes for whoever reads the maps.

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
