//! The end of a request: replies and failures of the store.

use std::cell::RefCell;
use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::nodes::refusal_of;
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::admission::answered::Answered;
use crate::dispatcher::clients::client::{CloseCause, HOLD_OUTPUT, RESUME_OUTPUT};
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::hot_cache::flights::PendingTtl;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::metrics::cost_samples::ReplyBatch;
use crate::dispatcher::request::{Charged, InFlight};
use crate::dispatcher::settings::Settings;
use crate::dispatcher::split::PartOutcome;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::stores::error::StoreError;
use crate::dispatcher::stores::events::{Failure, ReplyPart, ReplyProgress, ReplyTiming, StoreEvents};
use crate::dispatcher::stores::pool_identity::PoolIdentity;
use crate::dispatcher::wire::{SessionState, Ttl, Wire};
use crate::protocol::Refusal;

impl<W: Wire> StoreEvents for Service<W> {
    type Wire = W;
    type InFlight = InFlight<Rc<Session<W>>, CacheRole>;
    type Observations = Observations;
    type HandedOver = Box<PendingTtl>;

    fn settings(&self) -> &Settings {
        &self.settings
    }

    #[inline]
    fn scratch(&self) -> &RefCell<Box<[u8]>> {
        &self.scratch
    }

    #[inline]
    fn reply_part(&self, request: &mut Self::InFlight, reply: ReplyPart<'_>) {
        let ReplyPart { input, answer, is_first } = reply;
        if is_first && answer.give > 0 {
            request.features.reply_begins::<W>(reply.given());
        }
        // An error that a client causes may say anything; gate's own question is answered by the store alone.
        if is_first && matches!(request.cache_role, CacheRole::QueryTtl(_)) && W::Session::is_forbidden(input)
        {
            request.client.pool().identity().set_may_cache(false);
        }
        if let CacheRole::AskSize { kind, told } = &mut request.cache_role {
            if is_first {
                *told = W::told_size(reply.given());
                if told.is_none() && W::has_no_question(input) {
                    self.refused_questions.refused(*kind, clock::monotonic());
                }
            }
        } else if let CacheRole::Part(split) = &request.cache_role
            && let Some(joined) = &split.joined
        {
            self.joined_part(&request.client, (split, joined), request.seq, reply);
        } else if request.cache_role.is_coalesced() {
            if is_first && W::is_for_one_client(reply.given()) {
                request.cache_role.answer_is_for_one_client();
            }
            request.cache_role.on_reply_bytes(reply.given(), answer.add);
        } else if !request.client.is_gone() {
            let replies = &mut request.client.conversation.borrow_mut().replies;
            if answer.give > 0 {
                replies.part(request.seq, reply.given());
            }
            if !answer.add.is_empty() {
                replies.part(request.seq, answer.add);
            }
            if answer.last {
                replies.whole(request.seq);
            }
            self.mark_pending_write(&request.client);
        }
    }

    #[inline]
    fn reply_end(
        &self,
        observations: &mut Observations,
        request: &mut Self::InFlight,
        timing: ReplyTiming,
    ) -> Option<Box<PendingTtl>> {
        let ReplyTiming { node, sent, now, received, is_paused } = timing;
        if !is_paused {
            self.metrics.node_answered(node, now.saturating_sub(sent));
        }
        if matches!(request.cache_role, CacheRole::QueryTtl(_)) {
            observations.batch.mark_unmeasurable();
            return complete::<W>(std::mem::replace(&mut request.cache_role, CacheRole::None), sent);
        }
        if let CacheRole::AskSize { told, .. } = request.cache_role {
            observations.batch.mark_unmeasurable();
            self.size_answered(&request.client, told);
            return None;
        }
        if let CacheRole::Part(split) = &request.cache_role {
            observations.batch.mark_unmeasurable();
            let rows = request.features.reply_rows;
            let outcome = if let Some(joined) = &split.joined {
                let read = (rows, received);
                self.joined_part_answered((split, joined), request.seq, read, (sent, is_paused))
            } else {
                if !is_paused {
                    self.admission.release_permit();
                }
                PartOutcome::Answered { rows, bytes: received, sent, is_paused }
            };
            self.end_split(&request.client, split, split.part_ended(outcome), now);
            return None;
        }
        let (read, paid) = self.admission.record_reply(&request.charged, &request.features, received);
        if is_paused {
            observations.batch.mark_unmeasurable();
        } else {
            let Charged { tenant, class, at: charged, ref member, .. } = request.charged;
            if self.admission.samples_costs() {
                observations.batch.add(read, ((tenant, member.as_ref()), paid), sent, received);
            }
            self.admission.release_permit();
            let answered = Answered { class, charged, sent, count: 1 };
            if let Some(before) = answered.merge(&mut observations.answered) {
                self.admission.observe(before, now);
            }
        }
        if matches!(request.cache_role, CacheRole::None) {
            return None;
        }
        complete::<W>(std::mem::replace(&mut request.cache_role, CacheRole::None), sent)
    }

    fn hand_over(&self, request: &mut Self::InFlight, pending: Box<PendingTtl>) {
        if let CacheRole::QueryTtl(ttl) = &mut request.cache_role {
            *ttl = Some(pending);
        }
    }

    #[inline]
    fn read_end(&self, observations: &mut Observations, now: Nanos) {
        observations.answered.take().into_iter().for_each(|answered| self.admission.observe(answered, now));
        if observations.batch.is_empty() {
            return;
        }
        let batch = std::mem::take(&mut observations.batch);
        if let Some(took) = batch.took(observations.last_batch, now) {
            self.admission.record_costs(&batch, took, now);
        }
        observations.last_batch = now;
    }

    fn is_held_up(&self, request: &Self::InFlight, is_paused: bool) -> bool {
        let client = &request.client;
        if request.cache_role.is_coalesced() || client.is_gone() || client.datagram().is_some() {
            return false;
        }
        let most = if is_paused { RESUME_OUTPUT } else { HOLD_OUTPUT };
        let replies = &client.conversation.borrow().replies;
        let has_several = self.settings.stores.len() > 1;
        // Replies that other stores have sent ahead wait for this one, not for the client.
        let is_of_next = matches!(&request.cache_role, CacheRole::Part(split) if split.joined.is_some() && replies.first() == split.own);
        let is_next = is_of_next || request.seq == replies.first();
        let waiting = match has_several && is_next {
            true => replies.output.len(),
            false => replies.waiting(),
        };
        // Connections to other stores may be held up while this one is not.
        let is_held_up = waiting > most;
        client.holds_up_store.set(is_held_up || has_several && client.holds_up_store.get());
        is_held_up
    }

    fn is_same_client(&self, one: &Self::InFlight, other: &Self::InFlight) -> bool {
        Rc::ptr_eq(&one.client, &other.client)
    }

    fn is_earlier(&self, one: &Self::InFlight, other: &Self::InFlight) -> bool {
        one.seq < other.seq
    }

    fn paused(&self, request: &mut Self::InFlight) {
        match &request.cache_role {
            CacheRole::QueryTtl(_) | CacheRole::AskSize { .. } => {}
            CacheRole::Part(split) if let Some(joined) = &split.joined => {
                self.joined_part_paused((split, joined), request.seq);
            }
            CacheRole::None | CacheRole::MarkWrite(_) | CacheRole::LeadFlight(_) | CacheRole::Part(_) => {
                self.admission.release_permit();
            }
        }
    }

    fn failed(&self, request: Self::InFlight, progress: ReplyProgress, failure: Failure<'_>) {
        match request.cache_role {
            CacheRole::QueryTtl(_) => return,
            CacheRole::AskSize { .. } => return self.size_answered(&request.client, None),
            CacheRole::None | CacheRole::MarkWrite(_) | CacheRole::LeadFlight(_) | CacheRole::Part(_) => {}
        }
        if let CacheRole::Part(split) = &request.cache_role
            && let Some(joined) = &split.joined
        {
            return self.joined_part_failed(&request.client, (split, joined), request.seq, failure);
        }
        if !progress.is_paused {
            self.admission.release_permit();
        }
        let is_flight = matches!(request.cache_role, CacheRole::LeadFlight(_));
        if progress.is_started && !is_flight && !self.takes_back_part(&request) {
            // The client has read the beginning of its reply.
            return request.client.end(CloseCause::StoreFailed);
        }
        let refusal = match refusal_of(failure) {
            Ok(refusal) => refusal,
            Err(why) => {
                match request.cache_role {
                    CacheRole::LeadFlight(leader) => leader.complete_with(why),
                    CacheRole::None
                    | CacheRole::MarkWrite(_)
                    | CacheRole::QueryTtl(_)
                    | CacheRole::AskSize { .. } => {
                        self.answer(&request.client, request.seq, why);
                    }
                    CacheRole::Part(split) => {
                        let failed = PartOutcome::Failed(Refusal::of(Reason::StoreDown));
                        self.end_part(&request.client, &split, request.seq, failed);
                    }
                }
                return;
            }
        };
        match request.cache_role {
            CacheRole::LeadFlight(leader) => leader.fail(refusal),
            CacheRole::None
            | CacheRole::MarkWrite(_)
            | CacheRole::QueryTtl(_)
            | CacheRole::AskSize { .. } => {
                self.admission.count_refusal(request.charged.tenant, refusal.reason);
                self.refuse_queued(&request.client, request.seq, request.silent, refusal);
            }
            CacheRole::Part(split) => {
                self.end_part(&request.client, &split, request.seq, PartOutcome::Failed(refusal));
            }
        }
    }

    fn redirected(
        &self,
        request: Self::InFlight,
        error: &[u8],
        bytes: Option<&[u8]>,
        progress: ReplyProgress,
    ) {
        self.redirect(request, error, bytes, progress);
    }

    fn note_cluster_error(&self, error: &[u8]) {
        if let Some(cluster) = self.settings.cluster.as_ref().filter(|_| W::is_slot_error(error)) {
            cluster.ask_refresh();
        }
    }

    #[inline]
    fn dispatch(&self) {
        self.follow_redirections();
        Self::dispatch(self, clock::monotonic());
    }

    #[inline]
    fn flush(&self) {
        self.follow_redirections();
        self.flush_pending();
    }

    fn connected(&self, node: NodeId) {
        self.metrics.count(Event::StoreConnected);
        let service = &self.settings.name;
        let store = self.settings.address(node);
        if let Some(line) = self.service_metrics.stores[node.index()].connected(clock::monotonic()) {
            line.write(service, &store, &"");
        }
        tracing::debug!(service, "connected to the store");
    }

    fn disconnected(&self, node: NodeId) {
        self.service_metrics.stores[node.index()].disconnected();
    }

    fn left(&self, node: NodeId) {
        self.service_metrics.stores[node.index()].left();
    }

    fn connection_lost(&self, why: &StoreError) {
        self.metrics.count(Event::StoreFailed);
        self.settings.cluster.iter().for_each(|cluster| cluster.ask_refresh());
        tracing::debug!(service = self.settings.name, %why, "a connection to the store was lost");
    }

    fn store_down(&self, node: NodeId, why: &StoreError, backoff: Nanos) {
        self.metrics.count(Event::StoreFailed);
        self.settings.cluster.iter().for_each(|cluster| cluster.ask_refresh());
        let service = &self.settings.name;
        let store = self.settings.address(node);
        let now = clock::monotonic();
        let state = &self.service_metrics.stores[node.index()];
        if why.shows_life() {
            state.note_heard(now);
        } else if let StoreError::TimedOut = why {
            state.suspect(now.saturating_sub(self.settings.store_timeout()));
        }
        if let Some(line) = state.failed(now) {
            line.write(service, &store, why);
        }
        tracing::debug!(service, %store, %why, %backoff, "a connection to the store failed");
    }

    fn store_back(&self, node: NodeId) -> impl Future<Output = ()> {
        self.service_metrics.stores[node.index()].back()
    }

    fn user_refused(&self, pool: &Rc<PoolIdentity>, why: &[u8]) -> bool {
        self.close_pool_clients(pool, why)
    }

    fn set_in_cluster(&self, in_cluster: bool) {
        self.in_cluster.set(in_cluster);
    }

    fn is_in_cluster(&self) -> bool {
        self.in_cluster.get()
    }
}

/// The measurements of one store connection's replies.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    /// Answered last, and not yet observed.
    answered: Option<Answered>,
    /// The replies of the current read, while cost samples are taken.
    batch: ReplyBatch,
    /// When the last read ended that completed any.
    last_batch: Nanos,
}

/// Completes a request's role for hot keys. Returns what a query for the TTL behind it needs.
#[inline]
fn complete<W: Wire>(cache_role: CacheRole, sent: Nanos) -> Option<Box<PendingTtl>> {
    match cache_role {
        CacheRole::None | CacheRole::QueryTtl(None) | CacheRole::AskSize { .. } | CacheRole::Part(_) => None,
        CacheRole::MarkWrite(mark) => {
            mark.over();
            None
        }
        CacheRole::LeadFlight(leader) => {
            leader.finish_flight().filter(|pending| W::is_cacheable(&pending.answer))
        }
        CacheRole::QueryTtl(Some(pending)) => {
            let until = match W::ttl(&pending.answer, &pending.ttl) {
                Ttl::Unbounded => Nanos::MAX,
                Ttl::AtMost(ttl) => sent.saturating_add(ttl),
            };
            pending.keep(until);
            None
        }
    }
}
