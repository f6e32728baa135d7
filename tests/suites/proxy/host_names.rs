//! Stores that are configured by name, as a file like `/etc/hosts` resolves it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::privilege;
use gate_tests::proxy::{Listening, PATIENCE};
use gate_tests::wait::{wait_until, within};

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const NAME: &str = "store.gate.test";

/// The addresses of the name, in a file of this run alone.
struct Hosts(PathBuf);

impl Hosts {
    fn new(name: &str, stores: &[SocketAddr]) -> Result<Self> {
        let this = Self(std::env::temp_dir().join(format!("gate-{}-{name}.hosts", std::process::id())));
        this.set(stores)?;
        Ok(this)
    }

    /// In place: it is mounted.
    fn set(&self, stores: &[SocketAddr]) -> Result<()> {
        let lines = stores.iter().map(|store| format!("{} {NAME}\n", store.ip()));
        Ok(std::fs::write(&self.0, lines.collect::<String>())?)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // They lie in the directory for temporary files.
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_file(self.0.with_extension("nsswitch"));
    }
}

/// Gate before whom the name stands for; all stores here have one port.
fn gate(hosts: &Hosts, store: SocketAddr) -> Result<Listening> {
    let backend = format!("{NAME}:{}", store.port());
    Listening::gate_with_hosts(&hosts.0, "memcached", backend, "connections = \"1\"", EVERYONE)
}

/// A store that can be told from others by a number.
fn store(number: u8) -> Result<Listening> {
    let store = Listening::memcached()?;
    store.ask(format!("set name 0 0 1\r\n{number}\r\n").as_bytes(), b"STORED\r\n")?;
    Ok(store)
}

fn reaches(gate: &Listening, number: u8) -> Result<bool> {
    Ok(answer(gate)? == format!("{number}\r\n").as_bytes())
}

/// The number of the store that gate reaches now, as that store says it, or a refusal.
fn answer(gate: &Listening) -> Result<Vec<u8>> {
    gate.ask(b"incr name 0\r\n", b"\r\n")
}

#[test]
fn a_store_that_failed_is_looked_for_where_its_name_says() -> Result<()> {
    if !privilege::root("a_store_that_failed_is_looked_for_where_its_name_says") {
        return Ok(());
    }
    let first = store(1)?;
    let second = store(2)?;
    let hosts = Hosts::new("failover", &[first.address])?;
    let mut gate = gate(&hosts, first.address)?;
    ensure!(reaches(&gate, 1)?);
    hosts.set(&[second.address])?;
    drop(first);
    wait_until("it does not reach the second", || reaches(&gate, 2))?;
    // A name that is gone changes nothing, and is told.
    hosts.set(&[])?;
    let address = second.address;
    drop(second);
    gate.program().wait_for("its last addresses hold", PATIENCE)?;
    let third = Listening::memcached_at(address)?;
    wait_until("it does not come back", || Ok(gate.ask(b"get name\r\n", b"\r\n")? == b"END\r\n"))?;
    hosts.set(&[third.address])?;
    Ok(())
}

#[test]
fn addresses_are_tried_in_order_and_a_name_may_come_late() -> Result<()> {
    if !privilege::root("addresses_are_tried_in_order_and_a_name_may_come_late") {
        return Ok(());
    }
    let dead = store(1)?;
    let alive = store(2)?;
    let hosts = Hosts::new("order", &[])?;
    let mut gate = gate(&hosts, dead.address)?;
    gate.program().wait_for("cannot be resolved", PATIENCE)?;
    ensure!(gate.ask(b"get name\r\n", b"\r\n")?.ends_with(b"reason=store-down\r\n"));
    // The first of them does not listen any more.
    let unused = dead.address;
    drop(dead);
    hosts.set(&[unused, alive.address])?;
    wait_until("it does not reach the one that is there", || reaches(&gate, 2))
}

#[test]
fn a_store_whose_name_moves_is_left_without_an_error() -> Result<()> {
    if !privilege::root("a_store_whose_name_moves_is_left_without_an_error") {
        return Ok(());
    }
    let first = store(1)?;
    let second = store(2)?;
    let hosts = Hosts::new("moved", &[first.address])?;
    let gate = gate(&hosts, first.address)?;
    ensure!(reaches(&gate, 1)?);
    hosts.set(&[second.address])?;
    // The name is asked about when a connection is made, and every 30 s.
    within("it stays with the first", Duration::from_secs(60), || {
        // Each thread of gate moves by itself: an answer of the second may be followed by one of the first.
        let answer = answer(&gate)?;
        ensure!(matches!(&answer[..], b"1\r\n" | b"2\r\n"), "{}", answer.escape_ascii());
        Ok(answer == b"2\r\n")
    })?;
    ensure!(counter(&gate, "store-failed")? == 0);
    Ok(())
}
