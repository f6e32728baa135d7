//! One request from its decoding to its reply: its position, its class, and its state while it is in flight.

use std::rc::Rc;
use std::sync::Arc;

use gate_common::units::{MilliRu, Nanos};

use super::metrics::cost_samples::CostFeatures;
use super::store_place::NodeId;
use super::tenants::ledger::{Account, TenantId};
use super::tenants::members::Member;
use super::tenants::request_limits::LimitSet;
use super::wire::Codec;
use super::wire::parts::Join;
/// Tier and query type of a request.
pub(crate) use crate::policy::admission::Request as RequestClass;
use crate::policy::key_reads::KeyRead;

/// A request's position in the order of its client's requests, which is the order of the replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SeqNo(pub(crate) u64);

/// A request's position among its client's outstanding requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplySlot {
    pub(crate) seq: SeqNo,
    /// The position of the first request without a complete reply.
    pub(crate) first: SeqNo,
}

/// A decoded request, before anything is decided about it: a view of its client's input.
#[derive(Debug)]
pub(crate) struct Decoded<'a, W: Codec, C> {
    pub(crate) client: &'a Rc<C>,
    /// The tenant that will be charged.
    pub(crate) tenant: TenantId,
    pub(crate) slot: ReplySlot,
    pub(crate) request: &'a W::Request,
    /// All of the request, or the head of one that is streamed.
    pub(crate) bytes: &'a [u8],
    /// The stores that it goes to.
    pub(crate) target: Target,
    /// The elements that the store has told its keys hold.
    pub(crate) told: Option<u64>,
}

impl<W: Codec, C> Clone for Decoded<'_, W, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: Codec, C> Copy for Decoded<'_, W, C> {}

/// The stores that a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// This one.
    One(NodeId),
    /// The stores of its keys, each asked for the keys that it has; their replies are joined so.
    Several(Join),
    /// None: no store alone can answer it.
    Nowhere,
    /// None: its keys are in several slots of a cluster.
    CrossSlot,
}

impl Target {
    /// The store of a request that goes to one; the first of others.
    #[inline]
    pub(crate) const fn node(self) -> NodeId {
        match self {
            Self::One(node) => node,
            Self::Several(_) | Self::Nowhere | Self::CrossSlot => NodeId::FIRST,
        }
    }
}

/// The tenant that a request is charged to, and how.
#[derive(Clone, Debug)]
pub(crate) struct Payer {
    pub(crate) tenant: TenantId,
    /// The member of the tenant whose bucket is charged.
    pub(crate) member: Option<Arc<Member>>,
    /// True if refusals are only counted.
    pub(crate) shadow: bool,
    /// True if the XDP program has charged the request.
    pub(crate) is_charged_by_xdp: bool,
    /// True if the request came in a datagram, whose sender may be forged.
    pub(crate) is_datagram: bool,
    /// True if the request counts towards the tenant's deep debt.
    pub(crate) counts_for_deep_debt: bool,
}

/// The charge of a request, and the class that it was charged as.
#[derive(Clone, Debug)]
pub(crate) struct Charged {
    pub(crate) tenant: TenantId,
    /// The member of the tenant whose bucket was charged.
    pub(crate) member: Option<Arc<Member>>,
    /// The price that was taken from the tenant's buckets; zero for a coalesced request, whose followers are charged.
    pub(crate) price: MilliRu,
    pub(crate) class: RequestClass,
    /// When it was charged, before it waited.
    pub(crate) at: Nanos,
    /// True if refusals are only counted.
    pub(crate) shadow: bool,
    /// True if the XDP program has charged the request, and counted it.
    pub(crate) is_charged_by_xdp: bool,
    /// True if the request came in a datagram, whose sender may be forged.
    pub(crate) is_datagram: bool,
    /// True if the request counts as passed already.
    pub(crate) is_counted: bool,
    /// The limits that it was taken from.
    pub(crate) limits: LimitSet,
    /// Its read of whole keys, as it was known.
    pub(crate) read: KeyRead,
}

impl Payer {
    /// The bucket that is charged.
    pub(crate) fn account(&self) -> Account<'_> {
        (self.tenant, self.member.as_deref())
    }
}

impl Charged {
    /// The bucket that was charged.
    #[inline]
    pub(crate) fn account(&self) -> Account<'_> {
        (self.tenant, self.member.as_deref())
    }
}

/// A request that has been charged and not been answered. It moves from the pipeline to the queue, and from there to the
/// store, each of which adds its own state around it: the queue its bytes, a store connection its place in the stream.
///
/// `C` refers to the client; `R` is what the request does for the hot cache.
#[derive(Debug)]
pub(crate) struct InFlight<C, R> {
    pub(crate) client: C,
    /// The store that it goes to.
    pub(crate) node: NodeId,
    /// The position of its reply.
    pub(crate) seq: SeqNo,
    pub(crate) charged: Charged,
    pub(crate) features: CostFeatures,
    /// True if the client wants no reply.
    pub(crate) silent: bool,
    /// How often a node of a cluster has sent it to another.
    pub(crate) redirects: u8,
    pub(crate) cache_role: R,
}

impl<C, R> InFlight<C, R> {
    /// Separates the request from its client.
    #[inline]
    pub(crate) fn split(self) -> (C, InFlight<(), R>) {
        let Self { client, node, seq, charged, features, silent, redirects, cache_role } = self;
        (client, InFlight { client: (), node, seq, charged, features, silent, redirects, cache_role })
    }

    /// The same request with another role in the hot cache.
    #[inline]
    pub(crate) fn with_role<S>(self, cache_role: S) -> InFlight<C, S> {
        let Self { client, node, seq, charged, features, silent, redirects, .. } = self;
        InFlight { client, node, seq, charged, features, silent, redirects, cache_role }
    }
}
