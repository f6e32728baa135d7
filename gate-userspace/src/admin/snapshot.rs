//! The document of `/v1/events`: what a page shows, of the busiest tenants.

use std::cmp::Reverse;
use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::hotkeys::{self, Key};
use super::queues::Queues;
use super::sources::Sources;
use super::status::Status;
use super::survey::Survey;
use super::tenants::{self, Tenant};
use super::totals::Totals;
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

impl Snapshot {
    /// Without keys and sources.
    pub(super) fn read(sources: &Sources) -> Self {
        let status = sources.status();
        // Of most tenants their counters are all that is read.
        let Survey { sums, tenants } = Survey::of(&sources.maps);
        let tenants: Vec<_> = tenants.into_iter().map(|(id, did)| (id, did.requests())).collect();
        let tenants_in_all = tenants.len();
        let listed = busiest(tenants, &tenants::set_by_hand(&sources.maps, &status.overrides));
        let now = clock::monotonic();
        Self {
            at_ms: now.0 / 1_000_000,
            unix_s: clock::unix_secs(),
            totals: Totals::of(&sums),
            tenants_in_all,
            tenants: sources.tenants_of(listed.into_iter(), &status.overrides),
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

/// Of tenants and their requests those with the most, and those in `set`, in the order of their numbers.
fn busiest(mut tenants: Vec<(u32, u64)>, set: &HashSet<u32>) -> Vec<u32> {
    if tenants.len() > MAX_TENANTS {
        tenants.sort_by_key(|&(id, requests)| Reverse((set.contains(&id), requests)));
        tenants.truncate(MAX_TENANTS);
        tenants.sort_unstable();
    }
    tenants.into_iter().map(|(id, _)| id).collect()
}

/// A page has no room for more.
const MAX_TENANTS: usize = 200;
/// So many are read at a glance; a second of a flood has thousands.
const MAX_REFUSALS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_of_the_busiest_and_those_set_by_hand() {
        let tenants: Vec<_> = (1..=1_000).map(|id| (id, u64::from(id))).collect();
        let expected: Vec<_> = [1].into_iter().chain(802..=1_000).collect();
        assert_eq!(busiest(tenants, &HashSet::from([1])), expected);
        assert_eq!(busiest(vec![(1, 0), (2, 5)], &HashSet::new()), [1, 2], "few are listed as they are");
    }
}
