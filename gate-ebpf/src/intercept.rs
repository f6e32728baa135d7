//! Gives new connections to a store's own address to gate, which listens elsewhere (`sk_lookup`).
//!
//! The kernel runs it where it looks for a socket that listens; packets of connections do not come by here. The address that
//! the client asked for stays the connection's own.
//!
//! Passed are: gate's own connections, and those from the machine itself unless they are wanted; and all while no gate lives, or
//! its heart stands still, unless they are to be refused then. A listener that is closed leaves its map by itself.
//!
//! Told apart by the source: one in 127.0.0.0/8, or `::1`, only the machine itself can have, as the kernel drops what comes from
//! outside with it. Not by the interface: a connection from the machine to an address of its own has that address' interface.

#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "the context is memory that the verifier checks")]
#![feature(asm_experimental_arch, core_intrinsics)]
#![allow(internal_features, reason = "core's own atomics are not there for this target")]

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::bindings::{bpf_sk_lookup, sk_action};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::{map, sk_lookup};
use aya_ebpf::maps::{Array, HashMap, SockMap};
use aya_ebpf::programs::SkLookupContext;
use gate_common::abi::{
    InterceptCounts, InterceptKey, InterceptState, Intercepted, OWN_SOURCE, intercept_flags, intercept_maps,
};

/// Reads 32 bits of the context, at a place after the start of a field. In assembly, since the compiler would compute the place,
/// which the verifier does not take.
macro_rules! field {
    ($context:expr, $field:ident) => {
        field!($context, $field, 0)
    };
    ($context:expr, $field:ident, $after:literal) => {{
        let value: u64;
        // SAFETY: reads a field of the kernel's own context, of which it lets every one be read.
        unsafe {
            core::arch::asm!(
                "{0} = *(u32 *)({1} + {2})",
                out(reg) value,
                in(reg) $context,
                const core::mem::offset_of!(bpf_sk_lookup, $field) + $after,
                options(pure, readonly, nostack)
            );
        }
        value as u32
    }};
}

/// The four words of an IPv6 address of the context.
macro_rules! words {
    ($context:expr, $field:ident) => {
        [
            field!($context, $field, 0),
            field!($context, $field, 4),
            field!($context, $field, 8),
            field!($context, $field, 12),
        ]
    };
}

/// The life of the daemon.
#[map]
static STATE: Array<InterceptState> = Array::with_max_entries(1, MMAPABLE);
/// Where stores listen.
#[map]
static INTERCEPTED: HashMap<InterceptKey, Intercepted> =
    HashMap::with_max_entries(intercept_maps::MOST_ADDRESSES, 0);
/// Where gate does.
#[map]
static LISTENERS: SockMap = SockMap::with_max_entries(intercept_maps::MOST_LISTENERS, 0);
/// Counts of new connections, by what became of them.
#[map]
static COUNTS: Array<InterceptCounts> = Array::with_max_entries(intercept_maps::MOST_ADDRESSES, MMAPABLE);

/// Chooses the socket of a new connection.
#[sk_lookup]
pub(crate) fn gate_intercept(ctx: SkLookupContext) -> u32 {
    let Some(connection) = Connection::read(ctx.lookup) else { return sk_action::SK_PASS };
    let Some(intercepted) = connection.intercepted() else { return sk_action::SK_PASS };
    if connection.passes_by(intercepted.flags & intercept_flags::LOCAL != 0) {
        return sk_action::SK_PASS;
    }
    let chosen =
        if daemon_lives() { LISTENERS.redirect_sk_lookup(&ctx, intercepted.listener, 0) } else { Err(0) };
    match chosen {
        Ok(()) => {
            count(intercepted.counts, core::mem::offset_of!(InterceptCounts, given));
            sk_action::SK_PASS
        }
        // Another program has chosen before.
        Err(EEXIST) => sk_action::SK_PASS,
        Err(_) if intercepted.flags & intercept_flags::REFUSE != 0 => {
            count(intercepted.counts, core::mem::offset_of!(InterceptCounts, refused));
            sk_action::SK_DROP
        }
        Err(_) => {
            count(intercepted.counts, core::mem::offset_of!(InterceptCounts, passed));
            sk_action::SK_PASS
        }
    }
}

/// Counts one connection in the word at `offset`.
#[inline(always)]
fn count(place: u32, offset: usize) {
    let Some(counts) = COUNTS.get_ptr_mut(place) else { return };
    // SAFETY: a word of an element, which is aligned to words.
    unsafe {
        let word = counts.cast::<u8>().add(offset).cast::<u64>();
        atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, 1);
    }
}

/// The ends of a connection, each as four words in network order; those of IPv4 in the last.
struct Connection {
    family: u16,
    local: [u32; 4],
    remote: [u32; 4],
    port: u16,
}

impl Connection {
    /// A connection by TCP.
    #[inline(always)]
    fn read(lookup: *mut bpf_sk_lookup) -> Option<Self> {
        if field!(lookup, protocol) != TCP {
            return None;
        }
        let port = field!(lookup, local_port) as u16;
        match field!(lookup, family) {
            AF_INET => Some(Self {
                family: InterceptKey::V4,
                local: [0, 0, MAPPED, field!(lookup, local_ip4)],
                remote: [0, 0, MAPPED, field!(lookup, remote_ip4)],
                port,
            }),
            AF_INET6 => Some(Self {
                family: InterceptKey::V6,
                local: words!(lookup, local_ip6),
                remote: words!(lookup, remote_ip6),
                port,
            }),
            _ => None,
        }
    }

    /// The listener for its address, or for any.
    #[inline(always)]
    fn intercepted(&self) -> Option<Intercepted> {
        let Self { family, local, port, .. } = *self;
        let mut key = Key { address: local, port, family };
        // SAFETY: an element that the daemon replaces as a whole; a key has the layout of the map's.
        let found = unsafe { INTERCEPTED.get(key.as_map_key()) };
        if let Some(found) = found {
            return Some(*found);
        }
        // The compiler would call a byte loop to fill the address.
        for word in &mut key.address {
            // SAFETY: a word of the key.
            unsafe { core::ptr::write_volatile(word, 0) };
        }
        // SAFETY: as above.
        unsafe { INTERCEPTED.get(key.as_map_key()) }.copied()
    }

    /// True if it is gate's own, or the machine's and not wanted.
    #[inline(always)]
    fn passes_by(&self, wants_local: bool) -> bool {
        let [.., last] = self.remote;
        if self.family == InterceptKey::V4 && wants_local {
            return last == u32::from_ne_bytes(OWN_SOURCE);
        }
        let is_loopback = match self.family {
            InterceptKey::V4 => last.to_ne_bytes()[0] == 127,
            _ => {
                let [a, b, c, d] = self.remote;
                a | b | c == 0 && d == 1_u32.to_be()
            }
        };
        let [a, b, c, d] = self.remote;
        let [e, f, g, h] = self.local;
        is_loopback || (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) == 0
    }
}

/// As [`InterceptKey`], with its address in words.
#[repr(C)]
struct Key {
    address: [u32; 4],
    port: u16,
    family: u16,
}

const _: () = assert!(size_of::<Key>() == size_of::<InterceptKey>());

impl Key {
    #[inline(always)]
    fn as_map_key(&self) -> &InterceptKey {
        // SAFETY: the same fields at the same places, aligned to more.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }
}

/// True if the daemon has shown a sign of life.
#[inline(always)]
fn daemon_lives() -> bool {
    let Some(state) = STATE.get_ptr(0) else { return false };
    // SAFETY: an element of a map, whose words the daemon writes one by one; the helper reads a clock.
    let (heartbeat, stale_after, now) = unsafe {
        (
            (&raw const (*state).heartbeat_ns).read_volatile(),
            (&raw const (*state).stale_after_ns).read_volatile(),
            bpf_ktime_get_ns(),
        )
    };
    !InterceptState::is_stale(heartbeat, stale_after, now)
}

/// `::ffff:0:0/96`, in which IPv4 lies.
const MAPPED: u32 = 0xffff_u32.to_be();
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const TCP: u32 = 6;
const EEXIST: i32 = -17;
/// `linux/bpf.h`: the daemon can map the array into its memory.
const MMAPABLE: u32 = 1 << 10;

/// The kernel offers some helpers only to programs that are licensed under the GPL as well.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
