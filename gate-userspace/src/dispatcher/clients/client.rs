//! One client: its socket, what it has sent and not yet been understood, and its replies.
//!
//! A client's task reads and decodes. Replies are written by whoever has them: the client's own task for
//! what the gate answers by itself, the store connection's for what the store answers. The task is woken
//! only when its socket is full or when it has stopped reading.
//!
//! The sender of a datagram is a client without a task, for as long as its answer takes ([`crate::dispatcher::pipeline::datagrams`]).

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::net::tcp::OwnedWriteHalf;

use super::memory_budget::{ClientMemory, MemoryShare};
use super::replies::Replies;
use super::sender::Sender;
use super::slots::Slot;
use crate::dispatcher::hot_cache::key_order::KeyOrder;
use crate::dispatcher::identity::{Identity, Login};
use crate::dispatcher::metrics::refusal_latency::PendingRefusals;
use crate::dispatcher::queue::tier_queue::Place;
use crate::dispatcher::request::Payer;
use crate::dispatcher::settings::Limits;
use crate::dispatcher::tenants::Restrictions;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::tenants::parts::Parts;
use crate::dispatcher::tenants::usage::UsageGuard;
use crate::dispatcher::wire::Wire;
use crate::dispatcher::wire::buffer::Buffer;
use crate::protocol::Refusal;

/// A connected client.
#[derive(Debug)]
pub(crate) struct Client<W: Wire> {
    /// Where its replies go.
    pub(crate) sink: ReplySink,
    /// Who is charged for what it asks.
    pub(crate) tenant: Cell<TenantId>,
    /// Whose source it has connected from; nobody for the sender of a datagram, which may be forged.
    pub(crate) source_tenant: Cell<TenantId>,
    /// The user as whom it has logged in last.
    pub(crate) user: RefCell<Option<Rc<Login>>>,
    /// Whether refusals are only counted.
    pub(crate) shadow: bool,
    /// Where it comes from.
    pub(crate) source: IpAddr,
    /// Who it is to the store.
    pub(crate) who: RefCell<Identity>,
    /// What is refused to its tenant.
    pub(crate) restrictions: RefCell<Option<Arc<Restrictions>>>,
    /// Who else may be charged for what it asks, by key: the parts of its tenant.
    pub(crate) parts: RefCell<Option<Arc<Parts>>>,
    /// What it takes of what its tenant may have open; none for datagrams.
    pub(crate) share: RefCell<Option<UsageGuard>>,
    /// What it takes of the connections that there may be; none for datagrams.
    pub(crate) slot: RefCell<Option<Slot>>,
    /// What it said and what it was told.
    pub(crate) conversation: RefCell<Conversation<W>>,
    /// Whether it is on the list of clients to be written to.
    pub(crate) mark_pending_write: Cell<bool>,
    pub(crate) dead: Cell<Option<CloseCause>>,
    /// What it has outstanding, by key.
    pub(crate) order: KeyOrder,
    /// Its requests in the queue: how many they are, and where the last of them waits.
    pub(crate) queued: Cell<(usize, Option<Place>)>,
    /// The store connection that its requests take is not read until it reads, or leaves.
    pub(crate) holds_up_store: Cell<bool>,
    /// Its next request is slow by kind, and waits until it may take another store connection.
    pub(crate) awaits_lane: Cell<bool>,
    /// What it gets a dedicated connection for waits for the store's replicas.
    pub(crate) awaits_replicas: Cell<bool>,
    /// Its `MULTI` was refused so: what follows up to `EXEC` or `DISCARD` is refused with it.
    pub(crate) refused_multi: Cell<Option<Refusal>>,
    /// Its refusals that are ready to be written.
    pub(crate) pending_refusals: PendingRefusals,
    /// It sends nothing more, and has most likely left.
    pub(crate) left: Cell<bool>,
    /// Whether bytes have come or gone lately, and for how long they have not.
    pub(crate) has_progress: Cell<bool>,
    pub(crate) stuck_for: Cell<Duration>,
    /// For how long the request that its input begins with has been unfinished; `None` before the first look at it.
    pub(crate) unfinished: Cell<Option<Duration>>,
    /// For how long it has wanted nothing, or nobody has been charged for it.
    pub(crate) quiet: Cell<Duration>,
    /// On a dedicated connection: an answer is due, or what the store says by itself.
    pub(crate) awaits_store: Cell<bool>,
    pub(crate) waker: RefCell<Option<Waker>>,
    /// What it holds of what all may, and what of that is neither input nor replies.
    pub(crate) memory_share: MemoryShare,
    pub(crate) other_bytes: Cell<usize>,
}

/// What a new client starts with.
pub(crate) struct ClientParts<'a, W: Wire> {
    /// The tenant that is charged for its requests.
    pub(crate) tenant: TenantId,
    /// The tenant of its address; nobody for the sender of a datagram.
    pub(crate) source_tenant: TenantId,
    /// True if its refusals are only counted.
    pub(crate) shadow: bool,
    /// What is refused to its tenant.
    pub(crate) restrictions: Option<Arc<Restrictions>>,
    /// The parts of its tenant.
    pub(crate) tenant_parts: Option<Arc<Parts>>,
    pub(crate) decoder: W::Decoder,
    /// The budget that its memory counts against.
    pub(crate) memory: &'a Rc<ClientMemory>,
}

/// Where a client's replies go.
#[derive(Debug)]
pub(crate) enum ReplySink {
    /// To a connection, as soon as they are ready.
    Stream(OwnedWriteHalf),
    /// To the sender of a datagram, all together.
    Datagram(Sender),
}

/// What a client said and what it was told.
#[derive(Debug)]
pub(crate) struct Conversation<W: Wire> {
    /// Where the protocol stands.
    pub(crate) decoder: W::Decoder,
    /// What was read and not yet taken; mostly nothing.
    pub(crate) input: Buffer,
    /// How much input it takes to go on.
    pub(crate) want: usize,
    /// Decoding has stopped for want of room or because of its order, not for want of input.
    pub(crate) decode_paused: bool,
    /// Its task waits for room.
    pub(crate) awaits_output: bool,
    /// Nothing more is read from it: it has said goodbye, or what it sent makes no sense.
    pub(crate) closing: bool,
    /// Where what it asks next needs it to be, once it has all its replies.
    pub(crate) next_mode: ConnectionMode,
    /// Its replies, in order.
    pub(crate) replies: Replies,
}

/// Where a client goes before its next request is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionMode {
    /// It stays.
    Shared,
    /// To the store, to become someone else.
    Login,
    /// To a connection of its own.
    Dedicated,
    /// To the store with the body of a request that it is let out of the queue with; nowhere, if that is refused.
    Streaming,
}

/// Why a client's connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCause {
    /// It left, or all was said.
    ClientLeft,
    /// It did not read its replies.
    SlowReader,
    /// It did not go on with its request.
    SlowWriter,
    /// The store broke off in the middle of a reply to it.
    StoreFailed,
    /// It wanted nothing for too long, or did not say in time who it is.
    Idle,
}

impl<W: Wire> Client<W> {
    /// A client at `source`, charged to `tenant`.
    pub(crate) fn new(sink: ReplySink, source: IpAddr, parts: ClientParts<'_, W>) -> Self {
        let ClientParts { tenant, source_tenant, shadow, restrictions, tenant_parts, decoder, memory } =
            parts;
        Self {
            sink,
            tenant: Cell::new(tenant),
            source_tenant: Cell::new(source_tenant),
            user: RefCell::default(),
            shadow,
            source,
            who: RefCell::default(),
            share: RefCell::new(None),
            slot: RefCell::new(None),
            restrictions: RefCell::new(restrictions),
            parts: RefCell::new(tenant_parts),
            conversation: RefCell::new(Conversation {
                decoder,
                input: Buffer::default(),
                want: 0,
                decode_paused: false,
                awaits_output: false,
                closing: false,
                next_mode: ConnectionMode::Shared,
                replies: Replies::new(W::refuse),
            }),
            mark_pending_write: Cell::new(false),
            dead: Cell::new(None),
            order: KeyOrder::default(),
            queued: Cell::new((0, None)),
            holds_up_store: Cell::new(false),
            awaits_lane: Cell::new(false),
            awaits_replicas: Cell::new(false),
            refused_multi: Cell::new(None),
            pending_refusals: PendingRefusals::default(),
            left: Cell::new(false),
            has_progress: Cell::new(true),
            stuck_for: Cell::new(Duration::ZERO),
            unfinished: Cell::new(None),
            quiet: Cell::new(Duration::ZERO),
            awaits_store: Cell::new(false),
            waker: RefCell::new(None),
            memory_share: MemoryShare::new(memory, tenant),
            other_bytes: Cell::new(0),
        }
    }

    /// Whether nobody is there any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.dead.get().is_some()
    }

    /// Whether what it asks for tells something about the tenant that is charged: it has a connection, from that
    /// tenant's own source. A part has no source, so what is asked of it never costs anybody a connection.
    #[inline]
    fn counts_for_deep_debt(&self, charged: TenantId) -> bool {
        self.source_tenant.get() != TenantId::NOBODY && self.source_tenant.get() == charged
    }

    /// The payer of what it asks for that is charged to `tenant`.
    #[inline]
    pub(crate) fn payer(&self, tenant: TenantId) -> Payer {
        Payer {
            tenant,
            shadow: self.shadow,
            is_charged_by_xdp: self.is_charged_by_xdp(),
            is_datagram: self.datagram().is_some(),
            counts_for_deep_debt: self.counts_for_deep_debt(tenant),
        }
    }

    /// Whether nobody is charged for it.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.tenant.get() == TenantId::NOBODY
    }

    /// Who is charged for more of what it asked while this tenant was charged: another, if it is another's by now.
    pub(crate) fn still_charged(&self, charged: TenantId, whole: TenantId) -> TenantId {
        if self.tenant.get() == whole { charged } else { self.tenant.get() }
    }

    /// Whether it may ask once more while `open` requests of its own are unanswered.
    #[inline]
    pub(crate) fn has_request_quota(&self, open: usize) -> bool {
        self.share.borrow().as_ref().is_none_or(|share| share.has_room(open))
    }

    /// So many of its requests are unanswered.
    #[inline]
    pub(crate) fn set_outstanding(&self, open: usize) {
        self.share.borrow().iter().for_each(|share| share.note(open));
    }

    /// Who is charged for a request, and whether it is denied to it.
    #[inline]
    pub(crate) fn tenant_for(&self, request: &W::Request, bytes: &[u8]) -> (TenantId, bool) {
        let denied = self.restrictions.borrow().as_ref().is_some_and(|restrictions| {
            W::is_denied(&restrictions.deny, request, bytes)
                || restrictions.own_keys.as_ref().is_some_and(|own| !W::touches_only(own, request, bytes))
        });
        match &*self.parts.borrow() {
            None => (self.tenant.get(), denied),
            Some(parts) => self.tenant_by_key(parts, denied, request, bytes),
        }
    }

    fn tenant_by_key(
        &self,
        parts: &Parts,
        denied: bool,
        request: &W::Request,
        bytes: &[u8],
    ) -> (TenantId, bool) {
        // The kernel has charged by source alone.
        let by_source = self.is_charged_by_xdp() || !W::names_all_keys(request);
        let part = if by_source { None } else { parts.of(W::keys(request, bytes), W::meta(request).keys) };
        let Some(part) = part else { return (self.tenant.get(), denied) };
        let deny = part.deny.as_ref();
        (part.tenant, denied || deny.is_some_and(|deny| W::is_denied(deny, request, bytes)))
    }

    /// It is listened to no more, and reads why if nothing else is to come.
    pub(crate) fn close_with(&self, why: &[u8]) {
        let waits = {
            let conversation = &mut *self.conversation.borrow_mut();
            conversation.closing = true;
            conversation.next_mode != ConnectionMode::Shared || conversation.replies.outstanding() > 0
        };
        if !waits {
            self.respond(why);
        }
    }

    /// Whether it has nothing under way, as far as can be seen here.
    pub(crate) fn is_idle(&self) -> bool {
        let conversation = self.conversation.borrow();
        let waits =
            conversation.next_mode != ConnectionMode::Shared || conversation.replies.outstanding() > 0;
        !waits && conversation.input.is_empty() && conversation.replies.output.is_empty()
    }

    /// Where replies go.
    ///
    /// # Panics
    ///
    /// For the sender of a datagram, which has no connection.
    pub(crate) fn socket(&self) -> &OwnedWriteHalf {
        match &self.sink {
            ReplySink::Stream(socket) => socket,
            ReplySink::Datagram(_) => unreachable!("only a client with a connection has a task"),
        }
    }

    /// The datagram that it is the sender of.
    #[inline]
    pub(crate) fn datagram(&self) -> Option<&Sender> {
        match &self.sink {
            ReplySink::Stream(_) => None,
            ReplySink::Datagram(sender) => Some(sender),
        }
    }

    /// Ends the connection at once.
    pub(crate) fn end(&self, why: CloseCause) {
        if self.dead.get().is_none() {
            self.dead.set(Some(why));
            self.wake();
        }
    }

    /// Gives back memory that an idle client does not need, and ends one that is stuck for too long, or takes too long
    /// for one request, or is idle or unknown for too long. To be called every `interval`.
    pub(crate) fn check_timeout(&self, interval: Duration, limits: &Limits) {
        let patience = Duration::from(limits.client_timeout);
        if self.has_no_business(interval, limits) {
            return self.end(CloseCause::Idle);
        }
        if self.is_slow_to_write(interval, patience) {
            return self.end(CloseCause::SlowWriter);
        }
        if self.has_progress.replace(false) {
            self.stuck_for.set(Duration::ZERO);
            return;
        }
        self.release();
        let conversation = self.conversation.borrow();
        if conversation.replies.waiting() > limits.max_output {
            return self.end(CloseCause::SlowReader);
        }
        let (reading, writing) = (
            !conversation.replies.output.is_empty(),
            !conversation.input.is_empty() && !conversation.awaits_output,
        );
        if !reading && !writing {
            return;
        }
        self.stuck_for.set(self.stuck_for.get() + interval);
        if self.stuck_for.get() > patience {
            self.end(if reading { CloseCause::SlowReader } else { CloseCause::SlowWriter });
        }
    }

    /// Whether it has wanted nothing for too long, or has not said in time who it is.
    fn has_no_business(&self, interval: Duration, limits: &Limits) -> bool {
        let is_unauthenticated = self.is_unauthenticated() && !self.shadow;
        let is_idle = || !self.has_progress.get() && !self.awaits_store.get() && self.is_idle();
        let quiet =
            if is_unauthenticated || is_idle() { self.quiet.get() + interval } else { Duration::ZERO };
        self.quiet.set(quiet);
        let patience = if is_unauthenticated { Some(limits.unknown_timeout) } else { limits.idle_timeout };
        patience.is_some_and(|patience| quiet > patience.into())
    }

    /// Whether the request that it is sending has been unfinished for longer than `patience`, however often a byte
    /// of it comes.
    fn is_slow_to_write(&self, interval: Duration, patience: Duration) -> bool {
        let is_writing = {
            let conversation = self.conversation.borrow();
            !conversation.input.is_empty() && !conversation.awaits_output && !conversation.decode_paused
        };
        let before = self.unfinished.get();
        self.unfinished.set(is_writing.then(|| before.map_or(Duration::ZERO, |before| before + interval)));
        self.unfinished.get().is_some_and(|unfinished| unfinished > patience)
    }

    /// A request has been taken out of its input.
    #[inline]
    pub(crate) fn has_finished_a_request(&self) {
        self.unfinished.set(None);
    }

    /// Gives back memory that nothing is in.
    pub(crate) fn release(&self) {
        let conversation = &mut *self.conversation.borrow_mut();
        conversation.input.release();
        conversation.replies.release();
        self.update_memory(conversation);
    }

    /// For how long it has neither read nor gone on, as far as has been looked.
    pub(crate) fn stuck_for(&self) -> Duration {
        self.stuck_for.get()
    }

    /// Ends the connection for what it holds.
    pub(crate) fn close_stuck(&self) {
        let reads = self.conversation.borrow().replies.waiting() == 0;
        self.end(if reads { CloseCause::SlowWriter } else { CloseCause::SlowReader });
    }

    /// What it holds has changed.
    #[inline]
    pub(crate) fn update_memory(&self, conversation: &Conversation<W>) {
        self.memory_share
            .note(conversation.input.memory() + conversation.replies.memory() + self.other_bytes.get());
    }

    /// Gives it a reply that is not any request's among those outstanding: there are none.
    pub(crate) fn respond(&self, reply: &[u8]) {
        let replies = &mut self.conversation.borrow_mut().replies;
        let seq = replies.open();
        replies.part(seq, reply);
        replies.whole(seq);
    }

    /// Whether the kernel has judged what it sends by its quota.
    #[inline]
    pub(crate) fn is_charged_by_xdp(&self) -> bool {
        self.datagram().is_some_and(|sender| sender.judged)
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Whether somebody else has ended it; who does so wakes the task.
    pub(crate) fn poll_ended(&self, cx: &Context<'_>) -> Poll<CloseCause> {
        if self.waker.borrow().as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
        }
        self.dead.get().map_or(Poll::Pending, Poll::Ready)
    }

    /// Writes what there is, as far as there is room for it.
    pub(crate) fn flush(&self, output: &mut Buffer) -> WriteStatus {
        while !output.is_empty() {
            match self.socket().try_write(output.bytes()) {
                Ok(len) => {
                    self.has_progress.set(true);
                    output.consume(len);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return WriteStatus::Blocked,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.dead.set(Some(CloseCause::ClientLeft));
                    return WriteStatus::StoreError;
                }
            }
        }
        WriteStatus::Complete
    }
}

/// What became of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStatus {
    /// It is with the kernel.
    Complete,
    /// The socket is full.
    Blocked,
    /// There is nobody to write to.
    StoreError,
}

/// A client for which more replies wait holds up a store connection that nobody else waits for, until it has read them down to
/// the other.
pub(crate) const HOLD_OUTPUT: usize = 1 << 20;
pub(crate) const RESUME_OUTPUT: usize = 128 << 10;
