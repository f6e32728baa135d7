//! Why connections to the store end.

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use crate::dispatcher::identity::UnreadablePassword;
use crate::protocol::{Refusal, resp};

/// Why a connection to the store ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The system says why.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It was closed at the other end.
    #[error("the store closed the connection")]
    Closed,
    /// An answer took too long.
    #[error("the store did not answer in time")]
    TimedOut,
    /// Others have just found that it does not answer.
    #[error("the store does not answer")]
    Down {
        /// When to come again.
        retry_after: Nanos,
    },
    /// What came makes no sense.
    #[error(transparent)]
    Malformed(#[from] crate::dispatcher::wire::MalformedReply),
    /// It answers, but not as it should.
    #[error("the store is not ready: {0:?}")]
    Unhealthy(String),
    /// It does not accept gate's greeting: its error.
    #[error("the store refuses the user: {}", error_word(.0))]
    Refused(Vec<u8>),
    /// The service's password cannot be read.
    #[error(transparent)]
    Password(#[from] UnreadablePassword),
    /// It sends clients to its other nodes, past gate.
    #[error("the store is in cluster mode, which gate does not support")]
    Cluster,
    /// Its name has never been resolved.
    #[error("the store's name cannot be resolved")]
    Unresolved,
    /// Its name stands for other addresses by now.
    #[error("the store is elsewhere")]
    Moved,
    /// The tenant has as many dedicated connections as it may.
    #[error("the tenant has as many dedicated connections as it may")]
    Limit,
    /// An answer that no request asked for.
    #[error("the store sent an answer that no one asked for")]
    Unasked,
}

impl StoreError {
    /// How a client is refused that cannot have a connection.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Down { retry_after } => Refusal::after(Reason::StoreDown, *retry_after),
            Self::Limit => Refusal::of(Reason::Limit),
            _ => Refusal::of(Reason::StoreDown),
        }
    }
}

/// The first word of an error. More of it might repeat what it is about.
fn error_word(why: &[u8]) -> String {
    String::from_utf8_lossy(resp::error_code(why).unwrap_or_default()).into_owned()
}
