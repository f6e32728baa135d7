//! A hostile tenant's side of the network: everything in one thread, paced, over sockets that never block.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    self, AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrStorage, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;

use super::traffic::{Ends, Reads, Traffic};
use super::{Gate, Origin};

/// The hostile tenant: its addresses, its target, and its time, which begins with the first thing that it does. Its thread
/// gives way to all others, so that on a busy machine it comes to that late.
pub struct Hostile<'a> {
    pub(super) target: SocketAddr,
    pub(super) origin: Origin,
    lasts: Duration,
    made: Instant,
    begun: OnceLock<Instant>,
    /// Told when it has begun.
    tell: Sender<()>,
    /// The gate in between, for what its operator does.
    pub(super) gate: Option<&'a Gate>,
    done: AtomicU64,
    opened: AtomicU64,
}

/// A connection, and what is left to be written.
struct Peer {
    stream: TcpStream,
    output: Vec<u8>,
    written: usize,
    ends: bool,
}

impl<'a> Hostile<'a> {
    pub(super) fn new(
        target: SocketAddr,
        origin: Origin,
        lasts: Duration,
        gate: Option<&'a Gate>,
        tell: Sender<()>,
    ) -> Self {
        let done = AtomicU64::new(0);
        let opened = AtomicU64::new(0);
        Self { target, origin, lasts, made: Instant::now(), begun: OnceLock::new(), tell, gate, done, opened }
    }

    /// True when it has to stop, or has not come to do anything.
    pub(super) fn is_over(&self) -> bool {
        match self.begun.get() {
            Some(begun) => begun.elapsed() >= self.lasts,
            None => self.made.elapsed() >= PATIENCE,
        }
    }

    /// Requests sent, connections opened or things done, so that a behaviour that does nothing is noticed.
    pub(super) fn count(&self, number: u64) {
        if number > 0 {
            self.begun.get_or_init(|| {
                // The client may have stopped waiting for it.
                let _ = self.tell.send(());
                Instant::now()
            });
        }
        self.done.fetch_add(number, Ordering::Relaxed);
    }

    /// All that was counted.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        connect(self.origin.address(self.opened.fetch_add(1, Ordering::Relaxed)), self.target)
    }

    /// Sends over TCP until the end. What it is told, that it is closed, and that it is not accepted changes nothing.
    pub(super) fn send(&self, traffic: &Traffic, request: impl Fn(u64) -> Vec<u8>) -> Result<()> {
        let mut peers: Vec<Option<Peer>> = (0..traffic.connections).map(|_| None).collect();
        let mut pace = Pace::new(traffic.per_sec);
        let mut number = 0;
        while !self.is_over() {
            for _ in 0..pace.due() {
                let place = (number % traffic.connections as u64) as usize;
                let peer = &mut peers[place];
                if peer.is_none() {
                    *peer = self.connect().ok().map(|stream| Peer::new(stream, &traffic.first));
                    self.count(u64::from(peer.is_some()));
                }
                if let Some(open) = peer
                    && !self.batch(open, traffic, &request, number)
                {
                    *peer = None;
                }
                number += 1;
            }
            exchange(&mut peers, traffic, pace.left())?;
        }
        Ok(())
    }

    /// Sends a batch unless the one before is not sent yet; false if the connection is at its end.
    fn batch(
        &self,
        peer: &mut Peer,
        traffic: &Traffic,
        request: impl Fn(u64) -> Vec<u8>,
        number: u64,
    ) -> bool {
        let is_idle = peer.written == peer.output.len() && !peer.ends;
        if is_idle && traffic.batch > 0 {
            peer.output.clear();
            peer.written = 0;
            let first = number * traffic.batch as u64;
            (first..first + traffic.batch as u64).for_each(|number| peer.output.extend(request(number)));
            peer.ends = traffic.ends != Ends::Never;
            self.count(traffic.batch as u64);
        }
        let all = peer.write().unwrap_or(false);
        match traffic.ends {
            _ if !all => peer.is_open(),
            Ends::Reset => {
                let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
                setsockopt(&peer.stream, sockopt::Linger, &at_once).is_err()
            }
            Ends::HalfClosed => peer.stream.shutdown(Shutdown::Write).is_ok(),
            Ends::Never | Ends::Answered => true,
        }
    }

    /// Sends datagrams until the end, each from one of a few ports; the answers are not read.
    pub(super) fn send_datagrams(&self, per_sec: u64, datagram: impl Fn(u64) -> Vec<u8>) -> Result<()> {
        let sockets = (0..8).map(|number| {
            let socket = UdpSocket::bind((self.origin.address(number), 0))?;
            socket.set_nonblocking(true)?;
            socket.connect(self.target)?;
            Ok(socket)
        });
        let sockets: Vec<UdpSocket> = sockets.collect::<Result<_>>().context("no socket for datagrams")?;
        let mut pace = Pace::new(per_sec);
        let mut number = 0;
        while !self.is_over() {
            for _ in 0..pace.due() {
                let socket = &sockets[number as usize % sockets.len()];
                // Refused where nobody listens, or the buffer is full: the next one is sent all the same.
                let sent = socket.send(&datagram(number));
                self.count(u64::from(sent.is_ok()));
                number += 1;
            }
            ppoll(&mut [], Some(TimeSpec::from_duration(pace.left())), None)?;
        }
        Ok(())
    }
}

impl Peer {
    fn new(stream: TcpStream, first: &[u8]) -> Self {
        Self { stream, output: first.to_vec(), written: 0, ends: false }
    }

    /// Writes what it can; true if that was all.
    fn write(&mut self) -> io::Result<bool> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(len) => self.written += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => {
                    self.written = usize::MAX;
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// False after a failed write.
    fn is_open(&self) -> bool {
        self.written != usize::MAX
    }

    /// Reads what there is, or one piece of 1 KiB; the bytes read, `None` at the end of the connection.
    fn read(&mut self, reads: Reads) -> Option<usize> {
        let mut piece = [0; 1 << 16];
        let limit = if reads == Reads::Slowly { 1 << 10 } else { piece.len() };
        let mut read = 0;
        // At most 1 MiB at once, so that one connection does not keep the others waiting.
        for _ in 0..16 {
            match self.stream.read(&mut piece[..limit]) {
                Ok(0) => return None,
                Ok(len) => read += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(read),
                Err(_) => return None,
            }
            if reads == Reads::Slowly {
                break;
            }
        }
        Some(read)
    }
}

/// Waits for a while, reads answers and writes what is left; closes what is at its end.
fn exchange(peers: &mut [Option<Peer>], traffic: &Traffic, left: Duration) -> Result<()> {
    // Nobody reads fast here, or there are many connections to look at.
    let is_slow = traffic.reads == Reads::Slowly || traffic.batch == 0;
    let left = if is_slow { left.max(Duration::from_millis(10)) } else { left };
    let reads = if traffic.reads == Reads::Nothing { PollFlags::empty() } else { PollFlags::POLLIN };
    let mut places = Vec::new();
    let mut polled = Vec::new();
    for (place, peer) in peers.iter().enumerate() {
        let Some(peer) = peer else { continue };
        let is_written = peer.written >= peer.output.len();
        polled.push(PollFd::new(
            peer.stream.as_fd(),
            reads | if is_written { PollFlags::empty() } else { PollFlags::POLLOUT },
        ));
        places.push(place);
    }
    ppoll(&mut polled, Some(TimeSpec::from_duration(left)), None)?;
    let ready: Vec<_> = places.into_iter().zip(polled).map(|(place, fd)| (place, fd.revents())).collect();
    for (place, events) in ready {
        let events = events.unwrap_or(PollFlags::empty());
        let slot = &mut peers[place];
        let Some(peer) = slot else { continue };
        let mut open = !events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
        if events.contains(PollFlags::POLLIN) {
            let read = peer.read(traffic.reads);
            open = read.is_some_and(|len| len == 0 || !(peer.ends && traffic.ends == Ends::Answered));
        }
        if events.contains(PollFlags::POLLOUT) {
            open &= peer.write().is_ok();
        }
        if !open {
            *slot = None;
        }
    }
    if traffic.reads == Reads::Slowly {
        // The buffers are full, so that something can always be read: the pace is kept by waiting.
        ppoll(&mut [], Some(TimeSpec::from_duration(left)), None)?;
    }
    Ok(())
}

/// A rate. Of the events that were not done in time, only 20 ms' worth are made up for.
struct Pace {
    started: Instant,
    per_sec: u64,
    handed: u64,
}

impl Pace {
    fn new(per_sec: u64) -> Self {
        Self { started: Instant::now(), per_sec, handed: 0 }
    }

    fn due(&mut self) -> u64 {
        let target =
            (self.started.elapsed().as_nanos() * u128::from(self.per_sec) / 1_000_000_000) as u64 + 1;
        let due = (target - self.handed).min(1 + self.per_sec / 50);
        self.handed = target;
        due
    }

    /// The time until the next one, at least half a millisecond so that some are done together.
    fn left(&self) -> Duration {
        let next = Duration::from_secs(1).mul_f64((self.handed + 1) as f64 / self.per_sec as f64);
        next.saturating_sub(self.started.elapsed())
            .clamp(Duration::from_micros(500), Duration::from_millis(20))
    }
}

/// A connection from an address, which may not be there yet; nothing on it blocks.
pub(super) fn connect(source: Ipv4Addr, target: SocketAddr) -> io::Result<TcpStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
    socket::bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(source, 0)))?;
    match socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(target)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    Ok(TcpStream::from(socket))
}

/// The longest that a program takes to start, and a hostile tenant to begin.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// From now on this thread runs when no other wants its CPU, those of other processes included. A nice one would not do: it
/// keeps its CPU for up to 3 ms when a thread that has been asleep becomes ready.
pub fn give_way() {
    // SAFETY: the call reads the parameter, which outlives it, and changes this thread's scheduling alone; a failure leaves that
    // as it is.
    #[allow(unsafe_code, reason = "nix has no scheduling policies")]
    let _ =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &libc::sched_param { sched_priority: 0 }) };
}
