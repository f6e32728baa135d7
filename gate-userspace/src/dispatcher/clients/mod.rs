//! Clients: their sockets, their input, and the order of their replies.
//!
//! - [`client`], [`replies`]: one client, and its replies in the order of its requests. Start here.
//! - [`udp`], [`sender`]: the sockets of datagram services, and the senders of datagrams.
//! - [`proxy_header`]: connections that come by a proxy which says whose they are.
//! - [`slots`]: the connections that each tenant's clients may take.
//! - [`memory_budget`]: the memory that all clients take together.
//! - [`transactions`]: the requests that follow a refused `MULTI`.

pub(super) mod client;
pub(super) mod memory_budget;
pub(super) mod proxy_header;
pub(super) mod replies;
pub(super) mod sender;
pub(super) mod slots;
pub(super) mod transactions;
pub(super) mod udp;
