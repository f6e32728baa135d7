//! Reloads and takeovers while a tenant misbehaves.

use std::time::Duration;

use anyhow::Result;

use super::hostile::give_way;
use super::traffic::{Ends, Traffic, resp};
use super::{Behaviour, Gate, Group, Hostile, Store};

fn row(
    store: Store,
    name: &'static str,
    does: &'static str,
    run: fn(&Hostile<'_>) -> Result<()>,
) -> Behaviour {
    Behaviour::new(Group::Operation, store, name, does, run).through_gate_only()
}

/// Sends traffic meanwhile, and does something with the gate again and again.
fn meanwhile(
    hostile: &Hostile<'_>,
    traffic: &Traffic,
    request: &[u8],
    every: Duration,
    act: impl Fn(&Gate, u64) -> Result<()>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            give_way();
            hostile.send(traffic, |_| request.to_vec())
        });
        let mut number = 0;
        while let Some(gate) = hostile.gate.filter(|_| !hostile.is_over()) {
            act(gate, number)?;
            number += 1;
            std::thread::park_timeout(every);
        }
        sender.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })
}

const OFTEN: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_millis(700);

/// Another tenant, which comes and goes.
fn another(number: u64) -> String {
    format!(
        "[[tenant]]\nname = \"another-{number}\"\nsources = [\"127.0.8.{}\"]\nquota = \"100 RU/s\"\n",
        number % 250
    )
}

#[rustfmt::skip]
pub(super) fn behaviours() -> Vec<Behaviour> {
    vec![
        row(Store::Redis, "reloads beside a flood", "Tenants are added and removed 10 times a second while one sends 20,000 requests a second.", |hostile| {
            meanwhile(hostile, &Traffic::new(50, 2_000).batch(10), &resp(&["GET", "hostile:none"]), OFTEN, |gate, number| {
                gate.reload(&if number % 2 == 0 { another(number) } else { String::new() })
            })
        }),
        row(Store::Memcached, "reloads beside connection churn", "Tenants are added and removed 10 times a second while one opens 500 connections a second.", |hostile| {
            meanwhile(hostile, &Traffic::new(50, 500).ends(Ends::Answered), b"get hostile:none\r\n", OFTEN, |gate, number| {
                gate.reload(&if number % 2 == 0 { another(number) } else { String::new() })
            })
        }),
        row(Store::Redis, "takeovers beside a flood", "Another gate takes over every 0.7 s while a tenant sends 20,000 requests a second.", |hostile| {
            meanwhile(hostile, &Traffic::new(50, 2_000).batch(10), &resp(&["GET", "hostile:none"]), SELDOM, |gate, _| gate.replace())
        }),
        row(Store::Memcached, "takeovers beside idle connections", "Another gate takes over every 0.7 s while a tenant has 500 idle connections.", |hostile| {
            meanwhile(hostile, &Traffic::held(500, ""), b"", SELDOM, |gate, _| gate.replace())
        }),
    ]
}
