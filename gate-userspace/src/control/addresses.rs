//! The addresses of services and the sources of tenants, as tables that a packet is looked up in.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gate_common::abi::{LOCAL_ADDRESS, PROTECTED_ADDRESS};

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
pub(super) fn protected_tables(config: &Config, local: &BTreeSet<IpAddr>) -> [Table; 2] {
    let mut tables = [Table::bytes(), Table::bytes()];
    let mut insert = |address: IpAddr, length: u8, value| match address {
        IpAddr::V4(address) => tables[0].insert(&address.octets(), length.min(32), value),
        IpAddr::V6(address) => tables[1].insert(&address.octets(), length, value),
    };
    if listens_anywhere(config) {
        let (v4, v6): (Vec<&IpAddr>, Vec<&IpAddr>) = local.iter().partition(|address| address.is_ipv4());
        insert(Ipv4Addr::UNSPECIFIED.into(), 0, PROTECTED_ADDRESS);
        insert(Ipv6Addr::UNSPECIFIED.into(), 0, PROTECTED_ADDRESS);
        for address in v4.into_iter().take(MOST_LOCAL_V4).chain(v6.into_iter().take(MOST_LOCAL_V6)) {
            insert(*address, 128, LOCAL_ADDRESS);
        }
        return tables;
    }
    for (_, _, address) in endpoints(config) {
        let is_local = local.contains(&address.ip());
        insert(address.ip(), 128, if is_local { LOCAL_ADDRESS } else { PROTECTED_ADDRESS });
    }
    tables
}

/// True if some service listens at every address.
pub(super) fn listens_anywhere(config: &Config) -> bool {
    endpoints(config).any(|(_, _, address)| address.ip().is_unspecified())
}

/// Local addresses that are told from others where a service listens at every address, and the blocks that they take.
const MOST_LOCAL_V4: usize = 16;
const MOST_LOCAL_V6: usize = 8;
pub(super) const LOCAL_BLOCKS: usize = MOST_LOCAL_V4 * 3 + MOST_LOCAL_V6 * 15;

pub(super) const UDP: u8 = 17;
pub(super) const TCP: u8 = 6;
