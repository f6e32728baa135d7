//! The machine, as gate sees it: its clock, and its errors in words.
//!
//! - [`clock`]: the only reader of the clock and of entropy.
//! - [`mounts`]: whether this process sees the `/sys` of others.
//! - [`system_error`]: errors of the system in words, with a remedy.

pub mod clock;
pub mod mounts;
pub mod system_error;
