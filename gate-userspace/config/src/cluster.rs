//! A Redis Cluster behind one service.

use super::parsers::{SWITCH, number, one_of};
use super::pool::{PoolNode, SCHEME_KEYS};
use super::raw::{Item, Section};
use super::store_address::StoreAddress;
use super::values::Protocol;

/// A Redis Cluster: its nodes say which others there are, and which slots each has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Nodes that are asked first, at least one.
    pub seeds: Vec<StoreAddress>,
    /// How often a request follows `MOVED` or `ASK`; 1 to 16.
    pub max_redirects: u8,
    /// True if `MSET` of keys in several slots is sent in parts, which may be written at different times.
    pub split_writes: bool,
}

/// True if the service is before a cluster.
pub(super) fn is_on(section: &Section<'_>) -> bool {
    section.says("cluster", "on")
}

/// Reads a service's cluster, if it has one; its `backends`, if it has those, are `nodes`.
pub(super) fn read(
    s: &mut Section<'_>,
    protocol: Protocol,
    backend: Option<&StoreAddress>,
    nodes: Vec<Item<'_, PoolNode>>,
) -> Option<Cluster> {
    let is_on = s.get("cluster", one_of(&SWITCH)).unwrap_or(false);
    let max_redirects = s.get("max_redirects", number(1, 16)).unwrap_or(MAX_REDIRECTS) as u8;
    let split_writes = s.get("split_writes", one_of(&SWITCH)).unwrap_or(false);
    if !is_on {
        for key in ["max_redirects", "split_writes"] {
            if s.has(key) {
                s.fault(key, "means something only beside cluster = \"on\"".to_owned());
            }
        }
        return None;
    }
    if protocol != Protocol::Resp {
        let message = "is Redis': write protocol = \"resp\", or leave it out";
        s.fault("cluster", message.to_owned());
    }
    let has_nodes = s.has("backends");
    if s.has("intercept") {
        let message = "has no meaning beside cluster: its clients know the nodes; leave it out, and give them gate's address";
        s.fault("intercept", message.to_owned());
    }
    if s.has("backend_tls") {
        let message = "cannot be used beside cluster: gate speaks plainly to its nodes; leave it out";
        s.fault("backend_tls", message.to_owned());
    }
    for key in SCHEME_KEYS {
        if s.get(key, |text| Ok(text.to_owned())).is_none() {
            continue;
        }
        s.fault(
            key,
            "has no meaning beside cluster, whose nodes say which keys they have; leave it out".to_owned(),
        );
    }
    if has_nodes && s.has("backend") {
        s.fault("backend", "has no meaning beside backends: leave one of the two out".to_owned());
    }
    if !has_nodes && !s.has("backend") && !s.has("intercept") {
        let message = "needs backends: write the addresses of some of its nodes, e.g. [\"198.18.0.1:6379\"]";
        s.fault("cluster", message.to_owned());
    }
    if !has_nodes && matches!(backend, Some(StoreAddress::Unix(_))) {
        s.fault("backend", UNIX.to_owned());
    }
    let mut seeds: Vec<StoreAddress> = backend.filter(|_| !has_nodes).cloned().into_iter().collect();
    for item in nodes {
        let PoolNode { address, weight, name } = &item.value;
        if matches!(address, StoreAddress::Unix(_)) {
            item.fault(UNIX);
        } else if *weight != 1 || name.is_some() {
            item.fault("must be an address alone beside cluster, e.g. \"198.18.0.1:6379\": its nodes say which keys they have");
        } else if address.fixed().is_some_and(|address| address.ip().is_unspecified()) {
            item.fault("must be the node's own address, e.g. \"127.0.0.1:7000\"");
        } else if seeds.contains(address) {
            item.fault("is listed twice");
        } else if seeds.len() == MOST_SEEDS {
            item.fault(format!("is one too many: there may be {MOST_SEEDS}"));
        } else {
            seeds.push(item.value.address);
        }
    }
    Some(Cluster { seeds, max_redirects, split_writes })
}

const UNIX: &str = "must be an address and a port: the other nodes of a cluster are not at Unix sockets";
const MAX_REDIRECTS: u64 = 3;
/// So that the nodes of a cluster have room beside them.
const MOST_SEEDS: usize = 16;
