//! The pace of a tenant's requests while they are refused, and the memory of heads that have not come whole.
//!
//! **Pace.** A refusal over HTTP costs gate more than one of another protocol, and the client nothing. So each request is counted
//! for its tenant's budget of refusals ([`RefusalPace`](crate::dispatcher::clients::refusal_pace::RefusalPace)), and while
//! that is spent the tenant's next requests wait, before anything is done for them, until the next round. Over HTTP/1.1 the
//! client's next request is not read before this one is answered. Over HTTP/2 the connection is not read meanwhile, so that
//! streams which are begun and reset at once are no way around; but for a trusted proxy's, which is many tenants'.
//!
//! **Memory.** What has come of a head counts for `client_memory` and the tenant's share, beyond the buffer that every connection
//! has; the head of a request that waits as well. Beyond these limits its connection ends.

use std::rc::Rc;

use tokio::sync::oneshot;

use super::connection::Connection;
use super::service::HttpService;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::memory_budget::MemoryShare;
use crate::dispatcher::clients::refusal_pace::{PaceKey, Work};
use crate::dispatcher::metrics::Event;

/// A request whose work is counted when it is dropped: as refused, unless it is said otherwise.
#[derive(Debug)]
pub(super) struct Counted {
    service: Rc<HttpService>,
    client: Rc<Connection>,
    payer: PaceKey,
    bytes: usize,
    is_refused: bool,
}

impl Counted {
    /// A request with a head of so many bytes.
    pub(super) fn new(
        service: &Rc<HttpService>,
        client: &Rc<Connection>,
        payer: PaceKey,
        bytes: usize,
    ) -> Self {
        Self { service: Rc::clone(service), client: Rc::clone(client), payer, bytes, is_refused: true }
    }

    /// Counts it as one that was not refused for its tenant's sake.
    pub(super) fn served(&mut self) {
        self.is_refused = false;
    }

    /// Waits until its tenant's refusals leave it time; false if they do at once. A connection that may not wait, for its
    /// memory, ends.
    pub(super) async fn wait_for_turn(&self) -> bool {
        if !self.service.refusal_pace.borrow().is_spent(self.payer) {
            return false;
        }
        self.service.metrics.count(Event::ReadPaused);
        let memory = MemoryShare::new(&self.service.memory, self.payer.tenant);
        memory.note(self.bytes.saturating_mul(2));
        if memory.is_exceeded() {
            self.client.end(CloseCause::SlowReader);
        }
        let _pause = self.client.pause_reads();
        while let Some(next_round) = self.join_round() {
            // It is never dropped unsent.
            let _ = next_round.await;
        }
        true
    }

    /// Has it wait for the next round; `None` if it may go on.
    fn join_round(&self) -> Option<oneshot::Receiver<()>> {
        let mut pace = self.service.refusal_pace.borrow_mut();
        if !pace.is_spent(self.payer) {
            return None;
        }
        let (wake, woken) = oneshot::channel();
        let had_turn = self.client.last_refused.get() == Some(pace.round());
        pace.wait(self.payer, wake, had_turn);
        Some(woken)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut work = Work::default();
        work.count(self.is_refused, self.bytes.saturating_add(EXCHANGE));
        let mut pace = self.service.refusal_pace.borrow_mut();
        pace.count(self.payer, work);
        if self.is_refused {
            self.client.last_refused.set(Some(pace.round()));
        }
    }
}

impl HttpService {
    /// Has requests go on that waited for this round.
    pub(super) fn begin_round(&self) {
        self.refusal_pace.borrow_mut().next_round(|wake| {
            // Its client may have left.
            let _ = wake.send(());
        });
    }
}

/// The cost of an exchange over HTTP to gate, in bytes of a request of another protocol: some 15 us.
const EXCHANGE: usize = 8 << 10;
