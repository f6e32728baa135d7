//! A client with a connection to the store of its own.
//!
//! Transactions, subscriptions, a chosen database or user belong to one connection. From the first request
//! that needs it, what the client sends goes to the store as it is and what the store sends comes back as it is;
//! requests are still decoded, priced and charged.
//!
//! **Quota.** A refusal in the middle of a transaction would change what it does. So a client that has spent its
//! quota is not refused here: it waits, and is not read from, until its bucket has room.
//!
//! **Memory.** What it has sent and not yet been understood, and what it has not read, is where any client's is, and is
//! looked after there ([`crate::dispatcher::clients::memory_budget`], [`Client::check_timeout`]). It is not read while the store does not read, nor
//! the store while the client does not.
//!
//! **Figures.** What shared connections would have carried, and what is answered outside of a transaction, is counted by
//! query type, as long as answers can be told apart ([`DedicatedWrites`]). It passes no admission, and teaches neither that nor
//! shedding nor prices.

use std::cell::RefCell;
use std::io::ErrorKind;

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};

use super::Service;
use super::admission::Demand;
use super::request::demand;
use super::session::Session;
use crate::clock;
use crate::dispatcher::clients::client::{CloseCause, WriteStatus};
use crate::dispatcher::hot_cache::dedicated_writes::DedicatedWrites;
use crate::dispatcher::identity::{Identity, LoginRequest};
use crate::dispatcher::metrics::Event;
use crate::dispatcher::request::RequestClass;
use crate::dispatcher::stores::dedicated::DedicatedConnection;
use crate::dispatcher::stores::error::StoreError;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::resp::CLUSTER;
use crate::dispatcher::wire::{Route, Transaction, Wire};
use crate::policy::Tier;
use crate::policy::admission::QueryType;
use crate::protocol::{Refusal, Step};

impl<W: Wire> Session<W> {
    /// Serves the client, which has all its replies, to its end by a connection of its own to the store.
    pub(crate) async fn serve_dedicated(
        &self,
        from_client: &mut OwnedReadHalf,
        service: &Service<W>,
    ) -> CloseCause {
        service.metrics.count(Event::DedicatedConnection);
        self.conversation.borrow_mut().awaits_output = true;
        let who = self.who.borrow().clone();
        let opened = match service.in_cluster.get() {
            true => Err(StoreError::Cluster),
            false => self.open_dedicated(&who, service).await,
        };
        let mut store = match opened {
            Ok(line) => line.into_socket(),
            Err(broken) => {
                let answer = self.reply_store_error(broken, service);
                // It may have left.
                let _ = write_all(self.socket(), &answer).await;
                return CloseCause::ClientLeft;
            }
        };
        let (from_store, mut to_store) = store.split();
        let decoder = W::decoder(service.settings.max_request());
        let marks = RefCell::new(DedicatedWrites::new(service.hot.marker()));
        let requests = DedicatedRequests {
            client: self,
            service,
            decoder,
            out: Buffer::default(),
            class: RequestClass { tier: Tier::Critical, query_type: QueryType(0) },
            tenant: self.tenant.get(),
            client_tenant: self.tenant.get(),
            skipped_replies: false,
            marks: &marks,
        };
        tokio::select! {
            ended = requests.pass(from_client, &mut to_store) => ended,
            ended = self.copy_to_client(&from_store, &marks, service) => ended,
            ended = std::future::poll_fn(|cx| self.poll_ended(cx)) => ended,
        }
    }

    /// A new connection to the store for it alone. All that it has written so far has been answered, over a shared
    /// connection: if it waits for replicas, it means that.
    async fn open_dedicated(
        &self,
        who: &Identity,
        service: &Service<W>,
    ) -> Result<DedicatedConnection, StoreError> {
        let mut line = service.lines.open(&service.settings, who).await?;
        if self.awaits_replicas.get() {
            line.adopt_writes().await?;
        }
        Ok(line)
    }

    /// From the store to the client, as fast as the client reads.
    async fn copy_to_client(
        &self,
        from_store: &ReadHalf<'_>,
        marks: &RefCell<DedicatedWrites>,
        service: &Service<W>,
    ) -> CloseCause {
        loop {
            if from_store.readable().await.is_err() {
                return CloseCause::ClientLeft;
            }
            match self.read_replies(from_store, &mut marks.borrow_mut(), service) {
                Ok(0) => return CloseCause::ClientLeft,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => return CloseCause::ClientLeft,
            }
            if !self.flush_to_client(service).await {
                return CloseCause::ClientLeft;
            }
        }
    }

    /// Reads some of what the store answers; how many bytes that is.
    fn read_replies(
        &self,
        from_store: &ReadHalf<'_>,
        marks: &mut DedicatedWrites,
        service: &Service<W>,
    ) -> std::io::Result<usize> {
        let output = &mut self.conversation.borrow_mut().replies.output;
        let len = output.fill(CHUNK, |bytes| from_store.try_read_buf(bytes))?;
        let now = clock::monotonic();
        marks.hear(&output.bytes()[output.len() - len..], |request, sent| {
            service.metrics.of_type(request.query_type).offered(request.tier);
            service.metrics.answered(request.query_type, Nanos::ZERO, now.saturating_sub(sent), 1);
        });
        self.awaits_store.set(marks.awaits_store());
        Ok(len)
    }

    /// Writes all that there is, as fast as the client reads; false if it has left.
    async fn flush_to_client(&self, service: &Service<W>) -> bool {
        loop {
            let written = {
                let conversation = &mut *self.conversation.borrow_mut();
                let written = self.flush(&mut conversation.replies.output);
                self.update_memory(conversation);
                written
            };
            match written {
                WriteStatus::Complete => return true,
                WriteStatus::StoreError => return false,
                WriteStatus::Blocked => service.close_clients_over_budget(),
            }
            if self.socket().writable().await.is_err() {
                return false;
            }
        }
    }

    /// What it reads that cannot have a connection.
    fn reply_store_error(&self, broken: StoreError, service: &Service<W>) -> Vec<u8> {
        if let StoreError::Refused(why) = broken {
            return why;
        }
        service.admission.count_refusal(self.tenant.get(), Reason::StoreDown);
        if let StoreError::Cluster = broken {
            return CLUSTER.to_vec();
        }
        let mut refusal = Vec::new();
        W::refuse(broken.refusal(), &mut refusal);
        refusal
    }
}

/// What a client asks, on its way to its own connection.
struct DedicatedRequests<'a, W: Wire> {
    client: &'a Session<W>,
    service: &'a Service<W>,
    decoder: W::Decoder,
    /// What goes to the store next.
    out: Buffer,
    /// The rest of the request that is being read is not passed on.
    skipped_replies: bool,
    marks: &'a RefCell<DedicatedWrites>,
    /// The class of the last request, with the highest tier that its query type may have.
    class: RequestClass,
    /// The tenant that is charged for it.
    tenant: TenantId,
    /// The client's tenant then.
    client_tenant: TenantId,
}

/// What a client has asked.
struct NextPart {
    demand: Demand,
    /// Who it says that it is.
    asked: Option<LoginRequest>,
}

impl<W: Wire> DedicatedRequests<'_, W> {
    /// From the client to the store, charged.
    async fn pass(mut self, from_client: &mut OwnedReadHalf, to_store: &mut WriteHalf<'_>) -> CloseCause {
        loop {
            let received = self.next();
            if !self.out.is_empty() && (received.is_none() || self.out.len() >= CHUNK) {
                self.update_memory();
                self.marks.borrow_mut().send(clock::monotonic());
                self.client.awaits_store.set(true);
                if to_store.write_all(self.out.bytes()).await.is_err() {
                    return CloseCause::ClientLeft;
                }
                self.client.has_progress.set(true);
                self.out.clear();
            }
            match received {
                Some(Ok(NextPart { demand, asked })) => {
                    if !self.charge_when_affordable(demand).await {
                        return CloseCause::ClientLeft;
                    }
                    if let Some(asked) = asked {
                        self.client.verify_login(&asked, self.service).await;
                        if self.client.conversation.borrow().closing {
                            // Its new tenant has too many: so it reads, if it reads at all.
                            self.client.flush(&mut self.client.conversation.borrow_mut().replies.output);
                            return CloseCause::ClientLeft;
                        }
                    }
                }
                Some(Err(answer)) => {
                    // It may have left.
                    let _ = write_all(self.client.socket(), &answer).await;
                    return CloseCause::ClientLeft;
                }
                None => {
                    self.release();
                    if !self.read(from_client).await {
                        return CloseCause::ClientLeft;
                    }
                }
            }
        }
    }

    /// Reads more of what the client sends; false if it has left.
    async fn read(&self, from_client: &OwnedReadHalf) -> bool {
        let conversation = &self.client.conversation;
        conversation.borrow_mut().awaits_output = false;
        let len = loop {
            if from_client.readable().await.is_err() {
                return false;
            }
            let read = conversation.borrow_mut().input.fill(CHUNK, |bytes| from_client.try_read_buf(bytes));
            match read {
                Ok(len) => break len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        };
        conversation.borrow_mut().awaits_output = true;
        self.client.has_progress.set(true);
        self.update_memory();
        len > 0
    }

    /// Gives back memory that nothing is in.
    fn release(&mut self) {
        self.out.release();
        self.marks.borrow_mut().release();
        self.update_memory();
    }

    /// What the client holds has changed.
    fn update_memory(&self) {
        self.client.other_bytes.set(self.out.memory() + self.marks.borrow().memory());
        self.client.update_memory(&self.client.conversation.borrow());
        self.service.close_clients_over_budget();
    }

    /// Adds the next request, or the next part of one, to what goes to the store. Returns what it is, or the answer to
    /// what is no request; `None` if more must be read first.
    fn next(&mut self) -> Option<Result<NextPart, Vec<u8>>> {
        let mut received = std::mem::take(&mut self.client.conversation.borrow_mut().input);
        let next = self.decode(&mut received);
        self.client.conversation.borrow_mut().input = received;
        next
    }

    fn decode(&mut self, received: &mut Buffer) -> Option<Result<NextPart, Vec<u8>>> {
        loop {
            let step = W::decode(&mut self.decoder, received.bytes());
            let taken = &received.bytes()[..step.consumed()];
            let found = match step {
                Step::More { .. } => return None,
                Step::Skip { .. } => None,
                Step::Request { request, .. } => {
                    self.service.metrics.count(Event::Request);
                    let bytes = W::bytes(&self.decoder, &request, taken);
                    let mut class = self.service.types.borrow().classify::<W>(&request, bytes);
                    self.class = class;
                    let asked = W::change(&request, bytes);
                    let (tenant, denied) = self.client.tenant_for(&request, bytes);
                    (self.tenant, self.client_tenant) = (tenant, self.client.tenant.get());
                    let instead = self.instead(denied, &request, bytes, asked.as_ref());
                    self.skipped_replies = instead.is_some();
                    self.out.push(instead.unwrap_or(bytes));
                    let mark =
                        if self.skipped_replies { None } else { self.service.hot.mark(&request, bytes) };
                    class.tier = class.tier.max(self.service.ledger.borrow_mut().tier(tenant));
                    let is_plain = !self.skipped_replies && W::route(&request) == Route::Shared;
                    let has_one_answer = self.skipped_replies || W::has_one_answer(&request);
                    self.marks.borrow_mut().ask(mark, has_one_answer, is_plain.then_some(class));
                    let asked = asked.filter(|_| !self.skipped_replies);
                    // What follows of a streamed one is charged as it comes.
                    let demand = Demand { bytes: bytes.len(), ..demand::<W>(&request) };
                    Some(Ok(NextPart { demand, asked }))
                }
                Step::Body { len, .. } => {
                    if !self.skipped_replies {
                        self.out.push(taken);
                    }
                    Some(Ok(NextPart { demand: Demand::more(len), asked: None }))
                }
                Step::Fault { fault, .. } => {
                    let mut answer = Vec::new();
                    W::answer_fault(&fault, &mut answer);
                    Some(Err(answer))
                }
            };
            self.client.has_finished_a_request();
            received.consume(step.consumed());
            if found.is_some() {
                return found;
            }
        }
    }

    /// What goes to the store instead of a request that is refused. What the store does not know it refuses in its turn,
    /// and a transaction with it.
    fn instead(
        &self,
        denied: bool,
        request: &W::Request,
        bytes: &[u8],
        asked: Option<&LoginRequest>,
    ) -> Option<&'static [u8]> {
        if self.client.refused_with_multi(request).is_some() {
            return match W::transaction(request) {
                Transaction::Commit => Some(W::ABORT),
                // The store knows of no transaction, and says so.
                Transaction::Discard => None,
                _ => Some(W::UNKNOWN_COMMAND),
            };
        }
        self.refuses(denied, request, bytes, asked).then(|| {
            self.client.note_refused(request, Refusal::of(Reason::Unsupported));
            W::UNKNOWN_COMMAND
        })
    }

    /// Whether a request is denied to the tenant or too long, or gate knows its password to be wrong.
    fn refuses(
        &self,
        denied: bool,
        request: &W::Request,
        bytes: &[u8],
        asked: Option<&LoginRequest>,
    ) -> bool {
        let login = asked.and_then(|asked| asked.login.as_ref());
        if login.and_then(|login| self.service.tenants.borrow().verifies(login)) == Some(false) {
            self.service.metrics.count(Event::LoginFailed);
            return true;
        }
        let is_too_long = || self.service.is_too_long(request, bytes);
        let refuses = |reason| self.service.refuses(self.client, self.tenant, reason);
        denied && refuses(Reason::Unsupported) || is_too_long() && refuses(Reason::TooLarge)
    }

    /// Waits until the tenant can pay; false if it never can.
    async fn charge_when_affordable(&self, demand: Demand) -> bool {
        let client = self.client;
        let payer = || client.payer(client.still_charged(self.tenant, self.client_tenant));
        self.service.admission.charge_when_affordable(payer, demand, self.class).await.is_ok()
    }
}

/// Writes everything, by and by.
pub(crate) async fn write_all(socket: &OwnedWriteHalf, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What is read or written in one go.
const CHUNK: usize = 16 << 10;
