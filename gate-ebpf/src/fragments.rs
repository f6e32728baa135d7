//! Packets that do not show their ports: fragments, and chains of too many headers.
//!
//! A first fragment is charged by what it shows, and its datagram arrives only if it passes. Linux drops fragments that
//! overlap others (since 5.10 at the latest, IPv4 and IPv6), so no later fragment changes what the first has shown.

use aya_ebpf::bindings::xdp_md;
use gate_common::abi::{Control, Exit, bank_of, find, view_flags};

use crate::context::{Scratch, control};
use crate::maps::{self, read_once};
use crate::parse::frame::{self, Frame, Kind};
use crate::plan::find_v6;
use crate::shadow::is_shadowed;

/// Checks a packet that may not show its ports. `Ok` if it does: it is processed further.
///
/// # Errors
///
/// The packet's exit.
#[inline(never)]
pub(crate) fn check(scratch: *const Scratch, kind: Kind) -> Result<(), Exit> {
    let control = control()?;
    // SAFETY: this CPU's own scratch.
    let frame = unsafe { &(*scratch).frame };
    let bank = bank_of(read_once!((*control).generation));
    let flags = read_once!((*control).views[bank].flags);
    let dropped = match kind {
        Kind::Whole => return Ok(()),
        Kind::TooManyHeaders => Exit::TooManyHeaders,
        _ if flags & view_flags::PASS_FRAGMENTS != 0 => return Err(Exit::Fragment),
        _ if flags & view_flags::DROP_FRAGMENTS != 0 => Exit::FragmentDropped,
        Kind::LaterFragment => return Err(Exit::Fragment),
        Kind::FirstFragment if frame.transport_at + PORTS <= frame.end => return Ok(()),
        Kind::FirstFragment => Exit::FragmentDropped,
    };
    let enforce = read_once!((*control).views[bank].enforce);
    Err(if !is_protected(control, bank, frame) {
        if kind == Kind::TooManyHeaders { Exit::NotOurs } else { Exit::Fragment }
    } else if is_shadowed(flags, enforce, frame.source) {
        Exit::Shadowed
    } else {
        dropped
    })
}

/// The exit of a frame with more VLAN tags than are followed. Its destination is unknown.
#[inline(never)]
pub(crate) fn too_many_tags(_ctx: *mut xdp_md) -> Exit {
    let control = match control() {
        Ok(control) => control,
        Err(exit) => return exit,
    };
    let bank = bank_of(read_once!((*control).generation));
    match read_once!((*control).views[bank].flags) & view_flags::SHADOW {
        0 => Exit::TooManyHeaders,
        _ => Exit::Shadowed,
    }
}

/// True if a service may listen at the packet's destination.
#[inline(always)]
fn is_protected(control: *mut Control, bank: usize, frame: &Frame) -> bool {
    protected_address(control, bank, frame) != 0
}

/// The entry of the tables of protected addresses for the packet's destination.
#[inline(always)]
pub(crate) fn protected_address(control: *mut Control, bank: usize, frame: &Frame) -> u32 {
    if frame.v6 {
        find_v6(read_once!((*control).views[bank].protected_v6), frame.destination)
    } else {
        let root = read_once!((*control).views[bank].protected_v4);
        find(root, &frame::bytes_v4(frame.destination), maps::table_entry)
    }
}

/// Bytes of a transport header up to the end of its ports.
const PORTS: usize = 4;
