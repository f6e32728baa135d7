//! Of which query type a request is, and how critical it may be.

use super::wire::Wire;
use crate::config::Backend;
use crate::policy::Tier;
use crate::policy::admission::{QueryType, Request};
use crate::protocol::query_types::QueryTypes;

/// The query types of a service as a thread uses them. Which there are is settled when gate starts, since all that is
/// counted and learned is by their places; what is of them, and their tiers, may change.
#[derive(Debug)]
pub(crate) struct QueryTypeTable {
    types: QueryTypes,
    /// By type: the highest tier that its requests may have.
    tiers: Box<[Tier]>,
}

impl QueryTypeTable {
    /// The types that there have been since the start, as `backend` has them now.
    pub(crate) fn of(since_start: &QueryTypes, backend: &Backend) -> Self {
        Self {
            types: since_start.assigned_by(&backend.query_types),
            tiers: since_start.names().map(|name| backend.tier(name)).collect(),
        }
    }

    /// What a request is, of a tenant of this tier: its type may lower that. `bytes` begin where it does.
    #[inline]
    pub(crate) fn classify<W: Wire>(&self, tier: Tier, request: &W::Request, bytes: &[u8]) -> Request {
        let seq = W::query_type(&self.types, request, bytes);
        let highest = self.tiers.get(seq).copied().unwrap_or(Tier::Critical);
        Request { tier: tier.max(highest), query_type: QueryType(seq as u16) }
    }
}
