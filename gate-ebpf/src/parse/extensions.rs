//! IPv6's extension headers.
//!
//! A loop that the kernel bounds (`bpf_loop`): the verifier would otherwise follow every chain there is.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::cty::{c_long, c_void};
use aya_ebpf::helpers::generated::bpf_loop;

use super::Reader as _;
use super::buffers::Buffers;
use super::frame::{Kind, TCP, UDP};

/// A walk along the chain. It lies in a map, where the verifier does not follow what each step makes of it.
pub(crate) struct Walk {
    /// The kind of the next header.
    pub(crate) next: u8,
    /// What became of the walk.
    pub(crate) outcome: Outcome,
    /// Whether what follows is a fragment.
    pub(crate) kind: Kind,
    /// Where the next header starts.
    pub(crate) at: u32,
    /// Where the IP packet ends.
    end: u32,
}

/// What became of a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// UDP or TCP is next.
    Transport,
    /// The chain goes on. At the end of a walk: it has more than [`MAX_HEADERS`].
    GoesOn,
    /// The chain ends beyond [`MAX_END`].
    TooLong,
    /// What follows is the rest of a fragmented packet.
    LaterFragment,
    /// Something else than UDP or TCP is next.
    NotTransport,
    /// The headers are cut off.
    BadHeader,
}

/// What a step gets: the verifier follows pointers on the stack, where the helper needs them.
struct Step {
    ctx: *mut xdp_md,
    walk: *mut Walk,
}

/// Follows the extension headers of a packet that ends at `end`, from the header `next` that starts at `at`, to UDP or
/// TCP.
///
/// A whole packet in a fragment header (RFC 6946) is no fragment.
#[inline(never)]
pub(crate) fn follow(ctx: *mut xdp_md, walk: *mut Walk, next: u8, at: u32, end: u32) {
    // SAFETY: this CPU's own scratch; `loop_step` has the signature that the helper calls, and what it gets
    // outlives the call.
    unsafe {
        (*walk).next = next;
        (*walk).at = at;
        (*walk).end = end;
        (*walk).outcome = Outcome::GoesOn;
        let mut step = Step { ctx, walk };
        bpf_loop(MAX_HEADERS + 1, loop_step as *mut c_void, (&raw mut step).cast(), 0);
    }
}

/// The helper's signature; goes on while it returns zero.
unsafe extern "C" fn loop_step(_index: u32, step: *mut c_void) -> c_long {
    // SAFETY: what `follow` lent to the helper.
    let (ctx, walk) = unsafe {
        let step = step.cast::<Step>();
        ((*step).ctx, &mut *(*step).walk)
    };
    walk.outcome = walk.step(&Buffers(ctx));
    c_long::from(walk.outcome != Outcome::GoesOn)
}

impl Walk {
    /// Goes over one header.
    #[inline(always)]
    fn step(&mut self, frame: &Buffers) -> Outcome {
        match kind(self.next) {
            Outcome::GoesOn => {}
            outcome => return outcome,
        }
        if self.at + 4 > self.end {
            return Outcome::BadHeader;
        }
        let Some(header) = frame.bytes::<4>(self.at as usize) else { return Outcome::BadHeader };
        let (next, len) = (header.get::<u8, 0>(), u32::from(header.get::<u8, 1>()));
        let fragment = header.get::<u16, 2>() & !RESERVED;
        let this = self.next;
        self.next = next;
        if this == FRAGMENT && fragment != 0 {
            if fragment & !MORE_FRAGMENTS != 0 {
                // Behind further extension headers there may be UDP or TCP.
                let hidden = kind(next) != Outcome::NotTransport;
                return if hidden { Outcome::LaterFragment } else { Outcome::NotTransport };
            }
            self.kind = Kind::FirstFragment;
        }
        self.at += match this {
            FRAGMENT => 8,
            AUTHENTICATION => (len + 2) * 4,
            _ => (len + 1) * 8,
        };
        if self.at > MAX_END {
            return Outcome::TooLong;
        }
        Outcome::GoesOn
    }
}

/// What a header is.
#[inline(always)]
fn kind(header: u8) -> Outcome {
    match header {
        UDP | TCP => Outcome::Transport,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION | MOBILITY | HIP | SHIM6 => {
            Outcome::GoesOn
        }
        _ => Outcome::NotTransport,
    }
}

/// More than any sender has use for.
const MAX_HEADERS: u32 = 64;
/// Headers that end later are not followed.
pub(crate) const MAX_END: u32 = 1 << 14;

/// The two reserved bits beside "more fragments" and the offset.
const RESERVED: u16 = 0b110_u16.to_be();
const MORE_FRAGMENTS: u16 = 1_u16.to_be();
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
/// IPsec's authentication header.
pub(crate) const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const SHIM6: u8 = 140;
