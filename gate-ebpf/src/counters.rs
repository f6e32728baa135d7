//! Counters. A CPU has elements of its own, which no other CPU writes, so plain additions are enough. What is seldom
//! counted, and what a CPU counts without a row of its own, goes to elements that CPUs share, by atomic additions.

use core::intrinsics::{AtomicOrdering, atomic_or, atomic_xadd};
use core::mem::offset_of;
use core::ptr::NonNull;

use aya_ebpf::helpers::generated::{bpf_get_prandom_u32, bpf_get_smp_processor_id};
use gate_common::abi::{CounterLine, Cpu, Event, Exit, OtherBucket, RareCounters, Reason, draw};

use crate::maps::{COUNTERS, CPUS, RARE_COUNTERS, TOUCHED, opaque_value, read_once, read_word_once};

/// This CPU's own element. Without one nothing is counted, and verdicts do not change.
#[inline(always)]
pub(crate) fn this_cpu() -> Option<NonNull<Cpu>> {
    // SAFETY: the helper only reads the CPU's number.
    CPUS.get_ptr_mut(unsafe { bpf_get_smp_processor_id() }).and_then(NonNull::new)
}

/// Counts a packet's exit in this CPU's element.
#[inline(always)]
pub(crate) fn count_exit(cpu: Option<NonNull<Cpu>>, exit: Exit) {
    let Some(cpu) = cpu else { return };
    // Opaque, so that the compiler keeps the mask, which shows the verifier a bound.
    let index = opaque_value(exit.index() as u64) as usize & (gate_common::abi::EXITS - 1);
    // SAFETY: this CPU's own element; the index is below `EXITS`.
    unsafe { (*cpu.as_ptr()).exits[index] += 1 };
}

/// Counts an event in this CPU's element.
#[inline(always)]
pub(crate) fn count_event(event: Event) {
    if let Some(cpu) = this_cpu() {
        // SAFETY: this CPU's own element; the index is a constant below `Event::COUNT`.
        unsafe { (*cpu.as_ptr()).events[event.index()] += 1 };
    }
}

/// The next state of this CPU's random number generator; `None` if this CPU has no element.
#[inline(always)]
pub(crate) fn next_random() -> Option<u64> {
    let cpu = this_cpu()?.as_ptr();
    // SAFETY: this CPU's own element; the helper returns a random number.
    unsafe {
        if (*cpu).draw == 0 {
            (*cpu).draw = 1 << 32 | u64::from(bpf_get_prandom_u32());
        }
        (*cpu).draw = draw::next((*cpu).draw);
        Some((*cpu).draw)
    }
}

/// One tenant's counters in this CPU's row.
#[derive(Clone, Copy)]
pub(crate) struct Counters {
    tenant: u32,
    /// [`Cpu::first_line`] and [`Cpu::first_touched`].
    row: u64,
    line: Option<NonNull<CounterLine>>,
}

impl Counters {
    /// This CPU's counters of `tenant`.
    #[inline(always)]
    pub(crate) fn new(tenant: u32) -> Self {
        let row = this_cpu().map_or(0, |cpu| read_word_once!((*cpu.as_ptr()).first_line));
        let line = COUNTERS.get_ptr_mut((row as u32).wrapping_add(tenant)).and_then(NonNull::new);
        Self { tenant, row, line }
    }

    /// Counts a request that passed.
    #[inline(always)]
    pub(crate) fn count_passed(self, price_mru: u32, bytes: u32) {
        let Some(line) = self.own_line() else {
            return count_shared(self.tenant, Words::PASSED, price_mru, bytes);
        };
        // SAFETY: a line of this CPU's own row, which no other CPU writes.
        unsafe {
            (*line).passed += 1;
            (*line).charged_mru += u64::from(price_mru);
            (*line).passed_bytes += u64::from(bytes);
        }
        self.touch();
    }

    /// Counts a TCP segment with payload that passed.
    #[inline(always)]
    pub(crate) fn count_segment(self, price_mru: u32, bytes: u32) {
        let Some(line) = self.own_line() else {
            return count_shared(self.tenant, Words::SEGMENT, price_mru, bytes);
        };
        // SAFETY: as in `count_passed`.
        unsafe {
            (*line).segments += 1;
            (*line).charged_mru += u64::from(price_mru);
            (*line).passed_bytes += u64::from(bytes);
        }
        self.touch();
    }

    /// Counts a passed packet without a request.
    #[inline(always)]
    pub(crate) fn count_bare(self, bytes: u32) {
        let Some(line) = self.own_line() else { return count_shared(self.tenant, Words::BARE, 0, bytes) };
        // SAFETY: as in `count_passed`.
        unsafe {
            (*line).bare_or_asked += 1;
            (*line).passed_bytes += u64::from(bytes);
        }
        self.touch();
    }

    /// Counts a refused request.
    #[inline(always)]
    pub(crate) fn count_refused(self, reason: Reason, price_mru: u32) {
        let place = CounterLine::place(self.tenant, reason);
        let (Some(line), Some(place)) = (self.own_line(), place) else {
            return count_shared(self.tenant, Words::refused(reason, place), price_mru, 0);
        };
        // SAFETY: as in `count_passed`; the place is 0 or 1, and masked so that the verifier sees it.
        unsafe {
            (*line).refused[place & 1] += 1;
            (*line).refused_mru += u64::from(price_mru);
        }
        self.touch();
    }

    /// Counts that a refusal for the quota, which is counted itself, was that of another bucket than the tenant's own: the
    /// [`OtherBucket`] of this number. Any other number is none.
    #[inline(always)]
    pub(crate) fn count_other_bucket(self, number: u32) {
        if number < OtherBucket::COUNT as u32 {
            count_shared(self.tenant, Words::other_bucket(number), 0, 0);
        }
    }

    /// Counts a request, or a TCP packet, that passed although a shadowed rule refuses it; nothing was charged.
    #[inline(always)]
    pub(crate) fn count_shadowed(self, reason: Reason, is_tcp: bool, bytes: u32) {
        count_shared(self.tenant, Words::shadowed(reason, is_tcp), 0, bytes);
    }

    /// Counts a refusal that was answered. Budgets for replies keep them rare.
    #[inline(always)]
    pub(crate) fn count_replied(self) {
        count_shared(self.tenant, Words::REPLIED, 0, 0);
    }

    /// Counts a request that the candidate quota would have refused.
    #[inline(always)]
    pub(crate) fn count_candidate_refused(self) {
        count_shared(self.tenant, Words::CANDIDATE_REFUSED, 0, 0);
    }

    /// The tenant's line in this CPU's own row.
    #[inline(always)]
    fn own_line(self) -> Option<*mut CounterLine> {
        if self.row as u32 == 0 { None } else { self.line.map(NonNull::as_ptr) }
    }

    /// Tells the daemon that the line has changed. After counting: the daemon clears the bit, and then reads the line.
    #[inline(always)]
    fn touch(self) {
        touch((self.row >> 32) as u32, self.tenant);
    }
}

/// Sets a tenant's bit in the row whose bits begin at `first`.
#[inline(always)]
fn touch(first: u32, tenant: u32) {
    let Some(word) = TOUCHED.get_ptr_mut(first.wrapping_add(tenant >> 6)) else { return };
    let bit = 1_u64 << (tenant & 63);
    if read_once!(*word) & bit == 0 {
        // SAFETY: a word of a map's element, aligned to 8; all writers use atomics.
        unsafe { atomic_or::<u64, u64, { AtomicOrdering::Relaxed }>(word, bit) };
    }
}

/// The words that a packet adds to: one is added to a word of the line and to one of the rare counters, a price to another
/// word of the line.
///
/// In one number, so that a function that is not inlined gets it in a register: the word of the line that one is added
/// to (bits 0 to 2), whether it is (bit 3), the word that the price is added to (4 to 6), the rare word (8 to 13),
/// and whether one is added to it (bit 14).
#[derive(Clone, Copy)]
struct Words(u32);

impl Words {
    const ADD_ONE: u32 = 1 << 3;
    const ADD_RARE: u32 = 1 << 14;
    const PASSED: Self = Self(line_word(offset_of!(CounterLine, passed)) | Self::ADD_ONE | Self::CHARGED);
    const BARE: Self = Self(line_word(offset_of!(CounterLine, bare_or_asked)) | Self::ADD_ONE);
    const SEGMENT: Self = Self(Self::SEGMENTS | Self::ADD_ONE | Self::CHARGED);
    const SEGMENTS: u32 = line_word(offset_of!(CounterLine, segments));
    const REPLIED: Self = Self(RareCounters::REPLIED << 8 | Self::ADD_RARE);
    const CANDIDATE_REFUSED: Self = Self(RareCounters::CANDIDATE_REFUSED << 8 | Self::ADD_RARE);
    const CHARGED: u32 = line_word(offset_of!(CounterLine, charged_mru)) << 4;
    const REFUSED: u32 = line_word(offset_of!(CounterLine, refused_mru)) << 4;

    /// A refusal, which has a place in the line or is a rare one.
    #[inline(always)]
    const fn refused(reason: Reason, place: Option<usize>) -> Self {
        Self(match place {
            Some(place) => {
                (line_word(offset_of!(CounterLine, refused)) + place as u32) | Self::ADD_ONE | Self::REFUSED
            }
            None => ((RareCounters::REFUSED + reason.index() as u32) << 8) | Self::ADD_RARE | Self::REFUSED,
        })
    }

    /// The bucket of a refusal.
    #[inline(always)]
    const fn other_bucket(number: u32) -> Self {
        Self(((RareCounters::QUOTA_REFUSED + number) << 8) | Self::ADD_RARE)
    }

    /// A shadowed refusal.
    #[inline(always)]
    const fn shadowed(reason: Reason, is_tcp: bool) -> Self {
        let rare = ((RareCounters::SHADOWED + reason.index() as u32) << 8) | Self::ADD_RARE;
        let passed = if is_tcp { Self::SEGMENTS } else { line_word(offset_of!(CounterLine, passed)) };
        Self(passed | Self::ADD_ONE | rare)
    }
}

/// The word of a line at a byte offset.
const fn line_word(offset: usize) -> u32 {
    offset as u32 / 8
}

const _: () = assert!(size_of::<CounterLine>() == 8 * 8 && size_of::<RareCounters>() < 64 * 8);

/// Counts by atomic additions: in rare counters, and in rows that CPUs share.
#[inline(never)]
fn count_shared(tenant: u32, words: Words, price_mru: u32, bytes: u32) {
    let cpu = this_cpu();
    let row = cpu.map_or(0, |cpu| read_word_once!((*cpu.as_ptr()).first_line));
    let words = words.0;
    if let Some(line) = COUNTERS.get_ptr_mut((row as u32).wrapping_add(tenant)) {
        let line = line.cast::<u64>();
        add(line, (words & 7) as usize, u64::from(words >> 3 & 1));
        add(line, (words >> 4 & 7) as usize, price_mru.into());
        add(line, const { offset_of!(CounterLine, passed_bytes) / 8 }, bytes.into());
        touch((row >> 32) as u32, tenant);
    }
    if words & Words::ADD_RARE != 0 {
        let first = cpu.map_or(0, |cpu| read_once!((*cpu.as_ptr()).first_rare));
        if let Some(rare) = RARE_COUNTERS.get_ptr_mut(first.wrapping_add(tenant)) {
            let word = words >> 8 & 63;
            if word < RARE_WORDS {
                add(rare.cast(), word as usize, 1);
            }
        }
    }
}

/// The words of [`RareCounters`].
const RARE_WORDS: u32 = size_of::<RareCounters>() as u32 / 8;

/// Adds to one of an element's words.
#[inline(always)]
fn add(words: *mut u64, word: usize, more: u64) {
    // SAFETY: the caller names a word of a map's element, which is aligned to 8; other writers use atomics, or are this CPU.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(words.add(word), more) };
}
