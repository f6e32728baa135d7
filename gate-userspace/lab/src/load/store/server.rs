//! The store's one thread.

use std::cmp::Ordering as Order;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gate_common::units::Nanos;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{SockaddrStorage, setsockopt, sockopt};

use super::client::Client;
use super::command::{Executor, Step};
use super::datagrams::{Datagrams, open};
use super::items::Items;
use super::service::Servers;
use super::session::Session;
use super::{Protocol, Settings, Shared};
use gate_system::clock;

pub(super) struct Server {
    /// Only for memcached.
    udp: Option<UdpSocket>,
    tcp: TcpListener,
    protocol: Protocol,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    datagrams: Datagrams,
    work: Work,
}

/// The items, the simulated servers and the answers that are not yet due.
struct Work {
    items: Items,
    servers: Servers,
    busy: bool,
    /// The times of commands that take another than the others.
    times: Arc<BTreeMap<String, Nanos>>,
    contention: f64,
    /// The time of each key that a command reads beyond its first.
    row_time: Nanos,
    pending: BinaryHeap<PendingAnswer>,
    pending_bytes: usize,
    last_order: u64,
    /// Clients may have commands that waited for room.
    starved: bool,
    shared: Arc<Shared>,
}

/// An answer that is not yet due: its service time is not over.
struct PendingAnswer {
    done: Nanos,
    /// Answers that are due at the same time keep their order.
    order: u64,
    to: Destination,
    answer: Vec<u8>,
}

enum Destination {
    Datagram(SockaddrStorage, [u8; 2]),
    Client(u64),
}

impl Server {
    pub(super) fn new(
        udp: Option<UdpSocket>,
        tcp: TcpListener,
        settings: &Settings,
        shared: Arc<Shared>,
    ) -> Self {
        // Best effort: a burst is better queued than dropped by the kernel.
        if let Some(udp) = &udp
            && setsockopt(udp, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err()
        {
            let _ = setsockopt(udp, sockopt::RcvBuf, &RECEIVE_BUFFER);
        }
        let concurrency = if settings.busy { 1 } else { settings.concurrency };
        let work = Work {
            items: Items::new(settings.memory),
            servers: Servers::new(concurrency, settings.spread, settings.seed),
            busy: settings.busy,
            times: Arc::new(settings.times.clone()),
            contention: settings.contention,
            row_time: settings.row_time,
            pending: BinaryHeap::new(),
            pending_bytes: 0,
            last_order: 0,
            starved: false,
            shared,
        };
        let clients = BTreeMap::new();
        let datagrams = Datagrams::new();
        Self { udp, tcp, protocol: settings.protocol, clients, next_client: 0, datagrams, work }
    }

    pub(super) fn run(mut self) {
        // Wake when an answer is due, not up to 50 µs later.
        let _ = nix::sys::prctl::set_timerslack(1);
        while !self.work.shared.stop.load(Ordering::Relaxed) {
            let now = clock::monotonic();
            let due = self.work.pending.peek().map_or(MAX_WAIT, |pending| pending.done.saturating_sub(now));
            let ready = self.poll(due.min(MAX_WAIT));
            if ready.datagrams {
                self.read_datagrams();
            }
            if ready.connections {
                self.accept();
            }
            for client in ready.clients {
                self.read_client(client);
            }
            self.deliver();
        }
    }

    fn poll(&mut self, wait: Nanos) -> Ready {
        let room = self.work.has_room();
        let when = |wanted, flags| if wanted { flags } else { PollFlags::empty() };
        let accepts = when(self.clients.len() < MAX_CLIENTS, PollFlags::POLLIN);
        let mut polled = vec![PollFd::new(self.tcp.as_fd(), accepts)];
        polled.extend(self.clients.values().map(|client| {
            let read = when(room && client.may_read(), PollFlags::POLLIN);
            PollFd::new(client.stream.as_fd(), read | when(!client.output.is_empty(), PollFlags::POLLOUT))
        }));
        polled.extend(self.udp.iter().map(|udp| PollFd::new(udp.as_fd(), PollFlags::POLLIN)));
        let timeout = std::time::Duration::from(wait).into();
        let count = ppoll(&mut polled, Some(timeout), None).unwrap_or(0);
        let ready = |polled: &PollFd<'_>| count > 0 && polled.any() == Some(true);
        let (others, datagrams) = polled.split_at(1 + self.clients.len());
        let clients = self.clients.keys().zip(&others[1..]).filter(|(_, polled)| ready(polled));
        Ready {
            datagrams: datagrams.iter().any(ready),
            connections: ready(&others[0]),
            clients: clients.map(|(&client, _)| client).collect(),
        }
    }

    fn read_datagrams(&mut self) {
        let Some(udp) = &self.udp else { return };
        let now = clock::monotonic();
        let work = &mut self.work;
        self.datagrams.receive(udp, |from, datagram| match open(datagram) {
            Some((id, commands)) if work.has_room() => {
                let (answer, done) = work.datagram(commands, now);
                work.delay(done, Destination::Datagram(from, id), answer);
            }
            _ => {
                work.shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    fn accept(&mut self) {
        while self.clients.len() < MAX_CLIENTS {
            let Ok((stream, _)) = self.tcp.accept() else { return };
            let session = Session::new(self.protocol, &self.work.times);
            if let Ok(client) = Client::new(stream, session) {
                self.clients.insert(self.next_client, client);
                self.next_client += 1;
                self.work.shared.connections.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn read_client(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        if client.write().and_then(|()| client.read()).is_err() {
            self.clients.remove(&number);
            return;
        }
        self.work.serve(number, client);
        if client.is_done() {
            self.clients.remove(&number);
        }
    }

    /// Sends the answers that are due.
    fn deliver(&mut self) {
        let now = clock::monotonic();
        let mut written = Vec::new();
        while self.work.pending.peek().is_some_and(|pending| pending.done <= now) {
            let Some(PendingAnswer { to, answer, .. }) = self.work.pending.pop() else { break };
            self.work.pending_bytes -= answer.len();
            match to {
                Destination::Datagram(to, id) => {
                    self.udp.iter().for_each(|udp| self.datagrams.send(udp, to, id, &answer));
                }
                Destination::Client(number) => {
                    // The client may have gone meanwhile.
                    if let Some(client) = self.clients.get_mut(&number) {
                        client.pending -= 1;
                        client.pending_bytes -= answer.len();
                        client.output.extend_from_slice(&answer);
                        written.push(number);
                    }
                }
            }
        }
        self.udp.iter().for_each(|udp| self.datagrams.flush(udp));
        if self.work.starved && self.work.has_room() {
            self.work.starved = false;
            written.extend(self.clients.keys());
        }
        written.sort_unstable();
        written.dedup();
        for number in written {
            let Some(client) = self.clients.get_mut(&number) else { continue };
            // Commands may have waited for room.
            self.work.serve(number, client);
            if client.write().is_err() || client.is_done() {
                self.clients.remove(&number);
            }
        }
    }
}

/// The sockets that are ready.
struct Ready {
    datagrams: bool,
    connections: bool,
    clients: Vec<u64>,
}

impl Work {
    fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING && self.pending_bytes < MAX_HELD_BYTES
    }

    /// Runs all commands of a datagram: their answers, and when they are due.
    fn datagram(&mut self, commands: &[u8], now: Nanos) -> (Vec<u8>, Nanos) {
        let mut answer = Vec::new();
        let mut done = now;
        let mut rest = commands;
        loop {
            let name = first_word(rest);
            let before = self.items.reads();
            let mut executor = Executor { items: &mut self.items, now, out: &mut answer };
            match executor.step(rest) {
                Step::Done(bytes) | Step::Skipped(bytes) => rest = &rest[bytes..],
                Step::More | Step::Quit => return (answer, done),
            }
            done = self.command_done(name, now, done, self.items.reads() - before);
        }
    }

    /// Runs the commands that a client has sent.
    fn serve(&mut self, number: u64, client: &mut Client) {
        let now = clock::monotonic();
        let mut read = 0;
        while client.may_run() {
            if !self.has_room() {
                self.starved = true;
                break;
            }
            let mut answer = Vec::new();
            let items = &mut self.items;
            let before = items.reads();
            let input = &client.input[read..];
            let step = match &mut client.session {
                Some(session) => session.step(input, items, now, &mut answer),
                None => Executor { items, now, out: &mut answer }.step(input),
            };
            match step {
                Step::Done(bytes) => read += bytes,
                Step::Skipped(bytes) => {
                    read += bytes;
                    continue;
                }
                Step::More => break,
                Step::Quit => client.closing = true,
            }
            let rows = self.items.reads() - before;
            let name = client.session.as_ref().map_or(first_word(input), Session::last_command);
            client.last_done = self.command_done(name, now, client.last_done, rows);
            client.pending += 1;
            client.pending_bytes += answer.len();
            self.delay(client.last_done, Destination::Client(number), answer);
        }
        client.input.drain(..read);
    }

    /// When a command that came at `now` and read so many keys is done, not before `ready`.
    fn command_done(&mut self, name: &[u8], now: Nanos, ready: Nanos, rows: u64) -> Nanos {
        self.shared.commands.fetch_add(1, Ordering::Relaxed);
        let own = std::str::from_utf8(name).ok().and_then(|name| self.times.get(name));
        let each = own.map_or(self.shared.service_time_ns.load(Ordering::Relaxed), |time| time.0);
        let mean = each.saturating_add(self.row_time.0.saturating_mul(rows.saturating_sub(1)));
        let mean = Nanos((mean as f64 * (1.0 + self.contention * self.pending.len() as f64)) as u64);
        let done = self.servers.done(now, ready, mean);
        while self.busy && clock::monotonic() < done {
            std::hint::spin_loop();
        }
        done
    }

    fn delay(&mut self, done: Nanos, to: Destination, answer: Vec<u8>) {
        self.last_order += 1;
        self.pending_bytes += answer.len();
        self.pending.push(PendingAnswer { done, order: self.last_order, to, answer });
    }
}

/// The name of memcached's command, as it is written.
fn first_word(input: &[u8]) -> &[u8] {
    input.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or_default()
}

impl Ord for PendingAnswer {
    /// The greatest is due first.
    fn cmp(&self, other: &Self) -> Order {
        (other.done, other.order).cmp(&(self.done, self.order))
    }
}

impl PartialOrd for PendingAnswer {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PendingAnswer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl Eq for PendingAnswer {}

/// A stop is noticed this late at most.
const MAX_WAIT: Nanos = Nanos::from_millis(20);
/// Answers not yet due, beyond which datagrams are dropped and clients not read.
const MAX_PENDING: usize = 1 << 16;
const MAX_HELD_BYTES: usize = 64 << 20;
/// Connections beyond which none is accepted.
const MAX_CLIENTS: usize = 4_096;
const RECEIVE_BUFFER: usize = 4 << 20;
