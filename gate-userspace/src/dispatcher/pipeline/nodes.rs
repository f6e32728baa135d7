//! The stores of a request, where several share a service's keys; and reads of keys at several of them.
//!
//! **Problem.** A `get` of many keys may be about several stores, and its client waits for one reply. **Rule.** Such a request is
//! charged and admitted once, and sent as one request to each store, each with a reply slot of its own: the client reads the
//! values of the first store, then those of the next, and one end, which has a slot as well. **Failures.** A client that reads an
//! error takes it for the end of the reply. So the keys of a store that fails are missing from it, as keys that are not there are,
//! and that is counted. Where all stores fail, or gate refuses a part, the refusal is the end: an overload is no miss.

use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};

use super::dispatch::is_slow;
use super::queue_item::QueueItem;
use super::redirections::slot_of;
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::admission::answered::Answered;
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::cluster::Cluster;
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::hot_cache::versions::Mark;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::request::{Charged, Decoded, InFlight, ReplySlot, SeqNo, Target};
use crate::dispatcher::split::{PartOutcome, Read, Split, SplitOutcome};
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::stores::events::Failure;
use crate::dispatcher::tenants::ledger::{Ledger, TenantId};
use crate::dispatcher::wire::parts::{Join, KeyPlace};
use crate::dispatcher::wire::{Placed, Wire};
use crate::protocol::{Refusal, Rule};

/// The parts of a request that has been sent to several stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    count: u32,
    /// A bit for each part that was not sent.
    failed: u64,
}

impl Parts {
    /// So many parts, all sent.
    pub(super) fn all_sent(count: usize) -> Self {
        Self { count: count as u32, failed: 0 }
    }
}

impl<W: Wire> Service<W> {
    /// The stores of a request: the only place that chooses them. Until the next choice the slots of its cluster stay the same.
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
            cluster.renew(&mut self.slot_map.borrow_mut());
            return self.target_in_cluster(cluster, client, request, bytes, now);
        }
        match W::placed(request, bytes) {
            Placed::AtKeys(splits) => {
                let mut nodes = W::keys(request, bytes).map(|key| self.settings.node_of(key));
                match (nodes.next(), splits.join(false)) {
                    (Some(first), _) if nodes.all(|node| node == first) => Target::One(first),
                    (Some(_), Some(join)) => Target::Several(join),
                    (Some(_), None) | (None, _) => Target::Nowhere,
                }
            }
            Placed::Anywhere => Target::One(self.any_node(client, now)),
            Placed::Everywhere(_) | Placed::InTurn | Placed::Nowhere => Target::Nowhere,
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
        match self.node_in_cluster(cluster, request, bytes) {
            Ok(Some(node)) => Target::One(node),
            Ok(None) => Target::One(self.any_node(client, now)),
            Err(Target::CrossSlot) => self.split_by_slot(cluster, client, request, bytes, now),
            Err(target) => match W::placed(request, bytes) {
                Placed::Everywhere(join) => self.split_to_all(cluster, bytes, join),
                Placed::InTurn => self.split_scan(cluster, request, bytes),
                Placed::AtKeys(_) | Placed::Anywhere | Placed::Nowhere => target,
            },
        }
    }

    /// The node of a cluster that alone answers a request; `None` if any does.
    ///
    /// # Errors
    ///
    /// If no node alone does.
    #[inline]
    fn node_in_cluster(
        &self,
        cluster: &Cluster,
        request: &W::Request,
        bytes: &[u8],
    ) -> Result<Option<NodeId>, Target> {
        let Some(slot) = slot_of::<W>(request, bytes)? else { return Ok(None) };
        let node = self.slot_map.borrow().node_of(slot);
        if node.is_none() {
            cluster.ask_refresh();
        }
        Ok(node)
    }

    /// The rule by which a request cannot be asked on a connection to this node: its keys are at others, or it is no node's alone.
    pub(super) fn refused_at(&self, node: NodeId, request: &W::Request, bytes: &[u8]) -> Option<Rule> {
        let cluster = self.settings.cluster.as_ref()?;
        cluster.renew(&mut self.slot_map.borrow_mut());
        match self.node_in_cluster(cluster, request, bytes) {
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
            Target::One(_) | Target::Several(_) => None,
            Target::CrossSlot => Some(Rule::CrossSlot),
            Target::Nowhere if self.settings.cluster.is_some() => Some(Rule::Cluster),
            Target::Nowhere => Some(Rule::Backends),
        }
    }

    /// A store that is up, for what any answers; the first if none is. Of a cluster's nodes one that has slots, if any is known.
    pub(super) fn any_node(&self, client: &Session<W>, now: Nanos) -> NodeId {
        let up = || NodeId::all(client.pool().used()).filter(|node| !client.store(*node).is_down(now));
        let serves = |node: &NodeId| self.settings.cluster.is_none() || self.slot_map.borrow().serves(*node);
        up().find(serves).or_else(|| up().next()).unwrap_or(NodeId::FIRST)
    }

    /// True if a client must have all its replies before this request: the node of a slot has changed since it sent what is
    /// outstanding, and this would overtake it.
    #[inline]
    pub(super) fn must_wait_for_slots(&self, client: &Session<W>, replies: &Replies) -> bool {
        if self.settings.cluster.is_none() {
            return false;
        }
        let epoch = self.slot_map.borrow().epoch();
        let waits = client.slots_epoch.replace(epoch) != epoch && replies.outstanding() > 0;
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
        join: Join,
        charged: Charged,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<Parts, Refusal> {
        if join != Join::InTurn {
            return self.send_joined(decoded, join, charged, ledger, now);
        }
        let Decoded { slot: ReplySlot { seq, .. }, request, bytes, .. } = decoded;
        let buffers = &mut *self.part_buffers.borrow_mut();
        buffers.clear();
        let place_of = |key: &[u8]| {
            let node = self.settings.node_of(key).index();
            KeyPlace { node, slot: node }
        };
        W::split(request, bytes, place_of, buffers);
        let buffers = &buffers.stores;
        let count = buffers.iter().filter(|part| !part.is_empty()).count() as u32;
        let mut parts = Parts { count, failed: 0 };
        let end = SeqNo(seq.0 + u64::from(count));
        let split = Rc::new(Split::new(end, charged, CostFeatures::of::<W>(request), count));
        let filled = NodeId::all(buffers.len()).filter(|node| !buffers[node.index()].is_empty());
        for (place, node) in (0..count).zip(filled) {
            let sent = self.send_part(decoded, place, node, (&split, &buffers[node.index()]), ledger, now);
            let Err(outcome) = sent else { continue };
            self.metrics.count(Event::PartFailed);
            parts.failed |= 1 << place;
            // The last outcome of all is one of these only if none was sent.
            if let Some(SplitOutcome::Refused(refusal)) = split.part_ended(outcome) {
                return Err(self.admission.refuse(ledger, &split.charged, refusal));
            }
        }
        self.hot.cache_role(decoded, None);
        Ok(parts)
    }

    /// Sends a part to its store, or puts it into the queue.
    fn send_part(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        place: u32,
        node: NodeId,
        (split, bytes): (&Rc<Split<Mark>>, &[u8]),
        ledger: &Ledger,
        now: Nanos,
    ) -> Result<(), PartOutcome> {
        let Decoded { client, slot, .. } = decoded;
        let Some(request) = W::part(bytes) else {
            return Err(PartOutcome::Failed(Refusal::of(Reason::StoreDown)));
        };
        let features = CostFeatures::of::<W>(&request);
        let whole = &split.charged;
        let charged = Charged { price: split.price_of(features.rows), is_counted: true, ..whole.clone() };
        let price = charged.price;
        let has_permit = self
            .accepts(client, node, (charged.tenant, bytes.len()), is_slow::<W>(&request), now)
            .map_err(|refusal| PartOutcome::Refused(refusal, price))?;
        if has_permit {
            self.part_passes(split, ledger);
        }
        let in_flight = InFlight {
            client: Rc::clone(client),
            node,
            seq: SeqNo(slot.seq.0 + u64::from(place)),
            charged,
            features,
            silent: false,
            redirects: 0,
            cache_role: CacheRole::Part(Rc::clone(split)),
        };
        self.pass_on(in_flight, &request, bytes, has_permit, now);
        Ok(())
    }

    /// A part is sent: with the first one the request counts as passed. Its price is counted at its end, when it is known what was sent.
    pub(super) fn part_passes(&self, split: &Split<Mark>, ledger: &Ledger) {
        if split.passes() {
            let mut unpriced = Charged { price: MilliRu::ZERO, ..split.charged.clone() };
            self.admission.count_passed(ledger, &mut unpriced);
        }
    }

    /// Checks that a node's connection takes a request. Where it does not, the cluster may have given its slots to another meanwhile.
    ///
    /// # Errors
    ///
    /// A refusal, which is not counted.
    #[inline]
    pub(super) fn node_accepts(&self, client: &Session<W>, node: NodeId, now: Nanos) -> Result<(), Refusal> {
        client.store(node).accepts(now).inspect_err(|_| self.ask_for_slots())
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
            self.node_accepts(client, node, now).inspect_err(|_| admission.release_permit())?;
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
            self.admission.note_not_queued(&in_flight.charged, now);
            self.submit(in_flight, request, bytes, now);
        } else {
            self.admission.enqueue(QueueItem::Shared { in_flight, request: *request }, bytes, now);
        }
    }

    /// Opens the reply slots of a request's parts, of which the first is open, and that of its end, and ends those that were not sent.
    pub(super) fn open_parts(replies: &mut Replies, first: SeqNo, parts: Parts) {
        replies.open_behind_parts(parts.count);
        for place in (0..parts.count).filter(|place| parts.failed & (1 << place) != 0) {
            replies.whole(SeqNo(first.0 + u64::from(place)));
        }
    }

    /// True for a part whose reply has begun and of which the client has read nothing: it is as if it had not.
    pub(super) fn takes_back_part(&self, part: &InFlight<Rc<Session<W>>, CacheRole>) -> bool {
        matches!(part.cache_role, CacheRole::Part(_))
            && !part.client.is_gone()
            && part.client.conversation.borrow_mut().replies.take_back(part.seq)
    }

    /// A part has no answer of its store.
    pub(super) fn end_part(
        &self,
        client: &Rc<Session<W>>,
        split: &Split<Mark>,
        seq: SeqNo,
        outcome: PartOutcome,
    ) {
        self.metrics.count(Event::PartFailed);
        if !client.is_gone() {
            client.conversation.borrow_mut().replies.whole(seq);
            self.mark_pending_write(client);
        }
        self.end_split(client, split, split.part_ended(outcome), clock::monotonic());
    }

    /// Ends a request with the outcome of its last part.
    pub(super) fn end_split(
        &self,
        client: &Rc<Session<W>>,
        split: &Split<Mark>,
        outcome: Option<SplitOutcome>,
        now: Nanos,
    ) {
        let Some(outcome) = outcome else { return };
        split.joined.iter().for_each(|joined| joined.end_mark(Mark::over));
        let whole = &split.charged;
        match outcome {
            SplitOutcome::Answered(Read { rows, bytes, sent, is_paused })
            | SplitOutcome::Declined(Read { rows, bytes, sent, is_paused }) => {
                self.admission.record_reply(whole, &split.features(rows), bytes);
                if !is_paused {
                    self.admission
                        .observe(Answered { class: whole.class, charged: whole.at, sent, count: 1 }, now);
                }
            }
            SplitOutcome::InPart => {}
            SplitOutcome::Refused(refusal) => {
                let ledger = &mut *self.ledger.borrow_mut();
                if split.is_passed() {
                    ledger.count_refusal(whole.tenant, refusal.reason, MilliRu::ZERO, false);
                } else {
                    self.admission.refuse(ledger, whole, refusal);
                }
            }
        }
        if split.is_passed() {
            self.admission.end_charge(&mut self.ledger.borrow_mut(), whole, split.spent());
        }
        if client.is_gone() {
            return;
        }
        if let Some(joined) = &split.joined {
            return self.answer_joined(client, (split, joined), outcome);
        }
        match outcome {
            SplitOutcome::Answered(_) | SplitOutcome::Declined(_) | SplitOutcome::InPart => {
                self.answer(client, split.own, W::END_OF_PARTS)
            }
            SplitOutcome::Refused(refusal) => self.refuse_queued(client, split.own, false, refusal),
        }
    }
}

/// The refusal of a request that has failed at its store.
///
/// # Errors
///
/// The reply to its client, if that is known.
pub(super) fn refusal_of(failure: Failure<'_>) -> Result<Refusal, &[u8]> {
    match failure {
        Failure::UserRefused(why) | Failure::Astray(why) => Err(why),
        Failure::Uncertain => Ok(Refusal::uncertain()),
        Failure::Unsent { retry_after } => Ok(Refusal::after(Reason::StoreDown, retry_after)),
    }
}

/// No cluster's epoch.
const EPOCH_IN_DOUBT: u64 = u64::MAX;
