//! Samples of keys: the first key of one request in so many.
//!
//! Refused requests are not sampled, so that they do not make a key hot. Of proxied services nothing is sampled: the daemon
//! sees their requests itself.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_load_bytes;
use gate_common::abi::{Event, Sample, draw, sample_flags};

use crate::context::Scratch;
use crate::counters;
use crate::maps::{SAMPLES, opaque_value};
use crate::parse::swar;

/// True for one request in `every`, by a countdown that starts from a random number each time.
#[inline(always)]
pub(crate) fn is_due(every: u32) -> bool {
    let (true, Some(cpu)) = (every != 0, counters::this_cpu()) else { return false };
    // SAFETY: this CPU's own element.
    let until = unsafe { &mut (*cpu.as_ptr()).until_sample };
    if *until > 1 && *until < 2 * u64::from(every) {
        *until -= 1;
        return false;
    }
    if let Some(state) = counters::next_random() {
        *until = draw::countdown(state, every);
    }
    true
}

/// Sends the first key of a request to the daemon.
#[inline(never)]
pub(crate) fn send(ctx: *mut xdp_md, scratch: &Scratch) {
    let key = scratch.scan.key;
    let room = scratch.payload.end().wrapping_sub(key.at);
    if key.len > room {
        return;
    }
    let most = if key.len == 0 { room } else { key.len };
    if most == 0 {
        return;
    }
    // An opaque number, a mask and an addition: every verifier sees the bounds of the length. Linux 6.1's learns
    // nothing from a comparison with zero.
    let last = opaque_value(u64::from(most.min(Sample::MAX_KEY as u32) - 1)) & (Sample::MAX_KEY as u64 - 1);
    let len = last + 1;
    let Some(mut entry) = SAMPLES.reserve::<Sample>(0) else {
        counters::count_event(Event::SampleLost);
        return;
    };
    let sample = entry.as_mut_ptr();
    // SAFETY: the entry belongs to this program until it is submitted; each field is written before that. The helper
    // writes `len` bytes, which the key has room for.
    let copied = unsafe {
        (*sample).service = scratch.service_id;
        (*sample).tenant = scratch.tenant_id;
        (*sample).weight = scratch.sample_every;
        bpf_xdp_load_bytes(ctx, key.at, (&raw mut (*sample).key).cast(), len as u32)
    };
    if copied != 0 {
        entry.discard(0);
        return;
    }
    let key_len = match key.len {
        // SAFETY: as above.
        0 => unsafe { key_len(&raw const (*sample).key) }.min(len as u32),
        _ => len as u32,
    };
    if key_len == 0 {
        entry.discard(0);
        return;
    }
    let cut = if most > Sample::MAX_KEY as u32 && key_len == Sample::MAX_KEY as u32 {
        sample_flags::CUT
    } else {
        0
    };
    // SAFETY: as above.
    unsafe {
        (*sample).key_len = key_len as u16;
        (*sample).flags = cut | if key.writes { sample_flags::WRITE } else { 0 };
    }
    entry.submit(0);
    counters::count_event(Event::Sampled);
}

/// The number of bytes before the first space or end of a line.
///
/// # Safety
///
/// `key` can be read.
#[inline(always)]
unsafe fn key_len(key: *const [u8; Sample::MAX_KEY]) -> u32 {
    for word in 0..Sample::MAX_KEY / 8 {
        // SAFETY: within the key.
        let bytes = unsafe { key.cast::<u64>().add(word).read_unaligned() };
        let ends = swar::equal(bytes, b' ') | swar::equal(bytes, b'\n') | swar::equal(bytes, b'\r');
        if ends != 0 {
            return word as u32 * 8 + swar::before_first(ends);
        }
    }
    Sample::MAX_KEY as u32
}
