//! The sender of a datagram: its address, and how much it may be sent.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use super::udp::{Arrival, Socket};
use crate::protocol::memcached::udp;

/// The sender of a datagram.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) socket: Rc<Socket>,
    pub(crate) arrival: Arrival,
    /// The client's number for its request.
    pub(crate) id: u16,
    /// How long what it sent is, and how much of the answer has been taken from its tenant's budget already.
    pub(crate) len: usize,
    pub(crate) replied: Cell<usize>,
    /// The kernel has judged it by its quota.
    pub(crate) judged: bool,
}

impl Sender {
    /// Sends an answer, from one of its datagrams on.
    ///
    /// # Errors
    ///
    /// The datagram for which there was no room.
    pub(crate) fn send(&self, answer: &[u8], from: usize) -> Result<(), usize> {
        // One that cannot be counted in datagrams is longer than anyone waits for.
        let Some(datagrams) = udp::answer(self.id, answer.len()) else { return Ok(()) };
        for (seq, (frame, range)) in datagrams.enumerate().skip(from) {
            match self.socket.answer(&self.arrival, &frame, &answer[range]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(seq),
                // Nobody is there, or there is no way to them: that is no one else's business.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}
