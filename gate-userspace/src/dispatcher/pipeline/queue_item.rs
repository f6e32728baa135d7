//! A request in the queue before the store.

use std::rc::Rc;

use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::request::{Charged, InFlight};
use crate::dispatcher::wire::Wire;

/// A request in the queue; `C` is its client.
#[derive(Debug)]
pub(crate) enum QueueItem<W: Wire, C> {
    /// One that goes over a shared connection.
    Shared { in_flight: InFlight<Rc<C>, CacheRole>, request: W::Request },
    /// One that stays with its client, and goes over its dedicated connection.
    Dedicated {
        client: Rc<C>,
        charged: Charged,
        /// True if it is not refused, however long it waits.
        must_run: bool,
    },
}
