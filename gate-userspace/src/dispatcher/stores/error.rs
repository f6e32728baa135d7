//! The causes of the end of connections to the store.

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use crate::dispatcher::identity::UnreadablePassword;
use crate::protocol::{Refusal, resp};

/// The cause of the end of a connection to the store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The system's error.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// There is no TLS with the store, most likely for its certificate.
    #[error("no TLS with the store: {0}")]
    Tls(#[source] std::io::Error),
    /// The store closed the connection.
    #[error("the store closed the connection")]
    Closed,
    /// The store took too long for an answer.
    #[error("the store did not answer in time")]
    TimedOut,
    /// Earlier connections have just found that the store does not answer.
    #[error("the store does not answer")]
    Down {
        /// The time after which to try again.
        retry_after: Nanos,
    },
    /// The store's reply is malformed.
    #[error(transparent)]
    Malformed(#[from] crate::dispatcher::wire::MalformedReply),
    /// The store takes no more clients: its error.
    #[error("the store takes no more clients")]
    Full(Vec<u8>),
    /// The store answers, but is not ready.
    #[error("the store is not ready: {0:?}")]
    Unhealthy(String),
    /// The store does not accept gate's greeting: its error.
    #[error("the store refuses the user: {}", error_word(.0))]
    Refused(Vec<u8>),
    /// The service's password cannot be read.
    #[error(transparent)]
    Password(#[from] UnreadablePassword),
    /// The store is in cluster mode: it would send clients to its other nodes, past gate.
    #[error("the store is in cluster mode, which gate does not support")]
    Cluster,
    /// The store is not in cluster mode, as it should be.
    #[error("the store is not in cluster mode, and the service has cluster = \"on\"")]
    NoCluster,
    /// The slots that a node of a cluster says cannot be used.
    #[error("the slots that it says cannot be used: {0}")]
    BadSlots(String),
    /// The store's name has never been resolved.
    #[error("the store's name cannot be resolved")]
    Unresolved,
    /// The store's name stands for other addresses now.
    #[error("the store is elsewhere")]
    Moved,
    /// The tenant has as many dedicated connections as it may.
    #[error("the tenant has as many dedicated connections as it may")]
    Limit,
    /// The store sent an answer that no request asked for.
    #[error("the store sent an answer that no one asked for")]
    Unasked,
}

impl StoreError {
    /// True if a connection that there was has ended.
    pub(crate) fn is_cut_off(&self) -> bool {
        use std::io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof,
        };
        let ends = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
        match self {
            Self::Closed => true,
            Self::Io(error) => ends.contains(&error.kind()),
            Self::Tls(_)
            | Self::TimedOut
            | Self::Down { .. }
            | Self::Malformed(_)
            | Self::Full(_)
            | Self::Unhealthy(_)
            | Self::Refused(_)
            | Self::Password(_)
            | Self::Cluster
            | Self::NoCluster
            | Self::BadSlots(_)
            | Self::Unresolved
            | Self::Moved
            | Self::Limit
            | Self::Unasked => false,
        }
    }

    /// True if the store has said something, be it an error.
    pub(crate) fn shows_life(&self) -> bool {
        match self {
            Self::Malformed(_)
            | Self::Full(_)
            | Self::Unhealthy(_)
            | Self::Refused(_)
            | Self::Cluster
            | Self::NoCluster
            | Self::BadSlots(_)
            | Self::Unasked => true,
            Self::Io(_)
            | Self::Tls(_)
            | Self::Closed
            | Self::TimedOut
            | Self::Down { .. }
            | Self::Password(_)
            | Self::Unresolved
            | Self::Moved
            | Self::Limit => false,
        }
    }

    /// The error of the store's own that a client reads which cannot have a connection.
    pub(crate) fn words(&self) -> Option<&[u8]> {
        match self {
            Self::Refused(words) | Self::Full(words) => Some(words),
            Self::Io(_)
            | Self::Tls(_)
            | Self::Closed
            | Self::TimedOut
            | Self::Down { .. }
            | Self::Malformed(_)
            | Self::Unhealthy(_)
            | Self::Password(_)
            | Self::Cluster
            | Self::NoCluster
            | Self::BadSlots(_)
            | Self::Unresolved
            | Self::Moved
            | Self::Limit
            | Self::Unasked => None,
        }
    }

    /// The refusal of a client that cannot have a connection.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Down { retry_after } => Refusal::after(Reason::StoreDown, *retry_after),
            Self::Limit => Refusal::of(Reason::Limit),
            Self::Io(_)
            | Self::Tls(_)
            | Self::Closed
            | Self::TimedOut
            | Self::Malformed(_)
            | Self::Full(_)
            | Self::Unhealthy(_)
            | Self::Refused(_)
            | Self::Password(_)
            | Self::Cluster
            | Self::NoCluster
            | Self::BadSlots(_)
            | Self::Unresolved
            | Self::Moved
            | Self::Unasked => Refusal::of(Reason::StoreDown),
        }
    }
}

/// The first word of an error. More of it might repeat what it is about.
fn error_word(why: &[u8]) -> String {
    String::from_utf8_lossy(resp::error_code(why).unwrap_or_default()).into_owned()
}
