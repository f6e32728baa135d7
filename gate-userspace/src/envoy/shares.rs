//! Shares of one limit for the Envoys that give it out by themselves.
//!
//! **Problem.** Several Envoys subscribe to one name. Each reports what it was asked for, and gets an assignment: a token bucket
//! that holds for a while, also if nobody hears of that Envoy again.
//!
//! **Rule.** The limit is divided by demand, max-min fair: whoever is asked for less than an equal share gets what it is asked for, the
//! others divide the rest, and what nobody asks for is divided equally. With each report, its Envoy's share and those that have to shrink
//! for it are sent anew, if they differ by a tenth or half of their time has passed.
//!
//! **Invariants.** The shares that hold, those of Envoys that have left included until their time is over, never add up to more than the
//! limit: a share grows only by what others no longer have. A demand has a floor, so an idle Envoy can show that it is asked
//! again. Pure: time is an argument, and any count is safe.

use std::collections::HashMap;

use gate_common::token_bucket::Limits;
use gate_common::units::{NANOS_PER_SEC, Nanos};

use crate::limits::Name;

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
    /// Takes a report over and returns what is to be sent to whom. `None` stands for no limit.
    pub(super) fn report(
        &mut self,
        stream: StreamId,
        usage: Usage,
        limits: Option<Limits>,
        now: Nanos,
    ) -> Vec<(StreamId, Action)> {
        self.expire(now);
        let Some(place) = self.place_of(stream, now) else { return Vec::new() };
        self.list[place].take_over(usage, now);
        if now.saturating_sub(self.list[place].busy_at) >= IDLE {
            self.list.swap_remove(place);
            return vec![(stream, Action::Abandon)];
        }
        let per_sec = limits.and_then(|limits| Some((limits, limits.rate.units_per_sec()?)));
        let Some((limits, per_sec)) = per_sec else { return self.allow_all(place, now) };
        let targets = self.targets(per_sec);
        let mut actions = Vec::new();
        // Others shrink first.
        for (other, &target) in targets.iter().enumerate() {
            let subscription = &self.list[other];
            if other != place
                && subscription.is_open
                && differs(subscription.granted, target)
                && target < subscription.granted
            {
                actions.push(self.send(other, target, limits, per_sec, now));
            }
        }
        let others: u64 = (0..self.list.len())
            .filter(|&other| other != place)
            .fold(0, |sum, other| sum.saturating_add(self.list[other].granted));
        let target = targets[place].min(per_sec.saturating_sub(others));
        let subscription = &self.list[place];
        let is_old = now.saturating_sub(subscription.sent_at).0 >= subscription.ttl().0 / 2;
        if is_old || differs(subscription.granted, target) {
            actions.push(self.send(place, target, limits, per_sec, now));
        }
        actions
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

    /// The fair share of each, in thousandths of a request a second.
    fn targets(&self, per_sec: u64) -> Vec<u64> {
        let count = self.list.len() as u64;
        let floor = per_sec / (FLOOR * count.max(1));
        let demand = |subscription: &Subscription| match subscription.demand {
            // It may still spend what it was granted.
            _ if !subscription.is_open => subscription.granted,
            Some(demand) => demand.max(floor),
            None => u64::MAX,
        };
        let mut order: Vec<_> =
            (0..self.list.len()).map(|place| (demand(&self.list[place]), place)).collect();
        order.sort_unstable();
        let mut targets = vec![0; self.list.len()];
        let mut left = per_sec;
        for (served, &(demand, place)) in order.iter().enumerate() {
            let share = demand.min(left / (count - served as u64));
            targets[place] = share;
            left -= share;
        }
        let open = self.list.iter().filter(|subscription| subscription.is_open).count() as u64;
        let spare = left / open.max(1);
        for (target, subscription) in targets.iter_mut().zip(&self.list) {
            *target += if subscription.is_open { spare } else { 0 };
        }
        targets
    }

    fn send(
        &mut self,
        place: usize,
        target: u64,
        limits: Limits,
        per_sec: u64,
        now: Nanos,
    ) -> (StreamId, Action) {
        let subscription = &mut self.list[place];
        let tokens = tokens(target, limits, per_sec);
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

/// A bucket that is no faster than `rate`, in thousandths of a request a second, with that part of the limit's burst.
fn tokens(rate: u64, limits: Limits, per_sec: u64) -> Tokens {
    let in_secs = |secs: u32| u128::from(rate) * u128::from(secs) / 1_000;
    let is_close = |secs: u32| {
        let exactly = u128::from(rate) * u128::from(secs);
        in_secs(secs) * 1_000 * 100 >= exactly * 98 && exactly > 0
    };
    let fill_secs = FILL_SECS.into_iter().find(|&secs| is_close(secs));
    let fill_secs = fill_secs.unwrap_or(*FILL_SECS.last().expect("there are some"));
    let per_fill = u32::try_from(in_secs(fill_secs)).unwrap_or(u32::MAX);
    let burst = u128::from(limits.burst_ns) * u128::from(per_sec) / u128::from(NANOS_PER_SEC);
    let part = burst * u128::from(rate) / u128::from(per_sec.max(1)) / 1_000;
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
/// Every Envoy can have so small a part of an equal share, whatever it asks for.
const FLOOR: u64 = 10;

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
