//! gate's own replies to a client, and the writing of pending replies.

use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::service::{Service, Session};
use crate::dispatcher::clients::conversation::Conversation;
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::request::SeqNo;
use crate::dispatcher::wire::{Effect, SessionState, Wire};
use crate::protocol::Refusal;

impl<W: Wire> Service<W> {
    /// Answers bytes that are no request, or not the rest of the request at this position.
    pub(crate) fn fault(
        &self,
        client: &Session<W>,
        conversation: &mut Conversation<W>,
        seq: SeqNo,
        fault: &W::Fault,
        now: Nanos,
    ) {
        let mut answer = Vec::new();
        let handling = W::answer_fault(fault, &mut answer);
        let is_first = seq == conversation.replies.first();
        if self.reply(client, &mut conversation.replies, seq, &answer) {
            self.track_refusal(client, is_first, now);
        }
        conversation.closing = handling.closes;
        if handling.tls {
            self.client_speaks_tls();
        }
        self.admission.count_refusal(client.tenant.get(), handling.reason);
    }

    /// Writes a refusal in its place, unless nobody wants it, or may have it. Whether it is written.
    pub(crate) fn refuse(
        &self,
        client: &Session<W>,
        replies: &mut Replies,
        seq: SeqNo,
        silent: bool,
        refusal: Refusal,
    ) -> bool {
        if silent || !self.within_reply_budget(client, REFUSAL_BYTES) {
            replies.whole(seq);
            return false;
        }
        if self.in_cluster.get() && refusal.reason == Reason::StoreDown {
            return self.reply(client, replies, seq, W::Session::IN_CLUSTER);
        }
        replies.refuse(seq, refusal);
        true
    }

    /// Refuses a request that has just been decoded, and watches how long that takes.
    pub(crate) fn refuse_decoded(
        &self,
        client: &Session<W>,
        replies: &mut Replies,
        seq: SeqNo,
        silent: bool,
        refusal: Refusal,
        decoded: Nanos,
    ) {
        let is_first = seq == replies.first();
        if self.refuse(client, replies, seq, silent, refusal) {
            self.track_refusal(client, is_first, decoded);
        }
    }

    /// The refusal of a request that has just been decoded is in its client's output, or waits for its turn.
    pub(crate) fn track_refusal(&self, client: &Session<W>, is_first: bool, decoded: Nanos) {
        if is_first {
            client.pending_refusals.add(decoded);
        } else {
            self.metrics.refusals.held_back(1);
        }
    }

    /// Writes the gate's own answer in its place, if the client may have it. Whether it may.
    pub(crate) fn reply(
        &self,
        client: &Session<W>,
        replies: &mut Replies,
        seq: SeqNo,
        answer: &[u8],
    ) -> bool {
        let may = self.within_reply_budget(client, answer.len());
        if may {
            replies.part(seq, answer);
        }
        replies.whole(seq);
        may
    }

    /// Answers a request that depends on a refused one before it.
    pub(crate) fn refuse_with_earlier(
        &self,
        client: &Session<W>,
        replies: &mut Replies,
        request: &W::Request,
        refusal: Refusal,
        now: Nanos,
    ) {
        self.metrics.count(Event::Request);
        let seq = replies.open();
        let own_reply = match W::Session::effect(request) {
            _ if client.is_session_refused() => None,
            Effect::Commit => Some(W::Session::ABORTED),
            // `+OK`, either.
            Effect::Discard => Some(W::GOODBYE),
            Effect::None
            | Effect::Blocks
            | Effect::Begin
            | Effect::Watch
            | Effect::Unwatch
            | Effect::Reset
            | Effect::Unknown
            | Effect::Lasting
            | Effect::Subscribes => None,
        };
        match own_reply {
            Some(reply) => {
                self.reply(client, replies, seq, reply);
            }
            None => {
                self.admission.count_refusal(client.tenant.get(), refusal.reason);
                self.refuse_decoded(client, replies, seq, W::wants_no_reply(request), refusal, now);
            }
        }
    }

    /// Refuses a request that was let in before; one that is `silent` gets no answer.
    pub(crate) fn refuse_queued(&self, client: &Rc<Session<W>>, seq: SeqNo, silent: bool, refusal: Refusal) {
        if client.is_gone() {
            return;
        }
        self.refuse(client, &mut client.conversation.borrow_mut().replies, seq, silent, refusal);
        self.mark_pending_write(client);
    }

    /// Gives a client a whole answer.
    pub(crate) fn answer(&self, client: &Rc<Session<W>>, seq: SeqNo, answer: &[u8]) {
        if client.is_gone() {
            return;
        }
        let replies = &mut client.conversation.borrow_mut().replies;
        replies.part(seq, answer);
        replies.whole(seq);
        self.mark_pending_write(client);
    }

    /// Remembers that there is something to be written to a client.
    #[inline]
    pub(crate) fn mark_pending_write(&self, client: &Rc<Session<W>>) {
        if !client.mark_pending_write.replace(true) {
            self.pending_writes.borrow_mut().push(Rc::clone(client));
        }
    }

    /// Writes to everyone who has news.
    pub(crate) fn flush_pending(&self) {
        let mut pending_writes = self.pending_writes.borrow_mut();
        for client in pending_writes.drain(..) {
            client.mark_pending_write.set(false);
            if !client.is_gone() {
                client.flush_pending(self);
            }
        }
        drop(pending_writes);
        self.close_clients_over_budget();
    }

    /// Said once: whoever has set up one client like this has most likely set up many.
    fn client_speaks_tls(&self) {
        if self.service_metrics.get(Event::Tls) == 0 {
            let service = &self.settings.name;
            tracing::warn!(service, "a client wants to speak TLS, and the service has no `tls`");
        }
        self.metrics.count(Event::Tls);
    }
}

/// The assumed length of a refusal in reply to a datagram, in bytes.
pub(crate) const REFUSAL_BYTES: usize = 80;
