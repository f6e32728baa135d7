//! The buckets under one lock, in bounded memory.
//!
//! When there is no room, a hand goes round the buckets and evicts the first that is full and idle, after at most
//! [`LOOKS`]. A new bucket is full too, so such an eviction changes no answer.

use std::collections::HashMap;
use std::sync::Arc;

use gate_common::units::Nanos;
use slab::Slab;

use super::bucket::{Bucket, Share, Standing, divided};
use super::calendar::{Calendar, WallClock};
use super::name::Name;
use super::quota::Limits;

/// The charges, returns and refusals of a name, in thousandths of a request unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Charged.
    pub used: u64,
    /// Given back on request.
    pub returned: u64,
    /// Refused.
    pub refused: u64,
}

/// A name whose counts have changed.
#[derive(Clone, Copy, Debug)]
pub struct Change<'n> {
    /// The name.
    pub name: &'n Name,
    /// Its counts since the last time.
    pub counts: Counts,
    /// Its bucket.
    pub standing: Standing,
    /// True if nothing has been set of its bucket since it was made.
    pub is_first: bool,
}

/// A name that was asked for since its bucket was made.
#[derive(Clone, Debug)]
pub struct AskedLimit {
    /// The name.
    pub name: Name,
    /// Thousandths of a request unit, refused ones included.
    pub asked: u64,
    /// Thousandths of a request unit that were refused, or would be but for shadow mode.
    pub refused: u64,
    /// Its bucket.
    pub standing: Standing,
}

/// A name's bucket and its counts.
#[derive(Debug)]
pub(super) struct Entry {
    name: Name,
    pub(super) bucket: Bucket,
    counts: Counts,
    terms: Terms,
    /// See [`AskedLimit`].
    asked: u64,
    refused: u64,
    /// True while its place is in the list of changed ones.
    is_listed: bool,
    /// True until its share is set.
    pub(super) is_first: bool,
}

/// The terms of a bucket until its share is set, but for the number of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) origin: Origin,
    pub(super) limits: Limits,
    /// True if it refuses nothing.
    pub(super) is_shadow: bool,
    /// The windows in which it counts.
    pub(super) calendar: Option<Arc<Calendar>>,
}

/// A moment, and what the clock on the wall says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Nanos,
    pub(super) wall: WallClock,
    /// A bucket that begins anew is one of so many parts.
    pub(super) parts: u32,
}

/// Where a bucket's limits are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A rule for this name alone: it always has its place.
    Name,
    /// A rule for many names.
    Pattern,
    /// A request. It has no counts.
    Request,
}

impl Terms {
    /// The limits of a bucket of which nothing was set, as one of so many parts.
    pub(super) fn first(&self, parts: u32) -> Limits {
        if self.origin == Origin::Request { self.limits } else { divided(self.limits, parts) }
    }
}

impl Entry {
    /// True if its rule refuses nothing.
    pub(super) const fn is_shadow(&self) -> bool {
        self.terms.is_shadow
    }

    /// Counts what was asked for.
    pub(super) const fn count_asked(&mut self, cost: u64, is_refused: bool) {
        self.asked = self.asked.saturating_add(cost);
        if is_refused {
            self.refused = self.refused.saturating_add(cost);
        }
    }

    /// Has its bucket begin anew where another window has begun.
    pub(super) fn turn(&mut self, at: Moment) {
        let Some(calendar) = &self.terms.calendar else { return };
        let Some(window) = at.wall.window_after(self.bucket.window(), calendar, at.now) else { return };
        if self.bucket.turn(window) {
            // What was said of it was said of the window before.
            self.bucket.begin(divided(self.terms.limits, at.parts));
            self.is_first = true;
        }
    }

    /// Has its bucket be full, as one of so many parts, and as nothing was set of it. What it has given out is still to be read.
    pub(super) fn begin_anew(&mut self, parts: u32) {
        self.bucket = Bucket::full(self.terms.first(parts));
        self.is_first = true;
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Shard {
    index: HashMap<Name, usize, foldhash::quality::RandomState>,
    entries: Slab<Entry>,
    changed: Vec<usize>,
    hand: usize,
    bytes: usize,
}

impl Shard {
    pub(super) fn get(&mut self, name: &Name, at: Moment) -> Option<&mut Entry> {
        let place = *self.index.get(name)?;
        let entry = self.entries.get_mut(place)?;
        entry.turn(at);
        Some(entry)
    }

    /// Makes a full bucket for a name that has none, if there is room for it in so many bytes or a bucket may be
    /// evicted; counts the evictions.
    pub(super) fn insert(
        &mut self,
        name: &Name,
        terms: Terms,
        (room, at): (usize, Moment),
        evictions: &mut u64,
    ) -> Option<&mut Entry> {
        let bytes = bytes_of(name);
        let mut looks = LOOKS;
        while terms.origin != Origin::Name && self.bytes + bytes > room {
            self.evict_one(at, &mut looks)?;
            *evictions += 1;
        }
        self.bytes += bytes;
        let mut entry = Entry {
            name: name.clone(),
            bucket: Bucket::full(terms.first(at.parts)),
            counts: Counts::default(),
            terms,
            asked: 0,
            refused: 0,
            is_listed: false,
            is_first: true,
        };
        entry.turn(at);
        let place = self.entries.insert(entry);
        self.index.insert(name.clone(), place);
        self.entries.get_mut(place)
    }

    /// Changes the counts of a name, which is listed as changed.
    pub(super) fn count(&mut self, name: &Name, count: impl FnOnce(&mut Counts)) {
        let Some(&place) = self.index.get(name) else { return };
        let Some(entry) = self.entries.get_mut(place).filter(|entry| entry.terms.origin != Origin::Request)
        else {
            return;
        };
        count(&mut entry.counts);
        if !entry.is_listed {
            entry.is_listed = true;
            self.changed.push(place);
        }
    }

    /// Has a name's bucket hold what is left, but for what it has given out since its counts were read.
    pub(super) fn set_left(&mut self, name: &Name, left: u64, at: Moment) {
        let Some(entry) = self.get(name, at) else { return };
        let since = entry.counts.used.saturating_sub(entry.counts.returned);
        entry.bucket.set_left(left.saturating_sub(since), at.now);
    }

    /// Hands over the counts of every name that has changed since, and begins them anew.
    pub(super) fn take_changes(&mut self, at: Moment, mut to: impl FnMut(Change<'_>)) {
        for place in self.changed.drain(..) {
            let Some(entry) = self.entries.get_mut(place).filter(|entry| entry.is_listed) else { continue };
            entry.is_listed = false;
            entry.turn(at);
            let counts = std::mem::take(&mut entry.counts);
            let standing = entry.bucket.standing(at.now);
            to(Change { name: &entry.name, counts, standing, is_first: entry.is_first });
        }
    }

    /// The names that were asked for most, at most so many, in no order.
    pub(super) fn most_asked(&mut self, most: usize, at: Moment) -> Vec<AskedLimit> {
        let asked =
            self.entries.iter().filter(|(_, entry)| entry.asked > 0 && entry.terms.origin != Origin::Request);
        let mut places: Vec<(u64, usize)> = asked.map(|(place, entry)| (entry.asked, place)).collect();
        if places.len() > most {
            places.select_nth_unstable_by(most, |one, other| other.cmp(one));
            places.truncate(most);
        }
        let limit = |(_, place)| {
            let entry = self.entries.get_mut(place)?;
            entry.turn(at);
            let standing = entry.bucket.standing(at.now);
            Some(AskedLimit {
                name: entry.name.clone(),
                asked: entry.asked,
                refused: entry.refused,
                standing,
            })
        };
        places.into_iter().filter_map(limit).collect()
    }

    /// Gives every bucket with a rule the limits that `of` finds for its name. Those without any go.
    pub(super) fn follow(&mut self, at: Moment, of: impl Fn(&Name) -> Option<Terms>) {
        let mut gone = Vec::new();
        for (place, entry) in
            self.entries.iter_mut().filter(|(_, entry)| entry.terms.origin != Origin::Request)
        {
            match of(&entry.name) {
                Some(terms) => {
                    entry.turn(at);
                    if entry.terms.calendar != terms.calendar {
                        entry.bucket.forget_window();
                    }
                    let share = Share { limits: terms.first(at.parts), reject_until: Nanos::ZERO };
                    entry.terms = terms;
                    entry.bucket.set(share, at.now);
                    entry.is_first = true;
                }
                None => gone.push(place),
            }
        }
        gone.into_iter().for_each(|place| self.remove(place));
    }

    /// Gives every bucket of which nothing has been set its part of its limits.
    pub(super) fn follow_first(&mut self, at: Moment) {
        let first =
            |(_, entry): &(usize, &mut Entry)| entry.is_first && entry.terms.origin != Origin::Request;
        for (_, entry) in self.entries.iter_mut().filter(first) {
            let share = Share { limits: entry.terms.first(at.parts), reject_until: Nanos::ZERO };
            entry.bucket.set(share, at.now);
        }
    }

    pub(super) fn names(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Evicts the next full and idle bucket, unless it takes more looks than are left.
    fn evict_one(&mut self, at: Moment, looks: &mut usize) -> Option<()> {
        while *looks > 0 {
            *looks -= 1;
            // At most one place in two was ever vacant, since the slab doubles.
            self.hand = if self.hand + 1 >= self.entries.capacity() { 0 } else { self.hand + 1 };
            let entry = self.entries.get_mut(self.hand);
            let may_go = |entry: &mut Entry| {
                entry.turn(at);
                entry.terms.origin != Origin::Name && !entry.is_listed && entry.bucket.is_full(at.now)
            };
            if entry.is_some_and(may_go) {
                self.remove(self.hand);
                return Some(());
            }
        }
        None
    }

    fn remove(&mut self, place: usize) {
        let entry = self.entries.remove(place);
        self.index.remove(&entry.name);
        self.bytes -= bytes_of(&entry.name);
        if entry.is_listed {
            self.changed.retain(|&listed| listed != place);
        }
    }
}

/// The most memory that an entry takes: both tables double when they are full.
const fn entry_bytes() -> usize {
    2 * (size_of::<Entry>() + size_of::<(Name, usize)>() + 1 + size_of::<usize>()) + ARC_HEADER
}

fn bytes_of(name: &Name) -> usize {
    entry_bytes() + name.as_str().len()
}

/// Buckets that are looked at for one that may go: enough to find one of a few, and no time that a flood of new names
/// could make long.
const LOOKS: usize = 32;
/// Two counters.
const ARC_HEADER: usize = 16;
