//! Datagrams to memcached. gate sees them here in user space; at an interface the XDP program judges them before.

use super::traffic::Traffic;
use super::{Behaviour, Group, Hostile, Origin, Store};
use anyhow::Result;

fn row(name: &'static str, does: &'static str, run: fn(&Hostile<'_>) -> Result<()>) -> Behaviour {
    Behaviour::new(Group::Datagrams, Store::Memcached, name, does, run)
}

/// memcached's frame before a request.
fn framed(number: u64, request: &[u8]) -> Vec<u8> {
    let [.., high, low] = number.to_be_bytes();
    [&[high, low, 0, 0, 0, 1, 0, 0], request].concat()
}

#[rustfmt::skip]
pub(super) fn behaviours() -> Vec<Behaviour> {
    vec![
        row("a flood of datagrams", "Sends 20,000 requests a second in datagrams.", |hostile| {
            hostile.send_datagrams(20_000, |number| framed(number, b"get hostile:none\r\n"))
        }),
        row("a flood of datagrams of the unknown", "An unknown source sends 20,000 requests a second in datagrams.", |hostile| {
            hostile.send_datagrams(20_000, |number| framed(number, b"get hostile:none\r\n"))
        }).by(Origin::Unknown),
        row("datagrams full of commands", "Sends 2,000 datagrams a second with 100 commands in each.", |hostile| {
            let commands = b"get hostile:none\r\n".repeat(100);
            hostile.send_datagrams(2_000, |number| framed(number, &commands))
        }),
        row("malformed datagrams", "Sends 10,000 datagrams a second: empty, cut off, of several parts, without a line's end.", |hostile| {
            hostile.send_datagrams(10_000, |number| match number % 4 {
                0 => Vec::new(),
                1 => vec![0; 5],
                2 => [&[0, 1, 0, 7, 0, 9, 0, 0], &b"get hostile:none\r\n"[..]].concat(),
                _ => framed(number, &[b'x'; 1_300]),
            })
        }),
        row("large answers to datagrams", "Asks for 500 KB 200 times a second in datagrams.", |hostile| {
            hostile.send_datagrams(200, |number| framed(number, b"get hostile:large\r\n"))
        }),
        row("large answers to a forged sender", "Asks for 500 KB 200 times a second in the polite tenant's name.", |hostile| {
            hostile.send_datagrams(200, |number| framed(number, b"get hostile:large\r\n"))
        }).by(Origin::Forged),
        row("a flood from a forged sender", "Sends 20,000 requests a second in datagrams that name the polite tenant as their sender.", |hostile| {
            hostile.send_datagrams(20_000, |number| framed(number, b"get hostile:none\r\n"))
        }).by(Origin::Forged),
        row("datagrams and connections", "Sends 10,000 requests a second in datagrams and 10,000 over TCP.", |hostile| {
            std::thread::scope(|scope| {
                let datagrams = scope.spawn(|| {
                    super::hostile::give_way();
                    hostile.send_datagrams(10_000, |number| framed(number, b"get hostile:none\r\n"))
                });
                hostile.send(&Traffic::new(20, 1_000).batch(10), |_| b"get hostile:none\r\n".to_vec())?;
                datagrams.join().map_err(|_| anyhow::anyhow!("panicked"))?
            })
        }),
    ]
}
