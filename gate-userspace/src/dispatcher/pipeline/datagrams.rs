//! Clients that send datagrams: memcached over UDP.
//!
//! A datagram holds requests as a stream does, and its sender is a client like any other, for as long as the
//! answers take: they are gathered in the order of the requests and leave together, in as many datagrams as it
//! needs. (memcached 1.6 sends each line and each value in a datagram that claims to be the only one.) What it ignores
//! is ignored: a request of several datagrams, and one that lacks its end.
//!
//! **Who pays.** What the XDP program has let in is paid for, or shadowed: it is not judged by the quota again.
//! That is what came in by an interface that it is attached to, or by one above, and carries its mark; but for what the machine
//! sends to itself, which it does not see.
//!
//! **Whom the gate answers.** A sender's address may be forged. Sources that no rule names get no answer, and
//! what the gate says by itself (refusals, errors) goes only to tenants that are nobody's default, within
//! their reply budget: the rules of the XDP program, and the same bucket.
//!
//! The store's answer goes to the address that the datagram names, to default tenants included, but only up to the
//! datagram's length plus that budget: gate is no amplifier. A longer answer is dropped whole, and counted.
//!
//! **Memory.** A limited number of datagrams may be under way, in all threads; beyond it, the next is refused with `limit`.
//! Their clients are used again.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use gate_common::abi::Reason;
use tokio::sync::watch;

use super::respond::REFUSAL_BYTES;
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::clients::client::{CloseCause, ReplySink};
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::clients::sender::Sender;
use crate::dispatcher::clients::task_budget::TaskBudget;
use crate::dispatcher::clients::udp::{Arrival, Socket};
use crate::dispatcher::hot_cache::key_order::KeyOrder;
use crate::dispatcher::hot_restart::{Entrance, Phase, wait_for_phase};
use crate::dispatcher::metrics::Event;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::Wire;
use crate::logging::once_a_minute;
use crate::protocol::Refusal;
use crate::protocol::memcached::udp::Frame;

impl<W: Wire> Service<W> {
    /// Takes in a datagram.
    fn datagram(&self, socket: &Rc<Socket>, arrival: Arrival, datagram: &[u8]) {
        self.metrics.count(Event::Datagram);
        let (tenant, shadow) = self.tenant_of_client(arrival.source());
        let refused = |reason| self.admission.count_refusal(tenant, reason);
        if tenant == TenantId::UNKNOWN && !shadow {
            return refused(Reason::UnknownSource);
        }
        let Some((frame, payload)) = Frame::parse(datagram).filter(|(frame, _)| frame.total == 1) else {
            return refused(Reason::Malformed);
        };
        let judged = self.is_judged(&arrival);
        let sender = Sender {
            socket: Rc::clone(socket),
            arrival,
            id: frame.id,
            len: datagram.len(),
            replied: Cell::new(0),
            judged,
        };
        let next = self.senders.borrow_mut().next(
            |client| client.begin(sender.clone(), self),
            || Session::new(ReplySink::Datagram(sender.clone()), sender.arrival.source(), self),
        );
        let Some((client, slot)) = next else {
            refused(Reason::Limit);
            if self.may_send(tenant, REFUSAL_BYTES) {
                let mut refusal = Vec::new();
                W::refuse(Refusal::of(Reason::Limit), &mut refusal);
                // If there is no room for it, it is lost, as any datagram may be.
                let _ = sender.send(&refusal, 0);
            }
            return;
        };
        *client.datagram_slot.borrow_mut() = Some(slot);
        let conversation = &mut *client.conversation.borrow_mut();
        let taken = self.requests(&client, conversation, payload);
        if taken < payload.len() && !conversation.closing {
            refused(if conversation.decode_paused { Reason::Limit } else { Reason::Malformed });
        }
        self.mark_pending_write(&client);
    }

    /// True if the XDP program has judged a datagram. Whoever may set the mark on a socket of this machine could say so; what it
    /// sends has a source of the machine's own, or comes in by another interface.
    fn is_judged(&self, arrival: &Arrival) -> bool {
        let ledger = self.ledger.borrow();
        let local = self.local_addrs.borrow();
        let is_attached = ledger.is_attached_to(arrival.interface);
        if !(is_attached || local.is_above(arrival.interface)) || local.may_have(arrival.source()) {
            return false;
        }
        let is_marked = ledger.is_marked(arrival.mark, arrival.interface);
        is_marked.unwrap_or(is_attached && !arrival.fragmented)
    }

    /// True if gate may send so many bytes of its own to a client.
    #[inline]
    pub(crate) fn within_reply_budget(&self, client: &Session<W>, bytes: usize) -> bool {
        let Some(sender) = client.datagram() else { return true };
        let may = self.may_send(client.tenant.get(), bytes);
        sender.replied.update(|replied| if may { replied + bytes } else { replied });
        may
    }

    /// True if an answer may be sent to the address that a datagram names as its sender: the bytes beyond the
    /// datagram's length that have not been taken from the budget yet must fit into it.
    fn may_answer(&self, sender: &Sender, tenant: TenantId, bytes: usize) -> bool {
        let beyond = bytes.saturating_sub(sender.len + sender.replied.get());
        let beyond = u32::try_from(beyond).unwrap_or(u32::MAX);
        beyond == 0 || self.ledger.borrow_mut().may_amplify(tenant, beyond, clock::monotonic())
    }

    fn may_send(&self, tenant: TenantId, bytes: usize) -> bool {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.ledger.borrow_mut().may_reply(tenant, bytes, clock::monotonic())
    }
}

impl<W: Wire> Session<W> {
    /// Becomes the sender of another datagram.
    fn begin(&mut self, sender: Sender, service: &Service<W>) {
        let (tenant, shadow) = service.tenant_of_client(sender.arrival.source());
        self.client.sink = ReplySink::Datagram(sender);
        // It is no connection.
        self.tenant.set(tenant);
        self.memory_share.charge_to(tenant);
        self.refresh_tenant(service);
        self.client.shadow = shadow;
        self.client.order = KeyOrder::default();
        self.pending_refusals.discard();
        let conversation = self.client.conversation.get_mut();
        conversation.decoder = W::decoder(service.settings.max_request());
        (conversation.closing, conversation.decode_paused) = (false, false);
        if self.client.dead.take().is_some() || conversation.replies.outstanding() > 0 {
            conversation.replies = Replies::new(W::refuse);
        }
    }

    /// Sends the answer to a datagram, once it is complete; then another may take its slot.
    pub(crate) fn answer_datagram(self: &Rc<Self>, sender: &Sender, service: &Service<W>) {
        if self.send_answer(sender, service) {
            drop(self.datagram_slot.take());
        }
    }

    /// Sends the answer to a datagram, if it is complete. True if nothing is left to be sent.
    fn send_answer(self: &Rc<Self>, sender: &Sender, service: &Service<W>) -> bool {
        let conversation = &mut *self.conversation.borrow_mut();
        self.update_memory(conversation);
        let replies = &mut conversation.replies;
        let limits = service.limits.get();
        let too_long = replies.waiting() > limits.max_output || self.memory_share.is_exceeded();
        if too_long && !self.is_gone() {
            service.admission.count_refusal(self.tenant.get(), Reason::TooLarge);
            self.dead.set(Some(CloseCause::SlowReader));
        }
        if self.is_gone() {
            self.pending_refusals.discard();
            return true;
        }
        let refusals = &service.metrics.refusals;
        if replies.outstanding() > 0 {
            self.pending_refusals.on_held_back(refusals);
            return false;
        }
        if !service.may_answer(sender, self.tenant.get(), replies.output.len()) {
            service.metrics.count(Event::AnswerDropped);
            self.pending_refusals.discard();
            replies.output.clear();
            self.update_memory(conversation);
            return true;
        }
        if let Err(sent) = sender.send(replies.output.bytes(), 0) {
            self.pending_refusals.on_held_back(refusals);
            tokio::task::spawn_local(Rc::clone(self).send_remaining(sent));
            return false;
        }
        self.pending_refusals.on_written(refusals, clock::monotonic);
        replies.output.clear();
        self.update_memory(conversation);
        true
    }

    /// Sends what the socket had no room for, from a datagram on.
    async fn send_remaining(self: Rc<Self>, mut from: usize) {
        let Some(sender) = self.datagram() else { return };
        while tokio::time::timeout(CLOSE_TIMEOUT, sender.socket.writable())
            .await
            .is_ok_and(|ready| ready.is_ok())
        {
            match sender.send(self.conversation.borrow().replies.output.bytes(), from) {
                Ok(()) => break,
                Err(sent) => from = sent,
            }
        }
        self.conversation.borrow_mut().replies.output.clear();
        drop(self.datagram_slot.take());
    }
}

/// Takes in what comes to a socket, until gate accepts no more.
pub(crate) async fn serve<W: Wire>(
    socket: Rc<Socket>,
    entrance: Entrance,
    service: Rc<Service<W>>,
    mut phase: watch::Receiver<Phase>,
) {
    tokio::select! {
        () = listen(&socket, &service) => {}
        () = wait_for_phase(&mut phase, Phase::HandingOver) => {}
    }
    // Where the other gate has this very socket, it takes in what comes from now on.
    if *phase.borrow() == Phase::HandingOver
        && let Err(error) = socket.turn_away()
    {
        let service = &service.settings.name;
        tracing::warn!(service, %error, "datagrams may be lost while a socket is handed over");
    }
    // Datagrams that came before are this gate's. The kernel may have been about to add one.
    for _ in 0..LAST_LOOKS {
        take_in(&socket, &service);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    drop(entrance);
}

/// Takes in what comes to a socket, for ever.
async fn listen<W: Wire>(socket: &Rc<Socket>, service: &Service<W>) {
    let mut control = control_buffer();
    loop {
        let received = match socket.readable().await {
            Ok(()) => receive_batch(socket, service, &mut control),
            Err(error) => Err(error),
        };
        service.flush_pending();
        match received {
            // The others have their budget.
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => {
                warn(service, &error);
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Takes in what has come to a socket.
fn take_in<W: Wire>(socket: &Rc<Socket>, service: &Service<W>) {
    let mut control = control_buffer();
    for _ in 0..LAST_BATCHES {
        match receive_batch(socket, service, &mut control) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return warn(service, &error),
        }
    }
    service.flush_pending();
}

/// Takes in some datagrams, so that their requests reach the store together. True if there may be more.
fn receive_batch<W: Wire>(socket: &Rc<Socket>, service: &Service<W>, control: &mut [u8]) -> io::Result<bool> {
    let scratch = &mut *service.scratch.borrow_mut();
    let mut budget = TaskBudget::new();
    while !budget.is_spent() {
        match socket.receive(scratch, control) {
            Ok((len, arrival)) => {
                service.datagram(socket, arrival, &scratch[..len]);
                budget.count_datagram(len);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Room for what the kernel says about a datagram beside its bytes.
fn control_buffer() -> Vec<u8> {
    nix::cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo, libc::c_int, libc::c_int, u32)
}

fn warn<W: Wire>(service: &Service<W>, error: &io::Error) {
    if once_a_minute(&LAST_WARNING, clock::monotonic()) {
        let service = &service.settings.name;
        tracing::warn!(service, %error, "cannot receive a datagram; said once a minute");
    }
}

/// How often a socket that closes is looked at, and for how many batches each time.
const LAST_LOOKS: u32 = 5;
const LOOK_EVERY: Duration = Duration::from_millis(10);
const LAST_BATCHES: u32 = 100;
/// The time for which a socket may have no room for a reply; then the rest of it is lost.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
static LAST_WARNING: AtomicU64 = AtomicU64::new(0);
const RETRY_DELAY: Duration = Duration::from_millis(50);
