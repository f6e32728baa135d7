//! The queue before the store: admission to it, its order, and its delay.
//!
//! - [`policy`]: the admission policy that all threads of a service share.
//! - [`queue`]: the requests that wait for a concurrency permit.
//! - [`delay`]: the time that requests wait, and the limit to it.

pub(super) mod delay;
pub(super) mod policy;
pub(super) mod tier_queue;
