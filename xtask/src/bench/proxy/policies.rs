//! All policies at work, version 2 of what `gate+policies` is: there nothing ever waits, no objective is near, prices stay as
//! they are, nothing may be shed and no key is hot, so that it shows what deciding costs. Here each has something to do.
//!
//! - Fewer requests may be at the store than are under way, so that most of them wait in the queue.
//! - Objectives and a controlled delay are a few times what the queue takes: each request is compared with them, and some may be
//!   refused, of which the share is shown.
//! - Prices learn from rows, bytes and latency; what they were short of is owed; a limit by query type is charged beside
//!   the quota.
//! - Shedding is on, for a tenant that is never refused.
//! - Every second request asks for one key, which is hot; the others ask for 4,096 keys in turn, which are not. In one target gate
//!   answers the hot key's reads itself, in the other (`no hits`) it only finds the key: hits cost less than other requests, and hide what
//!   the rest costs.

use std::time::Duration;

use super::{Answer, CONNECTIONS, Gate, Load, MEMCACHED, NUMBER, Named, REDIS};

/// A gate whose policies work, and the loads that it is for.
pub(super) struct Working {
    pub(super) name: &'static str,
    /// The first of its two addresses.
    pub(super) first: u8,
    /// How many requests a load sends in one go.
    pub(super) pipelined: usize,
    pub(super) gate: Gate,
}

/// With the hot key's reads answered and without, for loads without pipelining and with it.
pub(super) fn gates() -> Vec<Working> {
    let mut gates = Vec::new();
    let mut first = 15;
    for (name, cache) in [("policies/2", "on"), ("policies/2 no hits", "off")] {
        for (pipelined, parallelism) in [(1, 16), (16, 256)] {
            let service = format!(
                "parallelism = \"{parallelism}\"\ndeadline = \"1s\"\n\
                 objectives.default = {{ p50 = \"10ms\", p90 = \"40ms\" }}\n\
                 price = {{ learn = \"on\", settle = \"debt\" }}\n\
                 hot_keys = {{ threshold = \"1000\", cache = \"{cache}\" }}\n"
            );
            let tenant = "tier = \"critical\"\nlimits = { get = \"100000000/s\", set = \"100000000/s\" }\n";
            let gate = Gate { quota: "900000000 RU/s", sheds: true, service: service.into(), tenant };
            gates.push(Working { name, first, pipelined, gate });
            first += 2;
        }
    }
    gates
}

/// Reads of 32 bytes, of which half are of one key.
pub(super) fn loads() -> Vec<Named> {
    let mut loads = Vec::new();
    let value = "v".repeat(LEN);
    for (store, name) in [(REDIS, "redis"), (MEMCACHED, "memcached")] {
        for pipelined in [1, 16] {
            let (set, stored, get) = match store {
                REDIS => (
                    format!("*3\r\n$3\r\nSET\r\n$11\r\nbench:k{NUMBER}\r\n${LEN}\r\n{value}\r\n"),
                    "+OK\r\n".len(),
                    format!("*2\r\n$3\r\nGET\r\n$11\r\nbench:k{NUMBER}\r\n"),
                ),
                _ => (
                    format!("set bench:k{NUMBER} 0 0 {LEN}\r\n{value}\r\n"),
                    "STORED\r\n".len(),
                    format!("get bench:k{NUMBER}\r\n"),
                ),
            };
            let answer = answer_of_get(store, "bench:k0000", LEN);
            let load = Load {
                connections: CONNECTIONS,
                pipelined,
                every_other: Some(get.replace(NUMBER, "0000")),
                request: get,
                numbers: KEYS,
                answer: Answer::Bytes(answer),
                pause: Duration::ZERO,
            };
            let name = format!("{name} half hot x{pipelined}");
            loads.push(Named { name, store, load, answer, prime: (set, stored), at_work: true });
        }
    }
    loads
}

/// How long the answer to a read of a value is, in bytes.
pub(super) fn answer_of_get(store: usize, key: &str, len: usize) -> usize {
    match store {
        REDIS => format!("${len}\r\n\r\n").len() + len,
        _ => format!("VALUE {key} 0 {len}\r\n\r\nEND\r\n").len() + len,
    }
}

const LEN: usize = 32;
/// At half a million requests a second each is asked for 60 times: far below what makes a key hot.
const KEYS: usize = 4_096;
