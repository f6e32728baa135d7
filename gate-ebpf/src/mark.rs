//! The mark of charged datagrams: a bit of the kernel's mark, which the daemon's socket receives with each datagram.
//!
//! The XDP program writes a word of metadata before a datagram to a proxied service that it lets through, and the
//! program at the interface's ingress, which runs next, turns that into the bit. Nothing that a client sends is
//! metadata. A packet that the kernel puts together from fragments has the mark of the first of them.

use core::intrinsics::{AtomicOrdering, atomic_or};

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::helpers::generated::bpf_xdp_adjust_meta;
use gate_common::abi::{CHARGED, Control, Event};

use crate::counters;
use crate::maps::{self, read_once};

/// The return value of programs behind XDP: the programs behind them go on.
pub(crate) const GO_ON: i32 = -1;

/// Says of a packet that it was charged, unless nothing is marked at its interface. Whatever is known of where the packet
/// lies is void after this.
#[inline(always)]
pub(crate) fn charged(ctx: *mut xdp_md, control: *const Control) {
    if read_once!((*control).unmarked_slots) & slot_bit(ctx, control) != 0 {
        return;
    }
    // SAFETY: the context that the kernel handed to the program; the word is written where the program has just got
    // room for it, and not beyond where the packet starts.
    unsafe {
        if bpf_xdp_adjust_meta(ctx, -(size_of::<u64>() as i32)) != 0 {
            counters::count_event(Event::NoMetadata);
            let slots = u64::from(slot_bit(ctx, control)) << u32::BITS;
            // Before the packet goes on: the daemon asks when it receives it.
            let word = (&raw const (*control).charged_mark).cast::<u64>().cast_mut();
            atomic_or::<u64, u64, { AtomicOrdering::Relaxed }>(word, slots);
            return;
        }
        let word = (&raw const (*ctx).data_meta).read_volatile() as usize;
        if word + size_of::<u64>() <= (&raw const (*ctx).data).read_volatile() as usize {
            (word as *mut u64).write_volatile(CHARGED);
        }
    }
}

/// The bit of the slot of the interface that a packet came in by; zero if it has none.
#[inline(always)]
fn slot_bit(ctx: *mut xdp_md, control: *const Control) -> u32 {
    // SAFETY: the context that the kernel handed to the program.
    let index = unsafe { (&raw const (*ctx).ingress_ifindex).read_volatile() };
    if read_once!((*control).interface) == index {
        return 1;
    }
    let mut slot = 1;
    while slot < Control::INTERFACES {
        let packed = read_once!((*control).more_interfaces[slot - 1]);
        if packed & ((1 << Control::INDEX_BITS) - 1) == index {
            return 1 << slot;
        }
        slot += 1;
    }
    0
}

/// Marks a packet that was charged.
#[inline(always)]
pub(crate) fn mark(skb: *mut __sk_buff) {
    let Some(control) = maps::CONTROL.get_ptr(0) else { return };
    let bit = read_once!((*control).charged_mark);
    // SAFETY: the context that the kernel handed to the program; the word is read where the program has seen that
    // there is one.
    unsafe {
        let word = (&raw const (*skb).data_meta).read_volatile() as usize;
        if word + size_of::<u64>() > (&raw const (*skb).data).read_volatile() as usize {
            return;
        }
        if (word as *const u64).read_volatile() == CHARGED {
            let mark = (&raw const (*skb).mark).read_volatile();
            (&raw mut (*skb).mark).write_volatile(mark | bit);
        }
    }
}
