//! gate's XDP program: every packet is judged here first, most of them here alone.
//!
//! ```text
//! frame (Ethernet, VLAN, IP) ► ports ► plan (service, tenant, one bank of state) ► price ► admit ► exit
//!        │ not ours: pass        │                                          │
//! ```
//!
//! - [`parse`]: headers, and the price of what they carry.
//! - [`fragments`]: packets that do not show their ports.
//! - [`plan`]: what one packet is judged by, copied from one generation.
//! - [`admit`]: pushed refusals, then the buckets, all or none.
//! - [`reply`]: a refusal that the client can read.
//! - [`count`], [`sample`]: what the daemon learns of it.
//!
//! Invariants: a packet leaves by exactly one [`Exit`], which is counted and has one action. What is
//! not for a protected service passes untouched. A missing element never turns a pass into a drop. The
//! number of helper calls is the budget: the kernel inlines array look-ups, jiffies and the CPU's
//! number, and nothing else is called unless a packet is refused, sampled or cut up.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch, core_intrinsics)]
#![allow(internal_features, reason = "a compare-and-swap, which the BPF target offers in no other way")]

mod buckets;
mod counters;
mod fragments;
mod maps;
mod parse;
mod plan;
mod reply;
mod sample;
mod verdict;

use aya_ebpf::bindings::{xdp_action, xdp_md};
use aya_ebpf::helpers::generated::{bpf_jiffies64, bpf_ktime_get_ns};
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use gate_common::abi::Exit;

/// Judges a packet.
#[xdp(frags)]
pub(crate) fn gate(ctx: XdpContext) -> u32 {
    let ctx: *mut xdp_md = ctx.ctx;
    // Looked up first: what follows a compare-and-swap has to wait for it.
    let cpu = counters::this_cpu();
    let exit = verdict::process_packet(ctx);
    counters::count_exit(cpu, exit);
    action(exit)
}

/// Passes everything: for the other end of a veth, which takes what its peer transmits only then.
#[xdp(frags)]
pub(crate) fn gate_pass(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

/// Reads the kernel's clocks for the daemon, which runs it by test run.
#[xdp]
pub(crate) fn gate_clock(_ctx: XdpContext) -> u32 {
    if let Some(reading) = maps::CLOCK_READING.get_ptr_mut(0) {
        // SAFETY: these helpers read a clock; the element is `[u64; 2]`, and only the daemon that runs this
        // reads it.
        unsafe { *reading = [bpf_jiffies64(), bpf_ktime_get_ns()] };
    }
    xdp_action::XDP_PASS
}

/// What becomes of a packet that leaves by `exit`.
#[inline(always)]
fn action(exit: Exit) -> u32 {
    match exit {
        Exit::Malformed
        | Exit::UnknownSource
        | Exit::RefusedDropped
        | Exit::FragmentDropped
        | Exit::TooManyHeaders => xdp_action::XDP_DROP,
        Exit::RefusedReplied => xdp_action::XDP_TX,
        _ => xdp_action::XDP_PASS,
    }
}

/// The kernel offers some helpers only to programs that are licensed under the GPL as well.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing here can panic: the verifier would refuse this loop if it could be reached.
    loop {}
}
