//! memcached's text protocol. [`multiget`] is its connection to the store.

use gate_common::units::Nanos;
use memchr::memchr;

use self::multiget::{END, Multiget};
use super::parts::{Join, KeyPlace, PartBuffers, Splits};
use super::{
    Cacheable, Codec, FaultHandling, KeySizes, MAX_BUFFERED_REQUEST, Placed, Route, Stateless, Ttl, Wire,
};
use crate::clock;
use crate::protocol::deny::Deny;
use crate::protocol::memcached::{self, Command, Decoder, Fault, FaultKind, Limits, Quiet, Request};
use crate::protocol::own::OwnKeys;
use crate::protocol::price_class::PriceClass;
use crate::protocol::query_types::QueryTypes;
use crate::protocol::{Class, Refusal, RequestMeta, Step};

mod multiget;

/// memcached's text protocol.
#[derive(Debug)]
pub(crate) struct Memcached;

impl Codec for Memcached {
    type Decoder = Decoder;

    type Request = Request;

    type Fault = Fault;

    type Link = Multiget;

    const PROBE: &'static [u8] = b"version\r\n";

    fn is_healthy_reply(line: &[u8]) -> bool {
        line.starts_with(b"VERSION ")
    }

    const GOODBYE: &'static [u8] = b"";

    fn decoder(max_request: usize) -> Decoder {
        let value = max_request as u64;
        Decoder::new(Limits { value, gather: MAX_BUFFERED_REQUEST, ..Limits::default() })
    }

    #[inline]
    fn decode(decoder: &mut Decoder, input: &[u8]) -> Step<Request, Fault> {
        decoder.next(input)
    }

    #[inline]
    fn bytes<'b>(_: &'b Decoder, _: &Request, taken: &'b [u8]) -> &'b [u8] {
        taken
    }

    #[inline]
    fn meta(request: &Request) -> &RequestMeta {
        &request.meta
    }

    #[inline]
    fn is_streamed(request: &Request) -> bool {
        request.body > 0
    }

    #[inline]
    fn price_class(class: Class) -> PriceClass {
        PriceClass::of_memcached(class)
    }

    #[inline]
    fn query_type(types: &QueryTypes, request: &Request, _: &[u8]) -> usize {
        types.of_memcached(request)
    }

    fn is_denied(deny: &Deny, request: &Request, _: &[u8]) -> bool {
        deny.memcached.contains(&request.command)
    }

    fn touches_only(own: &OwnKeys, request: &Request, bytes: &[u8]) -> bool {
        request.touches_only(bytes, |key| own.has(key))
    }

    #[inline]
    fn route(request: &Request) -> Route {
        match request.command {
            Command::Quit => Route::Quit,
            Command::StatsGate => Route::GateStats,
            Command::Get
            | Command::Gets
            | Command::Gat
            | Command::Gats
            | Command::Set
            | Command::Add
            | Command::Replace
            | Command::Append
            | Command::Prepend
            | Command::Cas
            | Command::Delete
            | Command::Incr
            | Command::Decr
            | Command::Touch
            | Command::MetaGet
            | Command::MetaSet
            | Command::MetaDelete
            | Command::MetaArithmetic
            | Command::MetaDebug
            | Command::MetaNoop
            | Command::FlushAll
            | Command::Version
            | Command::Verbosity
            | Command::Stats
            | Command::CacheMemlimit
            | Command::Lru
            | Command::LruCrawler
            | Command::Slabs
            | Command::Extstore
            | Command::RefreshCerts => Route::Shared,
        }
    }

    #[inline]
    fn keys<'b>(request: &Request, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        request.keys(bytes)
    }

    #[inline]
    fn names_all_keys(request: &Request) -> bool {
        request.meta.keys > 0 && !request.base64
    }

    #[inline]
    fn placed(request: &Request, _bytes: &[u8]) -> Placed {
        // The same key has other spellings, and would be at other stores.
        if request.base64 {
            return Placed::Nowhere;
        }
        match request.command {
            Command::Get | Command::Gets => Placed::AtKeys(Splits::Always(Join::InTurn)),
            Command::Gat
            | Command::Gats
            | Command::Set
            | Command::Add
            | Command::Replace
            | Command::Append
            | Command::Prepend
            | Command::Cas
            | Command::Delete
            | Command::Incr
            | Command::Decr
            | Command::Touch
            | Command::MetaGet
            | Command::MetaSet
            | Command::MetaDelete
            | Command::MetaArithmetic
            | Command::MetaDebug => Placed::AtKeys(Splits::Never),
            Command::MetaNoop | Command::Version | Command::Quit | Command::StatsGate => Placed::Anywhere,
            Command::FlushAll
            | Command::Verbosity
            | Command::Stats
            | Command::CacheMemlimit
            | Command::Lru
            | Command::LruCrawler
            | Command::Slabs
            | Command::Extstore
            | Command::RefreshCerts => Placed::Nowhere,
        }
    }

    fn split(request: &Request, bytes: &[u8], place_of: impl Fn(&[u8]) -> KeyPlace, parts: &mut PartBuffers) {
        let parts = &mut parts.stores;
        for key in request.keys(bytes) {
            let part = &mut parts[place_of(key).node];
            if part.is_empty() {
                part.extend_from_slice(request.command.name().as_bytes());
            }
            part.push(b' ');
            part.extend_from_slice(key);
        }
        parts.iter_mut().filter(|part| !part.is_empty()).for_each(|part| part.extend_from_slice(b"\r\n"));
    }

    fn part(bytes: &[u8]) -> Option<Request> {
        match Decoder::new(Limits::default()).next(bytes) {
            Step::Request { request, .. } => Some(request.without_end()),
            _ => None,
        }
    }

    const END_OF_PARTS: &'static [u8] = END;

    fn has_one_answer(request: &Request) -> bool {
        request.quiet == Quiet::Answered
    }

    #[inline]
    fn wants_no_reply(request: &Request) -> bool {
        request.quiet == Quiet::NoReply
    }

    fn answer_fault(fault: &Fault, out: &mut Vec<u8>) -> FaultHandling {
        fault.answer(out);
        FaultHandling { closes: fault.closes(), reason: fault.reason(), tls: fault.kind == FaultKind::Tls }
    }

    fn refuse(refusal: Refusal, out: &mut Vec<u8>) {
        memcached::refuse(refusal, out);
    }
}

impl Cacheable for Memcached {
    #[inline]
    fn is_coalescable(request: &Request) -> bool {
        request.pure
    }

    /// `W`: the client that reads it has won, and is to make a stale item anew.
    fn is_for_one_client(answer: &[u8]) -> bool {
        says(answer, b"W")
    }

    /// Not what is said of a stale item, which is on its way to be made anew.
    fn is_cacheable(answer: &[u8]) -> bool {
        let found = [&b"VALUE "[..], b"VA ", b"HD"].iter().any(|status| answer.starts_with(status));
        MISSES.contains(&answer) || found && !says(answer, b"W") && !says(answer, b"X") && !says(answer, b"Z")
    }

    /// `me`, since `mg` takes the right to make a stale item anew.
    fn query_ttl(request: &Request, bytes: &[u8]) -> Option<(Request, Vec<u8>)> {
        let query = [b"me ", request.keys(bytes).next()?, b"\r\n"].concat();
        match Decoder::new(Limits::default()).next(&query) {
            Step::Request { request, .. } => Some((request, query)),
            _ => None,
        }
    }

    /// `ME <key> exp=<seconds> ...`, rounded up, with a minus before memcached 1.6.24. -1 says without end, or before 1.6.24
    /// within a second: the query is repeated after that time. `EN` if there is no such key.
    fn ttl(answer: &[u8], said: &[u8]) -> Ttl {
        let seconds = || said.strip_prefix(b"ME ")?.split(|&byte| byte == b' ').nth(1)?.strip_prefix(b"exp=");
        match seconds().and_then(|seconds| std::str::from_utf8(seconds).ok()?.parse::<i64>().ok()) {
            Some(-1) => Ttl::AtMost(Nanos::from_secs(1)),
            Some(seconds) => Ttl::AtMost(Nanos::from_secs(seconds.unsigned_abs().saturating_sub(1))),
            None if said.starts_with(b"EN\r\n") && !MISSES.contains(&answer) => Ttl::AtMost(Nanos::ZERO),
            None => Ttl::Unbounded,
        }
    }

    #[inline]
    fn flushes_in(request: &Request, bytes: &[u8]) -> Option<Nanos> {
        if request.command != Command::FlushAll {
            return None;
        }
        let mut words = bytes.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let secs: u64 = std::str::from_utf8(words.nth(1)?).ok()?.parse().ok().filter(|&secs| secs > 0)?;
        // Beyond 30 days it is a time by the calendar.
        let secs = if secs > LONGEST_DELAY_SECS { secs.checked_sub(clock::unix_secs())? } else { secs };
        Some(Nanos(secs.saturating_mul(1_000_000_000)))
    }
}

impl KeySizes<Request> for Memcached {}

impl Wire for Memcached {
    type Session = Stateless;
}

/// True if a reply to a meta command has this flag, alone in its word.
fn says(answer: &[u8], flag: &[u8]) -> bool {
    let line = &answer[..memchr(b'\r', answer).unwrap_or(answer.len())];
    !line.starts_with(b"VALUE ") && line.split(|&byte| byte == b' ').any(|word| word == flag)
}

/// memcached takes longer ones for times by the calendar.
const LONGEST_DELAY_SECS: u64 = 30 * 86_400;
/// The replies to reads of a key that is not there: `get`, and `mg`.
const MISSES: [&[u8]; 2] = [END, b"EN\r\n"];
#[cfg(test)]
mod tests;
