//! The maps, named and laid out in [`gate_common::abi`]. The loader sets their sizes.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, PerCpuArray, RingBuf};
use gate_common::abi::{
    Block, Control, CounterLine, Cpu, Pending, Ports, RareCounters, Service, Tenant, TenantLine, TopKey,
};

use crate::context::Scratch;

/// `linux/bpf.h`: the daemon can map the array into its memory.
pub(crate) const MMAPABLE: u32 = 1 << 10;

/// Settings that every packet for a protected service reads first.
#[map]
pub(crate) static CONTROL: Array<Control> = Array::with_max_entries(1, MMAPABLE);
/// Services by port; packets for other ports need no further map.
#[map]
pub(crate) static PORTS: Array<Ports> = Array::with_max_entries(1, MMAPABLE);
/// Tables of ports and of sources.
#[map]
pub(crate) static TABLES: Array<Block> = Array::with_max_entries(1, MMAPABLE);
/// Services.
#[map]
pub(crate) static SERVICES: Array<Service> = Array::with_max_entries(1, MMAPABLE);
/// The lines of tenants that every packet reads.
#[map]
pub(crate) static TENANT_LINES: Array<TenantLine> = Array::with_max_entries(1, MMAPABLE);
/// The rest of the tenants.
#[map]
pub(crate) static TENANTS: Array<Tenant> = Array::with_max_entries(1, MMAPABLE);
/// Counters by row and tenant.
#[map]
pub(crate) static COUNTERS: Array<CounterLine> = Array::with_max_entries(1, MMAPABLE);
/// The counters that are seldom written, by row and tenant.
#[map]
pub(crate) static RARE_COUNTERS: Array<RareCounters> = Array::with_max_entries(1, MMAPABLE);
/// Which counters the daemon has to read at its next tick, a bit each.
#[map]
pub(crate) static TOUCHED: Array<u64> = Array::with_max_entries(1, MMAPABLE);
/// Counters and scratch by CPU.
#[map]
pub(crate) static CPUS: Array<Cpu> = Array::with_max_entries(1, MMAPABLE);
/// Samples and measurements.
#[map]
pub(crate) static SAMPLES: RingBuf = RingBuf::with_byte_size(4096, 0);
/// Requests whose answers are measured.
#[map]
pub(crate) static PENDING: Array<Pending> = Array::with_max_entries(Pending::SLOTS, MMAPABLE);
/// The most requested keys. The daemon writes them for readers of the pins; no program uses them.
#[map]
pub(crate) static TOP_KEYS: Array<TopKey> = Array::with_max_entries(1, MMAPABLE);
/// The clocks as `gate_clock` read them: jiffies, then `ktime_get_ns`.
#[map]
pub(crate) static CLOCK_READING: Array<[u64; 2]> = Array::with_max_entries(1, MMAPABLE);

/// State of the packet that a CPU processes, beyond registers and stack. No other CPU sees it.
#[map]
pub(crate) static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// Reads a field of shared memory once: other CPUs and the daemon write it at the same time.
macro_rules! read_once {
    ($at:expr) => {
        // SAFETY: a field of a map's element, which lives as long as the program; its bits are always
        // valid, and a volatile read is made exactly once.
        unsafe { core::ptr::read_volatile(&raw const $at) }
    };
}
pub(crate) use read_once;

/// Reads a field of shared memory together with what follows it, eight bytes, as one word: the field lowest.
macro_rules! read_word_once {
    ($at:expr) => {
        // SAFETY: as in `read_once`; the caller has asserted that the field lies at a multiple of eight bytes.
        unsafe { core::ptr::read_volatile((&raw const $at).cast::<u64>()) }
    };
}
pub(crate) use read_word_once;

/// Writes a field of scratch with one store: the compiler would write a value byte by byte.
macro_rules! write_once {
    ($at:expr, $value:expr) => {{
        let value = $value;
        // SAFETY: a field of this CPU's own scratch.
        unsafe { core::ptr::write_volatile(&raw mut $at, value) }
    }};
}
pub(crate) use write_once;

/// A constant that the compiler does not know, so that it does not unroll a loop of so many rounds.
#[inline(always)]
pub(crate) fn opaque_const<const N: u32>() -> u32 {
    let number: u64;
    // SAFETY: sets a register.
    unsafe { core::arch::asm!("{0} = {1}", out(reg) number, const N, options(pure, nomem, nostack)) };
    number as u32
}

/// The same number, of which the compiler knows nothing.
#[inline(always)]
pub(crate) fn opaque_value(mut number: u64) -> u64 {
    // SAFETY: does nothing.
    unsafe { core::arch::asm!("{0} = {0}", inout(reg) number, options(pure, nomem, nostack)) };
    number
}

/// Makes the compiler drop what it knows of memory. A value that is read again is unknown to the verifier, and
/// paths that differed only in that value are verified once.
#[inline(always)]
pub(crate) fn compiler_barrier() {
    // SAFETY: does nothing.
    unsafe { core::arch::asm!("", options(nostack, preserves_flags)) };
}

/// One entry of one block of the tables.
#[inline(always)]
pub(crate) fn table_entry(block: u32, byte: u8) -> Option<u32> {
    let block = TABLES.get_ptr(block)?;
    Some(read_once!((*block).0[byte as usize]))
}
