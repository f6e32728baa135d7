//! Hot restart before the same stores: no client is refused or cut off during the takeover, and none reads
//! a stale answer of the other gate.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::privilege;
use gate_tests::proxy::{Listening, PATIENT, check, read_until, shown};
use gate_tests::tls::{Authority, TlsClient};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use xtask::lab::process::ChildProcess;
use xtask::paths;

const MEMCACHED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 11_311);
/// A busy machine makes a store slow, which none of this is about.
const NOTHING_SHED: &str = "shedding.enabled = \"off\"";
const REDIS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 16_379);

fn config(gate: &str, memcached: SocketAddr, redis: SocketAddr) -> String {
    format!(
        "[gate]\nsample = \"1/1\"\ntick = \"10ms\"\n{gate}\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{MEMCACHED}\"\nbackend = \"{memcached}\"\n\
         transports = [\"udp\", \"tcp\"]\nhot_keys = {{ threshold = \"1\" }}\nstore_timeout = \"20s\"\nshedding.enabled = \"off\"\n\
         [[service]]\nname = \"data\"\nprotocol = \"resp\"\nlisten = \"{REDIS}\"\nbackend = \"{redis}\"\n\
         {PATIENT}\nshedding.enabled = \"off\"\n\
         [[tenant]]\nname = \"all\"\nsources = \"127.0.0.0/8\"\nquota = \"unlimited\"\n"
    )
}

/// Runs `test` in a namespace of its own, with a gate before a memcached and a Redis there.
fn before_stores(
    gate: &str,
    test: impl FnOnce(&Site, ChildProcess, &Listening) -> Result<()> + Send,
) -> Result<()> {
    let site = Site::new("")?;
    site.net.server.enter(|| {
        let memcached = Listening::memcached()?;
        let redis = Listening::redis()?;
        site.configure(&config(gate, memcached.address, redis.address))?;
        let first = site.start(&[])?;
        test(&site, first, &memcached)
    })?
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects, asks and leaves, again and again, until it is `over`; says how often that was.
fn connect_repeatedly(over: &AtomicBool, count: &AtomicUsize) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        check(&mut connect(MEMCACHED)?, "get none\r\n", "END\r\n")?;
        check(&mut connect(REDIS)?, "GET none\r\n", "$-1\r\n")?;
        count.fetch_add(2, Ordering::Relaxed);
    }
    Ok(())
}

/// As [`connect_repeatedly`], by datagrams.
fn send_datagrams(over: &AtomicBool, count: &AtomicUsize) -> Result<()> {
    ask_by_datagrams(MEMCACHED, over, count)
}

/// Sends a datagram from a new port and waits for its answer, again and again, until it is `over`.
fn ask_by_datagrams(address: SocketAddr, over: &AtomicBool, count: &AtomicUsize) -> Result<()> {
    let mut answer = [0; 100];
    while !over.load(Ordering::Relaxed) {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send_to(DATAGRAM, address)?;
        let len = socket.recv(&mut answer).context("a datagram went unanswered")?;
        ensure!(answer[..len] == *b"\0\x07\0\0\0\x01\0\0END\r\n", "{}", shown(&answer[..len]));
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

const DATAGRAM: &[u8] = b"\0\x07\0\0\0\x01\0\0get none\r\n";

/// The process that owns the maps.
fn owner(site: &Site) -> Result<u64> {
    site.json(&["status"])?["daemon"].as_u64().context("there is no owner")
}

#[test]
fn clients_that_speak_tls_are_drained_and_new_ones_are_served() -> Result<()> {
    if !privilege::root("hot_restart::clients_that_speak_tls_are_drained_and_new_ones_are_served") {
        return Ok(());
    }
    const NAME: &str = "cache.example";
    let authority = Authority::new()?;
    let shown_by_gate = authority.issue("gate", &format!("DNS:{NAME}"), 30)?;
    let site = Site::new("")?;
    site.net.server.enter(|| {
        let store = Listening::memcached()?;
        site.configure(&format!(
            "[gate]\ndrain = \"60s\"\n\
             [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{MEMCACHED}\"\nbackend = \"{}\"\n\
             {PATIENT}\ntls = {{ certificate = {:?}, key = {:?} }}\n\
             [[tenant]]\nname = \"all\"\nsources = \"127.0.0.0/8\"\nquota = \"unlimited\"\n",
            store.address, shown_by_gate.certificate, shown_by_gate.key
        ))?;
        let mut first = site.start(&[])?;
        let ask = |client: &mut TlsClient| -> Result<()> {
            ensure!(client.ask(b"get none\r\n", b"\r\n")? == b"END\r\n");
            Ok(())
        };
        let connect = || TlsClient::over(connect(MEMCACHED)?, &authority.ca(), NAME);
        let mut open = connect()?;
        ask(&mut open)?;
        let over = AtomicBool::new(false);
        let second = std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    ask(&mut connect()?)?;
                }
                anyhow::Ok(())
            });
            let second = site.start(&["--takeover"]);
            let closed = first.wait_for("no new connections", PATIENCE);
            over.store(true, Ordering::Relaxed);
            others.join().expect("it does not panic")?;
            closed?;
            second
        })?;
        ask(&mut open)?;
        ask(&mut connect()?)?;
        drop(open);
        first.finish(PATIENCE)?;
        second.end()?;
        Ok(())
    })?
}

#[test]
fn open_clients_are_drained_and_new_ones_are_served_meanwhile() -> Result<()> {
    if !privilege::root("hot_restart::open_clients_are_drained_and_new_ones_are_served_meanwhile") {
        return Ok(());
    }
    before_stores("drain = \"60s\"", |site, mut first, _| {
        let mut plain = connect(MEMCACHED)?;
        check(&mut plain, "set k 0 0 1\r\n0\r\n", "STORED\r\n")?;
        let mut subscriber = connect(REDIS)?;
        check(&mut subscriber, "SUBSCRIBE c\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")?;
        let mut transaction = connect(REDIS)?;
        check(&mut transaction, "MULTI\r\nINCR n\r\n", "+OK\r\n+QUEUED\r\n")?;

        let over = AtomicBool::new(false);
        let came = AtomicUsize::new(0);
        let sent = AtomicUsize::new(0);
        let second = std::thread::scope(|scope| {
            let others = [
                scope.spawn(|| connect_repeatedly(&over, &came)),
                scope.spawn(|| connect_repeatedly(&over, &came)),
                scope.spawn(|| send_datagrams(&over, &sent)),
            ];
            let second = (|| {
                let more = |count: &AtomicUsize| {
                    let before = count.load(Ordering::Relaxed);
                    wait_until("no client is served", || Ok(count.load(Ordering::Relaxed) > before + 100))
                };
                more(&came)?;
                more(&sent)?;
                let second = site.start(&["--takeover"])?;
                // The first still accepts for a while, and then it does not.
                first.wait_for("no new connections", PATIENCE)?;
                more(&came)?;
                more(&sent)?;
                anyhow::Ok(second)
            })();
            over.store(true, Ordering::Relaxed);
            let others = others.map(|other| other.join().expect("it does not panic"));
            let second = second.with_context(|| format!("{others:?}"))?;
            others.into_iter().collect::<Result<()>>()?;
            anyhow::Ok(second)
        })?;
        ensure!(owner(site)? == u64::from(second.id()) && first.is_running()?);

        // Whoever is at the old gate and whoever is at the new one see the same.
        let mut newcomer = connect(MEMCACHED)?;
        for round in 0..200 {
            let set = format!("set k 0 0 3\r\n{round:03}\r\n");
            let read = format!("VALUE k 0 3\r\n{round:03}\r\nEND\r\n");
            let (one, other) =
                if round % 2 == 0 { (&mut plain, &mut newcomer) } else { (&mut newcomer, &mut plain) };
            check(one, &set, "STORED\r\n")?;
            for _ in 0..3 {
                check(other, "get k\r\n", &read)?;
                check(one, "get k\r\n", &read)?;
            }
        }
        check(&mut connect(REDIS)?, "PUBLISH c hi\r\n", ":1\r\n")?;
        let message = read_until(&mut subscriber, b"hi\r\n")?;
        ensure!(message == b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n", "{}", shown(&message));
        check(&mut transaction, "EXEC\r\n", "*1\r\n:1\r\n")?;

        // Once its last client has gone the old gate ends, and the new one keeps answers.
        drop((plain, subscriber, transaction));
        first.finish(PATIENCE)?;
        wait_until("nothing is kept", || {
            check(&mut newcomer, "get k\r\n", "VALUE k 0 3\r\n199\r\nEND\r\n")?;
            newcomer.write_all(b"stats gate\r\n")?;
            let stats = String::from_utf8(read_until(&mut newcomer, b"END\r\n")?)?;
            Ok(!stats.contains("STAT cache-hits 0\r\n"))
        })?;
        second.end()?;
        ensure!(site.anything_left()?.is_none());
        Ok(())
    })
}

#[test]
fn three_gates_in_a_row_know_of_each_other() -> Result<()> {
    if !privilege::root("hot_restart::three_gates_in_a_row_know_of_each_other") {
        return Ok(());
    }
    before_stores("drain = \"60s\"", |site, first, _| {
        let mut oldest = connect(MEMCACHED)?;
        check(&mut oldest, "get none\r\n", "END\r\n")?;
        let mut second = site.start(&["--takeover"])?;
        let third = site.start(&["--takeover"])?;
        second.wait_for("no new connections", PATIENCE)?;
        let mut newest = connect(MEMCACHED)?;
        for round in 0..100 {
            check(&mut oldest, &format!("set k 0 0 3\r\n{round:03}\r\n"), "STORED\r\n")?;
            let read = format!("VALUE k 0 3\r\n{round:03}\r\nEND\r\n");
            (0..3).try_for_each(|_| check(&mut newest, "get k\r\n", &read))?;
        }
        ensure!(second.is_running()?);
        drop(oldest);
        first.finish(PATIENCE)?;
        // A thread of the second that has not heard yet may have been faster than the third.
        drop(newest);
        second.finish(PATIENCE)?;
        third.end().map(drop)
    })
}

#[test]
fn after_drain_idle_connections_close_and_requests_are_answered() -> Result<()> {
    if !privilege::root("hot_restart::after_drain_idle_connections_close_and_requests_are_answered") {
        return Ok(());
    }
    before_stores("drain = \"0ms\"", |site, first, store| {
        let mut idle = connect(MEMCACHED)?;
        let mut asking = connect(MEMCACHED)?;
        check(&mut idle, "get none\r\n", "END\r\n")?;
        check(&mut asking, "get none\r\n", "END\r\n")?;
        store.stall()?;
        asking.write_all(b"get none\r\n")?;
        let second = site.start(&["--takeover"])?;
        let closed = idle.read(&mut [0; 1]);
        store.signal(Signal::SIGCONT)?;
        ensure!(closed? == 0, "it was told something");
        let said = read_until(&mut asking, b"\r\n")?;
        ensure!(said == b"END\r\n", "{}", shown(&said));
        first.finish(PATIENCE)?;
        check(&mut connect(MEMCACHED)?, "get none\r\n", "END\r\n")?;
        second.end().map(drop)
    })
}

#[test]
fn a_draining_gate_ends_on_a_signal_and_spares_the_owner() -> Result<()> {
    if !privilege::root("hot_restart::a_draining_gate_ends_on_a_signal_and_spares_the_owner") {
        return Ok(());
    }
    before_stores("drain = \"60s\"", |site, first, _| {
        let mut client = connect(REDIS)?;
        check(&mut client, "GET none\r\n", "$-1\r\n")?;
        let second = site.start(&["--takeover"])?;
        first.signal(Signal::SIGTERM)?;
        first.finish(PATIENCE)?;
        ensure!(client.read(&mut [0; 1])? == 0);
        ensure!(owner(site)? == u64::from(second.id()));
        check(&mut connect(REDIS)?, "GET none\r\n", "$-1\r\n")?;
        second.end().map(drop)
    })
}

/// Connects, asks and leaves until it is `over`.
fn ask_anew(address: SocketAddr, over: &AtomicBool, count: &AtomicUsize) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        check(&mut connect(address)?, "get none\r\n", "END\r\n")?;
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[test]
fn where_there_is_no_xdp_a_takeover_loses_no_connection() -> Result<()> {
    let store = Listening::memcached()?;
    let tenants = "[[tenant]]\nname = \"all\"\nsources = \"127.0.0.0/8\"\nquota = \"unlimited\"";
    for (before, after) in [(2, 2), (2, 2), (3, 1), (1, 3)] {
        // A client that has connected and is slow to ask has that long.
        let section = format!("threads = \"{before}\"\ndrain = \"20s\"");
        let mut gate = Listening::gate_with(&section, "memcached", store.address, NOTHING_SHED, tenants)?;
        let address = gate.address;
        let (config, _) = gate.files()?;
        let config = config.to_owned();
        let text = std::fs::read_to_string(&config)?;
        let threads = |count| format!("threads = \"{count}\"");
        std::fs::write(&config, text.replace(&threads(before), &threads(after)))?;
        let over = AtomicBool::new(false);
        let answered = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let clients: Vec<_> =
                (0..8).map(|_| scope.spawn(|| ask_anew(address, &over, &answered))).collect();
            let taken_over = (|| {
                let mut command = Command::new(paths::gate());
                command.args(["run", "--takeover", "--config"]).arg(&config);
                let mut next = ChildProcess::start("gate", command)?;
                // It tells the old one itself.
                next.wait_for("took over from a running gate", PATIENCE)?;
                wait_until("the old one ends", || Ok(!gate.program().is_running()?))?;
                let before = answered.load(Ordering::Relaxed);
                wait_until("the next one answers", || Ok(answered.load(Ordering::Relaxed) > before + 200))?;
                anyhow::Ok(next)
            })();
            over.store(true, Ordering::Relaxed);
            let ended = clients.into_iter().map(|client| client.join().expect("it does not panic"));
            ended.collect::<Result<()>>().with_context(|| format!("{before} threads, then {after}"))?;
            taken_over?.end().map(drop)
        })?;
    }
    Ok(())
}

#[test]
fn where_there_is_no_xdp_a_takeover_loses_no_datagram() -> Result<()> {
    let store = Listening::memcached()?;
    let tenants = "[[tenant]]\nname = \"all\"\nsources = \"127.0.0.0/8\"\nquota = \"unlimited\"";
    let service = format!("transports = [\"udp\", \"tcp\"]\nhot_keys.cache = \"off\"\n{NOTHING_SHED}");
    for threads in [2, 3] {
        let section = format!("threads = \"{threads}\"");
        let mut gate = Listening::gate_with(&section, "memcached", store.address, &service, tenants)?;
        let address = gate.address;
        let (config, _) = gate.files()?;
        let mut command = Command::new(paths::gate());
        command.args(["run", "--takeover", "--config"]).arg(config);
        let over = AtomicBool::new(false);
        let sent = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let clients: Vec<_> =
                (0..4).map(|_| scope.spawn(|| ask_by_datagrams(address, &over, &sent))).collect();
            let more = || {
                let before = sent.load(Ordering::Relaxed);
                wait_until("no datagram is answered", || Ok(sent.load(Ordering::Relaxed) > before + 200))
            };
            let taken_over = (|| {
                more()?;
                let mut next = ChildProcess::start("gate", command)?;
                next.wait_for("took over from a running gate", PATIENCE)?;
                wait_until("the old one ends", || Ok(!gate.program().is_running()?))?;
                more()?;
                anyhow::Ok(next)
            })();
            over.store(true, Ordering::Relaxed);
            let ended = clients.into_iter().map(|client| client.join().expect("it does not panic"));
            ended.collect::<Result<()>>()?;
            taken_over?.end().map(drop)
        })?;
    }
    Ok(())
}

#[test]
fn a_datagram_under_way_is_answered_by_the_gate_that_leaves() -> Result<()> {
    if !privilege::root("hot_restart::a_datagram_under_way_is_answered_by_the_gate_that_leaves") {
        return Ok(());
    }
    before_stores("drain = \"60s\"", |site, mut first, store| {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let asked = |site: &Site| -> Result<Option<u64>> {
            Ok(site.json(&["queues"])?["services"][0]["events"]["datagrams"].as_u64())
        };
        check(&mut connect(MEMCACHED)?, "get none\r\n", "END\r\n")?;
        store.stall()?;
        socket.send_to(DATAGRAM, MEMCACHED)?;
        wait_until("it has not come", || Ok(asked(site)? == Some(1)))?;
        let second = site.start(&["--takeover"])?;
        first.wait_for("no new connections", PATIENCE)?;
        ensure!(first.is_running()?, "it left a datagram unanswered");
        store.signal(Signal::SIGCONT)?;
        let mut answer = [0; 100];
        let len = socket.recv(&mut answer).context("it went unanswered")?;
        ensure!(answer[..len].ends_with(b"END\r\n"), "{}", shown(&answer[..len]));
        first.finish(PATIENCE)?;
        second.end().map(drop)
    })
}

#[test]
fn where_there_is_no_xdp_a_signal_sends_a_gate_off() -> Result<()> {
    let store = Listening::memcached()?;
    let tenants = "[[tenant]]\nname = \"all\"\nsources = \"127.0.0.0/8\"\nquota = \"unlimited\"";
    let mut gate = Listening::gate("memcached", store.address, "", tenants)?;
    let mut client = gate.connect()?;
    check(&mut client, "get none\r\n", "END\r\n")?;
    gate.signal(Signal::SIGUSR2)?;
    wait_until("it still accepts", || Ok(TcpStream::connect(gate.address).is_err()))?;
    check(&mut client, "get none\r\n", "END\r\n")?;
    drop(client);
    wait_until("it does not end", || Ok(!gate.program().is_running()?))
}

#[test]
fn what_was_set_holds_in_the_next_gate_too() -> Result<()> {
    let store = Listening::memcached()?;
    let tenant = |name, source| {
        format!("[[tenant]]\nname = \"{name}\"\nsources = \"{source}\"\nquota = \"unlimited\"\n")
    };
    let tenants = tenant("all", "127.0.0.0/8") + &tenant("gone", "127.9.9.9");
    let mut gate = Listening::gate("memcached", store.address, NOTHING_SHED, &tenants)?;
    for set in ["tenant.all.refuse=on", "tenant.gone.refuse=on"] {
        let (key, value) = set.split_once('=').context("no value")?;
        let set = gate.command(&["set", key, value])?;
        ensure!(set.status.success(), "{set:?}");
    }
    let (config, _) = gate.files()?;
    let config = config.to_owned();
    let text = std::fs::read_to_string(&config)?;
    std::fs::write(&config, text.replace(&tenant("gone", "127.9.9.9"), ""))?;
    let mut command = Command::new(paths::gate());
    command.args(["run", "--takeover", "--config"]).arg(&config);
    let mut next = ChildProcess::start("gate", command)?;
    next.wait_for("no longer set: its section is gone", PATIENCE)?;
    next.wait_for("still set, as in the gate before", PATIENCE)?;
    next.wait_for("took over from a running gate", PATIENCE)?;
    wait_until("the old one ends", || Ok(!gate.program().is_running()?))?;
    let said = ask_once(gate.address)?;
    ensure!(said.contains("reason=penalty"), "{said}");
    let overrides = &gate.json(&["status"])?["overrides"];
    ensure!(*overrides == serde_json::json!([{ "key": "tenant.all.refuse", "value": "on" }]), "{overrides}");
    let unset = gate.command(&["set", "--unset", "tenant.all.refuse"])?;
    ensure!(unset.status.success(), "{unset:?}");
    wait_until("it refuses on", || Ok(ask_once(gate.address)? == "END\r\n"))?;
    next.end().map(drop)
}

#[test]
fn a_second_gate_does_not_start_where_one_listens() -> Result<()> {
    let store = Listening::memcached()?;
    let tenants = "[[tenant]]\nname = \"all\"\nsources = \"127.0.0.0/8\"\nquota = \"unlimited\"";
    let transports = format!("{NOTHING_SHED}\ntransports = [\"udp\", \"tcp\"]");
    let mut gate = Listening::gate("memcached", store.address, &transports, tenants)?;
    let (config, socket) = gate.files()?;
    let config = config.to_owned();
    let text = std::fs::read_to_string(&config)?;
    let admin = socket.display().to_string();
    let elsewhere = config.with_extension("second.toml");
    let only = |transport: &str| text.replace("[\"udp\", \"tcp\"]", &format!("[\"{transport}\"]"));
    for (what, second) in [("the same", text.clone()), ("over TCP", only("tcp")), ("over UDP", only("udp"))] {
        let second =
            if what == "the same" { second } else { second.replace(&admin, &format!("{admin}.second")) };
        std::fs::write(&elsewhere, &second)?;
        let output = Command::new(paths::gate()).arg("run").arg("--config").arg(&elsewhere).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(1)
                && said.contains(&format!("cannot listen at {}", gate.address))
                && said.contains("--takeover takes its place"),
            "{what}: {said}"
        );
    }
    std::fs::remove_file(&elsewhere)?;
    ensure!(gate.program().is_running()? && ask_once(gate.address)? == "END\r\n");
    Ok(())
}

#[test]
fn of_takeovers_at_once_one_gate_is_left() -> Result<()> {
    let store = Listening::memcached()?;
    let tenants = "[[tenant]]\nname = \"all\"\nsources = \"127.0.0.0/8\"\nquota = \"unlimited\"";
    let mut gate = Listening::gate("memcached", store.address, NOTHING_SHED, tenants)?;
    let config = gate.files()?.0.to_owned();
    let start = |_| {
        let mut command = Command::new(paths::gate());
        command.args(["run", "--takeover", "--config"]).arg(&config);
        ChildProcess::start("gate", command)
    };
    let mut next = (0..4).map(start).collect::<Result<Vec<_>>>()?;
    for next in &mut next {
        next.wait_for("took over from a running gate", PATIENCE)?;
    }
    wait_until("the first one ends", || Ok(!gate.program().is_running()?))?;
    wait_until("one of the others is left", || {
        let mut running = 0;
        for next in &mut next {
            running += usize::from(next.is_running()?);
        }
        ensure!(running > 0, "none is left");
        Ok(running == 1)
    })?;
    ensure!(ask_once(gate.address)? == "END\r\n");
    let owner = gate.json(&["status"])?["daemon"].as_u64().context("nobody is asked")?;
    for mut next in next {
        if next.is_running()? {
            ensure!(u64::from(next.id()) == owner, "{owner} is asked, and another serves");
            next.end()?;
        }
    }
    Ok(())
}

#[test]
fn nothing_is_taken_from_another_users_socket() -> Result<()> {
    if !privilege::root("hot_restart::nothing_is_taken_from_another_users_socket") {
        return Ok(());
    }
    let store = Listening::memcached()?;
    let tenants = "[[tenant]]\nname = \"all\"\nsources = \"127.0.0.0/8\"\nquota = \"unlimited\"";
    let mut gate = Listening::gate("memcached", store.address, NOTHING_SHED, tenants)?;
    let set = gate.command(&["set", "tenant.all.refuse", "on"])?;
    ensure!(set.status.success(), "{set:?}");
    let (config, socket) = gate.files()?;
    let config = config.to_owned();
    std::os::unix::fs::chown(socket, Some(NOBODY), None)?;
    let mut command = Command::new(paths::gate());
    command.args(["run", "--takeover", "--config"]).arg(&config);
    let mut next = ChildProcess::start("gate", command)?;
    next.wait_for(&format!(" is user {NOBODY}'s"), PATIENCE)?;
    next.wait_for("took over from a running gate", PATIENCE)?;
    wait_until("the old one ends", || Ok(!gate.program().is_running()?))?;
    ensure!(ask_once(gate.address)? == "END\r\n");
    next.end().map(drop)
}

/// A user that is not this one.
const NOBODY: u32 = 65_534;

#[test]
fn what_was_set_holds_in_the_next_owner_of_the_maps_too() -> Result<()> {
    if !privilege::root("hot_restart::what_was_set_holds_in_the_next_owner_of_the_maps_too") {
        return Ok(());
    }
    before_stores("", |site, first, _| {
        let set = site.gate(&["set", "tenant.all.refuse", "on"])?;
        ensure!(set.status.success(), "{set:?}");
        let second = site.start(&["--takeover"])?;
        first.finish(PATIENCE)?;
        let said = ask_once(MEMCACHED)?;
        ensure!(said.contains("reason=penalty"), "{said}");
        second.end().map(drop)
    })
}

fn ask_once(address: SocketAddr) -> Result<String> {
    let mut client = connect(address)?;
    client.write_all(b"get none\r\n")?;
    Ok(String::from_utf8(read_until(&mut client, b"\r\n")?)?)
}
