//! Redirections on a connection of a client's own to a node of a cluster: no client reads where the nodes are.
//!
//! A request there depends on its connection, and cannot be sent to another node. So an error that would send the client
//! past gate becomes `TRYAGAIN`, of the same length: another try finds the node that the slot has then. One whose beginning has been
//! given to the client already, in an earlier read, cannot be changed: the client is closed.

use std::ops::Range;

use crate::dispatcher::wire::buffer::Buffer;
use crate::protocol::resp::{Kind, Part, Replies, error_code};

/// A node's replies over one connection, as far as they have come.
#[derive(Debug)]
pub(super) struct RedirectGuard {
    replies: Replies,
    /// Received, and too short to decode.
    rest: Buffer,
}

/// An error that cannot be kept from the client any more, or bytes that are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLate;

impl RedirectGuard {
    pub(super) fn new() -> Self {
        Self { replies: Replies::new(LONGEST), rest: Buffer::default() }
    }

    /// The places in `bytes`, which have just come, of the redirections that end there.
    pub(super) fn find(&mut self, bytes: &[u8]) -> Result<Vec<Range<usize>>, TooLate> {
        let before = self.rest.len();
        self.rest.push(bytes);
        let mut at = 0;
        let mut found = Vec::new();
        while !self.rest.is_empty() {
            let part = self.replies.next(self.rest.bytes()).map_err(|_| TooLate)?;
            let len = match part {
                Part::More { .. } => break,
                Part::Reply { len, kind: Kind::Error, .. } => {
                    if matches!(error_code(&self.rest.bytes()[..len]), Some(b"MOVED" | b"ASK")) {
                        let begin = usize::checked_sub(at, before).ok_or(TooLate)?;
                        found.push(begin..begin + len);
                    }
                    len
                }
                Part::Reply { len, .. } | Part::Body { len, .. } => len,
            };
            self.rest.consume(len);
            at += len;
        }
        Ok(found)
    }
}

/// Writes `TRYAGAIN` over a redirection, which is no shorter.
pub(super) fn conceal(redirection: &mut [u8]) {
    let end = redirection.len().saturating_sub(LINE_END);
    for (place, byte) in redirection[..end].iter_mut().enumerate() {
        *byte = AGAIN.get(place).copied().unwrap_or(b' ');
    }
}

const AGAIN: &[u8] = b"-TRYAGAIN moved";
const LINE_END: usize = 2;
/// Longer than any redirection.
const LONGEST: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_are_found_whole_and_concealed() {
        let replies =
            b"+OK\r\n$14\r\n-MOVED 1 a:1\r\n\r\n-MOVED 3999 198.18.0.1:6381\r\n:1\r\n-ASK 1 :1\r\n-ERR\r\n";
        let mut bytes = replies.to_vec();
        for place in RedirectGuard::new().find(replies).unwrap() {
            conceal(&mut bytes[place]);
        }
        let expected =
            b"+OK\r\n$14\r\n-MOVED 1 a:1\r\n\r\n-TRYAGAIN moved            \r\n:1\r\n-TRYAGAIN\r\n-ERR\r\n";
        assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(expected));
    }

    #[test]
    fn one_that_is_cut_is_too_late_wherever() {
        let replies = b"+OK\r\n-MOVED 3999 198.18.0.1:6381\r\n";
        for cut in 6..replies.len() {
            let mut guard = RedirectGuard::new();
            let first = guard.find(&replies[..cut]);
            assert_eq!(first, Ok(Vec::new()), "{cut}");
            assert_eq!(guard.find(&replies[cut..]), Err(TooLate), "{cut}");
        }
        let mut guard = RedirectGuard::new();
        assert_eq!(guard.find(b"+OK\r\n"), Ok(Vec::new()));
        assert_eq!(guard.find(&replies[5..]).map(|found| found.len()), Ok(1));
    }
}
