//! A request on its way from one node of a cluster to another.

use std::rc::Rc;

use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::request::InFlight;
use crate::dispatcher::wire::Wire;

/// A request that goes to another node; `C` is a client.
#[derive(Debug)]
pub(super) struct RedirectedRequest<W: Wire, C> {
    pub(super) in_flight: InFlight<Rc<C>, CacheRole>,
    pub(super) request: W::Request,
    /// All of it.
    pub(super) bytes: Vec<u8>,
    /// True if the node takes it for `ASKING` alone.
    pub(super) asks: bool,
}
