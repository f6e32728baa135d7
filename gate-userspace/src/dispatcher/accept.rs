//! Clients from a listening socket to the service that serves them, and the end of the socket.
//!
//! Protocols differ in what they do with a connection, and not in how it comes: a service is a [`Front`] to this.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gate_common::units::Nanos;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::clients::handshake::HandshakeError;
use super::clients::proxy_header::{self, PendingHeaders, Rejected};
use super::hot_restart::{Entrance, Phase, SocketGroup, wait_for_phase};
use super::listen;
use super::metrics::{Event, WorkerMetrics};
use super::settings::Settings;
use crate::clock;
use crate::descriptors::is_reserved;
use crate::logging::once_a_minute;

/// A service in one thread, as far as accepting its clients is concerned.
pub(super) trait Front: 'static {
    fn settings(&self) -> &Settings;

    fn metrics(&self) -> &WorkerMetrics;

    /// True if there are as many clients as there may be.
    fn is_full(&self) -> bool;

    /// Connections whose proxy has not said yet whose they are.
    fn pending_headers(&self) -> &PendingHeaders;

    /// Takes a client in.
    ///
    /// # Errors
    ///
    /// Those of its socket.
    fn take_in(self: &Rc<Self>, client: Accepted) -> io::Result<()>;
}

/// A client that has been accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) socket: TcpStream,
    /// The client's address, by the word of a trusted proxy if it comes by one.
    pub(super) source: IpAddr,
    /// True if the connection may begin with a PROXY header that nobody has read.
    pub(super) may_have_header: bool,
}

/// Accepts clients until it is time to close.
pub(super) async fn listen_for_clients<F: Front>(
    listener: tokio::net::TcpListener,
    group: SocketGroup,
    entrance: Entrance,
    service: Rc<F>,
    mut phase: watch::Receiver<Phase>,
) {
    tokio::select! {
        () = accept(&listener, &service, &entrance) => {}
        () = wait_for_phase(&mut phase, Phase::HandingOver) => {}
    }
    // Who comes, and whose handshake is in progress, is accepted by the other gate where it has this very socket.
    let is_shared = service.settings().handed_on.as_ref().is_some_and(|on| on.load(Ordering::Relaxed));
    let hands_over = *phase.borrow() == Phase::HandingOver && !is_shared;
    if hands_over && let Err(error) = hand_over(listener, (group, &entrance), &service).await {
        let service = &service.settings().name;
        tracing::warn!(service, %error, "clients may be cut off while a listening socket is handed over");
    }
}

/// Has new clients wait at the sockets of another gate at the same address, accepts those that wait at this one, and
/// closes it.
async fn hand_over<F: Front>(
    listener: tokio::net::TcpListener,
    (group, entrance): (SocketGroup, &Entrance),
    service: &Rc<F>,
) -> io::Result<()> {
    // This gate has one for each thread, and had them before the other one.
    listen::prefer(&listener, service.settings().threads as u32)?;
    accept_last(&listener, (service, entrance)).await;
    // Where the other gate has fewer threads, or this one is alone, the kernel may still choose this socket.
    listen::begin_no_more(&listener)?;
    accept_last(&listener, (service, entrance)).await;
    let listener = listener.into_std()?;
    if group.leave() {
        listen::prefer(&listener, listen::NO_PLACE)?;
    }
    while let Ok((socket, source)) = listener.accept() {
        socket.set_nonblocking(true)?;
        begin(TcpStream::from_std(socket)?, source.ip().to_canonical(), service, entrance)?;
    }
    Ok(())
}

/// Accepts clients until none has come for the time of a handshake.
async fn accept_last<F: Front>(listener: &tokio::net::TcpListener, (service, entrance): (&Rc<F>, &Entrance)) {
    let end = clock::monotonic().saturating_add(LAST_CLIENTS);
    while clock::monotonic() < end
        && let Ok(accepted) = timeout(HANDSHAKE, listener.accept()).await
    {
        begin_accepted(accepted, service, entrance).await;
    }
}

/// Accepts clients. When many come at once, the thread's other clients go first now and then.
async fn accept<F: Front>(listener: &tokio::net::TcpListener, service: &Rc<F>, entrance: &Entrance) {
    loop {
        for _ in 0..ACCEPTED_AT_ONCE {
            begin_accepted(listener.accept().await, service, entrance).await;
        }
        yield_now().await;
    }
}

/// Serves a client that has been accepted.
async fn begin_accepted<F: Front>(
    accepted: io::Result<(TcpStream, SocketAddr)>,
    service: &Rc<F>,
    entrance: &Entrance,
) {
    let begun =
        accepted.and_then(|(socket, source)| begin(socket, source.ip().to_canonical(), service, entrance));
    if let Err(error) = begun {
        // Out of descriptors or memory: it would fail at once again.
        if once_a_minute(&LAST_WARNING, clock::monotonic()) {
            tracing::warn!(service = service.settings().name, %error, "cannot accept clients; said once a minute");
        }
        tokio::time::sleep(ACCEPT_BACKOFF).await;
    }
}

/// Finds out whose a connection is, and serves it.
fn begin<F: Front>(
    mut socket: TcpStream,
    source: IpAddr,
    service: &Rc<F>,
    entrance: &Entrance,
) -> io::Result<()> {
    if is_reserved(&socket) {
        service.metrics().count(Event::TurnedAway);
        return Ok(());
    }
    let Some(trusted) = &service.settings().backend.trusted else {
        return service.take_in(Accepted { socket, source, may_have_header: false });
    };
    if !trusted.iter().any(|prefix| prefix.contains(&source)) {
        return service.take_in(Accepted { socket, source, may_have_header: true });
    }
    if service.is_full() {
        service.metrics().count(Event::TurnedAway);
        return Ok(());
    }
    let pending = service.pending_headers().add();
    let service = Rc::clone(service);
    let entrance = entrance.another();
    tokio::task::spawn_local(async move {
        // Until it is counted as a client.
        let _entrance = entrance;
        let read = proxy_header::read(&mut socket).await;
        drop(pending);
        match read {
            // If it is gone already, there is nobody to tell.
            Ok(client) => {
                let source = client.unwrap_or(source);
                drop(service.take_in(Accepted { socket, source, may_have_header: false }));
            }
            Err(Rejected::Nothing) => {}
            Err(why) => reject_header(&*service, source, &why),
        }
    });
    Ok(())
}

/// Counts a connection that is closed for its header, and says so now and then.
pub(super) fn reject_header<F: Front>(service: &F, source: IpAddr, why: &Rejected) {
    service.metrics().count(Event::HeaderRejected);
    if once_a_minute(&LAST_REJECTED, clock::monotonic()) {
        let service = &service.settings().name;
        tracing::warn!(service, %source, %why, "closed a connection; said once a minute");
    }
}

/// Counts a connection that is closed for its TLS handshake, and says so now and then.
pub(super) fn reject_handshake<F: Front>(service: &F, source: IpAddr, why: &HandshakeError) {
    if let HandshakeError::Left = why {
        return;
    }
    service.metrics().count(Event::TlsFailed);
    if once_a_minute(&LAST_HANDSHAKE, clock::monotonic()) {
        let service = &service.settings().name;
        tracing::warn!(service, %source, %why, "closed a connection; said once a minute");
    }
}

/// All threads' clients fail alike.
static LAST_WARNING: AtomicU64 = AtomicU64::new(0);
static LAST_REJECTED: AtomicU64 = AtomicU64::new(0);
static LAST_HANDSHAKE: AtomicU64 = AtomicU64::new(0);
/// Accepting and registering one client takes some 25 us.
const ACCEPTED_AT_ONCE: usize = 4;
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// How long the handshakes of connections may take that a socket has begun before it is handed over.
const HANDSHAKE: Duration = Duration::from_millis(100);
/// How long a socket that is handed over accepts at most, before it begins no more connections and after that.
const LAST_CLIENTS: Nanos = Nanos::from_millis(400);
/// The time in which all sockets are handed over.
pub(super) const HAND_OVER: Duration = Duration::from_secs(1);
