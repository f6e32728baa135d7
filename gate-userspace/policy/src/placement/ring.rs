//! The ring of ketama: each node has points on it in proportion to its weight, and a key belongs to the first point at or behind
//! its hash.

use md5::{Digest as _, Md5};

use super::Node;
use super::key_hash::{HashTag, KeyHash, word};

/// A ring, and the way of a key to it.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    /// In the order of their values.
    points: Box<[Point]>,
    key_hash: KeyHash,
    tag: Option<HashTag>,
}

/// A point, in the order of values and then of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    value: u32,
    node: u32,
}

impl Ring {
    pub(super) fn new(nodes: &[Node], key_hash: KeyHash, tag: Option<HashTag>) -> Self {
        let total: u64 = nodes.iter().map(|node| u64::from(node.weight)).sum();
        let mut points = Vec::new();
        for (place, node) in nodes.iter().enumerate() {
            for hash in 0..hashes(node.weight, total, nodes.len()) {
                let digest = Md5::digest(format!("{}-{hash}", node.name));
                let values = (0..POINTS_PER_HASH).map(|index| word(&digest, index));
                points.extend(values.map(|value| Point { value, node: place as u32 }));
            }
        }
        points.sort_unstable();
        Self { points: points.into(), key_hash, tag }
    }

    #[inline]
    pub(super) fn node(&self, key: &[u8]) -> usize {
        let part = self.tag.map_or(key, |tag| tag.part(key));
        let hash = self.key_hash.of(part);
        let place = self.points.partition_point(|point| point.value < hash);
        // Behind the last point comes the first.
        let point = self.points.get(place).unwrap_or(&self.points[0]);
        point.node as usize
    }

    pub(super) fn points(&self, node: usize) -> usize {
        self.points.iter().filter(|point| point.node as usize == node).count()
    }
}

/// The digests from which a node's points come, computed in single precision as libmemcached and nutcracker do: rounding decides.
fn hashes(weight: u32, total: u64, nodes: usize) -> u32 {
    let share = weight as f32 / total as f32;
    let hashes = share * POINTS_PER_NODE / POINTS_PER_HASH as f32 * nodes as f32;
    (f64::from(hashes) + 1e-10) as f32 as u32
}

/// The points of a node whose weight is that of all others.
const POINTS_PER_NODE: f32 = 160.0;
/// The points that come from one digest.
const POINTS_PER_HASH: usize = 4;
