//! Each step of the packets of one source, for a person to read: with the feature `trace` alone.
//!
//! The functions that send a step are global, so that the verifier walks each once and takes a call for one instruction: the
//! rest of the program is walked as without them. They take numbers alone, as the verifier wants of global functions, and find
//! by themselves whether the packet is traced.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, PerCpuArray, RingBuf};
use gate_common::abi::{Step, TraceRecord, Tracing};

use crate::maps::{MMAPABLE, read_once, write_once};

/// The records.
#[map]
static TRACES: RingBuf = RingBuf::with_byte_size(128 << 10, 0);
/// The sources that are traced.
#[map]
static TRACING: Array<Tracing> = Array::with_max_entries(1, MMAPABLE);
/// The packet that this CPU processes.
#[map]
static TRACED: PerCpuArray<TracedPacket> = PerCpuArray::with_max_entries(1, 0);

/// The packet that a CPU processes.
struct TracedPacket {
    /// [`UNSEEN`], [`NOT_TRACED`], or its number.
    number: u64,
    /// Its source, as two words in memory order.
    source: [u64; 2],
}

/// The source of the packet has not been read.
const UNSEEN: u64 = 0;
/// The packet is not traced.
const NOT_TRACED: u64 = u64::MAX;
const NS_PER_SEC: u64 = 1_000_000_000;

/// A packet begins.
#[inline(always)]
pub(crate) fn begin() {
    if let Some(packet) = TRACED.get_ptr_mut(0) {
        write_once!((*packet).number, UNSEEN);
    }
}

/// The source of the packet is known: it is traced from here on, or not.
#[inline(always)]
pub(crate) fn source(source: [u64; 2]) {
    trace_source(source[0], source[1]);
}

/// Sends a step, if the packet is traced.
#[inline(always)]
pub(crate) fn step(step: Step, [first, second, third, fourth]: [u64; 4]) {
    trace_step(step as u64, first, second, third, fourth);
}

/// See [`source`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn trace_source(first: u64, second: u64) -> u64 {
    let (Some(tracing), Some(packet)) = (TRACING.get_ptr_mut(0), TRACED.get_ptr_mut(0)) else { return 0 };
    if read_once!((*packet).number) != UNSEEN {
        return 0;
    }
    write_once!((*packet).number, NOT_TRACED);
    let differ = (first & read_once!((*tracing).mask[0])) ^ read_once!((*tracing).network[0])
        | (second & read_once!((*tracing).mask[1])) ^ read_once!((*tracing).network[1]);
    if differ != 0 {
        return 0;
    }
    // SAFETY: the helper reads a clock.
    let now = unsafe { bpf_ktime_get_ns() } / NS_PER_SEC;
    if read_once!((*tracing).second) != now {
        // Another CPU may do the same: a few packets more are traced then.
        write_once!((*tracing).second, now);
        write_once!((*tracing).in_second, 0);
    }
    // SAFETY: words of the map's element.
    let [in_second, skipped, packets] =
        unsafe { [&raw mut (*tracing).in_second, &raw mut (*tracing).skipped, &raw mut (*tracing).packets] };
    if add(in_second) >= Tracing::PACKETS_PER_SEC {
        add(skipped);
        return 0;
    }
    write_once!((*packet).source[0], first);
    write_once!((*packet).source[1], second);
    write_once!((*packet).number, add(packets) + 1);
    1
}

/// See [`step`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn trace_step(step: u64, first: u64, second: u64, third: u64, fourth: u64) -> u64 {
    let Some(packet) = TRACED.get_ptr_mut(0) else { return 0 };
    let number = read_once!((*packet).number);
    if number == UNSEEN || number == NOT_TRACED {
        return 0;
    }
    let Some(mut entry) = TRACES.reserve::<TraceRecord>(0) else {
        if let Some(tracing) = TRACING.get_ptr_mut(0) {
            // SAFETY: a word of the map's element.
            add(unsafe { &raw mut (*tracing).lost });
        }
        return 0;
    };
    let source = [read_once!((*packet).source[0]), read_once!((*packet).source[1])];
    let record = entry.as_mut_ptr();
    // SAFETY: the entry belongs to this program until it is submitted; each field is written before that. The helper reads a
    // clock.
    unsafe {
        (*record).at_ns = bpf_ktime_get_ns();
        (*record).packet = number;
        (&raw mut (*record).source).cast::<[u64; 2]>().write(source);
        (*record).step = step;
        (*record).values = [first, second, third, fourth];
    }
    entry.submit(0);
    1
}

/// Adds one to a word of a map's element; the value before.
#[inline(always)]
fn add(word: *mut u64) -> u64 {
    // Not relaxed: of that the compiler makes an instruction which does not return the value before.
    // SAFETY: aligned to 8; all writers but the one that begins a second use atomics.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(word, 1) }
}
