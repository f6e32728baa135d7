//! The beginning of a connection: plain text or TLS, as the owner wants it, and an answer to who speaks the other one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::connection::Socket;

/// A socket that may carry HTTP/2, and the certificate that its peer has shown.
pub(super) type Begun = (Box<dyn Socket>, Option<CertificateDer<'static>>);

/// Why a connection does not begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("it speaks plain text, and this owner TLS alone")]
    PlainText,
    #[error("it speaks TLS, and this owner has no certificate: quota.tls")]
    Tls,
    #[error("{0}")]
    Handshake(io::Error),
    /// The peer has left.
    #[error("it has left")]
    Left,
}

/// Has the peer begin, who is told if it is refused.
pub(super) async fn begin(socket: TcpStream, tls: Option<Arc<ServerConfig>>) -> Result<Begun, Refused> {
    let mut first = [0];
    // Answers are awaited one by one.
    let _ = socket.set_nodelay(true);
    if !socket.peek(&mut first).await.is_ok_and(|len| len > 0) {
        return Err(Refused::Left);
    }
    match (tls, first == [HANDSHAKE]) {
        (None, false) => Ok((Box::new(socket), None)),
        (None, true) => {
            say(socket, HANDSHAKE_FAILURE).await;
            Err(Refused::Tls)
        }
        (Some(_), false) => {
            say(socket, INADEQUATE_SECURITY).await;
            Err(Refused::PlainText)
        }
        (Some(tls), true) => match TlsAcceptor::from(tls).accept(socket).into_fallible().await {
            Ok(socket) => {
                let certificates = socket.get_ref().1.peer_certificates();
                let own = certificates.and_then(|certificates| certificates.first()).cloned();
                Ok((Box::new(socket), own))
            }
            Err((error, socket)) => {
                // The alert has been sent.
                say(socket, &[]).await;
                Err(Refused::Handshake(error))
            }
        },
    }
}

/// Says last words, and waits for the peer to leave: what it has sent and nobody has read would have them lost.
async fn say(mut socket: impl AsyncRead + AsyncWrite + Unpin, words: &[u8]) {
    let said = async {
        socket.write_all(words).await?;
        socket.shutdown().await?;
        tokio::io::copy(&mut socket.take(MOST_UNREAD), &mut tokio::io::sink()).await
    };
    // Whoever does not want to know need not.
    let _ = timeout(LAST_WORDS, said).await;
}

/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 22;
/// An alert of TLS: `handshake_failure`.
const HANDSHAKE_FAILURE: &[u8] = &[21, 3, 3, 0, 2, 2, 40];
/// Frames of HTTP/2: SETTINGS without any, and GOAWAY with the error `INADEQUATE_SECURITY`.
const INADEQUATE_SECURITY: &[u8] =
    &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12];
const LAST_WORDS: Duration = Duration::from_secs(1);
const MOST_UNREAD: u64 = 64 << 10;
