//! The buckets of the names that are in use.
//!
//! **Problem.** A pattern fits as many names as requests care to invent. Each has a bucket of its own, in bounded memory,
//! under a lock that nobody holds for long.
//!
//! **Rule.** A name gets a bucket with its first charge, if a rule fits it. Only buckets that are full and whose counts have
//! been read are evicted, since a new one is no different. A name for which there is no room passes, uncharged, and is
//! counted: its pattern limits each name and not all of them together, so whoever invents names is not limited by it
//! anyway, and nobody else's bucket goes for it. A rule for one name always has its bucket.
//!
//! **Invariants.** A charge is made to all of its names or to none, but for those whose rules refuse nothing and that hold it not. A lock covers one bucket's change. Between the
//! charges of two names of one request another request may see the first name's charge, and be refused, though the charge is
//! given back afterwards; never the other way round.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use foldhash::quality::RandomState;
use gate_common::units::{MilliRu, Nanos};

use super::bucket::{Refusal, Share, Standing};
use super::calendar::WallClock;
use super::name::Name;
use super::quota::Limits;
use super::reservations::Reservations;
use super::rules::{Rule, Rules};
use super::shard::{AskedLimit, Change, Counts, Entry, Moment, Origin, Shard, Terms};

/// The buckets of all names in use.
#[derive(Debug)]
pub struct Table {
    rules: RwLock<Arc<Rules>>,
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// Of one shard, in bytes.
    room: usize,
    /// The names that are assigned to Envoys; `None` if nobody reads the counts.
    reservations: Option<Reservations>,
    /// A name's first bucket is one of so many parts of its limits, until its share is set.
    first_of: AtomicU32,
    /// See [`WallClock::ahead_ns`].
    ahead_ns: AtomicI64,
    untracked: AtomicU64,
    evictions: AtomicU64,
}

/// A price, and the name that is to pay it.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'n> {
    /// The name.
    pub name: &'n Name,
    /// The price.
    pub cost: MilliRu,
    /// True if it is only asked whether it would pass.
    pub is_question: bool,
    /// The limits of a bucket that only this request and its like have; `None` for the rules'.
    pub limits: Option<Limits>,
}

/// The result for one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charged {
    /// No rule fits.
    Unlimited,
    /// There was no room for a bucket.
    Untracked,
    /// The bucket holds the price. It has been taken, if all names' buckets hold theirs.
    Within(Standing),
    /// The bucket does not hold it, and refuses nothing. Nothing has been taken from it.
    Shadowed(Standing),
    /// The bucket does not hold it.
    Refused(Standing, Refusal),
}

/// The table as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Names with a bucket.
    pub names: usize,
    /// The most memory that they take, in bytes.
    pub bytes: usize,
    /// Charges to names for which there was no room.
    pub untracked: u64,
    /// Buckets evicted.
    pub evictions: u64,
}

impl Table {
    /// A table of at most about `memory` bytes, beside the buckets of rules for one name. With `is_reported`, the caller
    /// calls [`Table::take_changes`] now and then: no bucket goes before its counts are read.
    #[must_use]
    pub fn new(rules: Arc<Rules>, memory: usize, is_reported: bool) -> Self {
        let this = Self {
            rules: RwLock::default(),
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::default(),
            room: memory / SHARDS,
            reservations: is_reported.then(Reservations::default),
            first_of: AtomicU32::new(1),
            ahead_ns: AtomicI64::new(0),
            untracked: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        };
        this.set_rules(rules, Nanos::ZERO);
        this
    }

    /// Puts other rules in force. A bucket whose name still has one keeps what has been taken from it, and loses its
    /// [`Share`].
    pub fn set_rules(&self, rules: Arc<Rules>, now: Nanos) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&rules);
        for shard in &self.shards {
            locked(shard).follow(self.moment(now), |name| terms_of(&rules, name));
        }
        for name in rules.list().iter().filter_map(|rule| rule.pattern.name()) {
            // There is always room for one of these.
            let _ = self.with_entry(&name, None, now, |_| ());
        }
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the clock on the wall, by which windows of the calendar begin, if it differs by more than some milliseconds.
    pub fn set_clock(&self, wall: WallClock) {
        wall.keep_in(&self.ahead_ns);
    }

    fn moment(&self, now: Nanos) -> Moment {
        let wall = WallClock { ahead_ns: self.ahead_ns.load(Ordering::Relaxed) };
        Moment { now, wall, parts: self.first_of.load(Ordering::Relaxed) }
    }

    /// The names that are assigned to Envoys; `None` if no other gate shares their limits.
    #[must_use]
    pub const fn reservations(&self) -> Option<&Reservations> {
        self.reservations.as_ref()
    }

    /// Charges all of them or, if a bucket refuses, none; the results are in their order.
    #[must_use]
    pub fn charge(&self, charges: &[Charge<'_>], now: Nanos) -> Vec<Charged> {
        self.charge_all(charges, now, false)
    }

    /// [`Table::charge`], as if all rules refused nothing.
    #[must_use]
    pub fn charge_in_shadow(&self, charges: &[Charge<'_>], now: Nanos) -> Vec<Charged> {
        self.charge_all(charges, now, true)
    }

    fn charge_all(&self, charges: &[Charge<'_>], now: Nanos, in_shadow: bool) -> Vec<Charged> {
        let mut is_refused = false;
        let mut results = Vec::with_capacity(charges.len());
        for charge in charges {
            // After a refusal nothing is taken any more.
            let only_ask = is_refused || charge.is_question;
            let result = self.try_one(charge, now, (only_ask, in_shadow));
            is_refused |= matches!(result, Charged::Refused(..));
            results.push((result, !only_ask && matches!(result, Charged::Within(_))));
        }
        for (charge, (result, was_taken)) in charges.iter().zip(&mut results) {
            self.complete(charge, result, (*was_taken, is_refused), now);
        }
        results.into_iter().map(|(result, _)| result).collect()
    }

    /// Charges a name more than was known before, which may leave a debt.
    pub fn settle(&self, name: &Name, cost: MilliRu, now: Nanos) {
        let at = self.moment(now);
        let mut shard = self.shard(name);
        if let Some(entry) = shard.get(name, at) {
            entry.bucket.settle(cost, now);
            entry.count_asked(cost.0.into(), false);
            self.count(&mut shard, name, |counts| counts.used += u64::from(cost.0));
        }
    }

    /// Gives back what an earlier request took.
    pub fn give_back(&self, name: &Name, cost: MilliRu, now: Nanos) {
        let at = self.moment(now);
        let mut shard = self.shard(name);
        if let Some(entry) = shard.get(name, at) {
            entry.bucket.give_back(cost);
            self.count(&mut shard, name, |counts| counts.returned += u64::from(cost.0));
        }
    }

    /// Sets what a name may spend here. False if it has no bucket.
    pub fn set_share(&self, name: &Name, share: Share, now: Nanos) -> bool {
        let at = self.moment(now);
        let mut shard = self.shard(name);
        let entry = shard.get(name, at);
        let set = |entry: &mut Entry| {
            entry.bucket.set(share, now);
            entry.is_first = false;
        };
        entry.map(set).is_some()
    }

    /// Has a name's bucket hold so many thousandths of a request unit, but for what it has given out since the last [`Table::take_changes`].
    pub fn set_left(&self, name: &Name, left: u64, now: Nanos) {
        self.shard(name).set_left(name, left, self.moment(now));
    }

    /// Has a name's bucket be as when it was made.
    pub fn begin_anew(&self, name: &Name, now: Nanos) {
        let at = self.moment(now);
        if let Some(entry) = self.shard(name).get(name, at) {
            entry.begin_anew(at.parts);
        }
    }

    /// From now on a name's bucket is one of so many parts of its limits, until its share is set.
    pub fn divide_first(&self, parts: u32, now: Nanos) {
        if self.first_of.swap(parts.max(1), Ordering::Relaxed) != parts.max(1) {
            for shard in &self.shards {
                locked(shard).follow_first(self.moment(now));
            }
        }
    }

    /// How full a name's bucket is; `None` if it has none.
    #[must_use]
    pub fn standing(&self, name: &Name, now: Nanos) -> Option<Standing> {
        let at = self.moment(now);
        self.shard(name).get(name, at).map(|entry| entry.bucket.standing(now))
    }

    /// Hands over every name whose counts have changed since the last time, and begins them anew. `to` must not use
    /// the table.
    pub fn take_changes(&self, now: Nanos, mut to: impl FnMut(Change<'_>)) {
        for shard in &self.shards {
            locked(shard).take_changes(self.moment(now), &mut to);
        }
    }

    /// The names that were asked for most since their buckets were made, at most so many, that with the most first.
    #[must_use]
    pub fn most_asked(&self, most: usize, now: Nanos) -> Vec<AskedLimit> {
        if most == 0 {
            return Vec::new();
        }
        let mut all: Vec<_> =
            self.shards.iter().flat_map(|shard| locked(shard).most_asked(most, self.moment(now))).collect();
        all.sort_unstable_by(|one, other| {
            other.asked.cmp(&one.asked).then_with(|| one.name.cmp(&other.name))
        });
        all.truncate(most);
        all
    }

    /// The table as a whole.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            untracked: self.untracked.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
            ..Totals::default()
        };
        for shard in &self.shards {
            let shard = locked(shard);
            totals.names += shard.names();
            totals.bytes += shard.bytes();
        }
        totals
    }

    fn try_one(&self, charge: &Charge<'_>, now: Nanos, (only_ask, in_shadow): (bool, bool)) -> Charged {
        let terms = charge.limits.map(|limits| Terms {
            origin: Origin::Request,
            limits,
            is_shadow: false,
            calendar: None,
        });
        let taken = self.with_entry(charge.name, terms, now, |entry| {
            let result = if only_ask {
                entry.bucket.ask(charge.cost, now).map(drop)
            } else {
                entry.bucket.take(charge.cost, now)
            };
            if !charge.is_question {
                entry.count_asked(charge.cost.0.into(), result.is_err());
            }
            let standing = entry.bucket.standing(now);
            match result {
                Ok(()) => Charged::Within(standing),
                Err(_) if in_shadow || entry.is_shadow() => Charged::Shadowed(standing),
                Err(refusal) => Charged::Refused(standing, refusal),
            }
        });
        match taken {
            Ok(charged) => charged,
            Err(Missing::Rule) => Charged::Unlimited,
            Err(Missing::Room) => {
                self.untracked.fetch_add(1, Ordering::Relaxed);
                Charged::Untracked
            }
        }
    }

    /// Counts what was taken, or gives it back if another name's bucket has refused.
    fn complete(
        &self,
        charge: &Charge<'_>,
        result: &mut Charged,
        (was_taken, is_refused): (bool, bool),
        now: Nanos,
    ) {
        let cost = u64::from(charge.cost.0);
        let has_bucket = !matches!(result, Charged::Unlimited | Charged::Untracked);
        let is_given_back = is_refused && was_taken;
        if charge.is_question || !has_bucket || self.reservations.is_none() && !is_given_back {
            return;
        }
        let at = self.moment(now);
        let mut shard = self.shard(charge.name);
        match result {
            Charged::Refused(..) | Charged::Shadowed(_) => {
                self.count(&mut shard, charge.name, |counts| counts.refused += cost);
            }
            _ if !is_refused => self.count(&mut shard, charge.name, |counts| counts.used += cost),
            _ if is_given_back => {
                if let Some(entry) = shard.get(charge.name, at) {
                    entry.bucket.give_back(charge.cost);
                    *result = Charged::Within(entry.bucket.standing(now));
                }
            }
            _ => {}
        }
    }

    fn count(&self, shard: &mut Shard, name: &Name, count: impl FnOnce(&mut Counts)) {
        if self.reservations.is_some() {
            shard.count(name, count);
        }
    }

    /// Uses a name's bucket, which is made if need be, on these terms or those of its rule.
    fn with_entry<T>(
        &self,
        name: &Name,
        terms: Option<Terms>,
        now: Nanos,
        to: impl FnOnce(&mut Entry) -> T,
    ) -> Result<T, Missing> {
        let at = self.moment(now);
        let mut shard = self.shard(name);
        if let Some(entry) = shard.get(name, at) {
            return Ok(to(entry));
        }
        // Read under the shard's lock: `set_rules` visits the shard after it has changed the rules.
        let terms = terms.or_else(|| terms_of(&self.rules(), name)).ok_or(Missing::Rule)?;
        let mut evictions = 0;
        let entry = shard.insert(name, terms, (self.room, at), &mut evictions);
        self.evictions.fetch_add(evictions, Ordering::Relaxed);
        entry.map(to).ok_or(Missing::Room)
    }

    fn shard(&self, name: &Name) -> MutexGuard<'_, Shard> {
        locked(&self.shards[self.hasher.hash_one(name) as usize % SHARDS])
    }
}

/// The lack for which a name has no bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Rule,
    Room,
}

fn terms_of(rules: &Rules, name: &Name) -> Option<Terms> {
    let rule = rules.find(name)?;
    let origin = if rule.pattern.as_str() == name.as_str() { Origin::Name } else { Origin::Pattern };
    let Rule { limits, is_shadow, ref calendar, .. } = *rule;
    Some(Terms { origin, limits, is_shadow, calendar: calendar.clone() })
}

/// Nothing panics under a lock, and a bucket is whole after each of its changes.
fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enough for a few threads not to meet.
const SHARDS: usize = 16;

#[cfg(test)]
mod tests;
