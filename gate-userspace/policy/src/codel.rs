//! Controlled delay: fail early what would wait in a queue that does not drain.
//!
//! **Problem.** A queue absorbs bursts, and that is good. A queue that stays long only makes every
//! request late, and that is bad. Length does not tell the two apart; time does: in a good queue, some
//! request of the last interval waited little.
//!
//! **Sources.** Nichols, Jacobson, "Controlled Delay Active Queue Management", RFC 8289. The variant
//! for requests: Maurer, "Fail at Scale", ACM Queue 2015, as in folly's `Codel`.
//!
//! **Two laws.** [`Law::Rfc8289`] drops one request, then the next sooner and sooner, at intervals of
//! `interval / √count`: gentle, made for senders that slow down when they see a loss. Clients of a
//! store seldom do, so under [`Law::Overload`], the default, an interval in which even the shortest
//! wait was above target is followed by one in which whatever waited twice the target is dropped.
//!
//! **Deviations.** The unit is the request, not the byte: where the RFC stops below one packet's worth
//! of bytes, this stops when nothing else waits. A queue of several tiers keeps a [`Codel`] per tier
//! with a target of its own ([`TierCodels`]): the lower a tier, the less it may wait, so the lower
//! tiers' requests fail first.
//!
//! **Invariants.** Nothing is dropped that waited at most the target, nor before a whole interval has
//! passed above it. Once a wait is at or below target, dropping ends at once (RFC 8289) or with the
//! interval (overload). A clock that goes back counts as standing still. No allocation, no overflow.

use gate_common::units::Nanos;

use super::Tier;
use super::range::{OutOfRange, ensure};

/// When to drop. See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Law {
    /// One request at a time, sooner and sooner.
    Rfc8289,
    /// In an overload, everything that waited twice the target.
    #[default]
    Overload,
}

impl Law {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Rfc8289, Self::Overload];

    /// Its name in configuration and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rfc8289 => "rfc8289",
            Self::Overload => "overload",
        }
    }
}

/// The decision on a request that comes out of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request goes to the store.
    Serve,
    /// The request fails now, with reason `queue-delay`; the next one may be asked about.
    Drop,
}

/// The controller of one queue. See the [module](self).
#[derive(Clone, Debug)]
pub struct Codel {
    target: Nanos,
    interval: Nanos,
    now: Nanos,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Rfc8289(Rfc8289),
    Overload(Overload),
}

impl Codel {
    /// A controller that lets requests wait for `target`, and looks at `interval` to tell a burst
    /// from a standing queue. The RFC's values are 5 ms and 100 ms.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] unless `0 < target <= interval` and `interval` is at most an hour.
    pub fn new(law: Law, target: Nanos, interval: Nanos) -> Result<Self, OutOfRange> {
        let fits = (Nanos(1)..=Nanos::from_secs(3_600)).contains(&interval);
        ensure(fits, "interval", interval, "above 0, at most an hour")?;
        ensure((Nanos(1)..=interval).contains(&target), "target", target, "above 0, at most the interval")?;
        let state = match law {
            Law::Rfc8289 => State::Rfc8289(Rfc8289::default()),
            Law::Overload => State::Overload(Overload::default()),
        };
        Ok(Self { target, interval, now: Nanos::ZERO, state })
    }

    /// Decides about a request that leaves the queue after it `waited`, with `behind` more that wait
    /// on.
    #[inline]
    pub fn dequeue(&mut self, now: Nanos, waited: Nanos, behind: usize) -> Verdict {
        self.now = self.now.max(now);
        let stood = self.stood(waited);
        let drops = match &mut self.state {
            State::Rfc8289(state) => {
                let above = waited > self.target && behind > 0;
                state.drops(self.now, self.interval, above)
            }
            State::Overload(state) => {
                let overloaded = state.is_overloaded(self.now, self.interval, self.target, waited);
                stood || (overloaded && waited > self.target.saturating_add(self.target))
            }
        };
        if drops { Verdict::Drop } else { Verdict::Serve }
    }

    /// True if a request that has `waited` so long and still waits will be dropped whenever it comes out.
    /// Only [`Law::Overload`] can tell.
    #[must_use]
    pub fn has_given_up(&self, waited: Nanos) -> bool {
        matches!(self.state, State::Overload(_)) && self.stood(waited)
    }

    /// Whatever came out in the last interval stood before this one, so it waited at most an interval less.
    /// So a wait this long tells of a whole interval above target by itself, also in a tier that seldom gets
    /// its turn. It is more than twice the target, since that is at most the interval.
    #[inline]
    fn stood(&self, waited: Nanos) -> bool {
        waited > self.interval.saturating_add(self.target)
    }

    /// True while requests are dropped: the queue stands.
    #[must_use]
    pub fn is_dropping(&self) -> bool {
        match &self.state {
            State::Rfc8289(state) => state.dropping,
            State::Overload(state) => state.overloaded,
        }
    }
}

/// Section 5 of the RFC.
#[derive(Clone, Debug, Default)]
struct Rfc8289 {
    /// When an interval above target will be over; `None` while waits are at or below it.
    first_above: Option<Nanos>,
    dropping: bool,
    drop_next: Nanos,
    /// Drops since dropping began.
    count: u32,
    last_count: u32,
}

impl Rfc8289 {
    #[inline]
    fn drops(&mut self, now: Nanos, interval: Nanos, above: bool) -> bool {
        let may_drop = self.stands(now, interval, above);
        if !may_drop {
            // Dropping => steady: a wait at or below target, or nothing behind.
            self.dropping = false;
            return false;
        }
        if self.dropping {
            let due = now >= self.drop_next;
            if due {
                self.count = self.count.saturating_add(1);
                self.drop_next = self.drop_next.saturating_add(self.spacing(interval));
            }
            return due;
        }
        // Steady => dropping: a whole interval above target. If dropping ended only lately, it resumes
        // at the rate that it had reached.
        let since = self.count.saturating_sub(self.last_count);
        let lately = now.saturating_sub(self.drop_next) < Nanos(interval.0.saturating_mul(LATELY));
        self.count = if since > 1 && lately { since } else { 1 };
        self.dropping = true;
        self.drop_next = now.saturating_add(self.spacing(interval));
        self.last_count = self.count;
        true
    }

    /// True if waits have been above target for an interval.
    #[inline]
    fn stands(&mut self, now: Nanos, interval: Nanos, above: bool) -> bool {
        if !above {
            self.first_above = None;
            return false;
        }
        now >= *self.first_above.get_or_insert(now.saturating_add(interval))
    }

    /// The control law: `interval / √count`.
    #[inline]
    fn spacing(&self, interval: Nanos) -> Nanos {
        Nanos((interval.0 as f64 / f64::from(self.count).sqrt()) as u64)
    }
}

/// The shortest wait decides, interval by interval.
#[derive(Clone, Debug, Default)]
struct Overload {
    /// When the present interval ends.
    ends: Nanos,
    /// The shortest wait in it; `None` before the first.
    shortest: Option<Nanos>,
    /// True if waits were above target in the interval before.
    overloaded: bool,
}

impl Overload {
    #[inline]
    fn is_overloaded(&mut self, now: Nanos, interval: Nanos, target: Nanos, waited: Nanos) -> bool {
        if now >= self.ends {
            // An interval in which nothing came out says nothing: neither did a lull before it.
            let began = self.ends.saturating_sub(interval);
            let is_recent = now.saturating_sub(began) < Nanos(interval.0.saturating_mul(2));
            self.overloaded = is_recent && self.shortest.is_some_and(|shortest| shortest > target);
            self.ends = now.saturating_add(interval);
            self.shortest = None;
        }
        self.shortest = Some(self.shortest.map_or(waited, |shortest| shortest.min(waited)));
        self.overloaded
    }
}

/// A controller for each tier's queue, with the lower tiers' targets at or below those above.
#[derive(Clone, Debug)]
pub struct TierCodels([Codel; 4]);

impl TierCodels {
    /// Controllers with these targets, in the order of [`Tier::ALL`].
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] as [`Codel::new`], or if a tier's target is above that of a more critical one.
    pub fn new(law: Law, targets: [Nanos; 4], interval: Nanos) -> Result<Self, OutOfRange> {
        for (above, tier) in targets.iter().zip(&Tier::ALL[1..]) {
            let target = targets[tier.index()];
            let field = format!("target.{}", tier.name());
            ensure(target <= *above, &field, target, "at most the target of the tier above")?;
        }
        let codel = |tier: Tier| {
            Codel::new(law, targets[tier.index()], interval).map_err(|error| match error.field.as_str() {
                "target" => OutOfRange { field: format!("target.{}", tier.name()), ..error },
                _ => error,
            })
        };
        let [critical, standard, batch, best_effort] = Tier::ALL;
        Ok(Self([codel(critical)?, codel(standard)?, codel(batch)?, codel(best_effort)?]))
    }

    /// [`Codel::dequeue`] for a request of `tier`, with `behind` more of its tier that wait on.
    #[inline]
    pub fn dequeue(&mut self, tier: Tier, now: Nanos, waited: Nanos, behind: usize) -> Verdict {
        self.0[tier.index()].dequeue(now, waited, behind)
    }

    /// [`Codel::has_given_up`] on a request of `tier`.
    #[must_use]
    pub fn has_given_up(&self, tier: Tier, waited: Nanos) -> bool {
        self.0[tier.index()].has_given_up(waited)
    }

    /// True if the queue of `tier` stands.
    #[must_use]
    pub fn is_dropping(&self, tier: Tier) -> bool {
        self.0[tier.index()].is_dropping()
    }
}

/// In intervals: how lately dropping must have ended to resume where it was. The RFC's value.
const LATELY: u64 = 16;

#[cfg(test)]
mod tests;
