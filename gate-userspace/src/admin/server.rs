//! The thread that answers, and the clients of its listeners: few at a time, each for a few seconds.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use gate_common::units::Nanos;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::SndBuf;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::change::Peer;
use super::events::Stalled;
use super::http::{Access, Viewing, owner_router, port_router, router};
use super::metrics::{Metrics, OwnerMetrics};
use super::socket::Socket;
use super::sources::Sources;
use super::tcp::Rules;
use crate::clock;
use crate::dispatcher::prefer_socket;
use crate::fleet::owner::Owner;
use crate::logging::once_a_minute;

/// The thread that answers. Dropping it lets those be answered that have asked, for a second at most, ends it, and
/// removes the sockets.
#[derive(Debug)]
pub struct Server {
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _sockets: Vec<Socket>,
}

/// The places where a server listens.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Unix sockets, with the rights that each gives.
    pub sockets: Vec<(Socket, Access)>,
    /// A TCP port, and its rules.
    pub port: Option<(TcpListener, Rules)>,
}

impl Listeners {
    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty() && self.port.is_none()
    }
}

impl Server {
    /// Starts answering.
    ///
    /// # Errors
    ///
    /// If there is no room for another thread.
    pub fn start(listeners: Listeners, context: Sources) -> io::Result<Self> {
        let Listeners { sockets, port } = listeners;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let context = Arc::new(context);
        let metrics = Arc::new(Metrics::new(Arc::clone(&context)));
        let (stop, stopped) = watch::channel(());
        let viewing = Viewing { events: Arc::default(), history: Arc::default(), stopped: stopped.clone() };
        let mut tasks = JoinSet::new();
        for (socket, access) in &sockets {
            let _entered = runtime.enter();
            let listener = tokio::net::UnixListener::from_std(socket.listener()?)?;
            let router = router(Arc::clone(&context), Arc::clone(&metrics), viewing.clone(), *access);
            tasks.spawn_on(serve(listener, router, stopped.clone()), runtime.handle());
        }
        if let Some((listener, rules)) = port {
            let _entered = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let router = port_router(Arc::clone(&context), Arc::clone(&metrics), viewing.clone(), rules);
            tasks.spawn_on(serve(listener, router, stopped.clone()), runtime.handle());
        }
        let recorder = Arc::clone(&viewing.history);
        tasks.spawn_on(recorder.record(Arc::clone(&context), stopped.clone()), runtime.handle());
        tasks.spawn_on(look(context, metrics, stopped), runtime.handle());
        let sockets = sockets.into_iter().map(|(socket, _)| socket).collect();
        Self::run(runtime, tasks, stop, sockets)
    }

    /// Starts answering what concerns an owner of limits, at a TCP port that is nobody else's.
    ///
    /// # Errors
    ///
    /// If there is no room for another thread.
    pub fn start_for_owner(listener: TcpListener, owner: Arc<Owner>, named: usize) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let router = owner_router(Arc::new(OwnerMetrics::new(owner, named)));
        let (stop, stopped) = watch::channel(());
        let mut tasks = JoinSet::new();
        listener.set_nonblocking(true)?;
        let listener = {
            let _entered = runtime.enter();
            SinglePort(tokio::net::TcpListener::from_std(listener)?)
        };
        tasks.spawn_on(serve(listener, router, stopped), runtime.handle());
        Self::run(runtime, tasks, stop, Vec::new())
    }

    /// Has a thread carry out the tasks, which end with `stop`.
    fn run(
        runtime: Runtime,
        mut tasks: JoinSet<()>,
        stop: watch::Sender<()>,
        sockets: Vec<Socket>,
    ) -> io::Result<Self> {
        let thread = std::thread::Builder::new().name("gate-admin".to_owned()).spawn(move || {
            runtime.block_on(async { while tasks.join_next().await.is_some() {} });
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), _sockets: sockets })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the admin sockets has panicked");
        }
    }
}

/// A listener of either family.
trait Listen {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next client, with the process behind it if that is known.
    fn client(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<Peer>)>> + Send;

    /// Has clients that come from now on wait at the successor's listener of the same place, if there is one. Returns for
    /// how long those that are on their way may still arrive here.
    fn hand_over(&self) -> Duration {
        Duration::from_millis(1)
    }
}

impl Listen for tokio::net::UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn client(&self) -> io::Result<(Self::Stream, Option<Peer>)> {
        let (stream, _) = self.accept().await?;
        let peer = stream.peer_cred()?;
        Ok((stream, Some(Peer { uid: peer.uid(), pid: peer.pid() })))
    }
}

impl Listen for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn client(&self) -> io::Result<(Self::Stream, Option<Peer>)> {
        let (stream, _) = self.accept().await?;
        // By itself the kernel lets it grow to megabytes before a client that does not read is noticed.
        setsockopt(&stream, SndBuf, &SEND_BUFFER)?;
        Ok((stream, None))
    }

    fn hand_over(&self) -> Duration {
        // Of the listeners that share a port the successor's is the second.
        if let Err(error) = prefer_socket(self, 1) {
            tracing::warn!(%error, "clients of the admin port may be cut off while it is handed over");
        }
        HANDSHAKE
    }
}

/// A TCP port that no successor listens at as well.
struct SinglePort(tokio::net::TcpListener);

impl Listen for SinglePort {
    type Stream = tokio::net::TcpStream;

    async fn client(&self) -> io::Result<(Self::Stream, Option<Peer>)> {
        self.0.client().await
    }
}

/// A document covers the last one or two looks.
async fn look(context: Arc<Sources>, metrics: Arc<Metrics>, mut stopped: watch::Receiver<()>) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            _ = stopped.changed() => return,
            _ = looks.tick() => {
                context.queues.observe(clock::monotonic());
                metrics.look();
            }
        }
    }
}

/// Accepts clients, each of which has its own task, until it is stopped. Those that wait then are answered too.
async fn serve(listener: impl Listen, router: Router, mut stopped: watch::Receiver<()>) {
    let mut clients = Clients::default();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &mut clients) => accepted,
            _ = stopped.changed() => break,
        };
        admit(accepted, &mut clients, &router).await;
    }
    let arrival_time = listener.hand_over();
    let end = clock::monotonic().saturating_add(LAST_CLIENTS);
    while clock::monotonic() < end
        && let Ok(accepted) = timeout(arrival_time, accept(&listener, &mut clients)).await
    {
        admit(accepted, &mut clients, &router).await;
    }
    drop(listener);
    clients.finish().await;
}

async fn admit<S>(accepted: io::Result<(S, Option<Peer>)>, clients: &mut Clients, router: &Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match accepted {
        Ok((stream, peer)) => {
            clients.admit(stream, peer, router.clone());
            // The client may have asked already: then it is no longer one that can be closed for another.
            yield_now().await;
        }
        Err(error) => {
            if once_a_minute(&LAST_WARNING, clock::monotonic()) {
                tracing::warn!(%error, "cannot accept a client of the admin socket; said once a minute");
            }
            sleep(ACCEPT_BACKOFF).await;
        }
    }
}

async fn accept<L: Listen>(listener: &L, clients: &mut Clients) -> io::Result<(L::Stream, Option<Peer>)> {
    clients.make_room().await;
    listener.client().await
}

/// The clients of one listener.
#[derive(Debug)]
struct Clients {
    tasks: JoinSet<()>,
    /// In the order in which they came.
    open: VecDeque<Client>,
    /// The right to be answered: that bounds the memory of documents.
    answers: Arc<Semaphore>,
}

#[derive(Debug)]
struct Client {
    since: Nanos,
    task: AbortHandle,
    progress: Arc<Progress>,
}

/// How far a client's request has come.
#[derive(Debug, Default)]
struct Progress {
    has_request: AtomicBool,
    answered: Notify,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// Set where the answer has no end.
    stalled: OnceLock<Stalled>,
}

impl Progress {
    fn set_permit(&self, permit: Option<OwnedSemaphorePermit>) {
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = permit;
    }
}

impl Default for Clients {
    fn default() -> Self {
        let answers = Arc::new(Semaphore::new(MAX_ANSWERS));
        Self { tasks: JoinSet::new(), open: VecDeque::new(), answers }
    }
}

impl Clients {
    /// Waits until there is room for one more. Where all places are taken, the oldest client that has not asked
    /// anything within [`GRACE`] is closed.
    async fn make_room(&mut self) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            self.open.retain(|client| !client.task.is_finished());
            if self.open.len() < MAX_CLIENTS {
                return;
            }
            let now = clock::monotonic();
            let idle = |client: &Client| !client.progress.has_request.load(Ordering::Relaxed);
            let silent = self.open.iter().position(idle);
            match silent
                .map(|place| (place, GRACE.saturating_sub(now.saturating_sub(self.open[place].since))))
            {
                Some((place, Nanos::ZERO)) => {
                    self.open.remove(place).iter().for_each(|client| client.task.abort());
                    return;
                }
                Some((_, left)) => drop(timeout(left.into(), self.tasks.join_next()).await),
                None => drop(self.tasks.join_next().await),
            }
        }
    }

    /// Lets those that are there be answered.
    async fn finish(mut self) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // Those that say nothing, or read nothing, are closed.
        let _ = timeout(LAST_ANSWERS, all).await;
    }

    fn admit<S>(&mut self, stream: S, peer: Option<Peer>, router: Router)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let progress = Arc::<Progress>::default();
        let client = answer(stream, peer, router, Arc::clone(&self.answers), Arc::clone(&progress));
        let task = self.tasks.spawn(client);
        self.open.push_back(Client { since: clock::monotonic(), task, progress });
    }
}

/// One request and its answer.
async fn answer<S>(
    stream: S,
    peer: Option<Peer>,
    router: Router,
    answers: Arc<Semaphore>,
    progress: Arc<Progress>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = TowerToHyperService::new(router);
    let service = service_fn(async |mut request: hyper::Request<Incoming>| {
        progress.has_request.store(true, Ordering::Relaxed);
        // Answers on gate's health are short, and wait for no client that does not read.
        if !HEALTH.contains(&request.uri().path()) {
            progress.set_permit(Arc::clone(&answers).acquire_owned().await.ok());
        }
        peer.and_then(|peer| request.extensions_mut().insert(peer));
        let response: Result<Response<Body>, Infallible> = router.call(request).await;
        if let Ok(response) = &response
            && let Some(stalled) = response.extensions().get::<Stalled>()
        {
            // There is one request to a connection.
            let _ = progress.stalled.set(stalled.clone());
            progress.set_permit(None);
        }
        progress.answered.notify_one();
        response
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(MAX_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // A client that leaves or dawdles has no answer.
    tokio::select! {
        _ = &mut connection => return,
        () = progress.answered.notified() => {}
        () = sleep(PATIENCE) => return,
    }
    let Some(stalled) = progress.stalled.get() else {
        let _ = timeout(READ_WITHIN, connection).await;
        return;
    };
    while !stalled.is_set() && timeout(STALLED_EVERY, &mut connection).await.is_err() {}
}

/// How long those are still accepted that wait when the server ends.
const LAST_CLIENTS: Nanos = Nanos::from_millis(500);
/// How long the handshakes of connections may take that a port has begun before it is handed over.
const HANDSHAKE: Duration = Duration::from_millis(100);
/// How long those that have asked may still be answered when the server ends.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Connections of a listener; others wait, or take the place of one that does not ask.
const MAX_CLIENTS: usize = 256;
/// The paths that are answered whoever else is.
const HEALTH: [&str; 2] = ["/live", "/ready"];
/// Other requests of a listener that are answered at once.
const MAX_ANSWERS: usize = 16;
/// How long a client that has not asked yet keeps its place.
const GRACE: Nanos = Nanos::from_millis(50);
/// How long the head of a request may take to arrive.
const HEADERS_WITHIN: Duration = Duration::from_secs(2);
/// The most bytes of a request's head.
const MAX_HEADERS: usize = 16 << 10;
/// How long an answer may take to be read.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// The bytes that the kernel keeps for a client of a TCP port that has not read them; it reserves as many again for itself.
const SEND_BUFFER: usize = 64 << 10;
/// How long a request may take to be answered. A change waits for a tick, of 10 s at most.
const PATIENCE: Duration = Duration::from_secs(35);
/// The interval at which it is checked that a viewer still reads.
const STALLED_EVERY: Duration = Duration::from_secs(1);
static LAST_WARNING: AtomicU64 = AtomicU64::new(0);
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_secs(10);
