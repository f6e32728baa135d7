//! The node of each slot of a cluster, at one time.
//!
//! **Problem.** Slots move while requests are under way. What is asked for one request (the node of each of its keys, and whether what
//! its client has outstanding went by the same nodes) must have one answer, however long that takes. **Rule.** A map never changes:
//! [`Cluster`](super::cluster::Cluster) has another one with a higher epoch after each change, and a thread takes that over before it
//! chooses the stores of a request, not in between.

use super::node_id::NodeId;
use super::scan::{NodeSlots, ScanCursor, ScanStep};
use crate::policy::placement::MOST_NODES;
use crate::protocol::resp::cluster::SLOTS;

/// The node of each slot.
#[derive(Debug)]
pub(crate) struct SlotMap {
    epoch: u64,
    /// The place of each slot's node; [`UNSERVED`] if none is known.
    places: Box<[u8]>,
    /// The slots of each node, as a scan needs them.
    of_nodes: NodeSlots,
}

impl SlotMap {
    /// No slot's node is known.
    pub(crate) fn unknown() -> Self {
        Self::new(0, &[], |_| String::new())
    }

    /// The map of this epoch: each node has the slots from a first to a last one, and an address.
    pub(crate) fn new(
        epoch: u64,
        ranges: &[(NodeId, (u16, u16))],
        address_of: impl Fn(NodeId) -> String,
    ) -> Self {
        let mut places = vec![UNSERVED; usize::from(SLOTS)].into_boxed_slice();
        for &(node, (first, last)) in ranges {
            places[usize::from(first)..=usize::from(last)].fill(node.index() as u8);
        }
        let mut counts = [(0, 0_u16); MOST_NODES];
        for (slot, &place) in (0..).zip(&places).filter(|(_, place)| **place != UNSERVED) {
            let (first, count) = &mut counts[usize::from(place)];
            if *count == 0 {
                *first = slot;
            }
            *count += 1;
        }
        let mut of_nodes = NodeSlots::new(MOST_NODES);
        for (node, slots) in NodeId::all(MOST_NODES).zip(counts).filter(|(_, (_, count))| *count > 0) {
            of_nodes.set(node, slots, &address_of(node));
        }
        Self { epoch, places, of_nodes }
    }

    /// Its number among the cluster's maps.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// True if each slot has the same node as in another map.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.places == other.places
    }

    /// The node of a slot, if one is known.
    #[inline]
    pub(crate) fn node_of(&self, slot: usize) -> Option<NodeId> {
        let place = self.places[slot];
        (place != UNSERVED).then(|| NodeId::at(place.into()))
    }

    /// True if a node has slots.
    #[inline]
    pub(crate) fn serves(&self, node: NodeId) -> bool {
        self.slots_of(node) > 0
    }

    /// The number of slots that a node has.
    #[inline]
    pub(crate) fn slots_of(&self, node: NodeId) -> u32 {
        self.of_nodes.count(node)
    }

    /// The request by which a scan of all nodes goes on at a cursor; `None` if no node has any slot.
    pub(crate) fn scan_step(&self, cursor: ScanCursor) -> Option<ScanStep> {
        self.of_nodes.step(cursor, |slot| self.node_of(slot.into()))
    }

    /// The number of slots whose node is known, and of nodes that have any.
    pub(crate) fn size(&self) -> (usize, usize) {
        let counts = NodeId::all(MOST_NODES).map(|node| self.slots_of(node) as usize);
        counts.filter(|count| *count > 0).fold((0, 0), |(slots, nodes), count| (slots + count, nodes + 1))
    }
}

/// The place of a node that is not known.
const UNSERVED: u8 = u8::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_its_node_and_each_node_its_slots() {
        let [one, other] = [3, 63].map(NodeId::at);
        let ranges = [(other, (200, 299)), (one, (0, 99)), (one, (300, 300))];
        let map = SlotMap::new(7, &ranges, |node| format!("a:{}", node.index()));
        for (slot, node) in
            [(0, Some(one)), (99, Some(one)), (100, None), (200, Some(other)), (300, Some(one)), (301, None)]
        {
            assert_eq!(map.node_of(slot), node, "{slot}");
        }
        assert_eq!((map.epoch(), map.size()), (7, (201, 2)));
        assert_eq!((map.slots_of(one), map.slots_of(other)), (101, 100));
        assert!(map.serves(other) && !map.serves(NodeId::FIRST));
        assert!(
            map.is_same(&SlotMap::new(8, &ranges, |_| String::new())) && !map.is_same(&SlotMap::unknown())
        );
        let step = map.scan_step(ScanCursor::START).unwrap();
        assert_eq!((step.node, step.cursor_behind(0)), (one, Some(200)));
        assert_eq!(SlotMap::unknown().scan_step(ScanCursor::START), None);
    }
}
