//! Real sockets on loopback.

use std::net::TcpListener;

use super::*;
use crate::config::Config;
use crate::load::store::{Settings, Store};
use crate::policy::latency_ratio::{self, LatencyRatio};

/// A probe and the service that it measures.
struct Fixture {
    results: Arc<Probed>,
    ratio: LatencyRatio,
    _prober: Prober,
}

impl Fixture {
    fn new(address: SocketAddr, transport: &str, timeout: &str) -> Self {
        let text = format!(
            "[gate]\n[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"{address}\"\n\
             transports = \"{transport}\"\nprobe = {{ every = \"2ms\", timeout = \"{timeout}\" }}\ndefault = \"t\"\n\
             [[tenant]]\nname = \"t\"\nquota = \"unlimited\"\n"
        );
        let config = Config::parse("test.toml", &text).unwrap();
        let results = Arc::<Probed>::default();
        let prober = Prober::start([(&config.services[0], Arc::clone(&results))]).unwrap().unwrap();
        let settings = latency_ratio::Settings { min_samples: 5, ..latency_ratio::Settings::default() };
        let ratio = LatencyRatio::of(Arc::clone(results.latencies()), settings, clock::monotonic()).unwrap();
        Self { results, ratio, _prober: prober }
    }

    /// The recent p95.
    fn p95(&mut self) -> Option<Nanos> {
        self.ratio.tick(clock::monotonic(), false);
        self.ratio.recent_p95(0)
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = clock::monotonic();
    while !holds() {
        assert!(clock::monotonic().saturating_sub(began) < PATIENCE, "{what}: not within {PATIENCE}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn probes_over_either_transport_find_the_latency() {
    for transport in ["tcp", "udp"] {
        let store = Store::start(&Settings::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let mut probed = Fixture::new(store.address(), transport, "1s");
        until("an answer", || probed.results.is_up() && probed.p95().is_some());
        store.set_service_time(Nanos::from_millis(40));
        until("it is slow", || probed.p95() > Some(Nanos::from_millis(35)));
        assert!(probed.results.is_up());
        drop(store);
        until("it is down", || !probed.results.is_up() && probed.results.failures() > 0);
    }
}

#[test]
fn a_store_that_does_not_answer_counts_meanwhile() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let mut probed = Fixture::new(address, "tcp", "60s");
    until("it takes long", || probed.p95() > Some(Nanos::from_millis(50)));
    assert_eq!(probed.results.failures(), 0);
    let impatient = Fixture::new(address, "tcp", "10ms");
    until("it is given up, and asked again", || impatient.results.failures() > 1);
}

#[test]
fn a_service_that_listens_everywhere_is_asked_on_loopback() {
    for (listen, probed) in
        [("0.0.0.0:7", "127.0.0.1:7"), ("[::]:7", "[::1]:7"), ("198.18.0.1:7", "198.18.0.1:7")]
    {
        assert_eq!(reachable(listen.parse().unwrap()), probed.parse().unwrap());
    }
}

const PATIENCE: Nanos = Nanos::from_secs(20);
