//! The owner of limits: what gates gave out is charged to its accounts, and each gate is told its share.
//!
//! - [`accounts`]: an account for each name in use, within bounds of memory.
//! - [`session`]: one gate's numbers and handles, and what a report does.
//! - `gates`: the gates that report, by name.
//! - `server`: the streams; `listen`: the port.
//! - `counters`: what happened.

pub mod accounts;
pub mod counters;
mod gates;
mod listen;
mod server;
pub mod session;

pub use listen::serve;
pub use server::Owner;
