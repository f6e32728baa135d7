//! Counters. Each CPU has elements of its own, which no other CPU writes, so plain additions are enough.

use core::ptr::NonNull;

use aya_ebpf::helpers::generated::{bpf_get_prandom_u32, bpf_get_smp_processor_id};
use gate_common::abi::{Cpu, Event, Exit, Reason, TenantCounters, draw};

use crate::maps::{COUNTERS, CPUS, opaque_value};

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

/// One tenant's counters on this CPU.
#[derive(Clone, Copy)]
pub(crate) struct Counters(Option<NonNull<TenantCounters>>);

impl Counters {
    /// This CPU's counters of `tenant`, in maps with room for `tenants`.
    #[inline(always)]
    pub(crate) fn new(tenant: u32, tenants: u32) -> Self {
        // SAFETY: the helper only reads the CPU's number.
        let cpu = unsafe { bpf_get_smp_processor_id() };
        Self(COUNTERS.get_ptr_mut(cpu.wrapping_mul(tenants).wrapping_add(tenant)).and_then(NonNull::new))
    }

    /// Counts a request that passed.
    #[inline(always)]
    pub(crate) fn count_passed(self, price_mru: u32, bytes: u32) {
        let Some(counters) = self.0.map(NonNull::as_ptr) else { return };
        // SAFETY: this CPU's own element, which no other CPU writes.
        unsafe {
            (*counters).passed += 1;
            (*counters).charged_mru += u64::from(price_mru);
            (*counters).passed_bytes += u64::from(bytes);
        }
    }

    /// Counts a passed packet without a request.
    #[inline(always)]
    pub(crate) fn count_bare(self, bytes: u32) {
        let Some(counters) = self.0.map(NonNull::as_ptr) else { return };
        // SAFETY: as in `count_passed`.
        unsafe {
            (*counters).bare += 1;
            (*counters).passed_bytes += u64::from(bytes);
        }
    }

    /// Counts a refused request.
    #[inline(always)]
    pub(crate) fn count_refused(self, reason: Reason, price_mru: u32) {
        let Some(counters) = self.0.map(NonNull::as_ptr) else { return };
        let index = bounded(reason);
        // SAFETY: as in `count_passed`; the index is below `Reason::COUNT`.
        unsafe {
            (*counters).refused[index] += 1;
            (*counters).refused_mru += u64::from(price_mru);
        }
    }

    /// Counts a request that passed although a shadowed rule refuses it; nothing was charged.
    #[inline(always)]
    pub(crate) fn count_shadowed(self, reason: Reason, bytes: u32) {
        let Some(counters) = self.0.map(NonNull::as_ptr) else { return };
        let index = bounded(reason);
        // SAFETY: as in `count_refused`.
        unsafe {
            (*counters).shadowed[index] += 1;
            (*counters).passed += 1;
            (*counters).passed_bytes += u64::from(bytes);
        }
    }

    /// Counts a refusal that was answered.
    #[inline(always)]
    pub(crate) fn count_replied(self) {
        let Some(counters) = self.0.map(NonNull::as_ptr) else { return };
        // SAFETY: as in `count_passed`.
        unsafe { (*counters).replied += 1 };
    }

    /// Counts a request that the candidate quota would have refused.
    #[inline(always)]
    pub(crate) fn count_candidate_refused(self) {
        let Some(counters) = self.0.map(NonNull::as_ptr) else { return };
        // SAFETY: as in `count_passed`.
        unsafe { (*counters).candidate_refused += 1 };
    }
}

/// A reason's index, with a comparison that shows the verifier its bound.
#[inline(always)]
fn bounded(reason: Reason) -> usize {
    let index = opaque_value(reason.index() as u64) as usize;
    if index < Reason::COUNT { index } else { 0 }
}
