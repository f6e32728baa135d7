//! The buckets of hot keys of guarded services: a datagram takes one request from that of its first key, if it has one.
//!
//! Which keys are hot the daemon finds by samples, and says in [`KeyBuckets`]. Segments are not looked at: one that is dropped
//! is sent again, and delays all that follows it on its connection.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_load_bytes;
use gate_common::abi::KeyBuckets;
use gate_common::token_bucket::Limits;

use crate::buckets;
use crate::context::Scratch;
use crate::maps::{self, opaque_value, read_once, write_once};
use crate::parse::memcached::{self, Commands};
use crate::parse::swar;
use crate::plan::Plan;

/// The state of the packet's key.
pub(crate) struct KeyScratch {
    /// The place of the bucket that was charged, plus one; zero if none was.
    charged: u32,
    copy: [u64; LONGEST_KEY as usize / 8],
}

/// Takes a request from the bucket of a datagram's first key, if it has one; false if that is empty. What was charged is noted
/// for [`refund`]. What is hot the daemon decides: nothing is while the heartbeat is stale.
#[inline(always)]
pub(crate) fn charge(
    ctx: *mut xdp_md,
    scratch: *mut Scratch,
    plan: &Plan,
    now_ns: u64,
    commands: Commands,
    stale: bool,
) -> bool {
    write_once!((*scratch).key.charged, 0);
    if stale || commands == Commands::NotParsed {
        return true;
    }
    if commands == Commands::SingleGet {
        // SAFETY: this CPU's own scratch.
        unsafe { (*scratch).scan.key = memcached::key_of_single_get(&(*scratch).payload) };
    }
    read_once!((*scratch).scan.key.at) == 0 || charge_hot(ctx, scratch, plan.service_id(), now_ns)
}

/// Charges the bucket of the key at `scan.key`, if it has one.
#[inline(never)]
fn charge_hot(ctx: *mut xdp_md, scratch: *mut Scratch, service: u32, now_ns: u64) -> bool {
    let hash = hash_of_key(ctx, scratch, service);
    if hash == 0 {
        return true;
    }
    let Some(keys) = maps::TABLES.get_ptr_mut(KeyBuckets::BLOCK) else { return true };
    let keys = keys.cast::<KeyBuckets>();
    let first = KeyBuckets::first_place(hash);
    for way in 0..KeyBuckets::WAYS {
        if read_once!((*keys).hashes[first + way]) == hash {
            let charged = charge_place(keys, first + way, scratch, now_ns);
            if charged {
                write_once!((*scratch).key.charged, (first + way + 1) as u32);
            }
            return charged;
        }
    }
    true
}

/// Gives back what [`charge`] took.
#[inline(never)]
pub(crate) fn refund(scratch: *mut Scratch) {
    let charged = read_once!((*scratch).key.charged);
    let (true, Some(keys)) = (charged != 0, maps::TABLES.get_ptr_mut(KeyBuckets::BLOCK)) else { return };
    let (word, limits) = place(keys.cast(), charged as usize - 1);
    // SAFETY: this CPU's own scratch.
    let charges = unsafe { &raw mut (*scratch).charges };
    buckets::refund_key(word, &limits, charges);
}

#[inline(always)]
fn charge_place(keys: *mut KeyBuckets, number: usize, scratch: *mut Scratch, now_ns: u64) -> bool {
    let (word, limits) = place(keys, number);
    // SAFETY: this CPU's own scratch.
    let charges = unsafe { &raw mut (*scratch).charges };
    buckets::charge_key(word, &limits, charges, now_ns)
}

/// The word of a bucket, and its limits.
#[inline(always)]
fn place(keys: *mut KeyBuckets, number: usize) -> (*mut u64, Limits) {
    // The mask shows the verifier a bound.
    let number = opaque_value(number as u64) as usize & (KeyBuckets::COUNT - 1);
    let rate = read_once!((*keys).rates[number]);
    let burst_ns = read_once!((*keys).bursts_ns[number]);
    // SAFETY: a word of the map's element.
    let word = unsafe { (&raw mut (*keys).tats).cast::<u64>().add(number) };
    (word, Limits { rate, burst_ns, max_debt_ns: 0 })
}

/// The hash of the key that the scan found, up to the next space or end of a line; zero if it cannot be read. It is copied
/// first: of words that are read one by one from the packet, the verifier would follow each length of a key by itself.
#[inline(never)]
fn hash_of_key(ctx: *mut xdp_md, scratch: *mut Scratch, service: u32) -> u64 {
    // SAFETY: this CPU's own scratch.
    let (at, end) = unsafe { ((*scratch).scan.key.at, (*scratch).payload.end()) };
    let room = end.wrapping_sub(at);
    // As in `sample::send`: every verifier sees the bounds of the length.
    let last = opaque_value(u64::from(room.min(LONGEST_KEY) - 1)) & u64::from(LONGEST_KEY - 1);
    // SAFETY: this CPU's own scratch, which has room for so many bytes.
    let copied = unsafe {
        let copy = (&raw mut (*scratch).key.copy).cast();
        bpf_xdp_load_bytes(ctx, at, copy, last as u32 + 1)
    };
    if copied != 0 {
        return 0;
    }
    let mut hash = KeyBuckets::start(service);
    for number in 0..LONGEST_KEY as usize / 8 {
        let word = read_once!((*scratch).key.copy[number]);
        let ends = swar::equal(word, b' ') | swar::equal(word, b'\n') | swar::equal(word, b'\r');
        if ends != 0 {
            let len = swar::before_first(ends);
            if len != 0 {
                hash = KeyBuckets::mix(hash, word & (u64::MAX >> ((64 - 8 * len) & 63)));
            }
            break;
        }
        hash = KeyBuckets::mix(hash, word);
    }
    KeyBuckets::finish(hash)
}

/// memcached's longest key, rounded up to words.
const LONGEST_KEY: u32 = 256;
