//! A load that keeps every connection busy: each sends its requests in one go, waits for all the answers, and
//! sends again. One thread, so that it takes one core and no more.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

/// The request that each connection repeats.
#[derive(Clone, Debug)]
pub struct Load {
    /// How many connections there are.
    pub connections: usize,
    /// How many requests are sent in one go.
    pub pipelined: usize,
    /// One request. Where it says [`NUMBER`], one of `numbers` is sent, another in each of those that go together.
    pub request: String,
    /// How many numbers there are: [`NUMBERS`] of two digits, or up to 10,000 of four.
    pub numbers: usize,
    /// Sent in the place of every second request.
    pub every_other: Option<String>,
    /// The end of its answer.
    pub answer: Answer,
    /// The time from an answer to the connection's next request.
    pub pause: Duration,
}

/// A number, in a request.
pub const NUMBER: &str = "##";
/// How many there usually are: as many as the requests that one connection sends in one go, or more.
pub const NUMBERS: usize = 16;

/// How long an answer is.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// So many bytes; a refusal is one line.
    Bytes(usize),
    /// One line, whatever it says.
    Line,
    /// A response of HTTP with a length; a status of 400 or above is a refusal.
    Http,
}

/// Where in its answers a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// At the beginning of one.
    Start,
    /// Behind an `S`, with which refusals of memcached and some of its answers begin.
    AfterS,
    /// So many bytes before the end of one.
    Within(usize),
    /// In a refusal.
    Refusal,
}

/// The answers that a connection has read.
#[derive(Clone, Copy, Debug)]
struct Answers {
    position: Position,
    whole: usize,
    refused: u64,
}

impl Answers {
    const NONE: Self = Self { position: Position::Start, whole: 0, refused: 0 };

    /// Takes whole responses off the front of what was said.
    fn take_responses(&mut self, said: &mut Vec<u8>) -> Result<()> {
        while let Some(end) = said.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = str::from_utf8(&said[..end])?;
            let status: u16 = head.split(' ').nth(1).context("no status")?.parse()?;
            let is_length =
                |line: &&str| line.get(..15).is_some_and(|name| name.eq_ignore_ascii_case("content-length:"));
            let length = head.lines().find(is_length).context("no length")?[15..].trim();
            let whole = end + 4 + length.parse::<usize>()?;
            if said.len() < whole {
                break;
            }
            said.drain(..whole);
            self.whole += 1;
            self.refused += u64::from(status >= 400);
        }
        Ok(())
    }

    fn take(&mut self, mut bytes: &[u8], answer: Answer) {
        let Answer::Bytes(each) = answer else {
            self.whole += bytes.iter().filter(|&&byte| byte == b'\n').count();
            return;
        };
        while let Some(&first) = bytes.first() {
            let taken = match self.position {
                Position::Start => {
                    self.position = match first {
                        b'-' => Position::Refusal,
                        b'S' => Position::AfterS,
                        _ => Position::Within(each),
                    };
                    usize::from(first == b'S')
                }
                Position::AfterS => {
                    self.position =
                        if first == b'E' { Position::Refusal } else { Position::Within(each - 1) };
                    0
                }
                Position::Within(left) => {
                    let taken = left.min(bytes.len());
                    self.position = Position::Within(left - taken);
                    self.end_answer_if(left == taken);
                    taken
                }
                Position::Refusal => {
                    let end = bytes.iter().position(|&byte| byte == b'\n');
                    self.refused += u64::from(end.is_some());
                    self.end_answer_if(end.is_some());
                    end.map_or(bytes.len(), |end| end + 1)
                }
            };
            bytes = &bytes[taken..];
        }
    }

    fn end_answer_if(&mut self, is_whole: bool) {
        if is_whole {
            self.whole += 1;
            self.position = Position::Start;
        }
    }
}

/// The result.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Answers, refusals included.
    pub requests: u64,
    /// Refusals.
    pub refused: u64,
    /// Answers a second.
    pub per_sec: f64,
    /// Microseconds from sending to the last answer of those sent together, at p50, p99 and p99.9.
    pub micros: [f64; 3],
}

struct Connection {
    stream: TcpStream,
    sent: Instant,
    /// How many answers are awaited.
    awaited: usize,
    answers: Answers,
    /// Of a response what has come.
    said: Vec<u8>,
    /// The batch that it sends next.
    next: usize,
}

impl Load {
    /// Runs it for a while.
    ///
    /// # Errors
    ///
    /// If a connection fails, or an answer is missing for 10 s.
    pub fn run(&self, server: SocketAddr, lasts: Duration) -> Result<Outcome> {
        // One that holds all numbers is enough.
        let count = if self.pipelined > NUMBERS { 1 } else { self.numbers };
        let batches: Vec<_> = (0..count).map(|first| self.batch(first)).collect();
        let connect = |connection| self.connect(server, &batches, connection);
        let mut connections = (0..self.connections).map(connect).collect::<Result<Vec<_>>>()?;
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        for (number, connection) in (0..).zip(&connections) {
            epoll.add(&connection.stream, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        }
        let began = Instant::now();
        let mut took = Vec::new();
        let mut refused = 0;
        let mut piece = vec![0; 1 << 18];
        let mut ready = vec![EpollEvent::empty(); self.connections];
        // Those that have their answer, with the time of their next request.
        let mut resting: VecDeque<(Instant, usize)> = VecDeque::new();
        while began.elapsed() < lasts {
            let left = resting.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
            let patience = left.map_or(PATIENCE, |left| u16::try_from(left.as_millis()).unwrap_or(PATIENCE));
            let count = epoll.wait(&mut ready, patience)?;
            ensure!(count > 0 || !resting.is_empty(), "no answer from {server}");
            for event in &ready[..count] {
                let number = usize::try_from(event.data())?;
                let connection = &mut connections[number];
                if connection.read(&mut piece, self.answer)? {
                    took.push(connection.sent.elapsed());
                    refused += connection.answers.refused;
                    if self.pause.is_zero() {
                        connection.send(&batches, self.pipelined)?;
                    } else {
                        resting.push_back((Instant::now() + self.pause, number));
                    }
                }
            }
            while let Some((_, number)) = resting.pop_front_if(|(due, _)| *due <= Instant::now()) {
                connections[number].send(&batches, self.pipelined)?;
            }
        }
        let lasted = began.elapsed().as_secs_f64();
        took.sort_unstable();
        let at = |share: f64| {
            let place = ((took.len() as f64 * share) as usize).min(took.len().saturating_sub(1));
            took.get(place).map_or(f64::NAN, |took| took.as_secs_f64() * 1e6)
        };
        let requests = (took.len() * self.pipelined) as u64;
        let micros = [at(0.5), at(0.99), at(0.999)];
        Ok(Outcome { requests, refused, per_sec: requests as f64 / lasted, micros })
    }

    /// The requests that are sent in one go, with numbers from `first` on.
    pub fn batch(&self, first: usize) -> Vec<u8> {
        let digits = if self.numbers > NUMBERS { 4 } else { 2 };
        let request = |number: usize| match &self.every_other {
            Some(other) if number.is_multiple_of(2) => other.clone(),
            _ => self.request.replace(NUMBER, &format!("{:0digits$}", number % self.numbers)),
        };
        (first..first + self.pipelined).map(request).collect::<String>().into_bytes()
    }

    fn connect(&self, server: SocketAddr, batches: &[Vec<u8>], number: usize) -> Result<Connection> {
        let stream = TcpStream::connect(server).with_context(|| format!("connecting to {server}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let next = number % batches.len();
        let mut connection = Connection {
            stream,
            sent: Instant::now(),
            awaited: 0,
            answers: Answers::NONE,
            said: Vec::new(),
            next,
        };
        connection.send(batches, self.pipelined)?;
        Ok(connection)
    }
}

impl Connection {
    fn send(&mut self, batches: &[Vec<u8>], awaited: usize) -> Result<()> {
        (self.sent, self.awaited, self.answers) = (Instant::now(), awaited, Answers::NONE);
        let mut batch = &batches[self.next][..];
        // With few numbers each connection repeats its batch.
        if batches.len() > NUMBERS {
            self.next = (self.next + STEP) % batches.len();
        }
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
                if let Answer::Http = answer {
                    self.said.extend_from_slice(&piece[..len]);
                    self.answers.take_responses(&mut self.said)?;
                } else {
                    self.answers.take(&piece[..len], answer);
                }
                ensure!(
                    self.answers.whole <= self.awaited,
                    "more was answered than expected: {}",
                    String::from_utf8_lossy(said)
                );
                Ok(self.answers.whole == self.awaited)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// From one batch of a connection to its next: odd, so that requests of either kind follow each other, and every batch has its turn.
const STEP: usize = 67;
/// In milliseconds.
const PATIENCE: u16 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_refusals_are_told_apart_wherever_reads_end() {
        let read = b"$2\r\nvv\r\n-DENIED reason=slo\r\n$2\r\nvv\r\n";
        let stored = b"STORED\r\nSERVER_ERROR no\r\nSTORED\r\n";
        for (bytes, each) in [(&read[..], 8), (&stored[..], 8)] {
            for cut in 0..bytes.len() {
                let mut answers = Answers::NONE;
                answers.take(&bytes[..cut], Answer::Bytes(each));
                answers.take(&bytes[cut..], Answer::Bytes(each));
                assert_eq!((answers.whole, answers.refused), (3, 1), "{cut}");
            }
        }
    }

    #[test]
    fn responses_are_whole_wherever_reads_end() {
        let bytes =
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\r\nvHTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n";
        for cut in 0..bytes.len() {
            let mut answers = Answers::NONE;
            let mut said = bytes[..cut].to_vec();
            answers.take_responses(&mut said).unwrap();
            said.extend_from_slice(&bytes[cut..]);
            answers.take_responses(&mut said).unwrap();
            assert_eq!((answers.whole, answers.refused, said.len()), (2, 1, 0), "{cut}");
        }
    }

    #[test]
    fn every_second_request_is_the_other_and_numbers_follow() {
        let load = Load {
            connections: 1,
            pipelined: 4,
            request: "get ##;".into(),
            numbers: 20,
            every_other: Some("hot;".into()),
            answer: Answer::Line,
            pause: Duration::ZERO,
        };
        assert_eq!(load.batch(17), b"get 0017;hot;get 0019;hot;");
    }
}
