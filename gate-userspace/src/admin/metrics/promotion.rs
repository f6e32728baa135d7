//! Which tenants have series of their own, and what has been counted of each since.
//!
//! **Problem.** A series costs whoever stores it, whether anybody looks at it or not, and 10,000 tenants have 100,000. Most of
//! them do little, and are seldom asked about one by one.
//!
//! **Rule.** At most so many tenants have series of their own. A tenant is promoted once: when the configuration says so, or
//! when it has been counted and there is room, those with the most requests first. It stays promoted for as long as this
//! process runs, even when it has left the configuration. All others are one, `other`.
//!
//! **Invariants.** No sum ever falls: what has been shown of a tenant as part of `other` stays there when it is promoted, and
//! what was counted before a number went to another tenant stays where it was. The sum of all is that of all counters,
//! those that were cleared included.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::mem::offset_of;

use gate_common::abi::{Name, Tenant, TenantCounters};

use crate::kernel::{ByLayer, LastValues, Maps};

/// The tenants that have series of their own, and those that have not.
#[derive(Debug)]
pub(super) struct Promotion {
    promoted: Vec<Promoted>,
    /// Places in `promoted`.
    by_name: HashMap<Name, usize>,
    /// By a tenant's number.
    numbers: Vec<Number>,
    /// The part of `other` that is not in the counters of numbers which are nobody's own.
    other: ByLayer,
}

/// A tenant with series of its own.
#[derive(Debug)]
struct Promoted {
    name: Name,
    /// The counters under numbers that others have now.
    before: ByLayer,
}

/// The tenant that a number's counters are shown as.
#[derive(Clone, Debug, Default)]
enum Number {
    /// Nobody's who is promoted, and none have been shown.
    #[default]
    Unseen,
    /// They have been shown as part of `other`.
    Other,
    /// A promoted tenant's, but for those that `other` keeps.
    Of { place: usize, kept: Box<ByLayer> },
}

/// All counters, as they are shown.
#[derive(Debug)]
pub(super) struct Reading {
    /// Of promoted tenants, in the order in which they were.
    pub(super) promoted: Vec<Own>,
    /// Of all others.
    pub(super) other: ByLayer,
}

/// The counters of a promoted tenant.
#[derive(Debug)]
pub(super) struct Own {
    /// Its name.
    pub(super) name: Name,
    /// Its number; `None` if it has left the configuration.
    pub(super) number: Option<usize>,
    /// Its counters since it was promoted.
    pub(super) counters: ByLayer,
}

impl Promotion {
    /// Nobody is promoted yet. The maps keep from now on what is cleared in them.
    pub(super) fn new(maps: &Maps) -> Self {
        maps.cleared.keep();
        Self {
            promoted: Vec::new(),
            by_name: HashMap::new(),
            numbers: vec![Number::Unseen; maps.tenants.len()],
            other: ByLayer::default(),
        }
    }

    /// How many are promoted.
    pub(super) fn len(&self) -> usize {
        self.promoted.len()
    }

    /// Takes over what was cleared. To be called from time to time, since that is kept until then.
    pub(super) fn absorb(&mut self, maps: &Maps) -> usize {
        let cleared = maps.cleared.take();
        for LastValues { tenant, counters } in &cleared {
            let Some(number) = self.numbers.get_mut(*tenant as usize) else { continue };
            match std::mem::take(number) {
                Number::Of { place, kept } => {
                    add(&mut self.promoted[place].before, &since(counters, &kept));
                    add(&mut self.other, &kept);
                }
                Number::Other | Number::Unseen => add(&mut self.other, counters),
            }
        }
        cleared.len()
    }

    /// The counters as they are now. Promotes the tenants of these names, and up to `most` in all.
    pub(super) fn read(&mut self, maps: &Maps, named: &HashSet<Name>, most: usize) -> Reading {
        // What is being cleared meanwhile is read half, and its number may be another tenant's already.
        loop {
            self.absorb(maps);
            let given = self.plan(maps, named, most);
            if self.absorb(maps) == 0 {
                given.into_iter().for_each(|(number, name, kept)| self.give(number, name, kept));
                break;
            }
        }
        loop {
            let reading = self.sum_up(maps);
            if self.absorb(maps) == 0 {
                return reading;
            }
        }
    }

    /// The numbers that become promoted tenants', with their names and what `other` keeps of them. All others that were
    /// counted become part of `other`.
    fn plan(&mut self, maps: &Maps, named: &HashSet<Name>, most: usize) -> Vec<(usize, Name, ByLayer)> {
        let waiting = named.iter().filter(|name| !self.by_name.contains_key(*name)).count();
        let places = most.saturating_sub(self.promoted.len());
        let mut given = Vec::new();
        let mut candidates = Vec::new();
        for number in 1..self.numbers.len() {
            match self.numbers[number] {
                Number::Of { .. } => continue,
                Number::Other if places == 0 => continue,
                Number::Other | Number::Unseen => {}
            }
            let name = name_of(maps, number);
            let counters = maps.tenant_counters(number);
            if self.by_name.contains_key(&name) {
                // It is back, under another number.
                given.push((number, name, self.shown(maps, number)));
            } else if named.contains(&name) && name.as_str() != OTHER {
                candidates.push((false, Reverse(requests(&counters)), number, name));
            } else if counters == TenantCounters::default() {
                // It may be promoted once it is counted.
            } else if name == Name::EMPTY || name.as_str() == OTHER {
                self.numbers[number] = Number::Other;
            } else {
                candidates.push((true, Reverse(requests(&counters)), number, name));
            }
        }
        candidates.sort_unstable_by_key(|&(by_traffic, asked, number, _)| (by_traffic, asked, number));
        // Places for those that are named are kept free.
        let mut for_named = places;
        let mut for_traffic = places.saturating_sub(waiting);
        for (by_traffic, _, number, name) in candidates {
            let left = if by_traffic { &mut for_traffic } else { &mut for_named };
            match left.checked_sub(1) {
                Some(fewer) => {
                    *left = fewer;
                    given.push((number, name, self.shown(maps, number)));
                }
                None => self.numbers[number] = Number::Other,
            }
        }
        given
    }

    /// The counters of a number that have been shown as part of `other`, at most.
    fn shown(&self, maps: &Maps, number: usize) -> ByLayer {
        match self.numbers[number] {
            Number::Other => maps.counters_by_layer(number),
            Number::Unseen | Number::Of { .. } => ByLayer::default(),
        }
    }

    /// Makes a number's counters those of a promoted tenant.
    fn give(&mut self, number: usize, name: Name, kept: ByLayer) {
        let place = *self.by_name.entry(name).or_insert_with(|| {
            self.promoted.push(Promoted { name, before: ByLayer::default() });
            self.promoted.len() - 1
        });
        self.numbers[number] = Number::Of { place, kept: Box::new(kept) };
    }

    fn sum_up(&self, maps: &Maps) -> Reading {
        let mut other = self.other;
        let own = |Promoted { name, before }: &Promoted| Own { name: *name, number: None, counters: *before };
        let mut promoted: Vec<_> = self.promoted.iter().map(own).collect();
        for (number, part) in self.numbers.iter().enumerate().skip(1) {
            match part {
                Number::Of { place, kept } => {
                    let own = &mut promoted[*place];
                    add(&mut own.counters, &since(&maps.counters_by_layer(number), kept));
                    add(&mut other, kept);
                    if name_of(maps, number) == own.name {
                        own.number = Some(number);
                    }
                }
                Number::Other => add(&mut other, &maps.counters_by_layer(number)),
                // It may be promoted the next time.
                Number::Unseen => {}
            }
        }
        Reading { promoted, other }
    }
}

/// The name of those that are not promoted. A tenant of this name is never promoted.
pub(super) const OTHER: &str = "other";

fn name_of(maps: &Maps, number: usize) -> Name {
    maps.tenants.load_at(number, offset_of!(Tenant, name))
}

fn requests(counters: &TenantCounters) -> u64 {
    counters.passed.saturating_add(counters.segments).saturating_add(counters.refused_in_all())
}

fn add(sum: &mut ByLayer, more: &ByLayer) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| sum.add(more));
}

fn since(now: &ByLayer, before: &ByLayer) -> ByLayer {
    std::array::from_fn(|layer| now[layer].since(&before[layer]))
}

#[cfg(test)]
mod tests;
