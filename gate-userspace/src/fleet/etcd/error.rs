//! Why there is nothing from etcd.

#[cfg(feature = "etcd")]
use crate::fleet::endpoint::with_causes;

/// Why there is nothing from etcd.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection, or it broke.
    #[error("etcd: {}", words(.0))]
    #[cfg(feature = "etcd")]
    Etcd(etcd_client::Error),
    /// The members say nothing.
    #[error("etcd did not answer in time")]
    Silent,
    /// The stream of changes ended.
    #[error("etcd has ended the stream of changes: {0}")]
    Ended(String),
    /// The lease is over.
    #[error("the lease is over")]
    LeaseOver,
    /// An answer that is none.
    #[error("etcd answered without a revision")]
    NoRevision,
    /// Somebody else applied limits meanwhile.
    #[error(
        "the limits in etcd are those of revision {found}, not {expected}: somebody else has applied some meanwhile. \
         See that nothing of theirs is lost, and apply again"
    )]
    Conflict {
        /// The revision that was expected; 0 for none.
        expected: u64,
        /// The revision that is there; 0 for none.
        found: u64,
    },
    /// More than etcd takes.
    #[error("{0} bytes of limits: etcd keeps at most {MAX_LIMITS_BYTES}")]
    TooLong(usize),
    /// Not built in.
    #[error("this gate was built without the feature etcd")]
    Absent,
}

/// The words of an error, once: by itself it prints its causes as well, and everything that it knows of a refusal.
#[cfg(feature = "etcd")]
fn words(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) => status.message().to_owned(),
        etcd_client::Error::TransportError(error) => with_causes(error),
        error => error.to_string(),
    }
}

/// The most that limits may be, in bytes: etcd refuses requests from 1.5 MiB on.
pub const MAX_LIMITS_BYTES: usize = 1 << 20;
