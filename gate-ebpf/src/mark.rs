//! What was charged, said to the daemon: a bit of the kernel's mark, which a socket receives with its datagrams.
//!
//! The XDP program writes a word of metadata before a datagram to a proxied service that it lets through, and the
//! program at the interface's ingress, which runs next, turns that into the bit. Nothing that a client sends is
//! metadata. A packet that the kernel puts together from fragments has the mark of the first of them.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::helpers::generated::bpf_xdp_adjust_meta;
use gate_common::abi::{CHARGED, Event};

use crate::counters;
use crate::maps::{self, read_once};

/// What the ingress program returns: the programs behind it go on.
pub(crate) const GO_ON: i32 = -1;

/// Says of a packet that it was charged. Whatever is known of where the packet lies is void after this.
#[inline(always)]
pub(crate) fn charged(ctx: *mut xdp_md) {
    // SAFETY: the context that the kernel handed to the program; the word is written where the program has just got
    // room for it, and not beyond where the packet starts.
    unsafe {
        if bpf_xdp_adjust_meta(ctx, -(size_of::<u64>() as i32)) != 0 {
            counters::count_event(Event::NoMetadata);
            return;
        }
        let word = (&raw const (*ctx).data_meta).read_volatile() as usize;
        if word + size_of::<u64>() <= (&raw const (*ctx).data).read_volatile() as usize {
            (word as *mut u64).write_volatile(CHARGED);
        }
    }
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
