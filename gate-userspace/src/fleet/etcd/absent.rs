//! The functions of a gate without etcd, which say so.

use std::net::SocketAddr;

use super::error::Error;
use super::members::Members;
use crate::fleet::membership::{Source, View};
use crate::fleet::owner::lease::LeaseKeeper;

/// Does nothing, for ever: no configuration without the feature leads here.
pub async fn follow(_: Members, _: Source) {
    std::future::pending().await
}

/// As [`follow`].
pub async fn register(_: Members, _: SocketAddr, _: LeaseKeeper, _: impl Future<Output = ()>) {
    std::future::pending().await
}

/// Nothing.
///
/// # Errors
///
/// [`Error::Absent`].
pub async fn read(_: &Members) -> Result<View, Error> {
    Err(Error::Absent)
}

/// Nothing.
///
/// # Errors
///
/// [`Error::Absent`].
pub async fn apply(_: &Members, _: &str, _: Option<u64>) -> Result<u64, Error> {
    Err(Error::Absent)
}
