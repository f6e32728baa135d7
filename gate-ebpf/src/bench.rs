//! What the benchmarks set gate's program beside. No part of gate.

#![no_std]
#![no_main]

use aya_ebpf::bindings::xdp_action;
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

/// The floor: nothing is done.
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
    // SAFETY: an entry of a block that nobody writes while the program runs.
    let entry = |block: u32, byte: u8| TABLE.get(block).map(|block| block.0[byte as usize]);
    match find_v4(1, source, entry) {
        0 => xdp_action::XDP_PASS,
        _ => xdp_action::XDP_DROP,
    }
}

/// The source of an IPv4 packet without VLAN tags.
#[inline(always)]
fn source(ctx: &XdpContext) -> Option<[u8; 4]> {
    let at = ctx.data() + 14 + 12;
    if at + 4 > ctx.data_end() {
        return None;
    }
    // SAFETY: within the packet, as was just compared.
    Some(unsafe { (at as *const [u8; 4]).read_unaligned() })
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
