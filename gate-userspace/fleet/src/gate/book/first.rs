//! A name that this gate has just met, and what is left of a limit whose burst lasts long.
//!
//! **Problem.** Until an owner says something of a name, a gate gives it out by its own limits, and while nobody is held back each gate has the
//! whole. Of a limit with a burst of minutes or hours all gates together give out as many bursts as there are gates, since none of them
//! knows what the others took.
//!
//! **Rule.** A new name starts at a part of gate's own limits, one for each gate. Of a limit whose burst takes [`LONG`] or longer each answer says
//! what there is to be given out here until the next one: this gate's part of what is left at the owner, one for each gate where nobody is held
//! back. A request that is dearer than that passes all the same, if as much was left. Who gives out anything has another answer within two ticks, so
//! that all is given out where one gate alone is asked for it.

use gate_common::units::{MilliRu, Nanos};

use super::{Book, Line, OnLost};
use crate::gate::grant::Grant;
use crate::gate::link::Link;
use crate::wire::Limit;
use gate_policy::rate::Rate;

impl Book {
    /// How many gates share limits, as owners said last; 1 while none has said anything.
    #[must_use]
    pub fn gates(&self) -> u32 {
        self.links.values().map(Link::gates).max().unwrap_or(0).max(1)
    }

    /// True if gate's own limits hold for a name as a whole unless its owner grants something: it has said that there is no limit, or it is
    /// lost and gate is not to share.
    #[must_use]
    pub fn is_own(&self, line: u32, now: Nanos) -> bool {
        let Some(line) = self.lines.get(line as usize) else { return true };
        let is_lost = line.owner.is_none_or(|owner| self.has_lost(owner, now));
        let is_known = line.answer.is_known && !line.debt.is_of_window_before(now);
        is_known || is_lost && self.settings.on_lost == OnLost::Local
    }

    /// The amount that is left to give out here of a limit, if that is to be changed: in thousandths of a request unit.
    pub fn take_left(&mut self, line: u32, now: Nanos) -> Option<u64> {
        let gates = u64::from(self.gates());
        // What is under way to the owner is not in what it said last.
        let line = self.lines.get_mut(line as usize).filter(|line| line.unanswered == 0)?;
        if !std::mem::take(&mut line.answer.left.is_new) {
            return None;
        }
        // What was charged since the report is not known to the owner.
        let left = line.left(now).map(|left| left.saturating_sub(line.charged));
        let is_whole = line.answer.limited.is_none();
        line.answer.left.known = left.filter(|_| is_whole);
        left.map(|left| if is_whole { one_of(left, gates) } else { left })
    }

    /// The grant of a limit with a long burst that nobody is held back from: a part of what was left of the whole; `None` of any other.
    pub(super) fn part_of_left(&self, line: &Line, whole: Grant) -> Option<Grant> {
        let left = line.answer.left.known?;
        let burst = one_of(left, u64::from(self.gates()));
        Some(Grant { burst, max_debt: left - burst, ..whole })
    }
}

/// One part of so many, at least one request unit if there is one.
fn one_of(left: u64, parts: u64) -> u64 {
    (left / parts).max(u64::from(MilliRu::ONE_RU.0).min(left))
}

impl Line {
    /// The amount that the owner's last answer leaves to give out here, of a limit with a long burst.
    pub(super) fn left(&self, now: Nanos) -> Option<u64> {
        let limit = self.answer.limit.filter(Limit::is_long)?;
        let burst = Nanos::from_micros(limit.burst_us);
        let left = burst.saturating_sub(self.debt.full_in(now));
        let whole = limit.amount_in(limit.burst_us);
        let part = self.answer.limited.map_or(whole, |limited| limited.burst.min(whole));
        let one = u64::from(MilliRu::ONE_RU.0);
        // A gate may have one request's worth, as long as there is one.
        let least = one.min(nearest(whole, left, burst));
        Some(nearest(part, left, burst).max(least))
    }
}

impl Limit {
    /// True if its burst takes many intervals to come in again.
    fn is_long(&self) -> bool {
        Nanos::from_micros(self.burst_us) >= LONG
    }

    /// The fastest rate of a share: what is left of a long burst is given out as such, and not as a rate as well.
    pub(super) fn rate_of_share(&self) -> Rate {
        if self.is_long() { self.rate() } else { Rate::FASTEST }
    }
}

/// `amount * part / of`, to the nearest: charges were rounded up to a nanosecond.
fn nearest(amount: u64, part: Nanos, of: Nanos) -> u64 {
    let exact = u128::from(amount) * u128::from(part.0) + u128::from(of.0 / 2);
    u64::try_from(exact / u128::from(of.0.max(1))).unwrap_or(u64::MAX)
}

/// A burst that takes many intervals to come in again. One of a few is spent and paid within the time of a few answers.
const LONG: Nanos = Nanos::from_secs(1);
