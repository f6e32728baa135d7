//! A `get` of keys at several stores is one request: charged, counted and refused as a whole.

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::{EVERYONE, Site, get};

const LIMITED: &str =
    "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"1000000 RU/s\"\nburst = \"60s\"";

/// The requests of the only tenant that have passed, its charges in RU, and its refusals.
fn counted(site: &Site) -> Result<(u64, f64, u64)> {
    let tenant = site.gate.json(&["tenants"])?["tenants"][0].take();
    let refused = tenant["refused"].as_object().context("no refusals")?;
    Ok((
        tenant["passed"].as_u64().context("nothing has passed")?,
        tenant["charged_ru"].as_f64().context("nothing was charged")?,
        refused.values().filter_map(serde_json::Value::as_u64).sum(),
    ))
}

fn set(site: &Site, keys: &[String], len: usize) -> Result<()> {
    let value = "x".repeat(len);
    keys.iter().try_for_each(|key| site.check(&format!("set {key} 0 0 {len}\r\n{value}\r\n"), b"STORED\r\n"))
}

/// The charge of a read of these keys, once it has been learned.
fn learned_price(site: &Site, keys: &[String]) -> Result<f64> {
    let mut client = site.gate.connect()?;
    for _ in 0..30 {
        ensure!(get(&mut client, keys)?.len() == keys.len());
    }
    let (_, before, _) = counted(site)?;
    ensure!(get(&mut client, keys)?.len() == keys.len());
    let (_, after, _) = counted(site)?;
    Ok(after - before)
}

#[test]
fn values_at_several_stores_cost_what_they_cost_at_one() -> Result<()> {
    for (settle, len, many) in [("next", 200 << 10, 2), ("debt", 4 << 10, 40)] {
        let service = format!("price = {{ settle = \"{settle}\" }}");
        let site = Site::with_tenants("", &service, LIMITED)?;
        let [first, second] = [0, 1].map(|store| site.keys_at(store, many));
        set(&site, &[&first[..], &second[..]].concat(), len)?;
        // These first: nothing has been learned of reads at one store that would be their price.
        let mut at_two = Vec::new();
        for of_first in [1, many / 2, many - 1] {
            let keys = [&first[..of_first], &second[..many - of_first]].concat();
            at_two.push(learned_price(&site, &keys)?);
        }
        let at_one = learned_price(&site, &first)?;
        println!("settle {settle}: {at_two:?} RU at two stores, {at_one} at one");
        ensure!(at_two.iter().all(|price| (price / at_one - 1.0).abs() < 0.1), "{at_two:?}, not {at_one} RU");
    }
    Ok(())
}

#[test]
fn what_gates_queue_refuses_is_no_miss_and_costs_nothing() -> Result<()> {
    let service = "store_timeout = \"30s\"\nconnections = \"1\"\nparallelism = \"2\"\nadmission = \"off\"\n\
        deadline = \"200ms\"\nhot_keys = { cache = \"off\" }\nshedding.enabled = \"off\"";
    let site = Site::with_tenants("threads = \"1\"", service, LIMITED)?;
    let [hung, first, second] = [(0, 3), (1, 2), (2, 2)].map(|(store, count)| site.keys_at(store, count));
    set(&site, &[&first[..], &second[..]].concat(), 1)?;
    site.stores[0].stall()?;
    // Two take the permits, and one is refused for its wait.
    let mut clients = Vec::new();
    for key in &hung {
        let mut client = site.gate.connect()?;
        client.write_all(format!("get {key}\r\n").as_bytes())?;
        clients.push(client);
    }
    wait_until("the permits are not taken", || Ok(counted(&site)?.2 == 1))?;
    for keys in [&first[..], &[first[0].clone(), second[0].clone()]] {
        let before = counted(&site)?;
        let said = site.gate.ask(format!("get {}\r\n", keys.join(" ")).as_bytes(), b"\r\n")?;
        ensure!(said.starts_with(b"SERVER_ERROR overloaded "), "{keys:?}: {}", shown(&said));
        let after = counted(&site)?;
        ensure!(after == (before.0, before.1, before.2 + 1), "{keys:?}: {before:?}, then {after:?}");
    }
    site.stores[0].signal(Signal::SIGCONT)
}

#[test]
fn a_get_whose_stores_all_hang_is_refused() -> Result<()> {
    let service = "connections = \"1\"\nstore_timeout = \"200ms\"\nslow_timeout = \"200ms\"\nhot_keys = { cache = \"off\" }";
    let site = Site::new("", service)?;
    let keys: Vec<_> = (0..3).flat_map(|store| site.keys_at(store, 1)).collect();
    site.stores.iter().try_for_each(Listening::stall)?;
    let said = site.gate.ask(format!("get {}\r\n", keys.join(" ")).as_bytes(), b"\r\n")?;
    ensure!(said.starts_with(b"SERVER_ERROR "), "{}", shown(&said));
    site.stores.iter().try_for_each(|store| store.signal(Signal::SIGCONT))
}

#[test]
fn a_get_at_several_stores_is_one_outstanding_request() -> Result<()> {
    let site = Site::with_tenants("", "", &format!("{EVERYONE}\nmax_outstanding = \"2\""))?;
    let keys: Vec<_> = (0..3).flat_map(|store| site.keys_at(store, 5)).collect();
    let mut client = site.gate.connect()?;
    for _ in 0..100 {
        client.write_all(format!("get {}\r\nget {}\r\necho\r\n", keys.join(" "), keys[0]).as_bytes())?;
        let said = read_until(&mut client, b"ERROR\r\n")?;
        ensure!(said == b"END\r\nEND\r\nERROR\r\n", "{}", shown(&said));
    }
    Ok(())
}
