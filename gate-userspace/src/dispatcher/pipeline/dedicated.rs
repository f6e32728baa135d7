//! A client with a dedicated connection to the store.
//!
//! Transactions, subscriptions, a chosen database or user belong to one connection. The first request that needs it is
//! admitted like any other ([`crate::dispatcher::pipeline::request`]). From there on what the client sends goes to the store as it
//! is, and what the store sends comes back as it is. [`super::dedicated_requests`] decodes, charges and admits the requests;
//! [`super::exchange`] copies the replies.
//!
//! **Return.** A client whose connection keeps no state goes back to the shared ones: after `EXEC`, `DISCARD`, `UNWATCH`
//! or an answered `BLPOP`, when the store has answered everything. Its connection is kept for the next client of the
//! same identity.
//!
//! **Permits.** A request holds one until its reply is complete, unless it may wait for other clients. A client that does
//! not read gives up its permits: the time that it takes is not the store's.
//!
//! **Silence.** A store that has a request to answer and sends nothing for `store_timeout` (longer while it does something slow, or
//! its clients are paused) counts as down, and the client is closed.
//!
//! **Memory.** Input and replies are where any client's are, and count like them
//! ([`crate::dispatcher::clients::memory_budget`]). The client is not read while the store does not read, nor the store
//! while the client does not.

use std::io::ErrorKind;
use std::rc::Rc;

use gate_common::abi::Reason;

use super::client_socket::write_all;
use super::dedicated_requests::DedicatedRequests;
use super::exchange::{CHUNK, Exchange};
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::slots::MostSlots;
use crate::dispatcher::clients::stream::ClientReader;
use crate::dispatcher::identity::Identity;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::request::Charged;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::stores::dedicated::{DedicatedConnection, STATUS};
use crate::dispatcher::stores::error::StoreError;
use crate::dispatcher::wire::{SessionState, Wire};
use crate::protocol::{Refusal, Step};

/// The next request in a client's input.
enum Next<T> {
    /// The answer to a question about it, and its end in the input.
    Request(T, usize),
    /// Not all of it that gate has to see has come.
    Incomplete,
    /// Bytes that are no request.
    Fault,
}

impl<W: Wire> Service<W> {
    /// Takes a slot for a dedicated connection to a store, if the client's tenant may have one more.
    ///
    /// # Errors
    ///
    /// The refusal, if the tenant has as many as it may, or the circuit breaker is open.
    pub(super) fn reserve_dedicated(&self, client: &Session<W>, node: NodeId) -> Result<(), Refusal> {
        if self.in_cluster.get() {
            return Err(StoreError::Cluster.refusal());
        }
        let checked = self.lines_to(node).check();
        checked.inspect_err(|_| self.ask_for_slots()).map_err(|error| error.refusal())?;
        let most = self.limits.get().max_dedicated;
        let most = MostSlots { unknown: most, known: usize::MAX, tenant: most };
        // A client that becomes another tenant's takes a new slot.
        drop(client.dedicated_slot.take());
        let slot = {
            let mut slots = client.dedicated_slots.borrow_mut();
            let of_tenant = || self.dedicated_slots.of_tenant(client.tenant.get());
            slots.get_or_insert_with(of_tenant).take(most)
        };
        if slot.is_none() && !client.shadow {
            return Err(Refusal::of(Reason::Limit));
        }
        if slot.is_none() {
            self.refuses(client, client.tenant.get(), Reason::Limit);
        }
        *client.dedicated_slot.borrow_mut() = slot;
        Ok(())
    }
}

impl<W: Wire> Session<W> {
    /// Serves the client, which has all its replies, over a dedicated connection, until that keeps no state.
    ///
    /// # Errors
    ///
    /// The cause, if the client's connection ends.
    pub(crate) async fn serve_dedicated(
        self: &Rc<Self>,
        from_client: &mut ClientReader,
        service: &Service<W>,
    ) -> Result<(), CloseCause> {
        service.metrics.count(Event::DedicatedConnection);
        self.conversation.borrow_mut().awaits_output = true;
        let mut first = self.first_dedicated.take();
        let identity = self.identity.borrow().clone();
        let (node, begins) = match service.settings.cluster {
            None => (NodeId::FIRST, false),
            Some(_) => self.bind_to_node(first.as_ref(), from_client, service).await?,
        };
        let connection = match self.open_dedicated(first.is_some(), &identity, (node, begins), service).await
        {
            Ok(connection) => connection,
            Err(error) => {
                service.ask_for_slots();
                let reply = self.reply_store_error(error, first.as_ref(), service);
                // It may have left.
                let _ = write_all(self.socket(), &reply).await;
                return Err(CloseCause::ClientLeft);
            }
        };
        let is_reusable = {
            let socket = connection.socket();
            if begins && let Some(first) = &mut first {
                service.admission.count_passed(&service.ledger.borrow(), first);
            }
            let exchange = Exchange::new(self, service, node);
            let requests = DedicatedRequests::new(&exchange, first, begins);
            tokio::select! {
                ended = requests.run(from_client, socket) => ended?,
                ended = exchange.copy_to_client(socket) => return Err(ended),
                ended = exchange.watch_store() => return Err(ended),
                ended = std::future::poll_fn(|cx| self.poll_ended(cx)) => return Err(ended),
            }
            exchange.is_reusable.get()
        };
        if is_reusable {
            service.lines_to(node).give_back(connection, identity);
        }
        drop(self.dedicated_slot.take());
        self.other_bytes.set(0);
        self.awaits_store.set(false);
        let conversation = &mut *self.conversation.borrow_mut();
        conversation.decoder = W::decoder(service.settings.max_request());
        conversation.awaits_output = false;
        self.update_memory(conversation);
        Ok(())
    }

    /// The node of a cluster that the client's next request binds it to, `first` being its charge; and true if that has begun a
    /// transaction, for which the next behind it says the node. It has its answer then, and the node is still to be asked.
    ///
    /// # Errors
    ///
    /// The cause, if the client's connection ends meanwhile.
    async fn bind_to_node(
        self: &Rc<Self>,
        first: Option<&Charged>,
        from_client: &ClientReader,
        service: &Service<W>,
    ) -> Result<(NodeId, bool), CloseCause> {
        let look = |request: &W::Request, bytes: &[u8]| {
            let node = service.target(self, request, bytes, clock::monotonic()).node();
            (node, W::Session::begins(request))
        };
        let max_request = service.settings.max_request();
        let (node, end) = match self.peek(&mut W::decoder(max_request), &mut 0, look) {
            Next::Request((node, begins), end) if begins && first.is_some() => (node, end),
            Next::Request((node, _), _) => return Ok((node, false)),
            Next::Incomplete | Next::Fault => return Ok((service.login_node(), false)),
        };
        self.conversation.borrow_mut().input.consume(end);
        self.has_finished_a_request();
        write_all(self.socket(), W::Session::BEGUN).await.map_err(|_| CloseCause::ClientLeft)?;
        let mut decoder = W::decoder(max_request);
        let mut at = 0;
        loop {
            match self.peek(&mut decoder, &mut at, look) {
                Next::Request((node, _), _) => return Ok((node, true)),
                // Any of them refuses what is no request.
                Next::Fault => return Ok((node, true)),
                Next::Incomplete => {}
            }
            self.conversation.borrow_mut().awaits_output = false;
            tokio::select! {
                ready = from_client.readable() => ready.map_err(|_| CloseCause::ClientLeft)?,
                ended = std::future::poll_fn(|cx| self.poll_ended(cx)) => return Err(ended),
            }
            let conversation = &mut *self.conversation.borrow_mut();
            conversation.awaits_output = true;
            match conversation.input.fill(CHUNK, |bytes| from_client.try_read_buf(bytes)) {
                Ok(0) => return Err(CloseCause::ClientLeft),
                Ok(_) => self.has_progress.set(true),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(CloseCause::ClientLeft),
            }
            self.update_memory(conversation);
        }
    }

    /// The answer of `look` about the next request in the client's input, of which `decoder` has seen the beginning, and which begins
    /// `at` this place or later.
    fn peek<T>(
        &self,
        decoder: &mut W::Decoder,
        at: &mut usize,
        look: impl Fn(&W::Request, &[u8]) -> T,
    ) -> Next<T> {
        let conversation = self.conversation.borrow();
        let input = conversation.input.bytes();
        loop {
            match W::decode(decoder, &input[*at..]) {
                Step::Request { len, request } => {
                    let bytes = W::bytes(decoder, &request, &input[*at..*at + len]);
                    return Next::Request(look(&request, bytes), *at + len);
                }
                Step::Skip { len } if len > 0 => *at += len,
                Step::Skip { .. } | Step::More { .. } => return Next::Incomplete,
                Step::Body { .. } | Step::Fault { .. } => return Next::Fault,
            }
        }
    }

    /// A dedicated connection for a client of this identity, `is_admitted` or not. All that it has written so far has been
    /// answered, over a shared connection: if it waits for replicas, it means that.
    async fn open_dedicated(
        &self,
        is_admitted: bool,
        identity: &Identity,
        (node, begins): (NodeId, bool),
        service: &Service<W>,
    ) -> Result<DedicatedConnection, StoreError> {
        if !is_admitted && service.reserve_dedicated(self, node) == Err(Refusal::of(Reason::Limit)) {
            return Err(StoreError::Limit);
        }
        if service.in_cluster.get() {
            return Err(StoreError::Cluster);
        }
        let mut connection = service.lines_to(node).take_dedicated(&service.settings, identity).await?;
        if begins && connection.ask(&service.settings, W::Session::BEGIN, STATUS).await? != W::Session::BEGUN
        {
            return Err(StoreError::Unasked);
        }
        if self.awaits_replicas.get() {
            connection.adopt_writes(&service.settings).await?;
        }
        Ok(connection)
    }

    /// The reply to a client that cannot have a connection.
    fn reply_store_error(&self, error: StoreError, first: Option<&Charged>, service: &Service<W>) -> Vec<u8> {
        if let StoreError::Refused(reply) = error {
            return reply;
        }
        let refusal = error.refusal();
        match first {
            Some(charged) => {
                service.admission.refuse(&mut service.ledger.borrow_mut(), charged, refusal);
            }
            None => service.admission.count_refusal(self.tenant.get(), refusal.reason),
        }
        match error {
            StoreError::Cluster => W::Session::IN_CLUSTER.to_vec(),
            StoreError::Full(reply) => reply,
            _ => {
                let mut reply = Vec::new();
                W::refuse(refusal, &mut reply);
                reply
            }
        }
    }
}
