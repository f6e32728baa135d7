//! The discrete-event simulator: virtual time, seeded randomness, the very policies of
//! [`crate::policy`]. The same seed gives the same result, byte for byte.
