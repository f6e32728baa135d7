//! Interception over the life of a gate: starts that fail, gates that follow, ends of every kind.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Result, ensure};
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::privilege;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::intercept::{By, TENANT, ended, from_client, redis, service, serving, wait_for};

const STORE: &str = "198.18.0.1:6379";
/// One that is refused while its gate is lost.
const STRICT: &str = "198.18.0.1:6380";

fn config(gate: &str, more: &str) -> String {
    format!(
        "[gate]\nxdp = \"off\"\nstale_after = \"2s\"\n{gate}{}{}{TENANT}{more}",
        service("redis", "resp", "\"198.18.0.1:6379\"", ""),
        service("strict", "resp", "\"198.18.0.1:6380\"", "on_lost = \"refuse\""),
    )
}

#[test]
fn a_start_that_fails_leaves_interception_as_it_was() -> Result<()> {
    if !privilege::root("intercept_lifecycle::a_start_that_fails_leaves_interception_as_it_was") {
        return Ok(());
    }
    let site = Site::new(&config("", ""))?;
    let _store = redis(&site, &["--port", "6379", "--protected-mode", "no"])?;
    let mut gate = serving(&site, &[])?;
    site.configure(&config("", "[envoy]\nlisten = \"/proc/no/envoy.sock\"\n"))?;
    let mut next = site.launch(&["--takeover"])?;
    ended(&mut next)?;
    ensure!(gate.is_running()?, "the first has ended");
    assert_eq!(from_client(&site, STORE)?, Some(By::Gate));
    Ok(())
}

#[test]
fn a_gate_takes_interception_back_from_one_that_is_gone() -> Result<()> {
    if !privilege::root("intercept_lifecycle::a_gate_takes_interception_back_from_one_that_is_gone") {
        return Ok(());
    }
    let site = Site::new(&config("", ""))?;
    let _store = redis(&site, &["--port", "6379", "--protected-mode", "no"])?;
    let mut gate = serving(&site, &[])?;
    // One that does not find the first, and tells it nothing.
    site.configure(&config("admin = \"off\"\n", ""))?;
    let mut next = serving(&site, &["--takeover"])?;
    assert_eq!(from_client(&site, STORE)?, Some(By::Gate));
    // The first is alive, and not in charge: it gives no sign of life for the other.
    next.signal(Signal::SIGSTOP)?;
    wait_for(&site, STORE, By::Store)?;
    next.signal(Signal::SIGKILL)?;
    ended(&mut next)?;
    wait_for(&site, STORE, By::Gate)?;
    ensure!(gate.is_running()?, "the first has ended");

    // One that ends by itself takes nothing from another.
    let mut next = serving(&site, &["--takeover"])?;
    gate.signal(Signal::SIGINT)?;
    ended(&mut gate)?;
    assert_eq!(from_client(&site, STORE)?, Some(By::Gate));
    next.signal(Signal::SIGINT)?;
    ended(&mut next)?;
    assert_eq!(site.anything_left()?, None);
    Ok(())
}

#[test]
fn interception_that_is_taken_by_force_ends_its_gate() -> Result<()> {
    if !privilege::root("intercept_lifecycle::interception_that_is_taken_by_force_ends_its_gate") {
        return Ok(());
    }
    let site = Site::new(&config("", ""))?;
    let _store = redis(&site, &["--port", "6379", "--protected-mode", "no"])?;
    let mut gate = serving(&site, &[])?;
    let refused = site.gate(&["detach"])?;
    ensure!(!refused.status.success(), "it was detached although gate runs");
    // The link alone is put back.
    std::fs::remove_file(site.pins().join("intercept/link"))?;
    wait_for(&site, STORE, By::Store)?;
    wait_for(&site, STORE, By::Gate)?;
    let detached = site.gate(&["detach", "--force"])?;
    ensure!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
    ended(&mut gate)?;
    assert_eq!(from_client(&site, STORE)?, Some(By::Store));
    assert_eq!(site.anything_left()?, None);
    Ok(())
}

#[test]
fn while_gate_drains_new_connections_reach_the_store() -> Result<()> {
    if !privilege::root("intercept_lifecycle::while_gate_drains_new_connections_reach_the_store") {
        return Ok(());
    }
    let site = Site::new(&config("drain = \"1h\"\n", ""))?;
    let _stores = [
        redis(&site, &["--port", "6379", "--protected-mode", "no"])?,
        redis(&site, &["--port", "6380", "--protected-mode", "no"])?,
    ];
    let mut gate = serving(&site, &[])?;
    let mut client = site.net.client.enter(|| TcpStream::connect(STORE))??;
    client.set_read_timeout(Some(PATIENCE))?;
    let mut asks = || -> Result<()> {
        client.write_all(b"GET k\r\n")?;
        let mut answer = [0; 5];
        client.read_exact(&mut answer)?;
        assert_eq!(answer, *b"$-1\r\n");
        Ok(())
    };
    asks()?;
    gate.signal(Signal::SIGTERM)?;
    gate.wait_for("draining", PATIENCE)?;
    for at in [STORE, STRICT] {
        assert_eq!(from_client(&site, at)?, Some(By::Store), "{at}");
    }
    asks()?;
    drop(client);
    ended(&mut gate)?;
    assert_eq!(site.anything_left()?, None);
    Ok(())
}

#[test]
fn connections_of_other_services_are_told_apart_as_well() -> Result<()> {
    if !privilege::root("intercept_lifecycle::connections_of_other_services_are_told_apart_as_well") {
        return Ok(());
    }
    // A service with a port of its own, before a store whose loopback clients are intercepted.
    let site = Site::new(&format!(
        "[gate]\nxdp = \"off\"\n{}\n[[service]]\nname = \"beside\"\nprotocol = \"resp\"\nlisten = \"198.18.0.1:7000\"\n\
         backend = \"127.0.0.1:6381\"\n{TENANT}",
        service("local", "resp", "\"0.0.0.0:6381\"", "local = \"on\""),
    ))?;
    let _store = redis(&site, &["--port", "6381", "--protected-mode", "no"])?;
    let _gate = serving(&site, &[])?;
    site.net.client.enter(|| -> Result<()> {
        let mut client = TcpStream::connect("198.18.0.1:7000")?;
        client.set_read_timeout(Some(PATIENCE))?;
        client.write_all(b"SET k 1\r\n")?;
        let mut answer = [0; 5];
        client.read_exact(&mut answer)?;
        assert_eq!(answer, *b"+OK\r\n");
        Ok(())
    })??;
    let status = site.json(&["status"])?;
    let of = |name: &str| {
        let services = status["services"].as_array().expect("services");
        services.iter().find(|service| service["name"] == name).expect("the service")["store"].clone()
    };
    assert_eq!(of("local")["clients"], 0, "{status:#}");
    Ok(())
}

#[test]
fn a_store_may_come_later_and_start_anew() -> Result<()> {
    if !privilege::root("intercept_lifecycle::a_store_may_come_later_and_start_anew") {
        return Ok(());
    }
    // A port from which the kernel takes those of its own choice.
    const LOW: &str = "198.18.0.1:40000";
    let site = Site::new(&format!(
        "[gate]\nxdp = \"off\"\n{}{TENANT}",
        service("redis", "resp", "\"0.0.0.0:40000\"", "local = \"on\"")
    ))?;
    let mut gate = serving(&site, &[])?;
    for _ in 0..2 {
        let mut store = redis(&site, &["--port", "40000", "--protected-mode", "no"])?;
        wait_until("a client gets an answer of the store through gate", || {
            site.net.client.enter(|| -> Result<bool> {
                let mut client = TcpStream::connect(LOW)?;
                client.set_read_timeout(Some(PATIENCE))?;
                client.write_all(b"SET k 1\r\n")?;
                let mut answer = [0; 5];
                client.read_exact(&mut answer)?;
                Ok(answer == *b"+OK\r\n")
            })?
        })?;
        assert_eq!(from_client(&site, LOW)?, Some(By::Gate));
        store.signal(Signal::SIGKILL)?;
        ended(&mut store)?;
        // gate answers in its place, and connects to nothing that is not the store.
        assert_eq!(from_client(&site, LOW)?, Some(By::Gate));
    }
    ensure!(gate.is_running()?, "gate has ended");
    Ok(())
}
