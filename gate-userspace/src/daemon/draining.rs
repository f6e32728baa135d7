//! SIGTERM: the clients of proxied services are served to their end before gate detaches.
//!
//! Meanwhile everything goes on as before, the program at the interface and the tick included, but for new clients,
//! who are no longer accepted.

use gate_common::units::Nanos;

use super::Daemon;
use crate::clock;
use crate::dispatcher::{Dispatcher, LAST_WAIT};

/// How far it has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draining {
    /// When connections are closed on which nothing is under way, and when the rest are.
    close_idle_at: Nanos,
    end_at: Nanos,
}

impl Daemon {
    /// Begins to drain; false if there is nothing to wait for, or it was told so before.
    pub(super) fn drain(&mut self) -> bool {
        let Some(dispatcher) = self.dispatcher.as_ref().filter(|dispatcher| dispatcher.clients() > 0) else {
            return false;
        };
        if self.draining.is_some() {
            tracing::warn!(left = dispatcher.clients(), "told to end again: ending with clients left");
            return false;
        }
        let (patience, clients) = (self.changes.config().gate.drain, dispatcher.clients());
        tracing::info!(clients, at_most = %patience, "draining: a second SIGTERM ends it");
        dispatcher.close();
        let close_idle_at = clock::monotonic().saturating_add(patience);
        let last_wait = Nanos(u64::try_from(LAST_WAIT.as_nanos()).unwrap_or(u64::MAX));
        self.draining = Some(Draining { close_idle_at, end_at: close_idle_at.saturating_add(last_wait) });
        true
    }

    /// True if all clients have left, or may be left.
    pub(super) fn has_drained(&self) -> bool {
        let (Some(draining), Some(dispatcher)) = (self.draining, &self.dispatcher) else { return false };
        let (now, left) = (clock::monotonic(), Dispatcher::clients(dispatcher));
        if left == 0 {
            tracing::info!("drained");
            return true;
        }
        if now >= draining.close_idle_at {
            dispatcher.close_idle();
        }
        if now >= draining.end_at {
            tracing::warn!(left, "drain timeout: closing open connections");
        }
        now >= draining.end_at
    }
}
