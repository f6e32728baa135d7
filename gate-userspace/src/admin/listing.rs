//! The document of all tenants, or of those that a query selects.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use gate_common::abi::{Reason, TenantCounters};
use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::Override;
use super::rates::{Rates, Reading, Readings, rates};
use super::selection::{Selection, SortKey};
use super::survey::Survey;
use super::tenants::{self, Level, Tenant};
use super::totals::Totals;
use crate::kernel::{Activity, Maps};
use crate::policy::Tier;

/// The document of tenants: all, or those that a query selects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tenants {
    /// In the order of their numbers, or in that of the query.
    pub tenants: Vec<Tenant>,
    /// How many tenants there are.
    #[serde(default)]
    pub in_all: usize,
    /// How many of these the query wants, but for `offset` and `limit`.
    #[serde(default)]
    pub matching: usize,
    /// The sums over all tenants, listed or not.
    #[serde(default)]
    pub totals: Totals,
}

/// Reads those that are selected, with what the daemon says has been set of them; `now` is on the monotonic clock. Rates are against
/// the readings that are kept; without these there are none.
#[must_use]
pub fn read(
    maps: &Maps,
    wanted: &Selection,
    overrides: &[Override],
    readings: Option<&Readings>,
    now: Nanos,
) -> Tenants {
    let Survey { sums, tenants: all } = Survey::of(maps);
    let in_all = all.len();
    let found = all.iter().filter(|(id, _)| wants(wanted, maps, *id));
    let mut found: Vec<_> = found.map(|&(id, did)| Candidate { id, did, key: Key::Number(0.0) }).collect();
    let matching = found.len();
    let readings = readings.filter(|_| wanted.wants_rates());
    let before = readings.and_then(|readings| readings.before(now));
    let pace = Pace { before, now };
    if let Some(sort) = wanted.sort {
        set_keys(&mut found, sort, maps, overrides, &pace);
    }
    let found = page(found, wanted);
    let listed = found.iter().map(|candidate| candidate.id);
    let mut tenants = tenants::read_some(maps, listed, overrides);
    for (tenant, candidate) in tenants.iter_mut().zip(&found) {
        tenant.rates = pace.rates(candidate);
    }
    readings.iter().for_each(|readings| readings.keep(Reading { at: now, counts: by_number(&all) }));
    Tenants { tenants, in_all, matching, totals: Totals::of(&sums) }
}

/// A tenant that the query wants.
#[derive(Debug)]
struct Candidate {
    id: u32,
    did: Activity,
    key: Key,
}

/// The value that it is sorted by; of one kind for all of a list.
#[derive(Debug)]
enum Key {
    /// The larger first.
    Number(f64),
    /// From A.
    Word(String),
}

impl Key {
    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => other.total_cmp(one),
            (Self::Word(one), Self::Word(other)) => one.cmp(other),
            _ => Ordering::Equal,
        }
    }
}

/// The reading that rates are against.
struct Pace {
    before: Option<Arc<Reading>>,
    now: Nanos,
}

impl Pace {
    fn rates(&self, candidate: &Candidate) -> Option<Rates> {
        let before = self.before.as_ref()?;
        let secs = self.now.saturating_sub(before.at).0 as f64 / 1e9;
        rates(&candidate.did, before.counts.get(candidate.id as usize)?, secs)
    }
}

fn wants(wanted: &Selection, maps: &Maps, id: u32) -> bool {
    if wanted.tenant.is_none() && wanted.filter.is_empty() {
        return true;
    }
    let name = tenants::name(maps, id);
    if wanted.tenant.as_ref().is_some_and(|tenant| tenant != name.as_str()) {
        return false;
    }
    let filter = wanted.filter.to_lowercase();
    let is_refused_for = || {
        let counters = maps.tenant_counters(id as usize);
        let mut refused = Reason::ALL.iter().filter(|reason| counters.refused[reason.index()] > 0);
        refused.any(|reason| reason.name().contains(&filter))
    };
    name.as_str().to_lowercase().contains(&filter)
        || tenants::tier(maps, id).is_some_and(|tier| tier.name().contains(&filter))
        || is_refused_for()
}

fn main_reason(counters: &TenantCounters) -> Option<Reason> {
    let count = |reason: &&Reason| counters.refused[reason.index()];
    Reason::ALL.iter().filter(|reason| count(reason) > 0).max_by_key(count).copied()
}

fn set_keys(found: &mut [Candidate], sort: SortKey, maps: &Maps, overrides: &[Override], pace: &Pace) {
    let by_hand =
        if sort == SortKey::ByHand { tenants::set_by_hand(maps, overrides) } else { HashSet::new() };
    for candidate in found {
        let Activity { passed, segments, charged_mru, refused } = candidate.did;
        let level = || Level::read(maps, candidate.id as usize);
        let rates = pace.rates(candidate);
        // Before there are rates, what was counted since the start stands for them.
        let rate = |count: u64, rate: fn(Rates) -> f64| match pace.before {
            Some(_) => rates.map_or(-1.0, rate),
            None => count as f64,
        };
        let number = Key::Number;
        let word = |text: &str| Key::Word(text.to_owned());
        candidate.key = match sort {
            SortKey::Name => word(tenants::name(maps, candidate.id).as_str()),
            SortKey::Tier => {
                number(-(tenants::tier(maps, candidate.id).map_or(Tier::ALL.len(), Tier::index) as f64))
            }
            SortKey::Quota => number(level().quota_ru_per_sec.unwrap_or(f64::INFINITY)),
            SortKey::BurstLeft => number(level().burst_left),
            SortKey::Passed => number(passed as f64),
            SortKey::Segments => number(segments as f64),
            SortKey::Charged => number(charged_mru as f64),
            SortKey::Refused => number(refused as f64),
            SortKey::Reason => {
                let counters = maps.tenant_counters(candidate.id as usize);
                word(main_reason(&counters).map_or("", Reason::name))
            }
            SortKey::ByHand => number(f64::from(by_hand.contains(&candidate.id))),
            SortKey::PassedRate => number(rate(passed, |rates| rates.passed)),
            SortKey::SegmentsRate => number(rate(segments, |rates| rates.segments)),
            SortKey::ChargedRate => number(rate(charged_mru, |rates| rates.charged_ru)),
            SortKey::RefusedRate => number(rate(refused, |rates| rates.refused)),
        };
    }
}

/// Those that are listed, in their order; equal ones in that of their numbers.
fn page(mut found: Vec<Candidate>, wanted: &Selection) -> Vec<Candidate> {
    let last = wanted.limit.map_or(usize::MAX, |limit| wanted.offset.saturating_add(limit));
    if wanted.sort.is_some() {
        let order = |one: &Candidate, other: &Candidate| {
            let order = one.key.compare(&other.key);
            let order = if wanted.is_reversed { order.reverse() } else { order };
            order.then(one.id.cmp(&other.id))
        };
        if last < found.len() {
            // Those beyond the page need no order.
            found.select_nth_unstable_by(last, order);
            found.truncate(last);
        }
        found.sort_unstable_by(order);
    } else if wanted.is_reversed {
        found.reverse();
    }
    found.truncate(last);
    found.drain(..wanted.offset.min(found.len()));
    found
}

fn by_number(counts: &[(u32, Activity)]) -> Vec<Activity> {
    let last = counts.last().map_or(0, |(id, _)| *id as usize);
    let mut all = vec![Activity::default(); last + 1];
    counts.iter().for_each(|(id, counts)| all[*id as usize] = *counts);
    all
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use gate_common::abi::{Name, Tenant as Element, TenantState, View, bank_of};

    use super::*;
    use crate::kernel::Sizes;

    /// Tenants 1 to 5: `t1` to `t4` have passed 10, 40, 20 and 40 requests, `idle` none.
    fn maps() -> Maps {
        let maps = Maps::private(&Sizes { tenants: 8, ..Sizes::SMALL }).unwrap().0;
        let generation = maps.generation();
        maps.write_view(generation, &View { last_tenant: 5, ..maps.view() });
        let named = ["t1", "t2", "t3", "t4", "idle"];
        for ((id, name), passed) in (1..).zip(named).zip([10, 40, 20, 40, 0]) {
            let name = Name::new(name).unwrap();
            maps.tenants.store_at(id, offset_of!(Element, name), &name);
            let tier = if id == 3 { Tier::Critical } else { Tier::Batch } as u8;
            let bank = offset_of!(Element, banks) + bank_of(generation) * size_of::<TenantState>();
            maps.tenants.store_at(id, bank, &TenantState { tier, ..TenantState::default() });
            count(&maps, id, passed);
        }
        let mut refused = TenantCounters::default();
        refused.refused[Reason::Slo.index()] = 3;
        maps.count_shared(1, &refused);
        maps
    }

    fn count(maps: &Maps, id: usize, passed: u64) {
        maps.count_shared(id, &TenantCounters { passed, ..TenantCounters::default() });
    }

    fn names(listed: &Tenants) -> Vec<&str> {
        listed.tenants.iter().map(|tenant| tenant.name.as_str()).collect()
    }

    #[test]
    fn a_query_selects_sorts_and_pages() {
        let maps = maps();
        for (query, expected, matching) in [
            ("", vec!["t1", "t2", "t3", "t4", "idle"], 5),
            ("sort=passed", vec!["t2", "t4", "t3", "t1", "idle"], 5),
            ("sort=passed&limit=1", vec!["t2"], 5),
            ("sort=passed&limit=2&offset=1", vec!["t4", "t3"], 5),
            ("sort=passed&reverse=true", vec!["idle", "t1", "t3", "t2", "t4"], 5),
            ("sort=passed&reverse=true&limit=3&offset=1", vec!["t1", "t3", "t2"], 5),
            ("sort=name&limit=2", vec!["idle", "t1"], 5),
            ("sort=tier&limit=2", vec!["t3", "t1"], 5),
            ("sort=refused&limit=1", vec!["t1"], 5),
            ("reverse=true&limit=2", vec!["idle", "t4"], 5),
            ("limit=0", vec![], 5),
            ("offset=9", vec![], 5),
            ("filter=T&sort=passed&limit=2", vec!["t2", "t4"], 5),
            ("filter=idl", vec!["idle"], 1),
            ("filter=critical", vec!["t3"], 1),
            ("filter=SLO", vec!["t1"], 1),
            ("tenant=t3", vec!["t3"], 1),
            ("tenant=t", vec![], 0),
        ] {
            let wanted = Selection::parse(query).unwrap();
            let listed = read(&maps, &wanted, &[], None, Nanos(1));
            assert_eq!((names(&listed), listed.matching, listed.in_all), (expected, matching, 5), "{query}");
            assert_eq!(listed.totals.passed, 110, "{query}");
            assert_eq!(listed.totals.refused, [("slo".into(), 3)].into(), "{query}");
        }
    }

    #[test]
    fn rates_are_against_the_reading_before() {
        let maps = maps();
        let readings = Readings::default();
        let wanted = Selection::parse("sort=passed-rate&limit=2").unwrap();
        let at = |secs| read(&maps, &wanted, &[], Some(&readings), Nanos::from_secs(secs));
        let first = at(1);
        assert_eq!(names(&first), ["t2", "t4"], "by what was counted since the start");
        assert_eq!(first.tenants[0].rates, None);
        count(&maps, 1, 20);
        count(&maps, 3, 60);
        let next = at(3);
        assert_eq!(names(&next), ["t3", "t1"]);
        assert_eq!(next.tenants[0].rates.map(|rates| rates.passed), Some(30.0));
        let plain = read(&maps, &Selection::default(), &[], Some(&readings), Nanos::from_secs(4));
        assert!(plain.tenants.iter().all(|tenant| tenant.rates.is_none()), "nobody asked for them");
        maps.clear_tenant_counters(3);
        let cleared = at(4);
        assert_eq!(cleared.tenants.iter().filter(|tenant| tenant.name == "t3").count(), 0, "it has no rate");
    }
}
