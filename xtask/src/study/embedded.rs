//! `gate store` with eleven query types: one server, whose service times are timed waits with an exponential spread, so that it
//! needs no CPU. They rise with the load: each other request that is at the store makes one take 5 % of its time
//! longer, and it waits for those before it, as gate sees it.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::process::Command;

use super::{PARALLELISM, QueryType, Store, Study, policies};
use crate::lab::process::bound_command;
use crate::paths;

/// The types, the cheapest first, with their mean times at an idle store in microseconds. The shares are the published ones,
/// the times are chosen here.
const TYPES: [(QueryType, u64); 11] = [
    of("qt1", 1_156, 400, &["STRLEN", "{key}"]),
    of("qt2", 4, 600, &["TTL", "{key}"]),
    of("qt3", 4, 800, &["HLEN", "{key}"]),
    of("qt4", 234, 1_000, &["LLEN", "{key}"]),
    of("qt5", 1_344, 1_200, &["SCARD", "{key}"]),
    of("qt6", 1_344, 1_600, &["ZCARD", "{key}"]),
    of("qt7", 42, 2_000, &["HGET", "{key}", "field"]),
    of("qt8", 9, 2_500, &["ZSCORE", "{key}", "member"]),
    of("qt9", 2_635, 3_000, &["LINDEX", "{key}", "0"]),
    of("qt10", 449, 5_000, &["HMGET", "{key}", "a", "b"]),
    of("qt11", 2_780, 10_000, &["HGETALL", "{key}"]),
];
/// How much longer a request takes for each other that is at the store, as a share of its time.
const CONTENTION: f64 = 0.05;

const fn of(
    name: &'static str,
    weight: u32,
    micros: u64,
    command: &'static [&'static str],
) -> (QueryType, u64) {
    (QueryType { name, weight, command }, micros)
}

/// The study on this store. The dearest type has the largest share as well.
#[must_use]
pub fn study() -> Study {
    let objective_ms = [60.0, 160.0];
    let capacity = capacity();
    Study {
        name: "embedded",
        types: TYPES.map(|(of, _)| of).to_vec(),
        mean_us: TYPES.map(|(_, micros)| micros as f64).to_vec(),
        dearest: "qt11",
        objective_ms,
        capacity,
        policies: policies(objective_ms[0], capacity),
        store: Store::Embedded,
    }
}

/// Requests a second that the store serves when it is never idle: that of a full store counts.
fn capacity() -> f64 {
    let weights: f64 = TYPES.iter().map(|(of, _)| f64::from(of.weight)).sum();
    let unloaded: f64 =
        TYPES.iter().map(|(of, micros)| f64::from(of.weight) * *micros as f64).sum::<f64>() / weights;
    1e6 / (unloaded * (1.0 + CONTENTION * f64::from(PARALLELISM - 1)))
}

/// The command that starts the store.
pub(super) fn command(address: SocketAddr) -> Command {
    let mut command = bound_command(paths::gate());
    command.args(["store", "--protocol", "resp", "--concurrency", "1", "--spread", "exponential"]);
    command.args(["--listen", &address.to_string(), "--contention", &CONTENTION.to_string()]);
    for (of, micros) in TYPES {
        command.args(["--time", &format!("{}={micros}us", of.command[0])]);
    }
    command
}

/// A sentence about the store.
pub(super) fn about() -> Cow<'static, str> {
    "One server of `gate store`; its times are timed waits with an exponential spread, and 5 % longer for each other request there.".into()
}
