//! The document of `/v1/events`: what a page shows, of the busiest tenants.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::hotkeys::{self, Key};
use super::queues::Queues;
use super::sources::Sources;
use super::status::Status;
use super::tenants::{LayerCounts, Tenant};
use super::verdicts::{self, Sampled};
use crate::clock;

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// When it was taken, in milliseconds since the machine's start: rates are of the time between two snapshots.
    pub at_ms: u64,
    /// The same in seconds of Unix time.
    pub unix_s: u64,
    /// As of `/v1/status`.
    pub status: Status,
    /// The sums over all tenants.
    pub totals: Totals,
    /// How many tenants there are.
    pub tenants_in_all: usize,
    /// At most 200 tenants: those with the most requests since the start, and those with overrides.
    pub tenants: Vec<Tenant>,
    /// As of `/v1/queues`.
    pub queues: Queues,
    /// The last refusals that were sampled, the newest first; at most 20.
    #[serde(default)]
    pub refusals: Vec<Refusal>,
    /// As of `/v1/hotkeys`; only for who may see keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hotkeys: Option<Vec<Key>>,
}

/// Sums over all tenants, since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Totals {
    /// Requests that passed.
    pub passed: u64,
    /// TCP segments with payload that passed.
    #[serde(default)]
    pub segments: u64,
    /// Requests refused, by reason.
    pub refused: BTreeMap<Cow<'static, str>, u64>,
    /// Both by layer: `xdp`, `proxy`.
    #[serde(default)]
    pub layers: BTreeMap<Cow<'static, str>, LayerCounts>,
}

/// The refusal of a request that was sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// When, in ms since 1970.
    pub at_ms: u64,
    /// The client's address; only for who may see keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The service.
    pub service: String,
    /// The tenant that is charged; nothing if none is.
    pub tenant: Option<String>,
    /// The query type of the request.
    pub query_type: String,
    /// The reason.
    pub reason: String,
    /// The limit that refused it.
    pub bucket: Option<String>,
    /// Where it was decided.
    pub layer: String,
    /// The number of requests that it stands for.
    pub weight: u32,
}

impl Refusal {
    fn new(sampled: Sampled, with_source: bool) -> Self {
        let Sampled { at_ms, source, service, tenant, query_type, reason, bucket, layer, weight } = sampled;
        let source = with_source.then_some(source);
        let reason = reason.unwrap_or_default();
        Self { at_ms, source, service, tenant, query_type, reason, bucket, layer, weight }
    }

    fn last(sources: &Sources, with_source: bool) -> Vec<Self> {
        let refused = verdicts::last_refused(sources, MAX_REFUSALS).into_iter();
        refused.map(|sampled| Self::new(sampled, with_source)).collect()
    }
}

impl Totals {
    fn of(tenants: &[Tenant]) -> Self {
        let mut totals = Self::default();
        for tenant in tenants {
            totals.passed += tenant.passed;
            totals.segments += tenant.segments;
            for (reason, count) in &tenant.refused {
                *totals.refused.entry(reason.clone()).or_default() += count;
            }
            for (layer, counts) in &tenant.layers {
                totals.layers.entry(layer.clone()).or_default().add(counts);
            }
        }
        totals
    }
}

impl Snapshot {
    /// Without keys and sources.
    pub(super) fn read(sources: &Sources) -> Self {
        let status = sources.status();
        let tenants = sources.tenants(&status.overrides);
        let now = clock::monotonic();
        Self {
            at_ms: now.0 / 1_000_000,
            unix_s: clock::unix_secs(),
            totals: Totals::of(&tenants),
            tenants_in_all: tenants.len(),
            tenants: busiest(tenants),
            queues: Queues::read(&sources.queues, &status.overrides, now),
            refusals: Refusal::last(sources, false),
            status,
            hotkeys: None,
        }
    }

    /// With keys and sources.
    pub(super) fn with_keys(self, sources: &Sources) -> Self {
        let refusals = Refusal::last(sources, true);
        Self { refusals, hotkeys: Some(hotkeys::read(&sources.maps)), ..self }
    }
}

/// The tenants with the most requests and those with overrides, in the order of their numbers.
fn busiest(mut tenants: Vec<Tenant>) -> Vec<Tenant> {
    if tenants.len() > MAX_TENANTS {
        tenants.sort_by_key(|tenant| {
            let is_set = tenant.refuse || !tenant.overrides.is_empty();
            Reverse((is_set, tenant.passed + tenant.segments + tenant.refused.values().sum::<u64>()))
        });
        tenants.truncate(MAX_TENANTS);
        tenants.sort_by_key(|tenant| tenant.id);
    }
    tenants
}

/// A page has no room for more.
const MAX_TENANTS: usize = 200;
/// So many are read at a glance; a second of a flood has thousands.
const MAX_REFUSALS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(id: u32, passed: u64, refused: u64, refuse: bool) -> Tenant {
        let tenant = serde_json::json!({
            "id": id, "name": format!("tenant-{id}"), "tier": "standard", "quota_ru_per_sec": 1.0, "burst_ms": 0.0,
            "burst_left": 0.0, "debt_ms": 0.0, "price_multiplier": 1.0, "refuse": refuse, "rejection_rate": 0.0,
            "passed": passed, "passed_bytes": 0, "charged_ru": 0.0, "refused_ru": 0.0, "refused": {"quota": refused},
            "shadowed": {}, "replied": 0, "candidate_refused": 0,
            "layers": {"proxy": {"passed": passed, "refused": {"quota": refused}}},
        });
        serde_json::from_value(tenant).unwrap()
    }

    #[test]
    fn sums_are_of_all_tenants_and_the_list_is_of_the_busiest() {
        let mut tenants: Vec<_> = (1..=1_000).map(|id| tenant(id, u64::from(id), 1, false)).collect();
        tenants[0].refuse = true;
        let totals = Totals::of(&tenants);
        assert_eq!((totals.passed, &totals.refused), (500_500, &[("quota".into(), 1_000)].into()));
        let proxied = &totals.layers["proxy"];
        assert_eq!((proxied.passed, &proxied.refused, totals.layers.len()), (500_500, &totals.refused, 1));
        let listed: Vec<_> = busiest(tenants).into_iter().map(|tenant| tenant.id).collect();
        let expected: Vec<_> = [1].into_iter().chain(802..=1_000).collect();
        assert_eq!(listed, expected, "the refused one, and the busiest");
    }

    #[test]
    fn few_tenants_are_listed_as_they_are() {
        let tenants = vec![tenant(1, 0, 0, false), tenant(2, 5, 0, false)];
        assert_eq!(busiest(tenants.clone()), tenants);
    }
}
