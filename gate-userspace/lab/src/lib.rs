//! The laboratory: policies without a network, and a network without users.
//!
//! - [`sim`]: the discrete-event simulator, which runs the policies that the daemon runs.
//! - [`load`]: the open-loop load generator, and a store to send it to.

pub mod load;
pub mod sim;
