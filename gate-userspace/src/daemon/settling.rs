//! A change that gate has put in force, until each thread judges by it: only then is it told to whoever waits for it.

use gate_common::units::Nanos;
use tokio::sync::oneshot;

use super::process::Daemon;
use crate::admin::change::Done;
use crate::clock;
use crate::dispatcher::Dispatcher;

/// A change that threads have yet to take over.
pub(super) struct Settling {
    since: Nanos,
    news: News,
}

/// What is told, and to whom.
pub(super) enum News {
    /// The file has been read again: its generation, and what it has.
    ReadAgain { generation: u64, tenants: usize, services: usize },
    /// An order is carried out.
    CarriedOut(oneshot::Sender<Result<Done, String>>, Done),
}

impl Daemon {
    /// Tells of a change once all threads have taken it over.
    pub(super) fn tell_once_settled(&mut self, news: News) {
        self.settling = Some(Settling { since: clock::monotonic(), news });
        self.settle();
    }

    /// Looks whether the last change has been taken over. Returns true if nothing is under way.
    pub(super) fn settle(&mut self) -> bool {
        let Some(settling) = &self.settling else { return true };
        if self.dispatcher.as_ref().is_none_or(Dispatcher::is_followed) {
            self.tell();
        } else if clock::monotonic().saturating_sub(settling.since) > AT_MOST {
            tracing::warn!("a thread of the dispatcher stands still, and has not taken over the last change");
            self.tell();
        }
        self.settling.is_none()
    }

    /// Tells of the last change, settled or not.
    pub(super) fn tell(&mut self) {
        match self.settling.take().map(|settling| settling.news) {
            Some(News::ReadAgain { generation, tenants, services }) => {
                tracing::info!(generation, tenants, services, "configuration read again");
                self.service_manager.ready();
            }
            // Whoever asked may have left.
            Some(News::CarriedOut(answer, done)) => drop(answer.send(Ok(done))),
            None => {}
        }
    }
}

/// Threads take over what has changed at each tick.
const AT_MOST: Nanos = Nanos::from_secs(2);
