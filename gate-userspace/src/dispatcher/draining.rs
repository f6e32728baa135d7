//! The end of a dispatcher that another gate takes over from, or that is told to end: its clients are served to theirs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gate_common::units::Nanos;

use super::hot_restart::Phase;
use super::{Dispatcher, LAST_WAIT, LOOK_EVERY, accept};

impl Dispatcher {
    /// Another gate is about to rule: from now on no answer is given twice here, and soon nothing is counted where that
    /// one counts.
    pub fn start_draining(&self) {
        self.shared.iter().for_each(|service| service.hot.versions.suspend());
        self.close_caches();
        self.wait_for_phase(Phase::Draining);
    }

    /// Leaves the caches to the other gate; what is asked of them here goes to the stores from now on.
    fn close_caches(&self) {
        self.shared.iter().filter_map(|service| service.cache.as_ref()).for_each(|cache| cache.leave());
    }

    /// Accepts no more clients; those that are here are served.
    pub fn close(&self) {
        self.close_caches();
        self.wait_for_phase(Phase::NotAccepting);
        tracing::info!("draining: no new connections");
    }

    /// Closes the connections of clients on which nothing is under way, now and as they come to be so.
    pub fn close_idle(&self) {
        self.wait_for_phase(Phase::ClosingIdle);
    }

    /// Its threads never go back.
    fn wait_for_phase(&self, phase: Phase) {
        self.phase.send_modify(|reached| *reached = phase.max(*reached));
    }

    /// Serves the clients that are here to their end. After `patience` connections are closed on which nothing is
    /// asked, and soon the rest. The other gate listens within a second, with these sockets or with `other_sockets`; if
    /// interception is `handed_on`, with those of intercepted services in any case.
    pub async fn drain(&self, patience: Nanos, other_sockets: bool, handed_on: bool) {
        tokio::time::sleep(OVERLAP).await;
        let intercepted = self.shared.iter().filter_map(|service| service.settings.handed_on.as_ref());
        intercepted.for_each(|on| on.store(handed_on, Ordering::Relaxed));
        if other_sockets {
            self.wait_for_phase(Phase::HandingOver);
            tokio::time::sleep(accept::HAND_OVER).await;
        }
        self.close();
        if tokio::time::timeout(patience.into(), self.all_clients_closed()).await.is_err() {
            self.close_idle();
            let _ = tokio::time::timeout(LAST_WAIT, self.all_clients_closed()).await;
        }
    }

    /// True if a client is connected, or a datagram unanswered.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        let datagrams = || self.shared.iter().map(|service| service.bounds.datagrams.load(Ordering::Relaxed));
        self.clients() > 0 || datagrams().sum::<usize>() > 0
    }

    /// True if nobody is to be served any more: no client is connected or about to be, and no datagram unanswered. Holds for good once
    /// clients are no longer accepted.
    #[must_use]
    pub fn has_served_all(&self) -> bool {
        self.entrances.are_closed() && !self.is_serving()
    }

    /// Waits for the clients here, and for those of the predecessor: the successor, which knows only of this gate, must not
    /// take itself for the only one before that.
    async fn all_clients_closed(&self) {
        while !self.has_served_all()
            || self.live_predecessor.as_ref().is_some_and(|live_predecessor| !live_predecessor.is_gone())
        {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Another gate has all its sockets by then.
const OVERLAP: Duration = Duration::from_secs(1);
