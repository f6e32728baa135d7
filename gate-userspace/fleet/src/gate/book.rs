//! The book of a gate in a fleet: a line for each limit, with what was given out since the last report, and what the limit's owner
//! said that may be given out.
//!
//! **Loss.** What an owner said holds until [`KEPT`] intervals have passed without another word of its. Then gate takes its
//! part of the limit as one of as many gates as there were (or its own quota, as configured).
//!
//! **Owners that come and go.** A name moves to its next owner ([`Book::follow`]). What the last owner said holds as above until the
//! next one answers, which is told what was given out since, and the debt. What was given out until the last owner was lost, and that one may not
//! have charged, is part of the debt; what gate gave out by itself after that is charged nowhere.
//!
//! **Invariants.** Pure: time is an argument. A charge is in exactly one report, which is charged once.

mod first;
mod handover;
mod owners;
mod reserved;

use std::collections::{BTreeMap, HashMap};

use gate_common::units::{MilliRu, Nanos};

use super::debt::Debt;
use super::grant::Grant;
use super::link::{Entry, Handover, Link, Unfit};
use crate::wire::{Answer, Limit, MOST_ENTRIES, Report, Welcome, decoded, value};
use gate_limits::Name;
use gate_policy::fleet_share::{LONGEST_DEBT, reject_until};
use gate_policy::rate::Rate;
use gate_policy::reservations::Wanted;

/// The quota of a limit whose owner is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLost {
    /// The limit, divided by the number of gates.
    #[default]
    Share,
    /// This gate's own quota.
    Local,
}

/// How the book is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two reports.
    pub interval: Nanos,
    /// The quota without an owner.
    pub on_lost: OnLost,
}

/// The book. See the [module](self).
#[derive(Debug)]
pub struct Book {
    settings: Settings,
    lines: Vec<Line>,
    by_name: HashMap<Name, u32>,
    /// Places of lines that were released.
    vacant: Vec<u32>,
    /// The present owners' addresses and numbers, in the order of the addresses.
    owners: Vec<(String, usize)>,
    /// By owner's number.
    links: BTreeMap<usize, Link>,
    /// The number of the next owner that comes.
    next: usize,
    /// The revision of etcd at which the owners are these; 0 without etcd.
    revision: u64,
    handover: Handover,
}

#[derive(Debug)]
struct Line {
    name: Name,
    /// Its owner's number; `None` before the first owner is known.
    owner: Option<usize>,
    handle: Option<u32>,
    charged: u64,
    refused: u64,
    /// Given back of what was charged in reports before.
    returned: u64,
    /// The part of `charged` from before the owner was lost; `None` if nothing was counted since.
    charged_before_loss: Option<u64>,
    answer: LastAnswer,
    /// When the bucket will be full, as the owner last said.
    debt: Debt,
    /// When it was last counted in.
    counted: Nanos,
    /// The reports with it that are not answered yet: at most one to each owner.
    unanswered: u32,
    /// Until then what the last owner said holds, although this one has said nothing.
    kept_until: Nanos,
    /// For Envoys; `None` if none has any of it.
    reservation: Option<Reservation>,
}

/// A limit of which a part is reserved.
#[derive(Clone, Copy, Debug)]
struct Reservation {
    wanted: Wanted,
    since: Nanos,
    /// The part, as the owner last said.
    part: Option<u64>,
}

/// The last answer of a limit's owner.
#[derive(Clone, Copy, Debug, Default)]
struct LastAnswer {
    /// True if it has said anything.
    is_known: bool,
    /// `None` if it has said nothing, or that there is no such limit.
    limit: Option<Limit>,
    limited: Option<Limited>,
    left: Left,
}

/// The knowledge of what is left at the owner, of a limit with a long burst.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// True if the owner has said something that has not been looked at.
    is_new: bool,
    /// In thousandths of a request unit; `None` where gates are held back, or the burst is short.
    known: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Limited {
    rate: Rate,
    burst: u64,
    reject_until: Nanos,
}

/// The changes among the owners.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The numbers of those that have left.
    pub left: Vec<usize>,
    /// The numbers and addresses of new ones.
    pub joined: Vec<(usize, String)>,
}

/// An owner of limits, as this gate knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownOwner {
    /// Its address.
    pub address: String,
    /// True if what it said last does not hold any more, or it has said nothing yet.
    pub is_lost: bool,
    /// The time since its last answer; `None` if there was none.
    pub answered_ago: Option<Nanos>,
    /// How many gates share its limits, this one among them, as it said last; 0 if it has not.
    pub gates: u32,
    /// How many limits this gate reports to it.
    pub limits: usize,
}

/// How a session goes on.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one lives at a time, for each new connection to an owner")]
pub enum Resumed {
    /// As before; with the report that was not answered, to be sent again.
    Known(Option<Report>),
    /// From the beginning: the connection has to be made anew.
    Anew,
}

impl Book {
    /// An empty book, without owners.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            lines: Vec::new(),
            by_name: HashMap::new(),
            vacant: Vec::new(),
            owners: Vec::new(),
            links: BTreeMap::new(),
            next: 0,
            revision: 0,
            handover: Handover::default(),
        }
    }

    /// How it is kept.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The line of a limit, made if there is none.
    pub fn line(&mut self, name: &Name) -> u32 {
        if let Some(&line) = self.by_name.get(name) {
            return line;
        }
        let line = Line {
            name: name.clone(),
            owner: self.owner_of(name),
            handle: None,
            charged: 0,
            refused: 0,
            returned: 0,
            charged_before_loss: None,
            answer: LastAnswer::default(),
            debt: Debt::NONE,
            counted: Nanos::ZERO,
            unanswered: 0,
            kept_until: Nanos::ZERO,
            reservation: None,
        };
        let place = match self.vacant.pop() {
            Some(place) => {
                self.lines[place as usize] = line;
                place
            }
            None => {
                self.lines.push(line);
                self.lines.len() as u32 - 1
            }
        };
        self.by_name.insert(name.clone(), place);
        place
    }

    /// Notes what was given out, and refused for this limit's sake, in thousandths of a request unit.
    pub fn count(&mut self, line: u32, now: Nanos, charged: u64, refused: u64) {
        let known = self.lines.get(line as usize);
        let is_lost = known.is_some_and(|line| {
            now > line.kept_until && line.owner.is_some_and(|owner| self.has_lost(owner, now))
        });
        if let Some(line) = self.lines.get_mut(line as usize) {
            if is_lost {
                line.charged_before_loss.get_or_insert(line.charged);
            }
            line.charged = line.charged.saturating_add(charged);
            line.refused = line.refused.saturating_add(refused);
            line.counted = now;
        }
    }

    /// Notes what was given back. What is not charged yet is charged no more; the owner is told of the rest.
    pub fn give_back(&mut self, line: u32, now: Nanos, amount: u64) {
        let Some(line) = self.lines.get_mut(line as usize) else { return };
        let unreported = amount.min(line.charged);
        line.charged -= unreported;
        line.charged_before_loss = line.charged_before_loss.map(|before| before.min(line.charged));
        line.returned = line.returned.saturating_add(amount - unreported);
        line.counted = now;
    }

    /// Takes a line out of the book, if nothing was counted in it for [`IDLE`] and nothing of it is left to say, here or at its
    /// owner. True if it did: its number may be that of another name's line then.
    pub fn release(&mut self, line: u32, now: Nanos) -> bool {
        let Some(idle) = self.lines.get(line as usize) else { return false };
        let is_idle = now > idle.counted.saturating_add(IDLE)
            && (idle.charged, idle.refused, idle.returned) == (0, 0, 0)
            && idle.answer.limited.is_none()
            && idle.debt.full_in(now) == Nanos::ZERO
            && idle.reservation.is_none()
            && idle.unanswered == 0;
        if is_idle {
            let link = idle.owner.and_then(|owner| self.links.get_mut(&owner));
            link.zip(idle.handle).into_iter().for_each(|(link, handle)| link.forget(handle));
            self.by_name.remove(&idle.name);
            self.vacant.push(line);
        }
        is_idle
    }

    /// The part of a limit that may be given out; `None` if that is gate's own affair.
    #[must_use]
    pub fn grant(&self, line: u32, now: Nanos) -> Option<Grant> {
        let line = self.lines.get(line as usize)?;
        let limit = line.answer.limit?;
        let link = self.links.get(&line.owner?)?;
        let whole = Grant::of(&limit);
        if now > line.kept_until && self.is_lost(link, now) {
            let gates = u64::from(link.gates().max(1));
            return (self.settings.on_lost == OnLost::Share).then(|| whole.one_of(gates));
        }
        if line.debt.is_of_window_before(now) {
            return None;
        }
        let Some(limited) = line.answer.limited else {
            return Some(self.part_of_left(line, whole).unwrap_or(whole));
        };
        let reject_for = limited.reject_until.saturating_sub(now);
        Some(Grant { reject_for, ..whole.part(limited.rate.min(limit.rate_of_share()), limited.burst) })
    }

    /// True if an owner has not answered for too long.
    #[must_use]
    pub fn has_lost(&self, owner: usize, now: Nanos) -> bool {
        self.links.get(&owner).is_none_or(|link| self.is_lost(link, now))
    }

    fn is_lost(&self, link: &Link, now: Nanos) -> bool {
        link.answered().is_none_or(|answered| now > self.kept_until(answered))
    }

    /// Until when an answer holds.
    fn kept_until(&self, answered: Nanos) -> Nanos {
        answered.saturating_add(Nanos(self.settings.interval.0.saturating_mul(KEPT)))
    }

    /// The first words on a stream to an owner; `None` if it has left.
    #[must_use]
    pub fn hello(&mut self, owner: usize, gate: &str) -> Option<Report> {
        Some(self.links.get_mut(&owner)?.hello(gate, self.settings.interval, self.handover))
    }

    /// Takes in an owner's first words. If it does not know the session, another one begins, which is called `session`, and in which
    /// what was not answered is reported again.
    pub fn resume(&mut self, owner: usize, welcome: &Welcome, session: u64) -> Resumed {
        let Some(link) = self.links.get_mut(&owner) else { return Resumed::Anew };
        let charged = if welcome.ended > 0 { link.end(welcome.ended) } else { Vec::new() };
        for entry in charged {
            let line = self.lines.get_mut(entry.line as usize);
            line.into_iter().for_each(|line| line.unanswered = line.unanswered.saturating_sub(1));
        }
        let Some(link) = self.links.get_mut(&owner) else { return Resumed::Anew };
        if welcome.ended == 0 && link.is_known(welcome) {
            return Resumed::Known(link.again(self.revision).cloned());
        }
        self.restart(owner, session);
        Resumed::Anew
    }

    /// Begins another session with an owner where the present one has many handles of lines that are no more. True if it did: the
    /// connection has to be made anew.
    pub fn renew(&mut self, owner: usize, draw: impl FnOnce() -> u64) -> bool {
        let is_worn = self.links.get(&owner).is_some_and(|link| link.is_worn() && !link.is_waiting());
        if is_worn {
            self.restart(owner, draw());
        }
        is_worn
    }

    fn restart(&mut self, owner: usize, session: u64) {
        let unanswered = self.links.get_mut(&owner).map(|link| link.restart(session));
        self.take_back(unanswered.unwrap_or_default());
        self.lines.iter_mut().filter(|line| line.owner == Some(owner)).for_each(|line| line.handle = None);
    }

    /// Reports in vain are still to be made.
    fn take_back(&mut self, unanswered: Vec<Entry>) {
        for entry in unanswered {
            let Some(line) = self.lines.get_mut(entry.line as usize) else { continue };
            line.unanswered = line.unanswered.saturating_sub(1);
            line.charged = line.charged.saturating_add(entry.charged);
            line.refused = line.refused.saturating_add(entry.refused);
            line.returned = line.returned.saturating_add(entry.returned);
            line.charged_before_loss =
                line.charged_before_loss.map(|before| before.saturating_add(entry.charged));
        }
    }

    /// True if the last report to an owner is not answered yet.
    #[must_use]
    pub fn is_waiting(&self, owner: usize) -> bool {
        self.links.get(&owner).is_some_and(Link::is_waiting)
    }

    /// The next report to an owner; `None` while one is not answered. Reported are lines in which something has happened, in which
    /// gate has a part, and that the owner does not know although there is a debt.
    pub fn report(&mut self, owner: usize, now: Nanos) -> Option<Report> {
        let link = self.links.get_mut(&owner).filter(|link| !link.is_waiting())?;
        let lines = &mut self.lines;
        let mut entries = Vec::new();
        let mut introductions = 0;
        for (place, line) in lines.iter_mut().enumerate().filter(|(_, line)| line.owner == Some(owner)) {
            let is_new = line.handle.is_none();
            if is_new && introductions == MOST_INTRODUCTIONS {
                continue;
            }
            let has_debt = is_new && line.debt.full_in(now) > Nanos::ZERO;
            let wanted = line.reservation.map(|reservation| reservation.wanted);
            let has_part = line.answer.limited.is_some() || wanted.is_some();
            if line.charged > 0 || line.refused > 0 || line.returned > 0 || has_part || has_debt {
                entries.push(Entry {
                    line: place as u32,
                    charged: std::mem::take(&mut line.charged),
                    refused: std::mem::take(&mut line.refused),
                    returned: std::mem::take(&mut line.returned),
                    handle: line.handle,
                    wanted,
                });
                introductions += usize::from(is_new);
                line.charged_before_loss = None;
                line.unanswered += 1;
            }
            if entries.len() == MOST_ENTRIES {
                break;
            }
        }
        Some(link.report(now, self.revision, entries, |place, handle| {
            let line = &mut lines[place as usize];
            line.handle = Some(handle);
            line.introduction(now)
        }))
    }

    /// Takes in an answer. Of a name that has moved meanwhile only the debt counts.
    ///
    /// # Errors
    ///
    /// [`Unfit`].
    pub fn answer(&mut self, owner: usize, now: Nanos, answer: &Answer) -> Result<(), Unfit> {
        let link = self.links.get_mut(&owner).ok_or(Unfit)?;
        let entries = link.answer(now, answer)?;
        for limit in &answer.limits {
            let Some(line) = link.line(limit.handle)? else { continue };
            self.lines[line as usize].answer.limit = (limit.per_sec > 0).then_some(*limit);
        }
        for (place, entry) in entries.iter().enumerate() {
            let Some(line) = self.lines.get_mut(entry.line as usize) else { continue };
            line.unanswered = line.unanswered.saturating_sub(1);
            if answer.without_limits {
                continue;
            }
            let burst = Nanos::from_micros(line.answer.limit.map_or(0, |limit| limit.burst_us));
            let full_in = Nanos::from_millis(value(&answer.full_in_ms, place));
            let full_in = full_in.min(burst.saturating_add(LONGEST_DEBT));
            let window = Nanos::from_millis(value(&answer.window_left_ms, place));
            let debt = Debt::of(now, full_in, window);
            if line.owner != Some(owner) {
                line.debt = line.debt.or_larger(debt, now);
                continue;
            }
            let per_sec = value(&answer.per_sec, place);
            line.answer.is_known = true;
            line.answer.limited = (per_sec > 0).then(|| Limited {
                rate: decoded(per_sec, value(&answer.nano_per_sec, place)),
                burst: value(&answer.burst_ru, place).saturating_mul(MilliRu::ONE_RU.0.into()),
                reject_until: reject_until(now.saturating_add(full_in), burst),
            });
            line.debt = debt;
            line.answer.left.is_new = true;
        }
        let reserving = entries.iter().filter(|entry| entry.wanted.is_some()).map(|entry| entry.line);
        self.follow_reserved(owner, reserving, answer);
        Ok(())
    }
}

/// The time without a charge after which a line may be released.
pub const IDLE: Nanos = Nanos::from_secs(10);
/// Intervals without an answer until an owner is lost: one until the next answer is due, and two in which the last one is kept.
pub const KEPT: u64 = 3;
/// The most new names of one report.
const MOST_INTRODUCTIONS: usize = 16_384;
