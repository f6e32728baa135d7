//! Requests too long to be gathered: passed on as they come.
//!
//! Such a request is admitted by its head, like any other ([`crate::dispatcher::pipeline::request`]), at a price for the
//! length that the head states. When the client has its earlier replies, the body is copied to the store over a connection
//! that nobody else uses meanwhile ([`crate::dispatcher::stores::dedicated`]), as fast as the store reads. Then the client
//! goes back to the shared connections. A slow sender delays no other client, and memory does not grow with the body.
//!
//! **Permits.** The request waits for a permit, releases it while the client sends, and takes it again while the store
//! answers.
//!
//! **Failures.** If the client leaves, the tenant cannot pay for what the head did not state, or the store fails, the
//! connection to the store is closed, so the store has no complete request. The rest of a refused body is read and thrown
//! away ([`Service::requests`]).

use std::io::ErrorKind;

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use tokio::time::timeout;

use super::client_socket::{write_all, write_at_once};
use super::service::{Service, Session};
use super::streamed_request::{Body, BodyProgress, StreamedRequest};
use crate::clock;
use crate::dispatcher::admission::answered::Answered;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::stream::ClientReader;
use crate::dispatcher::clients::task_budget::TaskBudget;
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::request::InFlight;
use crate::dispatcher::stores::dedicated::{DedicatedConnection, in_time};
use crate::dispatcher::stores::error::StoreError;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::{Answer, Link, Wire};
use crate::protocol::{Refusal, Rule, Step};

/// The reason why a request ended early.
enum StreamEnd<W: Wire> {
    /// The client reads this.
    Refused(Refusal),
    /// The store failed.
    StoreFailed(StoreError),
    /// The client sent what its protocol does not allow.
    Malformed(W::Fault),
    /// The client cannot go on.
    ClientClosed(CloseCause),
}

impl<W: Wire> From<StoreError> for StreamEnd<W> {
    fn from(broken: StoreError) -> Self {
        Self::StoreFailed(broken)
    }
}

impl<W: Wire> Service<W> {
    /// True if a request is known to be longer than what is passed on.
    pub(crate) fn is_too_long(&self, request: &W::Request, head: &[u8]) -> bool {
        W::is_streamed(request) && self.is_beyond_limit(Body::of::<W>(request, head).paid)
    }

    fn is_beyond_limit(&self, body: u64) -> bool {
        body > self.settings.max_request() as u64 + VALUE_END
    }
}

impl<W: Wire> Session<W> {
    /// Takes a request to the store, whose body is what the client sends next.
    ///
    /// # Errors
    ///
    /// If that was the client's end.
    pub(crate) async fn stream_request(
        &self,
        mut streamed: StreamedRequest<W>,
        from_client: &mut ClientReader,
        service: &Service<W>,
    ) -> Result<(), CloseCause> {
        service.metrics.count(Event::Streamed);
        let identity = self.identity.borrow().clone();
        let line =
            match service.lines_to(streamed.request.node).take(&service.settings, Some(&identity)).await {
                Ok(line) => line,
                Err(broken) => {
                    let refusal = self.reply_to_end(StreamEnd::StoreFailed(broken), &streamed, service)?;
                    let tenant = streamed.request.charged.tenant;
                    streamed.request.cache_role.refuse(tenant, refusal);
                    return Ok(());
                }
            };
        let mut input = std::mem::take(&mut self.conversation.borrow_mut().input);
        let received = Buffer::default();
        let stream =
            BodyStream { client: self, service, line, received, permit: None, answered: 0, done: None };
        let passed = stream.run(&mut streamed, &mut input, from_client).await;
        self.conversation.borrow_mut().input = input;
        match passed {
            Ok(()) => {
                if let CacheRole::MarkWrite(mark) = streamed.request.cache_role {
                    mark.over();
                }
                self.conversation.borrow_mut().replies.whole(streamed.request.seq);
            }
            // Its mark stays for a while: the store may have executed a request that it did not answer.
            Err(stop) => drop(self.reply_to_end(stop, &streamed, service)?),
        }
        // Others may have waited for its permit.
        service.dispatch(clock::monotonic());
        service.flush_pending();
        Ok(())
    }

    /// Replies to a request that ended early.
    fn reply_to_end(
        &self,
        stop: StreamEnd<W>,
        streamed: &StreamedRequest<W>,
        service: &Service<W>,
    ) -> Result<Refusal, CloseCause> {
        let conversation = &mut *self.conversation.borrow_mut();
        let down = if streamed.body.is_sent { Refusal::uncertain() } else { Refusal::of(Reason::StoreDown) };
        let refusal = match stop {
            StreamEnd::ClientClosed(ended) => return Err(ended),
            StreamEnd::Malformed(fault) => {
                service.fault(self, conversation, streamed.request.seq, &fault, clock::monotonic());
                return Ok(down);
            }
            StreamEnd::StoreFailed(StoreError::Refused(why) | StoreError::Full(why)) => {
                service.reply(self, &mut conversation.replies, streamed.request.seq, &why);
                return Ok(down);
            }
            StreamEnd::StoreFailed(error) => {
                tracing::debug!(service = service.settings.name, %error, "a streamed request ended early");
                service.admission.count_refusal(streamed.request.charged.tenant, down.reason);
                if streamed.body.is_sent { down } else { error.refusal() }
            }
            StreamEnd::Refused(refusal) => refusal,
        };
        service.refuse(
            self,
            &mut conversation.replies,
            streamed.request.seq,
            streamed.request.silent,
            refusal,
        );
        Ok(refusal)
    }
}

/// The copy of one request's body from its client to the store, and of the reply back.
struct BodyStream<'a, W: Wire> {
    client: &'a Session<W>,
    service: &'a Service<W>,
    line: DedicatedConnection,
    /// Received from the store, and not decoded.
    received: Buffer,
    /// The permit that the request holds while the store answers.
    permit: Option<Permit<'a, W>>,
    /// The bytes of the reply that have come.
    answered: usize,
    /// When the store had done what it could without the client.
    done: Option<Nanos>,
}

/// A permit that is held while the store answers, whatever becomes of the client meanwhile.
struct Permit<'s, W: Wire>(&'s Service<W>);

impl<'s, W: Wire> Permit<'s, W> {
    fn retake(service: &'s Service<W>) -> Self {
        service.admission.retake_permit();
        Self(service)
    }
}

impl<W: Wire> Drop for Permit<'_, W> {
    fn drop(&mut self) {
        self.0.admission.release_permit();
    }
}

impl<W: Wire> BodyStream<'_, W> {
    async fn run(
        mut self,
        streamed: &mut StreamedRequest<W>,
        input: &mut Buffer,
        from_client: &mut ClientReader,
    ) -> Result<(), StreamEnd<W>> {
        let head = std::mem::take(&mut streamed.head);
        let sent = match self.write(head.bytes()).await {
            Ok(()) => self.copy_body(streamed, input, from_client).await,
            Err(broken) => Err(broken.into()),
        };
        match sent {
            Ok(()) => {}
            // It may have said why.
            Err(StreamEnd::StoreFailed(broken @ StoreError::Io(_))) => {
                return self.answer(streamed).await.map_err(|stop| match stop {
                    StreamEnd::ClientClosed(ended) => StreamEnd::ClientClosed(ended),
                    _ => broken.into(),
                });
            }
            Err(stop) => return Err(stop),
        }
        let sent = clock::monotonic();
        self.permit = Some(Permit::retake(self.service));
        let slow = streamed.occupies_store;
        let slow = slow.map(|command| self.service.begin_work(self.line.node, command, sent));
        let answered = self.answer(streamed).await;
        if let (Ok(()), Some(slow)) = (&answered, slow) {
            slow.over(clock::monotonic());
        }
        let done = self.release_permit();
        if answered.is_ok() {
            let InFlight { charged, features, .. } = &streamed.request;
            self.service.admission.record_reply(charged, features, self.answered);
            let class = streamed.request.charged.class;
            let charged = sent.saturating_sub(streamed.queued_for);
            self.service.admission.observe(Answered { class, charged, sent, count: 1 }, done);
            if self.received.is_empty() {
                self.service.lines_to(streamed.request.node).keep(self.line);
            }
        }
        answered
    }

    /// From the client to the store, until the request's end.
    async fn copy_body(
        &mut self,
        streamed: &mut StreamedRequest<W>,
        input: &mut Buffer,
        from_client: &mut ClientReader,
    ) -> Result<(), StreamEnd<W>> {
        let mut progress = BodyProgress::default();
        let mut budget = TaskBudget::new();
        loop {
            let step = W::decode(&mut self.client.conversation.borrow_mut().decoder, input.bytes());
            match step {
                Step::Body { len, last } => {
                    let paid = self.charge_body(streamed, len as u64);
                    let written = match paid {
                        Ok(()) => self.write(&input.bytes()[..len]).await.map_err(StreamEnd::StoreFailed),
                        Err(refusal) => Err(StreamEnd::Refused(refusal)),
                    };
                    input.consume(len);
                    match written {
                        Ok(()) if last => {
                            streamed.body.is_sent = true;
                            return Ok(self.write(W::Link::tail(&streamed.expect)).await?);
                        }
                        Ok(()) => budget.pass_on(len).await,
                        Err(stop) => return Err(stop),
                    }
                }
                Step::More { .. } => self
                    .read_client((input, &mut progress), from_client)
                    .await
                    .map_err(StreamEnd::ClientClosed)?,
                Step::Fault { len, fault } => {
                    input.consume(len);
                    return Err(StreamEnd::Malformed(fault));
                }
                Step::Request { .. } | Step::Skip { .. } => {
                    unreachable!("nothing but its body follows a head")
                }
            }
        }
    }

    /// `len` bytes more of a body are to be passed on: charges what the head did not tell.
    fn charge_body(&self, streamed: &mut StreamedRequest<W>, len: u64) -> Result<(), Refusal> {
        let StreamedRequest { request: InFlight { charged, .. }, client_tenant, body, .. } = streamed;
        let payer = self.client.payer(self.client.still_charged(charged.tenant, *client_tenant));
        body.passed += len;
        // What is known of its length has been looked at.
        let is_too_long =
            self.service.is_beyond_limit(body.passed) && !self.service.is_beyond_limit(body.paid);
        if is_too_long && self.service.admission.refuse_unpriced(&payer, Reason::TooLarge) {
            return Err(Refusal::by(Reason::TooLarge, Rule::Size));
        }
        let more = body.passed.saturating_sub(body.paid);
        if more == 0 {
            return Ok(());
        }
        body.paid = body.passed;
        self.service.admission.charge_more(payer, more as usize, charged.class, clock::monotonic())
    }

    /// Reads more of what the client sends, which may take as long as a piece of it comes in time: a byte now and then
    /// does not make it so.
    async fn read_client(
        &self,
        (input, progress): (&mut Buffer, &mut BodyProgress),
        from_client: &mut ClientReader,
    ) -> Result<(), CloseCause> {
        let patience = self.service.limits.get().client_timeout;
        // Whoever stops here holds nothing.
        input.release();
        loop {
            progress.readable(from_client, patience).await?;
            match input.fill(CHUNK, |bytes| from_client.try_read_buf(bytes)) {
                Ok(0) => return Err(CloseCause::ClientLeft),
                Ok(len) => {
                    progress.received(len);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(CloseCause::ClientLeft),
            }
        }
    }

    /// To the store, as fast as it reads.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        for piece in bytes.chunks(CHUNK) {
            let socket = self.line.socket();
            in_time(&self.service.settings, self.line.node, async { Ok(socket.write_all(piece).await?) })
                .await?;
        }
        Ok(())
    }

    /// From the store to the client, until the answer's end.
    async fn answer(&mut self, streamed: &mut StreamedRequest<W>) -> Result<(), StreamEnd<W>> {
        let mut reply_started = false;
        let mut budget = TaskBudget::new();
        loop {
            let answer = streamed.link.scan(&streamed.expect, self.received.bytes());
            let answer = answer.map_err(|garbage| store_failure_end(garbage.into(), reply_started))?;
            if answer == Answer::MORE {
                self.read_store().await.map_err(|broken| store_failure_end(broken, reply_started))?;
                continue;
            }
            if !reply_started {
                streamed.request.features.reply_begins::<W>(&self.received.bytes()[..answer.give]);
            }
            self.answered += answer.len;
            if let Some(cluster) = &self.service.settings.cluster
                && !reply_started
                && W::Link::is_redirection(&answer)
            {
                // Its body has gone by.
                self.service.metrics.count(Event::Redirected);
                self.service.metrics.count(Event::RedirectFailed);
                let error = &self.received.bytes()[..answer.len];
                let from = streamed.request.node;
                let reply = self.service.follow_map(cluster, from, error).err().unwrap_or(W::AGAIN);
                self.write_client(0, reply).await?;
                self.received.consume(answer.len);
                return Ok(());
            }
            reply_started |= answer.give > 0 || !answer.add.is_empty();
            self.write_client(answer.give, answer.add).await?;
            self.received.consume(answer.len);
            if answer.last {
                return Ok(());
            }
            budget.pass_on(answer.len).await;
        }
    }

    async fn read_store(&mut self) -> Result<(), StoreError> {
        let socket = self.line.socket();
        loop {
            in_time(&self.service.settings, self.line.node, async { Ok(socket.readable().await?) }).await?;
            match self.received.fill(CHUNK, |bytes| socket.try_read_buf(bytes)) {
                Ok(0) => return Err(StoreError::Closed),
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Releases the permit. Returns when the store had done what it could without the client.
    fn release_permit(&mut self) -> Nanos {
        if self.permit.take().is_some() {
            self.done = Some(clock::monotonic());
        }
        self.done.unwrap_or_else(clock::monotonic)
    }

    /// To the client, as fast as it reads. A client that does not read at once holds no permit: its time is not the
    /// store's.
    async fn write_client(&mut self, len: usize, add: &'static [u8]) -> Result<(), StreamEnd<W>> {
        for is_added in [false, true] {
            let bytes = if is_added { add } else { &self.received.bytes()[..len] };
            let given = write_at_once(self.client.socket(), bytes)
                .map_err(|_| StreamEnd::ClientClosed(CloseCause::ClientLeft))?;
            if given == bytes.len() {
                continue;
            }
            if self.permit.is_some() {
                self.release_permit();
                self.service.dispatch(clock::monotonic());
                self.service.flush_pending();
            }
            let bytes = if is_added { add } else { &self.received.bytes()[..len] };
            self.write_client_slowly(&bytes[given..]).await?;
        }
        Ok(())
    }

    async fn write_client_slowly(&self, bytes: &[u8]) -> Result<(), StreamEnd<W>> {
        let patience = self.service.limits.get().client_timeout.into();
        match timeout(patience, write_all(self.client.socket(), bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(StreamEnd::ClientClosed(CloseCause::ClientLeft)),
            Err(_) => Err(StreamEnd::ClientClosed(CloseCause::SlowReader)),
        }
    }
}

/// The end of a request whose store failed. The client may have read the beginning of a reply.
fn store_failure_end<W: Wire>(broken: StoreError, reply_started: bool) -> StreamEnd<W> {
    if reply_started {
        StreamEnd::ClientClosed(CloseCause::StoreFailed)
    } else {
        StreamEnd::StoreFailed(broken)
    }
}

/// The length of what ends a value, in either protocol.
const VALUE_END: u64 = 2;
/// The most that is read or written at once.
const CHUNK: usize = 64 << 10;
