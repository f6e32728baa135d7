//! The polite tenant: reads and writes a few keys of its own at a modest rate, open loop.
//!
//! A request's latency counts from when it was due, so that a store that stands still is seen by every request that was
//! due meanwhile. A request fails if its answer is another than the expected one, or none comes in time; it
//! counts with the time until then. One in [`RECONNECT_EVERY`] requests is sent over a new connection, so that a service
//! that takes no more connections is noticed.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::hostile::connect;
use super::traffic::resp;
use super::{POLITE, Store};

/// The polite tenant's view.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Requests that were due.
    pub requests: u64,
    /// Those that failed.
    pub errors: u64,
    /// The line or the error in place of the first missing answer.
    pub first_error: Option<String>,
    /// Latency at p50.
    pub p50: Duration,
    /// Latency at p99.
    pub p99: Duration,
}

/// Requests a second.
const RATE: u32 = 500;
const CONNECTIONS: usize = 4;
const RECONNECT_EVERY: u32 = 100;
const KEYS: usize = 16;
const VALUE: &str =
    "a value of the polite tenant, which nobody else writes and everybody who can read it sees as it is";
/// The longest wait for an answer before the measurement.
const FIRST_PATIENCE: Duration = Duration::from_secs(2);

/// A request, and the only right answer.
struct Exchange {
    request: Vec<u8>,
    answer: Vec<u8>,
}

fn exchanges(store: Store) -> Vec<Exchange> {
    let of_key = |number: usize| {
        let key = format!("polite:{number}");
        let len = VALUE.len();
        match store {
            Store::Redis => [
                Exchange { request: resp(&["SET", &key, VALUE]), answer: b"+OK\r\n".to_vec() },
                Exchange {
                    request: resp(&["GET", &key]),
                    answer: format!("${len}\r\n{VALUE}\r\n").into_bytes(),
                },
            ],
            Store::Memcached => [
                Exchange {
                    request: format!("set {key} 0 0 {len}\r\n{VALUE}\r\n").into_bytes(),
                    answer: b"STORED\r\n".to_vec(),
                },
                Exchange {
                    request: format!("get {key}\r\n").into_bytes(),
                    answer: format!("VALUE {key} 0 {len}\r\n{VALUE}\r\nEND\r\n").into_bytes(),
                },
            ],
        }
    };
    (0..KEYS).flat_map(of_key).collect()
}

/// Measures for so long what the polite tenant of `store` sees at `target`, if it waits so long for an answer.
///
/// # Errors
///
/// If it is not served before the measurement begins.
pub(super) fn measure(
    store: Store,
    target: SocketAddr,
    (lasts, patience): (Duration, Duration),
    begun: impl FnOnce(),
) -> Result<Seen> {
    let exchanges = exchanges(store);
    let mut connections = Vec::new();
    for number in 0..CONNECTIONS {
        connections.push(Connection::open(target));
        for exchange in exchanges.iter().skip(number).step_by(CONNECTIONS) {
            connections[number].ask_and_wait(exchange).context("the polite tenant is not served")?;
        }
    }
    let mut polite =
        Polite { target, patience, exchanges, connections, seen: Vec::new(), errors: 0, first_error: None };
    begun();
    polite.run(lasts)?;
    Ok(polite.seen())
}

struct Polite {
    target: SocketAddr,
    /// The longest wait for an answer.
    patience: Duration,
    exchanges: Vec<Exchange>,
    /// The first [`CONNECTIONS`] take requests; the rest have been replaced, and wait for their last answers.
    connections: Vec<Connection>,
    seen: Vec<Duration>,
    errors: u64,
    first_error: Option<String>,
}

#[derive(Default)]
struct Connection {
    stream: Option<TcpStream>,
    output: Vec<u8>,
    input: Vec<u8>,
    /// The unanswered requests: the time when each was due, and the number of its exchange.
    pending: VecDeque<(Instant, usize)>,
}

impl Polite {
    fn run(&mut self, lasts: Duration) -> Result<()> {
        let started = Instant::now();
        let interval = Duration::from_secs(1) / RATE;
        let count = (lasts.as_nanos() / interval.as_nanos()) as u32;
        let mut sent = 0;
        while sent < count || self.connections.iter().any(|connection| !connection.pending.is_empty()) {
            while sent < count && started + interval * sent <= Instant::now() {
                self.send(sent, started + interval * sent);
                sent += 1;
            }
            let oldest = self.expire();
            let next = if sent < count { started + interval * sent } else { oldest };
            self.wait(next.min(oldest))?;
        }
        Ok(())
    }

    fn send(&mut self, number: u32, due: Instant) {
        let place = number as usize % CONNECTIONS;
        if number % RECONNECT_EVERY == RECONNECT_EVERY - 1 && self.connections[place].stream.is_some() {
            let old = std::mem::replace(&mut self.connections[place], Connection::open(self.target));
            self.connections.push(old);
        }
        if self.connections[place].stream.is_none() {
            self.connections[place] = Connection::open(self.target);
        }
        let which = number as usize % self.exchanges.len();
        let connection = &mut self.connections[place];
        connection.pending.push_back((due, which));
        connection.output.extend_from_slice(&self.exchanges[which].request);
        if let Err(error) = connection.write() {
            self.fail(place, &error.to_string());
        }
    }

    /// Waits until something can be read or written, or a time comes; reads answers.
    fn wait(&mut self, until: Instant) -> Result<()> {
        let mut places = Vec::new();
        let mut polled = Vec::new();
        for (place, connection) in self.connections.iter().enumerate() {
            let Some(stream) = &connection.stream else { continue };
            let output = if connection.output.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
            polled.push(PollFd::new(stream.as_fd(), PollFlags::POLLIN | output));
            places.push(place);
        }
        let left = until.saturating_duration_since(Instant::now());
        ppoll(&mut polled, Some(TimeSpec::from_duration(left)), None)?;
        let ready = places.iter().zip(&polled).filter(|(_, fd)| fd.any() == Some(true));
        let ready: Vec<usize> = ready.map(|(&place, _)| place).collect();
        // From the last on, so that one that is removed moves none that is still to come.
        for place in ready.into_iter().rev() {
            match self.progress(place) {
                Err(error) => self.fail(place, &error.to_string()),
                Ok(()) if place >= CONNECTIONS && self.connections[place].pending.is_empty() => {
                    self.connections.remove(place);
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Writes what is left to be written, and takes the answers that have come.
    fn progress(&mut self, place: usize) -> Result<()> {
        let connection = &mut self.connections[place];
        connection.write()?;
        let open = connection.read()?;
        while let Some(&(due, which)) = connection.pending.front() {
            let answer = &self.exchanges[which].answer;
            if connection.input.starts_with(answer) {
                connection.input.drain(..answer.len());
            } else if answer.starts_with(&connection.input) {
                break;
            } else if let Some(end) = connection.input.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = connection.input.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                // A value that is not its own: what follows is no answer.
                ensure!(!line.starts_with("VALUE") && (!line.starts_with('$') || line == "$-1"), line);
                self.errors += 1;
                self.first_error.get_or_insert(line);
            } else {
                break;
            }
            connection.pending.pop_front();
            self.seen.push(due.elapsed());
        }
        ensure!(open, "connection closed");
        Ok(())
    }

    /// Fails what is unanswered on a connection, and closes it.
    fn fail(&mut self, place: usize, error: &str) {
        let broken = if place < CONNECTIONS {
            std::mem::take(&mut self.connections[place])
        } else {
            self.connections.remove(place)
        };
        self.errors += broken.pending.len() as u64;
        self.seen.extend(broken.pending.iter().map(|(due, _)| due.elapsed()));
        if !broken.pending.is_empty() {
            self.first_error.get_or_insert_with(|| error.to_owned());
        }
    }

    /// Fails what has waited for too long; returns when the oldest of the rest will have.
    fn expire(&mut self) -> Instant {
        let now = Instant::now();
        for place in (0..self.connections.len()).rev() {
            let front = self.connections[place].pending.front();
            if front.is_some_and(|&(due, _)| now >= due + self.patience) {
                self.fail(place, "no answer");
            }
        }
        let oldest = self.connections.iter().filter_map(|connection| connection.pending.front()).min();
        oldest.map_or(now, |&(due, _)| due) + self.patience
    }

    fn seen(mut self) -> Seen {
        self.seen.sort_unstable();
        let at = |share: f64| {
            let place = (self.seen.len() as f64 * share) as usize;
            self.seen.get(place.min(self.seen.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        let p50 = at(0.5);
        let p99 = at(0.99);
        Seen {
            requests: self.seen.len() as u64,
            errors: self.errors,
            first_error: self.first_error,
            p50,
            p99,
        }
    }
}

impl Connection {
    /// A new connection; one without a stream if there is none to be had.
    fn open(target: SocketAddr) -> Self {
        Self { stream: connect(POLITE, target).ok(), ..Self::default() }
    }

    fn write(&mut self) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::ConnectionRefused)?;
        while !self.output.is_empty() {
            match stream.write(&self.output) {
                Ok(len) => drop(self.output.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what there is; false at the end of the connection.
    fn read(&mut self) -> io::Result<bool> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::ConnectionRefused)?;
        let mut piece = [0; 1 << 14];
        loop {
            match stream.read(&mut piece) {
                Ok(0) => return Ok(false),
                Ok(len) => self.input.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    /// Before the measurement, one at a time.
    fn ask_and_wait(&mut self, exchange: &Exchange) -> Result<()> {
        let deadline = Instant::now() + FIRST_PATIENCE;
        self.output.extend_from_slice(&exchange.request);
        while self.input != exchange.answer {
            self.write()?;
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(
                !left.is_zero() && self.input.len() < exchange.answer.len(),
                "{:?}",
                String::from_utf8_lossy(&self.input)
            );
            let flags = if self.output.is_empty() { PollFlags::POLLIN } else { PollFlags::POLLOUT };
            let stream = self.stream.as_ref().context("no connection")?;
            ppoll(&mut [PollFd::new(stream.as_fd(), flags)], Some(TimeSpec::from_duration(left)), None)?;
            ensure!(self.read()?, "connection closed");
        }
        self.input.clear();
        Ok(())
    }
}
