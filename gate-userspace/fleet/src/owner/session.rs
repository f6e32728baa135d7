//! One gate's session: its handles, its numbers, and what a report does.

use std::sync::Arc;

use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};

use super::accounts::{Account, Accounts, Without};
use super::counters::{Counters, Event};
use super::room::Footprint;
use crate::wire::{
    Answer, Introduction, Limit, MOST_ENTRIES, Report, Reservation, Reserved, column, encoded, fits, unpack,
    value,
};
use gate_limits::Name;
use gate_policy::fleet_share::{Share, Used};
use gate_policy::rate::Rate;
use gate_policy::reservations::Wanted;

/// A gate's session with this owner. It outlives its streams.
#[derive(Debug)]
pub struct Session {
    /// The number that the gate has drawn for it.
    pub id: u64,
    /// The gate's own number in all accounts.
    pub gate: u32,
    /// The number of the last report that was charged.
    pub charged: u64,
    /// The number of the last report that was charged in it before its handles were given up; 0 if they were not.
    pub ended: u64,
    /// The time between two reports.
    interval: Nanos,
    handles: Vec<Handle>,
    /// The rules that the gate is told its limits by.
    rules: u64,
    /// The handles that it has been told the limits of, and those before the last answer, which may come again.
    page: usize,
    page_before: usize,
    /// When names are looked for once more for which there was no room; `None` if there are none.
    room_at: Option<Nanos>,
    footprint: Footprint,
}

/// The meaning of a handle.
#[derive(Debug)]
enum Handle {
    Account(Arc<Account>),
    /// A name that has no account.
    Without(Name),
    /// A name that was not kept, for want of room.
    Unknown,
}

impl Handle {
    const fn account(&self) -> Option<&Arc<Account>> {
        if let Self::Account(account) = self { Some(account) } else { None }
    }
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
    /// More handles than a report may have.
    #[error("more than {MOST_ENTRIES} handles in one report")]
    Entries,
    /// The session takes more memory than it may. It is over.
    #[error("too many names: the sessions of gates have no more room, and this one takes the most")]
    Memory,
    /// Limits have changed, and the session has names that were not kept. It is over: another one introduces them again.
    #[error("limits have changed: introduce all names again")]
    Unnamed,
    /// A name that is none.
    #[error("a name that is none: {0}")]
    Name(gate_limits::NameError),
}

impl Fault {
    /// True if the session does not go on.
    #[must_use]
    pub const fn ends_session(self) -> bool {
        match self {
            Self::Memory | Self::Unnamed => true,
            Self::Number { .. }
            | Self::Columns { .. }
            | Self::Handle { .. }
            | Self::Names
            | Self::Entries
            | Self::Name(_) => false,
        }
    }
}

impl Session {
    /// A session that has just begun.
    #[must_use]
    pub fn new(id: u64, gate: u32, interval: Nanos) -> Self {
        Self {
            id,
            gate,
            charged: 0,
            ended: 0,
            interval,
            handles: Vec::new(),
            rules: 0,
            page: 0,
            page_before: 0,
            room_at: None,
            footprint: Footprint::default(),
        }
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
        let known = self.handles.len();
        let generation = accounts.rules();
        self.follow(accounts, now, generation.number)?;
        if is_new {
            self.introduce_all(accounts, now, (&names, &report.introductions))?;
            self.charged = report.number;
        }
        counters.count(if is_new { Event::Report } else { Event::Repeated });
        let wall = accounts.wall();
        let mut shares = Vec::with_capacity(report.handles.len());
        for (place, handle) in unpack(&report.handles).enumerate() {
            let handle = handle.map_or(usize::MAX, |handle| handle as usize);
            let Some(account) = self.handles.get(handle).and_then(Handle::account) else {
                shares.push((Share::Whole, Nanos::ZERO, Nanos::ZERO));
                continue;
            };
            let mut state = account.lock_at(now, wall);
            if is_new {
                let (used, returned) = self.used(report, place);
                // Of a name that the gate introduces it has gone by what others said.
                let rules = if handle < known { self.rules } else { u64::MAX };
                state.report(self.gate, now, used, (self.debt_of(used), returned), rules);
            }
            shares.push((state.share(self.gate, now), state.full_in(now), state.window_left(now)));
        }
        self.rules = generation.number;
        let mut answer = answer(report.number, &shares);
        let reserved =
            report.reservations.iter().filter_map(|reservation| self.reserve(now, reservation, is_new));
        answer.reserved = reserved.collect();
        answer.without_limits = !generation.is_known;
        if generation.is_known {
            answer.limits = self.limits_page(is_new);
        }
        Ok(answer)
    }

    /// The limits that the gate has not been told yet, a page at a time; for a report that came again the page that its answer had.
    fn limits_page(&mut self, is_new: bool) -> Vec<Limit> {
        let from = if is_new { self.page } else { self.page_before };
        let to = self.handles.len().min(from + MOST_LIMITS);
        (self.page_before, self.page) = (from, to);
        (from as u32..to as u32).map(|handle| self.limit(handle)).collect()
    }

    /// The amounts that a report has for one of its handles: what was used, and what was given back.
    fn used(&self, report: &Report, place: usize) -> (Used, u64) {
        let amount = |column| value(column, place).saturating_mul(report.unit.max(1));
        let within = Nanos(report.within_us.saturating_mul(1_000));
        let most =
            u128::from(LINK_PER_SEC) * u128::from(within.max(self.interval).0) / u128::from(NANOS_PER_SEC);
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        let used = Used {
            within,
            charged: amount(&report.charged).min(most),
            refused: amount(&report.refused).min(most),
        };
        (used, amount(&report.returned))
    }

    /// Gives back all that it has been granted.
    pub fn release(&self) {
        for account in self.handles.iter().filter_map(Handle::account) {
            account.lock().shares.release(self.gate);
        }
    }

    /// The names that a report introduces, if it holds together.
    fn check(&self, report: &Report, is_new: bool) -> Result<Vec<Name>, Fault> {
        let handles = report.handles.len();
        let charged = report.charged.len();
        let refused = report.refused.len();
        let columns = [&report.charged, &report.refused, &report.returned];
        if columns.into_iter().any(|column| !fits(column, handles)) {
            return Err(Fault::Columns { handles, charged, refused });
        }
        if handles > MOST_ENTRIES || report.reservations.len() > handles {
            return Err(Fault::Entries);
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

    /// Gives names the next handles.
    fn introduce_all(
        &mut self,
        accounts: &Accounts,
        now: Nanos,
        (names, introductions): (&[Name], &[Introduction]),
    ) -> Result<(), Fault> {
        if !self.footprint.grow(accounts.room(), names.len() * UNKNOWN_BYTES) {
            return Err(Fault::Memory);
        }
        for (name, introduction) in names.iter().zip(introductions) {
            let handle = self.find(accounts, now, name);
            if let Handle::Account(account) = &handle {
                let [full_in, window_left] =
                    [introduction.full_in_us, introduction.window_left_us].map(Nanos::from_micros);
                let mut state = account.lock_at(now, accounts.wall());
                state.take_over_debt(now, full_in, window_left);
                if introduction.held_back {
                    state.shares.hold_back(now);
                }
            }
            self.handles.push(handle);
        }
        Ok(())
    }

    /// The handle of a name, which takes more room than one that means nothing.
    fn find(&mut self, accounts: &Accounts, now: Nanos, name: &Name) -> Handle {
        let room = accounts.room();
        if self.footprint.grow(room, HANDLE_BYTES) {
            match accounts.account(now, name) {
                Ok(account) => return Handle::Account(account),
                Err(Without::Rule) => {}
                Err(Without::Room) => drop(self.room_at.get_or_insert(now.saturating_add(LOOK_FOR_ROOM))),
            }
            self.footprint.shrink(HANDLE_BYTES);
        } else {
            accounts.refuse_for_room();
        }
        if self.footprint.grow(room, NAME_BYTES + name.as_str().len()) {
            Handle::Without(name.clone())
        } else {
            Handle::Unknown
        }
    }

    /// The part that may be assigned to Envoys; `None` if there is none yet, or no limit.
    fn reserve(&self, now: Nanos, reservation: &Reservation, is_new: bool) -> Option<Reserved> {
        let Reservation { handle, wanted, assigned, lasts_us } = *reservation;
        let mut state = self.handles.get(handle as usize)?.account()?.lock();
        let per_sec = state.limits?.evenly().milli_per_sec();
        let part = if is_new {
            let wanted = Wanted { wanted, assigned, lasts: Nanos::from_micros(lasts_us) };
            state.reservations.report(self.id, now, wanted, per_sec)
        } else {
            state.reservations.part(self.id)
        };
        part.map(|per_sec| Reserved { handle, per_sec })
    }

    /// Looks once more for the accounts of names that had none, where limits have changed or there may be room by now.
    fn follow(&mut self, accounts: &Accounts, now: Nanos, rules: u64) -> Result<(), Fault> {
        let are_new = self.rules != rules;
        if are_new && self.rules > 0 && self.handles.iter().any(|handle| matches!(handle, Handle::Unknown)) {
            return Err(Fault::Unnamed);
        }
        if are_new || self.room_at.take_if(|at| *at <= now).is_some() {
            let mut has_found = are_new;
            for place in 0..self.handles.len() {
                let Handle::Without(name) = &self.handles[place] else { continue };
                let name = name.clone();
                self.footprint.shrink(NAME_BYTES + name.as_str().len());
                self.handles[place] = self.find(accounts, now, &name);
                has_found |= self.handles[place].account().is_some();
            }
            if has_found {
                (self.page, self.page_before) = (0, 0);
            }
        }
        Ok(())
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
        let account = self.handles.get(handle as usize).and_then(Handle::account);
        let Some(limits) = account.and_then(|account| account.lock().limits) else {
            return Limit { handle, ..Limit::default() };
        };
        Limit::of(handle, limits)
    }
}

/// The answer to a report: each handle's share, the time until its bucket is full, and that until its window ends.
fn answer(number: u64, shares: &[(Share, Nanos, Nanos)]) -> Answer {
    let part = |of: fn(Rate, u64) -> u64| {
        column(shares.iter().map(|(share, ..)| match share {
            Share::Whole => 0,
            Share::Part { rate, burst, .. } => of(*rate, *burst),
        }))
    };
    Answer {
        number,
        per_sec: part(|rate, _| encoded(rate).0),
        nano_per_sec: part(|rate, _| encoded(rate).1),
        burst_ru: part(|_, burst| burst.div_ceil(MilliRu::ONE_RU.0.into())),
        full_in_ms: column(shares.iter().map(|(_, full_in, _)| full_in.0.div_ceil(1_000_000))),
        window_left_ms: column(shares.iter().map(|(.., window)| window.0.div_ceil(1_000_000))),
        ..Answer::default()
    }
}

/// The most limits of one answer: with the shares of as many handles as a report may have it is smaller than the largest message.
const MOST_LIMITS: usize = 50_000;
/// The most that a gate gives out, in thousandths of a request unit per second: a link of 200 Gbit/s full of the smallest requests. What it
/// says beyond that is no count.
const LINK_PER_SEC: u64 = 300_000_000_000;
/// How often names are looked for once more for which there was no room.
const LOOK_FOR_ROOM: Nanos = Nanos::from_secs(10);
/// The memory that a handle takes, in bytes; what it takes more with an account, for the gate's part in that; and with a name, beside its text.
const UNKNOWN_BYTES: usize = 24;
const HANDLE_BYTES: usize = 40;
const NAME_BYTES: usize = 64;
/// The most names of one session.
pub const MOST_HANDLES: usize = 1 << 20;
/// The least time without a report after which a gate's grants are given back.
pub(super) const RELEASE_AFTER: Nanos = Nanos::from_secs(1);
