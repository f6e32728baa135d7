//! One connection to the store, shared by many clients of one thread.
//!
//! **Sending.** Requests are gathered in one buffer. When no reply is outstanding, the buffer is written as soon as the
//! clients that are ready now have been read; otherwise together with the next replies. So an idle store never waits, and a
//! busy one gets few, large writes. A buffer that is large enough for a write does not wait: it would only leave the
//! processor's cache.
//!
//! **A client that does not read** stops nobody: what the store answers it is read and kept for it, while others wait for their
//! replies on the same connection. If nobody else does, the connection is not read until the client goes on.
//!
//! **Replies** come in the order of the requests, and reach the waiting clients' output as they are read, complete or in
//! part. The store is written to first, then the clients.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::dedicated::{DedicatedConnection, in_time};
use super::error::StoreError;
use super::events::{Failure, FollowUp, StoreEvents};
use super::health::Health;
use super::outstanding::Outstanding;
use super::pool_identity::PoolIdentity;
use super::socket::StoreSocket;
use crate::clock;
use crate::dispatcher::identity::rights::{has_all_permissions, may_unlink};
use crate::dispatcher::settings::Settings;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::store_silence::SlowWork;
use crate::dispatcher::wire::{Codec, Link, SessionState, Wire};
use crate::protocol::Refusal;

mod silence;

/// A shared connection to the store, or the attempt to have one.
#[derive(Debug)]
pub(crate) struct StoreConnection<E: StoreEvents> {
    /// The store that it leads to.
    node: NodeId,
    state: RefCell<Outstanding<E>>,
    /// The connection, while there is one.
    socket: RefCell<Weak<StoreSocket>>,
    waker: RefCell<Option<Waker>>,
    overdue: Cell<bool>,
    /// True while it is not read, since its only client does not read.
    is_paused: Cell<bool>,
}

impl<E: StoreEvents> StoreConnection<E> {
    /// One to a store, or to a cluster's node, if `is_node`.
    pub(crate) fn new(node: NodeId, health: Health, is_node: bool) -> Self {
        Self {
            node,
            state: RefCell::new(Outstanding::new(node, health, is_node)),
            socket: RefCell::default(),
            waker: RefCell::new(None),
            overdue: Cell::new(false),
            is_paused: Cell::new(false),
        }
    }

    /// The store that it leads to.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Checks that a request may be sent now.
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

    /// True if a request of one more client would neither wait behind many others, nor for long.
    #[inline]
    pub(crate) fn has_room(&self, now: Nanos) -> bool {
        let state = self.state.borrow();
        let waits = state.waiting.front().map_or(Nanos::ZERO, |first| now.saturating_sub(first.since));
        let few = state.waiting.len() < FULL_PIPELINE && !state.blocked && waits < SLOW;
        few && !self.is_paused.get() && state.health.accepts(state.waiting.len(), now).is_ok()
    }

    /// True while it refuses requests: its store is down, or tried again.
    #[inline]
    pub(crate) fn is_down(&self, now: Nanos) -> bool {
        self.load(now).0
    }

    /// True if it takes one more request. Of requests that are slow by kind it takes few at a time, and of any as long
    /// as the store reads.
    #[inline]
    pub(crate) fn has_window(&self, is_slow: bool) -> bool {
        let state = self.state.borrow();
        state.out.len() < UNSENT_WINDOW && !(is_slow && state.slow >= SLOW_WINDOW)
    }

    /// See [`Outstanding::may_have`].
    pub(crate) fn may_have(&self, is_such: impl Fn(&E::InFlight) -> bool) -> bool {
        self.state.borrow().may_have(is_such)
    }

    /// The load that counts against one more client: true if it takes no requests, and the number of its outstanding
    /// requests.
    pub(crate) fn load(&self, now: Nanos) -> (bool, usize) {
        let state = self.state.borrow();
        (state.health.accepts(state.waiting.len(), now).is_err(), state.waiting.len())
    }

    /// Adds a request to the next write; [`StoreConnection::accepts`] has allowed it. `follow_up` goes right behind it;
    /// `slow` says that it may occupy the store.
    #[inline]
    pub(crate) fn send(
        &self,
        in_flight: E::InFlight,
        request: &<E::Wire as Codec>::Request,
        bytes: &[u8],
        (follow_up, slow): (Option<FollowUp<E>>, Option<SlowWork>),
        now: Nanos,
    ) {
        let state = &mut *self.state.borrow_mut();
        let is_first = state.sent == 0 && state.waiting.is_empty();
        state.push(in_flight, request, bytes, (follow_up, slow), now);
        let mut wakes = is_first || self.is_paused.get();
        if state.out.len() >= FULL_WRITE && !state.blocked {
            // The task handles errors and a full socket.
            let socket = self.socket.borrow().upgrade();
            wakes |= socket.is_none_or(|socket| state.flush(&socket).is_err() || state.blocked);
        }
        // The first request wakes the task, which runs after the clients that are ready now.
        if wakes {
            self.wake();
        }
    }

    /// Connects, and reconnects after failures, until the store refuses the pool's user.
    pub(crate) async fn run(self: Rc<Self>, pool: Weak<PoolIdentity>, events: Rc<E>) {
        // Connections in a row that the store has closed before it had answered a request.
        let mut lost = 0;
        loop {
            if !events.settings().store(self.node).is_wanted() {
                self.fail(&*events, clock::monotonic());
                events.left(self.node);
                events.flush();
                events.settings().store(self.node).wanted().await;
                self.state.borrow_mut().health = Health::new();
            }
            let error = match self.connect(&pool, &*events).await {
                Ok(socket) => {
                    let socket = Rc::new(socket);
                    *self.socket.borrow_mut() = Rc::downgrade(&socket);
                    let connected = clock::monotonic();
                    self.begin(connected);
                    events.connected(self.node);
                    let error = tokio::select! {
                        biased;
                        error = std::future::poll_fn(|cx| self.poll(cx, &socket, &*events)) => error,
                        () = self.wait_for_move(&socket, events.settings()) => StoreError::Moved,
                    };
                    events.disconnected(self.node);
                    if matches!(error, StoreError::Moved) && self.is_idle() {
                        // Nothing is lost, and nobody is refused: what is asked meanwhile waits.
                        continue;
                    }
                    lost = if self.has_served_since(connected) { 0 } else { lost + 1 };
                    if self.is_only_lost(&error, lost) {
                        self.is_paused.set(false);
                        self.state.borrow_mut().lose(&*events);
                        events.connection_lost(&error);
                        events.flush();
                        tokio::time::sleep(AFTER_LOSS * lost).await;
                        continue;
                    }
                    error
                }
                // It was lost while it was set up: nothing had been sent on it.
                Err(error) if self.is_only_lost(&error, lost + 1) => {
                    lost += 1;
                    tokio::time::sleep(AFTER_LOSS * lost).await;
                    continue;
                }
                Err(error) => error,
            };
            lost = 0;
            if let (StoreError::Refused(why), Some(pool)) = (&error, pool.upgrade())
                && events.user_refused(&pool, why)
            {
                return;
            }
            let backoff = self.fail(&*events, clock::monotonic());
            events.store_down(self.node, &error, backoff);
            events.flush();
            tokio::select! {
                () = tokio::time::sleep(backoff.into()) => {}
                () = events.store_back(self.node) => {}
            }
            self.state.borrow_mut().health.retry();
        }
    }

    /// There is a connection. What waits for the store does so from now on.
    fn begin(&self, now: Nanos) {
        let state = &mut *self.state.borrow_mut();
        state.health.connected(now);
        state.last_read = now;
        self.overdue.set(false);
    }

    /// True if the connection, which was there since `connected`, has lasted or been answered on.
    fn has_served_since(&self, connected: Nanos) -> bool {
        let has_lasted = clock::monotonic().saturating_sub(connected) >= LASTED;
        has_lasted || self.state.borrow().last_read > connected
    }

    /// True if the end of a connection says nothing of the store: it was trusted, and has closed this one connection (`CLIENT KILL`,
    /// `timeout`), or `lost` in a row, which are few.
    fn is_only_lost(&self, error: &StoreError, lost: u32) -> bool {
        let can_go_on = <<E::Wire as Codec>::Link as Link>::REPEATS || self.is_idle();
        error.is_cut_off() && lost <= MOST_LOST && can_go_on && self.state.borrow().health.is_trusted()
    }

    /// Waits until the store's name stands for other addresses, then for a while until nothing is outstanding.
    async fn wait_for_move(&self, socket: &StoreSocket, settings: &Settings) {
        let Ok(endpoint) = socket.endpoint() else { return std::future::pending().await };
        settings.store(self.node).has_moved(&endpoint).await;
        for _ in 0..LAST_LOOKS {
            if self.is_idle() {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// True if nothing is outstanding on it.
    fn is_idle(&self) -> bool {
        let state = self.state.borrow();
        state.waiting.is_empty() && state.out.is_empty()
    }

    async fn connect(&self, pool: &Weak<PoolIdentity>, events: &E) -> Result<StoreSocket, StoreError> {
        in_time(events.settings(), self.node, self.connect_and_ask(pool, events)).await
    }

    /// Connects, logs in, and asks what the store lets its user do and whether it works.
    async fn connect_and_ask(
        &self,
        pool: &Weak<PoolIdentity>,
        events: &E,
    ) -> Result<StoreSocket, StoreError> {
        let settings = events.settings();
        let identity = pool.upgrade().ok_or(StoreError::Closed)?.identity();
        let mut connection = DedicatedConnection::open(settings, self.node, Some(&identity)).await?;
        if <E::Wire as Wire>::Session::HAS_USERS {
            let query = identity.acl_query(settings.backend.store_login.as_ref());
            // Nothing, if there is no such user.
            let rights = connection.ask(settings, query.bytes(), b"*%_$").await?;
            let has_all = has_all_permissions(&rights);
            // A user without the right to ask gets an error, which leaves the mode as it was.
            if let Some(in_cluster) = connection.is_in_cluster(settings).await? {
                match (settings.cluster.is_some(), in_cluster) {
                    (true, true) => {}
                    (true, false) => return Err(StoreError::NoCluster),
                    (false, _) => events.set_in_cluster(in_cluster),
                }
            }
            if events.is_in_cluster() {
                return Err(StoreError::Cluster);
            }
            let may_unlink = may_unlink(&rights) && connection.knows_unlink(settings).await?;
            pool.upgrade().inspect(|pool| {
                pool.set_may_cache(has_all);
                pool.set_may_unlink(may_unlink);
            });
        }
        probe::<E::Wire>(connection.into_socket()).await
    }

    /// Ends all requests with the store's error: it no longer accepts the pool's user.
    pub(crate) fn disconnect(&self, events: &E, why: &[u8], now: Nanos) {
        let state = &mut *self.state.borrow_mut();
        // There is no other attempt.
        state.health.failed(now);
        state.fail_all(events, Failure::UserRefused(why), Failure::UserRefused(why));
    }

    /// A client that did not read has gone on, or left.
    pub(crate) fn resume(&self) {
        if self.is_paused.get() {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn poll(&self, cx: &mut Context<'_>, socket: &StoreSocket, events: &E) -> Poll<StoreError> {
        match self.try_poll(cx, socket, events) {
            Poll::Ready(Err(error)) => Poll::Ready(error),
            // Nothing but a failure ends it.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    fn try_poll(
        &self,
        cx: &mut Context<'_>,
        socket: &StoreSocket,
        events: &E,
    ) -> Poll<Result<(), StoreError>> {
        if self.waker.borrow().as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
        }
        if self.overdue.replace(false) {
            return Poll::Ready(Err(StoreError::TimedOut));
        }
        // With nothing outstanding all that comes is the end: then what is gathered has not been sent.
        if self.state.borrow().sent == 0 && socket.poll_read_ready(cx)?.is_ready() {
            let scratch = &mut *events.scratch().borrow_mut();
            match socket.try_read(scratch) {
                Ok(0) => return Poll::Ready(Err(StoreError::Closed)),
                Ok(len) => self.on_read(events, &scratch[..len])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        if self.is_due() {
            self.write(cx, socket)?;
        }
        loop {
            // Who holds it up wakes it, as does a request of another.
            self.is_paused.set(self.state.borrow_mut().pause(events, self.is_paused.get()));
            if self.is_paused.get() {
                return Poll::Pending;
            }
            std::task::ready!(socket.poll_read_ready(cx))?;
            {
                let scratch = &mut *events.scratch().borrow_mut();
                match socket.try_read(scratch) {
                    Ok(0) => return Poll::Ready(Err(StoreError::Closed)),
                    Ok(len) => self.on_read(events, &scratch[..len])?,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(error) => return Poll::Ready(Err(error.into())),
                }
            }
            // The store first, then the clients.
            events.dispatch();
            self.write(cx, socket)?;
            events.flush();
        }
    }

    /// True if the gathered requests should be written without waiting for an answer.
    fn is_due(&self) -> bool {
        let state = self.state.borrow();
        state.blocked || !state.out.is_empty() && (state.sent == 0 || state.out.len() >= FULL_WRITE)
    }

    fn write(&self, cx: &mut Context<'_>, socket: &StoreSocket) -> Result<(), StoreError> {
        let state = &mut *self.state.borrow_mut();
        loop {
            state.flush(socket)?;
            if !state.blocked || socket.poll_write_ready(cx)?.is_pending() {
                return Ok(());
            }
        }
    }

    /// Takes the replies in what has been read.
    fn on_read(&self, events: &E, bytes: &[u8]) -> Result<(), StoreError> {
        let state = &mut *self.state.borrow_mut();
        let now = clock::monotonic();
        state.last_read = now;
        let taken = if state.input.is_empty() {
            let taken = state.take(events, bytes, now);
            taken.map(|taken| state.input.push(&bytes[taken..]))
        } else {
            state.input.push(bytes);
            let input = std::mem::take(&mut state.input);
            let taken = state.take(events, input.bytes(), now);
            state.input = input;
            taken.map(|taken| state.input.consume(taken))
        };
        events.read_end(&mut state.observations, now);
        taken
    }

    /// Ends all requests: the connection is lost. Returns the time until the next attempt.
    fn fail(&self, events: &E, now: Nanos) -> Nanos {
        self.is_paused.set(false);
        let state = &mut *self.state.borrow_mut();
        let backoff = state.health.failed(now);
        state.start_over();
        state.fail_all(events, Failure::Unsent { retry_after: backoff }, Failure::Uncertain);
        backoff
    }
}

/// Asks a store that has accepted a connection whether it works: no client's request is to find out.
async fn probe<W: Wire>(socket: StoreSocket) -> Result<StoreSocket, StoreError> {
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
/// How often it is looked whether nothing is outstanding, and how often at most: for 5 s.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const LAST_LOOKS: u32 = 500;
/// A connection that lasts less, and on which nothing is answered, may say something of the store: so many in a row do. The pause after
/// each is longer by a step; requests wait meanwhile.
const LASTED: Nanos = Nanos::from_millis(20);
const MOST_LOST: u32 = 8;
const AFTER_LOSS: Duration = Duration::from_millis(2);
/// So many requests together are worth a write of their own.
const FULL_PIPELINE: usize = 256;
/// A request that has waited so long stands behind one that is large or slow.
const SLOW: Nanos = Nanos::from_millis(1);
/// The bytes that may wait to be written. Beyond it requests wait in the queue, where they can be ordered and refused.
const UNSENT_WINDOW: usize = 1 << 20;
/// A store works off what it has read of one connection before it turns to the next: few slow requests at a time let the other
/// connections have their turn.
const SLOW_WINDOW: usize = 4;
/// A write this large does not wait for more.
const FULL_WRITE: usize = 32 << 10;
