//! The bucket of one name.

use gate_common::token_bucket::{Take, refund, take_time};
use gate_common::units::{MilliRu, Nanos};

use super::quota::Limits;
use gate_policy::rate::Rate;

/// The bucket of a name here, set from outside: its share of a quota that several gates share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The bucket.
    pub limits: Limits,
    /// Until then everything is refused; zero for not at all.
    pub reject_until: Nanos,
}

/// How full a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its limits.
    pub limits: Limits,
    /// The thousandths of a request unit that it holds; `u64::MAX` without a limit.
    pub remaining: u64,
    /// The time until it is full.
    pub reset: Nanos,
}

impl Standing {
    /// That of a bucket that is full after `reset`.
    #[must_use]
    pub fn of(limits: Limits, reset: Nanos) -> Self {
        let held = limits.burst_ns.saturating_sub(reset.0);
        // To the nearest: the price of each charge was rounded up to a nanosecond.
        let half = limits.rate.time_for(1) / 2;
        let remaining = limits.rate.amount_in(held.saturating_add(half));
        Self { limits, remaining, reset }
    }
}

/// Why a bucket refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not now; the same request would pass after this time.
    Until(Nanos),
    /// Never: it would leave more debt than is allowed.
    TooLarge,
}

/// A part of limits, one of so many: of the rate, and of the burst at least one request unit. What was the dearest request still is, while the
/// bucket is full.
pub(super) fn divided(limits: Limits, by: u32) -> Limits {
    if by <= 1 || limits.rate == Rate::UNLIMITED {
        return limits;
    }
    let burst = limits.rate.amount_in(limits.burst_ns);
    let part = (burst / u64::from(by)).max(u64::from(MilliRu::ONE_RU.0)).min(burst);
    let rate = if limits.window.is_some() { limits.rate } else { limits.rate.part(by.into()) };
    let rest = limits.dearest().saturating_sub(part);
    Limits { rate, burst_ns: rate.time_for(part), max_debt_ns: rate.time_for(rest), window: limits.window }
}

/// A bucket: its word, its limits, and the refusals that were decided from outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    tat: u64,
    limits: Limits,
    reject_until: Nanos,
    /// The beginning of the window that it counts in, in Unix time; [`NO_WINDOW`] if it knows of none.
    window: i64,
    /// The end of that window.
    ends: Nanos,
}

impl Bucket {
    /// A full one.
    pub(super) const fn full(limits: Limits) -> Self {
        Self { tat: 0, limits, reject_until: Nanos::ZERO, window: NO_WINDOW, ends: Nanos::MAX }
    }

    /// When the window began that it counts in, in Unix time; `None` if it knows of none.
    pub(super) fn window(&self) -> Option<i64> {
        (self.window != NO_WINDOW).then_some(self.window)
    }

    /// Notes the present window and its end. True if another one has begun since the last time. A clock that was set back has the bucket count
    /// on in the earlier window, and begin anew with the next one.
    pub(super) fn turn(&mut self, (window, ends): (i64, Nanos)) -> bool {
        self.ends = ends;
        let before = std::mem::replace(&mut self.window, window);
        before != NO_WINDOW && window > before
    }

    /// Counts on in the windows of another calendar: the present one of that is no new one.
    pub(super) const fn forget_window(&mut self) {
        (self.window, self.ends) = (NO_WINDOW, Nanos::MAX);
    }

    /// Begins to count anew, by these limits, in the same window.
    pub(super) const fn begin(&mut self, limits: Limits) {
        (self.tat, self.limits, self.reject_until) = (0, limits, Nanos::ZERO);
    }

    /// The clock of its word: that of a window stands still.
    const fn clock(&self, now: Nanos) -> Nanos {
        if self.limits.window.is_some() { Nanos::ZERO } else { now }
    }

    /// The time until a window ends, in the place of that in which something would come in.
    fn wait(&self, wait: Nanos, now: Nanos) -> Nanos {
        match self.limits.window {
            None => wait,
            Some(_) if self.window == NO_WINDOW => Nanos::ZERO,
            Some(_) => self.ends.saturating_sub(now),
        }
    }

    pub(super) fn take(&mut self, cost: MilliRu, now: Nanos) -> Result<(), Refusal> {
        self.ask(cost, now).map(|tat| self.tat = tat)
    }

    /// The word after a charge, which is not made.
    pub(super) fn ask(&self, cost: MilliRu, now: Nanos) -> Result<u64, Refusal> {
        if now < self.reject_until && cost != MilliRu::ZERO {
            return Err(Refusal::Until(self.reject_until.saturating_sub(now)));
        }
        let Limits { rate, burst_ns, max_debt_ns, .. } = self.limits;
        match take_time(self.tat, self.clock(now).0, rate.time_for(cost.0.into()), burst_ns, max_debt_ns) {
            Take::Admit { tat } => Ok(tat),
            Take::Refuse { wait_ns } => Err(Refusal::Until(self.wait(Nanos(wait_ns), now))),
            Take::TooLarge => Err(Refusal::TooLarge),
        }
    }

    pub(super) fn give_back(&mut self, cost: MilliRu) {
        self.tat = refund(self.tat, self.limits.rate.time_for(cost.0.into()));
    }

    pub(super) fn settle(&mut self, cost: MilliRu, now: Nanos) {
        let Limits { rate, burst_ns, max_debt_ns, .. } = self.limits;
        let now = self.clock(now);
        let start = self.tat.max(now.0);
        let most = now.0.saturating_add(burst_ns).saturating_add(max_debt_ns);
        // A word that is past the most already (the burst was lowered) keeps its debt.
        self.tat = start.saturating_add(rate.time_for(cost.0.into())).min(most.max(start));
    }

    /// Sets another share; what has been taken is still out.
    pub(super) fn set(&mut self, share: Share, now: Nanos) {
        let out = self.tat.saturating_sub(self.clock(now).0);
        let rate = self.limits.rate;
        let was_window = std::mem::replace(&mut self.limits, share.limits).window.is_some();
        let clock = self.clock(now);
        if share.limits.window.is_some() != was_window {
            self.tat = clock.0.saturating_add(out);
        }
        if share.limits.rate != rate {
            self.tat = at_another_rate(self.tat, clock, rate, share.limits.rate);
        }
        self.reject_until = share.reject_until;
    }

    /// Has it hold so many thousandths of a request unit, up to its burst.
    pub(super) fn set_left(&mut self, left: u64, now: Nanos) {
        if self.limits.rate == Rate::UNLIMITED {
            return;
        }
        let time = self.limits.rate.time_for(left);
        self.tat = self.clock(now).0.saturating_add(self.limits.burst_ns.saturating_sub(time));
    }

    /// True if a new bucket would be no different.
    pub(super) fn is_full(&self, now: Nanos) -> bool {
        self.tat <= self.clock(now).0 && self.reject_until <= now
    }

    pub(super) fn standing(&self, now: Nanos) -> Standing {
        let standing = Standing::of(self.limits, Nanos(self.tat.saturating_sub(self.clock(now).0)));
        let standing = Standing { reset: self.wait(standing.reset, now), ..standing };
        if now < self.reject_until {
            let reset = standing.reset.max(self.reject_until.saturating_sub(now));
            return Standing { remaining: 0, reset, ..standing };
        }
        standing
    }
}

/// Before any time that there is.
const NO_WINDOW: i64 = i64::MIN;

/// The word of a bucket that from now on fills at another rate: what has been taken out of it is still out.
fn at_another_rate(tat: u64, now: Nanos, from: Rate, to: Rate) -> u64 {
    if from == Rate::UNLIMITED || to == Rate::UNLIMITED {
        return tat.min(now.0);
    }
    let out = from.amount_in(tat.saturating_sub(now.0));
    if out == 0 { tat.min(now.0) } else { now.0.saturating_add(to.time_for(out)) }
}
