//! Frames of several buffers: bytes outside the linear part are copied before they are read.
//!
//! Some drivers put only the headers into the linear part, or a part of them.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_load_bytes;

use super::{Bytes, MAX_OFFSET, Packet, Reader};
use crate::maps;

/// A frame of one buffer or several.
#[derive(Clone, Copy)]
pub(crate) struct Buffers(pub(crate) *mut xdp_md);

/// A buffer for the longest header that is read at once.
pub(crate) type HeaderCopy = [u8; 64];

impl Reader for Buffers {
    const WHOLE_FRAME: bool = true;

    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<Bytes<N>> {
        const { assert!(N <= size_of::<HeaderCopy>()) };
        if let Some(bytes) = Packet::of(self.0).bytes::<N>(offset) {
            return Some(bytes);
        }
        let copy = copy(self.0, offset as u32, N as u32);
        if copy.is_null() { None } else { Some(Bytes(copy)) }
    }
}

impl Buffers {
    /// The eight bytes at `offset`, with zeros from `end` on.
    #[inline(always)]
    pub(crate) fn word_or_rest(&self, offset: u32, end: u32) -> Option<u64> {
        let last = end - 8;
        if offset >= end {
            return None;
        }
        let at = if offset < last { offset } else { last };
        let word = self.bytes::<8>(at as usize)?.get::<u64, 0>();
        Some(word >> ((8 * (offset - at)) & 63))
    }
}

/// Copies `len` bytes at `offset` to this CPU's scratch; null if they are not all in the frame.
#[inline(never)]
fn copy(ctx: *mut xdp_md, offset: u32, len: u32) -> *mut u8 {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return core::ptr::null_mut() };
    if len == 0 || len > size_of::<HeaderCopy>() as u32 || offset >= MAX_OFFSET as u32 {
        return core::ptr::null_mut();
    }
    // SAFETY: this CPU's own scratch, which has room for `len` bytes.
    unsafe {
        let copy = (&raw mut (*scratch).header_copy).cast::<u8>();
        if bpf_xdp_load_bytes(ctx, offset, copy.cast(), len) == 0 { copy } else { core::ptr::null_mut() }
    }
}
