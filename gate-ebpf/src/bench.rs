//! Programs that the benchmarks compare gate's program with. gate does not load them.

#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "packets are memory that the verifier checks")]

use aya_ebpf::bindings::xdp_action;
use aya_ebpf::helpers::generated::bpf_redirect;
use aya_ebpf::macros::{map, xdp};
use aya_ebpf::maps::Array;
use aya_ebpf::maps::lpm_trie::{Key, LpmTrie};
use aya_ebpf::programs::XdpContext;
use gate_common::abi::{Block, find_v4};

/// The kernel's own table of prefixes.
#[map]
static TRIE: LpmTrie<[u8; 4], u32> = LpmTrie::with_max_entries(1, 1);
/// gate's, with its root at block 1.
#[map]
static TABLE: Array<Block> = Array::with_max_entries(1, 0);

/// The flood: the interface to send by, the number of sources, and the last one used.
#[map]
static FLOOD: Array<[u32; 3]> = Array::with_max_entries(1, 0);
/// The source whose packets the bare filter drops.
#[map]
static ATTACKER: Array<[u8; 4]> = Array::with_max_entries(1, 0);

/// The floor: drops every packet.
#[xdp(frags)]
pub(crate) fn bare_drop(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_DROP
}

/// Finds the source's prefix in the kernel's trie.
#[xdp(frags)]
pub(crate) fn lookup_trie(ctx: XdpContext) -> u32 {
    let Some(source) = source(&ctx) else { return xdp_action::XDP_ABORTED };
    match TRIE.get(Key::new(32, source)) {
        Some(_) => xdp_action::XDP_DROP,
        None => xdp_action::XDP_PASS,
    }
}

/// Finds the source's prefix in gate's table.
#[xdp(frags)]
pub(crate) fn lookup_table(ctx: XdpContext) -> u32 {
    let Some(source) = source(&ctx) else { return xdp_action::XDP_ABORTED };
    // SAFETY: an entry of a block that is not written while the program runs.
    let entry = |block: u32, byte: u8| TABLE.get(block).map(|block| block.0[byte as usize]);
    match find_v4(1, source, entry) {
        0 => xdp_action::XDP_PASS,
        _ => xdp_action::XDP_DROP,
    }
}

/// The simplest of filters: drops one source's packets, and passes the rest.
#[xdp(frags)]
pub(crate) fn drop_attacker(ctx: XdpContext) -> u32 {
    match (source(&ctx), ATTACKER.get(0)) {
        (Some(source), Some(attacker)) if source == *attacker => xdp_action::XDP_DROP,
        _ => xdp_action::XDP_PASS,
    }
}

/// Redirects the packet, with the next source. Successive sources lie so far apart that they share no cache line.
/// The identification changes by the complement of the source's lower half, so the checksum stays valid.
///
/// A single source's packets stay unchanged, so that the receiving core finds them in its cache.
#[xdp]
pub(crate) fn flood(ctx: XdpContext) -> u32 {
    let (Some(flood), Some(header)) = (FLOOD.get_ptr_mut(0), bytes::<20>(&ctx, 14)) else {
        return xdp_action::XDP_ABORTED;
    };
    // SAFETY: one thread runs this, and nothing else writes the element or the packet.
    unsafe {
        let [interface, sources, last] = *flood;
        if sources > 1 {
            let next = (last + STRIDE).checked_rem(sources).unwrap_or(0);
            let [high, low] = (next as u16).to_be_bytes();
            ((*header)[14], (*header)[15]) = (high, low);
            ((*header)[4], (*header)[5]) = (!high, !low);
            (*flood)[2] = next;
        }
        bpf_redirect(interface, 0) as u32
    }
}

/// The source of an IPv4 packet without VLAN tags.
#[inline(always)]
fn source(ctx: &XdpContext) -> Option<[u8; 4]> {
    // SAFETY: within the packet.
    bytes::<4>(ctx, 14 + 12).map(|at| unsafe { at.read_unaligned() })
}

/// `N` bytes of the packet.
#[inline(always)]
fn bytes<const N: usize>(ctx: &XdpContext, offset: usize) -> Option<*mut [u8; N]> {
    let at = ctx.data() + offset;
    if at + N > ctx.data_end() { None } else { Some(at as *mut [u8; N]) }
}

/// Coprime to the numbers of sources.
const STRIDE: u32 = 7_919;

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
