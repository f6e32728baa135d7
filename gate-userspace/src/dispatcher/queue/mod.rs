//! The queue before the store: admission to it, its order, and its delay.
//!
//! - [`policy`]: the admission policy that all threads of a service share.
//! - [`concurrency`]: how many requests the store gets at once, where that is measured.
//! - [`permits`]: the concurrency permits that all threads of a service share.
//! - [`shares`]: what each tenant may have of a store that cannot do all, likewise.
//! - [`tier_queue`]: the requests that wait for one.
//! - [`delay`]: the time that requests wait, and the limit to it.

pub(super) mod concurrency;
pub(super) mod delay;
pub(super) mod permits;
pub(super) mod policy;
pub(super) mod shares;
pub(super) mod tier_queue;

#[cfg(test)]
mod tests;
