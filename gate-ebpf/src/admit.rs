//! Whether a request passes: what the daemon pushed, then the buckets, all or none.

use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use gate_common::abi::{Control, Event, Reason, Tenant, draw, tenant_flags};
use gate_common::token_bucket::{Limits, Take, refund, take_time};
use gate_common::units::Fraction;

use crate::count::{self, CpuSlot, Tally};
use crate::judge::Case;
use crate::maps::{self, opaque, peek};
use crate::plan::{Plan, settled};

/// Refusals that the daemon pushed. Not to be asked while the heartbeat is stale.
#[inline(always)]
pub(crate) fn pushed(plan: &Plan, now_ns: u64, cpu: CpuSlot) -> Result<(), Reason> {
    if now_ns < plan.reject_until_ns {
        return Err(Reason::RejectedUntil);
    }
    if plan.tenant_flags & tenant_flags::PENALTY != 0 {
        return Err(Reason::Penalty);
    }
    if plan.rejection_rate != 0 {
        let rate = Fraction::from_steps(plan.rejection_rate);
        if count::draw(cpu).is_some_and(|state| rate.covers(draw::share(state))) {
            return Err(Reason::RejectionRate);
        }
    }
    Ok(())
}

/// Whose buckets are asked, and by whom.
#[derive(Clone, Copy)]
pub(crate) struct Purse {
    /// The element that says what is in force.
    pub(crate) control: *mut Control,
    /// Who pays.
    pub(crate) tenant: *mut Tenant,
    /// For what.
    pub(crate) case: *mut Case,
    /// Where it is counted.
    pub(crate) cpu: CpuSlot,
}

impl Purse {
    /// Takes the case's price from the tenant's quota and from those that it charges as well: from all or none.
    #[inline(always)]
    pub(crate) fn charge(&self, tally: impl FnOnce() -> Tally) -> Result<(), Reason> {
        // SAFETY: this CPU's own scratch.
        let case = unsafe { &mut *self.case };
        if case.plan.tenant_flags & tenant_flags::CANDIDATE != 0
            && candidate(self.control, self.tenant, case) != 0
        {
            tally().candidate_refused();
        }
        let own = case.plan.tenant_flags & tenant_flags::UNLIMITED == 0;
        // SAFETY: the word of a tenant's element.
        let word = unsafe { &raw mut (*self.tenant).quota_tat };
        if own {
            case.asks[0] = Ask::new(case.now_ns, case.price_mru, &case.plan.quota);
            ask(word, &raw const case.asks[0], self.cpu)?;
        }
        if case.plan.also_charge[0] | case.plan.also_charge[1] == 0 {
            return Ok(());
        }
        let Some(reason) = reason(also(self.control, case, self.cpu)) else { return Ok(()) };
        if own {
            give_back(word, case.asks[0].cost_ns, self.cpu);
        }
        Err(reason)
    }

    /// Takes bytes from the coarse second line of proxied TCP.
    #[inline(always)]
    pub(crate) fn takes_coarsely(&self, bytes: u32) -> bool {
        coarsely(self.control, self.tenant, self.case, bytes, self.cpu) == ADMITTED
    }

    /// Takes bytes from the budget for replies.
    #[inline(always)]
    pub(crate) fn may_reply(&self, bytes: u32) -> bool {
        reply(self.control, self.tenant, self.case, bytes, self.cpu) == ADMITTED
    }
}

/// What is asked of a bucket. It lies in a map, where the verifier does not follow what becomes of it from one
/// attempt to the next.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    now_ns: u64,
    cost_ns: u64,
    burst_ns: u64,
    max_debt_ns: u64,
}

impl Ask {
    #[inline(always)]
    fn new(now_ns: u64, cost: u32, limits: &Limits) -> Self {
        let Limits { rate, burst_ns, max_debt_ns } = *limits;
        Self { now_ns, cost_ns: rate.time_for(cost), burst_ns, max_debt_ns }
    }
}

/// Asks one bucket, by compare-and-swap.
#[inline(always)]
fn ask(word: *mut u64, ask: *const Ask, cpu: CpuSlot) -> Result<(), Reason> {
    let mut seen = peek!(*word);
    for _ in 0..opaque::<ATTEMPTS>() {
        let (now_ns, cost_ns) = (peek!((*ask).now_ns), peek!((*ask).cost_ns));
        match take_time(seen, now_ns, cost_ns, peek!((*ask).burst_ns), peek!((*ask).max_debt_ns)) {
            Take::Admit { tat } => match swap(word, seen, tat) {
                Ok(()) => return Ok(()),
                Err(found) => seen = found,
            },
            Take::Refuse { .. } => return Err(Reason::Quota),
            Take::TooLarge => return Err(Reason::TooLarge),
        }
    }
    count::event(cpu, Event::Contended);
    Err(Reason::Quota)
}

/// [`ask`] as a function of its own, for the buckets that are rarely asked. Such a function gets five
/// registers at most and returns one, so a number stands for the [`Reason`].
#[inline(never)]
fn ask_rarely(word: *mut u64, asked: *const Ask, cpu: CpuSlot) -> u32 {
    match ask(word, asked, cpu) {
        Ok(()) => ADMITTED,
        Err(Reason::TooLarge) => TOO_LARGE,
        Err(_) => SPENT,
    }
}

/// What a number of [`ask_rarely`] stands for.
#[inline(always)]
fn reason(number: u32) -> Option<Reason> {
    match number {
        ADMITTED => None,
        TOO_LARGE => Some(Reason::TooLarge),
        _ => Some(Reason::Quota),
    }
}

/// Takes the price from the quotas of `also_charge`: from both or none.
#[inline(never)]
fn also(control: *mut Control, case: &mut Case, cpu: CpuSlot) -> u32 {
    let first = other(control, case, 0);
    if !first.is_null() {
        let outcome = ask_rarely(first, &raw const case.asks[1], cpu);
        if outcome != ADMITTED {
            return outcome;
        }
    }
    let second = other(control, case, 1);
    if second.is_null() {
        return ADMITTED;
    }
    let outcome = ask_rarely(second, &raw const case.asks[2], cpu);
    if outcome != ADMITTED && !first.is_null() {
        give_back(first, case.asks[1].cost_ns, cpu);
    }
    outcome
}

/// The word of another tenant's bucket, and in `asks` what to ask of it; null if there is no such tenant,
/// or it has no quota.
#[inline(always)]
fn other(control: *mut Control, case: &mut Case, which: usize) -> *mut u64 {
    let id = case.plan.also_charge[which];
    let (true, Some(tenant)) = (id != 0, maps::TENANTS.get_ptr_mut(id)) else { return core::ptr::null_mut() };
    let (flags, quota) =
        settled(control, |bank| (peek!((*tenant).banks[bank].flags), peek!((*tenant).banks[bank].quota)));
    if flags & tenant_flags::UNLIMITED != 0 {
        return core::ptr::null_mut();
    }
    case.asks[1 + which] = Ask::new(case.now_ns, case.price_mru, &quota);
    // SAFETY: the word of a tenant's element.
    unsafe { &raw mut (*tenant).quota_tat }
}

/// Asks the candidate quota, which only counts.
#[inline(never)]
fn candidate(control: *mut Control, tenant: *mut Tenant, case: *mut Case) -> u32 {
    let limits = settled(control, |bank| peek!((*tenant).banks[bank].candidate));
    // SAFETY: this CPU's own scratch, and the word of a tenant's element.
    unsafe {
        (*case).asks[0] = Ask::new((*case).now_ns, (*case).price_mru, &limits);
        ask_rarely(&raw mut (*tenant).candidate_tat, &raw const (*case).asks[0], core::ptr::null_mut())
    }
}

#[inline(never)]
fn coarsely(control: *mut Control, tenant: *mut Tenant, case: *mut Case, bytes: u32, cpu: CpuSlot) -> u32 {
    let limits = settled(control, |bank| peek!((*tenant).banks[bank].tcp));
    // SAFETY: this CPU's own scratch, and the word of a tenant's element.
    unsafe {
        (*case).asks[0] = Ask::new((*case).now_ns, bytes, &limits);
        ask_rarely(&raw mut (*tenant).tcp_tat, &raw const (*case).asks[0], cpu)
    }
}

#[inline(never)]
fn reply(control: *mut Control, tenant: *mut Tenant, case: *mut Case, bytes: u32, cpu: CpuSlot) -> u32 {
    let limits = settled(control, |bank| peek!((*tenant).banks[bank].reply));
    // SAFETY: this CPU's own scratch, and the word of a tenant's element.
    unsafe {
        (*case).asks[0] = Ask::new((*case).now_ns, bytes, &limits);
        ask_rarely(&raw mut (*tenant).reply_tat, &raw const (*case).asks[0], cpu)
    }
}

/// Gives back what was taken from a bucket.
#[inline(always)]
fn give_back(word: *mut u64, cost_ns: u64, cpu: CpuSlot) {
    let mut seen = peek!(*word);
    for _ in 0..opaque::<ATTEMPTS>() {
        match swap(word, seen, refund(seen, cost_ns)) {
            Ok(()) => return,
            Err(found) => seen = found,
        }
    }
    count::event(cpu, Event::Contended);
}

/// Changes a word from `seen` to `new`; fails with what it found instead.
#[inline(always)]
fn swap(word: *mut u64, seen: u64, new: u64) -> Result<(), u64> {
    // SAFETY: a word of a map's element, aligned to 8; whoever shares it uses atomics too.
    let (found, swapped) = unsafe {
        atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(word, seen, new)
    };
    if swapped { Ok(()) } else { Err(found) }
}

/// How often a compare-and-swap is tried. Each failure means that someone else succeeded, so that only
/// more CPUs than this, all charging one tenant at once, run out of attempts.
const ATTEMPTS: u32 = 16;

const ADMITTED: u32 = 0;
const SPENT: u32 = 1;
const TOO_LARGE: u32 = 2;
