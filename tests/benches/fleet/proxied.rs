//! Reads of memcached through a gate, with a fleet and without. Each gate has a CPU; client and store share another.

use std::time::Duration;

use anyhow::{Result, ensure};
use gate_tests::fleet::{Owner, section};
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;
use serde_json::{Value, json};
use xtask::bench::load::{Answer, Load, NUMBER, NUMBERS};

use super::{ROUNDS, median, on_own_cpu, ran};

const EACH: Duration = Duration::from_secs(2);
const CONNECTIONS: usize = 64;
const VALUE: &str = "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv";
const TENANT: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"900000000 RU/s\"\n";
const LIMIT: &str = "[[limit]]\nname = \"all\"\nquota = \"900000000 RU/s\"\n";

pub(super) fn run() -> Result<Value> {
    // Neither keeps what it reads.
    let gate = |store: &Listening, more: &str| {
        let more = format!("threads = \"1\"\n{more}");
        let service = "hot_keys.cache = \"off\"\nshedding.enabled = \"off\"\n";
        Listening::gate_with(&more, "memcached", store.address, service, TENANT)
    };
    on_own_cpu(|| ());
    let store = Listening::memcached()?;
    let owner = Owner::start(LIMIT)?;
    let gates = || anyhow::Ok([gate(&store, "")?, gate(&store, &section(&[&owner], "bench"))?]);
    let mut gates = on_own_cpu(gates)?;
    wait_until("the gate reports", || Ok(owner.gates()? == 1))?;
    println!("reads of memcached through a gate; medians of {ROUNDS} rounds of {EACH:?} in turn");
    let mut results = Vec::new();
    for pipelined in [1, 16] {
        load(16, &format!("set bench:k{NUMBER} 0 0 {}\r\n{VALUE}\r\n", VALUE.len()), "STORED\r\n".len())
            .run(store.address, Duration::from_millis(20))?;
        let answer = format!("VALUE bench:k00 0 {}\r\n{VALUE}\r\nEND\r\n", VALUE.len()).len();
        let reads = load(pipelined, &format!("get bench:k{NUMBER}\r\n"), answer);
        let mut per_sec = [const { Vec::new() }; 2];
        let mut cpu_us = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            for (place, gate) in gates.iter_mut().enumerate() {
                let process = gate.program().id();
                let before = ran(process)?;
                let outcome = reads.run(gate.address, EACH)?;
                let refused = outcome.refused as f64 / outcome.requests as f64;
                // A machine that others keep busy may have the queue refuse some.
                ensure!(refused < 0.01, "refused: {refused}");
                per_sec[place].push(outcome.per_sec);
                cpu_us[place].push((ran(process)? - before).as_secs_f64() * 1e6 / outcome.requests as f64);
            }
        }
        let [without, with] = per_sec.map(median);
        let [cpu_without, cpu_with] = cpu_us.map(median);
        println!(
            "x{pipelined:<3} {without:>9.0}/s without a fleet, {with:>9.0}/s with one: {:.3}; CPU of the gate each {cpu_without:.3} us, \
             {cpu_with:.3} us: {:.3}",
            with / without,
            cpu_with / cpu_without
        );
        results.push(json!({
            "pipelined": pipelined, "per_sec_without": without, "per_sec_with": with, "ratio": with / without,
            "cpu_us_without": cpu_without, "cpu_us_with": cpu_with, "cpu_ratio": cpu_with / cpu_without,
        }));
    }
    let charged = owner.account("all")?.map(|account| account["charged_ru"].clone());
    ensure!(charged.as_ref().and_then(Value::as_f64).is_some_and(|ru| ru > 1e6), "{charged:?} charged");
    Ok(results.into())
}

fn load(pipelined: usize, request: &str, answer: usize) -> Load {
    Load {
        connections: CONNECTIONS,
        pipelined,
        request: request.to_owned(),
        numbers: NUMBERS,
        every_other: None,
        answer: Answer::Bytes(answer),
        pause: Duration::ZERO,
    }
}
