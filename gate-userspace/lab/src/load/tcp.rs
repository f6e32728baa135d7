//! One tenant over TCP: requests pipelined over a few connections, answers in their order.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use gate_common::units::Nanos;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};

use super::Schedule;
use super::counters::Counters;
use super::mix::Mix;
use super::plan::{Plan, TenantLoad};
use super::protocol::Protocol;
use super::replies::Replies;

/// One tenant's connections.
pub(super) struct Sender {
    target: SocketAddr,
    connections: Vec<Connection>,
    /// The connection that gets the next request: they take turns.
    turn: usize,
    keys: String,
    mix: Arc<Mix>,
}

impl Sender {
    pub(super) fn new(plan: &Plan, tenant: &TenantLoad) -> io::Result<Self> {
        let any = tenant.sources.is_empty().then_some(None);
        let sources = any.into_iter().chain(tenant.sources.iter().copied().map(Some));
        let mut connections = Vec::new();
        for source in sources {
            for _ in 0..tenant.connections {
                let stream = Some(begin_connect(source, plan.target)?);
                connections.push(Connection { stream, ..Connection::new(source, plan.protocol) });
            }
        }
        let mix = Arc::clone(&tenant.mix);
        Ok(Self { target: plan.target, connections, turn: 0, keys: String::new(), mix })
    }

    /// Sends and receives until everything sent is answered or given up.
    pub(super) fn run(&mut self, schedule: &mut Schedule) {
        loop {
            let now = schedule.now();
            schedule.cut_off(now);
            self.queue_due(now, schedule);
            let mut done = true;
            for connection in &mut self.connections {
                connection.open(self.target, now, &mut schedule.counters);
                connection.write(now, &mut schedule.counters);
                connection.give_up(now, schedule.timeout, &mut schedule.counters);
                done &= connection.outstanding.iter().all(|request| request.given_up);
            }
            schedule.publish_at(now);
            let wait = match schedule.due() {
                Some(due) => due.saturating_sub(schedule.now()),
                None if done => return,
                None => MAX_WAIT,
            };
            self.receive(wait.min(MAX_WAIT), schedule);
        }
    }

    fn queue_due(&mut self, now: Nanos, schedule: &mut Schedule) {
        for _ in 0..MAX_QUEUED_AT_ONCE {
            let Some((due, entry)) = schedule.take(now, &mut self.keys) else { return };
            self.turn = (self.turn + 1) % self.connections.len();
            let connection = &mut self.connections[self.turn];
            if connection.outstanding.len() >= MAX_OUTSTANDING || connection.out.len() >= MAX_UNWRITTEN {
                // As good as lost: it would wait behind all of them.
                schedule.counters.lose(entry);
                continue;
            }
            connection.replies.encode(self.mix.request(entry, &self.keys), &mut connection.out);
            let end = connection.written + connection.out.len() as u64;
            connection.outstanding.push_back(Outstanding {
                due,
                end,
                entry: entry as u16,
                sent: false,
                given_up: false,
            });
        }
    }

    /// Waits for answers, for room to write, or for `wait`.
    fn receive(&mut self, wait: Nanos, schedule: &mut Schedule) {
        let open =
            || self.connections.iter().enumerate().filter_map(|(i, c)| Some((i, c, c.stream.as_ref()?)));
        let mut polled: Vec<_> = open()
            .map(|(_, connection, stream)| {
                let writes = !connection.connected || !connection.out.is_empty();
                let write = if writes { PollFlags::POLLOUT } else { PollFlags::empty() };
                PollFd::new(stream.as_fd(), PollFlags::POLLIN | write)
            })
            .collect();
        let timeout = std::time::Duration::from(wait).into();
        if ppoll(&mut polled, Some(timeout), None).unwrap_or(0) <= 0 {
            return;
        }
        let ready: Vec<usize> = open()
            .zip(&polled)
            .filter(|(_, polled)| polled.any() == Some(true))
            .map(|((i, ..), _)| i)
            .collect();
        for i in ready {
            self.connections[i].read(schedule);
        }
    }
}

/// One connection, opened again when it fails.
struct Connection {
    source: Option<IpAddr>,
    stream: Option<TcpStream>,
    connected: bool,
    /// Not opened again before then.
    not_before: Nanos,
    /// Bytes to be written, and how many were before them.
    out: Vec<u8>,
    written: u64,
    outstanding: VecDeque<Outstanding>,
    replies: Replies,
}

/// A request on its way.
struct Outstanding {
    due: Nanos,
    /// Where it ends in the stream of bytes.
    end: u64,
    /// Its place in the mix.
    entry: u16,
    sent: bool,
    /// Counted as lost; its answer will still come first.
    given_up: bool,
}

impl Connection {
    fn new(source: Option<IpAddr>, protocol: Protocol) -> Self {
        Self {
            source,
            stream: None,
            connected: false,
            not_before: Nanos::ZERO,
            out: Vec::new(),
            written: 0,
            outstanding: VecDeque::new(),
            replies: Replies::new(protocol),
        }
    }

    fn open(&mut self, target: SocketAddr, now: Nanos, counters: &mut Counters) {
        if self.stream.is_some() || now < self.not_before {
            return;
        }
        match begin_connect(self.source, target) {
            Ok(stream) => self.stream = Some(stream),
            Err(_) => self.fail(now, counters),
        }
    }

    /// Gives up the connection and all that is outstanding on it.
    fn fail(&mut self, now: Nanos, counters: &mut Counters) {
        for request in self.outstanding.iter().filter(|request| !request.given_up) {
            counters.fail(request.entry.into());
        }
        let fresh = Self::new(self.source, self.replies.protocol());
        *self = Self { not_before: now.saturating_add(REOPEN_AFTER), ..fresh };
    }

    fn write(&mut self, now: Nanos, counters: &mut Counters) {
        let Some(stream) = self.stream.as_mut().filter(|_| self.connected) else { return };
        let mut done = 0;
        let outcome = loop {
            if done == self.out.len() {
                break Ok(());
            }
            match stream.write(&self.out[done..]) {
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.out.drain(..done);
        self.written += done as u64;
        let unsent = self.outstanding.iter().rposition(|request| request.sent).map_or(0, |last| last + 1);
        for request in self.outstanding.range_mut(unsent..).take_while(|request| request.end <= self.written)
        {
            request.sent = true;
            counters.sent += 1;
            counters.lag.saturating_record(now.saturating_sub(request.due).0);
        }
        if outcome.is_err() {
            self.fail(now, counters);
        }
    }

    /// Reads what has come, once the connection stands.
    fn read(&mut self, schedule: &mut Schedule) {
        let Some(stream) = &mut self.stream else { return };
        if !self.connected {
            match stream.take_error() {
                Ok(None) if stream.peer_addr().is_ok() => self.connected = true,
                Ok(None) => return,
                _ => return self.fail(schedule.now(), &mut schedule.counters),
            }
        }
        let mut buffer = [0; 16 << 10];
        let lost = loop {
            let bytes = match stream.read(&mut buffer) {
                Ok(0) => break true,
                Ok(bytes) => &buffer[..bytes],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break true,
            };
            let now = schedule.now();
            let mut unasked = false;
            let fed = self.replies.feed(bytes, |reply| match self.outstanding.pop_front() {
                Some(request) if request.given_up => schedule.counters.late += 1,
                Some(request) => {
                    let after = now.saturating_sub(request.due);
                    schedule.counters.reply(reply, request.entry.into(), after);
                }
                None => unasked = true,
            });
            if unasked || fed.is_err() {
                break true;
            }
        };
        if lost {
            self.fail(schedule.now(), &mut schedule.counters);
        }
    }

    /// Counts what has waited too long. If nothing at all has been answered for as long again, the
    /// connection is taken for dead.
    fn give_up(&mut self, now: Nanos, timeout: Nanos, counters: &mut Counters) {
        let expired = |request: &Outstanding| request.due.saturating_add(timeout) <= now;
        for request in self.outstanding.iter_mut().take_while(|request| expired(request)) {
            if !request.given_up {
                counters.lose(request.entry.into());
            }
            request.given_up = true;
        }
        let dead = Nanos(timeout.0.saturating_mul(2));
        if self.outstanding.front().is_some_and(|request| request.due.saturating_add(dead) <= now) {
            self.fail(now, counters);
        }
    }
}

/// A connection under way from `source`, without waiting for it.
fn begin_connect(source: Option<IpAddr>, target: SocketAddr) -> io::Result<TcpStream> {
    let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(family, SockType::Stream, flags, None)?;
    if let Some(source) = source {
        bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
    }
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(target)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(fd);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Requests that may wait for an answer on one connection.
const MAX_OUTSTANDING: usize = 1 << 14;
/// Bytes that may wait to be written on one connection; the last request may exceed it.
const MAX_UNWRITTEN: usize = 16 << 20;
/// Between two looks at the connections.
const MAX_QUEUED_AT_ONCE: usize = 1_024;
/// A failed connection is opened again after so long.
const REOPEN_AFTER: Nanos = Nanos::from_millis(100);
/// A timeout or a stop is noticed this late at most.
const MAX_WAIT: Nanos = Nanos::from_millis(10);
