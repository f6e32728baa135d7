//! The control loop: every tick a snapshot of the maps, a decision, and what it changes written back.
//!
//! - [`tables`]: prefixes and ports as blocks that XDP can look up. Pure.
//! - [`addresses`]: the tables of a configuration's addresses and sources. Pure.
//! - [`layout`]: a configuration as elements of the maps. Pure.
//! - [`capacity`], [`occupied`]: the room that it needs, and what is in use.
//! - `parents`: the places of those that are charged with a tenant. Pure.
//! - [`sizes`]: how large the maps are made, and what memory they take. Pure.
//! - [`decide`]: a snapshot in, a plan out. Pure.
//! - [`demand`]: what tenants asked for since the last tick, by the counters that were touched.
//! - [`hot_keys`]: counts what XDP sampled.
//! - [`verdicts`]: counts sampled verdicts by source, and keeps the last.
//! - `cost_sampler`: the cost samples of the workers, for learned prices.
//! - [`watch`]: what is observed of each service's store.
//! - [`board`]: what a tick saw and decided, for whoever shows it.
//! - [`transitions`]: what is shed more or less, in words for the log.
//! - [`tick`]: reads the maps, decides, writes the idle bank, flips the generation.

pub mod addresses;
pub mod board;
pub mod capacity;
mod cost_sampler;
pub mod decide;
pub mod demand;
pub mod hot_keys;
pub mod in_passing;
mod key_limits;
pub mod layout;
pub mod occupied;
mod parents;
mod shared_limits;
pub mod sizes;
pub mod tables;
pub mod tick;
pub mod transitions;
pub mod verdicts;
pub mod watch;
