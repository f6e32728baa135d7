//! The discrete-event simulator: virtual time, seeded randomness, the very policies of
//! [`crate::policy`]. The same seed gives the same result, byte for byte.
//!
//! - [`rng`]: seeded streams of random numbers.
//! - [`parallel`]: independent runs on all cores, with progress.
//! - [`plot`]: line charts as SVG.

pub mod parallel;
pub mod plot;
pub mod rng;
