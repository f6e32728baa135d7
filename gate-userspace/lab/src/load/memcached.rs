//! memcached's text protocol, as much of it as a client needs: requests out, answers in.

use gate_common::abi::Reason;

use super::mix::Request;
use gate_protocol::Blame;

/// memcached's header of a datagram: request id, number of this datagram, how many, reserved.
pub(super) const FRAME_BYTES: usize = 8;

/// Appends a request.
pub(super) fn encode(request: Request<'_>, out: &mut Vec<u8>) {
    match request {
        Request::Get { key } | Request::MultiGet { keys: key, .. } => {
            out.extend_from_slice(b"get ");
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Request::Set { key, value_bytes } => {
            out.extend_from_slice(b"set ");
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(format!(" 0 0 {value_bytes}\r\n").as_bytes());
            out.resize(out.len() + value_bytes, b'v');
            out.extend_from_slice(b"\r\n");
        }
        Request::Delete { key } => {
            out.extend_from_slice(b"delete ");
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        // No plan has them: `Entry::refusal`.
        Request::Range { .. } | Request::Script { .. } | Request::Custom { .. } => {}
    }
}

/// Appends the header of a single datagram.
pub(super) fn encode_frame(id: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A value.
    Hit,
    /// No value.
    Miss,
    /// A write was done.
    Done,
    /// gate refused; the short form from the interface gives no reason, nor does another limiter.
    Refused(Option<Reason>),
    /// Anything else that ends a request.
    Error,
}

/// Reads a datagram: its request's id and, if it is the last of the answer, the answer.
pub(super) fn decode_frame(datagram: &[u8]) -> Option<(u16, Option<Reply>)> {
    let (frame, body) = datagram.split_at_checked(FRAME_BYTES)?;
    let word = |i: usize| u16::from_be_bytes([frame[i], frame[i + 1]]);
    let id = word(0);
    let number = word(2);
    let of = word(4);
    if number < of.saturating_sub(1) {
        return Some((id, None));
    }
    // The end of a long value may begin anywhere.
    let reply = if number > 0 { Reply::Hit } else { first_line(body) };
    Some((id, Some(reply)))
}

fn first_line(body: &[u8]) -> Reply {
    let line = body.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.starts_with(b"VALUE ") { Reply::Hit } else { classify(line) }
}

/// The meaning of a line that is a whole answer.
fn classify(line: &[u8]) -> Reply {
    match line {
        b"END" | b"NOT_FOUND" => Reply::Miss,
        b"STORED" | b"DELETED" => Reply::Done,
        _ => match line.strip_prefix(b"SERVER_ERROR ") {
            Some(rest) if Blame::ALL.into_iter().any(|blame| rest.starts_with(blame.word().as_bytes())) => {
                Reply::Refused(reason(rest))
            }
            _ => Reply::Error,
        },
    }
}

/// The reason that a refusal gives, whatever the protocol.
pub(super) fn reason(text: &[u8]) -> Option<Reason> {
    let named = text.split(|&byte| byte == b' ').find_map(|word| word.strip_prefix(b"reason="))?;
    Reason::ALL.into_iter().find(|reason| reason.name().as_bytes() == named)
}

/// Takes the answers out of a stream that may be cut anywhere.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// The line that has begun.
    line: Vec<u8>,
    /// Bytes of a value, its line end included, still to come.
    skip: usize,
    /// A value was seen for the answer that has begun.
    hit: bool,
}

/// A line longer than this is no memcached.
const MAX_LINE: usize = 2_048;

/// The other end does not speak the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbage;

impl Replies {
    /// Reads on; calls `each` with every answer that is complete.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(Reply)) -> Result<(), Garbage> {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
                self.line.extend_from_slice(bytes);
                break;
            };
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            if let Some(reply) = self.line()? {
                each(reply);
            }
            self.line.clear();
        }
        if self.line.len() > MAX_LINE { Err(Garbage) } else { Ok(()) }
    }

    fn line(&mut self) -> Result<Option<Reply>, Garbage> {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        if let Some(value) = line.strip_prefix(b"VALUE ") {
            // Key, flags, bytes and, of a gets, the version.
            let bytes = value.split(|&byte| byte == b' ').nth(2);
            let bytes: Option<usize> = bytes
                .and_then(|digits| std::str::from_utf8(digits).ok())
                .and_then(|digits| digits.parse().ok());
            self.skip = bytes.and_then(|bytes| bytes.checked_add(2)).ok_or(Garbage)?;
            self.hit = true;
            return Ok(None);
        }
        let reply = if line == b"END" && self.hit { Reply::Hit } else { classify(line) };
        self.hit = false;
        Ok(Some(reply))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn requests_are_written_as_memcached_reads_them() {
        let mut out = Vec::new();
        encode_frame(0x1234, &mut out);
        encode(Request::Get { key: "a:1" }, &mut out);
        assert_eq!(out, b"\x12\x34\0\0\0\x01\0\0get a:1\r\n");
        out.clear();
        encode(Request::Set { key: "k", value_bytes: 3 }, &mut out);
        encode(Request::MultiGet { keys: "a b", count: 2 }, &mut out);
        encode(Request::Delete { key: "k" }, &mut out);
        assert_eq!(out, b"set k 0 0 3\r\nvvv\r\nget a b\r\ndelete k\r\n");
    }

    #[test]
    fn a_datagram_is_matched_and_judged() {
        let refused = |reason| Some(Reply::Refused(reason));
        for (frame, body, reply) in [
            ([0, 7, 0, 0, 0, 1], "END\r\n", Some(Reply::Miss)),
            ([0, 7, 0, 0, 0, 1], "VALUE k 0 1\r\nx\r\nEND\r\n", Some(Reply::Hit)),
            ([0, 7, 0, 0, 0, 1], "STORED\r\n", Some(Reply::Done)),
            ([0, 7, 0, 0, 0, 1], "DELETED\r\n", Some(Reply::Done)),
            ([0, 7, 0, 0, 0, 1], "NOT_FOUND\r\n", Some(Reply::Miss)),
            ([0, 7, 0, 0, 0, 1], "SERVER_ERROR throttled\r\n", refused(None)),
            (
                [0, 7, 0, 0, 0, 1],
                "SERVER_ERROR denied reason=too-large rule=size\r\n",
                refused(Some(Reason::TooLarge)),
            ),
            (
                [0, 7, 0, 0, 0, 1],
                "SERVER_ERROR overloaded retry_after_ms=3 reason=slo\r\n",
                refused(Some(Reason::Slo)),
            ),
            (
                [0, 7, 0, 0, 0, 1],
                "SERVER_ERROR uncertain reason=store-down\r\n",
                refused(Some(Reason::StoreDown)),
            ),
            ([0, 7, 0, 0, 0, 1], "SERVER_ERROR out of memory\r\n", Some(Reply::Error)),
            ([0, 7, 0, 0, 0, 1], "", Some(Reply::Error)),
            ([0, 7, 0, 0, 0, 2], "VALUE k 0 2000\r\nxx", None),
            ([0, 7, 0, 1, 0, 2], "xx\r\nEND\r\n", Some(Reply::Hit)),
        ] {
            let datagram = [&frame[..], &[0, 0], body.as_bytes()].concat();
            assert_eq!(decode_frame(&datagram), Some((7, reply)), "{frame:?} {body:?}");
        }
        assert_eq!(decode_frame(&[0, 7, 0, 0, 0, 1, 0]), None);
    }

    const STREAM: &[u8] =
        b"END\r\nVALUE k 0 4\r\nEND\n\r\nEND\r\nSTORED\r\nVALUE a 0 0\r\n\r\nVALUE b 1 1 9\r\nx\r\n\
          END\r\nSERVER_ERROR throttled\r\nERROR\r\n";

    proptest! {
        #[test]
        fn a_stream_cut_anywhere_reads_the_same(cuts in proptest::collection::vec(0..STREAM.len(), 0..6)) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut replies = Replies::default();
            let mut got = Vec::new();
            for piece in cuts.windows(2) {
                replies.feed(&STREAM[piece[0]..piece[1]], |reply| got.push(reply)).unwrap();
            }
            let refused = Reply::Refused(None);
            prop_assert_eq!(got, [Reply::Miss, Reply::Hit, Reply::Done, Reply::Hit, refused, Reply::Error]);
        }

        #[test]
        fn no_answer_makes_it_panic_or_grow(bytes in proptest::collection::vec(any::<u8>(), 0..5_000)) {
            let mut replies = Replies::default();
            for piece in bytes.chunks(100) {
                if replies.feed(piece, |_| ()).is_err() {
                    break;
                }
            }
            prop_assert!(replies.line.len() <= MAX_LINE + 100);
            let _ = decode_frame(&bytes);
        }
    }

    #[test]
    fn garbage_is_noticed() {
        let mut replies = Replies::default();
        assert_eq!(replies.feed(b"VALUE k 0 many\r\n", |_| ()), Err(Garbage));
        assert_eq!(Replies::default().feed(&[b'x'; MAX_LINE + 1], |_| ()), Err(Garbage));
    }
}
