//! Floods of segments that belong to no connection, beside connections of real sockets.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::daemon::Site;
use gate_tests::net::Net;
use gate_tests::packet::{Packet, tcp};
use gate_tests::privilege;
use gate_tests::raw::{RawSender, segment};

/// Below the second after which Linux sends a SYN again.
const AT_ONCE: Duration = Duration::from_millis(900);

/// Neither a tenant that is allowed few SYNs nor unknown sources fill a listening socket's queue; one that is allowed any
/// number does, so the flood is one that matters.
#[test]
fn a_syn_flood_leaves_other_tenants_connects_alone() -> Result<()> {
    if !privilege::root("connections::a_syn_flood_leaves_other_tenants_connects_alone") {
        return Ok(());
    }
    let site = Site::new(
        r#"
        [[service]]
        name = "flooded"
        protocol = "opaque"
        listen = "198.18.0.1:9000"
        transports = "tcp"
        unknown_syn_rate = "10/s"
        [[service]]
        name = "lost"
        protocol = "opaque"
        listen = "198.18.0.1:9001"
        transports = "tcp"
        [[tenant]]
        name = "victim"
        sources = "198.18.0.2"
        quota = "1000 RU/s"
        [[tenant]]
        name = "attacker"
        sources = "198.18.2.0/24"
        quota = "1000 RU/s"
        syn_rate = "10/s"
        [[tenant]]
        name = "unbounded"
        sources = "198.18.3.0/24"
        quota = "1000 RU/s"
        syn_rate = "unlimited"
    "#,
    )?;
    // So that a full queue refuses: with SYN cookies Linux would go on, at a price.
    set(&site.net, "ipv4/tcp_syncookies", "0")?;
    let listen = |port: u16| -> Result<TcpListener> {
        Ok(site.net.server.enter(|| TcpListener::bind(("198.18.0.1", port)))??)
    };
    let _listeners: [TcpListener; 2] = [listen(9_000)?, listen(9_001)?];
    let sender = RawSender::open(&site.net)?;
    let gate = site.start(&[])?;
    connect(&site.net, 9_000)?;
    connect(&site.net, 9_001)?;

    // Half-open connections that nobody completes: their sources are no one's.
    let flood = |source: &str, port: u16| -> Result<()> {
        for number in 0..400_u16 {
            let syn = Packet::tcp(source, "198.18.0.1", port, tcp::SYN, b"");
            sender.send(&segment(&syn.with(|syn| syn.ports[0] = 1_024 + number), 0))?;
        }
        Ok(())
    };
    flood("198.18.3.9", 9_001)?;
    let refused = connect(&site.net, 9_001);
    ensure!(refused.is_err(), "the flood does not fill the queue, so the test shows nothing");

    let started = Instant::now();
    for round in 0..10 {
        flood("198.18.2.9", 9_000)?;
        flood("198.19.9.9", 9_000)?;
        connect(&site.net, 9_000)?;
        ensure!(started.elapsed() < Duration::from_secs(5), "round {round}: too slow, so the buckets refill");
    }

    let tenants = site.json(&["tenants"])?;
    let refused = |place: usize| tenants[place]["refused"]["syn-rate"].as_u64().unwrap_or(0);
    let all: u64 = 10 * 400;
    let seconds = started.elapsed().as_secs() + 1;
    // A second's worth at once, and then ten a second.
    ensure!((all - 10 - 10 * seconds..=all - 10).contains(&refused(1)), "{tenants}");
    ensure!((refused(0), refused(2)) == (0, 0), "{tenants}");
    let status = site.json(&["status"])?;
    let dropped = status["exits"]["syn-rate"].as_u64().unwrap_or(0);
    ensure!(dropped >= refused(1) + all - 10 - 10 * seconds, "{status}");
    gate.end()?;
    ensure!(site.anything_left()?.is_none());
    Ok(())
}

/// Sets something of the server's network.
fn set(net: &Net, name: &str, value: &str) -> Result<()> {
    Ok(net.server.enter(|| std::fs::write(format!("/proc/sys/net/{name}"), value))??)
}

/// Opens a connection at the first attempt.
fn connect(net: &Net, port: u16) -> Result<TcpStream> {
    let server = SocketAddr::from(([198, 18, 0, 1], port));
    Ok(net.client.enter(|| TcpStream::connect_timeout(&server, AT_ONCE))??)
}
