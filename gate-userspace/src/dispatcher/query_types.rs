//! Of which query type a request is, and how critical it may be.

use super::request::RequestClass;
use super::wire::Codec;
use crate::config::Backend;
use crate::policy::Tier;
use crate::policy::admission::QueryType;
use crate::protocol::Class;
use crate::protocol::http::routes::Routes;
use crate::protocol::query_types::QueryTypes;

/// The query types of a service as a thread uses them. Which there are is settled when gate starts, since all that is
/// counted and learned is by their places; what is of them, and their tiers, may change.
#[derive(Debug)]
pub(crate) struct QueryTypeTable {
    types: QueryTypes,
    /// By type: the highest tier that its requests may have.
    tiers: Box<[Tier]>,
    /// By type: the rows of a request by HTTP.
    rows: Box<[u32]>,
    /// The routes of HTTP.
    routes: Routes,
}

impl QueryTypeTable {
    /// The types that there have been since the start, as `backend` has them now.
    pub(crate) fn of(since_start: &QueryTypes, backend: &Backend) -> Self {
        let http = backend.http.as_ref();
        let rows = |name| {
            let place = backend.query_types.place(name);
            place.and_then(|place| http?.rows.get(place).copied()).unwrap_or(1)
        };
        let routes = http.into_iter().flat_map(|http| &http.routes);
        let routes = routes.filter_map(|(pattern, name)| Some((pattern.clone(), since_start.place(name)?)));
        Self {
            types: since_start.assigned_by(&backend.query_types),
            tiers: since_start.names().map(|name| backend.tier(name)).collect(),
            rows: since_start.names().map(rows).collect(),
            routes: Routes::new(routes),
        }
    }

    /// The class and the rows of a request by HTTP; `path` is normalised. Without a route it reads or writes, by its method.
    pub(crate) fn classify_http(&self, method: &str, path: &str) -> (RequestClass, u32) {
        let by_method = || match method {
            "GET" | "HEAD" | "OPTIONS" => Class::Read.index(),
            "DELETE" | "PATCH" | "POST" | "PUT" => Class::Write.index(),
            _ => Class::Unknown.index(),
        };
        let index = self.routes.find(method, path).unwrap_or_else(by_method);
        let tier = self.tiers.get(index).copied().unwrap_or(Tier::Critical);
        let rows = self.rows.get(index).copied().unwrap_or(1);
        (RequestClass { tier, query_type: QueryType(index as u16) }, rows)
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
