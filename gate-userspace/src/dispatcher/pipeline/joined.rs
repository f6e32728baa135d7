//! Requests about keys in several slots of a cluster: sent by slot, and answered by one reply.
//!
//! **Rule.** Such a request is charged and admitted once. Each run of its keys that are in one slot is a request of its own, which
//! follows the slot by itself; those to one node are sent one behind the other, with one permit. Nothing is sent unless all
//! nodes take their parts. The reply is [`Joined`]. **Order.** The client's connection to a node carries them like its other
//! requests, and until the last is answered the request is outstanding: none of its client's overtakes it where a slot moves.

use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::dispatch::is_slow;
use super::nodes::{Parts, refusal_of};
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::cluster::Cluster;
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::hot_cache::versions::Mark;
use crate::dispatcher::joined::Joined;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::request::{Charged, Decoded, InFlight, SeqNo, Target};
use crate::dispatcher::scan::ScanCursor;
use crate::dispatcher::split::{PartOutcome, Split, SplitOutcome};
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::stores::events::{Failure, ReplyPart};
use crate::dispatcher::tenants::ledger::Ledger;
use crate::dispatcher::wire::parts::{Join, KeyPlace, MOST_PARTS, PartReply, Run};
use crate::dispatcher::wire::{Placed, Wire};
use crate::policy::placement;
use crate::protocol::Refusal;

type InFlightPart<W> = InFlight<Rc<Session<W>>, CacheRole>;

impl<W: Wire> Service<W> {
    /// Splits a request about several slots of a cluster, if it can be.
    pub(super) fn split_by_slot(
        &self,
        cluster: &Cluster,
        client: &Session<W>,
        request: &W::Request,
        bytes: &[u8],
        now: Nanos,
    ) -> Target {
        let Placed::AtKeys(splits) = W::placed(request, bytes) else { return Target::CrossSlot };
        let Some(join) = splits.join(cluster.split_writes) else { return Target::CrossSlot };
        let buffers = &mut *self.part_buffers.borrow_mut();
        buffers.clear();
        let slots = &*self.slot_map.borrow();
        let place_of = |key: &[u8]| {
            let slot = placement::slot(key);
            let known = slots.node_of(slot);
            if known.is_none() {
                cluster.ask_refresh();
            }
            KeyPlace { node: known.unwrap_or_else(|| self.any_node(client, now)).index(), slot }
        };
        W::split(request, bytes, place_of, buffers);
        self.split_work.set(buffers.split_work());
        if buffers.runs.len() <= MOST_PARTS { Target::Several(join) } else { Target::CrossSlot }
    }

    /// Asks all nodes of a cluster that have slots the same; none if none is known.
    pub(super) fn split_to_all(&self, cluster: &Cluster, bytes: &[u8], join: Join) -> Target {
        let buffers = &mut *self.part_buffers.borrow_mut();
        buffers.clear();
        for node in NodeId::all(buffers.stores.len()).filter(|node| self.slot_map.borrow().serves(*node)) {
            buffers.stores[node.index()].extend_from_slice(bytes);
            let at = KeyPlace { node: node.index(), slot: node.index() };
            buffers.runs.push(Run { at, keys: 1, len: bytes.len() });
        }
        self.split_work.set(buffers.split_work());
        if buffers.runs.is_empty() {
            cluster.ask_refresh();
        }
        Target::Several(join)
    }

    /// Asks the node of a cluster that a scan has come to; none if none is known.
    pub(super) fn split_scan(&self, cluster: &Cluster, request: &W::Request, bytes: &[u8]) -> Target {
        let buffers = &mut *self.part_buffers.borrow_mut();
        buffers.clear();
        let cursor = W::scan_cursor(request, bytes).and_then(ScanCursor::read);
        let step = self.slot_map.borrow().scan_step(cursor.unwrap_or(ScanCursor::START));
        let Some(step) = step else {
            cluster.ask_refresh();
            return Target::Several(Join::Same);
        };
        let out = &mut buffers.stores[step.node.index()];
        W::scan(request, bytes, cursor.map(|_| step.at_node), out);
        let at = KeyPlace { node: step.node.index(), slot: step.node.index() };
        buffers.runs.push(Run { at, keys: 1, len: out.len() });
        self.split_work.set(buffers.split_work());
        Target::Several(Join::Scan(step))
    }

    /// A part by chance, in proportion to the slots of its node.
    fn draw_part(&self, runs: &[Run], ledger: &mut Ledger) -> usize {
        let slots = |run: &Run| f64::from(self.slot_map.borrow().slots_of(NodeId::at(run.at.node)));
        let mut left = ledger.draw() * runs.iter().map(slots).sum::<f64>();
        let is_drawn = |run: &Run| {
            left -= slots(run);
            left < 0.0
        };
        runs.iter().position(is_drawn).unwrap_or_default()
    }

    /// Sends a request in parts that has just been split, and been charged and admitted as one.
    ///
    /// # Errors
    ///
    /// The refusal of the first node that does not take its part, or if there is none; nothing is sent then.
    pub(super) fn send_joined(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        join: Join,
        charged: Charged,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<Parts, Refusal> {
        let Decoded { client, slot, request, .. } = decoded;
        let buffers = &*self.part_buffers.borrow();
        if buffers.runs.is_empty() {
            return Err(self.admission.refuse(ledger, &charged, Refusal::of(Reason::StoreDown)));
        }
        let nodes =
            || NodeId::all(buffers.stores.len()).filter(|node| !buffers.stores[node.index()].is_empty());
        let mut permits = 0_u64;
        for node in nodes() {
            let len = buffers.stores[node.index()].len();
            let accepted = self
                .node_accepts(client, node, now)
                .and_then(|()| self.accepts(client, node, (charged.tenant, len), is_slow::<W>(request), now));
            match accepted {
                Ok(has_permit) => permits |= u64::from(has_permit) << node.index(),
                Err(refusal) => {
                    (0..permits.count_ones()).for_each(|_| self.admission.release_permit());
                    return Err(self.admission.refuse(ledger, &charged, refusal));
                }
            }
        }
        let mark = match self.hot.cache_role(decoded, None) {
            CacheRole::MarkWrite(mark) => Some(mark),
            CacheRole::None
            | CacheRole::LeadFlight(_)
            | CacheRole::QueryTtl(_)
            | CacheRole::AskSize { .. }
            | CacheRole::Part(_) => None,
        };
        let preferred = if join == Join::Any { self.draw_part(&buffers.runs, ledger) } else { 0 };
        let joined = Joined::new(join, &buffers.runs, preferred, mark);
        let parts = Parts::all_sent(joined.runs().len());
        let split = Rc::new(Split::of_joined(slot.seq, charged, CostFeatures::of::<W>(request), joined));
        if permits != 0 {
            self.part_passes(&split, ledger);
        }
        for node in nodes() {
            let of_node = buffers.runs.iter().filter(|run| run.at.node == node.index());
            let price = split.price_of(of_node.map(|run| run.keys).sum());
            let in_flight = InFlight {
                client: Rc::clone(client),
                node,
                seq: slot.seq,
                charged: Charged { price, is_counted: true, ..split.charged.clone() },
                features: CostFeatures::of::<W>(request),
                silent: false,
                redirects: 0,
                cache_role: CacheRole::Part(Rc::clone(&split)),
            };
            let has_permit = permits & 1 << node.index() != 0;
            self.pass_on(in_flight, request, &buffers.stores[node.index()], has_permit, now);
        }
        Ok(parts)
    }

    /// Sends the parts of one node, which have a permit.
    pub(super) fn send_runs(
        &self,
        of_node: &InFlightPart<W>,
        (split, joined): (&Rc<Split<Mark>>, &Joined<Mark>),
        whole: &W::Request,
        bytes: &[u8],
        now: Nanos,
    ) {
        let InFlight { client, node, charged, .. } = of_node;
        let store = client.store(*node);
        joined.takes_permit(*node);
        let mut rest = bytes;
        for (seq, run) in places(split, joined, *node) {
            let (bytes, behind) = rest.split_at(run.len);
            rest = behind;
            // All that is read of it is how much it is.
            let request = W::whole(bytes).map_or(*whole, |(request, _)| request);
            let in_flight = InFlight {
                client: Rc::clone(client),
                node: *node,
                seq,
                charged: charged.clone(),
                features: CostFeatures::of::<W>(&request),
                silent: false,
                redirects: 0,
                cache_role: CacheRole::Part(Rc::clone(split)),
            };
            // A node does them one behind the other.
            let slow = self.begin_slow(*node, whole, now).or_else(|| self.begin_slow(*node, &request, now));
            let freed = self.freed_later(client, &request, bytes);
            let bytes = freed.as_ref().map_or(bytes, |freed| &freed[..]);
            store.send(in_flight, &request, bytes, (None, slow), now);
        }
    }

    /// The parts of one node are refused in the queue.
    pub(super) fn refuse_runs(
        &self,
        of_node: &InFlightPart<W>,
        (split, joined): (&Split<Mark>, &Joined<Mark>),
        refusal: Refusal,
    ) {
        let InFlight { client, node, .. } = of_node;
        for (seq, run) in places(split, joined, *node) {
            self.drop_values(client, (split, joined));
            self.end_part(client, split, seq, PartOutcome::Refused(refusal, split.price_of(run.keys)));
        }
    }

    /// Some of the reply to a part has come.
    pub(super) fn joined_part(
        &self,
        client: &Rc<Session<W>>,
        (split, joined): (&Split<Mark>, &Joined<Mark>),
        seq: SeqNo,
        reply: ReplyPart<'_>,
    ) {
        let part = place_of(split, seq);
        let given = reply.given();
        let mut values = given;
        // Pushes that nobody has asked for come ahead of it, and are left out.
        if reply.is_first && reply.answer.give > 0 {
            let is_whole = reply.answer.last;
            match W::part_reply(joined.join, joined.keys_of(part), given) {
                Some(PartReply::Values(at)) => values = &given[at..],
                Some(PartReply::Number(number)) => joined.add(number),
                Some(PartReply::Counted(number, at)) => {
                    joined.add(number);
                    values = &given[at..];
                }
                Some(PartReply::Whole) if is_whole && joined.merge(part, given, false) => {}
                Some(PartReply::Nothing) if is_whole && joined.merge(part, given, true) => {}
                Some(PartReply::Whole | PartReply::Nothing) | None => {
                    let error = if given.first() == Some(&b'-') { given } else { UNREADABLE };
                    self.metrics.count(Event::PartFailed);
                    joined.declines(part, error);
                    self.drop_values(client, (split, joined));
                }
            }
        }
        if client.is_gone() {
            return;
        }
        let replies = &mut client.conversation.borrow_mut().replies;
        if joined.join.has_values() && !joined.has_failed() {
            replies.part(seq, values);
            if joined.hold(values.len()) > MOST_HELD && !joined.is_begun() && joined.may_begin() {
                begin::<W>(replies, split.own, joined);
            }
        }
        if reply.answer.last {
            replies.whole(seq);
        }
        self.mark_pending_write(client);
    }

    /// The outcome of a part that is answered.
    pub(super) fn joined_part_answered(
        &self,
        (split, joined): (&Split<Mark>, &Joined<Mark>),
        seq: SeqNo,
        (rows, bytes): (u32, usize),
        (sent, is_paused): (Nanos, bool),
    ) -> PartOutcome {
        let part = place_of(split, seq);
        if joined.frees_permit(part, true) {
            self.admission.release_permit();
        }
        match joined.is_declined(part) {
            true => PartOutcome::Declined { bytes, sent, is_paused },
            false => PartOutcome::Answered { rows, bytes, sent, is_paused },
        }
    }

    /// There is no answer to a part, or no more of it.
    pub(super) fn joined_part_failed(
        &self,
        client: &Rc<Session<W>>,
        (split, joined): (&Split<Mark>, &Joined<Mark>),
        seq: SeqNo,
        failure: Failure<'_>,
    ) {
        let part = place_of(split, seq);
        if joined.frees_permit(part, true) {
            self.admission.release_permit();
        }
        let outcome = match refusal_of(failure) {
            Ok(refusal) => PartOutcome::Failed(refusal),
            Err(why) => {
                joined.declines(part, why);
                PartOutcome::Declined { bytes: 0, sent: clock::monotonic(), is_paused: true }
            }
        };
        joined.loses_answer();
        self.drop_values(client, (split, joined));
        self.end_part(client, split, seq, outcome);
    }

    /// The reply to a part waits at the store for the client.
    pub(super) fn joined_part_paused(&self, (split, joined): (&Split<Mark>, &Joined<Mark>), seq: SeqNo) {
        if joined.frees_permit(place_of(split, seq), false) {
            self.admission.release_permit();
        }
    }

    /// The client gets no values any more: those that wait are forgotten. One that has some already is closed.
    fn drop_values(&self, client: &Rc<Session<W>>, (split, joined): (&Split<Mark>, &Joined<Mark>)) {
        if !joined.fails() || client.is_gone() {
            return;
        }
        if joined.is_begun() {
            return client.end(CloseCause::StoreFailed);
        }
        let replies = &mut client.conversation.borrow_mut().replies;
        (1..=joined.runs().len() as u64).for_each(|part| replies.forget(SeqNo(split.own.0 + part)));
    }

    /// Gives the client the reply, or what is ahead of its values.
    pub(super) fn answer_joined(
        &self,
        client: &Rc<Session<W>>,
        (split, joined): (&Split<Mark>, &Joined<Mark>),
        outcome: SplitOutcome,
    ) {
        if joined.is_begun() {
            return;
        }
        match outcome {
            SplitOutcome::Answered(_) | SplitOutcome::InPart => {
                begin::<W>(&mut client.conversation.borrow_mut().replies, split.own, joined);
                self.mark_pending_write(client);
            }
            SplitOutcome::Declined(_) => self.answer(client, split.own, joined.error()),
            SplitOutcome::Refused(refusal) => {
                self.refuse_queued(client, split.own, false, refusal);
            }
        }
    }
}

/// The parts of one node, each with its place among the client's replies.
fn places<'s>(
    split: &Split<Mark>,
    joined: &'s Joined<Mark>,
    node: NodeId,
) -> impl Iterator<Item = (SeqNo, Run)> + 's {
    let first = split.own.0 + 1;
    let parts = (first..).map(SeqNo).zip(joined.runs());
    parts.filter(move |(_, run)| run.at.node == node.index())
}

/// The place of a part among all.
fn place_of(split: &Split<Mark>, seq: SeqNo) -> usize {
    usize::try_from(seq.0 - split.own.0 - 1).expect("parts are in memory")
}

/// The reply begins, or is whole: that of a request with values goes on with them.
fn begin<W: Wire>(replies: &mut Replies, own: SeqNo, joined: &Joined<Mark>) {
    joined.begins();
    let mut ahead = Vec::new();
    W::joined(joined.join, joined.keys(), joined.sum(), &mut ahead);
    replies.part(own, &ahead);
    replies.part(own, &joined.reply());
    replies.whole(own);
}

/// The bytes of values that wait for those of other parts.
const MOST_HELD: usize = 256 << 10;
const UNREADABLE: &[u8] =
    b"-ERR a node of the cluster answers its part of this with what cannot be joined\r\n";
