//! The discrete-event simulator: virtual time, seeded randomness, the very policies of
//! [`crate::policy`]. The same seed gives the same result, byte for byte.
//!
//! - [`rng`]: seeded streams of random numbers.
//! - [`plot`]: line charts as SVG.

pub mod plot;
pub mod rng;
