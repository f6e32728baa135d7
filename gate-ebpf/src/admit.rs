//! Whether a request passes: what the daemon pushed, then the buckets, all or none.

use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use aya_ebpf::Global;
use aya_ebpf::cty::{c_long, c_void};
use aya_ebpf::helpers::generated::bpf_loop;
use gate_common::abi::{Control, Event, Reason, Shed, Tenant, draw, tenant_flags};
use gate_common::token_bucket::{Limits, Take, refund, take_time};
use gate_common::units::Fraction;

use crate::count::{self, Tally};
use crate::maps::{self, peek};
use crate::plan::{Plan, settled};

/// Refusals that the daemon pushed. Not to be asked while the heartbeat is stale.
#[inline(always)]
pub(crate) fn pushed(plan: &Plan, now_ns: u64) -> Result<(), Reason> {
    if now_ns < plan.reject_until_ns {
        return Err(Reason::RejectedUntil);
    }
    if plan.tenant_flags() & tenant_flags::PENALTY != 0 {
        return Err(Reason::Penalty);
    }
    if plan.is_plain() {
        return Ok(());
    }
    if plan.rung() >= Shed::REFUSED {
        return Err(Reason::Penalty);
    }
    if plan.rejection_rate() != 0 {
        let rate = Fraction::from_steps(plan.rejection_rate());
        if count::draw().is_some_and(|state| rate.covers(draw::share(state))) {
            return Err(Reason::RejectionRate);
        }
    }
    Ok(())
}

/// Whose buckets are asked, when, and by whom.
#[derive(Clone, Copy)]
pub(crate) struct Purse {
    /// The element that says what is in force.
    pub(crate) control: *mut Control,
    /// Who pays.
    pub(crate) tenant: *mut Tenant,
    /// gate's clock.
    pub(crate) now_ns: u64,
    /// Room for what other programs are to ask.
    pub(crate) asks: *mut [Ask; 3],
}

impl Purse {
    /// Takes a price from the tenant's quota and from those that it charges as well: from all or none.
    #[inline(always)]
    pub(crate) fn charge(&self, plan: &Plan, price_mru: u32, tally: Tally) -> Result<(), Reason> {
        let Self { control, tenant, now_ns, asks } = *self;
        let flags = plan.tenant_flags();
        if flags & tenant_flags::CANDIDATE != 0
            && candidate(control, tenant, asks, now_ns, price_mru) != Outcome::Admitted
        {
            tally.candidate_refused();
        }
        let own = flags & tenant_flags::UNLIMITED == 0;
        // SAFETY: the word of a tenant's element.
        let word = unsafe { &raw mut (*tenant).quota_tat };
        let ask = Ask::new(now_ns, price_mru, &plan.quota);
        if own {
            // SAFETY: this CPU's own scratch.
            ask.put(word, unsafe { &mut (*asks)[0] }).result()?;
        }
        if plan.also_charge == 0 {
            return Ok(());
        }
        let charged = also(control, asks, plan.also_charge, now_ns, price_mru).result();
        if charged.is_err() && own {
            // SAFETY: this CPU's own scratch.
            ask.give_back(word, unsafe { &mut (*asks)[0] });
        }
        charged
    }

    /// Takes bytes from the coarse second line of proxied TCP.
    #[inline(always)]
    pub(crate) fn takes_coarsely(&self, bytes: u32) -> bool {
        coarsely(self.control, self.tenant, self.asks, self.now_ns, bytes) == Outcome::Admitted
    }

    /// Takes bytes from the budget for replies.
    #[inline(always)]
    pub(crate) fn may_reply(&self, bytes: u32) -> bool {
        reply(self.control, self.tenant, self.asks, self.now_ns, bytes) == Outcome::Admitted
    }
}

/// What is asked of a bucket.
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

    /// Asks the bucket whose word this is, by compare-and-swap. Only where someone else was faster it is written to
    /// `room`, in a map: there the verifier does not follow what becomes of it from one attempt to the next.
    #[inline(always)]
    fn put(self, word: *mut u64, room: &mut Self) -> Outcome {
        match self.attempt(word) {
            Outcome::Busy => {
                *room = self;
                insist(word, room)
            }
            outcome => outcome,
        }
    }

    /// Gives back what was taken.
    #[inline(always)]
    fn give_back(self, word: *mut u64, room: &mut Self) {
        Self { back: true, ..self }.put(word, room);
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
    unsafe { bpf_loop(ATTEMPTS.load() - 1, take_step as *mut c_void, (&raw mut step).cast(), 0) };
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

/// Takes the price from the quotas of [`TenantState::also_charge`](gate_common::abi::TenantState::also_charge):
/// from both or none.
#[inline(never)]
fn also(control: *mut Control, asks: *mut [Ask; 3], ids: u64, now_ns: u64, price_mru: u32) -> Outcome {
    // SAFETY: this CPU's own scratch; nobody else refers to it while a packet is judged.
    let [room, asks @ ..] = unsafe { &mut *asks };
    let first = other(control, ids as u32, now_ns, price_mru, &mut asks[0]);
    if !first.is_null() {
        let outcome = asks[0].put(first, room);
        if outcome != Outcome::Admitted {
            return outcome;
        }
    }
    let second = other(control, (ids >> 32) as u32, now_ns, price_mru, &mut asks[1]);
    if second.is_null() {
        return Outcome::Admitted;
    }
    let outcome = asks[1].put(second, room);
    if outcome != Outcome::Admitted && !first.is_null() {
        asks[0].give_back(first, room);
    }
    outcome
}

/// The word of another tenant's bucket, and in `ask` what to ask of it; null if there is no such tenant, or it
/// has no quota.
#[inline(always)]
fn other(control: *mut Control, id: u32, now_ns: u64, price_mru: u32, ask: &mut Ask) -> *mut u64 {
    let (true, Some(tenant)) = (id != 0, maps::TENANTS.get_ptr_mut(id)) else { return core::ptr::null_mut() };
    let (flags, quota) =
        settled(control, |bank| (peek!((*tenant).banks[bank].flags), peek!((*tenant).banks[bank].quota)));
    if flags & tenant_flags::UNLIMITED != 0 {
        return core::ptr::null_mut();
    }
    *ask = Ask::new(now_ns, price_mru, &quota);
    // SAFETY: the word of a tenant's element.
    unsafe { &raw mut (*tenant).quota_tat }
}

/// A function that asks one of a tenant's other buckets.
macro_rules! asking {
    ($(#[$doc:meta])* $name:ident, $limits:ident, $word:ident) => {
        $(#[$doc])*
        #[inline(never)]
        fn $name(control: *mut Control, tenant: *mut Tenant, asks: *mut [Ask; 3], now_ns: u64, cost: u32) -> Outcome {
            let limits = settled(control, |bank| peek!((*tenant).banks[bank].$limits));
            // SAFETY: the word of a tenant's element, and this CPU's own scratch.
            unsafe { Ask::new(now_ns, cost, &limits).put(&raw mut (*tenant).$word, &mut (*asks)[0]) }
        }
    };
}

asking! {
    /// Asks the candidate quota, which only counts.
    candidate, candidate, candidate_tat
}
asking! {
    /// Asks the coarse second line of proxied TCP.
    coarsely, tcp, tcp_tat
}
asking! {
    /// Asks the budget for replies.
    reply, reply, reply_tat
}

/// How often a compare-and-swap is tried. Each failure means that someone else succeeded, so that only
/// more CPUs than this, all charging one tenant at once, run out of attempts. Set by whoever loads the object,
/// in tests.
#[unsafe(no_mangle)]
static ATTEMPTS: Global<u32> = Global::new(16);
