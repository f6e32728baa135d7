//! Owners and limits in etcd.
//!
//! Agreement is etcd's: who is an owner, what the limits are, and in which order either changed. Only counting is gate's.
//!
//! - `keys`: what lies where, and what is read from it.
//! - `members`: where it is; `error`: why there is nothing from it.
//! - `client`: a connection, and one reading.
//! - `follow`: a view that is kept up to date.
//! - `register`: an owner's key, and the lease that it hangs on.
//! - `apply`: limits from a file.
//!
//! Without the feature `etcd` the functions are there all the same, and say so.

#[cfg(not(feature = "etcd"))]
mod absent;
#[cfg(feature = "etcd")]
mod apply;
#[cfg(feature = "etcd")]
mod client;
mod error;
#[cfg(feature = "etcd")]
mod follow;
#[cfg(feature = "etcd")]
mod keys;
mod members;
#[cfg(feature = "etcd")]
mod register;

#[cfg(not(feature = "etcd"))]
pub use absent::{apply, follow, read, register};
pub use error::{Error, MAX_LIMITS_BYTES};
pub use members::Members;
#[cfg(feature = "etcd")]
pub use {apply::apply, client::read, follow::follow, register::register};
