//! Sampled verdicts, and the sources that are refused or unknown most.

use gate_common::abi::{Name, Tenant};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sources::Sources;
use crate::clock;
use crate::control::verdicts::RefusedSource;
use crate::dispatcher::{RefusingBucket, VerdictSample};
use crate::kernel::Maps;

/// The document of the sources that are refused or unknown most, at the interface and by the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceList {
    /// Sources of tenants that are refused, by source and reason; the most refused first.
    pub refused: Vec<Refused>,
    /// Sources that no rule names, likewise.
    pub unknown: Vec<Refused>,
}

/// One source, and what it is refused for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refused {
    /// Its address.
    pub source: String,
    /// The service.
    pub service: String,
    /// The tenant that was charged most; nothing for an unknown source.
    pub tenant: Option<String>,
    /// The reason.
    pub reason: String,
    /// The upper bound of its refusals; older ones count less.
    pub estimate: u64,
    /// By how much that may be too many.
    pub error: u64,
}

/// The document of sampled verdicts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Watched {
    /// The oldest first.
    pub verdicts: Vec<Sampled>,
    /// The number to go on with: `/v1/watch?from=N`.
    pub next: u64,
}

/// The verdict on one request in `weight`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sampled {
    /// When, in ms since 1970.
    pub at_ms: u64,
    /// The client's address.
    pub source: String,
    /// The service.
    pub service: String,
    /// The tenant that is charged; nothing if none is.
    pub tenant: Option<String>,
    /// The query type of the request; `unknown` at the interface.
    pub query_type: String,
    /// The reason of a refusal; nothing if it passed.
    pub reason: Option<String>,
    /// The bucket that refused it for `quota`: the name of a tenant or of a limit.
    pub bucket: Option<String>,
    /// Where it was decided: at the interface (`xdp`), or by the proxy (`proxy`).
    pub layer: String,
    /// The number of requests that it stands for.
    pub weight: u32,
}

/// The sources, at most [`MOST`] of each kind.
pub(super) fn sources(context: &Sources) -> SourceList {
    let named = |unknown| {
        let found = context.verdicts.sources(unknown, MOST);
        found.iter().map(|found| refused(context, found)).collect()
    };
    SourceList { refused: named(false), unknown: named(true) }
}

/// The verdicts from the number in a query on: `from=17`.
///
/// # Errors
///
/// The fault in the query.
pub(super) fn watch(context: &Sources, query: &str) -> Result<Watched, String> {
    let from = match query.strip_prefix("from=") {
        Some(number) => number.parse().map_err(|_| USAGE.to_owned())?,
        None if query.is_empty() => 0,
        None => return Err(USAGE.to_owned()),
    };
    let (samples, next) = context.verdicts.since(from);
    Ok(Watched { verdicts: sampled(context, &samples), next })
}

/// The last refusals, the newest first.
pub(super) fn last_refused(context: &Sources, most: usize) -> Vec<Sampled> {
    sampled(context, &context.verdicts.last_refused(most))
}

fn sampled(context: &Sources, samples: &[VerdictSample]) -> Vec<Sampled> {
    let now = clock::monotonic();
    let now_ms = clock::unix_millis();
    let one = |sample: &VerdictSample| {
        let proxied = context.queues.services.get(sample.service);
        let types = proxied.zip(sample.query_type);
        let query_type = types.and_then(|(service, of_type)| service.types.names().nth(of_type.0.into()));
        Sampled {
            at_ms: now_ms.saturating_sub(now.saturating_sub(sample.at).0 / 1_000_000),
            source: sample.source.to_string(),
            service: context.verdicts.service(sample.service).unwrap_or_default(),
            tenant: tenant(&context.maps, sample.tenant),
            query_type: query_type.unwrap_or("unknown").to_owned(),
            reason: sample.reason.map(|reason| reason.name().to_owned()),
            bucket: sample.bucket.and_then(|bucket| match bucket {
                RefusingBucket::Named(name) => Some(name.to_owned()),
                RefusingBucket::Tenant(id) => tenant(&context.maps, id),
            }),
            layer: sample.layer.name().to_owned(),
            weight: sample.weight,
        }
    };
    samples.iter().map(one).collect()
}

fn refused(context: &Sources, found: &RefusedSource) -> Refused {
    Refused {
        source: found.source.to_string(),
        service: context.verdicts.service(found.service).unwrap_or_default(),
        tenant: tenant(&context.maps, found.tenant),
        reason: found.reason.name().to_owned(),
        estimate: found.weight.count,
        error: found.weight.error,
    }
}

fn tenant(maps: &Maps, id: u32) -> Option<String> {
    if id == 0 || id as usize >= maps.tenants.len() {
        return None;
    }
    let name: Name = maps.tenants.load_at(id as usize, std::mem::offset_of!(Tenant, name));
    Some(name.as_str().to_owned())
}

const USAGE: &str = "from is the number to go on with, e.g. /v1/watch?from=17";
/// Sources of each kind that are shown.
const MOST: usize = 256;
