//! The loop, closed: a store slows, the lowest tier gives way, at the interface or at the gate; it recovers, and
//! everything is as before. A tenant asks on and on: it is cut off, and let in again when it has stopped.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_common::abi::Reason;
use gate_common::units::Nanos;
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::flood::Flood;
use gate_tests::memcached::Connection;
use gate_tests::privilege;
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::until;
use gate_userspace::kernel::Maps;
use gate_userspace::load::store::{Settings, Store};
use xtask::lab::process::ChildProcess;
use xtask::paths;

/// The time after which prices and throughput must be back.
const RECOVERY: Duration = Duration::from_secs(10);
/// Above what a busy machine makes of answers that are given at once, which the services below take no notice of.
const SLOW: Nanos = Nanos::from_millis(40);
/// Enough commands for what is usual to be known: several times what the short-term window holds.
const ENOUGH: u64 = 1_500;

const TENANTS: &str = r#"
[[tenant]]
name = "vital"
sources = "198.18.1.0/24"
quota = "unlimited"
tier = "critical"

[[tenant]]
name = "cheap"
sources = "198.18.2.0/24"
quota = "unlimited"
tier = "best-effort"
"#;
const VITAL: usize = 1;
const CHEAP: usize = 2;
/// Requests a second by both tenants in turn. The slow store can do as many, but not those of the probe as well.
const PER_SEC: u32 = 100;

/// A store at `address` slows and recovers behind a service that says so.
fn the_lowest_tier_is_refused_at_the_interface(service: &str, address: &str, enough: u64) {
    let target: SocketAddr = "198.18.0.1:11211".parse().unwrap();
    let site = Site::new(&format!("[[service]]\nlisten = \"{target}\"\n{service}\n{TENANTS}")).unwrap();
    let address = address.parse().unwrap();
    let store = site.net.server.enter(|| Store::start(&Settings::new(address))).unwrap().unwrap();
    let gate = site.start(&[]).unwrap();
    let maps = Maps::pinned(site.pins(), false).unwrap();
    let passed = |tenant| maps.tenant_counters(tenant).passed;
    let penalties = |tenant| maps.tenant_counters(tenant).refused[Reason::Penalty.index()];
    let sheds = || {
        let status = site.json(&["status"]).unwrap();
        let services = status["services"].as_array().unwrap().iter();
        services.map(|service| service["shed"].clone()).collect::<Vec<_>>()
    };
    let sources = ["198.18.1.1".parse().unwrap(), "198.18.2.1".parse().unwrap()];
    let flood = Flood::start(&site.net, &sources, target, PER_SEC).unwrap();
    until("the gate knows the store", PATIENCE, || store.stats().commands > enough);
    until("everyone passes", PATIENCE, || passed(VITAL) > 20 && passed(CHEAP) > 20);
    let is_calm = || sheds().iter().all(|shed| shed.as_object().is_some_and(serde_json::Map::is_empty));
    assert!(is_calm() && penalties(CHEAP) == 0);

    store.set_service_time(SLOW);
    let refused_after = until("the lowest tier is refused", PATIENCE, || penalties(CHEAP) > 0);
    let before = passed(VITAL);
    let passed_before = passed(CHEAP);
    until("it stays so", PATIENCE, || penalties(CHEAP) > 50 && passed(VITAL) > before + 50);
    assert_eq!(passed(CHEAP), passed_before, "the lowest tier passes while it is refused");
    // UDP and TCP of the service alike.
    let refused = serde_json::json!({ "best-effort": "refused" });
    assert!(sheds().iter().all(|shed| shed["best-effort"] == refused["best-effort"]), "{:?}", sheds());
    assert_eq!(sheds().len(), 2);
    let queues = site.json(&["queues"]).unwrap();
    let replies = ["services", "probed"].map(|kind| queues[kind].as_array().unwrap().clone()).concat();
    assert!(matches!(replies[..], [ref one] if one["latency_ratio"].as_f64() < Some(0.5)), "{queues}");

    store.set_service_time(Nanos::ZERO);
    let recovered_after = until("everything is as before", RECOVERY, is_calm);
    let passed_before = passed(CHEAP);
    let penalties_before = penalties(CHEAP);
    until("the lowest tier passes again", PATIENCE, || passed(CHEAP) > passed_before + 50);
    assert_eq!(penalties(CHEAP), penalties_before);
    assert_eq!(penalties(VITAL), 0);
    println!("at the interface: refused after {refused_after:?}, all as before after {recovered_after:?}");
    flood.stop();
    drop(maps);
    gate.end().unwrap();
}

#[test]
fn a_slow_guarded_store_sheds_the_lowest_tier_until_it_recovers() {
    if !privilege::root("closed_loop::a_slow_guarded_store_sheds_the_lowest_tier_until_it_recovers") {
        return;
    }
    let service = "name = \"cache\"\nprotocol = \"memcached\"\nprobe = { every = \"5ms\" }\n\
                   shedding = { short = \"500ms\", floor = \"15ms\" }";
    the_lowest_tier_is_refused_at_the_interface(service, "198.18.0.1:11211", ENOUGH);
}

#[test]
fn a_slow_proxied_store_sheds_datagrams_at_the_interface() {
    if !privilege::root("closed_loop::a_slow_proxied_store_sheds_datagrams_at_the_interface") {
        return;
    }
    let service = "name = \"cache\"\nprotocol = \"memcached\"\nbackend = \"127.0.0.1:11212\"\n\
                   transports = [\"udp\", \"tcp\"]\n\
                   shedding = { short = \"500ms\", min_samples = \"5\", floor = \"15ms\" }";
    // Without a probe, what is asked of the store is all that it is known by.
    the_lowest_tier_is_refused_at_the_interface(service, "127.0.0.1:11212", ENOUGH / 5);
}

const PROXIED: &str = r#"
[[tenant]]
name = "vital"
sources = "127.0.0.1"
quota = "unlimited"
tier = "critical"

[[tenant]]
name = "cheap"
sources = "127.0.0.2"
quota = "unlimited"
tier = "best-effort"
"#;
const VITAL_SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const CHEAP_SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// As long as it takes the store when all is well.
const USUAL: Nanos = Nanos::from_millis(1);
/// Clients of each tenant; each asks again when it was answered.
const CLIENTS: usize = 4;

/// The replies to a tenant's clients so far.
#[derive(Debug, Default)]
struct ReplyCounts {
    answers: AtomicU64,
    penalties: AtomicU64,
    /// Anything else.
    others: AtomicU64,
}

impl ReplyCounts {
    fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    fn penalties(&self) -> u64 {
        self.penalties.load(Ordering::Relaxed)
    }
}

fn ask(mut stream: TcpStream, replies: &ReplyCounts, over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        stream.write_all(b"get key\r\n")?;
        let said = read_until(&mut stream, b"\r\n")?;
        let count = match &*said {
            b"END\r\n" => &replies.answers,
            said if said.ends_with(b"reason=penalty\r\n") => &replies.penalties,
            _ => &replies.others,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if said != b"END\r\n" {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
    Ok(())
}

#[test]
fn a_slow_proxied_store_sheds_the_lowest_tier_in_the_daemon() -> Result<()> {
    shed_in_the_daemon(|_| Ok(()))
}

#[test]
fn a_gate_that_drains_serves_again_what_it_has_shed() -> Result<()> {
    let mut next = None;
    shed_in_the_daemon(|gate| {
        let mut command = Command::new(paths::gate());
        command.args(["run", "--takeover", "--config"]).arg(gate.files()?.0);
        let started = next.insert(ChildProcess::start("gate", command)?);
        started.wait_for("took over from a running gate", PATIENCE).map(drop)
    })?;
    next.context("there is none")?.end().map(drop)
}

/// A proxied store that slows until the lowest tier is refused, and recovers; `then` is what happens in between.
fn shed_in_the_daemon(then: impl FnOnce(&mut Listening) -> Result<()>) -> Result<()> {
    let store = Store::start(&Settings { service_time: USUAL, ..Settings::new("127.0.0.1:0".parse()?) })?;
    let service = "shedding = { short = \"500ms\", min_samples = \"10\", floor = \"15ms\" }";
    let mut gate = Listening::gate_with("drain = \"120s\"", "memcached", store.address(), service, PROXIED)?;
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    let mut replies = BTreeMap::new();
    for source in [VITAL_SOURCE, CHEAP_SOURCE] {
        let replies: &mut Arc<ReplyCounts> = replies.entry(source).or_default();
        for _ in 0..CLIENTS {
            let stream = gate.connect_from(source)?;
            let replies = Arc::clone(replies);
            let over = Arc::clone(&over);
            clients.push(std::thread::spawn(move || ask(stream, &replies, &over)));
        }
    }
    let [vital, cheap] = [VITAL_SOURCE, CHEAP_SOURCE].map(|source| Arc::clone(&replies[&source]));
    until("the gate knows the store", PATIENCE, || vital.answers().min(cheap.answers()) > ENOUGH);
    ensure!(cheap.penalties() == 0);

    store.set_service_time(SLOW);
    let refused_after = until("the lowest tier is refused", PATIENCE, || cheap.penalties() > 0);
    let before = vital.answers();
    until("the others are served", PATIENCE, || cheap.penalties() > 20 && vital.answers() > before + 20);
    then(&mut gate)?;

    store.set_service_time(USUAL);
    let recovered_after = until("the lowest tier is served again", RECOVERY, || {
        let answers = cheap.answers();
        let penalties = cheap.penalties();
        until("more is said", PATIENCE, || cheap.answers() + cheap.penalties() > answers + penalties + 100);
        cheap.penalties() == penalties
    });
    println!("proxied: refused after {refused_after:?}, served again after {recovered_after:?}");
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("it does not panic").context("a client")?;
    }
    let said = gate.program().wait_for(" of store is refused: p95 ", PATIENCE)?;
    ensure!(said.contains(" ms, usually "), "{said}");
    gate.program().wait_for(" of store is served again, at ", PATIENCE)?;
    ensure!(vital.penalties() == 0, "{vital:?}");
    ensure!(vital.others.load(Ordering::Relaxed) + cheap.others.load(Ordering::Relaxed) == 0);
    Ok(())
}

const INSISTENT: &str = r#"
[gate]
tcp_in_debt = "reset-syn"
deep_debt = "1s"

[[service]]
name = "cache"
protocol = "memcached"
listen = "198.18.0.1:11211"
backend = "127.0.0.1:11212"
transports = "tcp"

[[tenant]]
name = "polite"
sources = "198.18.1.0/24"
quota = "100 RU/s"

[[tenant]]
name = "part"
part_of = "polite"
key_prefixes = "part:"
quota = "100 RU/s"

[[tenant]]
name = "insistent"
sources = "198.18.2.0/24"
quota = "100 RU/s"
"#;

#[test]
fn a_tenant_deep_in_debt_connects_again_once_it_stops() {
    if !privilege::root("closed_loop::a_tenant_deep_in_debt_connects_again_once_it_stops") {
        return;
    }
    let site = Site::new(INSISTENT).unwrap();
    let address = "127.0.0.1:11212".parse().unwrap();
    let _store = site.net.server.enter(|| Store::start(&Settings::new(address))).unwrap().unwrap();
    let gate = site.start(&[]).unwrap();
    let _peer = site.peer().unwrap();
    let [polite, insistent] = ["198.18.1.1", "198.18.2.1"].map(|source| source.parse().unwrap());
    for source in [polite, insistent] {
        site.net.add_client_address(source).unwrap();
    }
    let mut connection = Connection::open(&site.net, insistent).unwrap();
    // What a part is asked for costs its source no connection.
    let mut by_part = Connection::open(&site.net, polite).unwrap();
    let mut refused = 0;
    until("connections are reset", PATIENCE, || {
        for _ in 0..200 {
            by_part.ask("get part:key\r\n").unwrap();
        }
        for _ in 0..100 {
            refused += usize::from(connection.ask("get key\r\n").unwrap() != "END");
        }
        Connection::open(&site.net, insistent).is_err()
    });
    assert!(refused > 100, "{refused}: it was cut off before it was refused");
    assert!(connection.ask("get key\r\n").is_ok(), "its connection stays");
    assert_eq!(Connection::open(&site.net, polite).unwrap().ask("get key\r\n").unwrap(), "END");
    let let_in_after =
        until("it may connect again", PATIENCE, || Connection::open(&site.net, insistent).is_ok());
    println!("let in again {let_in_after:?} after it had stopped");
    gate.end().unwrap();
}
