//! `gate sources` and `gate watch` of a running gate: who is refused or unknown most, and verdicts as they come.

use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::Site;
use gate_tests::http::curl_socket;
use gate_tests::packet::Packet;
use gate_tests::privilege;
use gate_tests::proxy::{Listening, read_until};
use gate_tests::raw::RawSender;
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
        text.lines().next().is_some_and(|line| line.ends_with("refused quota of get (proxy, 1 of 1)")),
        "{text}"
    );
    let nobody = gate.command(&["watch", "--tenant", "nobody"])?;
    ensure!(
        !nobody.status.success() && String::from_utf8_lossy(&nobody.stderr).contains("no tenant \"nobody\""),
        "{nobody:?}"
    );
    let (_, socket) = gate.files()?;
    let next = watched["next"].as_u64().context("a number")?;
    let rest = curl_socket(&socket, &format!("/v1/watch?from={next}"), &[])?.json()?;
    ensure!(rest["verdicts"].as_array().is_some_and(Vec::is_empty) && rest["next"] == next, "{rest}");
    let wrong = curl_socket(&socket, "/v1/watch?from=now", &[])?;
    ensure!(wrong.status == 422 && wrong.error()?.contains("/v1/watch?from=17"), "{wrong:?}");
    Ok(())
}

/// A guarded service at IPv4 and IPv6, and a tenant whose bucket of three requests is refilled in hours.
const GUARDED: &str = r#"
[gate]
sample = "1/1"

[[service]]
name = "cache"
protocol = "memcached"
listen = ["198.18.0.1:11211", "[fd00::1]:11211"]
price = { base = "1 RU", row = "0 RU", kib = "0 RU" }

[[tenant]]
name = "whole"
sources = "198.18.9.1"
quota = "0.001 RU/s"
burst = "3600s"

[[tenant]]
name = "part"
sources = "198.18.9.2"
quota = "unlimited"
charge = ["whole"]

[[tenant]]
name = "large"
sources = "198.18.9.3"
quota = "1000 RU/s"

[[tenant]]
name = "other"
sources = "198.18.9.4"
quota = "unlimited"
charge = ["large", "whole"]
"#;

fn get(source: &str) -> Vec<u8> {
    let destination = if source.contains(':') { "fd00::1" } else { "198.18.0.1" };
    Packet::memcached(source, destination, 11_211, 7, b"get a\r\n").bytes()
}

#[test]
fn planted_sources_at_the_interface_are_named_within_bounds() -> Result<()> {
    if !privilege::root("sources::planted_sources_at_the_interface_are_named_within_bounds") {
        return Ok(());
    }
    let site = Site::new(GUARDED)?;
    let _gate = site.start(&[])?;
    let sender = RawSender::open(&site.net)?;
    // One asks in 20 times, of IPv4, and one in 40, of IPv6.
    let planted = ["198.19.200.7", "fd00::200:7"];
    let times = [PLANTED, PLANTED / 2];
    for number in 0..OTHERS {
        let [high, low] = number.to_be_bytes();
        let other = match number % 2 {
            0 => Ipv4Addr::new(198, 19, high, low).to_string(),
            _ => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 9, number).to_string(),
        };
        sender.send(&get(&other))?;
        for (planted, every) in planted.into_iter().zip([20, 40]) {
            if number % every == 0 {
                sender.send(&get(planted))?;
            }
        }
    }
    let sent = u64::from(OTHERS) + times.iter().sum::<u64>();
    wait_until("all refusals are sampled", || {
        Ok(site.json(&["status"])?["events"]["refusal-sampled"].as_u64() >= Some(sent))
    })?;
    let list = || site.json(&["sources", "--unknown", "-n", "256"]);
    // Counts halve every 60 s, which this takes a part of.
    let bounds = times.map(|times| times / 2);
    let found = |list: &Value, place: usize| {
        let found = list["unknown"].get(place).cloned().unwrap_or_default();
        let is_planted = found["source"] == planted[place] && found["service"] == "cache";
        (is_planted && found["estimate"].as_u64() >= Some(bounds[place])).then_some(found)
    };
    wait_until("both are found", || {
        let list = list()?;
        Ok((0..2).all(|place| found(&list, place).is_some()))
    })?;
    let list = list()?;
    fits_schema("sources", &list)?;
    for (place, times) in times.into_iter().enumerate() {
        let found = found(&list, place).with_context(|| list.to_string())?;
        let estimate = found["estimate"].as_u64().context("a count")?;
        let error = found["error"].as_u64().context("a bound")?;
        ensure!(found["reason"] == "unknown-source" && found["tenant"].is_null(), "{found}");
        ensure!(estimate <= times + error, "{found}");
    }
    Ok(())
}

#[test]
fn verdicts_at_the_interface_are_watched_with_source_and_bucket() -> Result<()> {
    if !privilege::root("sources::verdicts_at_the_interface_are_watched_with_source_and_bucket") {
        return Ok(());
    }
    let site = Site::new(GUARDED)?;
    let _gate = site.start(&[])?;
    let sender = RawSender::open(&site.net)?;
    let whole = "198.18.9.1";
    let part = "198.18.9.2";
    (0..6).try_for_each(|_| sender.send(&get(whole)))?;
    (0..4).try_for_each(|_| sender.send(&get(part)))?;
    (0..5).try_for_each(|_| sender.send(&get("198.18.9.4")))?;
    sender.send(&get("198.19.1.1"))?;
    let watched = || -> Result<Vec<String>> {
        let document = site.json(&["watch"])?;
        let verdicts = document["verdicts"].as_array().context("verdicts")?;
        ensure!(verdicts.iter().all(|verdict| verdict["layer"] == "xdp" && verdict["service"] == "cache"));
        let shown = |verdict: &Value| {
            let text = |field: &str| verdict[field].as_str().unwrap_or("-").to_owned();
            ["source", "tenant", "reason", "bucket"].map(text).join(" ")
        };
        Ok(verdicts.iter().map(shown).collect())
    };
    wait_until("all verdicts", || Ok(watched()?.len() == 16))?;
    let count = |wanted: &str| -> Result<usize> {
        Ok(watched()?.iter().filter(|verdict| *verdict == wanted).count())
    };
    // Three fit the bucket.
    let said = watched()?;
    ensure!(count("198.18.9.1 whole - -")? == 3, "{said:?}");
    ensure!(count("198.18.9.1 whole quota whole")? == 3, "{said:?}");
    ensure!(count("198.18.9.2 part quota whole")? == 4, "{said:?}");
    ensure!(count("198.18.9.4 other quota whole")? == 5, "of two the second: {said:?}");
    ensure!(count("198.19.1.1 - unknown-source -")? == 1, "{said:?}");
    fits_schema("watch", &site.json(&["watch"])?)?;
    let text = String::from_utf8(site.gate(&["watch", "--refused", "--tenant", "part"])?.stdout)?;
    ensure!(
        text.lines().all(|line| line.ends_with("unknown refused quota of whole (xdp, 1 of 1)")),
        "{text}"
    );
    let list = site.json(&["sources"])?;
    let refused = list["refused"].as_array().context("refused")?;
    let of = |source: &str| refused.iter().find(|found| found["source"] == source);
    ensure!(of(whole).is_some_and(|found| found["tenant"] == "whole"), "{list}");
    ensure!(of(part).is_some_and(|found| found["reason"] == "quota"), "{list}");
    Ok(())
}
