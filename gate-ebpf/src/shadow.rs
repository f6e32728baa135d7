//! Sources whose refusals are only counted.

use gate_common::abi::{draw, view_flags};
use gate_common::units::Fraction;

use crate::parse::frame;

/// True if this source's refusals are only counted.
#[inline(always)]
pub(crate) fn is_shadowed(flags: u32, enforce: u32, source: [u64; 2]) -> bool {
    flags & view_flags::SHADOW != 0 || enforce < Fraction::ONE.steps() && is_outside_share(enforce, source)
}

/// True if a share of sources does not include this one.
#[inline(never)]
fn is_outside_share(share: u32, source: [u64; 2]) -> bool {
    !Fraction::from_steps(share).covers(draw::of_source(&frame::bytes(source)))
}
