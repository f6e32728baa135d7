//! The role of a request for the hot cache, from its reading to its reply.

use std::rc::Rc;

use gate_common::abi::Reason;

use super::flights::{FlightLeader, PendingTtl};
use super::versions::{KeyHash, Mark, Version};
use crate::dispatcher::split::Split;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::policy::rank::Rank;
use crate::protocol::Refusal;

/// The result of a read.
#[derive(Debug)]
pub(crate) enum ReadResult {
    /// Answered from the cache.
    Hit(Rc<[u8]>),
    /// The read follows a flight.
    Joined,
    /// To be sent to the store.
    ToStore(CacheDecision),
}

/// The role in which a request goes to the store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CacheDecision {
    /// For itself; with the one key that it reads or writes, if that is known.
    Uncached(Option<KeyHash>),
    /// For all clients that read this version of this key.
    MayLead(KeyHash, Version, Rank),
}

impl ReadResult {
    pub(crate) const UNCACHED: Self = Self::ToStore(CacheDecision::Uncached(None));
}

/// The role of a request for the hot cache while it is with the store.
#[derive(Debug)]
pub(crate) enum CacheRole {
    /// None.
    None,
    /// The mark of a write.
    MarkWrite(Mark),
    /// The request leads a flight. No single client owns it.
    LeadFlight(Box<FlightLeader>),
    /// gate's own query for the TTL of a reply, once there is that reply.
    QueryTtl(Option<Box<PendingTtl>>),
    /// gate's own question for the size of what its client's next request of this kind reads, and the answer.
    AskSize { kind: u8, told: Option<u64> },
    /// None: it is a part of a request that is with several stores.
    Part(Rc<Split<Mark>>),
}

impl CacheRole {
    /// The request of this tenant will not be sent: the store takes none, or the tenant is refused.
    pub(crate) fn refuse(self, tenant: TenantId, refusal: Refusal) {
        match self {
            Self::MarkWrite(mark) => mark.over(),
            Self::LeadFlight(leading) if refusal.reason == Reason::StoreDown => leading.fail(refusal),
            Self::LeadFlight(leading) => leading.decline(tenant, refusal),
            Self::None | Self::QueryTtl(_) | Self::AskSize { .. } | Self::Part(_) => {}
        }
    }

    /// The reply to a coalesced request is for one client alone.
    pub(crate) fn answer_is_for_one_client(&mut self) {
        if let Self::LeadFlight(leading) = self {
            leading.is_for_one_client();
        }
    }

    /// A part of the reply to a coalesced request.
    pub(crate) fn on_reply_bytes(&mut self, give: &[u8], add: &[u8]) {
        match self {
            Self::LeadFlight(leading) => [give, add].into_iter().for_each(|bytes| leading.read(bytes)),
            Self::QueryTtl(Some(keeping)) => [give, add].into_iter().for_each(|bytes| keeping.read(bytes)),
            Self::None | Self::MarkWrite(_) | Self::QueryTtl(None) | Self::AskSize { .. } | Self::Part(_) => {
            }
        }
    }

    /// True if no client gets the reply to the request itself as it comes.
    #[inline]
    pub(crate) const fn is_coalesced(&self) -> bool {
        matches!(self, Self::LeadFlight(_) | Self::QueryTtl(_) | Self::AskSize { .. })
    }
}
