//! Placement: the node that holds a key, among the nodes of a pool.
//!
//! **Problem.** A pool of stores is filled by clients or proxies that each choose a key's node by themselves. Whoever takes their
//! place has to choose the same node for every key, or the pool is as good as empty. **Schemes.**
//!
//! - `ketama`: libmemcached's weighted ketama (`MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`; 1.1.4, `hosts.cc` and `hash.cc`).
//! - `twemproxy`: nutcracker's ketama (0.5, `nc_ketama.c` and `nc_server.c`), with its key hashes and hash tags. Its ring is
//!   libmemcached's; the key hash and the nodes' names differ.
//! - `rendezvous`: the node whose score for the key is the highest (Thaler and Ravishankar, 1998), with weights after Schindelhauer
//!   and Schomaker (2005). A node that leaves moves its own keys alone, which no ring promises of weighted nodes.
//! - `crc16`: the slots of Redis Cluster, divided as `redis-cli --cluster create` divides them, in proportion to the weights.
//!
//! **Deviations.** Two points of a ring with one value belong to the node that is listed first; the others leave that to `qsort`.
//! twemproxy's `hsieh` and `jenkins` are missing, as is `modula`.
//!
//! **Invariants.** Pure; no allocation for a key; the same answer on every machine. A pool of one node has all keys there.

mod key_hash;
mod rendezvous;
mod ring;
mod slots;

pub use key_hash::{HashTag, KeyHash};
use rendezvous::Rendezvous;
use ring::Ring;
use slots::Slots;
pub use slots::slot;

/// The choice of a key's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// libmemcached's weighted ketama.
    Ketama,
    /// nutcracker's ketama.
    Twemproxy {
        /// The hash of a key.
        key_hash: KeyHash,
        /// The bytes that enclose the part of a key that is hashed; `None` if it is always the whole key.
        tag: Option<HashTag>,
    },
    /// The highest score.
    Rendezvous,
    /// The slots of Redis Cluster.
    Crc16,
}

/// A node of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The text that stands for the node on a ring: as a rule its address, in the way of the scheme.
    pub name: String,
    /// Its part of the keys, in relation to the other nodes' weights; at least 1.
    pub weight: u32,
}

/// The places of all keys in a pool.
#[derive(Clone, Debug)]
pub struct Placement {
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// All keys are at the only node.
    Single,
    Ring(Ring),
    Rendezvous(Rendezvous),
    Slots(Slots),
}

impl Placement {
    /// The places of keys among `nodes`, at least one and at most [`MOST_NODES`].
    #[must_use]
    pub fn new(scheme: Scheme, nodes: &[Node]) -> Self {
        debug_assert!((1..=MOST_NODES).contains(&nodes.len()) && nodes.iter().all(|node| node.weight > 0));
        if nodes.len() < 2 {
            return Self { kind: Kind::Single };
        }
        let kind = match scheme {
            Scheme::Ketama => Kind::Ring(Ring::new(nodes, KeyHash::Md5, None)),
            Scheme::Twemproxy { key_hash, tag } => Kind::Ring(Ring::new(nodes, key_hash, tag)),
            Scheme::Rendezvous => Kind::Rendezvous(Rendezvous::new(nodes)),
            Scheme::Crc16 => Kind::Slots(Slots::new(nodes)),
        };
        Self { kind }
    }

    /// The place of a key's node in the list of nodes.
    #[must_use]
    #[inline]
    pub fn node(&self, key: &[u8]) -> usize {
        match &self.kind {
            Kind::Single => 0,
            Kind::Ring(ring) => ring.node(key),
            Kind::Rendezvous(rendezvous) => rendezvous.node(key),
            Kind::Slots(slots) => slots.node(key),
        }
    }

    /// The number of a node's points on the ring, or of its slots; `None` where there is neither. A weight that is very small in
    /// relation to the others leaves a node of a ring without points, and so without keys.
    #[must_use]
    pub fn points(&self, node: usize) -> Option<usize> {
        match &self.kind {
            Kind::Ring(ring) => Some(ring.points(node)),
            Kind::Slots(slots) => Some(slots.points(node)),
            Kind::Single | Kind::Rendezvous(_) => None,
        }
    }
}

/// The nodes that a pool may have.
pub const MOST_NODES: usize = 64;

#[cfg(test)]
mod tests;
