//! The generator against the embedded store, on loopback.

use std::net::{SocketAddr, UdpSocket};

use super::store::{Settings, Store};
use super::*;

fn store() -> Store {
    Store::start(&Settings::new("127.0.0.1:0".parse().unwrap())).unwrap()
}

fn plan(target: SocketAddr, transport: Transport, count: u64, tenants: &[&str]) -> Plan {
    Plan {
        target,
        transport,
        protocol: Protocol::Memcached,
        tenants: tenants.iter().map(|tenant| tenant.parse().unwrap()).collect(),
        duration: Nanos::from_secs(60),
        count: Some(count),
        timeout: Nanos::from_secs(10),
        seed: 7,
    }
}

fn done(tenant: &TenantSummary) -> u64 {
    tenant.answered + tenant.refused + tenant.failed + tenant.lost + tenant.unsent
}

#[test]
fn every_request_is_answered_over_both_transports() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let store = store();
        let tenants = [
            "name=reader,rate=5000/s,source=127.0.0.2,source=127.0.0.3",
            "name=writer,rate=2000/s,reads=0%,value=1000B,arrivals=constant",
        ];
        let summary = start(&plan(store.address(), transport, 500, &tenants)).unwrap().finish();
        for tenant in &summary.tenants {
            assert_eq!((tenant.offered, tenant.sent, tenant.answered), (500, 500, 500), "{tenant:?}");
            assert_eq!(done(tenant), tenant.offered);
            assert!(tenant.latency_ns.p50 > 0 && tenant.latency_ns.p50 <= tenant.latency_ns.max);
        }
        assert_eq!(store.stats().commands, 1_000);
        assert_eq!(store.stats().dropped, 0);
    }
}

#[test]
fn what_was_written_is_read() {
    let store = store();
    let write = ["name=a,rate=5000/s,reads=0%,keys=uniform:1"];
    let _ = start(&plan(store.address(), Transport::Udp, 1, &write)).unwrap().finish();
    let read = ["name=a,rate=5000/s,keys=uniform:1", "name=b,rate=5000/s,keys=uniform:1"];
    for transport in [Transport::Udp, Transport::Tcp] {
        let summary = start(&plan(store.address(), transport, 100, &read)).unwrap().finish();
        assert_eq!(summary.tenants[0].hits, 100, "{transport:?}");
        assert_eq!(summary.tenants[1].hits, 0, "{transport:?}");
    }
}

#[test]
fn latency_counts_from_when_a_request_was_due() {
    // One server, 10 ms each, a request every millisecond: the last of 50 waits for all before it.
    let store = Store::start(&Settings {
        service_time: Nanos::from_millis(10),
        concurrency: 1,
        ..Settings::new("127.0.0.1:0".parse().unwrap())
    })
    .unwrap();
    for transport in [Transport::Udp, Transport::Tcp] {
        let tenant = ["name=a,rate=1000/s,arrivals=constant,connections=1"];
        let summary = start(&plan(store.address(), transport, 50, &tenant)).unwrap().finish();
        let tenant = &summary.tenants[0];
        assert_eq!(tenant.answered, 50);
        assert!(tenant.latency_ns.max >= 450_000_000, "{transport:?}: {tenant:?}");
        assert!(tenant.latency_ns.p50 >= 220_000_000, "{transport:?}: {tenant:?}");
    }
}

#[test]
fn requests_without_an_answer_are_lost_after_the_timeout() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut plan = plan(silent.local_addr().unwrap(), Transport::Udp, 1_000, &["name=a,rate=100000/s"]);
    plan.timeout = Nanos::from_millis(50);
    let summary = start(&plan).unwrap().finish();
    let tenant = &summary.tenants[0];
    assert_eq!((tenant.offered, tenant.sent, tenant.lost), (1_000, 1_000, 1_000), "{tenant:?}");
    assert!(summary.seconds < 5.0, "{}", summary.seconds);
}

#[test]
fn refusals_are_counted_by_their_reason() {
    let gate = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = gate.local_addr().unwrap();
    let answers = std::thread::spawn(move || {
        let mut buffer = [0; 2_048];
        for i in 0..90 {
            let (_, from) = gate.recv_from(&mut buffer).unwrap();
            let line: &[u8] = match i % 3 {
                0 => b"SERVER_ERROR throttled\r\n",
                1 => b"SERVER_ERROR throttled retry_after_ms=5 reason=quota\r\n",
                _ => b"END\r\n",
            };
            gate.send_to(&[&buffer[..8], line].concat(), from).unwrap();
        }
    });
    let summary = start(&plan(target, Transport::Udp, 90, &["name=a,rate=5000/s"])).unwrap().finish();
    answers.join().unwrap();
    let tenant = &summary.tenants[0];
    assert_eq!((tenant.answered, tenant.refused), (30, 60), "{tenant:?}");
    assert_eq!(tenant.refused_by_reason, [("quota", 30), (counters::UNSTATED, 30)].into());
    assert!(tenant.refusal_latency_ns.p50 > 0);
}

#[test]
fn where_nobody_listens_datagrams_are_lost_and_connections_fail() {
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut plan = plan(free, transport, 50, &["name=a,rate=1000/s,connections=1"]);
        plan.timeout = Nanos::from_millis(100);
        let summary = start(&plan).unwrap().finish();
        let tenant = &summary.tenants[0];
        assert_eq!((tenant.offered, done(tenant), tenant.answered), (50, 50, 0), "{tenant:?}");
        match transport {
            Transport::Udp => assert_eq!((tenant.sent, tenant.lost), (50, 50), "{tenant:?}"),
            Transport::Tcp => assert!(tenant.sent == 0 && tenant.failed > 0, "{tenant:?}"),
        }
    }
}

#[test]
fn a_source_that_is_not_ours_does_not_start() {
    let store = store();
    for transport in [Transport::Udp, Transport::Tcp] {
        let plan = plan(store.address(), transport, 1, &["name=a,rate=1/s,source=198.18.77.77"]);
        let error = start(&plan).unwrap_err();
        assert!(matches!(error, StartError::Sockets { tenant, .. } if tenant == "a"));
    }
}

#[test]
fn a_run_that_is_stopped_has_its_summary() {
    let store = store();
    let mut plan = plan(store.address(), Transport::Udp, u64::MAX, &["name=a,rate=2000/s"]);
    plan.duration = Nanos::from_secs(60);
    let running = start(&plan).unwrap();
    while running.progress().tenants[0].answered < 100 {
        std::thread::yield_now();
    }
    running.stop();
    let summary = running.finish();
    let tenant = &summary.tenants[0];
    assert!(tenant.answered >= 100);
    assert_eq!(done(tenant), tenant.offered);
    assert!(summary.seconds < 20.0);
}
