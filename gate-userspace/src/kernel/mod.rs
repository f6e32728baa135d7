//! The kernel boundary: the only user of aya.

pub mod object;
