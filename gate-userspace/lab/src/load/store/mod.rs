//! An embedded store: memcached's text protocol over UDP and TCP, or RESP or HTTP/1.1 over TCP, with a service time that can
//! be set. For the lab and for tests, not for data.
//!
//! One thread runs every command as it arrives, in memory, and holds the answer back for as long as
//! servers of the set speed would have taken, queueing included. So a slow store costs no CPU, and
//! the answers still come in the time of a real one.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use gate_common::units::Nanos;
use serde::Serialize;

use super::Protocol;

mod client;
mod command;
mod datagrams;
mod http;
mod items;
mod resp;
mod server;
mod service;
mod session;

pub use service::Spread;

/// How a store behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens, over TCP and, if it speaks memcached's protocol, UDP; port 0 for any that is free.
    pub listen: SocketAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// The mean time that one command takes; 0 for no more than it does.
    pub service_time: Nanos,
    /// The mean times of commands that take another, by their names in lower case; over HTTP, of methods and of paths by their
    /// first segment. RESP and HTTP answer those that they do not know otherwise with `OK`.
    pub times: BTreeMap<String, Nanos>,
    /// By how much a command takes longer for each other that is there, e.g. 0.1 for a tenth.
    pub contention: f64,
    /// The time of each key that a command reads beyond its first.
    pub row_time: Nanos,
    /// How service times are spread.
    pub spread: Spread,
    /// How many commands are served at the same time.
    pub concurrency: usize,
    /// Spend the service time computing, one command at a time, rather than waiting.
    pub busy: bool,
    /// The most that keys and values may take, in bytes.
    pub memory: u64,
    /// Fixes the service times.
    pub seed: u64,
}

impl Settings {
    /// A store that answers at once.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            protocol: Protocol::Memcached,
            service_time: Nanos::ZERO,
            times: BTreeMap::new(),
            contention: 0.0,
            row_time: Nanos::ZERO,
            spread: Spread::Fixed,
            concurrency: 4,
            busy: false,
            memory: 64 << 20,
            seed: 1,
        }
    }
}

/// A store that runs on a thread of its own, in the network namespace of the thread that started it,
/// until it is dropped.
#[derive(Debug)]
pub struct Store {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the store's thread and its owner share.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    service_time_ns: AtomicU64,
    commands: AtomicU64,
    dropped: AtomicU64,
    connections: AtomicU64,
}

/// A store's counters. All only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Commands that were run.
    pub commands: u64,
    /// Datagrams that were dropped: malformed, or the queue was full.
    pub dropped: u64,
    /// Connections that were accepted.
    pub connections: u64,
}

impl Store {
    /// Starts it.
    ///
    /// # Errors
    /// If it cannot listen, or its thread cannot be started.
    pub fn start(settings: &Settings) -> io::Result<Self> {
        let (udp, tcp) = match settings.protocol {
            Protocol::Memcached => listen(settings.listen).map(|(udp, tcp)| (Some(udp), tcp))?,
            Protocol::Resp | Protocol::Http => (None, listen_tcp(settings.listen)?),
        };
        let address = tcp.local_addr()?;
        let shared = Arc::new(Shared::default());
        shared.service_time_ns.store(settings.service_time.0, Ordering::Relaxed);
        let settings = settings.clone();
        let its_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || server::Server::new(udp, tcp, &settings, its_shared).run())?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// The address that it listens at.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the mean time that one command takes, from the next one on.
    pub fn set_service_time(&self, mean: Nanos) {
        self.shared.service_time_ns.store(mean.0, Ordering::Relaxed);
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            commands: read(&self.shared.commands),
            dropped: read(&self.shared.dropped),
            connections: read(&self.shared.connections),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}

/// The same port over UDP and TCP, without blocking.
fn listen(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let mut attempts = if address.port() == 0 { 16 } else { 1 };
    loop {
        let tcp = listen_tcp(address)?;
        attempts -= 1;
        match UdpSocket::bind(tcp.local_addr()?) {
            // The port was free for TCP alone: try another.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts > 0 => {}
            udp => {
                let udp = udp?;
                udp.set_nonblocking(true)?;
                return Ok((udp, tcp));
            }
        }
    }
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let tcp = TcpListener::bind(address)?;
    tcp.set_nonblocking(true)?;
    Ok(tcp)
}

#[cfg(test)]
mod tests;
