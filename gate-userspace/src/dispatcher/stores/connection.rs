//! One connection to the store, shared by many clients of one thread.
//!
//! **Sending.** Requests are gathered in one buffer. When no answer is outstanding, what is gathered goes
//! out as soon as the clients that are ready now have been heard; otherwise with the next answers that
//! come. So an idle store is never kept waiting, and a busy one gets few, large writes. What has become large enough
//! for a write does not wait at all: gathered further, it would only leave the processor's cache.
//!
//! **Answers** come in the order of the requests, and are handed to the waiting clients' output as they
//! are read, whole or in part. What was gathered meanwhile is sent first, then the clients are written to.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::dedicated::DedicatedConnection;
use super::error::StoreError;
use super::health::Health;
use super::outstanding::{Outstanding, Waiting};
use super::pool::Pool;
use crate::clock;
use crate::dispatcher::clients::client::Client;
use crate::dispatcher::clients::replies::SeqNo;
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::identity::has_all_permissions;
use crate::dispatcher::metrics::cost_samples::{CostFeatures, ReplyBatch};
use crate::dispatcher::pipeline::Service;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::{Link, Wire};
use crate::policy::admission;
use crate::protocol::Refusal;

/// A shared connection to the store, or the attempt to have one.
#[derive(Debug)]
pub(crate) struct StoreConnection<W: Wire> {
    state: RefCell<Outstanding<W>>,
    /// The connection, while there is one.
    socket: RefCell<Weak<TcpStream>>,
    waker: RefCell<Option<Waker>>,
    overdue: Cell<bool>,
}

/// A request on its way to the store.
#[derive(Debug)]
pub(crate) struct Outgoing<'a, W: Wire> {
    /// Who asks.
    pub(crate) client: &'a Rc<Client<W>>,
    /// Who is charged, and what it has paid; nothing for what is nobody's own.
    pub(crate) tenant: TenantId,
    pub(crate) paid: MilliRu,
    /// Where the answer goes.
    pub(crate) seq: SeqNo,
    /// What is asked.
    pub(crate) request: &'a W::Request,
    /// All of it.
    pub(crate) bytes: &'a [u8],
    /// What its answer teaches.
    pub(crate) class: admission::Request,
    /// Whether the client wants no answer.
    pub(crate) silent: bool,
    /// When it was let in: before it waited.
    pub(crate) admitted: Nanos,
    /// What it has to do with hot keys.
    pub(crate) cache_role: CacheRole,
}

impl<W: Wire> StoreConnection<W> {
    pub(crate) fn new(health: Health) -> Self {
        Self {
            state: RefCell::new(Outstanding {
                health,
                link: W::Link::default(),
                out: Buffer::default(),
                waiting: VecDeque::new(),
                sent: 0,
                blocked: false,
                reply_started: false,
                input: Buffer::default(),
                heard: 0,
                unobserved: None,
                answers: ReplyBatch::default(),
                answered: Nanos::ZERO,
                last_read: Nanos::ZERO,
                slow: 0,
            }),
            socket: RefCell::default(),
            waker: RefCell::new(None),
            overdue: Cell::new(false),
        }
    }

    /// Whether a request may be sent now.
    ///
    /// # Errors
    ///
    /// A refusal, while the store is down or being tried again.
    pub(crate) fn accepts(&self, now: Nanos) -> Result<(), Refusal> {
        let state = self.state.borrow();
        state
            .health
            .accepts(state.waiting.len(), now)
            .map_err(|retry_after| Refusal::after(Reason::StoreDown, retry_after))
    }

    /// Whether what one more client asks would neither wait behind much, nor for long.
    #[inline]
    pub(crate) fn has_room(&self, now: Nanos) -> bool {
        let state = self.state.borrow();
        let waits = state.waiting.front().map_or(Nanos::ZERO, |first| now.saturating_sub(first.since));
        let few = state.waiting.len() < FULL_LANE && !state.blocked && waits < SLOW;
        few && state.health.accepts(state.waiting.len(), now).is_ok()
    }

    /// How much there is to be said against one more client's requests.
    pub(crate) fn load(&self, now: Nanos) -> (bool, usize) {
        let state = self.state.borrow();
        (state.health.accepts(state.waiting.len(), now).is_err(), state.waiting.len())
    }

    /// Adds a request to what is sent next. Whether it may be sent has been asked ([`StoreConnection::accepts`]).
    pub(crate) fn send(&self, outgoing: Outgoing<'_, W>, now: Nanos) {
        let state = &mut *self.state.borrow_mut();
        let is_first = state.sent == 0 && state.waiting.is_empty();
        let Outgoing { client, tenant, paid, seq, request, bytes, class, silent, admitted, cache_role } =
            outgoing;
        let query_ttl =
            matches!(cache_role, CacheRole::LeadFlight(_)).then(|| W::query_ttl(request, bytes)).flatten();
        let expect = state.link.encode(request, bytes, &mut state.out);
        let features = CostFeatures::of::<W>(request);
        let is_slow = W::meta(request).may_take_long();
        let (client, since, request) = (Rc::clone(client), now, class);
        let waiting = Waiting {
            client,
            tenant,
            paid,
            seq,
            expect,
            admitted,
            since,
            request,
            features,
            silent,
            is_slow,
            cache_role,
        };
        state.slow += usize::from(is_slow);
        state.waiting.push_back(waiting);
        if let Some((request, bytes)) = query_ttl {
            state.query_ttl(&request, &bytes);
        }
        let mut wakes = is_first;
        if state.out.len() >= FULL_WRITE && !state.blocked {
            // The task deals with what fails, and with what there is no room for.
            let socket = self.socket.borrow().upgrade();
            wakes |= socket.is_none_or(|socket| state.flush(&socket).is_err() || state.blocked);
        }
        // The first to be gathered wakes the task, which runs after the clients that are ready now.
        if wakes {
            self.wake();
        }
    }

    /// Looks whether the store has been silent for too long: for `slow` while it has something to do that may take
    /// long, else for `timeout`. How old a request is says nothing while answers to others come, or parts of one.
    pub(crate) fn check(&self, now: Nanos, timeout: Nanos, slow: Nanos) {
        let mut state = self.state.borrow_mut();
        let timeout = if state.slow > 0 { slow } else { timeout };
        let oldest = state.waiting.front().map(|waiting| waiting.since.max(state.last_read));
        if oldest.is_none() {
            state.health.idle(now);
        }
        drop(state);
        if oldest.is_some_and(|since| now.saturating_sub(since) > timeout) {
            self.overdue.set(true);
            self.wake();
        }
    }

    /// Keeps a connection to the store, until its user is refused there.
    pub(crate) async fn keep(self: Rc<Self>, pool: Weak<Pool<W>>, service: Rc<Service<W>>) {
        loop {
            let broken = match self.connect(&pool, &service).await {
                Ok(socket) => {
                    let socket = Rc::new(socket);
                    *self.socket.borrow_mut() = Rc::downgrade(&socket);
                    self.state.borrow_mut().health.connected(clock::monotonic());
                    service.on_store_up();
                    let broken = std::future::poll_fn(|cx| self.poll(cx, &socket, &service)).await;
                    service.metrics.set_store_connected(false);
                    broken
                }
                Err(broken) => broken,
            };
            if let (StoreError::Refused(why), Some(pool)) = (&broken, pool.upgrade())
                && service.close_with(&pool, why)
            {
                return;
            }
            let pause = self.fail(&service, clock::monotonic());
            service.on_store_down(&broken, pause);
            service.flush_pending();
            tokio::time::sleep(pause.into()).await;
            self.state.borrow_mut().health.retry();
        }
    }

    async fn connect(&self, pool: &Weak<Pool<W>>, service: &Service<W>) -> Result<TcpStream, StoreError> {
        let identity = pool.upgrade().ok_or(StoreError::Closed)?.identity();
        let mut line = DedicatedConnection::open(&service.settings, &identity).await?;
        if W::HAS_USERS {
            let ask = identity.acl_query(service.settings.backend.login.as_ref());
            let everything = has_all_permissions(&line.ask(ask.bytes()).await?);
            // Whoever may not ask is not told, and knows no better than others.
            let info = line.ask(b"INFO cluster\r\n").await?;
            let says = |words: &[u8]| memchr::memmem::find(&info, words).is_some();
            if says(b"cluster_enabled:") {
                service.in_cluster.set(says(b"cluster_enabled:1"));
            }
            if service.in_cluster.get() {
                return Err(StoreError::Cluster);
            }
            pool.upgrade().inspect(|pool| pool.set_may_cache(everything));
        }
        let timeout = service.settings.store_timeout().into();
        tokio::time::timeout(timeout, probe::<W>(line.into_socket()))
            .await
            .map_err(|_| StoreError::TimedOut)?
    }

    /// Its user is no longer accepted: everyone who waits reads why.
    pub(crate) fn disconnect(&self, service: &Service<W>, why: &[u8], now: Nanos) {
        let state = &mut *self.state.borrow_mut();
        // There is no trying again.
        state.health.failed(now);
        state.fail_all(service, |waiting, _| match waiting.cache_role {
            CacheRole::LeadFlight(leading) => leading.complete_with(why),
            _ if waiting.client.is_gone() => {}
            _ => {
                let replies = &mut waiting.client.conversation.borrow_mut().replies;
                replies.part(waiting.seq, why);
                replies.whole(waiting.seq);
                service.mark_pending_write(&waiting.client);
            }
        });
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn poll(&self, cx: &mut Context<'_>, socket: &TcpStream, service: &Service<W>) -> Poll<StoreError> {
        match self.try_poll(cx, socket, service) {
            Poll::Ready(Err(broken)) => Poll::Ready(broken),
            // Nothing but a failure ends it.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    fn try_poll(
        &self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
        service: &Service<W>,
    ) -> Poll<Result<(), StoreError>> {
        if self.waker.borrow().as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
        }
        if self.overdue.replace(false) {
            return Poll::Ready(Err(StoreError::TimedOut));
        }
        if self.is_due() {
            self.write(cx, socket)?;
        }
        loop {
            std::task::ready!(socket.poll_read_ready(cx))?;
            {
                let scratch = &mut *service.scratch.borrow_mut();
                match socket.try_read(scratch) {
                    Ok(0) => return Poll::Ready(Err(StoreError::Closed)),
                    Ok(len) => self.answers(service, &scratch[..len])?,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(error) => return Poll::Ready(Err(error.into())),
                }
            }
            // The store first, then the clients.
            service.dispatch(clock::monotonic());
            self.write(cx, socket)?;
            service.flush_pending();
        }
    }

    /// Whether what is gathered should go out without waiting for an answer.
    fn is_due(&self) -> bool {
        let state = self.state.borrow();
        !state.out.is_empty() && (state.sent == 0 || state.blocked || state.out.len() >= FULL_WRITE)
    }

    fn write(&self, cx: &mut Context<'_>, socket: &TcpStream) -> Result<(), StoreError> {
        let state = &mut *self.state.borrow_mut();
        loop {
            state.flush(socket)?;
            if !state.blocked || socket.poll_write_ready(cx)?.is_pending() {
                return Ok(());
            }
        }
    }

    /// Gives answers to those who wait for them.
    fn answers(&self, service: &Service<W>, bytes: &[u8]) -> Result<(), StoreError> {
        let state = &mut *self.state.borrow_mut();
        let now = clock::monotonic();
        state.last_read = now;
        let taken = if state.input.is_empty() {
            let taken = state.take(service, bytes, now);
            taken.map(|taken| state.input.push(&bytes[taken..]))
        } else {
            state.input.push(bytes);
            let input = std::mem::take(&mut state.input);
            let taken = state.take(service, input.bytes(), now);
            state.input = input;
            taken.map(|taken| state.input.consume(taken))
        };
        state.record_cost_sample(service, now);
        taken
    }

    /// The connection is lost: everyone who waits is told. Returns how long to pause before the next one.
    fn fail(&self, service: &Service<W>, now: Nanos) -> Nanos {
        let state = &mut *self.state.borrow_mut();
        let pause = state.health.failed(now);
        state.link = W::Link::default();
        state.out.clear();
        state.input.clear();
        state.blocked = false;
        state.heard = 0;
        let unsent = Refusal::after(Reason::StoreDown, pause);
        state.fail_all(service, |waiting, was_sent| {
            let refusal = if was_sent { Refusal::uncertain() } else { unsent };
            match waiting.cache_role {
                CacheRole::LeadFlight(leading) => leading.fail(refusal),
                _ => {
                    service.count_refusal(waiting.tenant, refusal.reason);
                    service.refuse_queued(&waiting.client, waiting.seq, waiting.silent, refusal);
                }
            }
        });
        pause
    }
}

/// Asks a store that has accepted a connection whether it works: no client's request is to find out.
async fn probe<W: Wire>(mut socket: TcpStream) -> Result<TcpStream, StoreError> {
    socket.write_all(W::PROBE).await?;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") && line.len() < LONGEST_PROBE_ANSWER {
        if socket.read_buf(&mut line).await? == 0 {
            return Err(StoreError::Closed);
        }
    }
    if W::is_healthy_reply(&line) {
        Ok(socket)
    } else {
        Err(StoreError::Unhealthy(String::from_utf8_lossy(&line).into_owned()))
    }
}

const LONGEST_PROBE_ANSWER: usize = 1 << 10;
/// So many requests together are worth a write of their own.
const FULL_LANE: usize = 256;
/// What has waited for so long stands behind something that is large or slow.
const SLOW: Nanos = Nanos::from_millis(1);
/// A write this large does not wait for more.
const FULL_WRITE: usize = 32 << 10;
