//! Code that gate's eBPF program, its daemon and its simulator share.
//!
//! - [`units`]: quantities with their unit in the type.
//! - [`token_bucket`]: the one integer rate limiter, run by all three.
//! - [`abi`]: the layout of every eBPF map, the counters and the reasons.
//!
//! Invariants: no `std`, no allocation, no floating point, no `unsafe`, no clock.

#![no_std]
#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

pub mod abi;
pub mod token_bucket;
pub mod units;
