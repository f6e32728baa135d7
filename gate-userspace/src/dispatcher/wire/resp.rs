//! RESP to and from the store: requests as they come, one after the other, and where each reply ends.
//!
//! Requests that need nothing of their connection share it with those of the same user, database and protocol version
//! (`pipeline/login.rs`); the first that does moves its client to a dedicated connection (`pipeline/dedicated.rs`).

use gate_common::units::Nanos;

use super::buffer::Buffer;
use super::parts::{Join, KeyPlace, PartBuffers, PartReply};
use super::{
    Answer, Cacheable, ClusterView, Codec, FaultHandling, Link, MAX_BUFFERED_REQUEST, MalformedReply, Placed,
    Route, Ttl, Wire,
};
use crate::protocol::deny::Deny;
use crate::protocol::own::OwnKeys;
use crate::protocol::price_class::PriceClass;
use crate::protocol::query_types::QueryTypes;
use crate::protocol::resp::cluster::Redirection;
use crate::protocol::resp::{
    self, Command, Decoder, Fault, FaultKind, Kind, Limits, Part, Replies, Request, State,
};
use crate::protocol::{Class, Refusal, RequestMeta, Step};

mod cluster;
mod key_sizes;
mod occupancy;
mod scan;
mod session;
mod split;
#[cfg(test)]
mod tests;

/// Redis' protocol.
#[derive(Debug)]
pub(crate) struct Resp;

impl Codec for Resp {
    type Decoder = Decoder;

    type Request = Request;

    type Fault = Fault;

    type Link = Pipe;

    const PROBE: &'static [u8] = b"PING\r\n";

    /// Also with an error, unless that says that it is not ready: it may want a password first.
    fn is_healthy_reply(line: &[u8]) -> bool {
        let is_ready = !line.starts_with(b"-LOADING") && !line.starts_with(b"-MASTERDOWN");
        line.starts_with(b"+PONG") || line.starts_with(b"-") && is_ready
    }

    const GOODBYE: &'static [u8] = b"+OK\r\n";

    fn decoder(max_request: usize) -> Decoder {
        // What might be too long is not gathered either: it is told by its head.
        let gather = max_request.min(MAX_BUFFERED_REQUEST) as u32;
        Decoder::new(Limits { gather, ..Limits::default() })
    }

    #[inline]
    fn decode(decoder: &mut Decoder, input: &[u8]) -> Step<Request, Fault> {
        decoder.next(input)
    }

    #[inline]
    fn bytes<'b>(decoder: &'b Decoder, request: &Request, taken: &'b [u8]) -> &'b [u8] {
        decoder.bytes(request, taken)
    }

    #[inline]
    fn meta(request: &Request) -> &RequestMeta {
        &request.meta
    }

    #[inline]
    fn occupies_store(request: &Request, is_of_several: bool) -> Option<Command> {
        occupancy::occupies_store(request, is_of_several).then_some(request.command)
    }

    #[inline]
    fn is_streamed(request: &Request) -> bool {
        request.streamed
    }

    #[inline]
    fn price_class(class: Class) -> PriceClass {
        PriceClass::of_redis(class)
    }

    #[inline]
    fn reply_rows(reply: &[u8]) -> u32 {
        resp::rows(reply)
    }

    #[inline]
    fn query_type(types: &QueryTypes, request: &Request, bytes: &[u8]) -> usize {
        types.of_resp(request, bytes)
    }

    fn is_denied(deny: &Deny, request: &Request, bytes: &[u8]) -> bool {
        deny.resp.denies(request, bytes)
    }

    fn touches_only(own: &OwnKeys, request: &Request, bytes: &[u8]) -> bool {
        request.touches_only(bytes, |touched| touched.is_own(own))
    }

    #[inline]
    fn route(request: &Request) -> Route {
        match request.state {
            State::Shared => Route::Shared,
            // It says which library the client uses: of no consequence for whoever shares the connection.
            State::Name if request.command == SET_INFO => Route::Shared,
            State::Quit => Route::Quit,
            State::Auth | State::Hello | State::Select | State::Reset | State::Name if request.changes() => {
                Route::Login
            }
            State::Auth
            | State::Hello
            | State::Select
            | State::Reset
            | State::Name
            | State::Transaction
            | State::Blocking
            | State::Pause
            | State::Pubsub
            | State::Monitor
            | State::Replication
            | State::Reply
            | State::Tracking
            | State::Cluster
            | State::Own => Route::Dedicated,
        }
    }

    #[inline]
    fn keys<'b>(request: &Request, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        request.keys(bytes)
    }

    #[inline]
    fn names_all_keys(request: &Request) -> bool {
        request.meta.keys > 0
    }

    fn placed(request: &Request, bytes: &[u8]) -> Placed {
        cluster::placed(request, bytes)
    }

    fn slot(request: &Request, bytes: &[u8]) -> Option<usize> {
        cluster::slot(request, bytes)
    }

    fn split(request: &Request, bytes: &[u8], place_of: impl Fn(&[u8]) -> KeyPlace, parts: &mut PartBuffers) {
        split::split(request, bytes, place_of, parts);
    }

    fn part_reply(join: Join, keys: u32, reply: &[u8]) -> Option<PartReply> {
        split::part_reply(join, keys, reply)
    }

    fn joined(join: Join, keys: u32, sum: u64, out: &mut Vec<u8>) {
        split::joined(join, keys, sum, out);
    }

    fn scan_cursor(request: &Request, bytes: &[u8]) -> Option<u64> {
        scan::cursor(request, bytes)
    }

    fn scan(request: &Request, bytes: &[u8], cursor: Option<u64>, out: &mut Vec<u8>) {
        scan::with_cursor(request, bytes, cursor, out);
    }

    fn may_run_code(request: &Request) -> bool {
        matches!(request.meta.class, Class::Script | Class::Unknown)
    }

    fn whole(bytes: &[u8]) -> Option<(Request, usize)> {
        let mut decoder = Decoder::new(Limits { gather: u32::MAX, ..Limits::default() });
        match decoder.next(bytes) {
            Step::Request { len, request } if !request.streamed => Some((request, len)),
            _ => None,
        }
    }

    #[inline]
    fn presents(request: &Request, bytes: &[u8]) -> bool {
        cluster::presents(request, bytes)
    }

    #[inline]
    fn ends_nothing(request: &Request) -> bool {
        cluster::ends_nothing(request)
    }

    fn present(request: &Request, bytes: &[u8], view: &ClusterView<'_>, out: &mut Vec<u8>) {
        cluster::present(request, bytes, view, out);
    }

    fn redirection(error: &[u8]) -> Option<Redirection<'_>> {
        Redirection::read(error)
    }

    fn is_slot_error(error: &[u8]) -> bool {
        matches!(resp::error_code(error), Some(b"CLUSTERDOWN" | b"TRYAGAIN"))
    }

    const ASKING: &'static [u8] = b"*1\r\n$6\r\nASKING\r\n";

    const AGAIN: &'static [u8] = b"-TRYAGAIN the slot has moved to another node\r\n";

    #[inline]
    fn has_one_answer(request: &Request) -> bool {
        match request.state {
            State::Pubsub | State::Monitor | State::Replication | State::Reply => false,
            State::Shared
            | State::Select
            | State::Hello
            | State::Auth
            | State::Name
            | State::Transaction
            | State::Blocking
            | State::Pause
            | State::Tracking
            | State::Cluster
            | State::Reset
            | State::Quit
            | State::Own => true,
        }
    }

    #[inline]
    fn wants_no_reply(_: &Request) -> bool {
        false
    }

    fn answer_fault(fault: &Fault, out: &mut Vec<u8>) -> FaultHandling {
        fault.answer(out);
        FaultHandling { closes: true, reason: fault.reason(), tls: fault.kind == FaultKind::Tls }
    }

    fn refuse(refusal: Refusal, out: &mut Vec<u8>) {
        resp::refuse(refusal, out);
    }
}

impl Cacheable for Resp {
    #[inline]
    fn is_coalescable(request: &Request) -> bool {
        request.pure
    }

    fn is_for_one_client(_: &[u8]) -> bool {
        false
    }

    fn is_cacheable(answer: &[u8]) -> bool {
        !matches!(answer.first(), None | Some(b'-' | b'!'))
    }

    fn query_ttl(request: &Request, bytes: &[u8]) -> Option<(Request, Vec<u8>)> {
        let key = request.keys(bytes).next()?;
        let mut query = format!("*2\r\n$4\r\nPTTL\r\n${}\r\n", key.len()).into_bytes();
        query.extend_from_slice(key);
        query.extend_from_slice(b"\r\n");
        match Decoder::new(Limits::default()).next(&query) {
            Step::Request { request, .. } => Some((request, query)),
            _ => None,
        }
    }

    /// `:<milliseconds>`; -1 without end, -2 if there is no such key. After an error nothing is known of it.
    fn ttl(answer: &[u8], said: &[u8]) -> Ttl {
        let left = said.strip_prefix(b":").and_then(|said| said.strip_suffix(b"\r\n"));
        match left.and_then(|left| std::str::from_utf8(left).ok()?.parse().ok()) {
            Some(left @ 0_i64..) => Ttl::AtMost(Nanos::from_millis(left as u64)),
            Some(-2) if !EMPTY.contains(&answer) => Ttl::AtMost(Nanos::ZERO),
            Some(_) => Ttl::Unbounded,
            None => Ttl::AtMost(Nanos::ZERO),
        }
    }
}

impl Wire for Resp {
    type Session = Self;
}

/// The replies to reads of a key that is not there, and of none that is and goes before it is asked how long it lives. `:0` may
/// be a rank.
const EMPTY: [&[u8]; 6] = [b"$-1\r\n", b"*0\r\n", b"_\r\n", b"%0\r\n", b"~0\r\n", b"+none\r\n"];

const SET_INFO: Command = Command::named("client|setinfo");

/// A shared connection.
#[derive(Debug)]
pub(crate) struct Pipe {
    replies: Replies,
    /// True while a push is read, which answers no request.
    unasked: bool,
}

impl Default for Pipe {
    fn default() -> Self {
        Self { replies: Replies::new(SHORT_REPLY), unasked: false }
    }
}

impl Link for Pipe {
    type Request = Request;
    type Expect = ();
    const REPEATS: bool = true;

    #[inline]
    fn encode(&mut self, _: &Request, bytes: &[u8], out: &mut Buffer) {
        out.push(bytes);
    }

    fn tail((): &()) -> &'static [u8] {
        b""
    }

    #[inline]
    fn seal(&mut self, _: &mut Buffer) {}

    #[inline]
    fn scan(&mut self, (): &(), input: &[u8]) -> Result<Answer, MalformedReply> {
        let (len, last) =
            match self.replies.next(input).map_err(|garbage| MalformedReply(garbage.to_string()))? {
                Part::More { .. } => return Ok(Answer::MORE),
                Part::Body { len, last } => (len, last),
                Part::Reply { len, kind: Kind::Push, last } => {
                    self.unasked = true;
                    (len, last)
                }
                Part::Reply { len, kind: Kind::Error, last: true } if is_redirection(&input[..len]) => {
                    return Ok(Answer { give: 0, add: CLUSTER, len, last: true });
                }
                Part::Reply { len, last, .. } => (len, last),
            };
        if self.unasked {
            self.unasked = !last;
            return Ok(Answer { give: 0, add: b"", len, last: false });
        }
        Ok(Answer { give: len, add: b"", len, last })
    }

    fn is_redirection(answer: &Answer) -> bool {
        answer.last && answer.give == 0 && answer.add == CLUSTER
    }
}

/// True if an error sends the client to another address, past gate.
#[inline]
fn is_redirection(error: &[u8]) -> bool {
    matches!(resp::error_code(error), Some(b"MOVED" | b"ASK"))
}

/// The reply to a client of such a store.
const CLUSTER: &[u8] = b"-ERR gate does not support a store in cluster mode\r\n";
/// A reply that is waited for, rather than passed on in pieces.
const SHORT_REPLY: usize = 16 << 10;
