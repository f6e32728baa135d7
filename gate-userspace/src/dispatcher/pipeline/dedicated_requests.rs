//! A client's requests over its dedicated connection: decoded, charged, admitted, and passed on.
//!
//! They pass the same admission as requests over shared connections, with these differences.
//!
//! - **Quota.** A tenant that cannot pay waits, and its client is not read meanwhile: a refusal in the middle of a
//!   transaction would change what that does.
//! - **Transactions.** `MULTI` is admitted or refused for the whole transaction. What follows is only queued in the
//!   store and takes no permit; `EXEC` takes one, waits for it as long as it takes, and is not refused.
//! - **What may wait for other clients** (`BLPOP`) takes no permit, and neither does what has no single reply
//!   (subscriptions, `MONITOR`).
//! - **Refusals.** gate's own reply takes its place when the store has answered everything before it. What is denied to
//!   the tenant within a transaction goes to the store as a command that it does not know, so that the transaction fails.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::client_socket::write_all;
use super::dedicated_input::{ConnectionState, NextRequest};
use super::exchange::{CHUNK, Exchange, Sent};
use super::service::{Service, Session};
use super::streamed_request::BodyProgress;
use crate::clock;
use crate::dispatcher::admission::demand::Demand;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::stream::ClientReader;
use crate::dispatcher::hot_cache::versions::GatheredKeys;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::request::{Charged, RequestClass};
use crate::dispatcher::store_silence::{PauseChange, SlowWork};
use crate::dispatcher::stores::socket::StoreSocket;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::{Effect, Route, SessionState as _, Wire};
use crate::protocol::Step;

mod admission;
mod input;
mod login;
mod memory;
mod replies;

/// The requests of a client with a dedicated connection.
pub(super) struct DedicatedRequests<'a, W: Wire> {
    exchange: &'a Exchange<'a, W>,
    client: &'a Rc<Session<W>>,
    service: &'a Service<W>,
    decoder: W::Decoder,
    /// The bytes that go to the store next.
    out: Buffer,
    /// The charge of the first request, which was admitted before there was a connection.
    first: Option<Charged>,
    /// False for a client whose identity has no shared connections.
    may_return: bool,
    state: ConnectionState,
    /// The change of the store's pause that the transaction contains.
    queued_pause: Option<PauseChange>,
    /// The keys that the transaction writes.
    queued_keys: GatheredKeys,
    body: Option<Body>,
}

/// The body of the request that is being read.
struct Body {
    /// The class that the request was charged as, and its tenant.
    class: RequestClass,
    tenant: TenantId,
    client_tenant: TenantId,
    /// True if the body is read and thrown away, since the request was refused.
    is_skipped: bool,
    progress: BodyProgress,
}

/// A part of the client's input.
enum NextPart<W: Wire> {
    Request(NextRequest<W>),
    Body {
        len: usize,
        last: bool,
    },
    /// Bytes that are no request, and the reply to them.
    Fault(Vec<u8>),
    /// The next request needs no dedicated connection.
    Return,
}

/// Why the loop over a client's requests ends: `Ok` to return to the shared connections.
type Ended = Result<(), CloseCause>;

/// The result of waiting for more of a client's input.
enum Input {
    /// More has come.
    More,
    /// The client has ended its side.
    Ended,
    /// The client returns to the shared connections.
    Returns,
}

impl<'a, W: Wire> DedicatedRequests<'a, W> {
    /// The requests of a client whose first one, with this charge, is in its input; or, if it `begins` a transaction, has been answered
    /// and asked.
    pub(super) fn new(exchange: &'a Exchange<'a, W>, first: Option<Charged>, begins: bool) -> Self {
        let client = exchange.client;
        let service = exchange.service;
        let mut state = ConnectionState::default();
        if begins {
            state.apply(Effect::Begin);
        }
        Self {
            exchange,
            client,
            service,
            decoder: W::decoder(service.settings.max_request()),
            out: Buffer::default(),
            may_return: first.is_some(),
            first: first.filter(|_| !begins),
            state,
            queued_pause: None,
            queued_keys: GatheredKeys::default(),
            body: None,
        }
    }

    /// From the client to the store.
    ///
    /// # Errors
    ///
    /// The cause, if the client's connection ends.
    pub(super) async fn run(mut self, from_client: &mut ClientReader, to_store: &StoreSocket) -> Ended {
        loop {
            if self.out.len() >= CHUNK {
                self.write(to_store).await?;
            }
            match self.next() {
                Some(NextPart::Request(next)) => self.pass(next, to_store).await?,
                Some(NextPart::Body { len, last }) => self.pass_body(len, last, to_store).await?,
                Some(NextPart::Fault(reply)) => {
                    self.write(to_store).await?;
                    self.wait_for_replies(0, to_store).await?;
                    self.wait_for_reader(to_store).await?;
                    // It may have left.
                    let _ = write_all(self.client.socket(), &reply).await;
                    return Err(CloseCause::ClientLeft);
                }
                Some(NextPart::Return) => {
                    self.wait_for_replies(0, to_store).await?;
                    if self.exchange.state_is_known.get() {
                        return Ok(());
                    }
                    self.may_return = false;
                    // The same request is decoded again.
                    self.decoder = W::decoder(self.service.settings.max_request());
                }
                None => {
                    self.write(to_store).await?;
                    if self.client.is_session_refused() {
                        self.wait_for_replies(0, to_store).await?;
                        return Err(CloseCause::ClientLeft);
                    }
                    self.release();
                    match self.read_or_return(from_client).await? {
                        Input::More => {}
                        Input::Returns => return Ok(()),
                        Input::Ended => return Err(self.give_last_replies(to_store).await),
                    }
                }
            }
        }
    }

    /// True if the client may return to the shared connections once it has all replies.
    fn is_clean(&self) -> bool {
        self.may_return
            && self.first.is_none()
            && self.body.is_none()
            && self.state.is_clean()
            && !self.exchange.outstanding.borrow().has_lost_count()
    }

    /// The next part of the client's input; `None` if more must be read first.
    fn next(&mut self) -> Option<NextPart<W>> {
        let conversation = &mut *self.client.conversation.borrow_mut();
        loop {
            let input = conversation.input.bytes();
            match W::decode(&mut self.decoder, input) {
                Step::More { .. } => return None,
                Step::Skip { len } => {
                    conversation.input.consume(len);
                    self.client.has_finished_a_request();
                }
                Step::Body { len, last } => return Some(NextPart::Body { len, last }),
                Step::Fault { fault, .. } => {
                    let mut reply = Vec::new();
                    W::answer_fault(&fault, &mut reply);
                    return Some(NextPart::Fault(reply));
                }
                Step::Request { request, len }
                    if self.is_clean()
                        && self.exchange.belongs_elsewhere(
                            &request,
                            W::bytes(&self.decoder, &request, &input[..len]),
                        ) =>
                {
                    return Some(NextPart::Return);
                }
                Step::Request { len, request } => {
                    let bytes = W::bytes(&self.decoder, &request, &input[..len]);
                    return Some(NextPart::Request(self.exchange.examine(
                        request,
                        bytes,
                        len,
                        (self.first.is_some(), self.state),
                    )));
                }
            }
        }
    }

    /// Charges and admits a request, and adds it to what goes to the store.
    async fn pass(&mut self, mut next: NextRequest<W>, to_store: &StoreSocket) -> Ended {
        let depth = self.service.limits.get().max_depth;
        self.wait_for_replies(depth.saturating_sub(1), to_store).await?;
        self.wait_for_reader(to_store).await?;
        let first = self.first.take();
        let admission = &self.service.admission;
        let is_first = first.is_some();
        let mut charged = match first {
            Some(charged) => charged,
            None => {
                let tenants = (next.tenant, next.client_tenant);
                self.charge(tenants, next.demand, next.class, to_store).await?
            }
        };
        if let Some(own) = next.own.take() {
            admission.count_passed(&self.service.ledger.borrow(), &mut charged);
            return self.answer_as_cluster(next, own, to_store).await;
        }
        let admitted = self.admit(&next, &mut charged, is_first, to_store).await?;
        let has_permit = match admitted {
            Ok(has_permit) => has_permit,
            Err(refusal) => return self.refuse(next, refusal, to_store).await,
        };
        admission.count_passed(&self.service.ledger.borrow(), &mut charged);
        let resumes = self.follow_replies(next.wants_replies, to_store).await?;
        let has_lost_count = self.exchange.outstanding.borrow().has_lost_count();
        if next.is_wrong_login && !has_lost_count {
            return self
                .answer(next, |out| out.extend_from_slice(W::Session::WRONG_PASSWORD), to_store)
                .await;
        }
        let verified = if has_lost_count { self.verify(&mut next).await? } else { None };
        let answers_logins = next.login.is_some()
            || next.effect == Effect::Commit && self.exchange.logins.borrow().are_queued();
        self.forward(next, charged, has_permit);
        if self.exchange.outstanding.borrow().has_lost_count() {
            // Nobody can tell when they are answered.
            self.exchange.release_permits();
        }
        if let Some(login) = verified {
            return self.apply_login(&login);
        }
        if resumes {
            // Only its answer shows whether there was a silence.
            self.wait_for_replies(0, to_store).await?;
        }
        if answers_logins { self.take_logins(to_store).await } else { Ok(()) }
    }

    /// True if the store only queues what is sent now.
    fn in_transaction(&self) -> bool {
        self.state.in_transaction && !self.exchange.refuses_transactions.get()
    }

    /// Adds a request to what goes to the store.
    fn forward(&mut self, mut next: NextRequest<W>, charged: Charged, has_permit: bool) {
        let NextRequest { request, len, effect, instead, has_one_reply, .. } = next;
        let is_queued = next.is_queued(self.in_transaction());
        let conversation = &mut *self.client.conversation.borrow_mut();
        let bytes = W::bytes(&self.decoder, &request, &conversation.input.bytes()[..len]);
        let mark = match effect {
            _ if instead.is_some() => None,
            Effect::Commit => self.service.hot.marker().mark_gathered(std::mem::take(&mut self.queued_keys)),
            Effect::Discard => {
                self.queued_keys = GatheredKeys::default();
                None
            }
            Effect::None
            | Effect::Blocks
            | Effect::Begin
            | Effect::Watch
            | Effect::Unwatch
            | Effect::Reset
            | Effect::Unknown
            | Effect::Lasting
            | Effect::Subscribes => {
                let mark = self.service.hot.mark(&request, bytes);
                if self.state.in_transaction {
                    mark.iter().for_each(|mark| self.queued_keys.add(mark));
                }
                mark
            }
        };
        let may_change = instead.is_none() && !self.state.in_transaction;
        self.service.push(self.client, (&request, instead.unwrap_or(bytes)), may_change, &mut self.out);
        let asks = W::Session::pause(&request, bytes).filter(|_| instead.is_none());
        let pause = match effect {
            _ if is_queued => {
                self.queued_pause = asks.or(self.queued_pause);
                None
            }
            Effect::Begin | Effect::Commit => self.queued_pause.take().filter(|_| effect == Effect::Commit),
            Effect::None
            | Effect::Blocks
            | Effect::Discard
            | Effect::Watch
            | Effect::Unwatch
            | Effect::Reset
            | Effect::Unknown
            | Effect::Lasting
            | Effect::Subscribes => asks,
        };
        // Of what is answered otherwise nobody can tell when it is over.
        let is_counted = has_one_reply && !self.exchange.outstanding.borrow().has_lost_count();
        let runs = !is_queued && instead.is_none() && is_counted;
        let sent = Sent {
            charged,
            features: CostFeatures::of::<W>(&request),
            has_permit,
            is_measured: instead.is_none() && is_queued && W::route(&request) == Route::Shared,
            blocks: effect == Effect::Blocks && !is_queued,
            login: next.login.take().map(Box::new),
            is_slow: W::meta(&request).may_take_long() || effect == Effect::Commit,
            effect,
            pause,
            slow: runs.then(|| self.begin_slow(&request, effect)).flatten(),
        };
        if has_permit {
            self.exchange.hold_permit();
        }
        let outstanding = &mut *self.exchange.outstanding.borrow_mut();
        outstanding.push(mark, has_one_reply, sent);
        self.client.set_outstanding(outstanding.len());
        if instead.is_none() {
            self.state.apply(effect);
            self.exchange.is_reusable.update(|is| is && effect != Effect::Unknown);
        }
        if effect == Effect::Subscribes {
            self.exchange.subscribed.set(Some(clock::monotonic()));
        }
        self.begin_body(&next, instead.is_some());
        conversation.input.consume(len);
        self.client.has_finished_a_request();
    }

    /// Notes that a request runs from now on that may occupy the store. One that may wait for others does at once what it finds, and then
    /// nobody can tell whether it still does.
    fn begin_slow(&self, request: &W::Request, effect: Effect) -> Option<SlowWork> {
        let slow = self.service.begin_slow(self.exchange.node, request, clock::monotonic());
        slow.filter(|_| effect != Effect::Blocks)
    }

    fn begin_body(&mut self, next: &NextRequest<W>, is_skipped: bool) {
        let &NextRequest { class, tenant, client_tenant, .. } = next;
        let body = Body { class, tenant, client_tenant, is_skipped, progress: BodyProgress::default() };
        self.body = W::is_streamed(&next.request).then_some(body);
    }

    /// Charges a part of a body, and adds it to what goes to the store.
    async fn pass_body(&mut self, len: usize, last: bool, to_store: &StoreSocket) -> Ended {
        if let Some(&Body { class, tenant, client_tenant, is_skipped: false, .. }) = self.body.as_ref() {
            let tenants = (tenant, client_tenant);
            let charged = self.charge(tenants, Demand::more(len), class, to_store).await?;
            let Charged { tenant, price, .. } = charged;
            self.service.ledger.borrow().count_charged(tenant, price);
            self.out.push(&self.client.conversation.borrow().input.bytes()[..len]);
        }
        if last {
            self.body = None;
        }
        self.client.conversation.borrow_mut().input.consume(len);
        self.client.has_finished_a_request();
        Ok(())
    }

    /// Waits while the client does not read: its next replies could not be read from the store.
    async fn wait_for_reader(&mut self, to_store: &StoreSocket) -> Ended {
        if self.client.conversation.borrow().replies.output.is_empty() {
            return Ok(());
        }
        self.write(to_store).await?;
        if self.exchange.flush_to_client().await { Ok(()) } else { Err(CloseCause::ClientLeft) }
    }

    /// Waits until at most `most` requests are unanswered.
    async fn wait_for_replies(&mut self, most: usize, to_store: &StoreSocket) -> Ended {
        if self.exchange.unanswered() > most {
            self.write(to_store).await?;
            self.replies_until(most).await;
        }
        Ok(())
    }

    /// Whoever reads replies wakes the client's task.
    async fn replies_until(&self, most: usize) {
        poll_fn(|_| if self.exchange.has_unanswered(most) { Poll::Pending } else { Poll::Ready(()) }).await;
    }

    /// Writes what is gathered.
    async fn write(&mut self, to_store: &StoreSocket) -> Ended {
        if self.out.is_empty() {
            return Ok(());
        }
        self.update_memory();
        self.exchange.outstanding.borrow_mut().on_sent(clock::monotonic());
        self.client.awaits_store.set(true);
        to_store.write_all(self.out.bytes()).await.map_err(|_| CloseCause::ClientLeft)?;
        self.client.has_progress.set(true);
        self.out.clear();
        Ok(())
    }
}
