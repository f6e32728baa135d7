//! Clients: their sockets, what they have sent, and the order of their replies.
//!
//! - [`client`], [`task`], [`replies`]: one client, what its socket says, and the order of its replies. Start here.
//! - [`datagrams`], [`udp`]: clients that send datagrams, and their sockets; [`own`]: whether one comes from this
//!   machine.
//! - [`alone`]: a client with a connection to the store of its own.
//! - [`large`]: requests that are passed on as they come.
//! - [`telling`], [`refusals`]: what gate itself says, and how soon.
//! - [`transactions`]: what follows a `MULTI` that is refused.
//! - [`memory`]: what all clients hold together, and who is closed if it is too much.

pub(super) mod client;
pub(super) mod datagrams;
pub(super) mod dedicated;
pub(super) mod local_addrs;
pub(super) mod memory_budget;
pub(super) mod refusal_latency;
pub(super) mod replies;
pub(super) mod respond;
pub(super) mod slots;
pub(super) mod streaming;
pub(super) mod task;
pub(super) mod transactions;
pub(super) mod udp;
