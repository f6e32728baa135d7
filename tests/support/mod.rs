//! What the suites share: packets, namespaces, real servers.

pub mod privilege;

pub use xtask::lab::net;
