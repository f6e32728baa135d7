//! The owner of limits: what gates gave out is charged to its accounts, and each gate is told its share.
//!
//! - [`accounts`]: an account for each name in use, within bounds of memory.
//! - [`session`]: one gate's numbers and handles, and what a report does.
//! - [`lease`]: whether it may decide, where owners are found by etcd.
//! - `gates`: the gates that report, by name.
//! - `server`: the streams.
//! - `room`: the memory of their sessions.
//! - `listen`: the port; `places`: how many connections there may be; `handshake` and `connection`: one of them.
//! - `kept`: the file of debts that outlive a restart of all owners and gates.
//! - `counters`: what happened; `totals`: that, and what there is at present.

pub mod accounts;
mod connection;
pub mod counters;
mod gates;
mod handshake;
#[cfg(test)]
mod histories;
mod kept;
pub mod lease;
mod listen;
mod places;
mod room;
mod server;
pub mod session;
mod totals;

pub use connection::is_for;
pub use kept::Kept;
pub use listen::{Port, serve};
pub use places::Bounds;
pub use server::Owner;
pub use totals::{Totals, UsedLimit};
