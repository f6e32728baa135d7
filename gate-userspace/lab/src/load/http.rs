//! HTTP/1.1, as much of it as a client needs: requests out, answers in. Pure.
//!
//! A key is a path: `GET /key`, `PUT /key`, `DELETE /key`. A list of words is a method and a path.

use gate_common::abi::Reason;

use super::memcached::{Garbage, Reply};
use super::mix::{KEY, Request};

/// Appends a request.
pub(super) fn encode(request: Request<'_>, out: &mut Vec<u8>) {
    match request {
        Request::Get { key } => head("GET", &["/", key], out),
        Request::Delete { key } => head("DELETE", &["/", key], out),
        Request::Set { key, value_bytes } => {
            line("PUT", &["/", key], out);
            out.extend_from_slice(format!("Content-Length: {value_bytes}\r\n\r\n").as_bytes());
            out.resize(out.len() + value_bytes, b'v');
        }
        Request::Custom { key, words } => {
            // No plan has more words, or fewer: `Entry::refusal`.
            if let [method, path] = words {
                head(method, &[&path.replace(KEY, key)], out);
            }
        }
        // Nor has any plan these.
        Request::MultiGet { .. } | Request::Range { .. } | Request::Script { .. } => {}
    }
}

fn head(method: &str, path: &[&str], out: &mut Vec<u8>) {
    line(method, path, out);
    out.extend_from_slice(b"\r\n");
}

fn line(method: &str, path: &[&str], out: &mut Vec<u8>) {
    out.extend_from_slice(method.as_bytes());
    out.push(b' ');
    path.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
    out.extend_from_slice(b" HTTP/1.1\r\nHost: load\r\n");
}

/// Takes the answers out of a stream that may be cut anywhere.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// The line that has begun.
    line: Vec<u8>,
    part: Part,
    /// The answer that has begun, as far as its head tells.
    status: u16,
    length: u64,
    is_chunked: bool,
    reason: Option<Reason>,
}

/// The part of an answer that is read next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Status,
    Fields,
    /// So many bytes of a body.
    Body(u64),
    ChunkSize,
    /// So many bytes of a chunk, its end included.
    Chunk(u64),
    Trailers,
}

/// A line longer than this answers none of the requests.
const MAX_LINE: usize = 16 << 10;

impl Replies {
    /// Reads on; calls `each` with every answer that is complete.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(Reply)) -> Result<(), Garbage> {
        while !bytes.is_empty() {
            if let Part::Body(left) | Part::Chunk(left) = self.part {
                let passed = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                bytes = &bytes[passed..];
                self.passed(left - passed as u64).into_iter().for_each(&mut each);
                continue;
            }
            let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
                self.line.extend_from_slice(bytes);
                break;
            };
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            let line = line.strip_suffix(b"\r").ok_or(Garbage)?;
            self.read_line(line)?.into_iter().for_each(&mut each);
        }
        if self.line.len() > MAX_LINE { Err(Garbage) } else { Ok(()) }
    }

    /// So many bytes are left of the present part.
    fn passed(&mut self, left: u64) -> Option<Reply> {
        match self.part {
            Part::Body(_) if left == 0 => Some(self.complete()),
            Part::Body(_) => {
                self.part = Part::Body(left);
                None
            }
            _ => {
                self.part = if left == 0 { Part::ChunkSize } else { Part::Chunk(left) };
                None
            }
        }
    }

    fn read_line(&mut self, line: &[u8]) -> Result<Option<Reply>, Garbage> {
        match self.part {
            Part::Status => {
                let text = std::str::from_utf8(line).map_err(|_| Garbage)?;
                let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
                self.status = status.and_then(|status| status.parse().ok()).ok_or(Garbage)?;
                (self.length, self.is_chunked, self.reason) = Default::default();
                self.part = Part::Fields;
                Ok(None)
            }
            Part::Fields if line.is_empty() => Ok(self.head_complete()),
            Part::Fields => self.field(line).map(|()| None),
            Part::ChunkSize => {
                let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
                let text = std::str::from_utf8(digits).map_err(|_| Garbage)?;
                let size = u64::from_str_radix(text.trim(), 16).map_err(|_| Garbage)?;
                let with_end = size.checked_add(2).ok_or(Garbage)?;
                self.part = if size == 0 { Part::Trailers } else { Part::Chunk(with_end) };
                Ok(None)
            }
            Part::Trailers => Ok(line.is_empty().then(|| self.complete())),
            Part::Body(_) | Part::Chunk(_) => Err(Garbage),
        }
    }

    fn field(&mut self, line: &[u8]) -> Result<(), Garbage> {
        let text = String::from_utf8_lossy(line);
        let (name, value) = text.split_once(':').ok_or(Garbage)?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => self.length = value.parse().map_err(|_| Garbage)?,
            "transfer-encoding" => self.is_chunked = value.eq_ignore_ascii_case("chunked"),
            "gate-reason" => self.reason = Reason::ALL.into_iter().find(|reason| reason.name() == value),
            _ => {}
        }
        Ok(())
    }

    fn head_complete(&mut self) -> Option<Reply> {
        match self.status {
            // More of the same answer follows.
            100..=199 => {
                self.part = Part::Status;
                None
            }
            204 | 304 => Some(self.complete()),
            _ if self.is_chunked => {
                self.part = Part::ChunkSize;
                None
            }
            _ if self.length > 0 => {
                self.part = Part::Body(self.length);
                None
            }
            _ => Some(self.complete()),
        }
    }

    fn complete(&mut self) -> Reply {
        self.part = Part::Status;
        match (self.reason, self.status) {
            (Some(reason), _) => Reply::Refused(Some(reason)),
            // Another limiter's, which gives no reason: Envoy's, nginx's.
            (None, 429) => Reply::Refused(None),
            (None, 201 | 204) => Reply::Done,
            (None, 200..=299) => Reply::Hit,
            (None, 404 | 410) => Reply::Miss,
            _ => Reply::Error,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn requests_are_written_as_servers_read_them() {
        let mut out = Vec::new();
        encode(Request::Get { key: "a:1" }, &mut out);
        encode(Request::Set { key: "k", value_bytes: 3 }, &mut out);
        let words = ["POST".to_owned(), "/push/{key}?x".to_owned()];
        encode(Request::Custom { key: "k", words: &words }, &mut out);
        let expected = "GET /a:1 HTTP/1.1\r\nHost: load\r\n\r\n\
                        PUT /k HTTP/1.1\r\nHost: load\r\nContent-Length: 3\r\n\r\nvvv\
                        POST /push/k?x HTTP/1.1\r\nHost: load\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    const STREAM: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n\r\n\r\n1HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n\
          HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n\
          HTTP/1.1 429 Too Many Requests\r\ngate-reason: quota\r\ncontent-length: 2\r\n\r\nno\
          HTTP/1.1 429 Too Many Requests\r\n\r\n\
          HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n";

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
            let [by_gate, by_another] = [Some(Reason::Quota), None].map(Reply::Refused);
            let expected = [Reply::Hit, Reply::Miss, Reply::Done, Reply::Hit, by_gate, by_another, Reply::Error];
            prop_assert_eq!(got, expected);
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
        for garbage in [
            &b"no\r\n"[..],
            b"HTTP/1.1 x\r\n",
            b"HTTP/1.1 200 OK\n",
            b"HTTP/1.1 200 OK\r\nno field\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            &[b'H'; MAX_LINE + 1],
        ] {
            assert_eq!(Replies::default().feed(garbage, |_| ()), Err(Garbage));
        }
    }
}
