//! Which counter is the smallest.

/// Counters by count, lazily: a counter that grows keeps its place until it comes to the front.
///
/// Counters that take over another get the smallest count of all plus a weight. While weights are
/// equal, those counts only rise, so such counters simply queue up (`rising`). All others are in a
/// heap (`rest`). Every counter is in one of the two, under a count at which it stood once.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    rising: Ring,
    /// A min-heap.
    rest: Vec<Node>,
}

/// A count, and the number of the counter that had it.
type Node = (u64, u32);

impl Queue {
    /// Room for `capacity` counters.
    pub(super) fn new(capacity: usize) -> Self {
        Self { rising: Ring::new(capacity), rest: Vec::with_capacity(capacity) }
    }

    /// Adds a counter.
    #[inline]
    pub(super) fn push(&mut self, count: u64, number: u32) {
        if count >= self.rising.back() {
            self.rising.push((count, number));
        } else {
            self.push_rest((count, number));
        }
    }

    /// The counter with the smallest count, where `count_of` says how they stand now. There must be
    /// one.
    #[inline]
    pub(super) fn smallest(&mut self, count_of: impl Fn(u32) -> u64) -> u32 {
        loop {
            let is_rising = self.rising_is_next();
            let (seen, number) = if is_rising { self.rising.front() } else { self.rest[0] };
            let count = count_of(number);
            if count == seen {
                return number;
            }
            if is_rising {
                self.rising.pop();
                self.push_rest((count, number));
            } else {
                self.sift_down((count, number));
            }
        }
    }

    /// Puts the counter that [`Self::smallest`] has just returned where `count` belongs.
    #[inline]
    pub(super) fn replace_smallest(&mut self, count: u64, number: u32) {
        if self.rising_is_next() {
            self.rising.pop();
            self.push(count, number);
        } else if count >= self.rising.back() {
            if let Some(last) = self.rest.pop().filter(|_| !self.rest.is_empty()) {
                self.sift_down(last);
            }
            self.rising.push((count, number));
        } else {
            self.sift_down((count, number));
        }
    }

    /// Changes every count. `change` must keep their order.
    pub(super) fn change_all(&mut self, change: impl Fn(u64) -> u64) {
        for (count, _) in self.rising.iter_mut().chain(&mut self.rest) {
            *count = change(*count);
        }
    }

    pub(super) fn clear(&mut self) {
        self.rising.len = 0;
        self.rest.clear();
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.rising.nodes) + self.rest.capacity() * size_of::<Node>()
    }

    #[inline]
    fn rising_is_next(&self) -> bool {
        self.rising.len > 0 && self.rest.first().is_none_or(|first| self.rising.front().0 <= first.0)
    }

    #[inline]
    fn push_rest(&mut self, node: Node) {
        let mut place = self.rest.len();
        self.rest.push(node);
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.rest[parent].0 <= node.0 {
                break;
            }
            self.rest[place] = self.rest[parent];
            place = parent;
        }
        self.rest[place] = node;
    }

    /// Puts `node` in the place of the heap's top, which must not be above it.
    #[inline]
    fn sift_down(&mut self, node: Node) {
        let mut place = 0;
        loop {
            let first = place * ARITY + 1;
            let children = self.rest.get(first..).unwrap_or_default();
            let nth = match children.first_chunk::<ARITY>() {
                Some(children) => least(children),
                None => {
                    let Some(nth) = (0..children.len()).min_by_key(|&nth| children[nth].0) else { break };
                    nth
                }
            };
            let child = children[nth];
            if child.0 >= node.0 {
                break;
            }
            self.rest[place] = child;
            place = first + nth;
        }
        self.rest[place] = node;
    }
}

/// Which one is the least. Without a branch: which one it is cannot be predicted.
#[inline]
fn least(nodes: &[Node; ARITY]) -> usize {
    let mut least = 0;
    for nth in 1..ARITY {
        least = std::hint::select_unpredictable(nodes[nth].0 < nodes[least].0, nth, least);
    }
    least
}

/// Nodes in the order in which they came.
#[derive(Clone, Debug)]
struct Ring {
    nodes: Box<[Node]>,
    head: usize,
    len: usize,
}

impl Ring {
    fn new(capacity: usize) -> Self {
        Self { nodes: vec![(0, 0); capacity.next_power_of_two()].into(), head: 0, len: 0 }
    }

    /// The first; meaningless if there is none.
    #[inline]
    fn front(&self) -> Node {
        self.nodes[self.head]
    }

    /// The last one's count, or zero.
    #[inline]
    fn back(&self) -> u64 {
        if self.len == 0 { 0 } else { self.nodes[self.at(self.len - 1)].0 }
    }

    #[inline]
    fn push(&mut self, node: Node) {
        self.nodes[self.at(self.len)] = node;
        self.len += 1;
    }

    #[inline]
    fn pop(&mut self) {
        self.head = self.at(1);
        self.len -= 1;
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        let head = self.head;
        let len = self.len;
        let (wrapped, first) = self.nodes.split_at_mut(head);
        first.iter_mut().chain(wrapped).take(len)
    }

    #[inline]
    fn at(&self, place: usize) -> usize {
        (self.head + place) & (self.nodes.len() - 1)
    }
}

/// Children of a heap's node: four fit one cache line.
const ARITY: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Queue {
        /// Every counter is in one place, under a count that it has reached, and both halves are in order.
        pub(crate) fn assert_whole(&self, counts: &[u64]) {
            let rising: Vec<_> =
                (0..self.rising.len).map(|place| self.rising.nodes[self.rising.at(place)]).collect();
            assert!(rising.is_sorted_by_key(|&(count, _)| count), "not rising");
            for (place, &(seen, _)) in self.rest.iter().enumerate().skip(1) {
                assert!(self.rest[(place - 1) / ARITY].0 <= seen, "not a heap");
            }
            let mut numbers = Vec::new();
            for (seen, number) in rising.into_iter().chain(self.rest.iter().copied()) {
                assert!(seen <= counts[number as usize]);
                numbers.push(number);
            }
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..counts.len() as u32));
        }
    }

    /// One operation on a queue of counters.
    #[derive(Clone, Debug)]
    enum Step {
        Grow(usize, u64),
        ReplaceSmallest(u64),
        Halve,
    }

    proptest! {
        #[test]
        fn the_smallest_is_the_smallest_whatever_grew(
            first in prop::collection::vec(0..100_u64, 1..70),
            steps in prop::collection::vec(prop_oneof![
                (any::<usize>(), 0..50_u64).prop_map(|(which, by)| Step::Grow(which, by)),
                Just(Step::ReplaceSmallest(1)),
                (0..50_u64).prop_map(Step::ReplaceSmallest),
                Just(Step::Halve),
            ], 0..300),
        ) {
            let mut queue = Queue::new(first.len());
            let mut counts = first;
            for (number, &count) in (0..).zip(&counts) {
                queue.push(count, number);
            }
            for step in steps {
                match step {
                    Step::Grow(which, by) => { let which = which % counts.len(); counts[which] += by; }
                    Step::ReplaceSmallest(by) => {
                        let number = queue.smallest(|number| counts[number as usize]);
                        prop_assert_eq!(Some(&counts[number as usize]), counts.iter().min());
                        counts[number as usize] += by;
                        queue.replace_smallest(counts[number as usize], number);
                    }
                    Step::Halve => {
                        counts.iter_mut().for_each(|count| *count /= 2);
                        queue.change_all(|count| count / 2);
                    }
                }
                queue.assert_whole(&counts);
            }
        }
    }
}
