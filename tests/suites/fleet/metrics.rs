//! `/metrics` and `gate status` of gates that share limits, and of the owners of these.

use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fleet::{LIMIT, Owner, TENANTS, section};
use gate_tests::http::{Answer, curl, curl_socket};
use gate_tests::metrics::Scrape;
use gate_tests::proxy::{Listening, address};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The sum of a family at a gate.
fn at_gate(gate: &Listening, family: &str) -> Result<f64> {
    let scraped = Scrape::parse(&curl_socket(&gate.files()?.1, "/metrics", &[])?.body)?;
    Ok(scraped.sum(family, &[]))
}

/// The text of `gate status`, and the owners of limits in its document.
fn status(gate: &Listening) -> Result<(String, Value)> {
    let printed = String::from_utf8(gate.command(&["status"])?.stdout)?;
    let mut document = gate.json(&["status"])?;
    Ok((printed, document["fleet"].take()))
}

#[test]
fn a_gate_shows_whether_its_owners_of_limits_answer() -> Result<()> {
    let store = Listening::memcached()?;
    let owner = Owner::start(LIMIT)?;
    let at = owner.address;
    let gate = Listening::gate_with(&section(&[&owner], "gate-1"), "memcached", store.address, "", TENANTS)?;
    gate.ask(b"get k\r\n", b"\r\n")?;
    for (family, what) in [("limits", "its limit is reported"), ("up", "it answers"), ("gates", "it counts")]
    {
        wait_until(what, || Ok(at_gate(&gate, &format!("gate_fleet_owner_{family}"))? == 1.0))?;
    }
    wait_until("the status says so", || {
        let (printed, document) = status(&gate)?;
        let known = &document[0];
        ensure!(known["address"] == json!(at) && known["limits"] == 1, "{document}");
        Ok(known["lost"] == false && printed.contains(&format!("{at}  answers")))
    })?;

    drop(owner);
    wait_until("the owner is lost", || Ok(at_gate(&gate, "gate_fleet_owner_up")? == 0.0))?;
    let (printed, document) = status(&gate)?;
    ensure!(printed.contains(&format!("{at}  silent for ")), "{printed}");
    ensure!(document[0]["lost"] == true && document[0]["answered_ms_ago"].is_u64(), "{document}");

    let _owner = Owner::start_at(at, LIMIT)?;
    wait_until("the owner is back", || Ok(at_gate(&gate, "gate_fleet_owner_up")? == 1.0))
}

#[test]
fn an_owner_shows_its_gates_accounts_and_events() -> Result<()> {
    let store = Listening::memcached()?;
    let metrics = address();
    let ask = |path: &str, arguments: &[&str]| -> Result<Answer> {
        curl(&[&[format!("http://{metrics}{path}").as_str()], arguments].concat())
    };
    let key = format!("metrics = \"{metrics}\"\nmemory = \"1MiB\"\n");
    let owner = Owner::start_with(address(), &key, LIMIT)?;
    let gate = Listening::gate_with(&section(&[&owner], "gate-1"), "memcached", store.address, "", TENANTS)?;
    gate.ask(b"get k\r\n", b"\r\n")?;
    let of = |family: &str, labels: &[(&str, &str)]| -> Result<f64> {
        Ok(Scrape::parse(&ask("/metrics", &[])?.body)?.sum(family, labels))
    };
    wait_until("the limit has an account", || Ok(of("gate_quota_accounts", &[])? == 1.0))?;
    wait_until("its gate reports", || Ok(of("gate_quota_gates", &[])? == 1.0))?;
    ensure!(of("gate_quota_deciding", &[])? == 1.0);
    ensure!((2_048.0..2_100.0).contains(&of("gate_quota_accounts_limit", &[])?));
    ensure!(of("gate_quota_events_total", &[("event", "connected")])? >= 1.0);
    drop(gate);
    wait_until("the gate has left", || Ok(of("gate_quota_gates", &[])? == 0.0))?;

    // It shows this and nothing else, to nobody whom another site sends.
    for (path, arguments, status) in [
        ("/v1/status", &[][..], 404),
        ("/metrics", &["--request", "POST"], 405),
        ("/metrics", &["--header", "Host: evil.example"], 421),
    ] {
        let answer = ask(path, arguments)?;
        ensure!(answer.status == status, "{path} {arguments:?}: {answer:?}");
    }
    // A port that is taken is named.
    let error = Owner::start_with(address(), &key, LIMIT).err().context("a second one listens there")?;
    ensure!(format!("{error:?}").contains("`metrics` in the section [quota]"), "{error:?}");

    owner.program.signal(Signal::SIGTERM)?;
    wait_until("its port is closed", || Ok(TcpStream::connect(metrics).is_err()))
}
