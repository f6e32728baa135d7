//! Asks guarded services how they are, since nothing that they answer passes through gate.
//!
//! **How.** Every so often a question that costs a store next to nothing (`version`, `PING`) over one
//! connection, and how long until the answer. One question at a time; while it is out it counts, whenever the
//! next one would have been due, with the time that it has taken so far. Otherwise a store that takes
//! ten times as long would be measured a tenth as often, and one that hangs not at all. A question
//! without an answer within the timeout is given up, and its connection with it. A connection that is
//! refused or ends means that the store is down; then the pauses between attempts double.
//!
//! **Who is asked.** The service's first address; over TCP, or over UDP if that is all it has. Questions leave by
//! the stack, to an address of this machine over loopback, and never arrive at the interface: XDP neither
//! charges nor refuses them. Where the service is on another machine, its answers arrive there, and they are
//! for no protected port.
//!
//! **Invariants.** A thread of its own, at raised priority: it neither waits for a tick nor holds one up, and what it waits
//! for a CPU itself is not taken for the store's time. One connection to each
//! service, at most one question in it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gate_common::units::Nanos;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::oneshot;
use tokio::time::{Interval, MissedTickBehavior};

use crate::clock;
use crate::config::{self, Protocol};
use crate::kernel::raise_priority;
use crate::policy::latency_ratio::Latencies;

/// The results of a probe.
#[derive(Debug)]
pub struct Probed {
    latencies: Arc<Latencies>,
    up: AtomicBool,
    failures: AtomicU64,
}

impl Default for Probed {
    /// No results yet.
    fn default() -> Self {
        Self {
            latencies: Arc::new(Latencies::new(1)),
            up: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        }
    }
}

impl Probed {
    /// How long answers took, as a single type.
    #[must_use]
    pub fn latencies(&self) -> &Arc<Latencies> {
        &self.latencies
    }

    /// True while the service can be reached: the last attempt was answered, or is only late.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Questions without an answer, and connections that failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn took(&self, latency: Nanos) {
        self.latencies.record(0, latency);
    }

    fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// The thread that asks. Dropping it ends it.
#[derive(Debug)]
pub struct Prober {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Prober {
    /// Starts asking the services that have a probe, and leaves what it finds with each.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn start<'c>(
        services: impl IntoIterator<Item = (&'c config::Service, Arc<Probed>)>,
    ) -> io::Result<Option<Self>> {
        let services = services.into_iter();
        let targets: Vec<_> =
            services.filter_map(|(service, results)| Target::of(service, results)).collect();
        if targets.is_empty() {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("gate-probe".to_owned()).spawn(move || {
            raise_priority("probe");
            runtime.block_on(async {
                for target in targets {
                    tokio::spawn(target.ask_on());
                }
                // Whoever can stop it is gone: that is a stop as well.
                let _ = stopped.await;
            });
        })?;
        Ok(Some(Self { stop: Some(stop), thread: Some(thread) }))
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that probes has panicked");
        }
    }
}

/// The service that a probe measures.
#[derive(Debug)]
struct Target {
    service: String,
    address: SocketAddr,
    over_tcp: bool,
    question: &'static [u8],
    every: Duration,
    timeout: Duration,
    results: Arc<Probed>,
}

impl Target {
    fn of(service: &config::Service, results: Arc<Probed>) -> Option<Self> {
        let probe = service.probe?;
        Some(Self {
            service: service.name.clone(),
            address: reachable(*service.listen.first()?),
            over_tcp: service.transports.tcp,
            question: match service.protocol {
                Protocol::Memcached => b"version\r\n",
                Protocol::Resp => b"*1\r\n$4\r\nPING\r\n",
                Protocol::Opaque | Protocol::Http => return None,
            },
            every: probe.every.into(),
            timeout: probe.timeout.into(),
            results,
        })
    }

    async fn ask_on(self) {
        let mut due = tokio::time::interval(self.every);
        due.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut connection = None;
        let mut backoff = self.every;
        loop {
            due.tick().await;
            match self.ask(&mut connection, &mut due).await {
                Ok(()) => {
                    if !self.results.up.swap(true, Ordering::Relaxed) {
                        tracing::info!(service = self.service, address = %self.address, "the probe is answered");
                    }
                    backoff = self.every;
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => self.results.failed(),
                Err(error) => {
                    self.results.failed();
                    if self.results.up.swap(false, Ordering::Relaxed) {
                        tracing::warn!(service = self.service, address = %self.address, %error, "the probe fails");
                    }
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(MAX_BACKOFF.max(self.every));
                }
            }
        }
    }

    /// One question, over `connection` if there is one; it is there afterwards if it can be used again.
    async fn ask(&self, connection: &mut Option<Connection>, due: &mut Interval) -> io::Result<()> {
        let sent_at = clock::monotonic();
        let so_far = || clock::monotonic().saturating_sub(sent_at);
        let mut answer = pin!(self.answer(connection));
        let mut patience = pin!(tokio::time::sleep(self.timeout));
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut answer => break outcome,
                () = &mut patience => break Err(io::ErrorKind::TimedOut.into()),
                _ = due.tick() => self.results.took(so_far()),
            }
        };
        if outcome.as_ref().map_or_else(|error| error.kind() == io::ErrorKind::TimedOut, |()| true) {
            self.results.took(so_far());
        }
        outcome
    }

    async fn answer(&self, connection: &mut Option<Connection>) -> io::Result<()> {
        // Taken out: given up in the middle, it is not used again.
        let mut open = match connection.take() {
            Some(open) => open,
            None => self.connect().await?,
        };
        open.ask(self.question).await?;
        *connection = Some(open);
        Ok(())
    }

    async fn connect(&self) -> io::Result<Connection> {
        if self.over_tcp {
            let stream = TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            return Ok(Connection::Tcp(stream));
        }
        let any = match self.address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(self.address).await?;
        Ok(Connection::Udp { socket, request: 0 })
    }
}

/// A connection to a service.
#[derive(Debug)]
enum Connection {
    Tcp(TcpStream),
    Udp { socket: UdpSocket, request: u16 },
}

impl Connection {
    /// Asks, and waits for one line of any content: an error is a measurement as well.
    async fn ask(&mut self, question: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.write_all(question).await?;
                let mut answer = [0; LONGEST_ANSWER];
                let mut have = 0;
                while !answer[..have].ends_with(b"\n") {
                    match stream.read(&mut answer[have..]).await? {
                        // Closed, or an answer that is none.
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        more => have += more,
                    }
                }
            }
            Self::Udp { socket, request } => {
                *request = request.wrapping_add(1);
                let [high, low] = request.to_be_bytes();
                // memcached's frame: request, number of this datagram, how many there are, reserved.
                let frame = [high, low, 0, 0, 0, 1, 0, 0];
                socket.send(&[&frame, question].concat()).await?;
                let mut answer = [0; LONGEST_ANSWER];
                loop {
                    let length = socket.recv(&mut answer).await?;
                    // Late answers to earlier questions may come first.
                    if answer[..length].starts_with(&[high, low]) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Where a service that listens at this address can be reached from this machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// A version or a pong is far shorter.
const LONGEST_ANSWER: usize = 512;
/// Between attempts to reach a service that is down, unless it is asked even less often.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
