//! HTTP/1.1 as a server speaks it, as much as clients of a store need: a path is a key. Pure.
//!
//! `GET` and `HEAD` read, `PUT` and `POST` write, `DELETE` removes. A request has the time of the first segment of its path, if
//! that has one, else that of its method; a path whose first segment has a time is always found.

use std::collections::BTreeMap;
use std::sync::Arc;

use gate_common::units::Nanos;

use super::command::{MAX_VALUE, Step};
use super::items::Items;

/// One client's.
#[derive(Debug)]
pub(super) struct Session {
    times: Arc<BTreeMap<String, Nanos>>,
    /// The word that the last request's time goes by, in lower case.
    pub(super) last_command: Vec<u8>,
}

/// A request's head, as far as it counts.
struct Head<'i> {
    method: &'i str,
    /// Without the slash that it begins with, and without a query.
    path: &'i str,
    length: usize,
    /// The bytes that the head takes.
    len: usize,
    is_last: bool,
}

impl Session {
    pub(super) fn new(times: Arc<BTreeMap<String, Nanos>>) -> Self {
        Self { times, last_command: Vec::new() }
    }

    /// Runs the first request of `input` against the items, at one moment, and appends its answer.
    pub(super) fn step(&mut self, input: &[u8], items: &mut Items, now: Nanos, out: &mut Vec<u8>) -> Step {
        let Some(len) = input.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| at + 4) else {
            if input.len() < MAX_HEAD {
                return Step::More;
            }
            answer("431 Request Header Fields Too Large", b"", false, out);
            return Step::Quit;
        };
        let Some(head) = Head::read(&input[..len]) else {
            answer("400 Bad Request", b"", false, out);
            return Step::Quit;
        };
        if head.length > MAX_VALUE {
            answer("413 Content Too Large", b"", false, out);
            return Step::Quit;
        }
        let Some(body) = input[head.len..].get(..head.length) else { return Step::More };
        self.run(&head, body, items, now, out);
        if head.is_last { Step::Quit } else { Step::Done(head.len + head.length) }
    }

    fn run(&mut self, head: &Head<'_>, body: &[u8], items: &mut Items, now: Nanos, out: &mut Vec<u8>) {
        let segment = head.path.split('/').next().unwrap_or_default().to_ascii_lowercase();
        let has_time = self.times.contains_key(&segment);
        self.last_command.clear();
        self.last_command.extend(if has_time {
            segment.into_bytes()
        } else {
            head.method.to_ascii_lowercase().into_bytes()
        });
        let key = head.path.as_bytes();
        match head.method {
            "GET" | "HEAD" => {
                let is_head = head.method == "HEAD";
                match items.read(key, now) {
                    Some(item) => answer("200 OK", &item.value, is_head, out),
                    None if has_time => answer("200 OK", b"OK", is_head, out),
                    None => answer("404 Not Found", b"", is_head, out),
                }
            }
            "PUT" | "POST" => {
                items.put(key, 0, body.to_vec(), Nanos::MAX);
                out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n\r\n");
            }
            "DELETE" if items.remove(key, now) => out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n\r\n"),
            "DELETE" => answer("404 Not Found", b"", false, out),
            _ => answer("405 Method Not Allowed", b"", false, out),
        }
    }
}

impl<'i> Head<'i> {
    /// `None` if it is none, or its body has no length.
    fn read(bytes: &'i [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let method = words.next()?;
        let target = words.next()?.strip_prefix('/')?;
        let version = words.next().filter(|version| version.starts_with("HTTP/1."))?;
        let mut head = Self {
            method,
            path: target.split('?').next().unwrap_or_default(),
            length: 0,
            len: bytes.len(),
            is_last: version == "HTTP/1.0",
        };
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.length = value.parse().ok()?,
                "transfer-encoding" => return None,
                "connection" => head.is_last |= value.eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        Some(head)
    }
}

fn answer(status: &str, body: &[u8], is_head: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes());
    if !is_head {
        out.extend_from_slice(body);
    }
}

/// The longest head.
const MAX_HEAD: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_read_and_removed() {
        let times = BTreeMap::from([("slow".to_owned(), Nanos::from_millis(1))]);
        let mut session = Session::new(Arc::new(times));
        let mut items = Items::new(1 << 20);
        for (request, command, expected) in [
            (
                "GET /a HTTP/1.1\r\nhost: x\r\n\r\n",
                "get",
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            ),
            ("PUT /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nok", "put", "HTTP/1.1 204 No Content\r\n\r\n"),
            ("GET /a?x=y HTTP/1.1\r\n\r\n", "get", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
            ("HEAD /a HTTP/1.1\r\n\r\n", "head", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"),
            ("GET /slow/x HTTP/1.1\r\n\r\n", "slow", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK"),
            ("DELETE /a HTTP/1.1\r\n\r\n", "delete", "HTTP/1.1 204 No Content\r\n\r\n"),
            (
                "PATCH /a HTTP/1.1\r\n\r\n",
                "patch",
                "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n",
            ),
        ] {
            for cut in 0..request.len() {
                assert_eq!(
                    session.step(&request.as_bytes()[..cut], &mut items, Nanos::ZERO, &mut Vec::new()),
                    Step::More
                );
            }
            let mut out = Vec::new();
            let pipelined = [request, "GET"].concat();
            assert_eq!(
                session.step(pipelined.as_bytes(), &mut items, Nanos::ZERO, &mut out),
                Step::Done(request.len())
            );
            assert_eq!(
                (String::from_utf8(out).unwrap().as_str(), &*session.last_command),
                (expected, command.as_bytes())
            );
        }
    }

    #[test]
    fn what_it_cannot_read_ends_the_connection() {
        for request in [
            "no HTTP\r\n\r\n",
            "GET a HTTP/1.1\r\n\r\n",
            "GET / HTTP/2\r\n\r\n",
            "GET / HTTP/1.1\r\nno field\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
        ] {
            let mut out = Vec::new();
            let mut items = Items::new(1 << 20);
            let step =
                Session::new(Arc::default()).step(request.as_bytes(), &mut items, Nanos::ZERO, &mut out);
            assert_eq!(step, Step::Quit, "{request}");
            assert!(out.starts_with(b"HTTP/1.1 4"), "{request}");
        }
    }
}
