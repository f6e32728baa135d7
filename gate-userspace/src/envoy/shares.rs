//! Shares of one limit for the Envoys that give it out by themselves.
//!
//! **Problem.** Several Envoys subscribe to one name. Each reports what it was asked for, and gets an assignment: a token bucket
//! that holds for a while, also if nobody hears of that Envoy again.
//!
//! **Rule.** The limit is divided by demand, max-min fair: whoever is asked for less than an equal share gets what it is asked for, the
//! others divide the rest, and what nobody asks for is divided equally. With each report, its Envoy's share and those that have to shrink
//! for it are sent anew, if they differ by a tenth or half of their time has passed. Where other gates share the limit, what is divided here is the
//! part that is reserved for this gate ([`crate::policy::reservations`]); when it changes, so do the shares, without a report.
//!
//! **Invariants.** The shares that hold, those of Envoys that have left included until their time is over, never add up to more than the
//! limit: a share grows only by what others no longer have. A demand has a floor, so an idle Envoy can show that it is asked
//! again. Pure: time is an argument, and any count is safe.

use std::collections::HashMap;

use gate_common::units::{NANOS_PER_SEC, Nanos};

use crate::limits::{Assigned, Limits, Name};
use crate::policy::reservations::{FLOOR, divide};

/// A stream, by a number that no other had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct StreamId(pub(super) u64);

/// The requests of one name at one Envoy since its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) elapsed: Nanos,
}

/// The limit that is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// Not known yet: nothing is sent.
    Unknown,
    /// There is none.
    Unlimited,
    /// This, or the part of it that is reserved for this gate.
    Limited(Limits),
}

/// The message for one stream about one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing limits it.
    AllowAll {
        /// How long that holds.
        ttl: Nanos,
    },
    /// A token bucket.
    Assign {
        /// The bucket.
        tokens: Tokens,
        /// How long it holds.
        ttl: Nanos,
    },
    /// There are no more requests: the Envoy is to forget it.
    Abandon,
}

/// A token bucket in whole tokens and whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tokens {
    /// The most that it holds, and what it begins with.
    pub(super) most: u32,
    /// The tokens that come in within each interval.
    pub(super) per_fill: u32,
    /// The interval, in seconds.
    pub(super) fill_secs: u32,
}

/// The subscriptions to one name.
#[derive(Debug, Default)]
pub(super) struct Shares {
    list: Vec<Subscription>,
}

#[derive(Debug)]
struct Subscription {
    stream: StreamId,
    /// False once its stream has ended; its assignment still holds.
    is_open: bool,
    /// Requests a second, in thousandths; `None` until it is known.
    demand: Option<u64>,
    /// The rate that was sent last, in thousandths; `u64::MAX` without a limit.
    granted: u64,
    sent_at: Nanos,
    expires_at: Nanos,
    /// When a request was last reported.
    busy_at: Nanos,
    interval: Nanos,
}

impl Shares {
    /// Takes a report over and returns what is to be sent to whom.
    pub(super) fn report(
        &mut self,
        stream: StreamId,
        usage: Usage,
        whole: Whole,
        now: Nanos,
    ) -> Vec<(StreamId, Action)> {
        self.expire(now);
        let Some(place) = self.place_of(stream, now) else { return Vec::new() };
        self.list[place].take_over(usage, now);
        if now.saturating_sub(self.list[place].busy_at) >= IDLE {
            self.list.swap_remove(place);
            return vec![(stream, Action::Abandon)];
        }
        let limits = match whole {
            Whole::Unknown => return Vec::new(),
            Whole::Limited(limits) if limits.rate.units_per_sec().is_some() => limits,
            Whole::Limited(_) | Whole::Unlimited => return self.allow_all(place, now),
        };
        let targets = self.targets(limits);
        let mut actions = self.shrink(&targets, limits, Some(place), now);
        let target = targets[place].min(self.left_by_others(place, limits));
        let subscription = &self.list[place];
        let is_old = now.saturating_sub(subscription.sent_at).0 >= subscription.ttl().0 / 2;
        if is_old || differs(subscription.granted, target) {
            actions.push(self.send(place, target, limits, now));
        }
        actions
    }

    /// The limit has changed. Returns what is to be sent to whom; to those without a limit nothing before their next report.
    pub(super) fn follow(&mut self, whole: Whole, now: Nanos) -> Vec<(StreamId, Action)> {
        let Whole::Limited(limits) = whole else { return Vec::new() };
        self.expire(now);
        let targets = self.targets(limits);
        let mut actions = self.shrink(&targets, limits, None, now);
        for (place, &target) in targets.iter().enumerate() {
            let subscription = &self.list[place];
            let target = target.min(self.left_by_others(place, limits));
            if subscription.is_open && target > subscription.granted && differs(subscription.granted, target)
            {
                actions.push(self.send(place, target, limits, now));
            }
        }
        actions
    }

    /// The assignments as they are, of a limit of so much.
    pub(super) fn assigned(&self, per_sec: u64, now: Nanos) -> Assigned {
        let mut all = Assigned { wanted: 0, assigned: 0, until: now };
        for subscription in &self.list {
            let wanted = if subscription.is_open {
                subscription.demand.unwrap_or(per_sec)
            } else {
                subscription.granted
            };
            all.wanted = all.wanted.saturating_add(wanted).min(per_sec);
            all.assigned = all.assigned.saturating_add(subscription.granted);
            let next_report = if subscription.is_open { now.saturating_add(subscription.ttl()) } else { now };
            all.until = all.until.max(subscription.expires_at).max(next_report);
        }
        all
    }

    /// The stream has ended. Its assignment is somebody else's when its time is over.
    pub(super) fn leave(&mut self, stream: StreamId) {
        let left = self.list.iter_mut().filter(|subscription| subscription.stream == stream);
        left.for_each(|subscription| subscription.is_open = false);
    }

    /// True if nobody has a share any more.
    pub(super) fn is_unused(&mut self, now: Nanos) -> bool {
        self.expire(now);
        self.list.is_empty()
    }

    fn expire(&mut self, now: Nanos) {
        self.list.retain(|subscription| subscription.is_open || now < subscription.expires_at);
    }

    /// The place of a stream's subscription, which is made if there is room for one more.
    fn place_of(&mut self, stream: StreamId, now: Nanos) -> Option<usize> {
        if let Some(place) = self.list.iter().position(|subscription| subscription.stream == stream) {
            return Some(place);
        }
        if self.list.len() >= MAX_SUBSCRIPTIONS {
            return None;
        }
        self.list.push(Subscription {
            stream,
            is_open: true,
            demand: None,
            granted: 0,
            // Nothing was sent yet.
            sent_at: Nanos::ZERO,
            expires_at: now,
            busy_at: now,
            interval: DEFAULT_INTERVAL,
        });
        Some(self.list.len() - 1)
    }

    fn allow_all(&mut self, place: usize, now: Nanos) -> Vec<(StreamId, Action)> {
        let subscription = &mut self.list[place];
        let ttl = subscription.ttl();
        let is_old = now.saturating_sub(subscription.sent_at).0 >= ttl.0 / 2;
        if subscription.granted == u64::MAX && !is_old {
            return Vec::new();
        }
        subscription.note_sent(u64::MAX, now);
        vec![(subscription.stream, Action::AllowAll { ttl })]
    }

    /// Those that have to shrink do, but for this one.
    fn shrink(
        &mut self,
        targets: &[u64],
        limits: Limits,
        except: Option<usize>,
        now: Nanos,
    ) -> Vec<(StreamId, Action)> {
        let mut actions = Vec::new();
        for (place, &target) in targets.iter().enumerate().filter(|(place, _)| Some(*place) != except) {
            let Subscription { is_open, granted, .. } = self.list[place];
            if is_open && target < granted && differs(granted, target) {
                actions.push(self.send(place, target, limits, now));
            }
        }
        actions
    }

    /// The part of the limit that nobody else has.
    fn left_by_others(&self, place: usize, limits: Limits) -> u64 {
        let others = self.list.iter().enumerate().filter(|(other, _)| *other != place);
        let others = others.fold(0, |sum: u64, (_, other)| sum.saturating_add(other.granted));
        per_sec(limits).saturating_sub(others)
    }

    /// The fair share of each, in thousandths of a request a second.
    fn targets(&self, limits: Limits) -> Vec<u64> {
        let floor = per_sec(limits) / (FLOOR * (self.list.len() as u64).max(1));
        let demand = |subscription: &Subscription| match subscription.demand {
            // It may still spend what it was granted.
            _ if !subscription.is_open => subscription.granted,
            Some(demand) => demand.max(floor),
            None => u64::MAX,
        };
        let mut wanted: Vec<_> =
            (0..self.list.len()).map(|place| (demand(&self.list[place]), place)).collect();
        let left = divide(per_sec(limits), &mut wanted);
        let open = self.list.iter().filter(|subscription| subscription.is_open).count() as u64;
        let spare = left / open.max(1);
        let mut targets = vec![0; self.list.len()];
        for (share, place) in wanted {
            targets[place] = share + if self.list[place].is_open { spare } else { 0 };
        }
        targets
    }

    fn send(&mut self, place: usize, target: u64, limits: Limits, now: Nanos) -> (StreamId, Action) {
        let subscription = &mut self.list[place];
        let tokens = tokens(target, limits);
        subscription.note_sent(target, now);
        (subscription.stream, Action::Assign { tokens, ttl: subscription.ttl() })
    }
}

impl Subscription {
    fn take_over(&mut self, usage: Usage, now: Nanos) {
        let requests = usage.allowed.saturating_add(usage.denied);
        if requests > 0 {
            self.busy_at = now;
        }
        // A first report has no time, and one that comes at once (after an assignment) says little.
        if usage.elapsed < SHORT {
            return;
        }
        self.interval = usage.elapsed.min(LONGEST_INTERVAL);
        let per_sec = u128::from(requests) * 1_000 * u128::from(NANOS_PER_SEC) / u128::from(usage.elapsed.0);
        self.demand = Some(u64::try_from(per_sec).unwrap_or(u64::MAX));
    }

    /// Long enough for a few reports, and no longer: whoever leaves keeps its share for so long.
    fn ttl(&self) -> Nanos {
        let ttl = Nanos(self.interval.0.saturating_mul(REPORTS_A_TTL)).max(SHORTEST_TTL);
        // In whole seconds, as Envoy counts.
        Nanos(ttl.0.next_multiple_of(NANOS_PER_SEC))
    }

    fn note_sent(&mut self, granted: u64, now: Nanos) {
        self.granted = granted;
        self.sent_at = now;
        self.expires_at = now.saturating_add(self.ttl());
    }
}

/// True if two rates differ by a tenth or more.
fn differs(granted: u64, target: u64) -> bool {
    granted.abs_diff(target).saturating_mul(10) >= granted.max(1)
}

/// The rate of a limit, in thousandths of a request a second.
fn per_sec(limits: Limits) -> u64 {
    limits.rate.units_per_sec().unwrap_or(u64::MAX)
}

/// A bucket that is no faster than `rate`, in thousandths of a request a second, with that part of the limit's burst.
fn tokens(rate: u64, limits: Limits) -> Tokens {
    let in_secs = |secs: u32| u128::from(rate) * u128::from(secs) / 1_000;
    let is_close = |secs: u32| {
        let exactly = u128::from(rate) * u128::from(secs);
        in_secs(secs) * 1_000 * 100 >= exactly * 98 && exactly > 0
    };
    let fill_secs = FILL_SECS.into_iter().find(|&secs| is_close(secs));
    let fill_secs = fill_secs.unwrap_or(*FILL_SECS.last().expect("there are some"));
    let per_fill = u32::try_from(in_secs(fill_secs)).unwrap_or(u32::MAX);
    let part = u128::from(limits.burst_ns) * u128::from(rate) / u128::from(NANOS_PER_SEC) / 1_000;
    let most = u32::try_from(part).unwrap_or(u32::MAX).max(u32::from(per_fill > 0));
    Tokens { most, per_fill, fill_secs }
}

/// Whole seconds in which a rate's tokens are whole.
const FILL_SECS: [u32; 8] = [1, 2, 5, 10, 30, 60, 600, 3_600];
/// A name that nobody has asked for in this time is abandoned.
const IDLE: Nanos = Nanos::from_secs(60);
/// Reports sooner than this say nothing about demand.
const SHORT: Nanos = Nanos::from_millis(50);
/// Taken for an Envoy's interval until it has reported twice.
const DEFAULT_INTERVAL: Nanos = Nanos::from_secs(5);
const LONGEST_INTERVAL: Nanos = Nanos::from_secs(60);
const REPORTS_A_TTL: u64 = 4;
const SHORTEST_TTL: Nanos = Nanos::from_secs(3);
/// Subscriptions to one name, those included whose stream has ended.
const MAX_SUBSCRIPTIONS: usize = 512;
/// Names that somebody has a share of.
const MAX_NAMES: usize = 100_000;
/// How often it is looked for those that nobody has, when there are so many.
const PRUNE_EVERY: Nanos = Nanos::from_secs(1);

/// The names of all streams.
#[derive(Debug, Default)]
pub(super) struct AllShares {
    by_name: HashMap<Name, Shares>,
    /// When names were last looked for that nobody has a share of.
    pruned_at: Nanos,
}

impl AllShares {
    /// The shares of a name; `None` if there are too many names.
    pub(super) fn of(&mut self, name: &Name, now: Nanos) -> Option<&mut Shares> {
        if self.by_name.len() >= MAX_NAMES && !self.by_name.contains_key(name) {
            if now.saturating_sub(self.pruned_at) < PRUNE_EVERY {
                return None;
            }
            self.pruned_at = now;
            self.by_name.retain(|_, shares| !shares.is_unused(now));
            if self.by_name.len() >= MAX_NAMES {
                return None;
            }
        }
        Some(self.by_name.entry(name.clone()).or_default())
    }

    /// The shares of a name, if there are any.
    pub(super) fn get_mut(&mut self, name: &Name) -> Option<&mut Shares> {
        self.by_name.get_mut(name)
    }

    /// The stream leaves these names.
    pub(super) fn leave<'n>(&mut self, stream: StreamId, names: impl Iterator<Item = &'n Name>, now: Nanos) {
        for name in names {
            if let Some(shares) = self.by_name.get_mut(name) {
                shares.leave(stream);
                if shares.is_unused(now) {
                    self.by_name.remove(name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
