//! The maps of the program that gives a store's new connections to gate.
//!
//! They are of an object of their own, with a version of their own: the XDP program does not know them.
//!
//! | map | element | index | written by |
//! |---|---|---|---|
//! | [`intercept_maps::STATE`] | [`InterceptState`] | 0 | daemon |
//! | [`intercept_maps::INTERCEPTED`] | [`Intercepted`] | [`InterceptKey`] | daemon |
//! | [`intercept_maps::LISTENERS`] | a listening socket | [`Intercepted::listener`] | daemon; kernel, when one closes |
//! | [`intercept_maps::COUNTS`] | [`InterceptCounts`] | [`Intercepted::counts`] | program; daemon, where an address is new |

use core::mem::{align_of, offset_of, size_of};

use super::Name;

/// Raised with every change to a size, a meaning or a map of the program.
pub const INTERCEPT_VERSION: u32 = 2;

/// The name of the program.
pub const INTERCEPT_PROGRAM: &str = "gate_intercept";

/// The source of gate's own IPv4 connections to a store whose loopback clients are intercepted as well. Whoever runs a program
/// on the machine can take it, and then passes gate by.
pub const OWN_SOURCE: [u8; 4] = [127, 103, 97, 116];

/// The names of the maps, which are also the names of their pins.
pub mod intercept_maps {
    /// One [`super::InterceptState`].
    pub const STATE: &str = "STATE";
    /// [`super::Intercepted`] by [`super::InterceptKey`].
    pub const INTERCEPTED: &str = "INTERCEPTED";
    /// Listening sockets.
    pub const LISTENERS: &str = "LISTENERS";
    /// [`super::InterceptCounts`].
    pub const COUNTS: &str = "COUNTS";
    /// Every pinned map.
    pub const ALL: [&str; 4] = [STATE, INTERCEPTED, LISTENERS, COUNTS];
    /// Addresses that can be intercepted.
    pub const MOST_ADDRESSES: u32 = 1_024;
    /// Sockets: one for each service and family, of two gates while one follows the other.
    pub const MOST_LISTENERS: u32 = 256;
}

/// The life of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InterceptState {
    /// [`INTERCEPT_VERSION`] of the daemon that made the maps; zero before they are ready.
    pub version: u64,
    /// The last heartbeat, as `CLOCK_MONOTONIC` was. Zero: none.
    pub heartbeat_ns: u64,
    /// A heartbeat older than this is stale.
    pub stale_after_ns: u64,
    /// Process id of the daemon that owns the maps.
    pub owner_pid: u64,
    /// When it was started, in clock ticks after boot.
    pub owner_start: u64,
    /// When the program was attached, as `CLOCK_MONOTONIC` was.
    pub attached_ns: u64,
    /// 1 if the owner listens with the sockets of the gate before it, which may close its own at once; else 0.
    pub inherited: u64,
}

const _: () = assert!(size_of::<InterceptState>() == 56 && align_of::<InterceptState>() == 8);
const _: () = {
    assert!(offset_of!(InterceptState, version) == 0 && offset_of!(InterceptState, heartbeat_ns) == 8);
    assert!(offset_of!(InterceptState, stale_after_ns) == 16 && offset_of!(InterceptState, owner_pid) == 24);
    assert!(offset_of!(InterceptState, owner_start) == 32 && offset_of!(InterceptState, attached_ns) == 40);
    assert!(offset_of!(InterceptState, inherited) == 48);
};

impl InterceptState {
    /// True if the daemon has not shown a sign of life for too long at `now_ns`, or never. One from the future is one.
    #[must_use]
    #[inline(always)]
    pub const fn is_stale(heartbeat_ns: u64, stale_after_ns: u64, now_ns: u64) -> bool {
        heartbeat_ns == 0 || now_ns.wrapping_sub(heartbeat_ns) as i64 > stale_after_ns as i64
    }
}

/// An address of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InterceptKey {
    /// In network order; IPv4 as `::ffff:a.b.c.d`. All zero: any address of the family.
    pub address: [u8; 16],
    /// The port, in host order.
    pub port: u16,
    /// [`InterceptKey::V4`] or [`InterceptKey::V6`]: what the client speaks.
    pub family: u16,
}

const _: () = assert!(size_of::<InterceptKey>() == 20 && align_of::<InterceptKey>() == 2);
const _: () = assert!(offset_of!(InterceptKey, port) == 16 && offset_of!(InterceptKey, family) == 18);

impl InterceptKey {
    /// IPv4.
    pub const V4: u16 = 4;
    /// IPv6.
    pub const V6: u16 = 6;

    /// As it lies in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(&self.address);
        bytes[16..18].copy_from_slice(&self.port.to_ne_bytes());
        bytes[18..].copy_from_slice(&self.family.to_ne_bytes());
        bytes
    }

    /// The inverse of [`InterceptKey::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: [u8; 20]) -> Self {
        let mut address = [0; 16];
        address.copy_from_slice(&bytes[..16]);
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self { address, port: half(16), family: half(18) }
    }
}

/// The listener that gets an address' connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Intercepted {
    /// Its place in [`intercept_maps::LISTENERS`].
    pub listener: u32,
    /// See [`intercept_flags`].
    pub flags: u32,
    /// The port of the loopback address that it listens at, for the gate that comes after.
    pub port: u32,
    /// The place of its counts in [`intercept_maps::COUNTS`], which it keeps from gate to gate.
    pub counts: u32,
}

const _: () = assert!(size_of::<Intercepted>() == 16 && align_of::<Intercepted>() == 4);
const _: () = assert!(offset_of!(Intercepted, flags) == 4 && offset_of!(Intercepted, port) == 8);
const _: () = assert!(offset_of!(Intercepted, counts) == 12);

impl Intercepted {
    /// As it lies in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let words = [self.listener, self.flags, self.port, self.counts];
        for (part, word) in bytes.chunks_exact_mut(4).zip(words) {
            part.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// The inverse of [`Intercepted::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self {
            listener: u32::from_ne_bytes([a, b, c, d]),
            flags: u32::from_ne_bytes([e, f, g, h]),
            port: u32::from_ne_bytes([i, j, k, l]),
            counts: u32::from_ne_bytes([m, n, o, p]),
        }
    }
}

/// The new connections of clients to one address, since it has been intercepted. Those that pass by in any case are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InterceptCounts {
    /// Given to gate.
    pub given: u64,
    /// Left to the store, as no gate lived.
    pub passed: u64,
    /// Refused, as no gate lived.
    pub refused: u64,
    /// The service of the address.
    pub service: Name,
}

const _: () = assert!(size_of::<InterceptCounts>() == 72 && align_of::<InterceptCounts>() == 8);
const _: () = assert!(offset_of!(InterceptCounts, passed) == 8 && offset_of!(InterceptCounts, refused) == 16);
const _: () = assert!(offset_of!(InterceptCounts, service) == 24);

/// Bits of [`Intercepted::flags`].
pub mod intercept_flags {
    /// The loopback's connections are given to gate as well, but for those from [`super::OWN_SOURCE`].
    pub const LOCAL: u32 = 1 << 0;
    /// Connections are refused while there is no gate that lives.
    pub const REFUSE: u32 = 1 << 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_what_lies_in_memory() {
        let key = InterceptKey { address: [7; 16], port: 0x1234, family: InterceptKey::V6 };
        assert_eq!(
            key.to_bytes()[15..],
            [&[7][..], &0x1234_u16.to_ne_bytes(), &6_u16.to_ne_bytes()].concat()
        );
        assert_eq!(InterceptKey::from_bytes(key.to_bytes()), key);
        let value = Intercepted { listener: 1, flags: 2, port: 0x1_0003, counts: 4 };
        assert_eq!(Intercepted::from_bytes(value.to_bytes()), value);
        assert_eq!(value.to_bytes()[4..8], 2_u32.to_ne_bytes());
    }

    #[test]
    fn a_heartbeat_that_is_too_old_is_stale_one_to_come_is_not() {
        for (heartbeat, stale_after, now, stale) in [
            (0, 1_000, 0, true),
            (0, u64::MAX, 1, true),
            (5_000, 1_000, 5_000, false),
            (5_000, 1_000, 6_000, false),
            (5_000, 1_000, 6_001, true),
            (5_000, 1_000, 4_000, false),
            (5_000, 0, 5_001, true),
        ] {
            assert_eq!(InterceptState::is_stale(heartbeat, stale_after, now), stale, "{heartbeat} at {now}");
        }
    }
}
