//! Why there is nothing from etcd.

use gate_system::system_error::with_causes;

/// Why there is nothing from etcd.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The member refuses, or there is no connection to it. Without everything else that the status knows, its own words among it.
    #[error("etcd: {}", .0.message())]
    Etcd(tonic::Status),
    /// The URL or the certificates are none.
    #[error("etcd: {}", with_causes(.0))]
    Endpoint(tonic::transport::Error),
    /// The members say nothing.
    #[error("etcd did not answer in time")]
    Silent,
    /// A stream ended, with the reason.
    #[error("etcd has ended a stream: {0}")]
    Ended(String),
    /// The lease is over.
    #[error("the lease is over")]
    LeaseOver,
    /// An answer that is none.
    #[error("etcd answered without a revision")]
    NoRevision,
    /// A change that is neither a value nor a deletion.
    #[error("etcd tells of a change of the kind {0}, which this gate does not know")]
    UnknownChange(i32),
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
}

/// The most that limits may be, in bytes: etcd refuses requests from 1.5 MiB on.
pub const MAX_LIMITS_BYTES: usize = 1 << 20;
