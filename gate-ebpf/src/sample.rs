//! Samples: the first key of one request in so many that pass, and the verdict on one in so many that are refused.
//!
//! Refused requests are sampled without their keys, so that they do not make a key hot, by a countdown of their own. A flood of
//! them takes at most half of the ring buffer. Of what passes to proxied services nothing is sampled: the daemon sees it itself.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_RING_SIZE, xdp_md};
use aya_ebpf::helpers::generated::bpf_xdp_load_bytes;
use gate_common::abi::{Control, Event, Reason, Sample, SampleHead, bank_of, draw, sample_flags};

use crate::context::Scratch;
use crate::counters;
use crate::maps::{SAMPLES, opaque_value, read_once};
use crate::parse::swar;

/// True for one request in `every`, by a countdown that starts from a random number each time.
#[inline(always)]
pub(crate) fn is_due(every: u32) -> bool {
    let (true, Some(cpu)) = (every != 0, counters::this_cpu()) else { return false };
    // SAFETY: this CPU's own element.
    count_down(unsafe { &mut (*cpu.as_ptr()).until_sample }, every)
}

#[inline(always)]
fn count_down(until: &mut u64, every: u32) -> bool {
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
        write_head(
            &raw mut (*sample).head,
            scratch,
            [scratch.service_id, scratch.tenant_id],
            scratch.sample_every,
        );
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
        (*sample).head.key_len = key_len as u16;
        (*sample).head.flags = cut | if key.writes { sample_flags::WRITE } else { 0 };
    }
    entry.submit(0);
    counters::count_event(Event::Sampled);
}

/// Samples a refusal, one in so many: `ids` are [`gate_common::abi::Service::id`] and the tenant's index.
#[inline(never)]
pub(crate) fn sample_refusal(control: *mut Control, scratch: &Scratch, ids: u64, verdict: Verdict) {
    // Read apart from the plan: which generation's it is does not matter.
    let bank = bank_of(read_once!((*control).generation));
    let every = read_once!((*control).views[bank].sample_every);
    let (true, Some(cpu)) = (every != 0, counters::this_cpu()) else { return };
    // SAFETY: this CPU's own element.
    if !count_down(unsafe { &mut (*cpu.as_ptr()).until_refusal }, every) {
        return;
    }
    // A reservation has to be submitted: none is made where half is taken.
    let entry = if is_half_full() { None } else { SAMPLES.reserve::<SampleHead>(0) };
    let Some(mut entry) = entry else {
        counters::count_event(Event::RefusalSampleLost);
        return;
    };
    let head = entry.as_mut_ptr();
    // SAFETY: the entry belongs to this program until it is submitted; each field is written before that.
    unsafe {
        write_head(head, scratch, [ids as u32, (ids >> 32) as u32], every);
        (*head).refused = verdict.0 as u8;
        (*head).bucket = (verdict.0 >> 8) as u8;
    }
    entry.submit(0);
    counters::count_event(Event::RefusalSampled);
}

/// True if half of the ring buffer is taken: the rest is for keys.
#[inline(always)]
pub(crate) fn is_half_full() -> bool {
    SAMPLES.query(BPF_RB_AVAIL_DATA.into()) > SAMPLES.query(BPF_RB_RING_SIZE.into()) / 2
}

/// A refusal: [`SampleHead::refused`] in the lowest eight bits, [`SampleHead::bucket`] above.
#[derive(Clone, Copy)]
pub(crate) struct Verdict(u32);

impl Verdict {
    /// That of a reason; `other_bucket` is the number of the [`gate_common::abi::OtherBucket`], or any higher one.
    #[inline(always)]
    pub(crate) fn refused(reason: Reason, other_bucket: u32) -> Self {
        Self((reason as u32 + 1) | (other_bucket.wrapping_add(1) & 3) << 8)
    }
}

/// Writes all fields; those of a refusal and of a key as of neither.
///
/// # Safety
///
/// `head` can be written.
#[inline(always)]
unsafe fn write_head(head: *mut SampleHead, scratch: &Scratch, [service, tenant]: [u32; 2], weight: u32) {
    // SAFETY: the caller's; the source has no alignment in the head.
    unsafe {
        head.write(SampleHead { service, tenant, weight, ..EMPTY });
        (&raw mut (*head).source).cast::<[u64; 2]>().write(scratch.frame.source);
    }
}

/// Neither key nor refusal.
const EMPTY: SampleHead = SampleHead {
    service: 0,
    tenant: 0,
    weight: 0,
    flags: 0,
    key_len: 0,
    source: [0; 16],
    refused: 0,
    bucket: 0,
    _reserved: [0; 6],
};

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
