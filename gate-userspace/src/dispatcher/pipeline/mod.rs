//! The pipeline: every step that a request passes, from its bytes to its reply.
//!
//! [`service::Service`] binds the rooms of the dispatcher together for one proxied service in one thread, and
//! [`service::Session`] is one of its clients. This folder holds their only `impl`s: one file for each step.
//!
//! 1. [`accepted`] takes a client in. [`client_task`] reads from a client, and [`decode`] takes the requests out of its input; [`datagrams`] does so for
//!    datagrams.
//! 2. [`request`]: each step of a decoded request. [`login`]: a request that may change the user.
//! 3. [`crate::dispatcher::admission`]: charge, admission policy, permit and queue, for requests of every kind.
//!    [`dispatch`]: the requests that leave the queue for the store.
//! 4. [`complete`]: replies and failures of the store, and the ends of flights of hot keys. [`respond`]: gate's own replies,
//!    and writing to clients.
//!
//! [`dedicated`], [`dedicated_requests`] and [`streaming`] take the requests that need a store connection for themselves.
//! [`explain`] follows a request without effect. [`registry`] has the limits of clients, [`session`] their tenants. [`store_access`] and [`housekeeping`] are periodic work.

mod accepted;
mod charging;
mod client_socket;
mod client_task;
mod complete;
pub(super) mod datagrams;
mod decode;
mod dedicated;
mod dedicated_input;
mod dedicated_requests;
mod dispatch;
mod exchange;
mod explain;
mod flights;
mod housekeeping;
mod joined;
mod key_sizes;
mod login;
pub(super) mod nodes;
mod pending_logins;
mod presented;
mod queue_item;
mod redirect_guard;
mod redirected_request;
mod redirections;
mod registry;
mod request;
mod respond;
mod senders;
pub(super) mod service;
mod session;
pub(super) mod store_access;
mod streamed_request;
mod streaming;
