//! RESP, as much of it as a client needs: requests out, answers in. Pure.

use super::memcached::{Garbage, Reply, reason};
use super::mix::{KEY, Request};
use gate_protocol::Blame;

/// Appends a request.
pub(super) fn encode(request: Request<'_>, out: &mut Vec<u8>) {
    match request {
        Request::Get { key } => words(&["GET", key], out),
        Request::Delete { key } => words(&["DEL", key], out),
        Request::Script { key, body } => words(&["EVAL", body, "1", key], out),
        Request::Range { key, rows } => {
            header(4, out);
            bulk("LRANGE", out);
            bulk(key, out);
            bulk("0", out);
            bulk(&(rows - 1).to_string(), out);
        }
        Request::MultiGet { keys, count } => {
            header(1 + count, out);
            bulk("MGET", out);
            keys.split(' ').for_each(|key| bulk(key, out));
        }
        Request::Set { key, value_bytes } => {
            header(3, out);
            bulk("SET", out);
            bulk(key, out);
            value(value_bytes, out);
        }
        Request::Custom { key, words } => {
            header(words.len(), out);
            for word in words {
                if word.contains(KEY) {
                    bulk(&word.replace(KEY, key), out);
                } else {
                    bulk(word, out);
                }
            }
        }
    }
}

/// Appends a request that replaces a list by one of so many rows, each of so many bytes; it has two answers.
pub(super) fn encode_list(key: &str, rows: usize, value_bytes: usize, out: &mut Vec<u8>) {
    words(&["DEL", key], out);
    header(2 + rows, out);
    bulk("RPUSH", out);
    bulk(key, out);
    (0..rows).for_each(|_| value(value_bytes, out));
}

fn words(words: &[&str], out: &mut Vec<u8>) {
    header(words.len(), out);
    words.iter().for_each(|word| bulk(word, out));
}

fn header(words: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{words}\r\n").as_bytes());
}

fn bulk(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn value(bytes: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("${bytes}\r\n").as_bytes());
    out.resize(out.len() + bytes, b'v');
    out.extend_from_slice(b"\r\n");
}

/// Takes the answers out of a stream that may be cut anywhere.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// The line that has begun.
    line: Vec<u8>,
    /// Bytes of a value, its line end included, still to come.
    skip: usize,
    /// Of an answer with several elements, how many are still to come; 0 outside one.
    open: u64,
    /// One of its elements was not null.
    found: bool,
}

/// A line longer than this answers none of the requests.
const MAX_LINE: usize = 2_048;

/// The meaning of a line.
enum Line {
    /// An element that is complete.
    Element(Reply),
    /// A value of so many bytes begins.
    Value(usize),
    /// So many elements begin.
    Elements(u64),
}

impl Replies {
    /// Reads on; calls `each` with every answer that is complete.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(Reply)) -> Result<(), Garbage> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                if self.skip == 0 {
                    self.element(Reply::Hit).into_iter().for_each(&mut each);
                }
                continue;
            }
            let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
                self.line.extend_from_slice(bytes);
                break;
            };
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = read_line(&self.line)?;
            self.line.clear();
            let complete = match line {
                Line::Element(reply) => self.element(reply),
                Line::Value(bytes) => {
                    self.skip = bytes.checked_add(2).ok_or(Garbage)?;
                    None
                }
                Line::Elements(count) => self.elements(count)?,
            };
            complete.into_iter().for_each(&mut each);
        }
        if self.line.len() > MAX_LINE { Err(Garbage) } else { Ok(()) }
    }

    /// An element is complete; the answer, if that was its last.
    fn element(&mut self, reply: Reply) -> Option<Reply> {
        if self.open == 0 {
            return Some(reply);
        }
        self.found |= reply != Reply::Miss;
        self.open -= 1;
        if self.open > 0 {
            return None;
        }
        let found = std::mem::take(&mut self.found);
        Some(if found { Reply::Hit } else { Reply::Miss })
    }

    /// An element begins that has so many.
    fn elements(&mut self, count: u64) -> Result<Option<Reply>, Garbage> {
        if count == 0 {
            return Ok(self.element(Reply::Miss));
        }
        let others = self.open.saturating_sub(1);
        self.open = others.checked_add(count).ok_or(Garbage)?;
        Ok(None)
    }
}

fn read_line(line: &[u8]) -> Result<Line, Garbage> {
    let line = line.strip_suffix(b"\r").ok_or(Garbage)?;
    let (kind, rest) = line.split_first().ok_or(Garbage)?;
    let length = || std::str::from_utf8(rest).ok().and_then(|text| text.parse::<u64>().ok()).ok_or(Garbage);
    match (kind, rest) {
        (b'+' | b':' | b',' | b'#' | b'(', _) => Ok(Line::Element(Reply::Done)),
        (b'-', error) => Ok(Line::Element(error_reply(error))),
        (b'$' | b'*', b"-1") | (b'_', b"") => Ok(Line::Element(Reply::Miss)),
        (b'$' | b'=', _) => Ok(Line::Value(usize::try_from(length()?).map_err(|_| Garbage)?)),
        (b'*' | b'~', _) => Ok(Line::Elements(length()?)),
        (b'%', _) => Ok(Line::Elements(length()?.checked_mul(2).ok_or(Garbage)?)),
        _ => Err(Garbage),
    }
}

fn error_reply(error: &[u8]) -> Reply {
    let refused = Blame::ALL
        .into_iter()
        .any(|blame| error.strip_prefix(blame.code().as_bytes()).is_some_and(|rest| rest.starts_with(b" ")));
    if refused { Reply::Refused(reason(error)) } else { Reply::Error }
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
        out.clear();
        encode(Request::MultiGet { keys: "a b", count: 2 }, &mut out);
        assert_eq!(out, b"*3\r\n$4\r\nMGET\r\n$1\r\na\r\n$1\r\nb\r\n");
        out.clear();
        encode(Request::Range { key: "l", rows: 10 }, &mut out);
        encode(Request::Custom { key: "k", words: &["HGET".to_owned(), "h:{key}".to_owned()] }, &mut out);
        let expected =
            b"*4\r\n$6\r\nLRANGE\r\n$1\r\nl\r\n$1\r\n0\r\n$1\r\n9\r\n*2\r\n$4\r\nHGET\r\n$3\r\nh:k\r\n";
        assert_eq!(out, expected);
    }

    const STREAM: &[u8] =
        b"$-1\r\n$5\r\n\r\n-1\n\r\n+OK\r\n$0\r\n\r\n-THROTTLED retry_after_ms=3 reason=quota\r\n\
          -OVERLOADED retry_after_ms=1 reason=slo\r\n-UNCERTAIN reason=store-down\r\n-WRONGTYPE no\r\n_\r\n\
          *2\r\n$-1\r\n$1\r\nx\r\n*2\r\n$-1\r\n_\r\n*0\r\n:3\r\n*2\r\n*1\r\n:1\r\n%1\r\n+a\r\n*0\r\n*-1\r\n";

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
            let nested = [Reply::Hit, Reply::Miss, Reply::Miss, Reply::Done, Reply::Hit, Reply::Miss];
            prop_assert_eq!(got, [&expected[..], &[Reply::Error, Reply::Miss], &nested[..]].concat());
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
        for garbage in [&b"$many\r\n"[..], b"!1\r\n", b"*-2\r\n", b"+OK\n", &[b'+'; MAX_LINE + 1]] {
            assert_eq!(Replies::default().feed(garbage, |_| ()), Err(Garbage));
        }
    }
}
