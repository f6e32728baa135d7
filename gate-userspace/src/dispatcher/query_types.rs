//! Of which query type a request is, and how critical it may be.

use super::request::RequestClass;
use super::wire::Codec;
use crate::config::Backend;
use crate::policy::Tier;
use crate::policy::admission::QueryType;
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

    /// The name of a type.
    pub(crate) fn name(&self, query_type: QueryType) -> Option<&str> {
        self.types.names().nth(usize::from(query_type.0))
    }

    /// The class of a request, with the highest tier that its type may have; its tenant's may be lower. `bytes` begin
    /// where it does.
    #[inline]
    pub(crate) fn classify<W: Codec>(&self, request: &W::Request, bytes: &[u8]) -> RequestClass {
        let index = W::query_type(&self.types, request, bytes);
        let tier = self.tiers.get(index).copied().unwrap_or(Tier::Critical);
        RequestClass { tier, query_type: QueryType(index as u16) }
    }
}
