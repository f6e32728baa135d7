//! Connections to the store.
//!
//! - [`pool`]: those that clients of one identity share, and which of them a request takes. Start here.
//! - [`store`], [`outstanding`]: a shared connection, and what is on its way over it.
//! - [`mod@line`]: a new connection, being set up.
//! - [`access`]: whether clients are let in that do not say who they are.
//! - [`health`]: whether it is worth a request; [`broken`]: why it ended.

pub(super) mod access;
pub(super) mod connection;
pub(super) mod dedicated;
pub(super) mod error;
pub(super) mod health;
pub(super) mod outstanding;
pub(super) mod pool;
