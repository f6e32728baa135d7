//! The first key of the command at the start of a TCP segment, for samples only: a segment may start within a command.
//!
//! Only the commands of an allow-list match, by name and in the one form that clients send, so that
//! neither an `AUTH` nor a part of a value matches.

use aya_ebpf::bindings::xdp_md;
use gate_common::abi::Protocol;

use super::buffers::Buffers;
use super::scan::Key;
use super::swar;
use super::verb::{Verb, text8};

/// Finds the first key between `at` and `end`, and writes it to `key`, or [`Key::NONE`].
#[inline(never)]
pub(crate) fn find_key(ctx: *mut xdp_md, protocol: u8, at: u32, end: u32, key: &mut Key) {
    let text = Text { frame: Buffers(ctx), end };
    let found = match protocol {
        of if of == Protocol::Memcached as u8 => memcached(&text, at),
        of if of == Protocol::Resp as u8 => resp(&text, at),
        _ => None,
    };
    *key = found.unwrap_or(Key::NONE);
}

/// The payload of a segment.
struct Text {
    frame: Buffers,
    end: u32,
}

impl Text {
    #[inline(always)]
    fn word_or_rest(&self, at: u32) -> Option<u64> {
        self.frame.word_or_rest(at, self.end)
    }
}

#[inline(always)]
fn memcached(text: &Text, at: u32) -> Option<Key> {
    let (verb, len) = Verb::of(text.word_or_rest(at)?);
    let first_is_key = verb.has(Verb::SAMPLED) && !verb.has(Verb::FIRST_IS_NONE);
    first_is_key.then_some(Key { at: at + len, len: 0, writes: verb.has(Verb::WRITES) })
}

/// `*<words>`, `$<length>`, the command, `$<length>`, the key: each with its `\r\n`.
#[inline(always)]
fn resp(text: &Text, at: u32) -> Option<Key> {
    let (_, at) = length(text, at, b'*')?;
    let (verb_len, at) = length(text, at, b'$')?;
    let word = text.word_or_rest(at)?;
    if verb_len == 0 || verb_len > 8 {
        return None;
    }
    let verb = word & (u64::MAX >> (64 - 8 * verb_len)) & UPPER;
    let writes = writes_first_word(verb);
    if !writes && !reads_first_word(verb) {
        return None;
    }
    let (len, at) = length(text, at + verb_len + 2, b'$')?;
    (len != 0).then_some(Key { at, len, writes })
}

/// A length of up to five digits after its sign, and the start of the next line.
#[inline(always)]
fn length(text: &Text, at: u32, sign: u8) -> Option<(u32, u32)> {
    let word = text.word_or_rest(at)?;
    let ends = swar::equal(word >> 8, b'\r');
    if word as u8 != sign || ends == 0 {
        return None;
    }
    let digits = swar::before_first(ends);
    if digits == 0 || digits > 5 {
        return None;
    }
    Some((swar::decimal(word >> 8, digits)?, at + digits + 3))
}

/// The mask that makes letters upper case; the names below hold letters alone.
const UPPER: u64 = 0xdfdf_dfdf_dfdf_dfdf;

/// True if eight bytes are one of some names of up to eight letters, padded with zeros.
macro_rules! is_any {
    ($bytes:expr, $($name:literal)+) => { false $(|| $bytes == const { letters($name) })+ };
}

const fn letters(name: &[u8]) -> u64 {
    let mut text = [0; 8];
    let mut index = 0;
    while index < name.len() {
        text[index] = name[index];
        index += 1;
    }
    text8(&text)
}

/// True for commands that read the key in their first word.
#[inline(always)]
fn reads_first_word(verb: u64) -> bool {
    is_any!(verb,
        b"GET" b"MGET" b"STRLEN" b"GETRANGE" b"EXISTS" b"TTL" b"PTTL" b"TYPE" b"HGET" b"HMGET" b"HGETALL"
        b"HEXISTS" b"HLEN" b"HKEYS" b"HVALS" b"LRANGE" b"LLEN" b"LINDEX" b"SCARD" b"SMEMBERS" b"ZSCORE"
        b"ZRANGE" b"ZCARD" b"ZCOUNT" b"ZRANK" b"XRANGE" b"XLEN" b"BITCOUNT" b"GETBIT" b"PFCOUNT" b"HSTRLEN"
    )
}

/// True for commands that write the key in their first word.
#[inline(always)]
fn writes_first_word(verb: u64) -> bool {
    is_any!(verb,
        b"SET" b"SETEX" b"PSETEX" b"SETNX" b"MSET" b"GETSET" b"GETDEL" b"GETEX" b"APPEND" b"INCR" b"DECR"
        b"INCRBY" b"DECRBY" b"DEL" b"UNLINK" b"EXPIRE" b"PEXPIRE" b"PERSIST" b"SETRANGE" b"HSET" b"HMSET"
        b"HSETNX" b"HDEL" b"HINCRBY" b"LPUSH" b"RPUSH" b"LPOP" b"RPOP" b"LSET" b"LTRIM" b"LREM" b"SADD"
        b"SREM" b"SPOP" b"ZADD" b"ZREM" b"ZINCRBY" b"XADD" b"SETBIT"
    )
}
