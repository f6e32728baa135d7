//! A sampled key.

use core::mem::size_of;

/// One key of one request in [`super::View::sample_every`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sample {
    /// [`super::Service::id`].
    pub service: u32,
    /// The tenant's index.
    pub tenant: u32,
    /// How many requests it stands for.
    pub weight: u32,
    /// See [`sample_flags`].
    pub flags: u16,
    /// Bytes of `key` that count.
    pub key_len: u16,
    /// The key; what follows `key_len` bytes is undefined.
    pub key: [u8; Sample::MAX_KEY],
}

const _: () = assert!(size_of::<Sample>() == 272);

impl Sample {
    /// The longest key that is sampled, in bytes; memcached's own limit is 250.
    pub const MAX_KEY: usize = 256;
}

/// Bits of [`Sample::flags`].
pub mod sample_flags {
    /// The request writes.
    pub const WRITE: u16 = 1 << 0;
    /// The key is longer than the sample.
    pub const CUT: u16 = 1 << 2;
}
