//! The queue before the store: how requests join it and leave it.

use std::cell::{Cell, RefMut};
use std::rc::Rc;

use gate_common::units::Nanos;

use super::queue_item::QueueItem;
use super::service::{Service, Session};
use super::streamed_request::StreamedRequest;
use crate::clock;
use crate::dispatcher::admission::ClientQueue;
use crate::dispatcher::admission::queueing::{Dequeued, QueuedRequest};
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::request::{Charged, InFlight};
use crate::dispatcher::split::PartOutcome;
use crate::dispatcher::stores::events::FollowUp;
use crate::dispatcher::wire::Wire;
use crate::dispatcher::wire::buffer::Buffer;
use crate::protocol::Refusal;

impl<W: Wire> QueueItem<W, Session<W>> {
    #[inline]
    fn client(&self) -> &Session<W> {
        match self {
            Self::Shared { in_flight, .. } => &in_flight.client,
            Self::Dedicated { client, .. } => client,
        }
    }
}

impl<W: Wire> QueuedRequest for QueueItem<W, Session<W>> {
    #[inline]
    fn charged(&self) -> &Charged {
        match self {
            Self::Shared { in_flight, .. } => &in_flight.charged,
            Self::Dedicated { charged, .. } => charged,
        }
    }

    #[inline]
    fn charged_mut(&mut self) -> &mut Charged {
        match self {
            Self::Shared { in_flight, .. } => &mut in_flight.charged,
            Self::Dedicated { charged, .. } => charged,
        }
    }

    #[inline]
    fn client_queue(&self) -> &Cell<ClientQueue> {
        &self.client().queued
    }

    fn is_wanted(&self) -> bool {
        // One that has ended its own side may still read.
        !self.client().is_gone()
    }

    fn is_coalesced(&self) -> bool {
        matches!(self, Self::Shared { in_flight, .. } if in_flight.cache_role.is_coalesced())
    }

    fn is_part(&self) -> bool {
        matches!(self, Self::Shared { in_flight, .. } if matches!(in_flight.cache_role, CacheRole::Part(_)))
    }

    fn must_run(&self) -> bool {
        matches!(self, Self::Dedicated { must_run: true, .. })
    }

    fn is_slow(&self) -> bool {
        matches!(self, Self::Shared { request, .. } if is_slow::<W>(request))
    }

    fn store_accepts(&self, now: Nanos) -> Result<(), Refusal> {
        match self {
            Self::Shared { in_flight, .. } => in_flight.client.store(in_flight.node).accepts(now),
            // It has a connection.
            Self::Dedicated { .. } => Ok(()),
        }
    }

    fn store_has_window(&self) -> bool {
        match self {
            Self::Shared { in_flight, .. } => {
                in_flight.client.store(in_flight.node).has_window(self.is_slow())
            }
            Self::Dedicated { .. } => true,
        }
    }
}

impl<W: Wire> Service<W> {
    /// Sends requests from the queue, as many as there are permits.
    pub(crate) fn dispatch(&self, now: Nanos) {
        while let Some(Dequeued { request, bytes, result }) = self.admission.dequeue(now) {
            match (request, result) {
                (QueueItem::Shared { in_flight, request }, Ok(())) => {
                    if let CacheRole::Part(split) = &in_flight.cache_role {
                        self.part_passes(split, &self.ledger.borrow());
                    } else if !is_slow::<W>(&request) {
                        in_flight.client.choose_connection_again(now);
                    }
                    self.submit(in_flight, &request, &bytes, now)
                }
                (request, Err(refusal)) => self.refuse_dequeued(request, refusal),
                (QueueItem::Dedicated { client, .. }, Ok(())) => client.end_wait(Ok(())),
            }
            self.admission.recycle(bytes);
        }
    }

    /// Sends requests that wait here whenever another thread leaves a permit to this one, for ever.
    pub(crate) async fn receive_permits(self: Rc<Self>) {
        loop {
            let woken = self.admission.woken();
            woken.await;
            self.dispatch(clock::monotonic());
            self.admission.return_permits();
            self.flush_pending();
        }
    }

    /// Sends a request that has a permit. A request whose body is still to come releases it for now.
    #[inline(always)]
    pub(crate) fn submit(
        &self,
        in_flight: InFlight<Rc<Session<W>>, CacheRole>,
        request: &W::Request,
        bytes: &[u8],
        now: Nanos,
    ) {
        // Of parts, each by itself.
        let is_whole = !matches!(in_flight.cache_role, CacheRole::Part(_));
        let freed = if is_whole { self.freed_later(&in_flight.client, request, bytes) } else { None };
        let bytes = freed.as_ref().map_or(bytes, |freed| &freed[..]);
        if W::is_streamed(request) {
            self.admission.release_permit();
            let (client, in_flight) = in_flight.split();
            let is_of_several = self.settings.stores.len() > 1;
            let tenant = client.tenant.get();
            let streamed = StreamedRequest::new(in_flight, tenant, request, bytes, is_of_several, now);
            client.start_streaming(streamed);
            return;
        }
        let store = in_flight.client.store(in_flight.node);
        let follow_up = match in_flight.cache_role {
            CacheRole::LeadFlight(_) => query_ttl(&in_flight, request, bytes),
            CacheRole::Part(ref split) => match &split.joined {
                Some(joined) => return self.send_runs(&in_flight, (split, joined), request, bytes, now),
                None => None,
            },
            CacheRole::None
            | CacheRole::MarkWrite(_)
            | CacheRole::QueryTtl(_)
            | CacheRole::AskSize { .. } => None,
        };
        let slow = self.begin_slow(in_flight.node, request, now);
        store.send(in_flight, request, bytes, (follow_up, slow), now);
    }

    /// The bytes that are sent in place of a request for which the store would let everybody wait while it frees memory.
    #[inline]
    pub(super) fn freed_later(
        &self,
        client: &Session<W>,
        request: &W::Request,
        bytes: &[u8],
    ) -> Option<RefMut<'_, Vec<u8>>> {
        if !W::frees(request) || !self.frees_later(client) {
            return None;
        }
        let mut freed = self.freed.borrow_mut();
        freed.clear();
        W::free_later(request, bytes, &mut freed);
        Some(freed)
    }

    /// Appends a request to `out`, or, if it `may_change`, that by which memory is freed later.
    pub(super) fn push(
        &self,
        client: &Session<W>,
        (request, bytes): (&W::Request, &[u8]),
        may_change: bool,
        out: &mut Buffer,
    ) {
        let freed = if may_change { self.freed_later(client, request, bytes) } else { None };
        out.push(freed.as_ref().map_or(bytes, |freed| &freed[..]));
    }

    /// True if what a client removes is freed later.
    pub(super) fn frees_later(&self, client: &Session<W>) -> bool {
        self.limits.get().whole_keys.unlink && client.pool().identity().may_unlink()
    }

    /// Refuses requests that have waited too long while no permit became free, and those of clients that have left.
    pub(crate) fn expire(&self, now: Nanos) {
        if self.has_leavers.take() {
            for Dequeued { request, bytes, result } in self.admission.remove_late(now) {
                if let Err(refusal) = result {
                    self.refuse_dequeued(request, refusal);
                }
                self.admission.recycle(bytes);
            }
        }
        while let Some(Dequeued { request, bytes, result }) = self.admission.expire(now) {
            if let Err(refusal) = result {
                self.refuse_dequeued(request, refusal);
            }
            self.admission.recycle(bytes);
        }
    }

    fn refuse_dequeued(&self, request: QueueItem<W, Session<W>>, refusal: Refusal) {
        let in_flight = match request {
            QueueItem::Shared { in_flight, .. } => in_flight,
            QueueItem::Dedicated { client, .. } => return client.end_wait(Err(refusal)),
        };
        let of_whole = (in_flight.charged.tenant, in_flight.charged.class.query_type);
        self.sample_late_refusal(&in_flight.client, of_whole, &refusal);
        if let CacheRole::Part(split) = &in_flight.cache_role
            && let Some(joined) = &split.joined
        {
            return self.refuse_runs(&in_flight, (split, joined), refusal);
        }
        let InFlight { client, seq, charged, silent, cache_role, .. } = in_flight;
        if let CacheRole::Part(split) = cache_role {
            return self.end_part(&client, &split, seq, PartOutcome::Refused(refusal, charged.price));
        }
        if !cache_role.is_coalesced() {
            self.refuse_queued(&client, seq, silent, refusal);
        }
        cache_role.refuse(charged.tenant, refusal);
    }
}

/// True if a request is slow by kind.
#[inline]
pub(crate) fn is_slow<W: Wire>(request: &W::Request) -> bool {
    W::meta(request).may_take_long()
}

impl<W: Wire> Session<W> {
    /// A request for its dedicated connection has left the queue, with a permit or refused.
    fn end_wait(&self, result: Result<(), Refusal>) {
        self.granted.set(Some(result));
        self.wake();
    }
}

/// The query for the TTL of the key that a flight reads, to be sent behind it.
fn query_ttl<W: Wire>(
    flight: &InFlight<Rc<Session<W>>, CacheRole>,
    request: &W::Request,
    bytes: &[u8],
) -> Option<FollowUp<Service<W>>> {
    let (request, bytes) = W::query_ttl(request, bytes)?;
    let client = Rc::clone(&flight.client);
    let cache_role = CacheRole::QueryTtl(None);
    let InFlight { node, seq, ref charged, features, .. } = *flight;
    let charged = charged.clone();
    let in_flight = InFlight { client, node, seq, charged, features, silent: true, redirects: 0, cache_role };
    Some(FollowUp { in_flight, request, bytes })
}
