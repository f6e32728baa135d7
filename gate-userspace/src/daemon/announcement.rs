//! The lines of the log that say in one sentence what gate serves, and how it has ended.

use std::net::SocketAddr;

use gate_common::abi::TenantCounters;
use gate_common::units::Nanos;

use super::process::Daemon;
use crate::config::{AdminSocket, Config, Mode, Protocol, Service};
use crate::kernel::{ByLayer, Maps};

impl Daemon {
    /// Logs what it serves, where, and what of gate is off.
    pub(super) fn log_summary(&self) {
        let config = self.changes.config();
        let attached = self.attached.iter().flat_map(|attached| &attached.interfaces);
        let interfaces: Vec<_> = attached.map(|interface| interface.name.as_str()).collect();
        tracing::info!("{}", summary(&config, &interfaces));
    }
}

/// The summary of a gate that is attached to these interfaces.
fn summary(config: &Config, interfaces: &[&str]) -> String {
    let services = listed(config.services.iter().map(service), MOST_SERVICES);
    let interfaces = if interfaces.is_empty() { "none".to_owned() } else { interfaces.join(", ") };
    let gate = &config.gate;
    let off: Vec<&str> = [
        (interfaces == "none", "XDP"),
        (gate.mode == Mode::Shadow, "refusals (shadow mode)"),
        (gate.admin == AdminSocket::Off, "the admin socket"),
        (gate.admin_http.is_none(), "page and metrics (admin_http)"),
        (config.fleet.is_none(), "shared limits ([fleet])"),
        (config.envoy.is_none(), "answers to Envoys ([envoy])"),
    ]
    .into_iter()
    .filter_map(|(is_off, what)| is_off.then_some(what))
    .collect();
    format!(
        "gate {} serves {services}; tenants: {}; interfaces: {interfaces}; off: {}",
        env!("CARGO_PKG_VERSION"),
        config.tenants.len(),
        if off.is_empty() { "nothing".to_owned() } else { off.join(", ") },
    )
}

fn service(service: &Service) -> String {
    let protocol = match service.protocol {
        Protocol::Memcached => "memcached",
        Protocol::Resp => "Redis",
        Protocol::Http => "HTTP",
        Protocol::Opaque => "bytes",
    };
    let how = match (&service.backend, service.intercept) {
        (Some(_), Some(_)) => "intercepted",
        (Some(_), None) => "proxied",
        (None, _) => "guarded",
    };
    let at = listed(service.listen.iter().map(SocketAddr::to_string), MOST_ADDRESSES);
    format!("{} ({protocol}, {how}) at {at}", service.name)
}

/// The first of these, and how many more there are.
fn listed(all: impl ExactSizeIterator<Item = String>, most: usize) -> String {
    let more = all.len().saturating_sub(most);
    let mut listed = all.take(most).collect::<Vec<_>>().join(", ");
    if more > 0 {
        listed.push_str(&format!(" and {more} more"));
    }
    listed
}

/// The sentence for the end: `why`, after which time, and the requests of all tenants since the maps were made.
pub(super) fn end(why: &str, maps: &Maps, ran: Nanos) -> String {
    let mut sums = ByLayer::default();
    (0..maps.tenants.len()).for_each(|tenant| {
        maps.sum_counters(tenant, &mut sums);
    });
    let refused = |of: &TenantCounters| of.refused.iter().sum::<u64>();
    format!(
        "gate ends after {} s: {why}; requests passed: {}, refused: {}",
        ran.0 / Nanos::from_secs(1).0,
        sums.iter().map(|of| of.passed).sum::<u64>(),
        sums.iter().map(refused).sum::<u64>(),
    )
}

const MOST_SERVICES: usize = 8;
const MOST_ADDRESSES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(gate: &str, services: usize) -> Config {
        let service = |n| {
            format!(
                "[[service]]\nname = \"s{n}\"\nprotocol = \"resp\"\nlisten = \"127.0.0.1:{}\"\nbackend = \"127.0.0.1:9\"\n",
                100 + n
            )
        };
        let tenant = "[[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\nquota = \"unlimited\"\n";
        let text = format!("[gate]\n{gate}\n{}{tenant}", (0..services).map(service).collect::<String>());
        Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}"))
    }

    #[test]
    fn a_summary_names_services_interfaces_and_what_is_off() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            summary(&parse("xdp = \"off\"", 1), &[]),
            format!(
                "gate {version} serves s0 (Redis, proxied) at 127.0.0.1:100; tenants: 1; interfaces: none; off: XDP, page and metrics \
                 (admin_http), shared limits ([fleet]), answers to Envoys ([envoy])"
            )
        );
        let said = summary(&parse("mode = \"shadow\"\nadmin_http = \"127.0.0.1:9\"", 10), &["eth0", "eth1"]);
        assert!(said.contains("at 127.0.0.1:107 and 2 more; tenants: 1; interfaces: eth0, eth1; off: refusals (shadow mode), shared"));
    }
}
