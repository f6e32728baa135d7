//! Floods of segments that belong to no connection, beside connections of real sockets.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::Site;
use gate_tests::net::Net;
use gate_tests::packet::{Packet, tcp};
use gate_tests::privilege;
use gate_tests::raw::{RawSender, segment};
use gate_tests::wait::wait_until;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect as connect_socket, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

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
    // So that a full queue refuses. With SYN cookies Linux goes on, and gate lets SYNs pass.
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

    let tenants = site.json(&["tenants"])?["tenants"].take();
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

/// SYNs beyond their rates, forged in the name of a tenant and of an unknown client, lock neither of them out while Linux answers
/// with cookies.
#[test]
fn forged_syns_lock_nobody_out_where_there_are_cookies() -> Result<()> {
    if !privilege::root("connections::forged_syns_lock_nobody_out_where_there_are_cookies") {
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
        [[tenant]]
        name = "victim"
        sources = "198.18.0.2"
        quota = "1000 RU/s"
        syn_rate = "10/s"
    "#,
    )?;
    set(&site.net, "ipv4/tcp_syncookies", "1")?;
    let stranger = "198.18.0.77";
    site.net.add_client_address(stranger.parse()?)?;
    let listener = site.net.server.enter(|| TcpListener::bind(("198.18.0.1", 9_000)))??;
    let sender = RawSender::open(&site.net)?;
    let gate = site.start(&[])?;
    connect(&site.net, 9_000)?;
    for source in ["198.18.0.2", stranger] {
        for _ in 0..10 {
            for number in 0..400_u16 {
                let syn = Packet::tcp(source, "198.18.0.1", 9_000, tcp::SYN, b"");
                sender.send(&segment(&syn.with(|syn| syn.ports[0] = 1_024 + number), 0))?;
            }
            connect_from(&site.net, source, 9_000)?;
            listener.accept()?;
        }
    }
    let status = site.json(&["status"])?;
    let beyond = status["events"]["syn-beyond-rate"].as_u64().unwrap_or(0);
    ensure!(beyond >= 4_000, "the flood was within the rates: {status}");
    ensure!(status["exits"]["syn-rate"].as_u64().unwrap_or(0) == 0, "{status}");

    // Without cookies from the next plan on, which drops them again.
    set(&site.net, "ipv4/tcp_syncookies", "0")?;
    gate.signal(Signal::SIGHUP)?;
    wait_until("SYNs are dropped without cookies", || {
        let syn = Packet::tcp("198.18.0.2", "198.18.0.1", 9_000, tcp::SYN, b"");
        for number in 0..400_u16 {
            sender.send(&segment(&syn.clone().with(|syn| syn.ports[0] = 1_024 + number), 0))?;
        }
        Ok(site.json(&["status"])?["exits"]["syn-rate"].as_u64().unwrap_or(0) > 0)
    })?;
    gate.end()?;
    ensure!(site.anything_left()?.is_none());
    Ok(())
}

/// Segments with a tenant's source that belong to no connection, at five times its quota: none of what a connection sends is
/// refused, whether it was there before or is opened meanwhile.
#[test]
fn forged_data_takes_nothing_from_real_connections() -> Result<()> {
    if !privilege::root("connections::forged_data_takes_nothing_from_real_connections") {
        return Ok(());
    }
    let site = Site::new(
        r#"
        [[service]]
        name = "echo"
        protocol = "opaque"
        listen = ["198.18.0.1:9000", "[fd00::1]:9000"]
        transports = "tcp"
        price = { base = "1 RU", row = "0 RU", kib = "0 RU" }
        [[tenant]]
        name = "real"
        sources = ["198.18.0.0/16", "fd00::/64"]
        quota = "1000 RU/s"
        syn_rate = "unlimited"
    "#,
    )?;
    let _echo = Echo::start(&site.net)?;
    let sender = RawSender::open(&site.net)?;
    let gate = site.start(&[])?;
    let refused = |reason: &str| -> Result<u64> {
        Ok(site.json(&["tenants"])?["tenants"][0]["refused"][reason].as_u64().unwrap_or(0))
    };

    for (server, forger) in [("198.18.0.1", "198.18.0.77"), ("fd00::1", "fd00::77")] {
        let mut before = Conversation::open(&site.net, server, false)?;
        before.ask()?;
        // Half-open connections of the tenant's: data that does not complete them is forged as well.
        let packet = |port: u16, flags: u8, payload: &[u8]| {
            Packet::tcp(forger, server, 9_000, flags, payload).with(|packet| packet.ports[0] = port)
        };
        for port in 1_024..1_032 {
            sender.send(&segment(&packet(port, tcp::SYN, b""), 0))?;
        }
        // To the half-open, from a port that nobody uses, with a SYN, and from the address of the real client.
        let forged = [
            packet(1_024, tcp::ACK, b"forged"),
            packet(2_000, tcp::ACK | tcp::PSH, b"forged"),
            packet(2_001, tcp::SYN, b"forged"),
            Packet { source: before.local()?.ip(), ..packet(3_000, tcp::ACK, b"forged") },
        ];
        let forged: Vec<Vec<u8>> = forged.iter().map(|packet| segment(packet, 7)).collect();
        let mut sent = 0;
        let started = Instant::now();
        for round in 0..100_u32 {
            // 5,000 a second.
            while started.elapsed() < Duration::from_millis(20) * round {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            for place in 0..100 {
                sender.send(&forged[place % forged.len()])?;
            }
            sent += 100;
            before.ask()?;
            // Some complete their handshake with what they send.
            Conversation::open(&site.net, server, round.is_multiple_of(2))?.ask()?;
        }
        let by_quota = refused("quota")?;
        let by_connection = refused("no-connection")?;
        ensure!(by_quota == 0, "{server}: {by_quota} segments were refused for the quota");
        ensure!(
            by_connection > sent / 2,
            "{server}: only {by_connection} of {sent} forged segments were refused"
        );
        // Without room for handshakes, in which Linux answers with cookies.
        set(&site.net, "ipv4/tcp_syncookies", "2")?;
    }
    let status = site.json(&["status"])?;
    ensure!(status["exits"]["no-connection"].as_u64() == Some(refused("no-connection")?), "{status}");
    gate.end()?;
    ensure!(site.anything_left()?.is_none());
    Ok(())
}

/// A client that sends a byte and waits for it.
struct Conversation(TcpStream);

impl Conversation {
    /// Opens a connection. Where the first byte waits for it, that comes with the handshake's last segment.
    fn open(net: &Net, server: &str, with_data: bool) -> Result<Self> {
        let server = SocketAddr::new(server.parse()?, 9_000);
        let family = if server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let stream = net.client.enter(|| -> Result<TcpStream> {
            if !with_data {
                return Ok(TcpStream::connect_timeout(&server, AT_ONCE)?);
            }
            let socket =
                socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)?;
            match connect_socket(socket.as_raw_fd(), &SockaddrStorage::from(server)) {
                Ok(()) | Err(Errno::EINPROGRESS) => {}
                Err(error) => return Err(error.into()),
            }
            let stream = TcpStream::from(socket);
            stream.set_nonblocking(false)?;
            Ok(stream)
        })??;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self(stream))
    }

    fn local(&self) -> Result<SocketAddr> {
        Ok(self.0.local_addr()?)
    }

    fn ask(&mut self) -> Result<()> {
        self.0.write_all(b"x")?;
        self.0.read_exact(&mut [0])?;
        Ok(())
    }
}

/// A server that sends back what it reads.
struct Echo {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Echo {
    fn start(net: &Net) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for address in ["198.18.0.1", "fd00::1"] {
            let address = SocketAddr::new(address.parse()?, 9_000);
            let listener = net.server.enter(|| TcpListener::bind(address))??;
            listener.set_nonblocking(true)?;
            let stopped = Arc::clone(&stop);
            threads.push(std::thread::spawn(move || serve(&listener, &stopped)));
        }
        Ok(Self { stop, threads })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

fn serve(listener: &TcpListener, stop: &AtomicBool) {
    let mut clients: Vec<TcpStream> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        while let Ok((client, _)) = listener.accept() {
            if client.set_nonblocking(true).is_ok() {
                clients.push(client);
            }
            idle = false;
        }
        clients.retain_mut(|client| {
            let mut read = [0; 64];
            match client.read(&mut read) {
                Ok(0) => false,
                Ok(len) => {
                    idle = false;
                    client.write_all(&read[..len]).is_ok()
                }
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            }
        });
        if idle {
            std::thread::park_timeout(Duration::from_micros(500));
        }
    }
}

/// Sets something of the server's network.
fn set(net: &Net, name: &str, value: &str) -> Result<()> {
    Ok(net.server.enter(|| std::fs::write(format!("/proc/sys/net/{name}"), value))??)
}

/// Opens a connection from `source` at the first attempt, and closes it.
fn connect_from(net: &Net, source: &str, port: u16) -> Result<()> {
    let server = SocketAddr::from(([198, 18, 0, 1], port));
    net.client.enter(|| -> Result<()> {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source.parse()?, 0)))?;
        setsockopt(&socket, sockopt::SendTimeout, &TimeVal::new(0, AT_ONCE.subsec_micros().into()))?;
        connect_socket(socket.as_raw_fd(), &SockaddrStorage::from(server))
            .with_context(|| format!("{source} cannot connect"))
    })?
}

/// Opens a connection at the first attempt.
fn connect(net: &Net, port: u16) -> Result<TcpStream> {
    let server = SocketAddr::from(([198, 18, 0, 1], port));
    Ok(net.client.enter(|| TcpStream::connect_timeout(&server, AT_ONCE))??)
}
