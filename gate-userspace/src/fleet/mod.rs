//! One quota for a fleet of gates.
//!
//! Each limit has an owner, a process (`gate quota run`) that keeps its account in memory. Every gate tells each owner once a
//! tick what it gave out, and is told its share until the next tick ([`crate::policy::fleet_share`]): no request waits.
//!
//! - [`wire`]: the messages, and the version of their meaning.
//! - [`owner`]: the owner's side: accounts, gates and their sessions, the server.
//! - [`show`]: an owner's accounts, for people.
//! - `endpoint`: where an owner is, and how it is spoken to.
//! - [`gate`]: a gate's side: what it has to report, and what it was told.

mod endpoint;
pub mod gate;
pub mod owner;
pub mod show;
pub mod wire;

#[cfg(test)]
mod tests;
