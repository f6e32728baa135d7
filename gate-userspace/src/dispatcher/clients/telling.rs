//! What gate itself says to a client, and when what there is to read is written.

use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};

use super::client::{Client, Talk};
use super::replies::{Place, Replies};
use crate::dispatcher::figures::Event;
use crate::dispatcher::service::Service;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::Wire;
use crate::dispatcher::wire::resp::CLUSTER;
use crate::protocol::Refusal;

impl<W: Wire> Service<W> {
    /// Answers bytes that are no request, or not the rest of the one that has this place.
    pub(in crate::dispatcher) fn fault(
        &self,
        client: &Client<W>,
        talk: &mut Talk<W>,
        place: Place,
        fault: &W::Fault,
        now: Nanos,
    ) {
        let mut answer = Vec::new();
        let after = W::answer_fault(fault, &mut answer);
        let in_turn = place == talk.replies.first();
        if self.tell(client, &mut talk.replies, place, &answer) {
            self.watch_refusal(client, in_turn, now);
        }
        talk.ending = after.closes;
        if after.tls {
            self.client_speaks_tls();
        }
        self.count_refusal(client.tenant.get(), after.reason);
    }

    /// Writes a refusal in its place, unless nobody wants it, or may have it. Whether it is written.
    pub(in crate::dispatcher) fn refuse(
        &self,
        client: &Client<W>,
        replies: &mut Replies,
        place: Place,
        silent: bool,
        refusal: Refusal,
    ) -> bool {
        if silent || !self.may_tell(client, REFUSAL_BYTES) {
            replies.whole(place);
            return false;
        }
        if self.in_cluster.get() && refusal.reason == Reason::StoreDown {
            return self.tell(client, replies, place, CLUSTER);
        }
        replies.refuse(place, refusal);
        true
    }

    /// Writes the gate's own answer in its place, if the client may have it. Whether it may.
    pub(in crate::dispatcher) fn tell(
        &self,
        client: &Client<W>,
        replies: &mut Replies,
        place: Place,
        answer: &[u8],
    ) -> bool {
        let may = self.may_tell(client, answer.len());
        if may {
            replies.part(place, answer);
        }
        replies.whole(place);
        may
    }

    /// Refuses a request that was let in before; one that is `silent` gets no answer.
    pub(in crate::dispatcher) fn refuse_late(
        &self,
        client: &Rc<Client<W>>,
        place: Place,
        silent: bool,
        refusal: Refusal,
    ) {
        if client.is_gone() {
            return;
        }
        self.refuse(client, &mut client.talk.borrow_mut().replies, place, silent, refusal);
        self.has_news(client);
    }

    /// Gives a client a whole answer.
    pub(in crate::dispatcher) fn answer(&self, client: &Rc<Client<W>>, place: Place, answer: &[u8]) {
        if client.is_gone() {
            return;
        }
        let replies = &mut client.talk.borrow_mut().replies;
        replies.part(place, answer);
        replies.whole(place);
        self.has_news(client);
    }

    /// Counts a refusal that costs nothing.
    pub(in crate::dispatcher) fn count_refusal(&self, tenant: TenantId, reason: Reason) {
        self.ledger.borrow().count_refusal(tenant, reason, MilliRu::ZERO, false);
    }

    /// Remembers that there is something to be written to a client.
    #[inline]
    pub(in crate::dispatcher) fn has_news(&self, client: &Rc<Client<W>>) {
        if !client.has_news.replace(true) {
            self.news.borrow_mut().push(Rc::clone(client));
        }
    }

    /// Writes to everyone who has news.
    pub(in crate::dispatcher) fn deliver(&self) {
        let mut news = self.news.borrow_mut();
        for client in news.drain(..) {
            client.has_news.set(false);
            if !client.is_gone() {
                client.deliver(self);
            }
        }
        drop(news);
        self.relieve();
    }

    /// Said once: whoever has set up one client like this has most likely set up many.
    fn client_speaks_tls(&self) {
        if self.all_figures.get(Event::Tls) == 0 {
            let service = &self.settings.name;
            tracing::warn!(service, "a client wants to speak TLS, which gate does not support");
        }
        self.figures.count(Event::Tls);
    }
}

/// What a refusal is taken to be long, when it is sent to whom a datagram names as its sender.
pub(in crate::dispatcher) const REFUSAL_BYTES: usize = 80;
