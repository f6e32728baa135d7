//! One gate's session: its handles, its numbers, and what a report does.

use std::sync::Arc;

use gate_common::units::{MilliRu, Nanos};

use super::accounts::{Account, Accounts, per_sec};
use super::counters::{Counters, Event};
use crate::fleet::wire::{
    Answer, Introduction, Limit, Report, Reservation, Reserved, column, fits, unpack, value,
};
use crate::limits::Name;
use crate::policy::fleet_share::{Share, Used};
use crate::policy::reservations::Wanted;

/// A gate's session with this owner. It outlives its streams.
#[derive(Debug)]
pub struct Session {
    /// The number that the gate has drawn for it.
    pub id: u64,
    /// The gate's own number in all accounts.
    pub gate: u32,
    /// The number of the last report that was charged.
    pub charged: u64,
    /// The time between two reports.
    interval: Nanos,
    /// By handle: the account, or the name that has none.
    handles: Vec<Result<Arc<Account>, Name>>,
    /// The rules that the gate knows its limits by.
    rules: u64,
}

/// A report that does not hold together. The session goes on where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Neither the last number nor the one after it.
    #[error("report {number} follows report {charged}")]
    Number {
        /// The one that came.
        number: u64,
        /// The last one.
        charged: u64,
    },
    /// There is not one count for each handle.
    #[error("{handles} handles with {charged} and {refused} counts")]
    Columns {
        /// How many handles.
        handles: usize,
        /// How many counts of charges.
        charged: usize,
        /// How many counts of refusals.
        refused: usize,
    },
    /// Handles do not ascend, or were not introduced.
    #[error("a handle that does not follow the last one, or was not introduced; {introduced} were")]
    Handle {
        /// How many were.
        introduced: usize,
    },
    /// More names than a session may have.
    #[error("more than {MOST_HANDLES} names in one session")]
    Names,
    /// A name that is none.
    #[error("a name that is none: {0}")]
    Name(crate::limits::NameError),
}

impl Session {
    /// A session that has just begun.
    #[must_use]
    pub const fn new(id: u64, gate: u32, interval: Nanos) -> Self {
        Self { id, gate, charged: 0, interval, handles: Vec::new(), rules: 0 }
    }

    /// The time without a report after which its grants are given back.
    #[must_use]
    pub fn release_after(&self) -> Nanos {
        RELEASE_AFTER.max(Nanos(self.interval.0.saturating_mul(4)))
    }

    /// How many names it has handles of.
    #[must_use]
    pub fn names(&self) -> usize {
        self.handles.len()
    }

    /// Charges a report, once, and answers it.
    ///
    /// # Errors
    ///
    /// [`Fault`]; then nothing has changed.
    pub fn report(
        &mut self,
        accounts: &Accounts,
        counters: &Counters,
        now: Nanos,
        report: &Report,
    ) -> Result<Answer, Fault> {
        let is_new = match report.number {
            number if number > 0 && number == self.charged => false,
            number if Some(number) == self.charged.checked_add(1) => true,
            number => return Err(Fault::Number { number, charged: self.charged }),
        };
        let names = self.check(report, is_new)?;
        let introduced_from = self.handles.len() as u32;
        let rules = accounts.rules().number;
        if self.rules != rules {
            self.find_accounts(accounts, now);
        }
        if is_new {
            for (name, introduction) in names.iter().zip(&report.introductions) {
                self.introduce(accounts, now, name, introduction);
            }
            self.charged = report.number;
        }
        counters.count(if is_new { Event::Report } else { Event::Repeated });
        let within = Nanos(report.within_us.saturating_mul(1_000));
        let mut shares = Vec::with_capacity(report.handles.len());
        for (place, handle) in unpack(&report.handles).enumerate() {
            let account = handle.and_then(|handle| self.handles.get(handle as usize)?.as_ref().ok());
            let Some(account) = account else {
                shares.push((Share::Whole, Nanos::ZERO));
                continue;
            };
            let mut state = account.lock();
            if is_new {
                let amount = |column| value(column, place).saturating_mul(report.unit.max(1));
                let used =
                    Used { within, charged: amount(&report.charged), refused: amount(&report.refused) };
                state.report(self.gate, now, used, self.debt_of(used));
            }
            shares.push((state.share(self.gate, now), state.shares.full_in(now)));
        }
        let mut answer = answer(report.number, &shares);
        let reserved =
            report.reservations.iter().filter_map(|reservation| self.reserve(now, reservation, is_new));
        answer.reserved = reserved.collect();
        let from = if self.rules == rules && is_new { introduced_from } else { 0 };
        self.rules = rules;
        answer.limits = (from..self.handles.len() as u32).map(|handle| self.limit(handle)).collect();
        Ok(answer)
    }

    /// Gives back all that it has been granted.
    pub fn release(&self) {
        for account in self.handles.iter().filter_map(|handle| handle.as_ref().ok()) {
            account.lock().shares.release(self.gate);
        }
    }

    /// The names that a report introduces, if it holds together.
    fn check(&self, report: &Report, is_new: bool) -> Result<Vec<Name>, Fault> {
        let handles = report.handles.len();
        let charged = report.charged.len();
        let refused = report.refused.len();
        if !fits(&report.charged, handles) || !fits(&report.refused, handles) {
            return Err(Fault::Columns { handles, charged, refused });
        }
        let more = if is_new { report.introductions.len() } else { 0 };
        let introduced = self.handles.len() + more;
        if introduced > MOST_HANDLES {
            return Err(Fault::Names);
        }
        if unpack(&report.handles).any(|handle| handle.is_none_or(|handle| handle as usize >= introduced)) {
            return Err(Fault::Handle { introduced });
        }
        if report.reservations.iter().any(|reservation| reservation.handle as usize >= introduced) {
            return Err(Fault::Handle { introduced });
        }
        let names = report.introductions.iter().take(more);
        names.map(|introduction| Name::parse(&introduction.name).map_err(Fault::Name)).collect()
    }

    fn introduce(&mut self, accounts: &Accounts, now: Nanos, name: &Name, introduction: &Introduction) {
        let account = accounts.account(now, name).map_err(|_| name.clone());
        if let Ok(account) = &account {
            let full_in = Nanos::from_micros(introduction.full_in_us);
            account.lock().shares.add_debt(now, full_in);
        }
        self.handles.push(account);
    }

    /// The part that may be assigned to Envoys; `None` if there is none yet, or no limit.
    fn reserve(&self, now: Nanos, reservation: &Reservation, is_new: bool) -> Option<Reserved> {
        let Reservation { handle, wanted, assigned, lasts_us } = *reservation;
        let mut state = self.handles.get(handle as usize)?.as_ref().ok()?.lock();
        let per_sec = per_sec(&state.limits?);
        let part = if is_new {
            let wanted = Wanted { wanted, assigned, lasts: Nanos::from_micros(lasts_us) };
            state.reservations.report(self.id, now, wanted, per_sec)
        } else {
            state.reservations.part(self.id)
        };
        part.map(|per_sec| Reserved { handle, per_sec })
    }

    /// Looks once more for the accounts of names that had none.
    fn find_accounts(&mut self, accounts: &Accounts, now: Nanos) {
        for handle in &mut self.handles {
            if let Err(name) = handle
                && let Ok(account) = accounts.account(now, name)
            {
                *handle = Ok(account);
            }
        }
    }

    /// The part of what was used that becomes a debt. A gate that was cut off for longer than [`Session::release_after`] has given out what
    /// it had taken for its part, while others were granted all. One interval's worth is left of that: by it the account knows how
    /// much is asked for.
    fn debt_of(&self, used: Used) -> Used {
        if used.within <= self.release_after() {
            return used;
        }
        let part = |amount: u64| {
            let amount = u128::from(amount) * u128::from(self.interval.0) / u128::from(used.within.0);
            u64::try_from(amount).unwrap_or(u64::MAX)
        };
        Used { within: self.interval, charged: part(used.charged), refused: part(used.refused) }
    }

    fn limit(&self, handle: u32) -> Limit {
        let account = self.handles.get(handle as usize).and_then(|handle| handle.as_ref().ok());
        let Some(limits) = account.and_then(|account| account.lock().limits) else {
            return Limit { handle, ..Limit::default() };
        };
        Limit {
            handle,
            per_sec: per_sec(&limits),
            burst_us: limits.burst_ns / 1_000,
            max_debt_us: limits.max_debt_ns / 1_000,
        }
    }
}

/// The answer to a report: each handle's share, and the time until its bucket is full.
fn answer(number: u64, shares: &[(Share, Nanos)]) -> Answer {
    let part = |of: fn(u64, u64) -> u64| {
        column(shares.iter().map(|(share, _)| match share {
            Share::Whole => 0,
            Share::Part { per_sec, burst, .. } => of(*per_sec, *burst),
        }))
    };
    Answer {
        number,
        per_sec: part(|per_sec, _| per_sec),
        burst_ru: part(|_, burst| burst.div_ceil(MilliRu::ONE_RU.0.into())),
        full_in_ms: column(shares.iter().map(|(_, full_in)| full_in.0.div_ceil(1_000_000))),
        ..Answer::default()
    }
}

/// The most names of one session.
pub const MOST_HANDLES: usize = 1 << 20;
/// The least time without a report after which a gate's grants are given back.
pub(super) const RELEASE_AFTER: Nanos = Nanos::from_secs(1);
