//! A request that is streamed: its head, and the progress of its body.

use gate_common::units::Nanos;
use tokio::time::timeout;

use crate::clock;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::stream::ClientReader;
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::request::InFlight;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::{Link, Wire};
use crate::protocol::resp::Command;

/// A request that may go to the store, of which the client has sent no more than the head, as far as is known.
#[derive(Debug)]
pub(crate) struct StreamedRequest<W: Wire> {
    pub(super) request: InFlight<(), CacheRole>,
    /// The client's tenant when the request was charged.
    pub(super) client_tenant: TenantId,
    /// The time that it spent in the queue.
    pub(super) queued_for: Nanos,
    pub(super) link: W::Link,
    pub(super) expect: <W::Link as Link>::Expect,
    /// Its head, as it is written.
    pub(super) head: Buffer,
    pub(super) body: Body,
    pub(super) occupies_store: Option<Command>,
}

/// The progress of a body: how much of it has been passed on and paid for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Body {
    pub(super) passed: u64,
    pub(super) paid: u64,
    /// All of it has been sent: the store may do what it was asked.
    pub(super) is_sent: bool,
}

/// The progress of a body that a client sends: each piece of it must come in time. A byte now and then is no progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BodyProgress {
    /// The bytes that have come of this piece.
    bytes: usize,
    /// How long they were waited for.
    waited: Nanos,
}

impl BodyProgress {
    /// Waits until the client has sent something.
    ///
    /// # Errors
    ///
    /// If it takes longer than `patience` for a piece, or has left.
    pub(super) async fn readable(
        &mut self,
        from_client: &ClientReader,
        patience: Nanos,
    ) -> Result<(), CloseCause> {
        let since = clock::monotonic();
        let left = patience.saturating_sub(self.waited);
        let ready = timeout(left.into(), from_client.readable()).await;
        self.waited = self.waited.saturating_add(clock::monotonic().saturating_sub(since));
        ready.map_err(|_| CloseCause::SlowWriter)?.map_err(|_| CloseCause::ClientLeft)
    }

    /// So much more has come.
    pub(super) fn received(&mut self, len: usize) {
        self.bytes += len;
        if self.bytes >= PIECE {
            *self = Self::default();
        }
    }
}

impl<W: Wire> StreamedRequest<W> {
    pub(crate) fn new(
        in_flight: InFlight<(), CacheRole>,
        client_tenant: TenantId,
        request: &W::Request,
        bytes: &[u8],
        is_of_several: bool,
        now: Nanos,
    ) -> Self {
        let mut link = W::Link::default();
        let mut head = Buffer::default();
        let expect = link.encode(request, bytes, &mut head);
        let queued_for = now.saturating_sub(in_flight.charged.at);
        let body = Body::of::<W>(request, bytes);
        let occupies_store = W::occupies_store(request, is_of_several);
        Self { request: in_flight, client_tenant, queued_for, link, expect, head, body, occupies_store }
    }
}

impl Body {
    /// The body of a request whose head is `head`, as far as the head tells.
    pub(super) fn of<W: Wire>(request: &W::Request, head: &[u8]) -> Self {
        let paid = W::meta(request).bytes.saturating_sub(head.len() as u64);
        Self { paid, ..Self::default() }
    }
}

/// The length of a piece of a body.
const PIECE: usize = 64 << 10;
