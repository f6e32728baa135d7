//! An unmodified memcached behind the gate, asked through ordinary sockets.

use std::net::IpAddr;

use gate_tests::daemon::Site;
use gate_tests::memcached::{Connection, Datagrams, Memcached, PORT};
use gate_tests::net::SERVER_V4;
use gate_tests::privilege;

const WITHIN: &str = "198.18.1.1";
const OVER: &str = "198.18.1.2";
/// The price of a get of [`KEY`] is one RU, so this tenant may ask 20 times at once and then once a second.
const OVER_BURST: usize = 20;
const KEY: &str = "key";

fn config() -> String {
    format!(
        r#"
        [[service]]
        name = "cache"
        protocol = "memcached"
        listen = "{SERVER_V4}:{PORT}"
        transports = ["udp"]
        price = {{ base = "0.5 RU", row = "0.5 RU", kib = "0 RU" }}
        [[tenant]]
        name = "within"
        sources = ["{WITHIN}"]
        quota = "100000 RU/s"
        [[tenant]]
        name = "over"
        sources = ["{OVER}"]
        quota = "1 RU/s"
        burst = "{OVER_BURST}s"
        "#
    )
}

#[test]
fn refused_clients_read_why_and_tcp_is_untouched() {
    if !privilege::root("memcached::refused_clients_read_why_and_tcp_is_untouched") {
        return;
    }
    let site = Site::new(&config()).unwrap();
    let net = &site.net;
    let [within, over] = [WITHIN, OVER].map(|address| address.parse::<IpAddr>().unwrap());
    for address in [within, over] {
        net.add_client_address(address).unwrap();
    }
    let _server = Memcached::start(net).unwrap();
    let _gate = site.start(&[]).unwrap();
    let _peer = site.peer().unwrap();

    let mut connection = Connection::open(net, over).unwrap();
    assert_eq!(connection.ask(&format!("set {KEY} 0 0 5\r\nvalue\r\n")).unwrap(), "STORED");

    let get = format!("get {KEY}\r\n");
    let value = format!("VALUE {KEY} 0 5\r\nvalue\r\nEND\r\n");
    let mut requests = Datagrams::open(net, over).unwrap();
    let answers: Vec<_> = (0..2 * OVER_BURST).map(|_| requests.ask(&get).unwrap()).collect();
    let passed = answers.iter().take_while(|answer| **answer == value).count();
    assert!((OVER_BURST..OVER_BURST + 3).contains(&passed), "{passed} passed of a burst of {OVER_BURST}");
    let refused = answers.iter().filter(|answer| *answer == "SERVER_ERROR throttled\r\n").count();
    assert!(refused >= OVER_BURST - 3, "{answers:?}");

    let mut requests = Datagrams::open(net, within).unwrap();
    for _ in 0..2 * OVER_BURST {
        assert_eq!(requests.ask(&get).unwrap(), value);
    }
    for _ in 0..2 * OVER_BURST {
        assert_eq!(connection.ask("version\r\n").unwrap().split(' ').next(), Some("VERSION"));
    }

    let counted = site.json(&["tenants"]).unwrap()["tenants"].take();
    let of = |name: &str| {
        counted.as_array().unwrap().iter().find(|tenant| tenant["name"] == name).unwrap().clone()
    };
    assert_eq!(of("over")["refused"]["quota"].as_u64(), Some(refused as u64), "{counted}");
    assert_eq!(of("within")["passed"].as_u64(), Some(2 * OVER_BURST as u64), "{counted}");
    assert_eq!(of("within")["refused"], serde_json::json!({}), "{counted}");
}
