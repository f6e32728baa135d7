//! Parsers: a packet's headers, and the price of its payload.

pub(crate) mod buffers;
pub(crate) mod extensions;
pub(crate) mod first_line;
pub(crate) mod frame;
pub(crate) mod memcached;
pub(crate) mod scan;
pub(crate) mod swar;
pub(crate) mod tags;
pub(crate) mod transport;
mod verb;

use core::arch::asm;

use aya_ebpf::bindings::{__sk_buff, xdp_md};

use crate::maps::opaque_value;

/// The linear part of a packet. Made anew after anything that moves its ends.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    start: usize,
    end: usize,
}

impl Packet {
    /// The packet as it is now.
    #[inline(always)]
    pub(crate) fn of(ctx: *mut xdp_md) -> Self {
        // Volatile, in whole registers: the verifier allows no arithmetic with the end.
        // SAFETY: the context that the kernel handed to the program.
        unsafe {
            let start = (&raw const (*ctx).data).read_volatile() as usize;
            Self { start, end: (&raw const (*ctx).data_end).read_volatile() as usize }
        }
    }

    /// A packet in the stack, as it is now.
    #[inline(always)]
    pub(crate) fn of_skb(skb: *mut __sk_buff) -> Self {
        // SAFETY: as in `of`.
        unsafe {
            let start = (&raw const (*skb).data).read_volatile() as usize;
            Self { start, end: (&raw const (*skb).data_end).read_volatile() as usize }
        }
    }

    /// The number of bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        // Opaque: the verifier allows only a subtraction of the ends.
        opaque_value((self.end - self.start) as u64) as usize
    }

    /// The `N` bytes at `offset`, which is below [`MAX_OFFSET`]; `None` if they are not all in the packet.
    #[inline(always)]
    pub(crate) fn bytes<const N: usize>(&self, offset: usize) -> Option<Bytes<N>> {
        // The mask does not change the offset; it shows the verifier a bound.
        let at = self.start + (offset & (MAX_OFFSET - 1));
        if at + N > self.end { None } else { Some(Bytes(at as *mut u8)) }
    }

    /// The eight bytes at `offset`, as a word.
    #[inline(always)]
    pub(crate) fn word(&self, offset: u32) -> Option<u64> {
        Some(self.bytes::<8>(offset as usize)?.get::<u64, 0>())
    }
}

/// A source of header bytes.
pub(crate) trait Reader {
    /// True if it reads the whole frame, not only the linear part.
    const WHOLE_FRAME: bool;

    /// The `N` bytes at `offset`; `None` if they are not all there. They are valid until the next call.
    fn bytes<const N: usize>(&self, offset: usize) -> Option<Bytes<N>>;
}

impl Reader for Packet {
    const WHOLE_FRAME: bool = false;

    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<Bytes<N>> {
        Self::bytes(self, offset)
    }
}

/// `N` bytes of a packet, valid until the packet's ends are moved.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<const N: usize>(*mut u8);

impl<const N: usize> Bytes<N> {
    /// The integer at `OFFSET`, in the byte order of memory.
    #[inline(always)]
    pub(crate) fn get<T: Integer, const OFFSET: usize>(self) -> T {
        const { assert!(OFFSET + size_of::<T>() <= N) };
        // SAFETY: within the bytes that `Packet::bytes` found.
        unsafe { T::load::<OFFSET>(self.0) }
    }

    /// Writes the integer at `OFFSET`, in the byte order of memory.
    #[inline(always)]
    pub(crate) fn set<T: Integer, const OFFSET: usize>(self, value: T) {
        const { assert!(OFFSET + size_of::<T>() <= N) };
        // SAFETY: within the bytes that `Packet::bytes` found, which only this program refers to.
        unsafe { value.store::<OFFSET>(self.0) }
    }
}

/// An integer that lies in a packet, aligned or not.
///
/// Loaded and stored by one instruction each. The compiler would access each byte by itself, since its BPF target
/// has no unaligned accesses; the verifier allows them in packets.
pub(crate) trait Integer: Copy {
    /// # Safety
    ///
    /// The integer at `at + OFFSET` lies in the packet, and the verifier has seen a check.
    unsafe fn load<const OFFSET: usize>(at: *const u8) -> Self;
    /// # Safety
    ///
    /// See [`Integer::load`].
    unsafe fn store<const OFFSET: usize>(self, at: *mut u8);
}

macro_rules! integer {
    ($of:ty, $load:literal, $store:literal) => {
        impl Integer for $of {
            #[inline(always)]
            unsafe fn load<const OFFSET: usize>(at: *const u8) -> Self {
                let value: u64;
                // SAFETY: the caller's.
                unsafe {
                    asm!($load, out(reg) value, in(reg) at, const OFFSET, options(pure, readonly, nostack));
                }
                value as Self
            }

            #[inline(always)]
            unsafe fn store<const OFFSET: usize>(self, at: *mut u8) {
                // SAFETY: the caller's.
                unsafe { asm!($store, in(reg) at, in(reg) self as u64, const OFFSET, options(nostack)) }
            }
        }
    };
}

integer!(u8, "{0} = *(u8 *)({1} + {2})", "*(u8 *)({0} + {2}) = {1}");
integer!(u16, "{0} = *(u16 *)({1} + {2})", "*(u16 *)({0} + {2}) = {1}");
integer!(u32, "{0} = *(u32 *)({1} + {2})", "*(u32 *)({0} + {2}) = {1}");
integer!(u64, "{0} = *(u64 *)({1} + {2})", "*(u64 *)({0} + {2}) = {1}");

/// A power of two. Headers end at [`extensions::MAX_END`] at the latest, and [`scan`] reads no further than that.
const MAX_OFFSET: usize = 1 << 15;
