//! Hot keys and values in the kernel: the layout is kept free for them, no program uses it yet.

use core::mem::size_of;

/// A hot key, by hash.
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
