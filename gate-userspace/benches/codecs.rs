//! The codecs' cost of a small request: nanoseconds each, and no allocation.
//!
//! `cargo bench --package gate-userspace --bench codecs`. Of a pipelined buffer, the items per second count.

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};
use gate_userspace::protocol::memcached::{self, Answers, Expect};
use gate_userspace::protocol::resp::{self, Replies};

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// How many requests a buffer holds: alone, and pipelined.
const PIPELINED: [usize; 2] = [1, 16];

const KEY: &str = "memtier-00001234";
const VALUE: [u8; 32] = [b'v'; 32];

fn times(count: usize, request: &[u8]) -> Vec<u8> {
    request.repeat(count)
}

/// `words` as an array of bulk strings.
fn array(words: &[&[u8]]) -> Vec<u8> {
    let bulks =
        words.iter().flat_map(|word| [format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat());
    [format!("*{}\r\n", words.len()).into_bytes(), bulks.collect()].concat()
}

#[divan::bench_group]
mod memcached_requests {
    use super::*;

    /// Decodes all of `buffer`, and looks at every key.
    fn decode(bencher: Bencher<'_, '_>, count: usize, request: &[u8]) {
        let buffer = times(count, request);
        let mut decoder = memcached::Decoder::new(memcached::Limits::default());
        bencher.counter(ItemsCount::new(count)).bench_local(|| {
            let mut rest = black_box(&buffer[..]);
            while !rest.is_empty() {
                let step = decoder.next(rest);
                let (taken, after) = rest.split_at(step.consumed());
                let memcached::Step::Request { request, .. } = step else { panic!("{step:?}") };
                for key in request.keys(taken) {
                    black_box(key);
                }
                black_box(&request);
                rest = after;
            }
        });
    }

    #[divan::bench(args = PIPELINED)]
    fn get(bencher: Bencher<'_, '_>, count: usize) {
        decode(bencher, count, format!("get {KEY}\r\n").as_bytes());
    }

    #[divan::bench(args = PIPELINED)]
    fn set(bencher: Bencher<'_, '_>, count: usize) {
        decode(bencher, count, &[format!("set {KEY} 0 0 32\r\n").as_bytes(), &VALUE, b"\r\n"].concat());
    }

    #[divan::bench(args = PIPELINED)]
    fn meta_get(bencher: Bencher<'_, '_>, count: usize) {
        decode(bencher, count, format!("mg {KEY} v k q\r\n").as_bytes());
    }

    #[divan::bench]
    fn get_of_16_keys(bencher: Bencher<'_, '_>) {
        decode(bencher, 1, format!("get{}\r\n", format!(" {KEY}").repeat(16)).as_bytes());
    }
}

#[divan::bench_group]
mod resp_requests {
    use super::*;

    fn decode(bencher: Bencher<'_, '_>, count: usize, request: &[u8]) {
        let buffer = times(count, request);
        let mut decoder = resp::Decoder::new(resp::Limits::default());
        bencher.counter(ItemsCount::new(count)).bench_local(|| {
            let mut rest = black_box(&buffer[..]);
            while !rest.is_empty() {
                let step = decoder.next(rest);
                let (taken, after) = rest.split_at(step.consumed());
                let resp::Step::Request { request, .. } = step else { panic!("{step:?}") };
                for key in request.keys(decoder.bytes(&request, taken)) {
                    black_box(key);
                }
                black_box(&request);
                rest = after;
            }
        });
    }

    #[divan::bench(args = PIPELINED)]
    fn get(bencher: Bencher<'_, '_>, count: usize) {
        decode(bencher, count, &array(&[b"GET", KEY.as_bytes()]));
    }

    #[divan::bench(args = PIPELINED)]
    fn set(bencher: Bencher<'_, '_>, count: usize) {
        decode(bencher, count, &array(&[b"SET", KEY.as_bytes(), &VALUE]));
    }

    #[divan::bench(args = PIPELINED)]
    fn ping_inline(bencher: Bencher<'_, '_>, count: usize) {
        decode(bencher, count, b"PING\r\n");
    }

    #[divan::bench]
    fn mget_of_16_keys(bencher: Bencher<'_, '_>) {
        let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain([KEY.as_bytes(); 16]).collect();
        decode(bencher, 1, &array(&words));
    }

    #[divan::bench]
    fn zrange_by_score_with_limit(bencher: Bencher<'_, '_>) {
        let words: [&[u8]; 8] = [b"ZRANGE", KEY.as_bytes(), b"0", b"100", b"BYSCORE", b"LIMIT", b"0", b"10"];
        decode(bencher, 1, &array(&words));
    }
}

#[divan::bench_group]
mod answers {
    use super::*;

    #[divan::bench(args = PIPELINED)]
    fn memcached_get(bencher: Bencher<'_, '_>, count: usize) {
        let answer = [format!("VALUE {KEY} 0 32\r\n").as_bytes(), &VALUE, b"\r\nEND\r\n"].concat();
        decode_memcached(bencher, count, Expect::Values, &answer);
    }

    #[divan::bench(args = PIPELINED)]
    fn memcached_set(bencher: Bencher<'_, '_>, count: usize) {
        decode_memcached(bencher, count, Expect::Line, b"STORED\r\n");
    }

    fn decode_memcached(bencher: Bencher<'_, '_>, count: usize, expect: Expect, answer: &[u8]) {
        let buffer = times(count, answer);
        let mut answers = Answers::new(16 << 10);
        bencher.counter(ItemsCount::new(count)).bench_local(|| {
            let mut rest = black_box(&buffer[..]);
            while !rest.is_empty() {
                let part = black_box(answers.next(expect, rest).unwrap());
                rest = &rest[part.consumed()..];
            }
        });
    }

    #[divan::bench(args = PIPELINED)]
    fn resp_get(bencher: Bencher<'_, '_>, count: usize) {
        decode_resp(bencher, count, &[b"$32\r\n", &VALUE[..], b"\r\n"].concat());
    }

    #[divan::bench(args = PIPELINED)]
    fn resp_set(bencher: Bencher<'_, '_>, count: usize) {
        decode_resp(bencher, count, b"+OK\r\n");
    }

    #[divan::bench]
    fn resp_array_of_100(bencher: Bencher<'_, '_>) {
        decode_resp(bencher, 1, &array(&[&VALUE[..]; 100]));
    }

    fn decode_resp(bencher: Bencher<'_, '_>, count: usize, reply: &[u8]) {
        let buffer = times(count, reply);
        let mut replies = Replies::new(16 << 10);
        bencher.counter(ItemsCount::new(count)).bench_local(|| {
            let mut rest = black_box(&buffer[..]);
            while !rest.is_empty() {
                let part = black_box(replies.next(rest).unwrap());
                rest = &rest[part.consumed()..];
            }
        });
    }
}

#[divan::bench_group]
mod refusals {
    use gate_common::abi::Reason;
    use gate_common::units::Nanos;
    use gate_userspace::protocol::Refusal;

    use super::*;

    const REFUSAL: Refusal = Refusal::after(Reason::RejectedUntil, Nanos(123_456_789));

    #[divan::bench]
    fn memcached_refuse(bencher: Bencher<'_, '_>) {
        let mut out = Vec::with_capacity(4 << 10);
        bencher.bench_local(|| {
            out.clear();
            memcached::refuse(black_box(REFUSAL), &mut out);
            black_box(out.len())
        });
    }

    #[divan::bench]
    fn resp_refuse(bencher: Bencher<'_, '_>) {
        let mut out = Vec::with_capacity(4 << 10);
        bencher.bench_local(|| {
            out.clear();
            resp::refuse(black_box(REFUSAL), &mut out);
            black_box(out.len())
        });
    }
}
