//! The metrics of services whose stores keep their address.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::families::Family;
use crate::admin::interception::Interception;

/// All families of interception.
pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, interception: Option<&Interception>) -> fmt::Result {
    // Addresses are no labels: a service's are one series.
    let mut services: BTreeMap<&str, Service> = BTreeMap::new();
    for address in interception.into_iter().flat_map(|interception| &interception.addresses) {
        let service =
            services.entry(&address.service).or_insert(Service { is_up: true, connections: [0; 3] });
        service.is_up &= address.reaches == "gate";
        let [gate, store, refused] = &mut service.connections;
        *gate += address.to_gate;
        *store += address.to_store;
        *refused += address.refused;
    }
    let mut up = UP.begin(encoder)?;
    services.iter().try_for_each(|(name, service)| up.add(&[("service", name)], u64::from(service.is_up)))?;
    let mut connections = CONNECTIONS.begin(encoder)?;
    for (name, service) in &services {
        for (to, count) in ["gate", "store", "nobody"].into_iter().zip(service.connections) {
            connections.add(&[("service", name), ("to", to)], count)?;
        }
    }
    Ok(())
}

/// All addresses of a service together.
#[derive(Debug)]
struct Service {
    /// True if gate gets the next connection to each.
    is_up: bool,
    /// The connections that gate got, that the store got as no gate lived, and that were refused.
    connections: [u64; 3],
}

const UP: Family = Family::gauge(
    "gate_intercept_up",
    "1 while new connections to every address of an intercepted service reach gate, else 0.",
);
const CONNECTIONS: Family = Family::counter(
    "gate_intercept_connections_total",
    "New connections of clients to an intercepted service, by who got them: gate, the store or nobody while no gate lived.",
);
