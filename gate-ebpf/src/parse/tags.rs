//! VLAN tags beyond the usual two.
//!
//! Linux strips any number of priority tags (VLAN 0) without a VLAN interface, so all are followed.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::cty::{c_long, c_void};
use aya_ebpf::helpers::generated::bpf_loop;
use gate_common::abi::Exit;

use super::Reader as _;
use super::buffers::Buffers;
use super::frame::is_vlan;
use crate::maps::{self, read_once};

/// A walk along the tags.
pub(crate) struct TagWalk {
    /// The EtherType of the next header.
    ether_type: u16,
    /// True if the frame ends within a tag.
    cut_off: bool,
    /// The offset of the next header.
    at: u32,
}

/// The argument of a step. It lies on the stack, where the verifier tracks pointers.
struct Step {
    ctx: *mut xdp_md,
    walk: *mut TagWalk,
}

/// Skips the tags from `at` on, and returns the EtherType and the offset of the header after them.
///
/// # Errors
///
/// [`Exit::BadHeader`], [`Exit::TooManyHeaders`].
#[inline(always)]
pub(crate) fn skip(ctx: *mut xdp_md, ether_type: u16, at: usize) -> Result<(u16, usize), Exit> {
    let scratch = maps::SCRATCH.get_ptr_mut(0).ok_or(Exit::Missing)?;
    // SAFETY: this CPU's own scratch.
    let walk = unsafe { &raw mut (*scratch).tags };
    // SAFETY: as above; `loop_step` has the signature that the helper calls, and its argument outlives the call.
    unsafe {
        *walk = TagWalk { ether_type, cut_off: false, at: at as u32 };
        let mut step = Step { ctx, walk };
        bpf_loop(MAX_TAGS, loop_step as *mut c_void, (&raw mut step).cast(), 0);
    }
    let ether_type = read_once!((*walk).ether_type);
    let at = read_once!((*walk).at) as usize;
    if read_once!((*walk).cut_off) {
        Err(Exit::BadHeader)
    } else if is_vlan(ether_type) {
        Err(Exit::TooManyHeaders)
    } else {
        Ok((ether_type, at))
    }
}

/// One step, with the signature that `bpf_loop` calls; a result of zero continues the loop.
unsafe extern "C" fn loop_step(_index: u32, step: *mut c_void) -> c_long {
    // SAFETY: the argument that `skip` passed to the helper.
    let (ctx, walk) = unsafe {
        let step = step.cast::<Step>();
        ((*step).ctx, &mut *(*step).walk)
    };
    if !is_vlan(walk.ether_type) {
        return 1;
    }
    let Some(tag) = Buffers(ctx).bytes::<4>(walk.at as usize) else {
        walk.cut_off = true;
        return 1;
    };
    walk.ether_type = tag.get::<u16, 2>();
    walk.at += 4;
    0
}

/// More tags than any network uses.
const MAX_TAGS: u32 = 64;
