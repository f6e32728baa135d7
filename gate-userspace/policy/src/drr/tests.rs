use std::collections::BTreeMap;

use super::*;

fn drain(queue: &mut DeficitRoundRobin<(u32, u64)>) -> Vec<(u32, u64)> {
    std::iter::from_fn(|| queue.pop(|_| true)).collect()
}

fn keys(served: &[(u32, u64)]) -> Vec<u32> {
    served.iter().map(|&(key, _)| key).collect()
}

#[test]
fn flows_take_turns_and_each_keeps_its_order() {
    let mut queue = DeficitRoundRobin::new(1);
    for number in 0..3 {
        queue.push(7, 1, (7, number));
    }
    queue.push(8, 1, (8, 0));
    queue.push(9, 1, (9, 0));
    queue.push(9, 1, (9, 1));
    assert_eq!(drain(&mut queue), [(7, 0), (8, 0), (9, 0), (7, 1), (9, 1), (7, 2)]);
}

#[test]
fn turns_go_by_cost_and_not_by_number() {
    let mut queue = DeficitRoundRobin::new(10);
    for number in 0..100 {
        queue.push(1, 50, (1, number));
        queue.push(2, 5, (2, number));
    }
    let served: Vec<_> = (0..110).filter_map(|_| queue.pop(|_| true)).collect();
    let cheap = keys(&served).iter().filter(|&&key| key == 2).count();
    assert_eq!(cheap, 100, "ten times as many for a tenth");
}

#[test]
fn a_late_flow_is_served_at_the_next_turn() {
    let mut queue = DeficitRoundRobin::new(8);
    for number in 0..10_000 {
        queue.push(1, 1, (1, number));
    }
    assert_eq!((0..1_000).filter_map(|_| queue.pop(|_| true)).count(), 1_000);
    queue.push(2, 1, (2, 0));
    let before = std::iter::from_fn(|| queue.pop(|_| true)).take_while(|&(key, _)| key == 1).count();
    assert!(before <= 8, "{before} before it");
}

#[test]
fn an_item_dearer_than_any_quantum_is_served_in_its_turn() {
    let mut queue = DeficitRoundRobin::new(1);
    queue.push(1, u64::MAX, (1, 0));
    assert_eq!(queue.pop(|_| true), Some((1, 0)));
    queue.push(1, 1_000_000, (1, 0));
    queue.push(2, 3_000_000, (2, 0));
    (0..4).for_each(|number| queue.push(3, 500_000, (3, number)));
    assert_eq!(keys(&drain(&mut queue)), [3, 1, 3, 3, 3, 2]);
}

#[test]
fn what_is_held_back_lets_others_pass_and_comes_first_later() {
    let mut queue = DeficitRoundRobin::new(4);
    for number in 0..3 {
        (1..=3).for_each(|key| queue.push(key, 1, (key, number)));
    }
    let without_one: Vec<_> = std::iter::from_fn(|| queue.pop(|&(key, _)| key != 1)).collect();
    assert_eq!(keys(&without_one), [2, 2, 2, 3, 3, 3]);
    assert_eq!(queue.pop(|_| false), None);
    assert_eq!(drain(&mut queue), [(1, 0), (1, 1), (1, 2)]);
}

#[test]
fn few_flows_that_are_held_back_are_looked_at() {
    let mut queue = DeficitRoundRobin::new(1);
    (0..1_000).for_each(|key| queue.push(key, 1, (key, 0)));
    let mut looked_at = 0;
    let popped = queue.pop(|_| {
        looked_at += 1;
        false
    });
    assert_eq!(popped, None);
    assert_eq!(looked_at, MOST_HELD_BACK);
    // Others come next time.
    let mut next = Vec::new();
    queue.pop(|&(key, _)| {
        next.push(key);
        false
    });
    assert_eq!(next, [4, 5, 6, 7]);
}

#[test]
fn a_flow_without_items_keeps_nothing() {
    let mut queue = DeficitRoundRobin::new(100);
    for _ in 0..50 {
        queue.push(1, 1, (1, 0));
        assert_eq!(queue.pop(|_| true), Some((1, 0)));
    }
    for number in 0..300 {
        queue.push(1, 1, (1, number));
        queue.push(2, 1, (2, number));
    }
    let first: Vec<_> = (0..200).filter_map(|_| queue.pop(|_| true)).collect();
    assert_eq!(keys(&first).iter().filter(|&&key| key == 1).count(), 100);
}

#[test]
fn memory_is_used_again() {
    let mut queue = DeficitRoundRobin::new(1);
    for round in 0..1_000 {
        (0..10).for_each(|key| queue.push(round * 10 + key, 1, (key, 0)));
        assert_eq!(drain(&mut queue).len(), 10);
    }
    assert!(queue.items.capacity() < 20 && queue.flows.capacity() < 20, "memory is used again");
    assert!(queue.is_empty() && queue.by_key.is_empty() && queue.turns.is_empty());
    (0..10_000).for_each(|key| queue.push(key, 1, (key, 0)));
    drain(&mut queue);
    assert!(queue.items.capacity() < MOST_KEPT, "much is given back");
}

#[test]
fn the_first_that_is_wanted_is_removed_wherever_its_turn_is() {
    let mut queue = DeficitRoundRobin::new(1);
    for key in 1..=3 {
        (0..2).for_each(|number| queue.push(key, 1, (key, number)));
    }
    assert_eq!(queue.firsts().copied().collect::<Vec<_>>(), [(1, 0), (2, 0), (3, 0)]);
    assert_eq!(queue.remove_first(|&(_, number)| number == 1), None);
    assert_eq!(queue.remove_first(|&(key, _)| key == 2), Some((2, 0)));
    assert_eq!(queue.remove_first(|&(key, _)| key == 2), Some((2, 1)));
    assert_eq!((queue.len(), drain(&mut queue)), (4, vec![(1, 0), (3, 0), (1, 1), (3, 1)]));
}

proptest::proptest! {
    /// Between two flows that never run dry, shares differ by a quantum and the dearest item of each at most.
    #[test]
    fn backlogged_flows_share_by_cost(
        quantum in 1_u64..50,
        costs in proptest::collection::vec((0_u32..4, 1_u64..40), 400..800),
        served in 1_usize..120,
    ) {
        let mut queue = DeficitRoundRobin::new(quantum);
        let mut backlog: BTreeMap<u32, usize> = BTreeMap::new();
        for &(key, cost) in &costs {
            queue.push(key, cost, (key, cost));
            *backlog.entry(key).or_default() += 1;
        }
        let mut spent: BTreeMap<u32, u64> = BTreeMap::new();
        for _ in 0..served {
            let (key, cost) = queue.pop(|_| true).unwrap();
            *spent.entry(key).or_default() += cost;
            *backlog.get_mut(&key).unwrap() -= 1;
            if backlog.values().any(|&left| left == 0) {
                break;
            }
            let (least, most) = backlog.keys().map(|key| spent.get(key).copied().unwrap_or(0))
                .fold((u64::MAX, 0), |(least, most), spent| (least.min(spent), most.max(spent)));
            proptest::prop_assert!(most - least <= quantum + 2 * 40, "{spent:?}");
        }
    }

    /// Whatever is pushed, held back and removed: all comes out once, each flow's in order.
    #[test]
    fn nothing_is_lost_and_flows_keep_their_order(
        steps in proptest::collection::vec((0_u8..6, 0_u32..5, 0_u64..30), 1..300),
    ) {
        let mut queue = DeficitRoundRobin::new(7);
        let mut model = BTreeMap::<u32, VecDeque<u64>>::new();
        for (number, (what, key, cost)) in (0_u64..).zip(steps) {
            let out = match what {
                0 | 1 => {
                    queue.push(key, cost, (key, number));
                    model.entry(key).or_default().push_back(number);
                    None
                }
                2 => queue.pop(|&(flow, _)| flow != key),
                3 => {
                    let is_lost = |&(flow, number): &(u32, u64)| flow != key && number % 3 != cost % 3;
                    let mut lost = Vec::new();
                    queue.remove_all(is_lost, |item| lost.push(item));
                    for (&key, numbers) in &mut model {
                        numbers.retain(|&number| !is_lost(&(key, number)) || !lost.contains(&(key, number)));
                    }
                    None
                }
                _ => queue.remove_first(|&(flow, _)| flow == key),
            };
            if let Some((key, number)) = out {
                proptest::prop_assert_eq!(model.get_mut(&key).unwrap().pop_front(), Some(number));
            }
            proptest::prop_assert_eq!(queue.len(), model.values().map(VecDeque::len).sum::<usize>());
        }
        for (key, number) in drain(&mut DeficitRoundRobin::new(7)).into_iter().chain(drain(&mut queue)) {
            proptest::prop_assert_eq!(model.get_mut(&key).unwrap().pop_front(), Some(number));
        }
        proptest::prop_assert!(model.values().all(VecDeque::is_empty));
    }
}

#[test]
fn a_flow_is_taken_out_whole_and_in_order() {
    let mut queue = DeficitRoundRobin::new(1);
    for (key, value) in [(1, 'a'), (2, 'b'), (1, 'c'), (3, 'd'), (1, 'e')] {
        queue.push(key, u64::from(key) * 10, value);
    }
    assert_eq!(queue.take_flow(1), [(10, 'a'), (10, 'c'), (10, 'e')]);
    assert!(queue.take_flow(1).is_empty() && queue.take_flow(9).is_empty());
    let mut left: Vec<_> = std::iter::from_fn(|| queue.pop(|_| true)).collect();
    left.sort_unstable();
    assert_eq!(left, ['b', 'd']);
}
