//! One tenant over UDP: many datagrams to a system call, answers matched by their request id.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use gate_common::units::{NANOS_PER_SEC, Nanos};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, sendmmsg, setsockopt, sockopt};

use super::Schedule;
use super::counters::Counters;
use super::memcached::{decode_frame, encode, encode_frame};
use super::mix::Mix;
use super::plan::{Plan, TenantLoad};

/// One tenant's sockets.
pub(super) struct Sender {
    sockets: Vec<Socket>,
    /// How long to let requests gather before they are sent together.
    gather: Nanos,
    mix: Arc<Mix>,
}

impl Sender {
    pub(super) fn new(plan: &Plan, tenant: &TenantLoad) -> io::Result<Self> {
        let any: IpAddr = match plan.target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let sources = if tenant.sources.is_empty() { &[any][..] } else { &tenant.sources };
        // So many requests may be outstanding from one source, all unanswered, with double to spare.
        let outstanding = 2.0 * tenant.per_sec() * (plan.timeout.0 as f64 / NANOS_PER_SEC as f64);
        let per_source = outstanding / sources.len() as f64;
        let sockets_per_source = (per_source / MAX_WINDOW as f64).ceil() as usize;
        let sockets_per_source = sockets_per_source.clamp(1, (MAX_SOCKETS / sources.len()).max(1));
        let window = (per_source / sockets_per_source as f64) as usize;
        let window = window.clamp(MIN_WINDOW, MAX_WINDOW).next_power_of_two();
        let mut sockets = Vec::new();
        for source in sources {
            for _ in 0..sockets_per_source {
                sockets.push(Socket::new(*source, plan.target, window)?);
            }
        }
        let gather = if tenant.per_sec() > GATHER_ABOVE { GATHER } else { Nanos::ZERO };
        Ok(Self { sockets, gather, mix: Arc::clone(&tenant.mix) })
    }

    /// Sends and receives until everything sent is answered or given up.
    pub(super) fn run(self, schedule: &mut Schedule) {
        let Self { sockets, gather, mix } = self;
        let batch = Batch::new();
        let inbox = Inbox::new();
        Worker { sockets, turn: 0, batch, inbox, keys: String::new(), mix }.run(gather, schedule);
    }
}

/// A tenant's sockets and what its thread needs, some of which may not leave the thread.
struct Worker {
    sockets: Vec<Socket>,
    /// The socket that sends next: they take turns by batch.
    turn: usize,
    batch: Batch,
    inbox: Inbox,
    keys: String,
    mix: Arc<Mix>,
}

impl Worker {
    fn run(&mut self, gather: Nanos, schedule: &mut Schedule) {
        loop {
            let now = schedule.now();
            schedule.cut_off(now);
            let backlog = self.send_due(now, schedule);
            let now = schedule.now();
            let mut done = true;
            for socket in &mut self.sockets {
                socket.give_up(now, schedule.timeout, &mut schedule.counters);
                done &= socket.oldest == socket.next;
            }
            schedule.publish_at(now);
            let wait = match (backlog, schedule.due()) {
                (Backlog::Requests, _) => Nanos::ZERO,
                // Requests that the kernel has not taken by now are given up as well.
                (_, None) if done => return,
                (Backlog::Kernel, _) => GATHER,
                (Backlog::No, Some(due)) => due.saturating_sub(now).max(gather),
                (Backlog::No, None) => MAX_WAIT,
            };
            self.receive(wait.min(MAX_WAIT), schedule);
        }
    }

    /// Sends one batch of what is due.
    fn send_due(&mut self, now: Nanos, schedule: &mut Schedule) -> Backlog {
        if self.batch.is_empty() {
            self.batch.clear();
            self.turn = (self.turn + 1) % self.sockets.len();
            let socket = &mut self.sockets[self.turn];
            while !self.batch.is_full() {
                let Some((due, entry)) = schedule.take(now, &mut self.keys) else { break };
                let request = self.mix.request(entry, &self.keys);
                let number = socket.start_request(due, entry, &mut schedule.counters);
                self.batch.push(due, number, |bytes| {
                    encode_frame(number as u16, bytes);
                    encode(request, bytes);
                });
            }
        }
        let full = self.batch.is_full();
        let socket = &mut self.sockets[self.turn];
        while !self.batch.is_empty() {
            match self.batch.send(&socket.socket) {
                Ok(sent) => {
                    for request in sent {
                        schedule.counters.sent += 1;
                        schedule.counters.lag.saturating_record(now.saturating_sub(request.due).0);
                    }
                }
                // The error is of an earlier request (its port is closed): this one has yet to be tried.
                Err(Errno::EINTR | Errno::ECONNREFUSED) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS) => return Backlog::Kernel,
                // There is no route, or a filter forbids it.
                Err(_) => {
                    let number = self.batch.skip();
                    let slot = socket.slot(number);
                    // The request may have waited so long that it was given up.
                    if slot.number == number && !slot.answered {
                        slot.answered = true;
                        schedule.counters.fail(slot.entry.into());
                    }
                }
            }
        }
        if full { Backlog::Requests } else { Backlog::No }
    }

    /// Waits for answers, and takes them.
    fn receive(&mut self, wait: Nanos, schedule: &mut Schedule) {
        let sockets = self.sockets.iter();
        let mut polled: Vec<_> =
            sockets.map(|socket| PollFd::new(socket.socket.as_fd(), PollFlags::POLLIN)).collect();
        let timeout = std::time::Duration::from(wait).into();
        if ppoll(&mut polled, Some(timeout), None).unwrap_or(0) <= 0 {
            return;
        }
        let ready: Vec<bool> = polled.iter().map(|polled| polled.any() == Some(true)).collect();
        for (socket, _) in self.sockets.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            while self.inbox.receive(socket, schedule) == BATCH {}
        }
    }
}

/// Why there is no time to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backlog {
    /// There is.
    No,
    /// More requests are due.
    Requests,
    /// The kernel takes no more for now.
    Kernel,
}

/// A socket that is connected to the target, and the requests that it sent.
struct Socket {
    socket: UdpSocket,
    /// By the request's number, modulo the length, a power of two of at most 2^16.
    outstanding: Box<[Outstanding]>,
    /// Numbers of the oldest request that may be unanswered, and of the next. Their low 16 bits are
    /// the request ids.
    oldest: u64,
    next: u64,
}

#[derive(Clone, Copy)]
struct Outstanding {
    number: u64,
    due: Nanos,
    /// Its place in the mix.
    entry: u16,
    answered: bool,
}

impl Socket {
    fn new(source: IpAddr, target: SocketAddr, window: usize) -> io::Result<Self> {
        let socket = UdpSocket::bind((source, 0))?;
        socket.connect(target)?;
        socket.set_nonblocking(true)?;
        // Best effort: as large as may be, or as large as the system allows.
        if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
            let _ = setsockopt(&socket, sockopt::RcvBuf, &BUFFER_BYTES);
        }
        let free = Outstanding { number: u64::MAX, due: Nanos::ZERO, entry: 0, answered: true };
        Ok(Self { socket, outstanding: vec![free; window].into_boxed_slice(), oldest: 0, next: 0 })
    }

    fn slot(&mut self, number: u64) -> &mut Outstanding {
        let mask = self.outstanding.len() as u64 - 1;
        &mut self.outstanding[(number & mask) as usize]
    }

    /// Makes room for a request and gives it its number.
    fn start_request(&mut self, due: Nanos, entry: usize, counters: &mut Counters) -> u64 {
        if self.next - self.oldest == self.outstanding.len() as u64 {
            self.give_up_oldest(counters);
        }
        let number = self.next;
        self.next += 1;
        *self.slot(number) = Outstanding { number, due, entry: entry as u16, answered: false };
        number
    }

    /// Takes an answer at `now`.
    fn take(&mut self, datagram: &[u8], now: Nanos, counters: &mut Counters) {
        let Some((id, reply)) = decode_frame(datagram) else { return };
        let Some(reply) = reply else { return };
        // The newest request with that id; it is among the last 2^16.
        let newest = self.next.wrapping_sub(1);
        let number = newest.wrapping_sub(u64::from((newest as u16).wrapping_sub(id)));
        let slot = self.slot(number);
        if slot.number == number && !slot.answered {
            slot.answered = true;
            let after = now.saturating_sub(slot.due);
            counters.reply(reply, slot.entry.into(), after);
        } else {
            counters.late += 1;
        }
    }

    /// Counts what has waited too long.
    fn give_up(&mut self, now: Nanos, timeout: Nanos, counters: &mut Counters) {
        while self.oldest < self.next {
            let slot = self.slot(self.oldest);
            if !slot.answered && slot.due.saturating_add(timeout) > now {
                return;
            }
            self.give_up_oldest(counters);
        }
    }

    fn give_up_oldest(&mut self, counters: &mut Counters) {
        let slot = self.slot(self.oldest);
        if !slot.answered {
            counters.lose(slot.entry.into());
        }
        slot.answered = true;
        self.oldest += 1;
    }
}

/// Requests that are sent together.
struct Batch {
    bytes: Vec<u8>,
    requests: Vec<Queued>,
    /// How many of them are dealt with.
    done: usize,
    headers: MultiHeaders<()>,
}

#[derive(Clone, Copy)]
struct Queued {
    due: Nanos,
    number: u64,
    start: usize,
    end: usize,
}

impl Batch {
    fn new() -> Self {
        let headers = MultiHeaders::preallocate(BATCH, None);
        Self { bytes: Vec::new(), requests: Vec::with_capacity(BATCH), done: 0, headers }
    }

    fn is_empty(&self) -> bool {
        self.done == self.requests.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.requests.clear();
        self.done = 0;
    }

    fn is_full(&self) -> bool {
        self.requests.len() == BATCH
    }

    fn push(&mut self, due: Nanos, number: u64, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.requests.push(Queued { due, number, start, end: self.bytes.len() });
    }

    /// Sends what it can, at least one.
    fn send(&mut self, socket: &UdpSocket) -> Result<&[Queued], Errno> {
        let left = &self.requests[self.done..];
        let slices: [[IoSlice<'_>; 1]; BATCH] = std::array::from_fn(|i| {
            let bytes = left.get(i).map_or(&[][..], |request| &self.bytes[request.start..request.end]);
            [IoSlice::new(bytes)]
        });
        let slices = &slices[..left.len()];
        let sent = sendmmsg(
            socket.as_raw_fd(),
            &mut self.headers,
            slices,
            [None; BATCH],
            [],
            MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
        )?;
        let sent = sent.count();
        self.done += sent;
        Ok(&self.requests[self.done - sent..self.done])
    }

    /// Leaves out the next request, and says which it was.
    fn skip(&mut self) -> u64 {
        self.done += 1;
        self.requests[self.done - 1].number
    }
}

/// Where answers arrive.
struct Inbox {
    buffers: Vec<[u8; MAX_DATAGRAM]>,
    headers: MultiHeaders<()>,
}

impl Inbox {
    fn new() -> Self {
        Self { buffers: vec![[0; MAX_DATAGRAM]; BATCH], headers: MultiHeaders::preallocate(BATCH, None) }
    }

    /// Takes what is there, up to a batch, and says how many it was.
    fn receive(&mut self, socket: &mut Socket, schedule: &mut Schedule) -> usize {
        let mut buffers = self.buffers.iter_mut();
        let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
            std::array::from_fn(|_| [IoSliceMut::new(buffers.next().expect("a buffer for each"))]);
        let fd = socket.socket.as_raw_fd();
        let Ok(messages) = recvmmsg(fd, &mut self.headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)
        else {
            return 0;
        };
        let now = schedule.now();
        let mut count = 0;
        for message in messages {
            count += 1;
            socket.take(message.iovs().next().unwrap_or_default(), now, &mut schedule.counters);
        }
        count
    }
}

/// Datagrams to a system call.
const BATCH: usize = 64;
/// The largest answer that is read whole; only its beginning counts.
const MAX_DATAGRAM: usize = 2_048;
/// Enough for the answers to a millisecond of flood.
const BUFFER_BYTES: usize = 4 << 20;
/// Above this rate requests are sent in batches, at the price of some lag.
const GATHER_ABOVE: f64 = 20_000.0;
const GATHER: Nanos = Nanos::from_micros(100);
/// A timeout or a stop is noticed this late at most.
const MAX_WAIT: Nanos = Nanos::from_millis(10);
/// Of one tenant. More than so many requests outstanding are given up early.
const MAX_SOCKETS: usize = 256;
/// The fewest requests that may be outstanding on a socket.
const MIN_WINDOW: usize = 256;
/// Request ids have 16 bits.
const MAX_WINDOW: usize = 1 << 16;
