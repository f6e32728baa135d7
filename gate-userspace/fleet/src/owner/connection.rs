//! One connection of a peer, after its handshake.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::{CertificateDer, DnsName, ServerName};
use rustls::server::ParsedCertificate;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use super::counters::{Counters, Event};
use super::places::Place;

/// A socket, in plain text or not.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// The peer at the other end, which each of its requests carries.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// True if it is on the owner's own machine.
    pub(super) is_local: bool,
    /// `None` in plain text, where a peer is believed.
    pub(super) certificate: Option<CertificateDer<'static>>,
    pub(super) place: Place,
}

impl Peer {
    /// True if it may call itself so.
    pub(super) fn is(&self, name: &str) -> bool {
        self.certificate.as_ref().is_none_or(|certificate| is_for(certificate, name))
    }
}

/// True if a certificate is for a DNS name, by one of its alternative names.
#[must_use]
pub fn is_for(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let Ok(name) = DnsName::try_from(name) else { return false };
    let verified = ParsedCertificate::try_from(certificate)
        .and_then(|parsed| rustls::client::verify_server_name(&parsed, &ServerName::DnsName(name)));
    verified.is_ok()
}

/// The end of a connection that has to end: at a time if it is idle then, or because its place is closed.
#[derive(Debug)]
pub(super) struct End {
    pub(super) closed: oneshot::Receiver<()>,
    /// `None` once a gate reports.
    pub(super) idle_until: Option<Pin<Box<Sleep>>>,
    pub(super) place: Place,
    pub(super) counters: Arc<Counters>,
}

impl Future for End {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Pin::new(&mut self.closed).poll(context).is_ready() {
            return Poll::Ready(());
        }
        let is_over = |until: &mut Pin<Box<Sleep>>| until.as_mut().poll(context).is_ready();
        if self.idle_until.as_mut().is_some_and(is_over) {
            self.idle_until = None;
            if self.place.is_idle() {
                self.counters.count(Event::Silent);
                self.place.close();
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.place.close();
    }
}

/// A connection with a place among so many.
pub(super) struct Connection {
    pub(super) socket: Box<dyn Socket>,
    pub(super) peer: Peer,
    pub(super) end: End,
}

impl Connection {
    /// An error once it has to end, whatever is under way.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let has_ended = self.end.closed.is_terminated() || Pin::new(&mut self.end).poll(context).is_ready();
        if has_ended { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.socket).poll_read(context, bytes)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
