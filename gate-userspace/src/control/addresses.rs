//! The addresses of services and the sources of tenants, as tables that a packet is looked up in.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::tables::Table;
use crate::config::Config;
use crate::kernel::Port;

/// Each protected address: its service, transport and address.
pub(super) fn endpoints(config: &Config) -> impl Iterator<Item = (usize, u8, SocketAddr)> {
    config.services.iter().enumerate().flat_map(|(id, service)| {
        let transports = [(UDP, service.transports.udp), (TCP, service.transports.tcp)];
        let protected = transports.into_iter().filter_map(|(transport, on)| on.then_some(transport));
        protected
            .flat_map(move |transport| service.listen.iter().map(move |&address| (id, transport, address)))
    })
}

/// Services by port: the first slot of each port's chain, and the slot that follows each one in it.
pub(super) fn chains(config: &Config, transport: u8, first_service: u32) -> (Vec<Port>, HashMap<u32, u32>) {
    let mut chains: HashMap<u16, u32> = HashMap::new();
    let mut next = HashMap::new();
    let mut slots: Vec<(u32, SocketAddr)> = (first_service..)
        .zip(endpoints(config))
        .filter_map(|(slot, (_, of, address))| (of == transport).then_some((slot, address)))
        .collect();
    // A chain is built from its end: services that listen on every address come last.
    slots.sort_by_key(|(slot, address)| (!address.ip().is_unspecified(), std::cmp::Reverse(*slot)));
    for (slot, address) in slots {
        if let Some(after) = chains.insert(address.port(), slot) {
            next.insert(slot, after);
        }
    }
    let ports = chains.into_iter().map(|(port, slot)| Port { tcp: transport == TCP, port, slot });
    (ports.collect(), next)
}

pub(super) fn source_tables(config: &Config, ids: &[u32]) -> [Table; 2] {
    let mut tables = [Table::v4(), Table::bytes()];
    let mut prefixes: Vec<_> = config
        .tenants
        .iter()
        .zip(ids)
        .flat_map(|(tenant, &id)| tenant.sources.iter().map(move |source| (source, id)))
        .collect();
    prefixes.sort_by_key(|(source, _)| source.prefix_len());
    for (source, id) in prefixes {
        match source.network() {
            IpAddr::V4(address) => tables[0].insert(&address.octets(), source.prefix_len(), id),
            IpAddr::V6(address) => tables[1].insert(&address.octets(), source.prefix_len(), id),
        }
    }
    tables
}

/// The addresses that services listen at.
pub(super) fn protected_tables(config: &Config) -> [Table; 2] {
    let mut tables = [Table::bytes(), Table::bytes()];
    if endpoints(config).any(|(_, _, address)| address.ip().is_unspecified()) {
        tables[0].insert(&[0; 4], 0, 1);
        tables[1].insert(&[0; 16], 0, 1);
        return tables;
    }
    for (_, _, address) in endpoints(config) {
        match address.ip() {
            IpAddr::V4(address) => tables[0].insert(&address.octets(), 32, 1),
            IpAddr::V6(address) => tables[1].insert(&address.octets(), 128, 1),
        }
    }
    tables
}

pub(super) const UDP: u8 = 17;
pub(super) const TCP: u8 = 6;
