//! Owners and limits in etcd.
//!
//! Agreement is etcd's: who is an owner, what the limits are, and in which order either changed. Only counting is gate's.
//!
//! - `keys`: what lies where, and what is read from it.
//! - `members`: where it is; `error`: why there is nothing from it.
//! - `api`: etcd's messages, and the code that is generated from them; `calls`: a client of a member, and what it asks.
//! - `client`: a connection, and one reading.
//! - `follow`: a view that is kept up to date.
//! - `register`: an owner's key, and the lease that it hangs on.
//! - `apply`: limits from a file.

mod api;
mod apply;
mod calls;
mod client;
mod error;
mod follow;
mod keys;
mod members;
mod register;

pub use apply::apply;
pub use client::read;
pub use error::{Error, MAX_LIMITS_BYTES};
pub use follow::follow;
pub use members::Members;
pub use register::register;
