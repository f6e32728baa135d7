//! `gate sources` and `gate watch` of a running gate: who is refused or unknown most, and verdicts as they come.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::http::curl_socket;
use gate_tests::proxy::{Listening, read_until};
use gate_tests::schema;
use gate_tests::wait::wait_until;
use serde_json::Value;
use xtask::paths;

const TENANTS: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/16\"]\nquota = \"1 RU/s\"\nburst = \"1s\"\n\
                       limits = { get = \"1/s\" }\n";
/// Unknown sources that ask once each, and how often the planted one asks among them.
const OTHERS: u16 = 999;
const PLANTED: u64 = 50;

fn gate() -> Result<(Listening, Listening)> {
    let store = Listening::embedded("memcached")?;
    let section = "threads = \"1\"\nsample = \"1/1\"";
    let price = "price = { base = \"0.001 RU\", row = \"0 RU\", kib = \"0 RU\" }";
    let gate = Listening::gate_with(section, "memcached", store.address, price, TENANTS)?;
    Ok((gate, store))
}

/// Asks from an address, and waits for the answers.
fn ask(gate: &Listening, source: Ipv4Addr, requests: usize) -> Result<()> {
    let mut client = gate.connect_from(source)?;
    client.write_all(&b"get a\r\n".repeat(requests))?;
    let mut lines = 0;
    while lines < requests {
        lines += read_until(&mut client, b"\r\n")?.iter().filter(|&&byte| byte == b'\n').count();
    }
    Ok(())
}

fn fits_schema(name: &str, document: &Value) -> Result<()> {
    let output = Command::new(paths::gate()).args(["schema", name]).output()?;
    schema::check(&serde_json::from_slice(&output.stdout)?, document)
}

#[test]
fn a_planted_unknown_source_is_named_within_its_bound() -> Result<()> {
    let (gate, _store) = gate()?;
    let planted = Ipv4Addr::new(127, 9, 9, 9);
    for number in 0..OTHERS {
        let [high, low] = number.to_be_bytes();
        ask(&gate, Ipv4Addr::new(127, 1, high, low.max(1)), 1)?;
        if number.is_multiple_of(20) {
            ask(&gate, planted, 1)?;
        }
    }
    let sources = || gate.json(&["sources", "--unknown", "-n", "256"]);
    let sum = |list: &Value| -> u64 {
        list["unknown"].as_array().into_iter().flatten().filter_map(|found| found["estimate"].as_u64()).sum()
    };
    wait_until("all samples", || {
        let list = sources()?;
        Ok(sum(&list) > 0 && list["unknown"][0]["source"] == planted.to_string())
    })?;
    let list = sources()?;
    fits_schema("sources", &list)?;
    let first = &list["unknown"][0];
    ensure!(first["reason"] == "unknown-source" && first["tenant"].is_null(), "{list}");
    let estimate = first["estimate"].as_u64().context("a count")?;
    let error = first["error"].as_u64().context("a bound")?;
    // Counts halve every 60 s, which this takes a part of.
    ensure!(estimate <= PLANTED + error && estimate + 1 >= PLANTED / 2, "{first}");
    ensure!(list["refused"].as_array().is_some_and(Vec::is_empty), "{list}");
    Ok(())
}

#[test]
fn refusals_are_watched_with_their_bucket_and_counted_by_source() -> Result<()> {
    let (gate, _store) = gate()?;
    let source = Ipv4Addr::new(127, 0, 7, 7);
    ask(&gate, source, 20)?;
    wait_until("a refusal", || {
        let list = gate.json(&["sources"])?;
        let found = &list["refused"][0];
        Ok(found["source"] == source.to_string() && found["tenant"] == "all" && found["reason"] == "quota")
    })?;
    let watched = gate.json(&["watch"])?;
    fits_schema("watch", &watched)?;
    let all = watched["verdicts"].as_array().context("verdicts")?;
    ensure!(all.iter().any(|verdict| verdict["reason"].is_null()), "{watched}");
    let refused = gate.json(&["watch", "--refused", "--tenant", "all"])?;
    let refused = refused["verdicts"].as_array().context("verdicts")?;
    ensure!(!refused.is_empty() && refused.len() < all.len(), "{watched}");
    ensure!(
        refused.iter().all(|verdict| verdict["bucket"] == "get" && verdict["query_type"] == "get"),
        "{refused:?}"
    );
    let text = String::from_utf8(gate.command(&["watch", "--refused"])?.stdout)?;
    ensure!(
        text.lines().next().is_some_and(|line| line.ends_with("refused quota of get (proxy, x1)")),
        "{text}"
    );
    let none = gate.json(&["watch", "--tenant", "nobody"])?;
    ensure!(none["verdicts"].as_array().is_some_and(Vec::is_empty), "{none}");
    let (_, socket) = gate.files()?;
    let next = watched["next"].as_u64().context("a number")?;
    let rest = curl_socket(&socket, &format!("/v1/watch?from={next}"), &[])?.json()?;
    ensure!(rest["verdicts"].as_array().is_some_and(Vec::is_empty) && rest["next"] == next, "{rest}");
    let wrong = curl_socket(&socket, "/v1/watch?from=now", &[])?;
    ensure!(wrong.status == 422 && wrong.error()?.contains("/v1/watch?from=17"), "{wrong:?}");
    Ok(())
}
