//! One connection to the store.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use gate_common::units::Nanos;

use super::command::MAX_COMMAND;
use super::session::Session;

/// A client, what it has sent and what it has yet to read.
pub(super) struct Client {
    pub(super) stream: TcpStream,
    /// The state of a RESP or HTTP connection.
    pub(super) session: Option<Session>,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    /// When its last answer is due: the next comes no earlier.
    pub(super) last_done: Nanos,
    /// Answers that are not yet due, and their bytes.
    pub(super) pending: usize,
    pub(super) pending_bytes: usize,
    /// The client has quit or sent a malformed command: its connection is closed when it has read its answers.
    pub(super) closing: bool,
}

impl Client {
    pub(super) fn new(stream: TcpStream, session: Option<Session>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            session,
            input: Vec::new(),
            output: Vec::new(),
            last_done: Nanos::ZERO,
            pending: 0,
            pending_bytes: 0,
            closing: false,
        })
    }

    /// True while the client's unread answers are within bounds.
    pub(super) fn may_run(&self) -> bool {
        !self.closing && self.pending < MAX_PENDING && self.pending_bytes + self.output.len() < MAX_OUTPUT
    }

    /// True while more input may be read.
    pub(super) fn may_read(&self) -> bool {
        self.may_run() && self.input.len() < MAX_COMMAND
    }

    /// True when the connection can be closed.
    pub(super) fn is_done(&self) -> bool {
        self.closing && self.pending == 0 && self.output.is_empty()
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// If it has gone.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        while self.may_read() {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.input.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes what it takes.
    ///
    /// # Errors
    /// If it has gone.
    pub(super) fn write(&mut self) -> io::Result<()> {
        let mut done = 0;
        while done < self.output.len() {
            match self.stream.write(&self.output[done..]) {
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.drain(..done);
        Ok(())
    }
}

/// Answers that are not yet due or not yet read, in bytes, beyond which nothing more is run; the last may exceed it.
const MAX_OUTPUT: usize = 1 << 20;
/// Answers not yet due, beyond which nothing more is run.
const MAX_PENDING: usize = 1_024;
