//! The discrete-event simulator: virtual time, seeded randomness, the very policies of
//! [`gate_policy`]. The same seed gives the same result, byte for byte.
//!
//! - [`bouncer`]: the published study of admission policies.
//! - [`goodput`]: overloads without objectives.
//! - [`hotkeys`]: how well the heaviest keys are found.
//! - [`overload`]: a store that becomes slow for a while, and who gives way.
//! - [`quota`]: how exact each rate-limiting scheme is.
//! - [`coldstart`]: admission before anything is known, and after a lull.
//! - [`concurrency`]: how many requests a store gets at once.
//! - [`cost`]: a limit on requests beside a limit on request units.
//! - [`scenario`]: what it simulates, from a file or as published.
//! - [`engine`]: its event loop.
//! - [`distribution`]: processing times.
//! - [`rng`]: seeded streams of random numbers.
//! - [`parallel`]: independent runs on all cores, with progress.
//! - [`plot`]: line charts as SVG.

pub mod bouncer;
pub mod coldstart;
pub mod concurrency;
pub mod cost;
pub mod distribution;
pub mod engine;
pub mod goodput;
pub mod hotkeys;
pub mod overload;
pub mod parallel;
pub mod plot;
pub mod quota;
pub mod rng;
pub mod scenario;
