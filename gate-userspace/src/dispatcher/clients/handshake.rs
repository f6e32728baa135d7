//! The TLS handshake of a client.
//!
//! **Problem.** A handshake costs whoever begins it nothing, and gate memory, a connection and time of a thread. **Rule.** A
//! client that has not ended it is a client of its source like any other: it has a slot of its tenant, or one of those for
//! unknown sources. It has as long as an unknown client has to log in. Steps of handshakes take turns, tenant by tenant, and
//! the time that they take is bounded ([`crate::dispatcher::tls::turns`]).

use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::time::timeout;

use crate::dispatcher::metrics::{Event, WorkerMetrics};
use crate::dispatcher::tls::socket::TlsSocket;
use crate::dispatcher::tls::turns::{Party, Turns};

/// Why a client that should speak TLS is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// Its first byte begins something else.
    #[error("it does not speak TLS")]
    Plain,
    #[error("it did not end its TLS handshake in time")]
    Late,
    #[error("no TLS: {0}")]
    Failed(#[source] io::Error),
    /// The connection has ended before a handshake, as that of a health check does.
    #[error("nothing")]
    Left,
}

/// Takes the handshake of a client, this one, to its end, within `patience`.
///
/// # Errors
///
/// [`HandshakeError`].
pub(crate) async fn complete(
    socket: &TlsSocket,
    turns: (&Turns, Party),
    metrics: &WorkerMetrics,
    patience: Duration,
) -> Result<(), HandshakeError> {
    let steps = async {
        if !socket.begins_as_tls().await? {
            return Err(HandshakeError::Plain);
        }
        Ok(socket.handshake(Some(turns), || metrics.count(Event::HandshakePaused)).await?)
    };
    timeout(patience, steps).await.unwrap_or(Err(HandshakeError::Late))
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Self::Left,
            _ => Self::Failed(error),
        }
    }
}
