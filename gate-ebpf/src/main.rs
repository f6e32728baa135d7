//! gate's XDP program. It sees every packet first, and decides most of them without the daemon.
//!
//! ```text
//! frame (Ethernet, VLAN, IP) ► ports ► plan (service, tenant, one bank of state) ► price ► charge ► exit
//!        │ not ours: pass        │                                          │
//! ```
//!
//! - [`parse`]: headers, and the price of what they carry.
//! - [`fragments`]: packets that do not show their ports.
//! - [`verdict`]: the steps of a packet, from its headers to its exit.
//! - [`context`]: all that is known while a packet is handled.
//! - [`plan`]: the settings that apply to one packet, copied from one generation.
//! - [`buckets`]: pushed refusals, then the token buckets: all are charged, or none.
//! - [`key_buckets`]: the buckets of hot keys.
//! - [`connection`]: whether a segment belongs to a connection.
//! - [`reply`]: a refusal that the client can read.
//! - [`in_passing`]: how long guarded services take. [`observe`]: what is sampled and noted of what passes.
//! - [`counters`], [`sample`]: counters and key samples for the daemon.
//! - `trace`: with the feature `trace`, each step of one source's packets. Without it `trace!` is nothing, and its values are
//!   not computed.
//!
//! Invariants: a packet leaves by exactly one [`Exit`], which is counted and has one action. Packets that
//! are not for a protected service pass unchanged. A missing element never turns a pass into a drop.
//! Helper calls dominate the cost of a packet: the kernel inlines array look-ups, jiffies and the CPU's
//! number; the program calls another helper only for packets that are refused, sampled or fragmented.

#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "packets and maps are memory that the verifier checks")]
#![feature(asm_experimental_arch, core_intrinsics)]
#![allow(internal_features, reason = "the BPF target has no other compare-and-swap")]

/// Says a step ([`gate_common::abi::Step`]) with its values, if the packet is traced.
#[cfg(feature = "trace")]
macro_rules! trace {
    ($step:ident) => {
        trace!($step, 0)
    };
    ($step:ident, $a:expr) => {
        trace!($step, $a, 0)
    };
    ($step:ident, $a:expr, $b:expr) => {
        trace!($step, $a, $b, 0)
    };
    ($step:ident, $a:expr, $b:expr, $c:expr) => {
        trace!($step, $a, $b, $c, 0)
    };
    ($step:ident, $a:expr, $b:expr, $c:expr, $d:expr) => {
        crate::trace::step(gate_common::abi::Step::$step, [$a as u64, $b as u64, $c as u64, $d as u64])
    };
}
#[cfg(not(feature = "trace"))]
macro_rules! trace {
    ($step:ident $(, $value:expr)*) => {
        if false {
            let _ = gate_common::abi::Step::$step;
            $(let _ = $value as u64;)*
        }
    };
}

mod buckets;
mod connection;
mod context;
mod counters;
mod fragments;
mod in_passing;
mod key_buckets;
mod maps;
mod mark;
mod observe;
mod parse;
mod plan;
mod reply;
mod sample;
mod shadow;
#[cfg(feature = "trace")]
mod trace;
mod verdict;

use aya_ebpf::bindings::{__sk_buff, xdp_action, xdp_md};
use aya_ebpf::helpers::generated::{bpf_jiffies64, bpf_ktime_get_ns};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use gate_common::abi::Exit;

/// Processes a packet.
#[xdp(frags)]
pub(crate) fn gate(ctx: XdpContext) -> u32 {
    let ctx: *mut xdp_md = ctx.ctx;
    // Looked up first: instructions after a compare-and-swap wait for it.
    let cpu = counters::this_cpu();
    #[cfg(feature = "trace")]
    trace::begin();
    let exit = verdict::process_packet(ctx);
    counters::count_exit(cpu, exit);
    let action = action(exit);
    trace!(Exit, exit, action);
    action
}

/// Passes every packet. A veth delivers what its peer transmits from XDP only while it has a program itself.
#[xdp(frags)]
pub(crate) fn gate_pass(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

/// Marks what the XDP program has charged, behind it.
#[classifier]
pub(crate) fn gate_mark(ctx: TcContext) -> i32 {
    let skb: *mut __sk_buff = ctx.skb.skb;
    mark::mark(skb);
    mark::GO_ON
}

/// Measures answers of guarded services at egress, and changes nothing.
#[classifier]
pub(crate) fn gate_measure(ctx: TcContext) -> i32 {
    in_passing::measure(ctx.skb.skb);
    mark::GO_ON
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

/// The XDP action of an exit. Without a wildcard: no new exit passes by omission.
#[inline(always)]
fn action(exit: Exit) -> u32 {
    match exit {
        Exit::Malformed
        | Exit::UnknownSource
        | Exit::RefusedDropped
        | Exit::FragmentDropped
        | Exit::TooManyHeaders
        | Exit::SynRate
        | Exit::NoConnection => xdp_action::XDP_DROP,
        Exit::RefusedReplied => xdp_action::XDP_TX,
        Exit::NotIp
        | Exit::NotTransport
        | Exit::NotOurs
        | Exit::NotReady
        | Exit::Fragment
        | Exit::BadHeader
        | Exit::UnknownPassed
        | Exit::Passed
        | Exit::Shadowed
        | Exit::Bare
        | Exit::StalePassed
        | Exit::Missing => xdp_action::XDP_PASS,
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
