//! RESP, as much of it as a client of `GET` and `SET` needs: requests out, answers in. Pure.

use super::memcached::{Garbage, Reply, reason};
use super::workload::Request;
use crate::protocol::Blame;

/// Appends a request.
pub(super) fn encode(request: Request<'_>, out: &mut Vec<u8>) {
    match request {
        Request::Get { key } => {
            out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
            bulk(key.len(), |out| out.extend_from_slice(key.as_bytes()), out);
        }
        Request::Set { key, value_bytes } => {
            out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
            bulk(key.len(), |out| out.extend_from_slice(key.as_bytes()), out);
            bulk(value_bytes, |out| out.resize(out.len() + value_bytes, b'v'), out);
        }
    }
}

fn bulk(len: usize, write: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(format!("${len}\r\n").as_bytes());
    write(out);
    out.extend_from_slice(b"\r\n");
}

/// Takes the answers out of a stream that may be cut anywhere.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// The line that has begun.
    line: Vec<u8>,
    /// Bytes of a value, its line end included, still to come.
    skip: usize,
}

/// A line longer than this is in answer to neither request.
const MAX_LINE: usize = 2_048;

impl Replies {
    /// Reads on; calls `each` with every answer that is complete.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(Reply)) -> Result<(), Garbage> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                if self.skip == 0 {
                    each(Reply::Hit);
                }
                continue;
            }
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
        let line = self.line.strip_suffix(b"\r").ok_or(Garbage)?;
        match line.split_first() {
            Some((b'+', _)) => Ok(Some(Reply::Done)),
            Some((b'-', error)) => {
                let refused = Blame::ALL.into_iter().any(|blame| {
                    error.strip_prefix(blame.code().as_bytes()).is_some_and(|rest| rest.starts_with(b" "))
                });
                Ok(Some(if refused { Reply::Refused(reason(error)) } else { Reply::Error }))
            }
            Some((b'$', b"-1")) | Some((b'_', b"")) => Ok(Some(Reply::Miss)),
            Some((b'$', len)) => {
                let len = std::str::from_utf8(len).ok().and_then(|len| len.parse::<usize>().ok());
                self.skip = len.and_then(|len| len.checked_add(2)).ok_or(Garbage)?;
                Ok(None)
            }
            _ => Err(Garbage),
        }
    }
}

#[cfg(test)]
mod tests {
    use gate_common::abi::Reason;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn requests_are_written_as_redis_reads_them() {
        let mut out = Vec::new();
        encode(Request::Get { key: "a:1" }, &mut out);
        encode(Request::Set { key: "k", value_bytes: 3 }, &mut out);
        let expected = b"*2\r\n$3\r\nGET\r\n$3\r\na:1\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nvvv\r\n";
        assert_eq!(out, expected);
    }

    const STREAM: &[u8] =
        b"$-1\r\n$5\r\n\r\n-1\n\r\n+OK\r\n$0\r\n\r\n-THROTTLED retry_after_ms=3 reason=quota\r\n\
          -OVERLOADED retry_after_ms=1 reason=slo\r\n-UNCERTAIN reason=store-down\r\n-WRONGTYPE no\r\n_\r\n";

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
            let refused = |reason| Reply::Refused(Some(reason));
            let refusals = [Reason::Quota, Reason::Slo, Reason::StoreDown].map(refused);
            let expected = [&[Reply::Miss, Reply::Hit, Reply::Done, Reply::Hit], &refusals[..]].concat();
            prop_assert_eq!(got, [&expected[..], &[Reply::Error, Reply::Miss]].concat());
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
        }
    }

    #[test]
    fn garbage_is_noticed() {
        for garbage in [&b"$many\r\n"[..], b":1\r\n", b"+OK\n", &[b'+'; MAX_LINE + 1]] {
            assert_eq!(Replies::default().feed(garbage, |_| ()), Err(Garbage));
        }
    }
}
