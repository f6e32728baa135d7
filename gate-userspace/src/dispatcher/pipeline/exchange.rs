//! The replies over a dedicated connection, and the permits and marks of the requests that they answer.
//!
//! [`Exchange`] is the state that both directions share. Requests are passed on in [`super::dedicated_requests`].

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use tokio::time::sleep;

use super::pending_logins::PendingLogins;
use super::redirect_guard::{self, RedirectGuard};
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::admission::answered::Answered;
use crate::dispatcher::clients::client::{CloseCause, WriteStatus};
use crate::dispatcher::clients::task_budget::TaskBudget;
use crate::dispatcher::hot_cache::dedicated_writes::{DedicatedReply, DedicatedWrites, ReplyStart};
use crate::dispatcher::identity::LoginRequest;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::request::Charged;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::store_silence::{PauseChange, SlowWork};
use crate::dispatcher::stores::socket::StoreSocket;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::{Effect, Wire};
use crate::protocol::Refusal;

/// The state that the two directions of a dedicated connection share.
pub(super) struct Exchange<'a, W: Wire> {
    pub(super) client: &'a Rc<Session<W>>,
    pub(super) service: &'a Service<W>,
    /// The store that the connection leads to.
    pub(super) node: NodeId,
    /// Keeps redirections from the client, where the store is a cluster's node.
    guard: RefCell<Option<RedirectGuard>>,
    /// The requests that are not answered.
    pub(super) outstanding: RefCell<DedicatedWrites<Sent>>,
    /// Permits that they hold.
    permits: Cell<usize>,
    /// When the store last sent something, or the client began to read again.
    last_progress: Cell<Nanos>,
    /// When the client subscribed, if the store has sent nothing since.
    pub(super) subscribed: Cell<Option<Nanos>>,
    /// True while a request waits for the replies to those before it.
    awaits_replies: Cell<bool>,
    /// False once a transaction did not end as it should: the connection may keep state that gate does not know of.
    pub(super) state_is_known: Cell<bool>,
    /// False once the connection may keep state that its client does not need: no other client gets it.
    pub(super) is_reusable: Cell<bool>,
    /// True once the store has executed what should have been a part of a transaction.
    pub(super) refuses_transactions: Cell<bool>,
    /// The logins that the store has not answered.
    pub(super) logins: RefCell<PendingLogins>,
}

/// A request that has been sent over a dedicated connection.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) charged: Charged,
    pub(super) features: CostFeatures,
    pub(super) has_permit: bool,
    /// True if it counts by query type even without a permit.
    pub(super) is_measured: bool,
    /// True if it may wait for other clients.
    pub(super) blocks: bool,
    /// The other user that it asks for.
    pub(super) login: Option<Box<LoginRequest>>,
    /// True if it may take the store long.
    pub(super) is_slow: bool,
    /// Its effect, unless it fails.
    pub(super) effect: Effect,
    /// The change of the pause of the store's clients, unless it fails.
    pub(super) pause: Option<PauseChange>,
    /// Set if it may occupy the store for everyone.
    pub(super) slow: Option<SlowWork>,
}

impl<'a, W: Wire> Exchange<'a, W> {
    pub(super) fn new(client: &'a Rc<Session<W>>, service: &'a Service<W>, node: NodeId) -> Self {
        let is_node = service.settings.cluster.is_some();
        Self {
            client,
            service,
            node,
            guard: RefCell::new(is_node.then(RedirectGuard::new)),
            outstanding: RefCell::new(DedicatedWrites::new()),
            permits: Cell::new(0),
            last_progress: Cell::new(Nanos::ZERO),
            subscribed: Cell::new(None),
            awaits_replies: Cell::new(false),
            state_is_known: Cell::new(true),
            is_reusable: Cell::new(true),
            refuses_transactions: Cell::new(false),
            logins: RefCell::default(),
        }
    }

    /// The number of requests that are not answered, as far as replies can be counted.
    pub(super) fn unanswered(&self) -> usize {
        self.outstanding.borrow().len()
    }

    /// True if more than `most` requests are not answered. The client's task is woken then when more replies come.
    pub(super) fn has_unanswered(&self, most: usize) -> bool {
        let has_more = self.unanswered() > most;
        self.awaits_replies.set(has_more);
        has_more
    }

    /// Notes that one more request has a permit.
    pub(super) fn hold_permit(&self) {
        self.permits.set(self.permits.get() + 1);
    }

    /// Releases the permits of all requests, which are not measured then.
    pub(super) fn release_permits(&self) {
        self.outstanding.borrow_mut().for_each(|sent| sent.has_permit = false);
        let permits = self.permits.take();
        (0..permits).for_each(|_| self.service.admission.release_permit());
        if permits > 0 {
            self.service.dispatch(clock::monotonic());
        }
    }

    /// From the store to the client, as fast as the client reads.
    pub(super) async fn copy_to_client(&self, from_store: &StoreSocket) -> CloseCause {
        let mut budget = TaskBudget::new();
        loop {
            if from_store.readable().await.is_err() {
                return CloseCause::ClientLeft;
            }
            let read = match self.read_replies(from_store) {
                Ok(0) => return CloseCause::ClientLeft,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) if error.kind() == ErrorKind::InvalidData => return CloseCause::StoreFailed,
                Err(_) => return CloseCause::ClientLeft,
            };
            if self.outstanding.borrow().has_lost_count() {
                self.release_permits();
            }
            // The store first, then the clients.
            self.service.dispatch(clock::monotonic());
            self.service.flush_pending();
            if self.awaits_replies.take() {
                self.client.wake();
            }
            if !self.flush_to_client().await {
                return CloseCause::ClientLeft;
            }
            budget.pass_on(read).await;
        }
    }

    /// Reads some of the store's replies; returns the number of bytes.
    fn read_replies(&self, from_store: &StoreSocket) -> std::io::Result<usize> {
        let output = &mut self.client.conversation.borrow_mut().replies.output;
        let len = output.fill(CHUNK, |bytes| from_store.try_read_buf(bytes))?;
        if let Some(guard) = &mut *self.guard.borrow_mut() {
            self.conceal_redirections(guard, output, len)?;
        }
        let now = clock::monotonic();
        self.last_progress.set(now);
        self.subscribed.set(None);
        let outstanding = &mut *self.outstanding.borrow_mut();
        outstanding.on_replies(
            &output.bytes()[output.len() - len..],
            |sent, piece| self.on_piece(sent, piece),
            |sent, at, reply| self.on_answered(sent, at, reply, now),
        );
        self.client.awaits_store.set(outstanding.awaits_store());
        self.client.set_outstanding(outstanding.len());
        Ok(len)
    }

    /// Follows the redirections in the last `len` bytes of what a client gets, and writes `TRYAGAIN` over them.
    #[cold]
    fn conceal_redirections(
        &self,
        guard: &mut RedirectGuard,
        output: &mut Buffer,
        len: usize,
    ) -> std::io::Result<()> {
        let from = output.len() - len;
        let found = guard.find(&output.bytes()[from..]);
        let Ok(places) = found else {
            output.truncate(from);
            return Err(ErrorKind::InvalidData.into());
        };
        for place in places {
            let error = &mut output.bytes_mut()[from..][place];
            self.service.metrics.count(Event::Redirected);
            self.service.metrics.count(Event::RedirectFailed);
            if let Some(cluster) = &self.service.settings.cluster {
                // Where it leads is the map's business; the client is told to try again.
                let _ = self.service.follow_map(cluster, self.node, error);
            }
            redirect_guard::conceal(error);
        }
        Ok(())
    }

    /// A piece of the reply to a request has come.
    fn on_piece(&self, sent: &Sent, piece: &[u8]) {
        if sent.effect == Effect::Commit {
            self.logins.borrow_mut().on_committed(piece);
        }
    }

    /// A request that was sent at `at` has its complete reply.
    fn on_answered(&self, mut sent: Sent, at: Nanos, reply: DedicatedReply, now: Nanos) {
        let DedicatedReply { start, rows, bytes } = reply;
        // What a transaction runs is answered with its end.
        if start != ReplyStart::Queued {
            sent.features.reply_rows = rows;
            self.service.admission.record_reply(&sent.charged, &sent.features, bytes);
        }
        if let Some(slow) = sent.slow.take() {
            slow.over(now);
        }
        self.logins.borrow_mut().on_answered(sent.effect, sent.login.take(), start);
        let clears_state = matches!(sent.effect, Effect::Commit | Effect::Discard | Effect::Unwatch);
        if clears_state && start == ReplyStart::Failed {
            self.state_is_known.set(false);
        }
        if let (Some(change), ReplyStart::Done) = (sent.pause, start) {
            self.service.settings.pause(self.node).follow(change, now);
        }
        let Charged { class, at: charged, .. } = sent.charged;
        if sent.has_permit {
            self.permits.set(self.permits.get() - 1);
            let admission = &self.service.admission;
            admission.release_permit();
            admission.observe(Answered { class, charged, sent: at, count: 1 }, now);
        } else if sent.is_measured && start != ReplyStart::Queued {
            // An error does not say which.
            self.refuses_transactions.set(self.refuses_transactions.get() || start == ReplyStart::Done);
            let metrics = &self.service.metrics;
            metrics.of_type(class.query_type).offered(class.tier);
            metrics.answered(class.query_type, Nanos::ZERO, now.saturating_sub(at), 1);
        }
    }

    /// Writes all replies, as fast as the client reads; false if it has left.
    pub(super) async fn flush_to_client(&self) -> bool {
        let client = self.client;
        loop {
            let written = {
                let conversation = &mut *client.conversation.borrow_mut();
                let written = client.flush(&mut conversation.replies.output);
                client.update_memory(conversation);
                written
            };
            match written {
                WriteStatus::Complete => return true,
                WriteStatus::StoreError => return false,
                WriteStatus::Blocked => {
                    self.release_permits();
                    self.service.flush_pending();
                }
            }
            if client.socket().writable().await.is_err() {
                return false;
            }
            self.last_progress.set(clock::monotonic());
        }
    }

    /// Waits until the store has been silent for too long.
    pub(super) async fn watch_store(&self) -> CloseCause {
        let service = self.service;
        loop {
            let now = clock::monotonic();
            let timeout = service.settings.store_timeout();
            let mut wait = Nanos(timeout.0 / 2);
            if let Some((since, is_slow)) = self.awaited_since() {
                let due = service.settings.silence_limits(self.node).end(since, is_slow);
                let state = &service.service_metrics.stores[self.node.index()];
                if due <= now {
                    state.suspect(since);
                    break;
                }
                // Another connection has waited in vain for all that may take long.
                let last_heard = self.last_progress.get();
                if !is_slow && state.silent_since().is_some_and(|since| last_heard < since) {
                    break;
                }
                wait = wait.min(due.saturating_sub(now));
            }
            sleep(wait.max(MIN_WAIT).into()).await;
        }
        service.lines_to(self.node).failed();
        tracing::debug!(
            service = service.settings.name,
            "the store did not answer over a dedicated connection"
        );
        service.admission.count_refusal(self.client.tenant.get(), Reason::StoreDown);
        let has_sent_nothing = self.last_progress.get() == Nanos::ZERO;
        if has_sent_nothing || self.outstanding.borrow().is_between_replies() {
            let output = &mut self.client.conversation.borrow_mut().replies.output;
            output.append(|out| W::refuse(Refusal::uncertain(), out));
            self.client.flush(output);
        }
        CloseCause::StoreFailed
    }

    /// Since when a reply of the store has been missing, and whether it may take long. `None` if none is missing, or
    /// waits for other clients, or if the client does not read.
    fn awaited_since(&self) -> Option<(Nanos, bool)> {
        if !self.client.conversation.borrow().replies.output.is_empty() {
            return None;
        }
        if let Some(since) = self.subscribed.get() {
            return Some((since, false));
        }
        let outstanding = self.outstanding.borrow();
        let (first, sent) = outstanding.first().filter(|(first, _)| !first.blocks)?;
        let is_slow = first.is_slow || outstanding.iter().any(|sent| sent.is_slow);
        Some((sent.max(self.last_progress.get()), is_slow))
    }
}

impl<W: Wire> Drop for Exchange<'_, W> {
    fn drop(&mut self) {
        // It may have been let out of the queue just now.
        let granted = usize::from(self.client.granted.take() == Some(Ok(())));
        (0..self.permits.take() + granted).for_each(|_| self.service.admission.release_permit());
    }
}

/// The most that is read or written at once.
pub(super) const CHUNK: usize = 16 << 10;
/// The shortest time between two looks at a silent store.
const MIN_WAIT: Nanos = Nanos::from_millis(1);
