//! Clients from a listening socket to their task, and the end of the socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gate_common::units::Nanos;
use nix::sys::socket::{MsgFlags, send};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::clients::client::{CloseCause, ReplySink};
use super::clients::proxy_header::{self, Rejected};
use super::hot_restart::{Phase, SocketGroup, wait_for_phase};
use super::listen;
use super::metrics::Event;
use super::pipeline::service::{Service, Session};
use super::wire::Wire;
use crate::clock;

/// Accepts clients until it is time to close.
pub(super) async fn listen_for_clients<W: Wire>(
    listener: tokio::net::TcpListener,
    group: SocketGroup,
    service: Rc<Service<W>>,
    mut phase: watch::Receiver<Phase>,
) {
    tokio::select! {
        () = accept(&listener, &service) => {}
        () = wait_for_phase(&mut phase, Phase::HandingOver) => {}
    }
    let hands_over = *phase.borrow() == Phase::HandingOver;
    if hands_over && let Err(error) = hand_over(listener, group, &service).await {
        let service = &service.settings.name;
        tracing::warn!(service, %error, "clients may be cut off while a listening socket is handed over");
    }
}

/// Has new clients wait at the sockets of another gate at the same address, accepts those that wait at this one, and
/// closes it.
async fn hand_over<W: Wire>(
    listener: tokio::net::TcpListener,
    group: SocketGroup,
    service: &Rc<Service<W>>,
) -> io::Result<()> {
    // This gate has one for each thread, and had them before the other one.
    listen::prefer(&listener, service.settings.threads as u32)?;
    let end = clock::monotonic().saturating_add(LAST_CLIENTS);
    while clock::monotonic() < end
        && let Ok(accepted) = timeout(HANDSHAKE, listener.accept()).await
    {
        begin_accepted(accepted, service).await;
    }
    let listener = listener.into_std()?;
    // Where the other gate has fewer threads, or this one is alone, the kernel may still choose this socket.
    listen::drop_incoming(&listener)?;
    if group.leave() {
        listen::prefer(&listener, listen::NO_PLACE)?;
    }
    while let Ok((socket, source)) = listener.accept() {
        socket.set_nonblocking(true)?;
        begin(tokio::net::TcpStream::from_std(socket)?, source.ip().to_canonical(), service)?;
    }
    Ok(())
}

/// Accepts clients. When many come at once, the thread's other clients go first now and then.
async fn accept<W: Wire>(listener: &tokio::net::TcpListener, service: &Rc<Service<W>>) {
    loop {
        for _ in 0..ACCEPTED_AT_ONCE {
            begin_accepted(listener.accept().await, service).await;
        }
        yield_now().await;
    }
}

/// Serves a client that has been accepted.
async fn begin_accepted<W: Wire>(
    accepted: io::Result<(tokio::net::TcpStream, SocketAddr)>,
    service: &Rc<Service<W>>,
) {
    let begun = accepted.and_then(|(socket, source)| begin(socket, source.ip().to_canonical(), service));
    if let Err(error) = begun {
        // Out of descriptors or memory: it would fail at once again.
        if is_due(&LAST_WARNING, clock::monotonic()) {
            tracing::warn!(service = service.settings.name, %error, "cannot accept clients; said once a minute");
        }
        tokio::time::sleep(ACCEPT_BACKOFF).await;
    }
}

/// True if a warning that is logged once a minute is due.
fn is_due(last: &AtomicU64, now: Nanos) -> bool {
    let before = last.load(Ordering::Relaxed);
    let is_due = before == 0 || now.saturating_sub(Nanos(before)) >= WARN_EVERY;
    is_due && last.compare_exchange(before, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Finds out whose a connection is, and serves it.
fn begin<W: Wire>(
    mut socket: tokio::net::TcpStream,
    source: IpAddr,
    service: &Rc<Service<W>>,
) -> io::Result<()> {
    let Some(trusted) = &service.settings.backend.trusted else {
        return register(socket, source, service, false);
    };
    if !trusted.iter().any(|prefix| prefix.contains(&source)) {
        return register(socket, source, service, true);
    }
    if service.is_full() {
        service.metrics.count(Event::TurnedAway);
        return Ok(());
    }
    let pending = service.pending_headers.add();
    let service = Rc::clone(service);
    tokio::task::spawn_local(async move {
        let read = proxy_header::read(&mut socket).await;
        drop(pending);
        match read {
            // If it is gone already, there is nobody to tell.
            Ok(client) => drop(register(socket, client.unwrap_or(source), &service, false)),
            Err(Rejected::Nothing) => {}
            Err(why) => reject_header(&service, source, &why),
        }
    });
    Ok(())
}

/// Counts a connection that is closed for its header, and says so now and then.
fn reject_header<W: Wire>(service: &Service<W>, source: IpAddr, why: &Rejected) {
    service.metrics.count(Event::HeaderRejected);
    if is_due(&LAST_REJECTED, clock::monotonic()) {
        let service = &service.settings.name;
        tracing::warn!(service, %source, %why, "closed a connection; said once a minute");
    }
}

/// Takes a client in; `may_have_header` if it may begin with a header that nobody has read.
fn register<W: Wire>(
    socket: tokio::net::TcpStream,
    source: IpAddr,
    service: &Rc<Service<W>>,
    may_have_header: bool,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (mut read, write) = socket.into_split();
    let client = Rc::new(Session::new(ReplySink::Stream(write), source, service));
    if service.is_full() || !client.acquire_connection(service) {
        // A word before it is closed. It may have left; and nobody waits for it to read.
        let fd = client.socket().as_ref().as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = send(fd, &service.refuse_connection(&client), flags);
        return Ok(());
    }
    service.register(&client);
    let service = Rc::clone(service);
    tokio::task::spawn_local(async move {
        if may_have_header {
            let has_header = tokio::select! {
                has_header = proxy_header::begins_with_one(&mut read) => has_header,
                _ = std::future::poll_fn(|cx| client.poll_ended(cx)) => false,
            };
            if has_header {
                reject_header(&service, source, &Rejected::Untrusted);
                client.end(CloseCause::ClientLeft);
            }
        }
        let ended = client.serve(read, Rc::clone(&service)).await;
        service.unregister(ended);
    });
    Ok(())
}

/// All threads' clients fail alike.
static LAST_WARNING: AtomicU64 = AtomicU64::new(0);
static LAST_REJECTED: AtomicU64 = AtomicU64::new(0);
const WARN_EVERY: Nanos = Nanos::from_secs(60);
/// Accepting and registering one client takes some 25 us.
const ACCEPTED_AT_ONCE: usize = 4;
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// How long the handshakes of connections may take that a socket has begun before it is handed over.
const HANDSHAKE: Duration = Duration::from_millis(100);
/// How long a socket that is handed over accepts at most.
const LAST_CLIENTS: Nanos = Nanos::from_millis(500);
/// The time in which all sockets are handed over.
pub(super) const HAND_OVER: Duration = Duration::from_secs(1);
