//! The one element that every packet reads first.

use core::mem::{offset_of, size_of};

use crate::units::{Fraction, Nanos};

/// The owner of the maps, the time, and the bank in force.
///
/// The first [`Control::HEAD_BYTES`] bytes keep their layout and meaning in every ABI version from 4 on: by them a gate ends the
/// owner of older maps and takes over its clock and its interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Control {
    /// [`super::ABI_VERSION`] of the daemon that made the maps; zero before they are ready.
    pub abi_version: u32,
    /// Elements of [`super::maps::CPUS`].
    pub cpus: u32,
    /// Tenants that [`super::maps::TENANTS`] has room for.
    pub tenants: u32,
    /// Process id of the daemon that owns the maps.
    pub owner_pid: u32,
    /// Raised by one whenever a daemon takes ownership. A daemon that finds another value than its
    /// own writes no more.
    pub epoch: u64,
    /// How jiffies become gate's clock.
    pub clock: Clock,
    /// Raised by one with every plan; its lowest bit names the bank in force. Zero before the first.
    pub generation: u64,
    /// Index of an interface that the program is attached to; zero if there is none.
    pub interface: u32,
    /// How it is attached: an [`AttachMode`].
    pub attach_mode: u32,
    /// The last heartbeat, on gate's clock.
    pub heartbeat_ns: u64,
    /// When the owner was started, in clock ticks after boot (field 22 of `/proc/PID/stat`): with its
    /// process id it names one process for good.
    pub owner_start: u64,
    /// The network namespace of the interfaces, by its inode's number: an index means nothing in another.
    pub namespace: u64,
    /// The bit of the kernel's mark that the datagrams to proxied services get which the XDP program has judged; zero if
    /// they get none, and the daemon has to infer it.
    pub charged_mark: u32,
    /// The slots, a bit each, of interfaces where nothing gets that mark: their drivers have no metadata, which the XDP program
    /// finds and sets, or the program that marks cannot be attached. The daemon infers it there. With
    /// [`Control::charged_mark`] one word, this in its upper half.
    pub unmarked_slots: u32,
    /// Rows of [`super::maps::COUNTERS`] that CPUs may have; they follow the shared row.
    pub cpu_rows: u32,
    /// Further interfaces that the program is attached to: an index in the lower [`Control::INDEX_BITS`], above it an
    /// [`AttachMode`]. Zero: none.
    pub more_interfaces: [u32; Control::INTERFACES - 1],
    /// The parameters of the verdict, one set for each bank.
    pub views: [View; 2],
}

const _: () = assert!(size_of::<Control>() == 256);
const _: () = {
    assert!(offset_of!(Control, abi_version) == 0 && offset_of!(Control, cpus) == 4);
    assert!(offset_of!(Control, tenants) == 8 && offset_of!(Control, owner_pid) == 12);
    assert!(offset_of!(Control, epoch) == 16 && offset_of!(Control, clock) == 24);
    assert!(offset_of!(Control, generation) == 48 && offset_of!(Control, interface) == 56);
    assert!(offset_of!(Control, attach_mode) == 60 && offset_of!(Control, heartbeat_ns) == 64);
    assert!(offset_of!(Control, owner_start) == 72 && offset_of!(Control, namespace) == 80);
    assert!(offset_of!(Control, charged_mark) == 88 && offset_of!(Control, unmarked_slots) == 92);
    assert!(offset_of!(Control, cpu_rows) == 96 && offset_of!(Control, more_interfaces) == 100);
    assert!(offset_of!(Control, views) == Control::HEAD_BYTES);
};

impl Control {
    /// The part that is the same in every ABI version from 4 on.
    pub const HEAD_BYTES: usize = 128;
    /// The most interfaces that the program is attached to.
    pub const INTERFACES: usize = 8;
    /// Indices of interfaces are far smaller.
    pub const INDEX_BITS: u32 = 30;
}

/// How the program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AttachMode {
    /// Not yet.
    None = 0,
    /// In the driver.
    Native = 1,
    /// In the stack.
    Generic = 2,
}

/// How jiffies become gate's clock: `origin_ns + (jiffies - origin_jiffies) * tick_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Clock {
    /// Nanoseconds in one tick of jiffies.
    pub tick_ns: u64,
    /// A value of jiffies ...
    pub origin_jiffies: u64,
    /// ... and `CLOCK_MONOTONIC` when they reached it.
    pub origin_ns: u64,
}

const _: () = assert!(size_of::<Clock>() == 24);

impl Clock {
    /// gate's clock when jiffies have this value.
    #[must_use]
    #[inline(always)]
    pub const fn at_jiffies(&self, jiffies: u64) -> Nanos {
        Nanos(
            self.origin_ns.wrapping_add(jiffies.wrapping_sub(self.origin_jiffies).wrapping_mul(self.tick_ns)),
        )
    }

    /// gate's clock when `CLOCK_MONOTONIC` has this value: the latest tick not after it.
    #[must_use]
    #[inline(always)]
    pub const fn at_monotonic(&self, monotonic: Nanos) -> Nanos {
        if self.tick_ns == 0 {
            return monotonic;
        }
        let since = monotonic.0.wrapping_sub(self.origin_ns) as i64;
        Nanos(self.origin_ns.wrapping_add((since - since.rem_euclid(self.tick_ns as i64)) as u64))
    }
}

/// One generation's tables and rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct View {
    /// A heartbeat older than this is stale.
    pub stale_after_ns: u64,
    /// See [`view_flags`].
    pub flags: u32,
    /// The share of sources, by hash, that is enforced; the rest is shadowed. A [`Fraction`] in steps.
    pub enforce: u32,
    /// One in this many requests gives a key sample; zero for none.
    pub sample_every: u32,
    /// Which half of each entry of [`super::Ports`] counts: zero or [`super::Ports::UPPER`].
    pub ports_shift: u32,
    /// Spelled out.
    pub _reserved: u32,
    /// First of 256 blocks of the tenants by IPv4 source. Zero: none.
    pub sources_v4: u32,
    /// Block of the tenants by IPv6 source. Zero: none.
    pub sources_v6: u32,
    /// The slot of the first service; the others follow it.
    pub first_service: u32,
    /// How many services there are.
    pub services: u32,
    /// The highest tenant id in use.
    pub last_tenant: u32,
    /// Block of the IPv4 addresses (one byte a level) that services listen at. Zero: none.
    pub protected_v4: u32,
    /// Block of the IPv6 addresses that services listen at. Zero: none.
    pub protected_v6: u32,
    /// The generation that wrote this.
    pub stamp: u64,
}

const _: () = assert!(size_of::<View>() == 64);

impl View {
    /// The share of sources that is enforced.
    #[must_use]
    pub const fn enforced(&self) -> Fraction {
        Fraction::from_steps(self.enforce)
    }
}

/// Bits of [`View::flags`].
pub mod view_flags {
    /// Decide and count everything, refuse nothing.
    pub const SHADOW: u32 = 1 << 0;
    /// Let everything pass while the heartbeat is stale, the bucket included.
    pub const STALE_PASS: u32 = 1 << 1;
    /// Let fragments pass. Without this and the next, first fragments are judged by what they show, and later ones pass.
    pub const PASS_FRAGMENTS: u32 = 1 << 2;
    /// Drop fragments for addresses that services listen at.
    pub const DROP_FRAGMENTS: u32 = 1 << 3;
    /// Only segments of connections are charged, however little is spent: refusals follow from what was asked.
    pub const CONNECTIONS_ONLY: u32 = 1 << 4;
    /// The kernel answers SYNs with cookies where a listening socket's queue is full, so that SYNs beyond their rate pass.
    pub const SYN_COOKIES: u32 = 1 << 5;
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: Clock =
        Clock { tick_ns: 4_000_000, origin_jiffies: 4_294_892_296, origin_ns: 1_000_000_007 };

    #[test]
    fn kernel_and_daemon_read_the_same_clock_past_its_ends() {
        for clock in [
            CLOCK,
            Clock { origin_jiffies: 0, ..CLOCK },
            Clock { origin_jiffies: u64::MAX, ..CLOCK },
            Clock { origin_ns: 0, ..CLOCK },
            Clock { origin_ns: u64::MAX - 5_000_000, ..CLOCK },
        ] {
            for ticks in [-3_i64, -1, 0, 1, 2, 1_000_000] {
                let now = clock.at_jiffies(clock.origin_jiffies.wrapping_add_signed(ticks));
                assert_eq!(now.0, clock.origin_ns.wrapping_add_signed(ticks * 4_000_000), "{clock:?}");
                for within in [0, 1, clock.tick_ns - 1] {
                    let monotonic = Nanos(now.0.wrapping_add(within));
                    assert_eq!(
                        clock.at_monotonic(monotonic),
                        now,
                        "{clock:?}, {ticks} ticks and {within} ns"
                    );
                }
            }
        }
    }

    #[test]
    fn an_unmeasured_clock_is_monotonic_time() {
        assert_eq!(Clock::default().at_monotonic(Nanos(17)), Nanos(17));
    }
}
