//! Deficit round robin: who is next, when many want more than there is.
//!
//! **Problem.** In one queue, whoever asks most is served most, and all others wait behind. Taking turns by request favours whoever
//! asks for dear ones.
//!
//! **Source.** Shreedhar, Varghese, "Efficient Fair Queueing using Deficit Round Robin", SIGCOMM 1995. Each flow (here: a
//! tenant) has a queue. The flows take turns; at its turn a flow may spend a quantum, and what it could not spend because
//! its first item costs more it keeps. A flow without items keeps nothing.
//!
//! **Deviations.** Costs are prices, which may be many quanta. When no flow can pay for its first item, all get as many quanta
//! at once as the first that can then pay needs, instead of taking turns in vain. An item may be held back (its store connection
//! takes no more): its flow keeps its place in the round and what the item costs, and the next flow is looked at.
//!
//! **Invariants.** Items of one flow leave in the order in which they came. While two flows have items and neither is held back,
//! what they are served differs by less than a quantum and the dearest item of each. A step costs O(1), unless no flow can pay, which
//! costs O(flows). The memory of items and flows that have left is used again: nothing is allocated as long as there are no
//! more of them than before.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use slab::Slab;

/// Items of many flows, taken out in turn. See the [module](self).
#[derive(Debug)]
pub struct DeficitRoundRobin<T> {
    quantum: u64,
    items: Slab<Item<T>>,
    flows: Slab<Flow>,
    /// The flows with items, by their key: a number that gate gives, so that a hash without a secret is fine.
    by_key: HashMap<u32, usize, FixedState>,
    /// They take turns; the first is next.
    turns: VecDeque<usize>,
    /// The number of searches, by which flows know that they were held back in this one.
    searches: u64,
}

#[derive(Debug)]
struct Item<T> {
    value: T,
    cost: u64,
    next: usize,
}

/// The items of one key.
#[derive(Clone, Copy, Debug)]
struct Flow {
    key: u32,
    first: usize,
    last: usize,
    deficit: u64,
    /// True once it has got its quantum for this turn.
    has_turn: bool,
    /// The search in which its first item was held back.
    held_back: u64,
}

impl<T> DeficitRoundRobin<T> {
    /// An empty one, in which each flow may spend `quantum` (at least 1) at its turn.
    #[must_use]
    pub fn new(quantum: u64) -> Self {
        Self {
            quantum: quantum.max(1),
            items: Slab::new(),
            flows: Slab::new(),
            by_key: HashMap::default(),
            turns: VecDeque::new(),
            searches: 0,
        }
    }

    /// The number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds an item to the flow `key`.
    pub fn push(&mut self, key: u32, cost: u64, value: T) {
        let item = self.items.insert(Item { value, cost, next: NONE });
        if let Some(&flow) = self.by_key.get(&key) {
            let flow = &mut self.flows[flow];
            self.items[flow.last].next = item;
            flow.last = item;
            return;
        }
        let flow = Flow { key, first: item, last: item, deficit: 0, has_turn: false, held_back: 0 };
        let flow = self.flows.insert(flow);
        self.by_key.insert(key, flow);
        self.turns.push_back(flow);
    }

    /// Takes out the next item that `may` leave. After some flows whose first items may not, it gives up for now.
    pub fn pop(&mut self, mut may: impl FnMut(&T) -> bool) -> Option<T> {
        self.searches += 1;
        let mut passed = 0;
        let mut held_back = 0;
        while let Some(&index) = self.turns.front() {
            let flow = &mut self.flows[index];
            if flow.held_back < self.searches && !std::mem::replace(&mut flow.has_turn, true) {
                flow.deficit = flow.deficit.saturating_add(self.quantum);
            }
            let item = &self.items[flow.first];
            if flow.held_back < self.searches && item.cost <= flow.deficit {
                if may(&item.value) {
                    flow.deficit -= item.cost;
                    return Some(self.take_first(index, 0));
                }
                (flow.held_back, flow.deficit) = (self.searches, item.cost);
                held_back += 1;
            }
            flow.has_turn = false;
            self.turns.rotate_left(1);
            passed += 1;
            if held_back >= MOST_HELD_BACK {
                return None;
            }
            if passed >= self.turns.len() {
                self.add_rounds()?;
                passed = 0;
            }
        }
        None
    }

    /// Takes out the first item of a flow that `is_wanted`; the first of each flow is looked at.
    pub fn remove_first(&mut self, mut is_wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let is_wanted = |&index: &usize| is_wanted(&self.items[self.flows[index].first].value);
        let turn = self.turns.iter().position(is_wanted)?;
        Some(self.take_first(self.turns[turn], turn))
    }

    /// Takes out all items that are lost, wherever they are in their flows, and hands them to `each`. O(items).
    pub fn remove_all(&mut self, mut is_lost: impl FnMut(&T) -> bool, mut each: impl FnMut(T)) {
        // From the last on: a flow that is removed moves none that is still to come.
        for turn in (0..self.turns.len()).rev() {
            let flow = self.turns[turn];
            let mut left = self.flow_len(flow);
            while left > 0 && is_lost(&self.items[self.flows[flow].first].value) {
                left -= 1;
                each(self.take_first(flow, turn));
            }
            if left == 0 {
                continue;
            }
            let mut kept = self.flows[flow].first;
            while self.items[kept].next != NONE {
                let item = self.items[kept].next;
                if !is_lost(&self.items[item].value) {
                    kept = item;
                    continue;
                }
                let Item { value, next, .. } = remove(&mut self.items, item);
                self.items[kept].next = next;
                each(value);
            }
            self.flows[flow].last = kept;
        }
    }

    /// The number of items of a flow.
    fn flow_len(&self, flow: usize) -> usize {
        let first = self.flows[flow].first;
        let items = std::iter::successors(Some(first), |&item| {
            Some(self.items[item].next).filter(|&next| next != NONE)
        });
        items.count()
    }

    /// Takes out all items of a flow, with what each costs, in their order.
    pub fn take_flow(&mut self, key: u32) -> Vec<(u64, T)> {
        let Some(&index) = self.by_key.get(&key) else { return Vec::new() };
        let Some(turn) = self.turns.iter().position(|&other| other == index) else { return Vec::new() };
        let mut items = Vec::new();
        while self.by_key.contains_key(&key) {
            let cost = self.items[self.flows[index].first].cost;
            items.push((cost, self.take_first(index, turn)));
        }
        items
    }

    /// The first item of each flow, in the order of their turns.
    pub fn firsts(&self) -> impl Iterator<Item = &T> {
        self.turns.iter().map(|&index| &self.items[self.flows[index].first].value)
    }

    /// No flow can pay for its first item: gives all the quanta that the first to pay needs, but for the one of its turn. `None`
    /// if all are held back.
    fn add_rounds(&mut self) -> Option<()> {
        let Self { quantum, items, flows, turns, searches, .. } = self;
        let missing = turns.iter().filter_map(|&index| {
            let flow = &flows[index];
            let missing = items[flow.first].cost.saturating_sub(flow.deficit);
            (flow.held_back < *searches).then_some(missing.div_ceil(*quantum))
        });
        let rounds = missing.min()?.saturating_sub(1);
        for &index in turns.iter().filter(|_| rounds > 0) {
            let flow = &mut flows[index];
            if flow.held_back < *searches {
                flow.deficit = flow.deficit.saturating_add(rounds.saturating_mul(*quantum));
            }
        }
        Some(())
    }

    /// Takes out the first item of a flow, whose turn is at this position.
    fn take_first(&mut self, index: usize, turn: usize) -> T {
        let flow = &mut self.flows[index];
        let Item { value, next, .. } = remove(&mut self.items, flow.first);
        if next == NONE {
            self.by_key.remove(&flow.key);
            remove(&mut self.flows, index);
            self.turns.remove(turn);
        } else {
            flow.first = next;
        }
        value
    }
}

/// Takes a value out, and gives much memory back once nothing is in it.
fn remove<V>(values: &mut Slab<V>, index: usize) -> V {
    let value = values.remove(index);
    if values.is_empty() && values.capacity() > MOST_KEPT {
        *values = Slab::new();
    }
    value
}

/// The end of a flow's items.
const NONE: usize = usize::MAX;
/// So many flows that are held back are looked at, before all are taken to be.
const MOST_HELD_BACK: usize = 4;
/// Memory for more than these is given back once nothing is in it.
const MOST_KEPT: usize = 1 << 12;

#[cfg(test)]
mod tests;
