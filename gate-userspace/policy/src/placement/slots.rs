//! The 16,384 slots of Redis Cluster, and their division among nodes.

use super::Node;
use super::key_hash::{CRC16, HashTag};

/// The node of each slot.
#[derive(Clone, Debug)]
pub(super) struct Slots(Box<[u8]>);

impl Slots {
    /// Slots in ranges, in the order of the nodes, as `redis-cli --cluster create` gives them to equal nodes. Each node has at least
    /// one.
    pub(super) fn new(nodes: &[Node]) -> Self {
        let total: u64 = nodes.iter().map(|node| u64::from(node.weight)).sum();
        let mut slots = vec![nodes.len() as u8 - 1; SLOTS];
        let mut first = 0;
        let mut cursor = 0_f32;
        for (place, node) in nodes.iter().enumerate().take(nodes.len() - 1) {
            // In single precision, as there: rounding decides.
            let share = (SLOTS as f32 * node.weight as f32) / total as f32;
            let last = (cursor + share - 1.0).round() as usize;
            // The nodes behind it have at least one as well.
            let last = last.clamp(first, SLOTS - nodes.len() + place);
            slots[first..=last].fill(place as u8);
            first = last + 1;
            cursor += share;
        }
        Self(slots.into())
    }

    #[inline]
    pub(super) fn node(&self, key: &[u8]) -> usize {
        usize::from(self.0[slot(key)])
    }

    pub(super) fn points(&self, node: usize) -> usize {
        self.0.iter().filter(|&&place| usize::from(place) == node).count()
    }
}

/// The slot of a key in Redis Cluster; 0 to 16,383.
#[inline]
#[must_use]
pub fn slot(key: &[u8]) -> usize {
    let crc = TAG
        .part(key)
        .iter()
        .fold(0_u16, |crc, &byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]);
    usize::from(crc) % SLOTS
}

const SLOTS: usize = 16_384;
const TAG: HashTag = HashTag { open: b'{', close: b'}' };
