//! A change that gate has put in force, until each thread judges by it: only then is it told to whoever waits for it.

use gate_common::units::Nanos;
use tokio::sync::oneshot;

use super::service_manager::ServiceManager;
use crate::admin::change::Done;
use crate::clock;
use crate::dispatcher::Dispatcher;

/// The last change, while threads have yet to take it over.
#[derive(Default)]
pub(super) struct Settling {
    change: Option<Change>,
}

struct Change {
    since: Nanos,
    news: News,
}

/// The news of a change, and whom they are for.
pub(super) enum News {
    /// The file has been read again: its generation, and what it has.
    ReadAgain { generation: u64, tenants: usize, services: usize },
    /// An order is carried out.
    CarriedOut(oneshot::Sender<Result<Done, String>>, Done),
}

impl Settling {
    /// A change is made, of which these are the news. None is under way.
    pub(super) fn begin(&mut self, news: News) {
        self.change = Some(Change { since: clock::monotonic(), news });
    }

    /// Tells of the change if all threads have taken it over. Returns true if none is under way.
    pub(super) fn look(&mut self, dispatcher: Option<&Dispatcher>, manager: &ServiceManager) -> bool {
        let Some(Change { since, .. }) = self.change else { return true };
        if dispatcher.is_none_or(Dispatcher::is_followed) {
            self.tell(manager);
        } else if clock::monotonic().saturating_sub(since) > AT_MOST {
            tracing::warn!("a thread of the dispatcher stands still, and has not taken over the last change");
            self.tell(manager);
        }
        self.change.is_none()
    }

    /// Tells of the change, settled or not.
    pub(super) fn tell(&mut self, manager: &ServiceManager) {
        match self.change.take().map(|change| change.news) {
            Some(News::ReadAgain { generation, tenants, services }) => {
                tracing::info!(generation, tenants, services, "configuration read again");
                manager.ready();
            }
            // Whoever asked may have left.
            Some(News::CarriedOut(answer, done)) => drop(answer.send(Ok(done))),
            None => {}
        }
    }
}

/// Threads take over what has changed at each tick.
const AT_MOST: Nanos = Nanos::from_secs(2);
