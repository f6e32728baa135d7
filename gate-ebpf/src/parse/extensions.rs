//! IPv6's extension headers.
//!
//! The walk is a loop that the kernel bounds (`bpf_loop`): the verifier checks one step, not every possible chain.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::cty::{c_long, c_void};
use aya_ebpf::helpers::generated::bpf_loop;

use super::Reader as _;
use super::buffers::Buffers;
use super::frame::{Kind, TCP, UDP};

/// A walk along the chain. It lies in a map, whose contents the verifier does not track from step to step.
pub(crate) struct Walk {
    /// The protocol number of the next header.
    pub(crate) next: u8,
    /// The state of the walk.
    pub(crate) state: WalkState,
    /// The rest of the packet: whole, or a fragment.
    pub(crate) kind: Kind,
    /// The offset of the next header.
    pub(crate) at: u32,
    /// The end of the IP packet.
    end: u32,
}

/// The state of a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkState {
    /// UDP or TCP is next.
    Transport,
    /// The chain goes on. At the end of a walk: it has more than [`MAX_HEADERS`].
    GoesOn,
    /// The chain ends beyond [`MAX_END`].
    TooLong,
    /// A later fragment of a packet is next.
    LaterFragment,
    /// Another protocol than UDP or TCP is next.
    NotTransport,
    /// The headers are cut off.
    BadHeader,
}

/// The argument of a step. It lies on the stack, where the verifier tracks pointers.
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
    // SAFETY: this CPU's own scratch; `loop_step` has the signature that the helper calls, and its argument
    // outlives the call.
    unsafe {
        (*walk).next = next;
        (*walk).at = at;
        (*walk).end = end;
        (*walk).state = WalkState::GoesOn;
        let mut step = Step { ctx, walk };
        bpf_loop(MAX_HEADERS + 1, loop_step as *mut c_void, (&raw mut step).cast(), 0);
    }
}

/// One step, with the signature that `bpf_loop` calls; a result of zero continues the loop.
unsafe extern "C" fn loop_step(_index: u32, step: *mut c_void) -> c_long {
    // SAFETY: the argument that `follow` passed to the helper.
    let (ctx, walk) = unsafe {
        let step = step.cast::<Step>();
        ((*step).ctx, &mut *(*step).walk)
    };
    walk.state = walk.step(&Buffers(ctx));
    c_long::from(walk.state != WalkState::GoesOn)
}

impl Walk {
    /// Goes over one header.
    #[inline(always)]
    fn step(&mut self, frame: &Buffers) -> WalkState {
        match classify(self.next) {
            WalkState::GoesOn => {}
            state => return state,
        }
        if self.at + 4 > self.end {
            return WalkState::BadHeader;
        }
        let Some(header) = frame.bytes::<4>(self.at as usize) else { return WalkState::BadHeader };
        let next = header.get::<u8, 0>();
        let len = u32::from(header.get::<u8, 1>());
        let fragment = header.get::<u16, 2>() & !RESERVED;
        let this = self.next;
        self.next = next;
        if this == FRAGMENT && fragment != 0 {
            if fragment & !MORE_FRAGMENTS != 0 {
                // Behind further extension headers there may be UDP or TCP.
                let hidden = classify(next) != WalkState::NotTransport;
                return if hidden { WalkState::LaterFragment } else { WalkState::NotTransport };
            }
            self.kind = Kind::FirstFragment;
        }
        self.at += match this {
            FRAGMENT => 8,
            AUTHENTICATION => (len + 2) * 4,
            _ => (len + 1) * 8,
        };
        if self.at > MAX_END {
            return WalkState::TooLong;
        }
        WalkState::GoesOn
    }
}

/// Classifies a header by its protocol number.
#[inline(always)]
fn classify(header: u8) -> WalkState {
    match header {
        UDP | TCP => WalkState::Transport,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION | MOBILITY | HIP | SHIM6 => {
            WalkState::GoesOn
        }
        _ => WalkState::NotTransport,
    }
}

/// More headers than any sender uses.
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
