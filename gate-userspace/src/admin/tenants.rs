//! Each tenant's quota, charges and refusals.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use gate_common::abi::{
    Name, OtherBucket, Reason, Tenant as Element, TenantCounters, TenantState, bank_of, tenant_flags,
};
use gate_common::token_bucket::debt_ns;
use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::{Override, by_section};
use super::rates::Rates;
use crate::clock;
use crate::kernel::{Layer, Maps};
use crate::policy::Tier;

/// One tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tenant {
    /// Its number in the maps.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// How early it gives way.
    pub tier: Cow<'static, str>,
    /// Request units per second; nothing if unlimited.
    pub quota_ru_per_sec: Option<f64>,
    /// How much of its quota it may have saved up.
    pub burst_ms: f64,
    /// How much of the burst is left now, from 0 to 1.
    pub burst_left: f64,
    /// How long before the bucket admits anything, if it is in debt.
    pub debt_ms: f64,
    /// How much dearer its requests are.
    pub price_multiplier: f64,
    /// True if the operator refuses all of them.
    #[serde(default)]
    pub refuse: bool,
    /// The overrides, by key; only the daemon itself knows.
    #[serde(default)]
    pub overrides: BTreeMap<String, String>,
    /// The share of its requests that is refused, from 0 to 1.
    pub rejection_rate: f64,
    /// Requests that passed: datagrams, and what gate serves as a proxy.
    pub passed: u64,
    /// TCP segments with payload that passed at the interface; of those to proxied services the requests are counted as well.
    #[serde(default)]
    pub segments: u64,
    /// The bytes of both, as far as XDP has counted them.
    pub passed_bytes: u64,
    /// Request units that it was charged.
    pub charged_ru: f64,
    /// Request units of what was refused.
    pub refused_ru: f64,
    /// Requests and TCP packets refused, by reason.
    pub refused: BTreeMap<Cow<'static, str>, u64>,
    /// Those refused for `quota` by the bucket that lacked their price: the sum of these is that.
    #[serde(default)]
    pub quota_refused: Vec<BucketRefusals>,
    /// Requests that shadowed rules would have refused, by reason.
    pub shadowed: BTreeMap<Cow<'static, str>, u64>,
    /// Refusals that were answered.
    pub replied: u64,
    /// Requests that the candidate quota would have refused.
    pub candidate_refused: u64,
    /// Requests by the layer that decided on them: `xdp` or `proxy`; layers that saw none are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<Cow<'static, str>, LayerCounts>,
    /// The same each second, where that was asked for; nothing if nobody asked in the 90 s before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
}

/// The requests that one layer decided on, since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayerCounts {
    /// Requests that passed.
    pub passed: u64,
    /// Requests refused, by reason.
    pub refused: BTreeMap<Cow<'static, str>, u64>,
}

impl LayerCounts {
    pub(super) fn of(counters: &TenantCounters) -> Self {
        Self { passed: counters.passed, refused: by_reason(&counters.refused) }
    }
}

/// The reasons that there were, with their counts.
pub(super) fn by_reason(counts: &[u64; Reason::COUNT]) -> BTreeMap<Cow<'static, str>, u64> {
    let named = Reason::ALL.iter().map(|reason| (reason.name().into(), counts[reason.index()]));
    named.filter(|(_, count)| *count > 0).collect()
}

/// The refusals for `quota` by one bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BucketRefusals {
    /// The tenant's own bucket (`quota`), that of a tenant that is charged with it (`charge`), or that of a limit by what is
    /// asked (`limit`), as `gate explain` has them.
    pub kind: Cow<'static, str>,
    /// The name of the bucket's tenant, as it is configured now, or of the limit; empty for tenants that this one is no longer
    /// charged with, for limits that are gone, and for limits whose names only a daemon knows that does not answer.
    pub name: String,
    /// Requests refused.
    pub count: u64,
}

/// Those with these numbers, with what the daemon says has been set of them.
pub(super) fn read_some(maps: &Maps, ids: impl Iterator<Item = u32>, overrides: &[Override]) -> Vec<Tenant> {
    let mut tenants: Vec<_> = ids.map(|id| Tenant::read(maps, id)).collect();
    let names: Vec<_> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    let set = by_section(overrides, "tenant", &names);
    tenants.iter_mut().zip(set).for_each(|(tenant, set)| tenant.overrides = set);
    tenants
}

/// The numbers of all tenants.
pub(super) fn ids(maps: &Maps) -> impl Iterator<Item = u32> {
    (1..=maps.view().last_tenant).filter(|&id| exists(maps, id))
}

/// The numbers of those that are refused by hand, or of which something else has been set.
pub(super) fn set_by_hand(maps: &Maps, overrides: &[Override]) -> HashSet<u32> {
    let bank = bank_of(maps.generation());
    let flags = |id: u32| maps.tenant_lines.load(id as usize).flags[bank];
    let mut found: HashSet<_> = ids(maps).filter(|&id| flags(id) & tenant_flags::PENALTY != 0).collect();
    if !overrides.is_empty() {
        let named = maps.tenant_ids();
        let names: Vec<_> = named.keys().map(String::as_str).collect();
        let set = by_section(overrides, "tenant", &names);
        found.extend(names.iter().zip(set).filter(|(_, set)| !set.is_empty()).map(|(name, _)| named[*name]));
    }
    found
}

/// The name of the tenant with this number.
pub(super) fn name(maps: &Maps, id: u32) -> Name {
    maps.tenants.load_at(id as usize, offset_of!(Element, name))
}

/// Its tier.
pub(super) fn tier(maps: &Maps, id: u32) -> Option<Tier> {
    let bank = offset_of!(Element, banks) + bank_of(maps.generation()) * size_of::<TenantState>();
    let state: TenantState = maps.tenants.load_at(id as usize, bank);
    Tier::ALL.get(usize::from(state.tier)).copied()
}

/// True if a configuration uses this id.
pub(super) fn exists(maps: &Maps, id: u32) -> bool {
    // A name has no zero byte.
    maps.tenants.word(id as usize, offset_of!(Element, name)).load(Ordering::Relaxed) != 0
}

/// The level of a tenant's bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    /// Request units per second; `None` if unlimited.
    pub(super) quota_ru_per_sec: Option<f64>,
    /// How long before the bucket admits anything, if it is in debt.
    pub(super) debt: Nanos,
    /// How much of the burst is left, from 0 to 1.
    pub(super) burst_left: f64,
}

impl Level {
    /// The level of the bucket of the tenant with this number.
    pub(super) fn read(maps: &Maps, id: usize) -> Self {
        let bank = offset_of!(Element, banks) + bank_of(maps.generation()) * size_of::<TenantState>();
        Self::of(maps, id, &maps.tenants.load_at(id, bank))
    }

    /// The level of a bucket with the quota of the tenant with this number that will be full at this time, on gate's clock.
    pub(super) fn of_member(maps: &Maps, id: usize, full_at: Nanos) -> Self {
        let bank = offset_of!(Element, banks) + bank_of(maps.generation()) * size_of::<TenantState>();
        Self::until(maps, full_at, &maps.tenants.load_at(id, bank))
    }

    fn of(maps: &Maps, id: usize, state: &TenantState) -> Self {
        Self::until(maps, Nanos(maps.quota_tat(id).load(Ordering::Relaxed)), state)
    }

    fn until(maps: &Maps, full_at: Nanos, state: &TenantState) -> Self {
        let now = maps.clock().at_monotonic(clock::monotonic());
        let used_ns = full_at.saturating_sub(now).0;
        let burst = state.quota.burst_ns;
        Self {
            quota_ru_per_sec: state.quota.rate.units_per_sec().map(|milli| milli as f64 / 1e3),
            debt: Nanos(debt_ns(full_at.0, now.0, burst)),
            burst_left: if burst == 0 { 0.0 } else { 1.0 - used_ns.min(burst) as f64 / burst as f64 },
        }
    }
}

impl Tenant {
    /// Says by which limits requests were refused, given the refusals by limit of a tenant with a number and a name. What they
    /// leave stays without a name.
    pub fn name_limits<'n>(&mut self, of: impl FnOnce(u32, &str) -> Vec<(&'n str, u64)>) {
        let is_unnamed = |refused: &BucketRefusals| refused.kind == LIMIT && refused.name.is_empty();
        let Some(place) = self.quota_refused.iter().position(is_unnamed) else { return };
        let mut left = self.quota_refused.remove(place).count;
        for (name, count) in of(self.id, &self.name) {
            // They were counted after the sum was read.
            let count = count.min(left);
            left -= count;
            self.quota_refused.extend(BucketRefusals::some(LIMIT, name, count));
        }
        self.quota_refused.extend(BucketRefusals::some(LIMIT, "", left));
    }

    fn read(maps: &Maps, id: u32) -> Self {
        let element = maps.tenants.load(id as usize);
        let state = &element.banks[bank_of(maps.generation())];
        let by_layer = maps.counters_by_layer(id as usize);
        let layers = Layer::ALL.iter().zip(&by_layer);
        let layers = layers.map(|(layer, counters)| (layer.name().into(), LayerCounts::of(counters)));
        let layers = layers.filter(|(_, counts)| *counts != LayerCounts::default()).collect();
        let [mut counters, proxied] = by_layer;
        counters.add(&proxied);
        let level = Level::of(maps, id as usize, state);
        Self {
            id,
            name: element.name.as_str().to_owned(),
            tier: Tier::ALL.get(usize::from(state.tier)).map_or("?", |tier| tier.name()).into(),
            quota_ru_per_sec: level.quota_ru_per_sec,
            burst_ms: state.quota.burst_ns as f64 / 1e6,
            burst_left: level.burst_left,
            debt_ms: level.debt.0 as f64 / 1e6,
            price_multiplier: f64::from(state.multiplier) / 65_536.0,
            refuse: state.flags & tenant_flags::PENALTY != 0,
            overrides: BTreeMap::new(),
            rejection_rate: f64::from(state.rejection_rate) / 65_536.0,
            passed: counters.passed,
            segments: counters.segments,
            passed_bytes: counters.passed_bytes,
            charged_ru: counters.charged_mru as f64 / 1e3,
            refused_ru: counters.refused_mru as f64 / 1e3,
            refused: by_reason(&counters.refused),
            quota_refused: BucketRefusals::of(maps, &element, state, &counters),
            shadowed: by_reason(&counters.shadowed),
            replied: counters.replied,
            candidate_refused: counters.candidate_refused,
            layers,
            rates: None,
        }
    }
}

impl BucketRefusals {
    /// Those of a tenant, limits together.
    fn of(maps: &Maps, tenant: &Element, state: &TenantState, counters: &TenantCounters) -> Vec<Self> {
        let by = |bucket: OtherBucket| counters.quota_refused[bucket.index()];
        let parent = |id: u32| -> Name {
            let is_there = (id as usize) < maps.tenants.len();
            if is_there { maps.tenants.load_at(id as usize, offset_of!(Element, name)) } else { Name::EMPTY }
        };
        let [first, second] = state.parents.map(parent);
        let [by_first, by_second] = [OtherBucket::FirstParent, OtherBucket::SecondParent].map(by);
        // Counted before these had their places.
        let before_first = tenant.refused_before[0].min(by_first);
        let before_second = tenant.refused_before[1].min(by_second);
        let all = [
            ("quota", tenant.name, counters.refused_by_own_quota()),
            ("charge", first, by_first - before_first),
            ("charge", second, by_second - before_second),
            ("charge", Name::EMPTY, before_first + before_second),
            (LIMIT, Name::EMPTY, by(OtherBucket::Limit)),
        ];
        all.into_iter().filter_map(|(kind, name, count)| Self::some(kind, name.as_str(), count)).collect()
    }

    fn some(kind: &'static str, name: &str, count: u64) -> Option<Self> {
        (count > 0).then(|| Self { kind: kind.into(), name: name.to_owned(), count })
    }
}

const LIMIT: &str = "limit";
