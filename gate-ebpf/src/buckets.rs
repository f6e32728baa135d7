//! Admission of a request: refusals that the daemon pushed, then the token buckets, all charged or none.

use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use aya_ebpf::Global;
use aya_ebpf::cty::{c_long, c_void};
use aya_ebpf::helpers::generated::bpf_loop;
use gate_common::abi::{
    Control, Event, KeyBuckets, OtherBucket, Reason, Shed, TenantLine, TracedBucket, TracedCharge, bank_of,
    draw, tenant_flags,
};
use gate_common::token_bucket::{Limits, Take, refund, take_time};
use gate_common::units::Fraction;

use crate::counters::{self, Counters};
use crate::maps::{self, read_once, write_once};
use crate::plan::{Plan, copy_consistent};

/// Checks the refusals that the daemon pushed. Not called while the heartbeat is stale.
#[inline(always)]
pub(crate) fn check_pushed(plan: &Plan, now_ns: u64) -> Result<(), Reason> {
    if plan.is_ordinary() {
        return Ok(());
    }
    if now_ns < plan.reject_until_ns() {
        return Err(Reason::RejectedUntil);
    }
    if plan.tenant_flags() & tenant_flags::PENALTY != 0 {
        return Err(Reason::Penalty);
    }
    if plan.rung() >= Shed::REFUSED {
        return Err(Reason::Penalty);
    }
    if plan.rejection_rate() != 0 {
        let rate = Fraction::from_steps(plan.rejection_rate());
        if counters::next_random().is_some_and(|state| rate.covers(draw::share(state))) {
            return Err(Reason::RejectionRate);
        }
    }
    Ok(())
}

/// The buckets of a tenant, at a time.
#[derive(Clone, Copy)]
pub(crate) struct Buckets {
    /// The element that names the bank in force.
    pub(crate) control: *mut Control,
    /// The id of the tenant that is charged.
    pub(crate) tenant: u32,
    /// Its quota.
    pub(crate) line: *mut TenantLine,
    /// gate's clock.
    pub(crate) now_ns: u64,
    /// In scratch: the bucket that lacked the price, see [`OtherBucket`]; written for tenants with anything special.
    pub(crate) lacking: *mut u32,
    /// Scratch for charges: functions that are not inlined, and `bpf_loop`'s steps, take them from there.
    pub(crate) charges: *mut [Charge; 3],
}

impl Buckets {
    /// Takes a price from the quotas of the tenant and its parents: from all or none.
    #[inline(always)]
    pub(crate) fn charge(&self, plan: &Plan, price_mru: u32, counters: Counters) -> Result<(), Reason> {
        let Self { control, tenant, line, now_ns, lacking, charges } = *self;
        let flags = plan.tenant_flags();
        let is_ordinary = plan.takes_from_quota_only();
        if !is_ordinary
            && flags & tenant_flags::CANDIDATE != 0
            && charge_candidate(control, tenant, charges, now_ns, price_mru) != ChargeResult::Admitted
        {
            counters.count_candidate_refused();
        }
        if !is_ordinary {
            write_once!(*lacking, NO_OTHER_BUCKET);
        }
        let has_quota = is_ordinary || flags & tenant_flags::UNLIMITED == 0;
        // SAFETY: the word of a tenant's element.
        let word = unsafe { &raw mut (*line).quota_tat };
        let charge = Charge::new(now_ns, price_mru, &plan.quota);
        if has_quota {
            // SAFETY: this CPU's own scratch.
            charge.apply(TracedBucket::Quota, word, unsafe { &mut (*charges)[0] }).result()?;
        }
        if is_ordinary || plan.parents() == 0 {
            return Ok(());
        }
        let charged = charge_parents(control, charges, plan.parents(), now_ns, price_mru);
        if charged != ChargeResult::Admitted {
            let is_second = charged == ChargeResult::SecondExhausted;
            let parent = if is_second { OtherBucket::SecondParent } else { OtherBucket::FirstParent };
            write_once!(*lacking, parent as u32);
            if has_quota {
                // SAFETY: this CPU's own scratch.
                charge.refund_to(TracedBucket::Quota, word, unsafe { &mut (*charges)[0] });
            }
        }
        charged.result()
    }

    /// Takes bytes from the TCP bucket; false if it does not hold them.
    #[inline(always)]
    pub(crate) fn check_tcp_bucket(&self, bytes: u32) -> bool {
        charge_tcp_bucket(self.control, self.tenant, self.charges, self.now_ns, bytes)
            == ChargeResult::Admitted
    }

    /// True if the quota of the tenant or of a parent is half spent.
    #[inline(always)]
    pub(crate) fn is_quota_half_spent(&self, plan: &Plan) -> bool {
        let has_quota = plan.tenant_flags() & tenant_flags::UNLIMITED == 0;
        has_quota && is_half_spent(read_once!((*self.line).quota_tat), plan.quota.burst_ns, self.now_ns)
            || plan.parents() != 0 && is_parent_half_spent(self.control, plan.parents(), self.now_ns)
    }

    /// True if the TCP bucket is half spent.
    #[inline(always)]
    pub(crate) fn is_tcp_bucket_half_spent(&self) -> bool {
        is_tcp_bucket_half_spent(self.control, self.tenant, self.now_ns)
    }

    /// Takes a connection attempt from the tenant's bucket for those; false if it does not hold one.
    #[inline(always)]
    pub(crate) fn check_syn_bucket(&self) -> bool {
        charge_syn_bucket(self.control, self.tenant, self.charges, self.now_ns, SYN_COST)
            == ChargeResult::Admitted
    }

    /// Takes a connection attempt of an unknown source from its service's bucket; false if it does not hold one.
    #[inline(always)]
    pub(crate) fn check_unknown_syn_bucket(&self, service: u32) -> bool {
        charge_unknown_syn_bucket(service, self.charges, self.now_ns) == ChargeResult::Admitted
    }

    /// Takes bytes from the budget for replies; false if it does not hold them.
    #[inline(always)]
    pub(crate) fn check_reply_budget(&self, bytes: u32) -> bool {
        charge_reply_budget(self.control, self.tenant, self.charges, self.now_ns, bytes)
            == ChargeResult::Admitted
    }
}

/// Takes one request from the bucket of a hot key; false if it does not hold one.
#[inline(always)]
pub(crate) fn charge_key(word: *mut u64, limits: &Limits, charges: *mut [Charge; 3], now_ns: u64) -> bool {
    // SAFETY: this CPU's own scratch.
    let spare = unsafe { &mut (*charges)[0] };
    Charge::new(now_ns, KeyBuckets::COST, limits).apply(TracedBucket::Key, word, spare)
        == ChargeResult::Admitted
}

/// Gives a request back to the bucket of a hot key.
#[inline(always)]
pub(crate) fn refund_key(word: *mut u64, limits: &Limits, charges: *mut [Charge; 3]) {
    // SAFETY: this CPU's own scratch.
    let spare = unsafe { &mut (*charges)[0] };
    Charge::new(0, KeyBuckets::COST, limits).refund_to(TracedBucket::Key, word, spare);
}

/// A charge to a bucket, and its result.
#[derive(Clone, Copy)]
pub(crate) struct Charge {
    now_ns: u64,
    cost_ns: u64,
    burst_ns: u64,
    max_debt_ns: u64,
    /// True if the cost is given back.
    is_refund: bool,
    result: ChargeResult,
}

/// The result of a charge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChargeResult {
    /// The bucket's word was changed.
    Admitted,
    /// The bucket does not hold the cost now.
    Exhausted,
    /// The cost exceeds what the bucket can ever hold.
    TooLarge,
    /// Another CPU changed the word first: to be tried again.
    Contended,
    /// [`ChargeResult::Exhausted`], of the second of two buckets.
    SecondExhausted,
}

impl Charge {
    #[inline(always)]
    fn new(now_ns: u64, cost: u32, limits: &Limits) -> Self {
        let Limits { rate, burst_ns, max_debt_ns } = *limits;
        let cost_ns = rate.time_for(cost);
        Self { now_ns, cost_ns, burst_ns, max_debt_ns, is_refund: false, result: ChargeResult::Contended }
    }

    /// Charges the bucket with this word, by compare-and-swap. After a lost race the charge is copied to `spare`, in a
    /// map, whose contents the verifier does not track from one attempt to the next.
    #[inline(always)]
    fn apply(self, bucket: TracedBucket, word: *mut u64, spare: &mut Self) -> ChargeResult {
        let result = match self.try_apply(word) {
            ChargeResult::Contended => {
                *spare = self;
                retry_cas(word, spare)
            }
            result => result,
        };
        trace!(
            Bucket,
            bucket as u64 | (self.traced(result) as u64) << 8,
            read_once!(*word).saturating_sub(self.now_ns),
            self.cost_ns,
            self.burst_ns
        );
        result
    }

    /// A result as it is traced.
    #[inline(always)]
    fn traced(&self, result: ChargeResult) -> TracedCharge {
        match result {
            ChargeResult::TooLarge => TracedCharge::TooLarge,
            ChargeResult::Admitted if self.is_refund => TracedCharge::GivenBack,
            ChargeResult::Admitted => TracedCharge::Charged,
            _ => TracedCharge::Lacks,
        }
    }

    /// Gives the cost back.
    #[inline(always)]
    fn refund_to(self, bucket: TracedBucket, word: *mut u64, spare: &mut Self) {
        Self { is_refund: true, ..self }.apply(bucket, word, spare);
    }

    #[inline(always)]
    fn try_apply(&self, word: *mut u64) -> ChargeResult {
        let seen = read_once!(*word);
        let new = if self.is_refund {
            refund(seen, self.cost_ns)
        } else {
            match take_time(seen, self.now_ns, self.cost_ns, self.burst_ns, self.max_debt_ns) {
                Take::Admit { tat } => tat,
                Take::Refuse { .. } => return ChargeResult::Exhausted,
                Take::TooLarge => return ChargeResult::TooLarge,
            }
        };
        // SAFETY: a word of a map's element, aligned to 8; all other writers use atomics too.
        let (_, swapped) = unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(word, seen, new)
        };
        if swapped { ChargeResult::Admitted } else { ChargeResult::Contended }
    }
}

/// Repeats a charge that lost a race, up to [`ATTEMPTS`] times.
#[inline(never)]
fn retry_cas(word: *mut u64, charge: &mut Charge) -> ChargeResult {
    let mut step = CasLoop { word, charge };
    // SAFETY: `cas_step` has the signature that the helper calls, and what it gets outlives the call.
    unsafe { bpf_loop(ATTEMPTS.load() - 1, cas_step as *mut c_void, (&raw mut step).cast(), 0) };
    // SAFETY: this CPU's own scratch.
    let result = unsafe { (*step.charge).result };
    if result == ChargeResult::Contended {
        counters::count_event(Event::Contended);
        return ChargeResult::Exhausted;
    }
    result
}

/// The argument of a step.
struct CasLoop {
    word: *mut u64,
    charge: *mut Charge,
}

/// One attempt, with the signature that `bpf_loop` calls; a result of zero continues the loop.
unsafe extern "C" fn cas_step(_index: u32, step: *mut c_void) -> c_long {
    // SAFETY: the argument that `retry_cas` passed to the helper.
    let (word, charge) = unsafe {
        let step = step.cast::<CasLoop>();
        ((*step).word, &mut *(*step).charge)
    };
    charge.result = charge.try_apply(word);
    c_long::from(charge.result != ChargeResult::Contended)
}

impl ChargeResult {
    #[inline(always)]
    fn result(self) -> Result<(), Reason> {
        match self {
            Self::Admitted => Ok(()),
            Self::TooLarge => Err(Reason::TooLarge),
            Self::Exhausted | Self::Contended | Self::SecondExhausted => Err(Reason::Quota),
        }
    }
}

/// Takes the price from the quotas of [`TenantState::parents`](gate_common::abi::TenantState::parents):
/// from both or none.
#[inline(never)]
fn charge_parents(
    control: *mut Control,
    charges: *mut [Charge; 3],
    ids: u64,
    now_ns: u64,
    price_mru: u32,
) -> ChargeResult {
    // SAFETY: this CPU's own scratch; nothing else refers to it while a packet is processed.
    let [spare, charges @ ..] = unsafe { &mut *charges };
    let first = parent_bucket(control, ids as u32, now_ns, price_mru, &mut charges[0]);
    if !first.is_null() {
        let result = charges[0].apply(TracedBucket::FirstParent, first, spare);
        if result != ChargeResult::Admitted {
            return result;
        }
    }
    let second = parent_bucket(control, (ids >> 32) as u32, now_ns, price_mru, &mut charges[1]);
    if second.is_null() {
        return ChargeResult::Admitted;
    }
    let result = charges[1].apply(TracedBucket::SecondParent, second, spare);
    if result != ChargeResult::Admitted && !first.is_null() {
        charges[0].refund_to(TracedBucket::FirstParent, first, spare);
    }
    if result == ChargeResult::Exhausted { ChargeResult::SecondExhausted } else { result }
}

/// The word of a parent's bucket, and in `charge` the charge to it; null if there is no such tenant, or it
/// has no quota.
#[inline(always)]
fn parent_bucket(
    control: *mut Control,
    id: u32,
    now_ns: u64,
    price_mru: u32,
    charge: &mut Charge,
) -> *mut u64 {
    let (true, Some(line)) = (id != 0, maps::TENANT_LINES.get_ptr_mut(id)) else {
        return core::ptr::null_mut();
    };
    let (flags, quota) = copy_consistent(control, |bank| {
        let limits = Limits {
            rate: read_once!((*line).rate[bank]),
            burst_ns: read_once!((*line).burst_ns[bank]),
            max_debt_ns: read_once!((*line).max_debt_ns[bank]),
        };
        (read_once!((*line).flags[bank]), limits)
    });
    if flags & tenant_flags::UNLIMITED != 0 {
        return core::ptr::null_mut();
    }
    *charge = Charge::new(now_ns, price_mru, &quota);
    // SAFETY: the word of a tenant's line.
    unsafe { &raw mut (*line).quota_tat }
}

/// True if a bucket holds half of its burst at most.
#[inline(always)]
fn is_half_spent(tat: u64, burst_ns: u64, now_ns: u64) -> bool {
    tat.saturating_sub(now_ns) > burst_ns / 2
}

/// True if the quota of one of the tenants in `ids` is half spent.
#[inline(never)]
fn is_parent_half_spent(control: *mut Control, ids: u64, now_ns: u64) -> bool {
    let bank = bank_of(read_once!((*control).generation));
    let is_spent = |id: u32| {
        let (true, Some(line)) = (id != 0, maps::TENANT_LINES.get_ptr_mut(id)) else { return false };
        let has_quota = read_once!((*line).flags[bank]) & tenant_flags::UNLIMITED == 0;
        has_quota && is_half_spent(read_once!((*line).quota_tat), read_once!((*line).burst_ns[bank]), now_ns)
    };
    is_spent(ids as u32) || is_spent((ids >> 32) as u32)
}

#[inline(never)]
fn is_tcp_bucket_half_spent(control: *mut Control, tenant: u32, now_ns: u64) -> bool {
    let bank = bank_of(read_once!((*control).generation));
    let Some(tenant) = maps::TENANTS.get_ptr_mut(tenant) else { return false };
    is_half_spent(read_once!((*tenant).tcp_tat), read_once!((*tenant).banks[bank].tcp.burst_ns), now_ns)
}

/// Defines a function that charges one of a tenant's other buckets.
macro_rules! bucket_fn {
    ($(#[$doc:meta])* $name:ident, $limits:ident, $word:ident, $bucket:ident) => {
        $(#[$doc])*
        #[inline(never)]
        fn $name(control: *mut Control, tenant: u32, charges: *mut [Charge; 3], now_ns: u64, cost: u32) -> ChargeResult {
            let Some(tenant) = maps::TENANTS.get_ptr_mut(tenant) else { return ChargeResult::Admitted };
            let limits = copy_consistent(control, |bank| read_once!((*tenant).banks[bank].$limits));
            // SAFETY: the word of a tenant's element, and this CPU's own scratch.
            unsafe {
                let word = &raw mut (*tenant).$word;
                Charge::new(now_ns, cost, &limits).apply(TracedBucket::$bucket, word, &mut (*charges)[0])
            }
        }
    };
}

bucket_fn! {
    /// Charges the candidate quota, whose refusals are only counted.
    charge_candidate, candidate, candidate_tat, Candidate
}
bucket_fn! {
    /// Charges the TCP bucket of proxied services.
    charge_tcp_bucket, tcp, tcp_tat, Tcp
}
bucket_fn! {
    /// Charges the budget for replies.
    charge_reply_budget, reply, reply_tat, Reply
}

bucket_fn! {
    /// Charges the bucket for connection attempts.
    charge_syn_bucket, syn, syn_tat, Syn
}

/// Charges the bucket for connection attempts of unknown sources at the service in this slot. Slots in force are not
/// written, so their limits need no bank.
#[inline(never)]
fn charge_unknown_syn_bucket(slot: u32, charges: *mut [Charge; 3], now_ns: u64) -> ChargeResult {
    let Some(service) = maps::SERVICES.get_ptr_mut(slot) else { return ChargeResult::Admitted };
    let limits = read_once!((*service).unknown_syn);
    let shared_slot = read_once!((*service).unknown_syn_slot);
    let (true, Some(shared)) = (shared_slot != 0, maps::SERVICES.get_ptr_mut(shared_slot)) else {
        return ChargeResult::Admitted;
    };
    // SAFETY: the word of a service's element, and this CPU's own scratch.
    unsafe {
        let word = &raw mut (*shared).unknown_syn_tat;
        Charge::new(now_ns, SYN_COST, &limits).apply(TracedBucket::UnknownSyn, word, &mut (*charges)[0])
    }
}

/// The value of [`Buckets::lacking`] while no other bucket than the tenant's own lacks anything.
const NO_OTHER_BUCKET: u32 = u32::MAX;

/// One connection attempt, in the thousandths that buckets for them count.
const SYN_COST: u32 = 1_000;

/// The number of attempts at a compare-and-swap. Each failure means that another CPU succeeded: attempts run out only
/// while more CPUs than this charge one tenant at once. Tests set it when they load the object.
#[unsafe(no_mangle)]
static ATTEMPTS: Global<u32> = Global::new(16);
