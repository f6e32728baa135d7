//! Maps that give way to larger ones: an upgrade that was interrupted, and a gate that drains meanwhile.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use gate_common::units::Nanos;
use gate_tests::daemon::{CONFIG, PATIENCE, Site};
use gate_tests::privilege;
use gate_tests::proxy::{Listening, PATIENT, check};
use gate_tests::wait::wait_until;
use gate_userspace::clock;
use gate_userspace::kernel::Maps;
use nix::sys::signal::Signal;

/// `other` of the configuration.
const DEBTOR: usize = 2;

#[test]
fn an_upgrade_interrupted_while_renaming_pins_is_completed() -> Result<()> {
    if !privilege::root("upgrade::an_upgrade_interrupted_while_renaming_pins_is_completed") {
        return Ok(());
    }
    let site = Site::new(CONFIG)?;
    let gate = site.start(&[])?;
    gate.signal(Signal::SIGKILL)?;
    ensure!(gate.finish(PATIENCE).is_err());
    let debt = {
        let maps = Maps::pinned(site.pins(), true)?;
        let now = maps.clock().at_monotonic(clock::monotonic());
        let until = now.saturating_add(Nanos::from_secs(1_000)).0;
        maps.quota_tat(DEBTOR).store(until, Ordering::SeqCst);
        until
    };
    // As a gate leaves it that has renamed some of its pins, and not yet the others.
    let replacing = site.pins().join("replacing");
    std::fs::create_dir(&replacing)?;
    for name in ["CONTROL", "COUNTERS", "TENANTS"] {
        std::fs::rename(site.pins().join(name), replacing.join(name))?;
    }
    let gate = site.start(&[])?;
    let maps = Maps::pinned(site.pins(), false)?;
    ensure!(maps.quota_tat(DEBTOR).load(Ordering::SeqCst) == debt);
    drop(maps);
    gate.end()?;
    ensure!(site.anything_left()?.is_none());
    Ok(())
}

const MEMCACHED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 11_311);

/// One proxied service, and as many tenants beside the one that asks.
fn config(store: SocketAddr, others: usize) -> String {
    let mut text = format!(
        "[gate]\ntick = \"10ms\"\ndrain = \"60s\"\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{MEMCACHED}\"\nbackend = \"{store}\"\n\
         transports = [\"tcp\"]\n{PATIENT}\nshedding.enabled = \"off\"\n\
         [[tenant]]\nname = \"all\"\nsources = \"127.0.0.0/8\"\nquota = \"1000000 RU/s\"\n"
    );
    for n in 0..others {
        text += &format!(
            "[[tenant]]\nname = \"t{n}\"\nsources = \"10.0.{}.{}\"\nquota = \"10 RU/s\"\n",
            n >> 8,
            n & 255
        );
    }
    text
}

/// The old gate goes on counting in the smaller maps for the client that it drains.
#[test]
fn counts_of_a_draining_gate_go_over_to_larger_maps() -> Result<()> {
    if !privilege::root("upgrade::counts_of_a_draining_gate_go_over_to_larger_maps") {
        return Ok(());
    }
    let site = Site::new("")?;
    site.net.server.enter(|| {
        let store = Listening::memcached()?;
        site.configure(&config(store.address, 0))?;
        let mut first = site.start(&[])?;
        let connect = || -> Result<TcpStream> {
            let stream = TcpStream::connect(MEMCACHED)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let mut client = connect()?;
        for _ in 0..50 {
            check(&mut client, "get none\r\n", "END\r\n")?;
        }
        site.configure(&config(store.address, 500))?;
        let mut second = site.launch(&["--takeover"])?;
        second.wait_for("larger ones took their place", PATIENCE)?;
        first.wait_for("no new connections", PATIENCE)?;
        let mut other = connect()?;
        for _ in 0..50 {
            check(&mut client, "get none\r\n", "END\r\n")?;
            check(&mut other, "get none\r\n", "END\r\n")?;
        }
        ensure!(first.is_running()?);
        // Either may have accepted this one: the old gate's threads hear of it a little later.
        drop((client, other));
        first.finish(PATIENCE)?;
        wait_until("what the old gate counted goes over", || {
            Ok(site.json(&["tenants"])?["tenants"][0]["passed"] == 150)
        })?;
        second.end()?;
        ensure!(site.anything_left()?.is_none());
        Ok(())
    })?
}
