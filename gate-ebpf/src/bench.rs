//! Programs that the benchmarks compare gate's program with. gate does not load them.

#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(unsafe_code, reason = "packets are memory that the verifier checks")]
#![allow(internal_features, reason = "the BPF target has no other compare-and-swap")]

use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use aya_ebpf::bindings::{BPF_F_BROADCAST, xdp_action};
use aya_ebpf::helpers::generated::bpf_jiffies64;
use aya_ebpf::macros::{map, xdp};
use aya_ebpf::maps::lpm_trie::{Key, LpmTrie};
use aya_ebpf::maps::{Array, DevMap, PerCpuArray, RingBuf};
use aya_ebpf::programs::XdpContext;
use gate_common::abi::{Block, find_v4};
use gate_common::token_bucket::{Take, take_time};

/// The kernel's own table of prefixes.
#[map]
static TRIE: LpmTrie<[u8; 4], u32> = LpmTrie::with_max_entries(1, 1);
/// gate's, with its root at block 1.
#[map]
static TABLE: Array<Block> = Array::with_max_entries(1, 0);

/// The flood: the number of sources, and the last one used.
#[map]
static FLOOD: Array<[u32; 2]> = Array::with_max_entries(1, 0);
/// The interfaces that the flood goes to.
#[map]
static FLOODED: DevMap = DevMap::with_max_entries(2, 0);
/// The lean program's tenants: the word of the bucket, the cost of a packet, the burst; a cache line each.
#[map]
static LEAN_BUCKETS: Array<[u64; 8]> = Array::with_max_entries(1, 0);
/// The lean program's counters: refused and passed, by tenant.
#[map]
static LEAN_COUNTS: PerCpuArray<[u64; 2]> = PerCpuArray::with_max_entries(1, 0);
/// The lean program's samples, which nobody reads.
#[map]
static LEAN_SAMPLES: RingBuf = RingBuf::with_byte_size(4096, 0);
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

/// The least that limits tenants: a table of sources, a bucket, a counter, and a sample of one in 64. It reads no options
/// and no second protocol, has one price and one service, and no plan that could change under it.
#[xdp(frags)]
pub(crate) fn lean(ctx: XdpContext) -> u32 {
    let Some(packet) = bytes::<42>(&ctx, 0) else { return xdp_action::XDP_PASS };
    // SAFETY: within the packet.
    let (packet, source) = unsafe { (&*packet, packet.cast::<u8>().add(26).cast::<[u8; 4]>().read()) };
    let is_udp = packet[12] == 8 && packet[13] == 0 && packet[14] == 0x45 && packet[23] == 17;
    if !is_udp || u16::from_be_bytes([packet[36], packet[37]]) != LEAN_PORT {
        return xdp_action::XDP_PASS;
    }
    // SAFETY: an entry of a block that is not written while the program runs.
    let entry = |block: u32, byte: u8| TABLE.get(block).map(|block| block.0[byte as usize]);
    let tenant = find_v4(1, source, entry);
    let (true, Some(bucket)) = (tenant != 0, LEAN_BUCKETS.get_ptr_mut(tenant)) else {
        return xdp_action::XDP_PASS;
    };
    // SAFETY: an element of a map, whose first word is changed by compare-and-swap alone.
    let passes = unsafe {
        let [tat, cost_ns, burst_ns, ..] = (&raw const *bucket).read_volatile();
        match take_time(tat, bpf_jiffies64() * TICK_NS, cost_ns, burst_ns, burst_ns) {
            Take::Admit { tat: new } => {
                atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(
                    bucket.cast(),
                    tat,
                    new,
                )
                .1
            }
            _ => false,
        }
    };
    if let Some(count) = LEAN_COUNTS.get_ptr_mut(tenant) {
        // SAFETY: this CPU's own element.
        let counted = unsafe {
            let count = &mut (*count)[usize::from(passes)];
            *count += 1;
            *count
        };
        if counted.is_multiple_of(64)
            && let Some(mut sample) = LEAN_SAMPLES.reserve::<[u64; 2]>(0)
        {
            sample.write([u64::from(tenant), counted]);
            sample.submit(0);
        }
    }
    if passes { xdp_action::XDP_PASS } else { xdp_action::XDP_DROP }
}

/// Sends the packet with the next source to all of [`FLOODED`]: to the last as it is, to others a copy in a page of its own.
///
/// A single source's packets stay unchanged, so that the receiving core finds them in its cache.
#[xdp]
pub(crate) fn flood(ctx: XdpContext) -> u32 {
    let (Some(flood), Some(header)) = (FLOOD.get_ptr_mut(0), bytes::<20>(&ctx, IP)) else {
        return xdp_action::XDP_ABORTED;
    };
    // SAFETY: one thread runs this, and nothing else writes the element or the packet.
    unsafe {
        if let Some((id, source)) = next_source(flood) {
            ((*header)[4], (*header)[5]) = (id[0], id[1]);
            ((*header)[14], (*header)[15]) = (source[0], source[1]);
        }
    }
    FLOODED.redirect(0, BPF_F_BROADCAST.into()).unwrap_or(xdp_action::XDP_ABORTED)
}

/// The identification and the lower half of the next source's address, if there are several. Successive sources lie so
/// far apart that they share no cache line. The identification changes by the complement of the source's lower half, so
/// the checksum stays valid.
///
/// # Safety
///
/// Nothing else writes the element meanwhile.
#[inline(always)]
unsafe fn next_source(flood: *mut [u32; 2]) -> Option<([u8; 2], [u8; 2])> {
    // SAFETY: the caller's.
    let [sources, last] = unsafe { &mut *flood };
    if *sources <= 1 {
        return None;
    }
    *last = (*last + STRIDE).checked_rem(*sources).unwrap_or(0);
    Some(((!*last as u16).to_be_bytes(), (*last as u16).to_be_bytes()))
}

/// The source of an IPv4 packet without VLAN tags.
#[inline(always)]
fn source(ctx: &XdpContext) -> Option<[u8; 4]> {
    // SAFETY: within the packet.
    bytes::<4>(ctx, IP + 12).map(|at| unsafe { at.read_unaligned() })
}

/// `N` bytes of the packet.
#[inline(always)]
fn bytes<const N: usize>(ctx: &XdpContext, offset: usize) -> Option<*mut [u8; N]> {
    let at = ctx.data() + offset;
    if at + N > ctx.data_end() { None } else { Some(at as *mut [u8; N]) }
}

/// The offset of the IP header.
const IP: usize = 14;
/// Coprime to the numbers of sources.
const STRIDE: u32 = 7_919;
/// The port of the lean program's service.
const LEAN_PORT: u16 = 9_000;
/// Nanoseconds of a jiffy, where the kernel has 250 of them a second.
const TICK_NS: u64 = 4_000_000;

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
