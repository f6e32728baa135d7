//! The thread that answers Envoys, its listener and its connections.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::server::health_reporter;

use super::connection::{Connection, Socket};
use super::counters::Counters;
use super::decide::Quotas;
use super::streams::Streams;
use super::wire::rlqs::rate_limit_quota_service_server::RateLimitQuotaServiceServer;
use super::wire::rls::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use super::wire::rls::{RateLimitRequest, RateLimitResponse};
use crate::clock;
use crate::dispatcher::{NamedTenants, prefer_socket};
use crate::kernel::Maps;
use crate::limits::Table;
use crate::logging::once_a_minute;
use crate::system_error::with_causes;

/// The place where a server listens.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port, which a successor may share.
    Tcp(TcpListener),
    /// A Unix socket, whose file is the caller's.
    Unix(UnixListener),
}

/// The thread that answers Envoys. Dropping it ends the streams, has what is under way answered, within a second, and ends it.
#[derive(Debug)]
pub struct Server {
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts answering.
    ///
    /// # Errors
    ///
    /// If there is no room for another thread, or the listener is none.
    pub fn start(
        listener: Listener,
        maps: Arc<Maps>,
        table: Arc<Table>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            Accepting::new(listener)?
        };
        let (stop, stopped) = watch::channel(());
        let tenants = NamedTenants::new(maps, clock::entropy());
        let quotas = Arc::new(Quotas::new(table, tenants, Arc::clone(&counters)));
        let thread = std::thread::Builder::new().name("gate-envoy".to_owned()).spawn(move || {
            runtime.block_on(serve(listener, quotas, counters, stopped));
            runtime.shutdown_timeout(Duration::ZERO);
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that answers Envoys has panicked");
        }
    }
}

async fn serve(
    listener: Accepting,
    quotas: Arc<Quotas>,
    counters: Arc<Counters>,
    mut stopped: watch::Receiver<()>,
) {
    let (send, connections) = mpsc::channel(1);
    let accepting = tokio::spawn(accept(listener, send, Arc::clone(&counters), stopped.clone()));
    let streams = Streams::new(Arc::clone(&quotas), counters, stopped.clone());
    tokio::spawn(streams.follow_reserved());
    let requests = RateLimitServiceServer::new(Requests(quotas));
    let reports = RateLimitQuotaServiceServer::new(streams);
    let (mut health, health_service) = health_reporter();
    for service in SERVICES {
        health.set_service_status(service, ServingStatus::Serving).await;
    }
    let served = tonic::transport::Server::builder()
        .timeout(ANSWER_WITHIN)
        .max_concurrent_streams(MAX_REQUESTS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PONG_WITHIN))
        .http2_max_header_list_size(MAX_HEADERS)
        .http2_max_pending_accept_reset_streams(Some(MAX_RESETS))
        .add_service(requests.max_decoding_message_size(MAX_MESSAGE))
        .add_service(reports.max_decoding_message_size(MAX_MESSAGE))
        .add_service(health_service)
        .serve_with_incoming_shutdown(ReceiverStream::new(connections), async {
            // After it no connection comes, and then each ends when its requests are answered.
            let _ = accepting.await;
        });
    tokio::pin!(served);
    tokio::select! {
        result = &mut served => log(result),
        _ = stopped.changed() => {
            // Ends the streams of who watches.
            for service in SERVICES {
                let _ = health.clear_service_status(service).await;
            }
            let _ = timeout(HANDSHAKE + LAST_ANSWERS, served).await;
        }
    }
}

fn log(result: Result<(), tonic::transport::Error>) {
    if let Err(error) = result {
        tracing::error!(error = with_causes(&error), "no longer answering Envoys");
    }
}

/// Accepts connections, so many at a time, until the server is stopped, and then those that wait.
async fn accept(
    listener: Accepting,
    to: mpsc::Sender<io::Result<Connection>>,
    counters: Arc<Counters>,
    mut stopped: watch::Receiver<()>,
) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let next = async || {
        let permit = Arc::clone(&room).acquire_owned().await.ok()?;
        match listener.accept().await {
            Ok(socket) => Some(Ok(Connection::new(socket, permit, Arc::clone(&counters)))),
            Err(error) => Some(Err(error)),
        }
    };
    loop {
        let accepted = tokio::select! {
            accepted = next() => accepted,
            _ = stopped.changed() => break,
        };
        match accepted {
            Some(Ok(connection)) => drop(to.send(Ok(connection)).await),
            Some(Err(error)) => {
                if once_a_minute(&LAST_WARNING, clock::monotonic()) {
                    tracing::warn!(%error, "cannot accept an Envoy; said once a minute");
                }
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
            None => return,
        }
    }
    listener.hand_over();
    while let Ok(Some(Ok(connection))) = timeout(HANDSHAKE, next()).await {
        drop(to.send(Ok(connection)).await);
    }
}

/// A listener in the reactor.
enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Accepting {
    fn new(listener: Listener) -> io::Result<Self> {
        Ok(match listener {
            Listener::Tcp(listener) => Self::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Listener::Unix(listener) => Self::Unix(tokio::net::UnixListener::from_std(listener)?),
        })
    }

    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (socket, _) = listener.accept().await?;
                socket.set_nodelay(true)?;
                Ok(Socket::Tcp(socket))
            }
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }

    /// Has connections that come from now on wait at a successor's listener on the same port, if there is one.
    fn hand_over(&self) {
        if let Self::Tcp(listener) = self
            && let Err(error) = prefer_socket(listener, 1)
        {
            tracing::warn!(%error, "Envoys may be cut off while their port is handed over");
        }
    }
}

/// `envoy.service.ratelimit.v3.RateLimitService`.
#[derive(Debug)]
struct Requests(Arc<Quotas>);

#[tonic::async_trait]
impl RateLimitService for Requests {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let decided = self.0.decide(request.get_ref(), clock::monotonic());
        decided.map(Response::new).map_err(|invalid| Status::invalid_argument(invalid.to_string()))
    }
}

/// The services whose health is told, the first for the port as a whole.
const SERVICES: [&str; 3] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
];
/// How long a request may take to arrive and be answered.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long what is under way may take when the server ends.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// How long the handshakes of connections may take that a port has begun before it is handed over.
const HANDSHAKE: Duration = Duration::from_millis(100);
static LAST_WARNING: AtomicU64 = AtomicU64::new(0);
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Connections at a time. Each worker thread of an Envoy has one.
const MAX_CONNECTIONS: usize = 256;
/// Requests and streams of a connection at a time.
const MAX_REQUESTS: u32 = 128;
/// The bytes that one may send before they are read, and those of a connection.
const WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// The most bytes of one message: descriptors with an Envoy's largest header fields, several times.
const MAX_MESSAGE: usize = 512 << 10;
const MAX_HEADERS: u32 = 16 << 10;
/// Requests that a connection may take back before they were looked at.
const MAX_RESETS: usize = 32;
/// How often it is asked whether the other end is still there, and how long it may take to say so.
const PING_EVERY: Duration = Duration::from_secs(20);
const PONG_WITHIN: Duration = Duration::from_secs(10);
