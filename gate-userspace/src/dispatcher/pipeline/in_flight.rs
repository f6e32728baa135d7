//! One request on its way: from its charge, through the queue and the store, to its reply.

use gate_common::units::{MilliRu, Nanos};

use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::request::SeqNo;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::policy::admission;

/// A request that has been charged and not been answered. It moves from the pipeline to the queue, and from there to the
/// store, each of which adds its own state around it: the queue its bytes, a store connection its place in the stream.
///
/// `C` refers to the client.
#[derive(Debug)]
pub(crate) struct InFlight<C> {
    pub(crate) client: C,
    /// The tenant that is charged.
    pub(crate) tenant: TenantId,
    /// The charge; nothing for a coalesced request, whose followers are charged.
    pub(crate) charged: MilliRu,
    /// True once it is counted as passed.
    pub(crate) is_counted: bool,
    /// The position of its reply.
    pub(crate) seq: SeqNo,
    pub(crate) class: admission::Request,
    pub(crate) features: CostFeatures,
    /// True if the client wants no reply.
    pub(crate) silent: bool,
    /// When it was admitted, before it waited.
    pub(crate) admitted: Nanos,
    pub(crate) cache_role: CacheRole,
}

impl<C> InFlight<C> {
    /// Separates the request from its client.
    #[inline]
    pub(crate) fn split(self) -> (C, InFlight<()>) {
        let Self { client, tenant, charged, is_counted, seq, class, features, silent, admitted, cache_role } =
            self;
        let request = InFlight {
            client: (),
            tenant,
            charged,
            is_counted,
            seq,
            class,
            features,
            silent,
            admitted,
            cache_role,
        };
        (client, request)
    }
}
