//! Connections to the store.
//!
//! - [`pool`]: the connections that clients of one identity share, and the choice among them. Start here.
//! - [`pool_identity`]: the identity of a pool's clients.
//! - [`connection`], [`outstanding`]: one shared connection, and the requests on their way over it.
//! - [`idle_connections`], [`dedicated`]: connections for one client each; those that wait to be used again.
//! - [`socket`]: a connection, plain, by TLS or at a Unix socket.
//! - [`events`]: the trait through which they report to the pipeline.
//! - [`health`]: the circuit breaker of a connection; [`error`]: the reasons why one ended.

pub(super) mod connection;
pub(super) mod dedicated;
pub(super) mod error;
pub(super) mod events;
pub(super) mod health;
pub(super) mod idle_connections;
pub(super) mod outstanding;
pub(super) mod pool;
pub(super) mod pool_identity;
pub(super) mod socket;
