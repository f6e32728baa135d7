//! Clients: their sockets, their input, and the order of their replies.
//!
//! - [`client`], [`conversation`], [`replies`]: one client, its input, and its replies in the order of its requests. Start here.
//! - [`stream`]: its connection, plain or by TLS.
//! - [`timeouts`]: clients that are stuck, slow, idle or not logged in.
//! - [`udp`], [`sender`]: the sockets of datagram services, and the senders of datagrams.
//! - [`handshake`]: TLS, until it is agreed on.
//! - [`proxy_header`]: connections that come by a proxy which names their clients.
//! - [`slots`]: the connections that each tenant's clients may take.
//! - [`memory_budget`]: the memory that all clients hold together, and each tenant's.
//! - [`refused_behind`]: the requests that depend on a refused one before them.
//! - [`refusal_pace`]: how fast clients are read whose requests are refused.
//! - [`task_budget`]: how much work a client's task does before the others of its thread run.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use self::memory_budget::SharedMemory;
use self::slots::Slots;

pub(super) mod client;
pub(super) mod conversation;
pub(super) mod handshake;
pub(super) mod memory_budget;
pub(super) mod proxy_header;
pub(super) mod refusal_pace;
pub(super) mod refused_behind;
pub(super) mod replies;
pub(super) mod sender;
pub(super) mod slots;
pub(super) mod stream;
pub(super) mod task_budget;
pub(super) mod timeouts;

pub(super) mod udp;

/// The bounds that the clients of one service share, in all threads.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedBounds {
    /// The connections of each tenant's clients.
    pub(super) slots: Arc<Slots>,
    /// Their dedicated connections to the store.
    pub(super) dedicated_slots: Arc<Slots>,
    /// The memory that they hold.
    pub(super) memory: Arc<SharedMemory>,
    /// The number of datagrams that are under way.
    pub(super) datagrams: Arc<AtomicUsize>,
}
