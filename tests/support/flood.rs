//! A steady flood of small memcached requests over UDP, counted, and a sink that counts what arrives.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::socket::{setsockopt, sockopt};
use xtask::lab::net::Net;

/// Requests from some source addresses, in turn, until stopped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Sends `per_sec` requests a second from these addresses of the client's end to `target`, for
    /// `LONGEST` at most. The addresses are given to the client.
    ///
    /// # Errors
    ///
    /// If a socket cannot be made.
    pub fn start(net: &Net, sources: &[IpAddr], target: SocketAddr, per_sec: u32) -> Result<Self> {
        for &source in sources {
            net.add_client_address(source)?;
        }
        let sockets = net
            .client
            .enter(|| sources.iter().map(|&source| socket(source, target)).collect::<Result<Vec<_>>>())??;
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let stopped = Arc::clone(&stop);
        let count = Arc::clone(&sent);
        let thread = std::thread::spawn(move || {
            let started = Instant::now();
            let due = || (started.elapsed().as_secs_f64() * f64::from(per_sec)) as u64;
            let mut next = sockets.iter().cycle();
            while !stopped.load(Ordering::Relaxed) && started.elapsed() < LONGEST {
                while count.load(Ordering::Relaxed) < due() {
                    let socket = next.next().expect("there is a source");
                    match socket.send(REQUEST) {
                        Ok(_) => count.fetch_add(1, Ordering::Relaxed),
                        // What an earlier packet came back with says nothing about this one.
                        Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                        Err(error) => panic!("cannot send: {error}"),
                    };
                }
                std::thread::park_timeout(Duration::from_micros(200));
            }
        });
        Ok(Self { stop, sent, thread: Some(thread) })
    }

    /// How many requests were sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Stops, and says how many requests were sent in all.
    pub fn stop(mut self) -> u64 {
        self.end();
        self.sent()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.end();
    }
}

/// A socket at the server's end that counts datagrams and answers none.
#[derive(Debug)]
pub struct Sink {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Listens on `address`.
    ///
    /// # Errors
    ///
    /// If the socket cannot be made.
    pub fn start(net: &Net, address: SocketAddr) -> Result<Self> {
        let socket = net.server.enter(|| UdpSocket::bind(address))??;
        // Seconds of a flood, should this thread wait long for a CPU.
        setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20))?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicU64::new(0));
        let stopped = Arc::clone(&stop);
        let count = Arc::clone(&received);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                if socket.recv(&mut buffer).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self { stop, received, thread: Some(thread) })
    }

    /// How many datagrams arrived so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn socket(source: IpAddr, target: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((source, 0))?;
    socket.connect(target)?;
    Ok(socket)
}

/// Frame header (request 7, datagram 0 of 1), and a read of one key.
const REQUEST: &[u8] = b"\0\x07\0\0\0\x01\0\0get key\r\n";
/// So that nothing goes on for ever.
const LONGEST: Duration = Duration::from_secs(600);
