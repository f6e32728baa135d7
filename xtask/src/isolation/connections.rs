//! Connections: many, new ones all the time, idle, half-open, slow in either direction.

use super::Store::{Memcached, Redis};
use super::traffic::{Ends, Reads, Traffic, resp};
use super::{Behaviour, Group, Hostile, Origin, Store};
use anyhow::Result;

fn row(
    store: Store,
    name: &'static str,
    does: &'static str,
    run: fn(&Hostile<'_>) -> Result<()>,
) -> Behaviour {
    Behaviour::new(Group::Connections, store, name, does, run)
}

const GET: &[u8] = b"get hostile:none\r\n";

#[rustfmt::skip]
pub(super) fn behaviours() -> Vec<Behaviour> {
    vec![
        row(Memcached, "idle connections", "Opens 1,500 connections and says nothing.", |hostile| {
            hostile.send(&Traffic::held(1_500, ""), |_| Vec::new())
        }),
        row(Memcached, "idle connections of the unknown", "An unknown source opens 1,000 connections and says nothing.", |hostile| {
            hostile.send(&Traffic::held(1_000, ""), |_| Vec::new())
        }).by(Origin::Unknown),
        row(Redis, "requests of the unknown", "An unknown source sends 10,000 requests a second over 50 connections.", |hostile| {
            hostile.send(&Traffic::new(50, 1_000).batch(10), |_| resp(&["GET", "hostile:none"]))
        }).by(Origin::Unknown),
        row(Memcached, "connection churn", "Opens 1,000 connections a second, asks once on each, and closes it.", |hostile| {
            hostile.send(&Traffic::new(100, 1_000).ends(Ends::Answered), |_| GET.to_vec())
        }),
        row(Redis, "connection churn with resets", "Opens 1,000 connections a second, sends a request and resets each.", |hostile| {
            hostile.send(&Traffic::new(100, 1_000).ends(Ends::Reset), |_| resp(&["GET", "hostile:none"]))
        }),
        row(Redis, "large replies to reset connections", "Asks for 1 MiB on 50 connections a second and resets each at once.", |hostile| {
            hostile.send(&Traffic::new(50, 50).ends(Ends::Reset), |_| resp(&["GET", "hostile:large"]))
        }),
        row(Redis, "half a request", "Sends the first half of a request on 500 connections and waits.", |hostile| {
            hostile.send(&Traffic::held(500, "*2\r\n$3\r\nGET\r\n$100\r\nhostile:beg"), |_| Vec::new())
        }),
        row(Memcached, "half a value", "Announces values of 1,000,000 bytes on 200 connections and sends a tenth.", |hostile| {
            let begin = [&b"set hostile:half 0 0 1000000\r\n"[..], &[b'v'; 100_000]].concat();
            hostile.send(&Traffic::held(200, begin), |_| Vec::new())
        }),
        row(Redis, "half a large value", "Announces values of 1,000,000 bytes on 200 connections and sends a tenth.", |hostile| {
            let begin = [&b"*3\r\n$3\r\nSET\r\n$12\r\nhostile:half\r\n$1000000\r\n"[..], &[b'v'; 100_000]].concat();
            hostile.send(&Traffic::held(200, begin), |_| Vec::new())
        }),
        row(Memcached, "half-closed connections", "Sends a request on 500 connections a second and closes them for writing only.", |hostile| {
            hostile.send(&Traffic::new(500, 500).ends(Ends::HalfClosed), |_| GET.to_vec())
        }),
        row(Redis, "slow writers", "Sends requests byte by byte over 100 connections, 50 bytes a second each.", |hostile| {
            let request = resp(&["SET", "hostile:slowly", "written"]);
            hostile.send(&Traffic::new(100, 5_000), |number| {
                vec![request[number as usize / 100 % request.len()]]
            })
        }),
        row(Memcached, "slow writers of large values", "Sends values of 1,000,000 bytes over 50 connections, 4 KiB every 20 ms.", |hostile| {
            let begin = b"set hostile:slowly 0 0 1000000\r\n".as_slice();
            hostile.send(&Traffic::new(50, 2_500).first(begin), |_| vec![b'v'; 4_096])
        }),
        row(Redis, "a reader that does not read", "Asks for 1 MiB 200 times a second over 20 connections and reads nothing.", |hostile| {
            hostile.send(&Traffic::new(20, 200).reads(Reads::Nothing), |_| resp(&["GET", "hostile:large"]))
        }),
        row(Redis, "slow readers", "Asks for 1 MiB 200 times a second over 20 connections and reads 100 KB/s on each.", |hostile| {
            hostile.send(&Traffic::new(20, 200).reads(Reads::Slowly), |_| resp(&["GET", "hostile:large"]))
        }),
        row(Memcached, "a reader of large values that does not read", "Asks for 500 KB 200 times a second over 20 connections and reads nothing.", |hostile| {
            hostile.send(&Traffic::new(20, 200).reads(Reads::Nothing), |_| b"get hostile:large\r\n".to_vec())
        }),
        row(Memcached, "slow readers of large values", "Asks for 500 KB 200 times a second over 20 connections and reads 100 KB/s on each.", |hostile| {
            hostile.send(&Traffic::new(20, 200).reads(Reads::Slowly), |_| b"get hostile:large\r\n".to_vec())
        }),
        row(Redis, "long multi-key reads that are not read", "Sends an MGET of 130 KB on 20 connections and reads nothing.", |hostile| {
            let keys: Vec<_> = (0..6_000).map(|number| format!("hostile:{number:06}")).collect();
            let words: Vec<&str> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect();
            let request = resp(&words);
            hostile.send(&Traffic::new(20, 20).reads(Reads::Nothing), |_| request.clone())
        }),
    ]
}
