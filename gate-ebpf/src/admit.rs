//! Whether a request passes: what the daemon pushed, then the buckets, all or none.

use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use aya_ebpf::cty::{c_long, c_void};
use aya_ebpf::helpers::generated::bpf_loop;
use gate_common::abi::{Control, Event, Reason, Shed, Tenant, draw, tenant_flags};
use gate_common::token_bucket::{Limits, Take, refund, take_time};
use gate_common::units::Fraction;

use crate::count::{self, Tally};
use crate::judge::Case;
use crate::maps::{self, peek};
use crate::plan::{Plan, settled};

/// Refusals that the daemon pushed. Not to be asked while the heartbeat is stale.
#[inline(always)]
pub(crate) fn pushed(plan: &Plan, now_ns: u64) -> Result<(), Reason> {
    if now_ns < plan.reject_until_ns {
        return Err(Reason::RejectedUntil);
    }
    if plan.tenant_flags & tenant_flags::PENALTY != 0 || plan.rung >= Shed::REFUSED {
        return Err(Reason::Penalty);
    }
    if plan.rejection_rate != 0 {
        let rate = Fraction::from_steps(plan.rejection_rate);
        if count::draw().is_some_and(|state| rate.covers(draw::share(state))) {
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
}

impl Purse {
    /// Takes the case's price from the tenant's quota and from those that it charges as well: from all or none.
    #[inline(always)]
    pub(crate) fn charge(&self, tally: impl FnOnce() -> Tally) -> Result<(), Reason> {
        let case = self.case();
        if case.plan.tenant_flags & tenant_flags::CANDIDATE != 0
            && candidate(self.control, self.tenant, case) != Outcome::Admitted
        {
            tally().candidate_refused();
        }
        let own = case.plan.tenant_flags & tenant_flags::UNLIMITED == 0;
        // SAFETY: the word of a tenant's element.
        let word = unsafe { &raw mut (*self.tenant).quota_tat };
        if own {
            case.asks[0] = Ask::new(case.now_ns, case.price_mru, &case.plan.quota);
            case.asks[0].ask(word).result()?;
        }
        if case.plan.also_charge[0] | case.plan.also_charge[1] == 0 {
            return Ok(());
        }
        let charged = also(self.control, case).result();
        if charged.is_err() && own {
            case.asks[0].give_back(word);
        }
        charged
    }

    /// Takes bytes from the coarse second line of proxied TCP.
    #[inline(always)]
    pub(crate) fn takes_coarsely(&self, bytes: u32) -> bool {
        coarsely(self.control, self.tenant, self.case(), bytes) == Outcome::Admitted
    }

    /// Takes bytes from the budget for replies.
    #[inline(always)]
    pub(crate) fn may_reply(&self, bytes: u32) -> bool {
        reply(self.control, self.tenant, self.case(), bytes) == Outcome::Admitted
    }

    #[inline(always)]
    fn case(&self) -> &'static mut Case {
        // SAFETY: this CPU's own scratch; nobody else refers to it while a packet is judged.
        unsafe { &mut *self.case }
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
    /// Whether what was taken is given back.
    back: bool,
    outcome: Outcome,
}

/// What came of asking a bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Its word was changed.
    Admitted,
    /// It does not hold that much.
    Spent,
    /// It never will.
    TooLarge,
    /// Someone else was faster: to be asked again.
    Busy,
}

impl Ask {
    #[inline(always)]
    fn new(now_ns: u64, cost: u32, limits: &Limits) -> Self {
        let Limits { rate, burst_ns, max_debt_ns } = *limits;
        let cost_ns = rate.time_for(cost);
        Self { now_ns, cost_ns, burst_ns, max_debt_ns, back: false, outcome: Outcome::Busy }
    }

    /// Asks the bucket whose word this is, by compare-and-swap.
    #[inline(always)]
    fn ask(&mut self, word: *mut u64) -> Outcome {
        match self.attempt(word) {
            Outcome::Busy => insist(word, self),
            outcome => outcome,
        }
    }

    /// Gives back what was taken.
    #[inline(always)]
    fn give_back(&mut self, word: *mut u64) {
        self.back = true;
        self.ask(word);
    }

    #[inline(always)]
    fn attempt(&self, word: *mut u64) -> Outcome {
        let seen = peek!(*word);
        let new = if self.back {
            refund(seen, self.cost_ns)
        } else {
            match take_time(seen, self.now_ns, self.cost_ns, self.burst_ns, self.max_debt_ns) {
                Take::Admit { tat } => tat,
                Take::Refuse { .. } => return Outcome::Spent,
                Take::TooLarge => return Outcome::TooLarge,
            }
        };
        // SAFETY: a word of a map's element, aligned to 8; whoever shares it uses atomics too.
        let (_, swapped) = unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(word, seen, new)
        };
        if swapped { Outcome::Admitted } else { Outcome::Busy }
    }
}

/// Asks again where someone else was faster.
#[inline(never)]
fn insist(word: *mut u64, ask: &mut Ask) -> Outcome {
    let mut step = Step { word, ask };
    // SAFETY: `take_step` has the signature that the helper calls, and what it gets outlives the call.
    unsafe { bpf_loop(ATTEMPTS - 1, take_step as *mut c_void, (&raw mut step).cast(), 0) };
    // SAFETY: this CPU's own scratch.
    let outcome = unsafe { (*step.ask).outcome };
    if outcome == Outcome::Busy {
        count::event(Event::Contended);
        return Outcome::Spent;
    }
    outcome
}

/// What a step gets.
struct Step {
    word: *mut u64,
    ask: *mut Ask,
}

/// The helper's signature; goes on while it returns zero.
unsafe extern "C" fn take_step(_index: u32, step: *mut c_void) -> c_long {
    // SAFETY: what `insist` lent to the helper.
    let (word, ask) = unsafe {
        let step = step.cast::<Step>();
        ((*step).word, &mut *(*step).ask)
    };
    ask.outcome = ask.attempt(word);
    c_long::from(ask.outcome != Outcome::Busy)
}

impl Outcome {
    #[inline(always)]
    fn result(self) -> Result<(), Reason> {
        match self {
            Self::Admitted => Ok(()),
            Self::TooLarge => Err(Reason::TooLarge),
            Self::Spent | Self::Busy => Err(Reason::Quota),
        }
    }
}

/// Takes the price from the quotas of `also_charge`: from both or none.
#[inline(never)]
fn also(control: *mut Control, case: &mut Case) -> Outcome {
    let first = other(control, case, 0);
    if !first.is_null() {
        let outcome = case.asks[1].ask(first);
        if outcome != Outcome::Admitted {
            return outcome;
        }
    }
    let second = other(control, case, 1);
    if second.is_null() {
        return Outcome::Admitted;
    }
    let outcome = case.asks[2].ask(second);
    if outcome != Outcome::Admitted && !first.is_null() {
        case.asks[1].give_back(first);
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
fn candidate(control: *mut Control, tenant: *mut Tenant, case: &mut Case) -> Outcome {
    let limits = settled(control, |bank| peek!((*tenant).banks[bank].candidate));
    case.asks[0] = Ask::new(case.now_ns, case.price_mru, &limits);
    // SAFETY: the word of a tenant's element.
    case.asks[0].ask(unsafe { &raw mut (*tenant).candidate_tat })
}

#[inline(never)]
fn coarsely(control: *mut Control, tenant: *mut Tenant, case: &mut Case, bytes: u32) -> Outcome {
    let limits = settled(control, |bank| peek!((*tenant).banks[bank].tcp));
    case.asks[0] = Ask::new(case.now_ns, bytes, &limits);
    // SAFETY: the word of a tenant's element.
    case.asks[0].ask(unsafe { &raw mut (*tenant).tcp_tat })
}

#[inline(never)]
fn reply(control: *mut Control, tenant: *mut Tenant, case: &mut Case, bytes: u32) -> Outcome {
    let limits = settled(control, |bank| peek!((*tenant).banks[bank].reply));
    case.asks[0] = Ask::new(case.now_ns, bytes, &limits);
    // SAFETY: the word of a tenant's element.
    case.asks[0].ask(unsafe { &raw mut (*tenant).reply_tat })
}

/// How often a compare-and-swap is tried. Each failure means that someone else succeeded, so that only
/// more CPUs than this, all charging one tenant at once, run out of attempts.
const ATTEMPTS: u32 = 16;
