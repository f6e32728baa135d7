//! A load that keeps every connection busy: each sends its requests in one go, waits for all the answers, and
//! sends again. One thread, so that it takes one core and no more.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

/// The request that each connection repeats.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// How many connections there are.
    pub(super) connections: usize,
    /// How many requests are sent in one go.
    pub(super) pipelined: usize,
    /// One request. Where it says [`NUMBER`], one of [`NUMBERS`] is sent, another in each of those that go together.
    pub(super) request: String,
    /// The end of its answer.
    pub(super) answer: Answer,
}

/// Two digits, in a request.
pub(super) const NUMBER: &str = "##";
/// How many there are: as many as the requests that one connection sends in one go, or more.
pub(super) const NUMBERS: usize = 16;

/// How long an answer is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// So many bytes.
    Bytes(usize),
    /// One line, whatever it says.
    Line,
}

impl Answer {
    /// How long so many answers are, in the unit of [`Answer::amount`].
    const fn times(self, answers: usize) -> usize {
        match self {
            Self::Bytes(each) => each * answers,
            Self::Line => answers,
        }
    }

    /// How much of answers there is in `bytes`.
    fn amount(self, bytes: &[u8]) -> usize {
        match self {
            Self::Bytes(_) => bytes.len(),
            Self::Line => bytes.iter().filter(|&&byte| byte == b'\n').count(),
        }
    }
}

/// The result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Answers.
    pub(super) requests: u64,
    /// Answers a second.
    pub(super) per_sec: f64,
    /// Microseconds from sending to the last answer of those sent together, at p50, p99 and p99.9.
    pub(super) micros: [f64; 3],
}

struct Connection {
    stream: TcpStream,
    sent: Instant,
    left: usize,
}

impl Load {
    /// Runs it for a while.
    ///
    /// # Errors
    ///
    /// If a connection fails, or an answer is missing for [`PATIENCE`].
    pub(super) fn run(&self, server: SocketAddr, lasts: Duration) -> Result<Outcome> {
        let batches: Vec<_> = (0..NUMBERS).map(|first| self.batch(first)).collect();
        let batch = |connection: usize| &batches[connection % NUMBERS];
        let connect = |connection| self.connect(server, batch(connection));
        let mut connections = (0..self.connections).map(connect).collect::<Result<Vec<_>>>()?;
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        for (number, connection) in (0..).zip(&connections) {
            epoll.add(&connection.stream, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        }
        let began = Instant::now();
        let mut took = Vec::new();
        let mut piece = vec![0; 1 << 18];
        let mut ready = vec![EpollEvent::empty(); self.connections];
        while began.elapsed() < lasts {
            let count = epoll.wait(&mut ready, PATIENCE)?;
            ensure!(count > 0, "no answer from {server}");
            for event in &ready[..count] {
                let number = usize::try_from(event.data())?;
                let connection = &mut connections[number];
                if connection.read(&mut piece, self.answer)? {
                    took.push(connection.sent.elapsed());
                    connection.send(batch(number), self.answer.times(self.pipelined))?;
                }
            }
        }
        let lasted = began.elapsed().as_secs_f64();
        took.sort_unstable();
        let at = |share: f64| {
            let place = ((took.len() as f64 * share) as usize).min(took.len().saturating_sub(1));
            took.get(place).map_or(f64::NAN, |took| took.as_secs_f64() * 1e6)
        };
        let requests = (took.len() * self.pipelined) as u64;
        Ok(Outcome { requests, per_sec: requests as f64 / lasted, micros: [at(0.5), at(0.99), at(0.999)] })
    }

    /// The requests that are sent in one go, with numbers from `first` on.
    pub(super) fn batch(&self, first: usize) -> Vec<u8> {
        let request = |number: usize| self.request.replace(NUMBER, &format!("{:02}", number % NUMBERS));
        (first..first + self.pipelined).map(request).collect::<String>().into_bytes()
    }

    fn connect(&self, server: SocketAddr, batch: &[u8]) -> Result<Connection> {
        let stream = TcpStream::connect(server).with_context(|| format!("connecting to {server}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut connection = Connection { stream, sent: Instant::now(), left: 0 };
        connection.send(batch, self.answer.times(self.pipelined))?;
        Ok(connection)
    }
}

impl Connection {
    fn send(&mut self, mut batch: &[u8], left: usize) -> Result<()> {
        (self.sent, self.left) = (Instant::now(), left);
        while !batch.is_empty() {
            match self.stream.write(batch) {
                Ok(len) => batch = &batch[len..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)], PATIENCE)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what has come; whether that was all.
    fn read(&mut self, piece: &mut [u8], answer: Answer) -> Result<bool> {
        match self.stream.read(piece) {
            Ok(0) => anyhow::bail!("the connection was closed"),
            Ok(len) => {
                let said = &piece[..len.min(200)];
                let amount = answer.amount(&piece[..len]);
                ensure!(
                    amount <= self.left,
                    "more was answered than expected: {}",
                    String::from_utf8_lossy(said)
                );
                self.left -= amount;
                Ok(self.left == 0)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// In milliseconds.
const PATIENCE: u16 = 10_000;
