//! HTTP, as far as gate decides on a request by its head: which route it takes, where its client is, and how a refusal
//! is answered. Messages are read and written by a library; this is the part that is gate's own.

pub mod forwarded;
pub mod path;
pub mod refusal;
pub mod routes;
