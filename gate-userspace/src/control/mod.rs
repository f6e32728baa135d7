//! The control loop: every tick a snapshot of the maps, a decision, and what it changes written back.
//!
//! - [`tables`]: prefixes and ports as blocks that XDP can look up. Pure.
//! - [`layout`]: a configuration as elements of the maps. Pure.
//! - [`decide`]: a snapshot in, a plan out. Pure.
//! - [`hot_keys`]: counts what XDP sampled.
//! - `lessons`: what the threads have learned about prices.
//! - [`watch`]: what is observed of each service's store.
//! - [`board`]: what a tick saw and decided, for whoever shows it.
//! - [`tick`]: reads the maps, decides, writes the idle bank, flips the generation.

pub mod board;
pub mod decide;
pub mod hot_keys;
pub mod layout;
mod lessons;
pub mod tables;
pub mod tick;
pub mod watch;
