//! The state of interception, as a gate, its commands and its metrics tell it.

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::Site;
use gate_tests::http::curl_socket;
use gate_tests::metrics::Scrape;
use gate_tests::privilege;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use xtask::paths;

use super::intercept::{By, TENANT, ended, from_client, redis, service, serving, wait_for};

const STORE: &str = "198.18.0.1:6379";
/// One that is refused while its gate is lost.
const STRICT: &str = "198.18.0.1:6380";

/// The interception that `gate status` tells of, and an address of it.
fn seen(site: &Site, address: &str) -> Result<(Value, Value)> {
    let status = site.json(&["status"])?;
    let interception = status["interception"].clone();
    let addresses = interception["addresses"].as_array().context("no interception")?;
    let address = addresses.iter().find(|one| one["address"] == address).context("no such address")?.clone();
    Ok((interception, address))
}

/// The text of `gate status`.
fn text(site: &Site) -> Result<String> {
    let output = site.gate(&["status"])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// One service that passes while gate is lost, and one that is refused then.
fn config() -> String {
    format!(
        "[gate]\nxdp = \"off\"\nstale_after = \"2s\"\n{}{}{TENANT}",
        service("redis", "resp", "[\"198.18.0.1:6379\", \"[fd00::1]:6379\"]", ""),
        service("strict", "resp", "\"198.18.0.1:6380\"", "on_lost = \"refuse\""),
    )
}

#[test]
fn status_explain_and_metrics_say_who_gets_connections() -> Result<()> {
    if !privilege::root("intercept_seen::status_explain_and_metrics_say_who_gets_connections") {
        return Ok(());
    }
    let site = Site::new(&config())?;
    let _store = redis(&site, &["--port", "6379", "--protected-mode", "no"])?;
    let gate = serving(&site, &[])?;
    for _ in 0..3 {
        assert_eq!(from_client(&site, STORE)?, Some(By::Gate));
    }
    let (interception, address) = seen(&site, STORE)?;
    assert_eq!((&interception["attached"], &interception["owner"]), (&json!(true), &json!(gate.id())));
    ensure!(interception["attached_ms_ago"].is_u64() && interception["stale_after_ms"] == 2_000);
    let of_gate = json!({
        "service": "redis", "address": STORE, "local": false, "on_lost": "pass", "reaches": "gate", "why": null,
        "to_gate": 3, "to_store": 0, "refused": 0,
    });
    assert_eq!(address, of_gate);
    assert_eq!(seen(&site, "[fd00::1]:6379")?.1["to_gate"], 0);
    assert_eq!(seen(&site, STRICT)?.1["on_lost"], "refuse");
    let said = text(&site)?;
    ensure!(said.contains(&format!("gate intercepts as process {}", gate.id())), "{said}");
    ensure!(said.contains("198.18.0.1:6379 ") && said.contains("reach gate"), "{said}");

    let mut command = site.net.server.command(paths::gate());
    command
        .args(["explain", "--json", "--service", "redis", "--tenant", "all", "--pin-dir"])
        .arg(site.pins());
    let explained: Value = serde_json::from_slice(&command.args(["--", "GET", "k"]).output()?.stdout)?;
    let notes = explained["notes"].to_string();
    ensure!(
        notes.contains("intercepted at 198.18.0.1:6379: new connections of clients reach gate"),
        "{notes}"
    );

    let scraped = Scrape::parse(
        &curl_socket(&gate_userspace::admin::default_path(site.pins()), "/metrics", &[])?.body,
    )?;
    assert_eq!(scraped.sum("gate_intercept_up", &[("service", "redis")]), 1.0);
    assert_eq!(scraped.sum("gate_intercept_connections_total", &[("service", "redis"), ("to", "gate")]), 3.0);
    assert_eq!(scraped.sum("gate_intercept_connections_total", &[("service", "redis")]), 3.0);
    Ok(())
}

#[test]
fn status_says_why_connections_do_not_reach_gate() -> Result<()> {
    if !privilege::root("intercept_seen::status_says_why_connections_do_not_reach_gate") {
        return Ok(());
    }
    let site = Site::new(&config())?;
    let _store = redis(&site, &["--port", "6379", "--protected-mode", "no"])?;
    let mut gate = serving(&site, &[])?;
    assert_eq!(from_client(&site, STORE)?, Some(By::Gate));
    // It stands still: whoever asks it would wait, and the kernel tells.
    gate.signal(Signal::SIGSTOP)?;
    wait_for(&site, STORE, By::Store)?;
    let stale = |address: &str| -> Result<Value> { Ok(seen(&site, address)?.1) };
    let was_lost = stale(STORE)?["to_store"].as_u64().context("no count")?;
    assert_eq!(from_client(&site, STORE)?, Some(By::Store));
    ensure!(from_client(&site, STRICT).is_err(), "it is to be refused");
    let (interception, address) = seen(&site, STORE)?;
    assert_eq!((&address["reaches"], &address["why"]), (&json!("store"), &json!("heartbeat is stale")));
    assert_eq!((&address["to_store"], &interception["owner"]), (&json!(was_lost + 1), &json!(gate.id())));
    let strict = stale(STRICT)?;
    assert_eq!((&strict["reaches"], &strict["why"]), (&json!("nobody"), &json!("heartbeat is stale")));
    ensure!(strict["refused"].as_u64() >= Some(1), "{strict}");
    gate.signal(Signal::SIGCONT)?;
    wait_for(&site, STORE, By::Gate)?;
    wait_until("status says that gate is back", || Ok(stale(STORE)?["reaches"] == "gate"))?;

    // Counts and name outlive the daemon.
    gate.signal(Signal::SIGKILL)?;
    ended(&mut gate)?;
    let (interception, address) = seen(&site, STORE)?;
    assert_eq!((&address["reaches"], &address["why"]), (&json!("store"), &json!("gate is gone")));
    assert_eq!((&interception["owner"], &address["service"]), (&Value::Null, &json!("redis")));
    let said = text(&site)?;
    ensure!(said.contains("no gate that intercepts runs") && said.contains("gate is gone"), "{said}");
    ensure!(said.contains("are refused: gate is gone"), "{said}");
    let before = address["to_gate"].as_u64().context("no count")?;
    let mut gate = serving(&site, &[])?;
    wait_for(&site, STORE, By::Gate)?;
    let after = seen(&site, STORE)?.1["to_gate"].as_u64().context("no count")?;
    ensure!(after > before && before >= 1, "{before} and then {after}");

    // Without the program nothing is refused either.
    gate.signal(Signal::SIGKILL)?;
    ended(&mut gate)?;
    std::fs::remove_file(site.pins().join("intercept/link"))?;
    wait_until("the program is off", || Ok(seen(&site, STRICT)?.1["why"] == "not attached"))?;
    let (interception, strict) = seen(&site, STRICT)?;
    assert_eq!((&interception["attached"], &strict["reaches"]), (&json!(false), &json!("store")));
    let detached = site.gate(&["detach"])?;
    ensure!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
    let none = site.gate(&["status"])?;
    ensure!(!none.status.success(), "there is nothing to tell of");
    assert_eq!(site.anything_left()?, None);
    Ok(())
}
