//! The bucket of one name.

use gate_common::token_bucket::{Limits, Rate, Take, at_another_rate, refund, settle, take};
use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};

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
        let remaining = limits.rate.units_per_sec().map_or(u64::MAX, |per_sec| {
            // To the nearest: the price of each charge was rounded up to a nanosecond.
            let units = u128::from(held) * u128::from(per_sec) + u128::from(NANOS_PER_SEC / 2);
            let units = units / u128::from(NANOS_PER_SEC);
            u64::try_from(units).unwrap_or(u64::MAX)
        });
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
    let Some(per_sec) = limits.rate.units_per_sec().filter(|_| by > 1) else { return limits };
    let amount = |nanos: u64| u128::from(nanos) * u128::from(per_sec) / u128::from(NANOS_PER_SEC);
    let burst = amount(limits.burst_ns);
    let part = (burst / u128::from(by)).max(u128::from(MilliRu::ONE_RU.0)).min(burst);
    let dearest = burst + amount(limits.max_debt_ns);
    let per_sec = (per_sec / u64::from(by)).max(1);
    let time_for = |amount: u128| {
        u64::try_from(amount * u128::from(NANOS_PER_SEC) / u128::from(per_sec)).unwrap_or(u64::MAX)
    };
    Limits { rate: Rate::per_sec(per_sec), burst_ns: time_for(part), max_debt_ns: time_for(dearest - part) }
}

/// A bucket: its word, its limits, and the refusals that were decided from outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    tat: u64,
    limits: Limits,
    reject_until: Nanos,
}

impl Bucket {
    /// A full one.
    pub(super) const fn full(limits: Limits) -> Self {
        Self { tat: 0, limits, reject_until: Nanos::ZERO }
    }

    pub(super) fn take(&mut self, cost: MilliRu, now: Nanos) -> Result<(), Refusal> {
        self.ask(cost, now).map(|tat| self.tat = tat)
    }

    /// The word after a charge, which is not made.
    pub(super) fn ask(&self, cost: MilliRu, now: Nanos) -> Result<u64, Refusal> {
        if now < self.reject_until && cost != MilliRu::ZERO {
            return Err(Refusal::Until(self.reject_until.saturating_sub(now)));
        }
        match take(self.tat, now.0, cost.0, &self.limits) {
            Take::Admit { tat } => Ok(tat),
            Take::Refuse { wait_ns } => Err(Refusal::Until(Nanos(wait_ns))),
            Take::TooLarge => Err(Refusal::TooLarge),
        }
    }

    pub(super) fn give_back(&mut self, cost: MilliRu) {
        self.tat = refund(self.tat, self.limits.rate.time_for(cost.0));
    }

    pub(super) fn settle(&mut self, cost: MilliRu, now: Nanos) {
        self.tat = settle(self.tat, now.0, cost.0, &self.limits);
    }

    /// Sets another share; what has been taken is still out.
    pub(super) fn set(&mut self, share: Share, now: Nanos) {
        if share.limits.rate != self.limits.rate {
            self.tat = at_another_rate(self.tat, now.0, self.limits.rate, share.limits.rate);
        }
        self.limits = share.limits;
        self.reject_until = share.reject_until;
    }

    /// Has it hold so many thousandths of a request unit, up to its burst.
    pub(super) fn set_left(&mut self, left: u64, now: Nanos) {
        let Some(per_sec) = self.limits.rate.units_per_sec() else { return };
        let time = u128::from(left) * u128::from(NANOS_PER_SEC) / u128::from(per_sec.max(1));
        let time = u64::try_from(time).unwrap_or(u64::MAX);
        self.tat = now.0.saturating_add(self.limits.burst_ns.saturating_sub(time));
    }

    /// True if a new bucket would be no different.
    pub(super) fn is_full(&self, now: Nanos) -> bool {
        self.tat <= now.0 && self.reject_until <= now
    }

    pub(super) fn standing(&self, now: Nanos) -> Standing {
        let standing = Standing::of(self.limits, Nanos(self.tat.saturating_sub(now.0)));
        if now < self.reject_until {
            let reset = standing.reset.max(self.reject_until.saturating_sub(now));
            return Standing { remaining: 0, reset, ..standing };
        }
        standing
    }
}
