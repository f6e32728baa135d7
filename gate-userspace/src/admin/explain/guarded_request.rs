//! Requests as the XDP program reads them.

use gate_common::abi::{QueryClass, Reason};

use crate::protocol::Step;
use crate::protocol::memcached::{Decoder, Limits};

/// True for a storage line in a datagram that the program cannot read in one way: what memcached would run behind it is not known. The
/// codec of proxied services reads it by the same rule.
pub(super) fn is_malformed(words: &[Vec<u8>], bytes: &[u8]) -> bool {
    let step = Decoder::new(Limits::default()).next(bytes);
    // A key that gate does not let through to a proxied store is the store's to refuse here.
    let is_fault = matches!(step, Step::Fault { fault, .. } if fault.reason() == Reason::Malformed);
    is_fault && STORES.contains(&&*words[0])
}

/// A request with the value that its line announces, made up.
pub(super) fn with_value(mut bytes: Vec<u8>, is_resp: bool) -> Vec<u8> {
    let mut decoder = Decoder::new(Limits::default());
    while !is_resp
        && let Step::More { want } = decoder.next(&bytes)
        && (bytes.len() + 1..=MAX_VALUE).contains(&want)
    {
        bytes.resize(want - 2, b'x');
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The class and the rows that the program reads of a command (`gate-ebpf/src/parse/verb.rs`).
pub(super) fn class_and_rows(words: &[Vec<u8>]) -> (QueryClass, u32) {
    let named = words.len() as u32 - 1;
    let one = named.min(1);
    let get = |rows: u32| (if rows > 1 { QueryClass::MultiGet } else { QueryClass::Get }, rows);
    match &*words[0] {
        // A command that ends with its name is read as one that is not known.
        _ if named == 0 => (QueryClass::Other, 0),
        b"get" | b"gets" | b"bget" => get(named),
        b"gat" | b"gats" => get(named - 1),
        store if STORES.contains(&store) => (QueryClass::Set, one),
        b"delete" | b"md" => (QueryClass::Delete, one),
        b"incr" | b"decr" | b"ma" => (QueryClass::Arithmetic, one),
        b"touch" => (QueryClass::Touch, one),
        b"mg" => (QueryClass::Get, one),
        b"me" => (QueryClass::Other, one),
        _ => (QueryClass::Other, named),
    }
}

/// The first key of a command, as far as the program takes it for one.
pub(super) fn first_key(words: &[Vec<u8>]) -> Option<&[u8]> {
    let at = match &*words[0] {
        b"gat" | b"gats" => 2,
        b"get" | b"gets" | b"bget" | b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas"
        | b"ms" | b"delete" | b"md" | b"incr" | b"decr" | b"ma" | b"touch" | b"mg" => 1,
        _ => return None,
    };
    words.get(at).map(Vec::as_slice).filter(|key| !key.is_empty())
}

/// Commands whose line is followed by data.
const STORES: [&[u8]; 7] = [b"set", b"add", b"replace", b"append", b"prepend", b"cas", b"ms"];
/// Larger values are announced, and do not fit into packets anyway.
const MAX_VALUE: usize = 64 << 10;
