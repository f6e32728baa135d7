//! Plans as a daemon might write them, and some that it never would.

use std::net::IpAddr;

use gate_common::abi::{
    Protocol, Service, ServiceState, Shed, TcpAction, TenantState, service_flags, tenant_flags, view_flags,
};
use gate_common::token_bucket::Limits;
use gate_common::units::{Fraction, Multiplier};
use gate_tests::rng::Rng;
use gate_tests::world::{PRICES, Plan, TCP, UDP, service, tenant};

/// Tenants that have a state; nobody is not among them.
pub(crate) const TENANTS: u32 = 6;
/// One that no map has.
const MISSING: u32 = 1000;
const SECOND: u64 = 1_000_000_000;
pub(crate) const STALE_AFTER_NS: u64 = SECOND;

/// A plan for about the time `now_ns`.
pub(crate) fn plan(rng: &mut Rng, now_ns: u64) -> Plan {
    let mut plan = Plan {
        services: services(rng),
        tenants: (0..TENANTS).map(|_| tenant_state(rng, now_ns)).collect(),
        sources: sources(rng),
        ..Plan::default()
    };
    plan.view.stale_after_ns = STALE_AFTER_NS;
    plan.view.enforce = rng.mostly(4, Fraction::ONE, &[Fraction::ZERO, Fraction::of(1, 2)]).steps();
    plan.view.flags = rng.mostly(8, 0, &[view_flags::SHADOW])
        | rng.mostly(4, 0, &[view_flags::STALE_PASS])
        | rng.mostly(2, 0, &[view_flags::SYN_COOKIES])
        | rng.mostly(3, 0, &[view_flags::PASS_FRAGMENTS, view_flags::DROP_FRAGMENTS]);
    if !rng.once_in(8) {
        let any = rng.once_in(4);
        let addresses = if any { ["0.0.0.0", "::"] } else { ["198.18.0.1", "fd00::1"] };
        plan.protected = addresses.map(|address| address.parse().unwrap()).into();
    }
    plan
}

fn services(rng: &mut Rng) -> Vec<(u8, u16, Service, ServiceState)> {
    let mut services = vec![
        service(UDP, "198.18.0.1", 11211, Protocol::Memcached),
        service(TCP, "198.18.0.1", 11211, Protocol::Memcached),
        service(UDP, "fd00::1", 11211, Protocol::Memcached),
        service(TCP, "fd00::1", 11211, Protocol::Memcached),
        proxied(service(UDP, "198.18.0.1", 11212, Protocol::Memcached)),
        proxied(service(TCP, "198.18.0.1", 11212, Protocol::Memcached)),
        proxied(service(TCP, "fd00::1", 11212, Protocol::Memcached)),
        service(TCP, "198.18.0.1", 6379, Protocol::Resp),
        proxied(service(TCP, "", 6380, Protocol::Resp)),
        service(UDP, "", 9999, Protocol::Opaque),
        service(TCP, "", 9999, Protocol::Opaque),
    ];
    // One more than a port may have.
    services.extend((1..=9).map(|last| service(UDP, &format!("198.18.0.{last}"), 7000, Protocol::Opaque)));
    for (_, _, service, prices) in &mut services {
        service.default_tenant = rng.mostly(3, 0, &[3, 3, 3, MISSING]);
        service.flags |= rng.mostly(2, 0, &[service_flags::DROP_UNKNOWN_SYN]);
        service.flags |= rng.mostly(2, 0, &[service_flags::PRICED_BY_LINES]);
        *prices = rng.mostly(4, PRICES, &[CHEAP, DEAR]);
        if rng.once_in(3) {
            prices.shed = (0..4).fold(Shed(0), |shed, tier| shed.with(tier, rng.below(8) as u32));
        }
    }
    services
}

const CHEAP: ServiceState =
    ServiceState { base_mru: 0, row_mru: 1, kib_mru: 0, latency_mru: [0; 8], ..PRICES };
const DEAR: ServiceState = ServiceState {
    base_mru: 1 << 31,
    row_mru: u32::MAX,
    kib_mru: u32::MAX,
    latency_mru: [u32::MAX; 8],
    ..PRICES
};

fn proxied(mut service: (u8, u16, Service, ServiceState)) -> (u8, u16, Service, ServiceState) {
    service.2.flags |= service_flags::PROXIED;
    service
}

fn tenant_state(rng: &mut Rng, now_ns: u64) -> TenantState {
    let mut flags = rng.mostly(4, tenant_flags::MAY_REPLY, &[0]);
    flags |= rng.mostly(4, 0, &[tenant_flags::CANDIDATE]);
    flags |= rng.mostly(4, 0, &[tenant_flags::UNLIMITED]);
    flags |= rng.mostly(12, 0, &[tenant_flags::PENALTY]);
    let soon = now_ns.saturating_add(rng.below(2 * SECOND));
    TenantState {
        // A get of the usual price takes a second, a millisecond, a microsecond, nothing.
        quota: limits(rng, [1_000_000, 1_000_000_000, 1_000_000_000_000]),
        candidate: limits(rng, [1_000_000, 1_000_000_000, 1_000_000_000_000]),
        tcp: limits(rng, [100, 10_000, 1_000_000]),
        reply: limits(rng, [100, 10_000, 1_000_000]),
        syn: limits(rng, [100, 1_000, 1_000_000]),
        reject_until_ns: rng.mostly(10, 0, &[1, now_ns, soon, u64::MAX]),
        rejection_rate: rng.mostly(6, Fraction::ZERO, &[Fraction::of(3, 10), Fraction::ONE]).steps(),
        multiplier: rng.mostly(
            3,
            Multiplier::ONE.0,
            &[0, 1, Multiplier::ONE.0 / 2, 2 << 16, 64 << 16, (3 << 16) + 1, u32::MAX],
        ),
        parents: [(); 2].map(|()| rng.mostly(4, 0, &[1, 2, 3, 4, 5, 6, MISSING])),
        flags,
        tier: rng.below(4) as u8,
        tcp_action: rng.mostly(
            2,
            TcpAction::None as u8,
            &[TcpAction::ResetSyn as u8, TcpAction::DropSyn as u8, TcpAction::DropData as u8],
        ),
        ..tenant()
    }
}

fn limits(rng: &mut Rng, per_sec: [u64; 3]) -> Limits {
    if rng.once_in(8) {
        return Limits::UNLIMITED;
    }
    let limits = Limits::new(rng.pick(&per_sec), rng.pick(&[1, SECOND / 100, SECOND, 10 * SECOND]));
    Limits { max_debt_ns: rng.mostly(4, limits.max_debt_ns, &[0, u64::MAX]), ..limits }
}

fn sources(rng: &mut Rng) -> Vec<(IpAddr, u8, u32)> {
    let source = |address: &str, length: u8, tenant: u32| -> (IpAddr, u8, u32) {
        (address.parse().expect("an address"), length, tenant)
    };
    let mut sources = vec![
        source("198.18.0.2", 32, 1),
        source("fd00::2", 128, 1),
        source("198.18.2.0", 24, 2),
        source("fd00:2::", 64, 2),
        source("198.18.4.0", 23, 4),
        source("198.18.5.64", 26, 5),
        source("fd00:4::", 31, 4),
        source("fd00:5:8000::", 33, 5),
        source("198.18.6.1", 32, rng.mostly(4, 6, &[MISSING])),
    ];
    if rng.once_in(4) {
        // Nobody is unknown.
        sources.extend([source("0.0.0.0", 0, 6), source("::", 0, 6)]);
    }
    sources
}
