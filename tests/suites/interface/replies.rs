//! gate as no amplifier: whom it answers from the interface, and how much, over real sockets and real time.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use gate_common::abi::{Event, Exit};
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::flood::Sink;
use gate_tests::privilege;
use gate_userspace::kernel::Maps;

const OVER: &str = "198.18.1.1";
const EVERYBODY: &str = "198.18.2.1";
const UNKNOWN: &str = "198.18.3.1";
/// Two services: one knows nobody else, one takes anybody as `everybody`.
const CONFIG: &str = r#"
    [[service]]
    name = "closed"
    protocol = "memcached"
    listen = "198.18.0.1:11211"
    transports = ["udp"]
    [[service]]
    name = "open"
    protocol = "memcached"
    listen = "198.18.0.1:11212"
    transports = ["udp"]
    default = "everybody"
    [[tenant]]
    name = "over"
    sources = ["198.18.1.0/24"]
    quota = "1 RU/s"
    burst = "4s"
    reply_budget = "8KiB/s"
    [[tenant]]
    name = "everybody"
    quota = "1 RU/s"
    burst = "4s"
"#;
/// Frame header, then a read.
const REQUEST: &[u8] = b"\0\x07\0\0\0\x01\0\0get key\r\n";
const REFUSAL: &[u8] = b"\0\x07\0\0\0\x01\0\0SERVER_ERROR throttled\r\n";
/// Ethernet, IPv4, UDP and the refusal: what the budget counts.
const FRAME: u64 = 14 + 20 + 8 + REFUSAL.len() as u64;

/// A client that reads what comes back at once.
struct Client(UdpSocket);

impl Client {
    fn open(site: &Site, source: &str, port: u16) -> Self {
        let source: IpAddr = source.parse().unwrap();
        // Twice for clients of both services.
        let _ = site.net.add_client_address(source);
        let socket = site.net.client.enter(|| UdpSocket::bind((source, 0))).unwrap().unwrap();
        socket.connect(("198.18.0.1", port)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(socket)
    }

    fn ask(&self) {
        self.0.send(REQUEST).unwrap();
    }

    /// How many refusals have arrived; nothing else may.
    fn refusals(&self) -> u64 {
        let mut buffer = [0; 2048];
        let mut refusals = 0;
        while let Ok(length) = self.0.recv(&mut buffer) {
            assert_eq!(&buffer[..length], REFUSAL);
            refusals += 1;
        }
        refusals
    }
}

/// Packets that pass must arrive at a socket, or the server's kernel would say that nobody listens.
fn sinks(site: &Site) -> [Sink; 2] {
    [11211, 11212].map(|port| Sink::start(&site.net, ([198, 18, 0, 1], port).into()).unwrap())
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn a_tenants_refusals_stay_within_their_bytes_a_second() {
    if !privilege::root("replies::a_tenants_refusals_stay_within_their_bytes_a_second") {
        return;
    }
    const BUDGET: u64 = 8 << 10;
    const FOR: Duration = Duration::from_secs(3);
    /// A tenth of a second of the budget.
    const BURST: u64 = BUDGET / 10;
    let site = Site::new(CONFIG).unwrap();
    let gate = site.start(&[]).unwrap();
    let _peer = site.peer().unwrap();
    let _sinks = sinks(&site);
    let maps = Maps::pinned(site.pins(), false).unwrap();
    let client = Client::open(&site, OVER, 11211);
    let mut sent = 0;
    let mut replies = 0;
    let started = Instant::now();
    while started.elapsed() < FOR {
        for _ in 0..10 {
            client.ask();
            sent += 1;
        }
        replies += client.refusals();
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let processed = || maps.cpu_counters().exits.iter().skip(Exit::Passed.index()).sum::<u64>();
    wait_for("every request is processed", || processed() >= sent);
    wait_for("every refusal arrives", || {
        replies += client.refusals();
        replies >= maps.tenant_counters(1).replied
    });
    let took = started.elapsed();
    let counters = maps.tenant_counters(1);
    assert_eq!(replies, counters.replied);
    let tick = Duration::from_nanos(maps.clock().tick_ns);
    let most = u128::from(BUDGET) * (took + tick).as_nanos() / 1_000_000_000 + u128::from(BURST);
    let bytes = replies * FRAME;
    assert!(u128::from(bytes) <= most, "{bytes} bytes of refusals in {took:?}, {most} allowed");
    // More than the burst: the budget comes back.
    assert!(bytes > 2 * BURST, "{bytes} bytes of refusals in {took:?}");
    let unanswered = maps.cpu_counters().events[Event::ReplyBudget.index()];
    assert_eq!(counters.refused_in_all(), replies + unanswered);
    println!("{sent} requests in {took:?}: {replies} answered, {bytes} bytes of {most} allowed");
    gate.end().unwrap();
}

#[test]
fn neither_the_unknown_nor_everybody_is_answered() {
    if !privilege::root("replies::neither_the_unknown_nor_everybody_is_answered") {
        return;
    }
    const REQUESTS: u64 = 200;
    let site = Site::new(CONFIG).unwrap();
    let gate = site.start(&[]).unwrap();
    let _peer = site.peer().unwrap();
    let _sinks = sinks(&site);
    let maps = Maps::pinned(site.pins(), false).unwrap();
    let exits = |exit: Exit| maps.cpu_counters().exits[exit.index()];
    let quiet = [(UNKNOWN, 11211), (EVERYBODY, 11212)].map(|(from, port)| Client::open(&site, from, port));
    for _ in 0..REQUESTS {
        quiet.iter().for_each(Client::ask);
    }
    wait_for("the unknown are dropped", || exits(Exit::UnknownSource) == REQUESTS);
    wait_for("every request is processed", || {
        let everybody = maps.tenant_counters(2);
        everybody.passed + everybody.refused_in_all() == REQUESTS
    });
    assert!(maps.tenant_counters(2).refused_in_all() > REQUESTS / 2);
    assert_eq!((exits(Exit::RefusedReplied), maps.tenant_counters(2).replied), (0, 0));
    // Whoever may be answered is, and later than the others would have been.
    let known = Client::open(&site, OVER, 11211);
    (0..20).for_each(|_| known.ask());
    wait_for("a tenant is answered", || known.refusals() > 0);
    assert_eq!(quiet.map(|client| client.refusals()), [0, 0]);
    gate.end().unwrap();
}

#[test]
fn refusals_set_by_hand_are_answered_until_unset() {
    if !privilege::root("replies::refusals_set_by_hand_are_answered_until_unset") {
        return;
    }
    let site = Site::new(CONFIG).unwrap();
    let gate = site.start(&[]).unwrap();
    let _peer = site.peer().unwrap();
    let _sinks = sinks(&site);
    let maps = Maps::pinned(site.pins(), false).unwrap();
    let client = Client::open(&site, OVER, 11211);
    site.json(&["set", "tenant.over.refuse", "on"]).unwrap();
    client.ask();
    wait_for("a refusal", || client.refusals() == 1);
    // The tenant's counters are in the maps, what is set of it only the daemon knows.
    let tenant = &site.json(&["tenants", "over"]).unwrap()["tenants"][0];
    assert_eq!((&tenant["refused"]["penalty"], &tenant["passed"]), (&1.into(), &0.into()));
    assert_eq!((&tenant["refuse"], &tenant["overrides"]["refuse"]), (&true.into(), &"on".into()));
    site.json(&["set", "--unset", "tenant.over.refuse"]).unwrap();
    client.ask();
    wait_for("it passes", || maps.tenant_counters(1).passed == 1);
    gate.end().unwrap();
}
