//! `[envoy]`: a gRPC server that Envoys ask whether their requests may pass.
//!
//! The server speaks `envoy.service.ratelimit.v3` (each request is asked about) and `envoy.service.rate_limit_quota.v3` (an Envoy is told which
//! share of a limit it may give out by itself). It has a thread of its own, so nothing that a peer does holds up a tick.
//!
//! - `server`, `connection`: the thread, its listener and connections, a bounded number of them.
//! - `decide`: one request; `descriptor`, `status`: what it asks, and how it is answered.
//! - `streams`: streams of usage reports; `shares`: who of them gets which share of a limit.
//! - `counters`: what was counted; `wire`: the messages and services of both protocols.

mod connection;
mod counters;
mod decide;
mod descriptor;
mod server;
mod shares;
mod status;
mod streams;
pub mod wire;

pub use counters::{Counters, Event};
pub use server::{Listener, Server};
