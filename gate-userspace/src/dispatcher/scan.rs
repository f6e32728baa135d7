//! Scans over the keys of all nodes of a cluster, one node after the other.
//!
//! **Problem.** A scan is many requests, each of which any gate may get, and gate keeps nothing between them. **Rule.** A client's
//! cursor has a slot, the cursor of the node that has it, and a mark of that node. Nodes are scanned in the order of their first
//! slots: the cursor behind a node's last keys has the first slot of the next one. **Nodes that change.** A node's cursor means nothing
//! to another node. So where the mark is another's, because the slot has moved, because the cursor is of another cluster, or because
//! a client has made it up, the slot's node is scanned from its beginning: no key is missed for that, and some come twice, as
//! they may from one Redis. From node to node slots rise, so each scan ends.

use super::node_id::NodeId;

/// The cursor of a scan, as clients have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanCursor {
    /// The slot whose node is scanned.
    pub(crate) slot: u16,
    /// That node's mark.
    mark: u16,
    /// That node's own cursor; zero at its beginning.
    at_node: u64,
}

/// One request of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanStep {
    pub(crate) node: NodeId,
    /// The cursor that the node gets.
    pub(crate) at_node: u64,
    slot: u16,
    mark: u16,
    /// The first slot of the next node; `None` behind the last one.
    next: Option<u16>,
}

/// The first slot of each node, how many it has, and its mark.
#[derive(Debug)]
pub(crate) struct NodeSlots {
    nodes: Box<[SlotsOfNode]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SlotsOfNode {
    first: u16,
    count: u16,
    mark: u16,
}

impl ScanCursor {
    /// The cursor by which a scan begins.
    pub(crate) const START: Self = Self { slot: 0, mark: 0, at_node: 0 };

    /// The cursor that is this number; `None` if no gate gives it out.
    pub(crate) fn read(number: u64) -> Option<Self> {
        let at_node = number >> (SLOT_BITS + MARK_BITS);
        (at_node <= MOST_AT_NODE).then_some(Self {
            slot: (number & SLOT_MASK) as u16,
            mark: (number >> SLOT_BITS & MARK_MASK) as u16,
            at_node,
        })
    }
}

impl ScanStep {
    /// The cursor that the client gets with the keys for which the node gives this one, zero at the end; `None` if that is
    /// longer than any node's that gate can name.
    pub(crate) fn cursor_behind(self, at_node: u64) -> Option<u64> {
        if at_node == 0 {
            return Some(self.next.map_or(0, u64::from));
        }
        let node = u64::from(self.slot) | u64::from(self.mark) << SLOT_BITS;
        (at_node <= MOST_AT_NODE).then_some(node | at_node << (SLOT_BITS + MARK_BITS))
    }
}

impl NodeSlots {
    /// Those of so many nodes, none of which has any slot.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { nodes: vec![SlotsOfNode::default(); nodes].into_boxed_slice() }
    }

    /// A node has so many slots, of which this is the first, and this address.
    pub(crate) fn set(&mut self, node: NodeId, (first, count): (u16, u16), address: &str) {
        self.nodes[node.index()] = SlotsOfNode { first, count, mark: mark_of(address) };
    }

    /// The number of slots that a node has.
    #[inline]
    pub(crate) fn count(&self, node: NodeId) -> u32 {
        self.nodes[node.index()].count.into()
    }

    /// The request by which a scan goes on at a cursor; `node_of` is the node of a slot. Behind the last slot that has a node
    /// it is the last node's; `None` if no node has any.
    pub(crate) fn step(
        &self,
        cursor: ScanCursor,
        node_of: impl Fn(u16) -> Option<NodeId>,
    ) -> Option<ScanStep> {
        let next_of = |slot| self.firsts().filter(|&first| first > slot).min();
        let (slot, node) = match node_of(cursor.slot) {
            Some(node) => (cursor.slot, node),
            None => {
                let slot = next_of(cursor.slot).or_else(|| self.firsts().max())?;
                (slot, node_of(slot)?)
            }
        };
        let mark = self.nodes[node.index()].mark;
        let at_node = if (slot, mark) == (cursor.slot, cursor.mark) { cursor.at_node } else { 0 };
        Some(ScanStep { node, at_node, slot, mark, next: next_of(slot) })
    }

    fn firsts(&self) -> impl Iterator<Item = u16> {
        self.nodes.iter().filter(|node| node.count > 0).map(|node| node.first)
    }
}

/// The mark of the node at an address, the same for each gate: FNV-1a, folded.
fn mark_of(address: &str) -> u16 {
    let hash = address
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    ((hash ^ hash >> 12 ^ hash >> 24) as u64 & MARK_MASK) as u16
}

const SLOT_BITS: u32 = 14;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
/// The mark of one in 4,096 other nodes is the same. With it, cursors of nodes with up to 100 million keys are below 2^53, which
/// clients that take them for a floating-point number need.
const MARK_BITS: u32 = 12;
const MARK_MASK: u64 = (1 << MARK_BITS) - 1;
/// The longest cursor of a node: with it a cursor is below 2^63, as clients expect that take it for a signed number.
const MOST_AT_NODE: u64 = (1 << (63 - SLOT_BITS - MARK_BITS)) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes with slots 100 to 199, 300 to 399, and 0 to 49 with 200 to 249.
    fn nodes() -> NodeSlots {
        let mut nodes = NodeSlots::new(8);
        nodes.set(NodeId::at(0), (100, 100), "a:1");
        nodes.set(NodeId::at(2), (300, 100), "b:1");
        nodes.set(NodeId::at(5), (0, 100), "c:1");
        nodes
    }

    fn node_of(slot: u16) -> Option<NodeId> {
        let place = match slot {
            0..50 | 200..250 => 5,
            100..200 => 0,
            300..400 => 2,
            _ => return None,
        };
        Some(NodeId::at(place))
    }

    #[test]
    fn a_scan_visits_each_node_once_by_its_own_cursors() {
        let nodes = nodes();
        let mut number = 0;
        let mut visited = Vec::new();
        for at_node in [7, MOST_AT_NODE, 0, 0, 3, 0] {
            let step = nodes.step(ScanCursor::read(number).unwrap(), node_of).unwrap();
            visited.push((step.node.index(), step.at_node));
            number = step.cursor_behind(at_node).unwrap();
            assert!(number < 1 << 63);
        }
        assert_eq!(visited, [(5, 0), (5, 7), (5, MOST_AT_NODE), (0, 0), (2, 0), (2, 3)]);
        assert_eq!(number, 0);
    }

    #[test]
    fn a_slots_other_node_is_scanned_from_its_beginning() {
        let mut nodes = nodes();
        let first = nodes.step(ScanCursor::read(300).unwrap(), node_of).unwrap();
        let cursor = ScanCursor::read(first.cursor_behind(9).unwrap()).unwrap();
        assert_eq!(nodes.step(cursor, node_of).map(|step| step.at_node), Some(9));
        nodes.set(NodeId::at(2), (300, 100), "b:2");
        let step = nodes.step(cursor, node_of).unwrap();
        assert_eq!((step.node.index(), step.at_node), (2, 0));
        // One without a node goes on at the next, and ends where there is none.
        let gone = |slot| node_of(slot).filter(|node| node.index() != 0);
        nodes.set(NodeId::at(0), (0, 0), "a:1");
        let step = nodes.step(ScanCursor::read(100).unwrap(), gone).unwrap();
        assert_eq!((step.node.index(), step.at_node, step.next), (2, 0, None));
        assert_eq!(nodes.step(ScanCursor::read(400).unwrap(), gone), Some(step));
        assert_eq!(NodeSlots::new(2).step(ScanCursor::START, |_| None), None);
    }

    #[test]
    fn whatever_a_client_makes_up_ends() {
        let nodes = nodes();
        for number in [1, 77, 1 << 40, (1 << 63) - 1, 250, 399 | 5 << 14] {
            let mut cursor = ScanCursor::read(number);
            let mut steps = 0;
            while let Some(step) = cursor.and_then(|cursor| nodes.step(cursor, node_of)) {
                steps += 1;
                let behind = step.cursor_behind(0).unwrap();
                cursor = ScanCursor::read(behind).filter(|_| behind != 0);
            }
            assert!(steps <= 3, "{number}: {steps}");
        }
        assert_eq!(ScanCursor::read(1 << 63), None);
        let step = nodes.step(ScanCursor::read(0).unwrap(), node_of).unwrap();
        assert_eq!(step.cursor_behind(MOST_AT_NODE + 1), None);
    }
}
