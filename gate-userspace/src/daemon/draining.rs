//! SIGTERM: the clients of proxied services are served to their end before gate detaches.
//!
//! Meanwhile everything goes on as before, the program at the interface and the tick included, but for new clients,
//! who are no longer accepted.

use gate_common::units::Nanos;

use crate::clock;
use crate::dispatcher::{Dispatcher, LAST_WAIT};

/// How far it has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draining {
    /// When connections are closed on which nothing is under way, and when the rest are.
    close_idle_at: Nanos,
    end_at: Nanos,
}

impl Draining {
    /// Closes the listening sockets; `None` if there is nobody to wait for, at most for `patience`.
    pub(super) fn start(dispatcher: &Dispatcher, patience: Nanos) -> Option<Self> {
        if !dispatcher.is_serving() {
            return None;
        }
        let clients = dispatcher.clients();
        tracing::info!(clients, at_most = %patience, "draining: a second SIGTERM ends it");
        dispatcher.close();
        let close_idle_at = clock::monotonic().saturating_add(patience);
        let last_wait = Nanos(u64::try_from(LAST_WAIT.as_nanos()).unwrap_or(u64::MAX));
        Some(Self { close_idle_at, end_at: close_idle_at.saturating_add(last_wait) })
    }

    /// True if all clients have left, or may be left. Closes idle connections when it is time.
    pub(super) fn is_over(self, dispatcher: &Dispatcher) -> bool {
        let now = clock::monotonic();
        let left = dispatcher.clients();
        if dispatcher.has_served_all() {
            tracing::info!("drained");
            return true;
        }
        if now >= self.close_idle_at {
            dispatcher.close_idle();
        }
        if now >= self.end_at {
            tracing::warn!(left, "drain timeout: closing open connections");
        }
        now >= self.end_at
    }
}
