//! Clients: their sockets, their input, and the order of their replies.
//!
//! - [`client`], [`replies`]: one client, and its replies in the order of its requests. Start here.
//! - [`udp`], [`sender`]: the sockets of datagram services, and the senders of datagrams.
//! - [`proxy_header`]: connections that come by a proxy which says whose they are.
//! - [`slots`]: the connections that each tenant's clients may take.
//! - [`memory_budget`]: the memory that all clients hold together, and each tenant's.
//! - [`transactions`]: the requests that follow a refused `MULTI`.

use std::sync::Arc;

use self::memory_budget::SharedMemory;
use self::slots::Slots;

pub(super) mod client;
pub(super) mod memory_budget;
pub(super) mod proxy_header;
pub(super) mod replies;
pub(super) mod sender;
pub(super) mod slots;
pub(super) mod transactions;
pub(super) mod udp;

/// What the clients of one service share, in all threads.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedBounds {
    /// The connections of each tenant's clients.
    pub(super) slots: Arc<Slots>,
    /// Their dedicated connections to the store.
    pub(super) dedicated_slots: Arc<Slots>,
    /// The memory that they hold.
    pub(super) memory: Arc<SharedMemory>,
}
