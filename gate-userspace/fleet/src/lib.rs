//! One quota for a fleet of gates.
//!
//! Each limit has an owner, a process (`gate quota run`) that keeps its account in memory. Every gate tells each owner once a
//! tick what it gave out, and is told its share until the next tick ([`gate_policy::fleet_share`]): no request waits.
//!
//! - [`membership`]: who the owners are, and what the limits are, as a process knows it; [`etcd`]: how it knows.
//! - `rendezvous`: which of the owners owns a name.
//! - [`wire`]: the messages, and the version of their meaning.
//! - [`owner`]: the owner's side: accounts, gates and their sessions, the server.
//! - [`show`]: an owner's accounts, for people.
//! - `endpoint`: where an owner is, and how it is spoken to.
//! - [`gate`]: a gate's side: what it has to report, and what it was told.

mod dns;
mod endpoint;
pub mod etcd;
pub mod gate;
pub mod membership;
pub mod owner;
mod rendezvous;
pub mod show;
pub mod wire;

#[cfg(test)]
mod tests;
