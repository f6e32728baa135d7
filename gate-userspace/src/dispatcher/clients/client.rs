//! One client: its socket, the input that is not decoded yet, and its replies.
//!
//! A client's task reads and decodes. The task that has a reply writes it: the client's own for gate's replies, the
//! store connection's for the store's. The client's task is woken only when its socket is full or when it has stopped
//! reading.
//!
//! The sender of a datagram is a client without a task, for as long as its answer takes ([`crate::dispatcher::pipeline::datagrams`]).

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::conversation::{ConnectionMode, Conversation, RefusedBefore};
use super::memory_budget::{ClientMemory, MemoryShare};
use super::refusal_pace::PaceKey;
use super::replies::Replies;
use super::sender::Sender;
use super::slots::{DatagramSlot, Slot};
use super::stream::ClientWriter;
use super::task_budget::TaskBudget;
use crate::dispatcher::hot_cache::key_order::KeyOrder;
use crate::dispatcher::identity::{Identity, Login};
use crate::dispatcher::metrics::refusal_latency::PendingRefusals;
use crate::dispatcher::queue::tier_queue::QueueKey;
use crate::dispatcher::request::Payer;
use crate::dispatcher::tenants::Restrictions;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::tenants::members::Member;
use crate::dispatcher::tenants::parts::Parts;
use crate::dispatcher::tenants::usage::UsageGuard;
use crate::dispatcher::wire::Wire;
use crate::dispatcher::wire::buffer::Buffer;
use crate::protocol::Rule;

/// A connected client.
#[derive(Debug)]
pub(crate) struct Client<W: Wire> {
    /// The destination of its replies.
    pub(crate) sink: ReplySink,
    /// The tenant that is charged for its requests.
    pub(crate) tenant: Cell<TenantId>,
    /// The member of that tenant whose bucket is charged.
    pub(crate) member: RefCell<Option<Arc<Member>>>,
    /// The tenant of the source that it has connected from; nobody for the sender of a datagram, whose source may be
    /// forged.
    pub(crate) source_tenant: Cell<TenantId>,
    /// The user as whom it has logged in last.
    pub(crate) user: RefCell<Option<Rc<Login>>>,
    /// True if refusals are only counted.
    pub(crate) shadow: bool,
    /// The address of the client.
    pub(crate) source: IpAddr,
    /// Its identity at the store.
    pub(crate) identity: RefCell<Identity>,
    /// The commands and keys that are refused to its tenant.
    pub(crate) restrictions: RefCell<Option<Arc<Restrictions>>>,
    /// The parts of its tenant, which are charged for requests for their keys.
    pub(crate) parts: RefCell<Option<Arc<Parts>>>,
    /// Its part of what its tenant may have open; none for datagrams.
    pub(crate) share: RefCell<Option<UsageGuard>>,
    /// Its slot among the connections that there may be; none for datagrams.
    pub(crate) slot: RefCell<Option<Slot>>,
    /// The slot of its datagram, until that is answered; none for connections.
    pub(crate) datagram_slot: RefCell<Option<DatagramSlot>>,
    /// Its input, decoder state and replies.
    pub(crate) conversation: RefCell<Conversation<W>>,
    /// True while it is on the list of clients to be written to.
    pub(crate) mark_pending_write: Cell<bool>,
    pub(crate) dead: Cell<Option<CloseCause>>,
    /// Its outstanding requests, by key.
    pub(crate) order: KeyOrder,
    /// Its requests in the queue: how many they are, and where the last of them waits.
    pub(crate) queued: Cell<(usize, Option<QueueKey>)>,
    /// True while the store connection that its requests take is not read, until it reads its replies or leaves.
    pub(crate) holds_up_store: Cell<bool>,
    /// Its next request is slow by kind, and waits until it may take another store connection.
    pub(crate) awaits_lane: Cell<bool>,
    /// True while its request for a dedicated connection waits for the store's replicas.
    pub(crate) awaits_replicas: Cell<bool>,
    /// The refused request on which those behind it depend.
    pub(crate) refused_before: Cell<RefusedBefore>,
    /// The round in which a request of its was refused last, and whether it waits for the next
    /// ([`super::refusal_pace`]).
    pub(crate) last_refused: Cell<u32>,
    pub(crate) is_held: Cell<bool>,
    /// Its refusals that are ready to be written.
    pub(crate) pending_refusals: PendingRefusals,
    /// True if bytes have come or gone since the last look; and the time for which none have.
    pub(crate) has_progress: Cell<bool>,
    pub(crate) stuck_for: Cell<Duration>,
    /// For how long the request that its input begins with has been unfinished; `None` before the first look at it.
    pub(crate) unfinished: Cell<Option<Duration>>,
    /// The time for which it has had no request, or has been unauthenticated.
    pub(crate) quiet: Cell<Duration>,
    /// On a dedicated connection: true while an answer or a message of the store is due.
    pub(crate) awaits_store: Cell<bool>,
    pub(crate) waker: RefCell<Option<Waker>>,
    /// The bytes that count against the memory budget; and those of them that are neither input nor replies.
    pub(crate) memory_share: MemoryShare,
    pub(crate) other_bytes: Cell<usize>,
}

/// The properties of a new client.
pub(crate) struct ClientParts<'a, W: Wire> {
    /// The tenant that is charged for its requests.
    pub(crate) tenant: TenantId,
    /// The member of that tenant whose bucket is charged.
    pub(crate) member: Option<Arc<Member>>,
    /// The tenant of its address; nobody for the sender of a datagram.
    pub(crate) source_tenant: TenantId,
    /// True if its refusals are only counted.
    pub(crate) shadow: bool,
    /// The commands and keys that are refused to its tenant.
    pub(crate) restrictions: Option<Arc<Restrictions>>,
    /// The parts of its tenant.
    pub(crate) tenant_parts: Option<Arc<Parts>>,
    pub(crate) decoder: W::Decoder,
    /// The budget that its memory counts against.
    pub(crate) memory: &'a Rc<ClientMemory>,
}

/// The destination of a client's replies.
#[derive(Debug)]
pub(crate) enum ReplySink {
    /// To a connection, as soon as they are ready.
    Stream(ClientWriter),
    /// To the sender of a datagram, all together.
    Datagram(Sender),
    /// Nowhere: it stands for a client that is only asked about.
    Nowhere,
}

/// The cause of the end of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCause {
    /// The client left, or has all its replies.
    ClientLeft,
    /// The client did not read its replies.
    SlowReader,
    /// The client did not go on with its request.
    SlowWriter,
    /// The store broke off in the middle of a reply to it.
    StoreFailed,
    /// The client had no request for too long, or did not log in in time.
    Idle,
}

impl<W: Wire> Client<W> {
    /// A client at `source`, charged to `tenant`.
    pub(crate) fn new(sink: ReplySink, source: IpAddr, parts: ClientParts<'_, W>) -> Self {
        let ClientParts { tenant, member, source_tenant, shadow, restrictions, .. } = parts;
        let ClientParts { tenant_parts, decoder, memory, .. } = parts;
        Self {
            sink,
            tenant: Cell::new(tenant),
            member: RefCell::new(member),
            source_tenant: Cell::new(source_tenant),
            user: RefCell::default(),
            shadow,
            source,
            identity: RefCell::default(),
            share: RefCell::new(None),
            slot: RefCell::new(None),
            datagram_slot: RefCell::new(None),
            restrictions: RefCell::new(restrictions),
            parts: RefCell::new(tenant_parts),
            conversation: RefCell::new(Conversation {
                decoder,
                input: Buffer::default(),
                want: 0,
                decode_paused: false,
                budget: TaskBudget::endless(),
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
            refused_before: Cell::default(),
            last_refused: Cell::new(0),
            is_held: Cell::new(false),
            pending_refusals: PendingRefusals::default(),
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

    /// True if the connection has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.dead.get().is_some()
    }

    /// True if requests that are charged to the tenant count towards its deep debt: the client has a connection, from
    /// that tenant's own source. A part has no source, so no request for its keys counts against a connection.
    #[inline]
    fn counts_for_deep_debt(&self, charged: TenantId) -> bool {
        self.source_tenant.get() != TenantId::UNKNOWN && self.source_tenant.get() == charged
    }

    /// The payer of its requests that are charged to `tenant`.
    #[inline]
    pub(crate) fn payer(&self, tenant: TenantId) -> Payer {
        // A part has no members.
        let member = if tenant == self.tenant.get() { self.member.borrow().clone() } else { None };
        Payer {
            tenant,
            member,
            shadow: self.shadow,
            is_charged_by_xdp: self.is_charged_by_xdp(),
            is_datagram: self.datagram().is_some(),
            counts_for_deep_debt: self.counts_for_deep_debt(tenant),
        }
    }

    /// The key that its refusals are counted by.
    #[inline]
    pub(crate) fn pace_key(&self) -> PaceKey {
        PaceKey { tenant: self.tenant.get(), member: self.member.borrow().as_deref().map(Member::number) }
    }

    /// True if no tenant is charged for its requests.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.tenant.get() == TenantId::UNKNOWN
    }

    /// The tenant that pays the rest of a request for which `charged`, a part of `whole` or `whole` itself, has paid:
    /// the client's present tenant, if that is no longer `whole`.
    pub(crate) fn still_charged(&self, charged: TenantId, whole: TenantId) -> TenantId {
        if self.tenant.get() == whole { charged } else { self.tenant.get() }
    }

    /// True if it may send one more request while `open` of its own are unanswered.
    #[inline]
    pub(crate) fn has_request_quota(&self, open: usize) -> bool {
        self.share.borrow().as_ref().is_none_or(|share| share.has_room(open))
    }

    /// Notes the number of its unanswered requests.
    #[inline]
    pub(crate) fn set_outstanding(&self, open: usize) {
        self.share.borrow().iter().for_each(|share| share.note(open));
    }

    /// The tenant that is charged for a request, and the rule that denies the request to it.
    #[inline]
    pub(crate) fn tenant_for(&self, request: &W::Request, bytes: &[u8]) -> (TenantId, Option<Rule>) {
        let denied = self.restrictions.borrow().as_ref().and_then(|restrictions| {
            let is_beyond_own = |own| !W::touches_only(own, request, bytes);
            if W::is_denied(&restrictions.deny, request, bytes) {
                Some(Rule::Deny)
            } else {
                restrictions.own_keys.as_ref().is_some_and(is_beyond_own).then_some(Rule::Keys)
            }
        });
        match &*self.parts.borrow() {
            None => (self.tenant.get(), denied),
            Some(parts) => self.tenant_by_key(parts, denied, request, bytes),
        }
    }

    fn tenant_by_key(
        &self,
        parts: &Parts,
        denied: Option<Rule>,
        request: &W::Request,
        bytes: &[u8],
    ) -> (TenantId, Option<Rule>) {
        // The kernel has charged by source alone.
        let by_source = self.is_charged_by_xdp() || !W::names_all_keys(request);
        let part = if by_source { None } else { parts.of(W::keys(request, bytes), W::meta(request).keys) };
        let Some(part) = part else { return (self.tenant.get(), denied) };
        let is_denied = || part.deny.as_ref().is_some_and(|deny| W::is_denied(deny, request, bytes));
        (part.tenant, denied.or_else(|| is_denied().then_some(Rule::Deny)))
    }

    /// Stops reading from it. It is sent `why` if no other reply is due.
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

    /// True if nothing of it is under way that is known here.
    pub(crate) fn is_idle(&self) -> bool {
        let conversation = self.conversation.borrow();
        let waits =
            conversation.next_mode != ConnectionMode::Shared || conversation.replies.outstanding() > 0;
        // One that is held may have requests in its socket.
        let is_held = self.is_held.get();
        let has_unsent = match &self.sink {
            ReplySink::Stream(socket) => !conversation.replies.output.is_empty() || socket.has_unsent(),
            ReplySink::Datagram(_) | ReplySink::Nowhere => !conversation.replies.output.is_empty(),
        };
        !waits && !is_held && !has_unsent && conversation.input.is_empty()
    }

    /// The socket that replies are written to.
    ///
    /// # Panics
    ///
    /// For the sender of a datagram, which has no connection.
    pub(crate) fn socket(&self) -> &ClientWriter {
        match &self.sink {
            ReplySink::Stream(socket) => socket,
            ReplySink::Datagram(_) | ReplySink::Nowhere => {
                unreachable!("only a client with a connection has a task")
            }
        }
    }

    /// The address at which it has reached gate, if it has a connection.
    pub(crate) fn reached_at(&self) -> Option<SocketAddr> {
        match &self.sink {
            ReplySink::Stream(socket) => socket.local_addr(),
            ReplySink::Datagram(_) | ReplySink::Nowhere => None,
        }
    }

    /// The datagram that it is the sender of.
    #[inline]
    pub(crate) fn datagram(&self) -> Option<&Sender> {
        match &self.sink {
            ReplySink::Stream(_) | ReplySink::Nowhere => None,
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

    /// Frees buffers that are empty.
    pub(crate) fn release(&self) {
        let conversation = &mut *self.conversation.borrow_mut();
        conversation.input.release();
        conversation.replies.release();
        self.update_memory(conversation);
    }

    /// Counts the memory that it holds now.
    #[inline]
    pub(crate) fn update_memory(&self, conversation: &Conversation<W>) {
        let of_socket = match &self.sink {
            ReplySink::Stream(socket) => socket.memory(),
            ReplySink::Datagram(_) | ReplySink::Nowhere => 0,
        };
        let of_conversation = conversation.input.memory() + conversation.replies.memory();
        self.memory_share.note(of_conversation + self.other_bytes.get() + of_socket);
    }

    /// Replies to no request. There must be none outstanding.
    pub(crate) fn respond(&self, reply: &[u8]) {
        let replies = &mut self.conversation.borrow_mut().replies;
        let seq = replies.open();
        replies.part(seq, reply);
        replies.whole(seq);
    }

    /// True if XDP has charged its datagram to the quota.
    #[inline]
    pub(crate) fn is_charged_by_xdp(&self) -> bool {
        self.datagram().is_some_and(|sender| sender.judged)
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Ready once another task has ended the connection; that task wakes this one.
    pub(crate) fn poll_ended(&self, cx: &Context<'_>) -> Poll<CloseCause> {
        if self.waker.borrow().as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
        }
        self.dead.get().map_or(Poll::Pending, Poll::Ready)
    }

    /// Writes the output, as far as the socket takes it.
    pub(crate) fn flush(&self, output: &mut Buffer) -> WriteStatus {
        while !output.is_empty() {
            match self.socket().try_write(output.bytes()) {
                Ok(len) => {
                    self.has_progress.set(true);
                    output.consume(len);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.write_failed(&error),
            }
        }
        match self.socket().try_flush() {
            Ok(()) => WriteStatus::Complete,
            Err(error) => self.write_failed(&error),
        }
    }

    fn write_failed(&self, error: &std::io::Error) -> WriteStatus {
        if error.kind() == ErrorKind::WouldBlock {
            return WriteStatus::Blocked;
        }
        self.dead.set(Some(CloseCause::ClientLeft));
        WriteStatus::StoreError
    }
}

/// The result of writing the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStatus {
    /// The kernel has all of it.
    Complete,
    /// The socket is full.
    Blocked,
    /// The connection is closed.
    StoreError,
}

/// The lengths of waiting replies, in bytes, at which a client stops the reading of a store connection that no other
/// client waits for, and at which reading goes on.
pub(crate) const HOLD_OUTPUT: usize = 1 << 20;
pub(crate) const RESUME_OUTPUT: usize = 128 << 10;
