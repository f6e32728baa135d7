//! The stores of a request, where several share a service's keys; and reads of keys at several of them.
//!
//! **Problem.** A `get` of many keys may be about several stores, and its client waits for one reply. **Rule.** Such a request is
//! charged and admitted once, and sent as one request to each store, each with a reply slot of its own: the client reads the
//! values of the first store, then those of the next, and one end. **Failures.** A client that reads an error takes it for the
//! end of the reply. So the keys of a store that fails are missing from it, as keys that are not there are, and that is
//! counted; where all stores fail the request is refused.

use std::rc::Rc;

use gate_common::units::{MilliRu, Nanos};

use super::dispatch::is_slow;
use super::queue_item::QueueItem;
use super::service::{Service, Session};
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::cluster::Cluster;
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::request::{Charged, Decoded, InFlight, ReplySlot, SeqNo, Target};
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::tenants::ledger::{Ledger, TenantId};
use crate::dispatcher::wire::{Part, Placed, Wire};
use crate::policy::placement;
use crate::protocol::{Refusal, Rule};

/// The parts of a request that has been sent to several stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    count: u32,
    /// A bit for each part that was not sent.
    failed: u64,
}

impl<W: Wire> Service<W> {
    /// The stores of a request: the only place that chooses them.
    #[inline]
    pub(crate) fn target(
        &self,
        client: &Session<W>,
        request: &W::Request,
        bytes: &[u8],
        now: Nanos,
    ) -> Target {
        let stores = self.settings.stores.len();
        if stores == 1 {
            return Target::One(NodeId::FIRST);
        }
        if let Some(cluster) = &self.settings.cluster {
            return self.target_in_cluster(cluster, client, request, bytes, now);
        }
        match W::placed(request) {
            Placed::AtKeys { splits } => {
                let mut nodes = W::keys(request, bytes).map(|key| self.settings.node_of(key));
                match nodes.next() {
                    Some(first) if nodes.all(|node| node == first) => Target::One(first),
                    Some(_) if splits => Target::Several,
                    Some(_) | None => Target::Nowhere,
                }
            }
            Placed::Anywhere => Target::One(self.any_node(client, now)),
            Placed::Nowhere => Target::Nowhere,
        }
    }

    /// The node of a cluster that answers a request. What is about a slot whose node is not known may be asked of any, which says
    /// where it is, or that nobody has it.
    #[inline]
    fn target_in_cluster(
        &self,
        cluster: &Cluster,
        client: &Session<W>,
        request: &W::Request,
        bytes: &[u8],
        now: Nanos,
    ) -> Target {
        match node_in_cluster::<W>(cluster, request, bytes) {
            Ok(Some(node)) => Target::One(node),
            Ok(None) => Target::One(self.any_node(client, now)),
            Err(target) => target,
        }
    }

    /// The rule by which a request cannot be asked on a connection to this node: its keys are at others, or it is no node's alone.
    pub(super) fn refused_at(&self, node: NodeId, request: &W::Request, bytes: &[u8]) -> Option<Rule> {
        match node_in_cluster::<W>(self.settings.cluster.as_ref()?, request, bytes) {
            Ok(Some(other)) if other != node => Some(Rule::CrossSlot),
            Ok(_) => None,
            Err(Target::CrossSlot) => Some(Rule::CrossSlot),
            Err(_) => Some(Rule::Cluster),
        }
    }

    /// True if a request can be asked of this node.
    pub(super) fn may_ask(&self, node: NodeId, request: &W::Request, bytes: &[u8]) -> bool {
        self.refused_at(node, request, bytes).is_none()
    }

    /// The rule by which a request is refused that goes to no store.
    pub(super) fn refused_by_stores(&self, target: Target) -> Option<Rule> {
        match target {
            Target::One(_) | Target::Several => None,
            Target::CrossSlot => Some(Rule::CrossSlot),
            Target::Nowhere if self.settings.cluster.is_some() => Some(Rule::Cluster),
            Target::Nowhere => Some(Rule::Backends),
        }
    }

    /// A store that is up, for what any answers; the first if none is.
    pub(super) fn any_node(&self, client: &Session<W>, now: Nanos) -> NodeId {
        let mut nodes = NodeId::all(client.pool().used());
        let up = nodes.find(|node| !client.store(*node).is_down(now));
        up.unwrap_or(NodeId::FIRST)
    }

    /// True if a client must have all its replies before this request: the node of a slot has changed since it sent what is
    /// outstanding, and this would overtake it.
    #[inline]
    pub(super) fn must_wait_for_slots(&self, client: &Session<W>, replies: &Replies) -> bool {
        let Some(cluster) = &self.settings.cluster else { return false };
        let epoch = cluster.epoch();
        let is_same = client.slots_epoch.replace(epoch) == epoch && epoch.is_multiple_of(2);
        let waits = !is_same && replies.outstanding() > 0;
        if waits {
            // It looks again with nothing outstanding.
            client.slots_epoch.set(EPOCH_IN_DOUBT);
            client.awaits_lane.set(true);
        }
        waits
    }

    /// Sends a request to several stores. It has been charged and admitted as one.
    ///
    /// # Errors
    ///
    /// The first store's refusal, if none accepts its part.
    pub(super) fn send_parts(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        mut charged: Charged,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<Parts, Refusal> {
        let Decoded { client, slot: ReplySlot { seq, .. }, request, bytes, .. } = decoded;
        let buffers = &mut *self.part_buffers.borrow_mut();
        buffers.iter_mut().for_each(Vec::clear);
        W::split(request, bytes, |key| self.settings.node_of(key).index(), buffers);
        let count = buffers.iter().filter(|part| !part.is_empty()).count() as u32;
        let mut parts = Parts { count, failed: 0 };
        let mut refused = None;
        let of_part = |charged: &mut Charged, place: u32| {
            let price = charged.price;
            let share = MilliRu(price.0 / (count - place));
            charged.price = MilliRu(price.0 - share.0);
            Charged { price: share, ..charged.clone() }
        };
        let whole = charged.clone();
        let filled = NodeId::all(buffers.len()).filter(|node| !buffers[node.index()].is_empty());
        for (place, node) in (0..count).zip(filled) {
            let part = if place + 1 == count { Part::Last } else { Part::Inner };
            let bytes = &buffers[node.index()][..];
            let Some(request) = W::part(bytes, part) else {
                parts.failed |= 1 << place;
                self.metrics.count(Event::PartFailed);
                continue;
            };
            let slow = is_slow::<W>(&request);
            match self.accepts(client, node, (charged.tenant, bytes.len()), slow, now) {
                Err(refusal) => {
                    parts.failed |= 1 << place;
                    self.metrics.count(Event::PartFailed);
                    refused.get_or_insert(refusal);
                }
                Ok(has_permit) => {
                    if !charged.is_counted {
                        self.hot.cache_role(decoded, None);
                        self.admission.count_passed(ledger, &mut charged);
                    }
                    let in_flight = InFlight {
                        client: Rc::clone(client),
                        node,
                        part,
                        seq: SeqNo(seq.0 + u64::from(place)),
                        charged: of_part(&mut charged, place),
                        features: CostFeatures::of::<W>(&request),
                        silent: false,
                        redirects: 0,
                        cache_role: CacheRole::None,
                    };
                    self.pass_on(in_flight, &request, bytes, has_permit, now);
                }
            }
        }
        match refused {
            Some(refusal) if parts.failed.count_ones() == count => {
                Err(self.admission.refuse(ledger, &whole, refusal))
            }
            Some(_) | None => Ok(parts),
        }
    }

    /// True if a request goes to a store now, with a permit; false if it waits in the queue.
    ///
    /// # Errors
    ///
    /// A refusal, which is not counted.
    #[inline]
    pub(super) fn accepts(
        &self,
        client: &Session<W>,
        node: NodeId,
        (tenant, len): (TenantId, usize),
        is_slow: bool,
        now: Nanos,
    ) -> Result<bool, Refusal> {
        let store = client.store(node);
        let admission = &self.admission;
        if store.has_window(is_slow) && admission.take_permit(&client.queued, is_slow) {
            store.accepts(now).inspect_err(|_| admission.release_permit())?;
            return Ok(true);
        }
        admission.queue_accepts(tenant, len, !self.tenants.borrow().are_several())?;
        Ok(false)
    }

    /// Sends a request that has a permit, or puts it into the queue.
    #[inline]
    pub(super) fn pass_on(
        &self,
        in_flight: InFlight<Rc<Session<W>>, CacheRole>,
        request: &W::Request,
        bytes: &[u8],
        has_permit: bool,
        now: Nanos,
    ) {
        if has_permit {
            self.admission.note_not_queued(in_flight.charged.class.tier, now);
            self.submit(in_flight, request, bytes, now);
        } else {
            self.admission.enqueue(QueueItem::Shared { in_flight, request: *request }, bytes, now);
        }
    }

    /// Opens the reply slots of a request's parts, of which the first is open, and ends those that were not sent.
    pub(super) fn open_parts(replies: &mut Replies, first: SeqNo, parts: Parts) {
        for _ in 1..parts.count {
            replies.open();
        }
        for place in (0..parts.count).filter(|place| parts.failed & (1 << place) != 0) {
            let part = if place + 1 == parts.count { Part::Last } else { Part::Inner };
            end_part::<W>(replies, SeqNo(first.0 + u64::from(place)), part);
        }
    }

    /// A part gets no reply from its store: its keys are missing.
    pub(super) fn fail_part(&self, client: &Rc<Session<W>>, seq: SeqNo, part: Part) {
        self.metrics.count(Event::PartFailed);
        if !client.is_gone() {
            end_part::<W>(&mut client.conversation.borrow_mut().replies, seq, part);
            self.mark_pending_write(client);
        }
    }
}

/// The node of a cluster that alone answers a request; `None` if any does.
///
/// # Errors
///
/// If no node alone does.
#[inline]
fn node_in_cluster<W: Wire>(
    cluster: &Cluster,
    request: &W::Request,
    bytes: &[u8],
) -> Result<Option<NodeId>, Target> {
    let slot = match W::placed(request) {
        Placed::AtKeys { .. } => {
            let mut slots = W::keys(request, bytes).map(placement::slot);
            let first = slots.next();
            if slots.any(|slot| Some(slot) != first) {
                return Err(Target::CrossSlot);
            }
            first
        }
        Placed::Anywhere => W::slot(request, bytes),
        Placed::Nowhere => return Err(Target::Nowhere),
    };
    let Some(slot) = slot else { return Ok(None) };
    let node = cluster.node_of(slot);
    if node.is_none() {
        cluster.ask_refresh();
    }
    Ok(node)
}

/// No cluster's epoch.
const EPOCH_IN_DOUBT: u64 = u64::MAX;

/// Ends the reply of a part without a value.
fn end_part<W: Wire>(replies: &mut Replies, seq: SeqNo, part: Part) {
    if part == Part::Last {
        replies.part(seq, W::END_OF_PARTS);
    }
    replies.whole(seq);
}
