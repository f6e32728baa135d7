//! A pool of stores behind one service, and the choice of a key's node among them.

use std::collections::HashMap;

use super::parsers::one_of;
use super::raw::{Item, Section};
use super::store_address::{self, NetworkAddress, StoreAddress};
use super::units::Wrong;
use super::values::Protocol;
use gate_policy::placement::{HashTag, KeyHash, MOST_NODES, Node, Placement, Scheme};

/// Stores that share a service's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// At least one, in their order; no two at one address.
    pub nodes: Vec<PoolNode>,
    /// The choice of a key's node.
    pub scheme: Scheme,
}

/// A store of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolNode {
    /// Where it listens.
    pub address: StoreAddress,
    /// Its part of the keys, in relation to the others'; 1 to 10,000.
    pub weight: u32,
    /// The name that stands for it in the choice of nodes; `None` if its address does.
    pub name: Option<String>,
}

impl Pool {
    /// The places of keys.
    #[must_use]
    pub fn placement(&self) -> Placement {
        let node = |node: &PoolNode| Node { name: node.ring_name(self.scheme), weight: node.weight };
        Placement::new(self.scheme, &self.nodes.iter().map(node).collect::<Vec<_>>())
    }

    /// Two stores that cannot be told apart in the choice of a key's node, and their name.
    fn same_name(&self) -> Option<(&StoreAddress, &StoreAddress, String)> {
        // By its slots: names have no part in it.
        if matches!(self.scheme, Scheme::Crc16) {
            return None;
        }
        let mut taken: HashMap<String, &StoreAddress> = HashMap::new();
        self.nodes.iter().find_map(|node| {
            let name = node.ring_name(self.scheme);
            let earlier = taken.insert(name.clone(), &node.address)?;
            Some((earlier, &node.address, name))
        })
    }
}

impl PoolNode {
    /// The text that stands for it in the choice of nodes, as libmemcached or nutcracker would have it.
    fn ring_name(&self, scheme: Scheme) -> String {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let (host, port) = match &self.address {
            StoreAddress::Unix(path) => {
                let path = path.as_path().display();
                return match scheme {
                    Scheme::Ketama => format!("{path}:0"),
                    Scheme::Twemproxy { .. } => format!("{path}:"),
                    Scheme::Rendezvous | Scheme::Crc16 => path.to_string(),
                };
            }
            StoreAddress::Network(NetworkAddress::Named { host, port }) => (host.clone(), *port),
            StoreAddress::Network(NetworkAddress::Fixed(address)) => {
                (address.ip().to_string(), address.port())
            }
        };
        match (scheme, port) {
            (Scheme::Ketama | Scheme::Twemproxy { .. }, UNNAMED_PORT) => host,
            _ => format!("{host}:{port}"),
        }
    }
}

/// Reads the addresses of several stores.
pub(super) fn addresses<'t>(s: &mut Section<'t>) -> Vec<Item<'t, PoolNode>> {
    s.list("backends", node)
}

/// Reads a service's pool, if it has one of these stores.
pub(super) fn read(s: &mut Section<'_>, items: Vec<Item<'_, PoolNode>>, protocol: Protocol) -> Option<Pool> {
    let scheme = scheme(s);
    if !s.has("backends") {
        for key in SCHEME_KEYS.into_iter().filter(|key| s.has(key)) {
            s.fault(key, "means something only beside backends".to_owned());
        }
        return None;
    }
    if protocol != Protocol::Memcached {
        let message = if protocol == Protocol::Resp {
            "divides the keys of memcached alone; write backend, with one store, or cluster = \"on\" for the nodes of a Redis Cluster"
        } else {
            "divides the keys of memcached alone; write backend, with one store"
        };
        s.fault("backends", message.to_owned());
    }
    for key in ["backend", "intercept"].into_iter().filter(|key| s.has(key)) {
        s.fault(key, "has no meaning beside backends: leave one of the two out".to_owned());
    }
    let pool = Pool { nodes: nodes(items), scheme };
    if let Some((one, other, name)) = pool.same_name() {
        let message = format!(
            "has {one} and {other}, which are both {name:?} in the choice of a key's store: one of them would have no key; \
             give each a name of its own (`name=`)"
        );
        s.fault("backends", message);
    }
    if s.is_sound() && !pool.nodes.is_empty() {
        let placement = pool.placement();
        let without = pool.nodes.iter().enumerate().find(|(place, _)| placement.points(*place) == Some(0));
        if let Some((_, node)) = without {
            let message = format!(
                "leaves {} without a key: its weight is too small beside the others' for a ring; raise it, or leave it out",
                node.address
            );
            s.fault("backends", message);
        }
    }
    Some(pool)
}

fn nodes(items: Vec<Item<'_, PoolNode>>) -> Vec<PoolNode> {
    let mut nodes: Vec<PoolNode> = Vec::new();
    for item in items {
        let is_unspecified = item.value.address.fixed().is_some_and(|address| address.ip().is_unspecified());
        if is_unspecified {
            item.fault("must be the store's own address, e.g. \"127.0.0.1:11212\"");
        } else if nodes.iter().any(|node| node.address == item.value.address) {
            item.fault("is listed twice");
        } else if nodes.len() == MOST_NODES {
            item.fault(format!("is one too many: there may be {MOST_NODES}"));
        } else {
            nodes.push(item.value);
        }
    }
    nodes
}

/// An address, and behind it `weight=N` and `name=TEXT`, if they are there.
fn node(text: &str) -> Result<PoolNode, Wrong> {
    let mut rest = text;
    let mut weight = 1;
    let mut name = None;
    while let Some((before, word)) = rest.rsplit_once(' ') {
        if let Some(number) = word.strip_prefix("weight=") {
            let number = number.parse().ok().filter(|number| (1..=MOST_WEIGHT).contains(number));
            weight = number.ok_or_else(|| {
                format!("must have a weight from 1 to {MOST_WEIGHT}, e.g. \"cache-1:11211 weight=2\"")
            })?;
        } else if let Some(word) = word.strip_prefix("name=").filter(|word| !word.is_empty()) {
            name = Some(word.to_owned());
        } else {
            break;
        }
        rest = before.trim_end();
    }
    Ok(PoolNode { address: store_address::read(rest)?, weight, name })
}

fn scheme(s: &mut Section<'_>) -> Scheme {
    let hash = s.get("hash", one_of(&HASHES)).unwrap_or(Scheme::Ketama);
    let key_hash = s.get("key_hash", one_of(&KeyHash::ALL));
    let tag = s.get("hash_tag", tag);
    match hash {
        Scheme::Twemproxy { .. } => Scheme::Twemproxy { key_hash: key_hash.unwrap_or_default(), tag },
        Scheme::Ketama | Scheme::Rendezvous | Scheme::Crc16 => {
            for key in ["key_hash", "hash_tag"].into_iter().filter(|key| s.has(key)) {
                s.fault(key, "means something only beside hash = \"twemproxy\"".to_owned());
            }
            hash
        }
    }
}

fn tag(text: &str) -> Result<HashTag, Wrong> {
    match *text.as_bytes() {
        [open, close] if open.is_ascii_graphic() && close.is_ascii_graphic() => Ok(HashTag { open, close }),
        _ => Err("must be two characters, e.g. \"{}\"".to_owned()),
    }
}

const HASHES: [(&str, Scheme); 4] = [
    ("ketama", Scheme::Ketama),
    ("twemproxy", Scheme::Twemproxy { key_hash: KeyHash::Fnv1aOf64, tag: None }),
    ("rendezvous", Scheme::Rendezvous),
    ("crc16", Scheme::Crc16),
];
pub(super) const SCHEME_KEYS: [&str; 3] = ["hash", "key_hash", "hash_tag"];
/// libmemcached and nutcracker leave memcached's own port out of a node's name.
const UNNAMED_PORT: u16 = 11_211;
const MOST_WEIGHT: u32 = 10_000;
